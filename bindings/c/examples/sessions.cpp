// Sessions that survive kill -9. Run it twice: the second run finds what the first one has left.
//
//     ./sessions sessions.map
#include <evermap.hpp>
#include <iostream>

int main(int argc, char **argv) try {
    using namespace std::chrono_literals;
    if (argc != 2) {
        std::cerr << "usage: sessions FILE\n";
        return 2;
    }
    evermap::db db(argv[1], evermap::options().set("ordered", "persistent"));
    evermap::map sessions = db.open_map("sessions");

    std::int64_t number = db.add("last session", 1);
    sessions.put("session:" + std::to_string(number), "user " + std::to_string(number * 7), 30min);
    db.apply(evermap::batch().add("logins", 1).in_map("sessions").put("last", "here", 60s));

    for (auto [key, user] : sessions.scan_prefix("session:")) {
        std::cout << key << " is " << user << '\n';
    }
    if (auto found = sessions.get("session:1")) { // where it is stored, not a copy, if it can be
        std::cout << found->view() << " has " << (sessions.ttl("session:1")->count() > 0 ? "" : "no ")
                  << "time left\n";
    }
    evermap::db before = db.snapshot();
    db.put("note", "written after the snapshot");
    std::cout << (before.contains("note") ? "a note was there before" : "no note yet") << '\n';
    before.put("note", "a snapshot is only read, so this throws");
} catch (const evermap::error &error) {
    std::cout << error.name() << ": " << error.what() << '\n';
    return error.status() == EVERMAP_ERR_READ_ONLY ? 0 : 1;
}
