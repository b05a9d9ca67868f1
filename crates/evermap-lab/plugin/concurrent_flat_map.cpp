/* boost::concurrent_flat_map as a plugin of `evermap lab`: an example in C++, for who has Boost 1.83
 * or newer.
 *
 *     c++ -std=c++17 -O3 -march=native -DNDEBUG -shared -fPIC -I crates/evermap-lab/plugin \
 *         -o concurrent_flat_map.so crates/evermap-lab/plugin/concurrent_flat_map.cpp
 *     evermap lab run micro --plugin ./concurrent_flat_map.so --index boost-flat-map,line-hash
 *
 * Another concurrent table needs the same six functions with its own calls: what is between
 * `namespace {` and the first function is all that says which one it is.
 */
#include "evermap_lab_plugin.h"

#include <boost/unordered/concurrent_flat_map.hpp>
#include <exception>
#include <new>

namespace {

/* The default hash of integers is the identity, which Boost mixes itself. */
using Map = boost::concurrent_flat_map<uint64_t, uint64_t>;

Map &map_of(void *table) { return *static_cast<Map *>(table); }

constexpr int FAILED = -1;

/* No exception may reach the caller. */
template <typename Act> int without_exceptions(Act act) {
    try {
        return act();
    } catch (...) {
        return FAILED;
    }
}

void *create(const evermap_lab_setup *setup) {
    try {
        return setup->presize ? new Map(setup->keys) : new Map();
    } catch (...) {
        return nullptr;
    }
}

void destroy(void *table) { delete &map_of(table); }

int insert(void *table, uint64_t key, uint64_t word) {
    return without_exceptions([&] { return map_of(table).emplace(key, word) ? 0 : 1; });
}

int get(void *table, uint64_t key, uint64_t *word) {
    return without_exceptions([&] {
        return map_of(table).cvisit(key, [&](const auto &pair) { *word = pair.second; }) ? 1 : 0;
    });
}

int update(void *table, uint64_t key, uint64_t word, uint64_t *old) {
    return without_exceptions([&] {
        auto exchange = [&](auto &pair) {
            *old = pair.second;
            pair.second = word;
        };
        return map_of(table).visit(key, exchange) ? 1 : 0;
    });
}

int remove(void *table, uint64_t key, uint64_t *old) {
    return without_exceptions([&] {
        auto take = [&](auto &pair) {
            *old = pair.second;
            return true;
        };
        return map_of(table).erase_if(key, take) ? 1 : 0;
    });
}

uint64_t len(void *table) { return map_of(table).size(); }

double load_factor(void *table) { return map_of(table).load_factor(); }

const char *error(int) { return "the table has thrown an exception, probably for lack of memory"; }

/* The function has the name of the structure. */
const struct evermap_lab_plugin PLUGIN = [] {
    struct evermap_lab_plugin plugin = {};
    plugin.abi = EVERMAP_LAB_ABI;
    plugin.name = "boost-flat-map";
    plugin.about = "boost::concurrent_flat_map";
    plugin.create = create;
    plugin.destroy = destroy;
    plugin.insert = insert;
    plugin.get = get;
    plugin.update = update;
    plugin.remove = remove;
    plugin.len = len;
    plugin.load_factor = load_factor;
    plugin.error = error;
    return plugin;
}();

} // namespace

extern "C" const struct evermap_lab_plugin *evermap_lab_plugin(void) { return &PLUGIN; }
