/* Counts visits in a file, and remembers the last ones. Run it, kill it, and run it again:
 *
 *     ./visits visits.map ann     counts one visit of ann, and shows what is there
 *     ./visits visits.map         counts visits of bob until it is killed
 */
#include <evermap.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call has failed. */
static evermap_status must(evermap_status status) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", evermap_status_name(status), evermap_message());
        exit(1);
    }
    return status;
}

/* Counts a visit, and notes it under its number: both, or neither. */
static void count(evermap_db *db, evermap_batch *batch, const char *name, int64_t number) {
    char note[32];
    int length = snprintf(note, sizeof note, "visit %010" PRId64, number);
    must(evermap_batch_clear(batch));
    must(evermap_batch_add(batch, name, strlen(name), 1));
    must(evermap_batch_add(batch, "all", 3, 1));
    must(evermap_batch_put(batch, note, (size_t)length, name, strlen(name), 3600));
    must(evermap_apply(db, batch));
}

static int64_t counter(const evermap_map *map, const char *name) {
    int64_t count;
    must(evermap_add(map, name, strlen(name), 0, &count));
    return count;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: visits FILE [NAME]\n");
        return 2;
    }
    evermap_options *options = evermap_options_new();
    must(evermap_options_set(options, "ordered", "true"));
    evermap_db *db;
    must(evermap_open(argv[1], options, &db));
    evermap_options_free(options);
    const evermap_map *map = evermap_default_map(db);
    evermap_batch *batch = evermap_batch_new();

    const char *name = argc > 2 ? argv[2] : "bob";
    do {
        count(db, batch, name, counter(map, "all") + 1);
    } while (argc == 2);

    printf("%s: %" PRId64 " of %" PRId64 " visits\n", name, counter(map, name),
           counter(map, "all"));
    evermap_cursor *cursor;
    must(evermap_scan_prefix(map, "visit ", 6, true, 3, &cursor));
    evermap_slice key, value;
    while (must(evermap_cursor_next(cursor, &key, &value)) != EVERMAP_END) {
        printf("  %.*s by %.*s\n", (int)key.len, (const char *)key.data, (int)value.len,
               (const char *)value.data);
    }
    evermap_cursor_free(cursor);
    evermap_batch_free(batch);
    must(evermap_close(db));
    return 0;
}
