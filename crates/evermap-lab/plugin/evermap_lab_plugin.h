/* An index of your own in `evermap lab`.
 *
 * Write the functions below in C, or in anything that can speak C, build a shared library, and measure it beside the
 * others, by the same driver, with every answer checked:
 *
 *     cc -O2 -shared -fPIC -o mine.so mine.c
 *     evermap lab run micro --plugin ./mine.so --index mine,dash-eh,papaya
 *
 * `open_addressing.c` beside this file is a complete example.
 *
 * What the laboratory does: it calls `create`, has several threads call the other functions at once, and calls
 * `destroy` when none of them runs any more. It may do that many times in one process. The library is never unloaded.
 *
 * What you promise:
 *   - `insert`, `get`, `update`, `remove`, `get_many` and `scan` may be called by any number of threads at once, and
 *     each operation on one key takes effect at some moment between its call and its return;
 *   - nothing unwinds or longjmps out of your functions;
 *   - strings and the structure itself stay valid and unchanged for ever;
 *   - nothing is written behind the places that are handed to you.
 *
 * Answers of type `int`: 0 for "the key was absent", 1 for "the key was present", negative for a failure, which ends
 * the experiment with what `error` says about it. Any 64-bit value may be a key or a word, 0 and all ones too.
 */
#ifndef EVERMAP_LAB_PLUGIN_H
#define EVERMAP_LAB_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A plugin of another version is refused. */
#define EVERMAP_LAB_ABI 1u

/* What a table is asked to be. Valid during `create` only. */
struct evermap_lab_setup {
    uint64_t keys;         /* most keys that it will hold, roughly: mixes and the like add some more */
    int presize;           /* not 0: begin at the final size, if you can */
    const char *directory; /* where files belong, if you make any; remove them in `destroy` */
};

struct evermap_lab_plugin {
    uint32_t abi;      /* EVERMAP_LAB_ABI */
    const char *name;  /* for `--index` and reports; no other index may have it */
    const char *about; /* one line, or NULL */

    /* Required. `create` answers NULL if it cannot. */
    void *(*create)(const struct evermap_lab_setup *setup);
    void (*destroy)(void *table);

    /* Binds `key` to `word` if it is absent. */
    int (*insert)(void *table, uint64_t key, uint64_t word);
    /* Stores the word of `key` in `*word` if it is present. */
    int (*get)(void *table, uint64_t key, uint64_t *word);
    /* Binds `key` to `word` if it is present, and stores the word that it was bound to before in `*old`. */
    int (*update)(void *table, uint64_t key, uint64_t word, uint64_t *old);
    /* Unbinds `key`, and stores the word that it was bound to in `*old`. */
    int (*remove)(void *table, uint64_t key, uint64_t *old);

    /* Optional: NULL if you do not have it. */

    /* Looks up `count` keys: `found[i]` becomes 0 or 1, and `words[i]` the word where it is 1. Answers 0, or negative
     * for a failure. Without it, `get` is called one by one. */
    int (*get_many)(void *table, const uint64_t *keys, uint64_t *words, uint8_t *found, size_t count);
    /* Stores up to `count` pairs in ascending order of their keys, from `from` on. Answers how many, or negative for a
     * failure. Only for tables that keep an order. */
    ptrdiff_t (*scan)(void *table, uint64_t from, uint64_t *keys, uint64_t *words, size_t count);
    /* Pairs now. Called when nothing else runs, and compared with what must be there. */
    uint64_t (*len)(void *table);
    /* Bytes that the table takes. */
    uint64_t (*bytes)(void *table);
    /* Pairs divided by places, 0 to 1. */
    double (*load_factor)(void *table);
    /* What a negative answer means, in words. */
    const char *(*error)(int answer);
};

/* The one symbol that the laboratory looks for. */
const struct evermap_lab_plugin *evermap_lab_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
