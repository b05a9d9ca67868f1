/* What C can do wrong, and what it may do: run under a sanitizer, and under valgrind.
 *
 *     borders FILE [ROUNDS]     with a number of rounds it does not fork: a child looks to valgrind
 *                               as if it had lost what its parent's threads own
 */
#include <evermap.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s fails: %s\n", __FILE__, __LINE__, #condition,               \
                    evermap_message());                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { THREADS = 4 };
static int rounds = 2000;

static evermap_db *db;

/* Counts, and reads what others write. A value is released by another thread than has read it. */
static void *work(void *given) {
    const evermap_map *map = evermap_default_map(db);
    evermap_value last = {0}, *handed = given;
    evermap_value_release(handed);
    for (int round = 0; round < rounds; round++) {
        char bytes[200];
        memset(bytes, 'a' + round % 26, sizeof bytes);
        CHECK(evermap_add(map, "count", 5, 1, NULL) == EVERMAP_OK);
        CHECK(evermap_put(map, "shared", 6, bytes, sizeof bytes) == EVERMAP_OK);
        evermap_value_release(&last);
        CHECK(evermap_get(map, "shared", 6, &last) == EVERMAP_OK);
        CHECK(last.borrowed && last.len == sizeof bytes && last.data[0] == last.data[199]);
    }
    evermap_value_release(&last);
    return NULL;
}

static void threads(void) {
    const evermap_map *map = evermap_default_map(db);
    pthread_t running[THREADS];
    evermap_value values[THREADS];
    CHECK(evermap_put(map, "shared", 6, "xx", 2) == EVERMAP_OK);
    for (int at = 0; at < THREADS; at++) {
        CHECK(evermap_get(map, "shared", 6, &values[at]) == EVERMAP_OK);
        CHECK(pthread_create(&running[at], NULL, work, &values[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(running[at], NULL);
    }
    int64_t count;
    CHECK(evermap_add(map, "count", 5, 0, &count) == EVERMAP_OK && count == THREADS * rounds);
}

/* A child reads what was there, and is told why it cannot write. */
static void child(const char *path) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        evermap_value value;
        const evermap_map *map = evermap_default_map(db);
        CHECK(evermap_get(map, "shared", 6, &value) == EVERMAP_OK && !value.borrowed);
        evermap_value_release(&value);
        CHECK(evermap_put(map, "shared", 6, "", 0) == EVERMAP_ERR_FORKED);
        CHECK(strstr(evermap_message(), "fork") != NULL);
        evermap_db *second;
        CHECK(evermap_open(path, NULL, &second) == EVERMAP_ERR_IN_USE && second == NULL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (argc > 2) {
        rounds = atoi(argv[2]);
    }
    evermap_options *options = evermap_options_new();
    CHECK(evermap_options_set(options, "ordered", "true") == EVERMAP_OK);
    CHECK(evermap_options_set(options, "lock_wait", "0") == EVERMAP_OK);
    /* Valgrind takes minutes to note a large address space. */
    CHECK(evermap_options_set(options, "capacity", "64M") == EVERMAP_OK);
    CHECK(evermap_options_set(options, "exclusive", "true") == EVERMAP_OK);
    CHECK(evermap_options_set(options, NULL, "true") == EVERMAP_ERR_INVALID);
    CHECK(evermap_open(argv[1], options, &db) == EVERMAP_OK);
    evermap_options_free(options);
    threads();
    if (argc == 2) {
        child(argv[1]);
    }

    const evermap_map *map = evermap_default_map(db);
    evermap_slice keys[3] = {{"count", 5}, {"none", 4}, {"shared", 6}};
    evermap_value values[3];
    CHECK(evermap_get_many(map, keys, 3, values) == EVERMAP_OK);
    CHECK(values[0].len == 8 && values[1].data == NULL && values[2].len == 200);
    evermap_values_release(values, 3);
    keys[1].data = NULL;
    CHECK(evermap_get_many(map, keys, 3, values) == EVERMAP_ERR_INVALID && !values[0].owner);

    evermap_cursor *cursor;
    evermap_slice key;
    CHECK(evermap_scan(map, "d", 1, NULL, 0, false, 0, &cursor) == EVERMAP_OK);
    CHECK(evermap_cursor_next(cursor, &key, NULL) == EVERMAP_OK && key.len == 6);
    evermap_map *users;
    CHECK(evermap_map_open(db, "users", true, &users) == EVERMAP_OK);
    evermap_value held;
    CHECK(evermap_get(map, "shared", 6, &held) == EVERMAP_OK);
    CHECK(evermap_close(db) == EVERMAP_ERR_DEADLOCK);
    evermap_value_release(&held);
    CHECK(evermap_close(db) == EVERMAP_OK);
    CHECK(evermap_contains(users, "ann", 3) == EVERMAP_ERR_CLOSED);
    CHECK(evermap_cursor_next(cursor, &key, NULL) != EVERMAP_OK);
    evermap_map_free(users);
    evermap_cursor_free(cursor);

    CHECK(evermap_open("/dev/null/none", NULL, &db) < 0 && db == NULL);
    printf("%s\n", evermap_message());
    return 0;
}
