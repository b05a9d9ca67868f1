/* A plugin for `evermap lab`: an index in C, or in any language with a C interface.
 *
 * Write the functions below, build a shared library, and measure it beside the other indexes, with
 * the same driver, and with every answer checked:
 *
 *     cc -O2 -shared -fPIC -o mine.so mine.c
 *     evermap lab run micro --plugin ./mine.so --index mine,dash-eh,papaya
 *
 * `open_addressing.c` in this directory is a complete example.
 *
 * The laboratory calls `create`, calls the other functions from several threads concurrently, and
 * calls `destroy` when no other call is running. It may do that many times in one process. The
 * library is never unloaded.
 *
 * The plugin must guarantee that
 *   - `insert`, `get`, `update`, `remove`, `get_many` and `scan` may be called by any number of
 *     threads concurrently, and each operation on one key takes effect at some moment between its
 *     call and its return;
 *   - no function unwinds or longjmps to its caller;
 *   - the strings and the structure stay valid and unchanged until the process ends;
 *   - nothing is written outside of the buffers that are passed.
 *
 * Functions that return `int` return 0 if the key was absent, 1 if the key was present, and a
 * negative number for a failure, which ends the experiment with the message that `error` returns.
 * Any 64-bit value may be a key or a word, including 0 and all ones.
 */
#ifndef EVERMAP_LAB_PLUGIN_H
#define EVERMAP_LAB_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A plugin of another version is refused. */
#define EVERMAP_LAB_ABI 1u

/* The parameters of a table. Only valid during `create`. */
struct evermap_lab_setup {
    uint64_t keys;         /* about the largest number of keys; mixes add some more */
    int presize;           /* if not 0, start at the final size if possible */
    const char *directory; /* for files, if there are any; remove them in `destroy` */
};

struct evermap_lab_plugin {
    uint32_t abi;      /* EVERMAP_LAB_ABI */
    const char *name;  /* for `--index` and reports; must be unique */
    const char *about; /* one line, or NULL */

    /* Required. `create` returns NULL if it fails. */
    void *(*create)(const struct evermap_lab_setup *setup);
    void (*destroy)(void *table);

    /* Binds `key` to `word` if it is absent. */
    int (*insert)(void *table, uint64_t key, uint64_t word);
    /* Stores the word of `key` in `*word` if it is present. */
    int (*get)(void *table, uint64_t key, uint64_t *word);
    /* Binds `key` to `word` if it is present, and stores the previous word in `*old`. */
    int (*update)(void *table, uint64_t key, uint64_t word, uint64_t *old);
    /* Removes `key`, and stores the word that it was bound to in `*old`. */
    int (*remove)(void *table, uint64_t key, uint64_t *old);

    /* Optional: may be NULL. */

    /* Looks up `count` keys. Sets `found[i]` to 0 or 1, and if it is 1, `words[i]` to the word.
     * Returns 0, or a negative number for a failure. If NULL, `get` is called for each key. */
    int (*get_many)(void *table, const uint64_t *keys, uint64_t *words, uint8_t *found,
                    size_t count);
    /* Stores up to `count` pairs in ascending order of their keys, starting at `from`. Returns
     * their number, or a negative number for a failure. Only for tables that keep an order. */
    ptrdiff_t (*scan)(void *table, uint64_t from, uint64_t *keys, uint64_t *words, size_t count);
    /* Returns the number of pairs. Called while no other call is running, and checked. */
    uint64_t (*len)(void *table);
    /* Returns the size of the table in bytes. */
    uint64_t (*bytes)(void *table);
    /* Returns the number of pairs divided by the number of slots, 0 to 1. */
    double (*load_factor)(void *table);
    /* Describes a negative result. */
    const char *(*error)(int answer);
};

/* The only symbol that the laboratory looks up. */
const struct evermap_lab_plugin *evermap_lab_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
