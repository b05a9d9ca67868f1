/* Evermap for C: a map in a file that survives kill -9.
 *
 * This file is generated from bindings/c/src: change that, and run
 *     EVERMAP_WRITE_HEADER=1 cargo test -p evermap-c
 *
 * How to use it: docs/use/c.md. In short:
 *
 * - Every function that can fail returns an evermap_status: zero or more is an answer, less than
 *   zero is an error, and evermap_message() says what happened and what to do, for the calling
 *   thread.
 * - Every handle is for any number of threads at a time, except for batches and cursors, which
 *   are for one thread at a time.
 * - Keys and values are bytes with a length; NULL with the length 0 is empty. What is passed in
 *   is copied, and may be freed when the call returns. Who frees what comes out, each function
 *   says.
 * - NULL for a handle, a length that no object can have, and bytes that are NULL are errors, not
 *   crashes. All functions that free something accept NULL.
 */


#ifndef EVERMAP_H
#define EVERMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The greatest length of a key.
 */
#define EVERMAP_KEY_MAX 65536

/**
 * The greatest length of a value.
 */
#define EVERMAP_VALUE_MAX 1073741824

/**
 * The greatest length of the name of a map.
 */
#define EVERMAP_MAP_NAME_MAX 250

/**
 * What a call returns. Zero or more is an answer; less than zero is an error, and
 * evermap_message() says which.
 */
typedef enum evermap_status {
    /**
     * It was done, or found.
     */
    EVERMAP_OK = 0,
    /**
     * The key is absent. Nothing was changed.
     */
    EVERMAP_ABSENT = 1,
    /**
     * The key is present, and was left as it is, because that was the condition.
     */
    EVERMAP_KEPT = 2,
    /**
     * A condition of a batch does not hold: nothing was changed. evermap_message() says which.
     */
    EVERMAP_REFUSED = 3,
    /**
     * There are no more pairs.
     */
    EVERMAP_END = 4,
    /**
     * An argument is wrong: NULL, a length beyond its limit, an unknown option.
     */
    EVERMAP_ERR_INVALID = -1,
    /**
     * There is no file, or no map of this name.
     */
    EVERMAP_ERR_NOT_FOUND = -2,
    /**
     * The disk, the file's capacity, a limit or memory is full. Nothing was changed.
     */
    EVERMAP_ERR_NO_SPACE = -3,
    /**
     * Something in the file does not verify.
     */
    EVERMAP_ERR_DAMAGED = -4,
    /**
     * The value is no counter, or the counter would overflow. Nothing was changed.
     */
    EVERMAP_ERR_COUNTER = -5,
    /**
     * The call would wait for values that this program holds: release them first. Nothing was
     * done.
     */
    EVERMAP_ERR_DEADLOCK = -6,
    /**
     * Too much memory waits for values that are held. Nothing was changed.
     */
    EVERMAP_ERR_HELD_UP = -7,
    /**
     * The store was opened without the option `ordered`.
     */
    EVERMAP_ERR_NOT_ORDERED = -8,
    /**
     * The map was dropped.
     */
    EVERMAP_ERR_DROPPED = -9,
    /**
     * The snapshot has taken the memory that it may take.
     */
    EVERMAP_ERR_TOO_OLD = -10,
    /**
     * The store was closed.
     */
    EVERMAP_ERR_CLOSED = -11,
    /**
     * Another process has the file open, or this one has.
     */
    EVERMAP_ERR_IN_USE = -12,
    /**
     * The store was opened read-only, or is a snapshot. Nothing was changed.
     */
    EVERMAP_ERR_READ_ONLY = -13,
    /**
     * The file holds something else.
     */
    EVERMAP_ERR_NOT_A_STORE = -14,
    /**
     * The file was written by a later version of Evermap.
     */
    EVERMAP_ERR_NEWER_FORMAT = -15,
    /**
     * The file cannot be trusted after a crash of the machine: see the option `on_suspect`.
     */
    EVERMAP_ERR_SUSPECT = -16,
    /**
     * A setting cannot be met, or contradicts what the file was created with.
     */
    EVERMAP_ERR_CONFIG = -17,
    /**
     * The file system cannot keep the promise.
     */
    EVERMAP_ERR_FILE_SYSTEM = -18,
    /**
     * The operating system refused something.
     */
    EVERMAP_ERR_IO = -19,
    /**
     * A thread failed in the middle of a change. Opening the file again recovers the store.
     */
    EVERMAP_ERR_POISONED = -20,
    /**
     * This process was forked after the file was opened: it can read, and not write.
     */
    EVERMAP_ERR_FORKED = -21,
    /**
     * Another error.
     */
    EVERMAP_ERR_OTHER = -22,
    /**
     * A mistake in Evermap: please report the message. What was asked for may be done or not.
     */
    EVERMAP_ERR_PANIC = -23,
} evermap_status;

/**
 * When evermap_put_with() stores.
 */
typedef enum evermap_when {
    /**
     * Whether or not the key is present.
     */
    EVERMAP_ALWAYS = 0,
    /**
     * If the key is absent.
     */
    EVERMAP_IF_ABSENT = 1,
    /**
     * If the key is present.
     */
    EVERMAP_IF_PRESENT = 2,
} evermap_when;

/**
 * Changes and conditions that take effect together or not at all. For one thread at a time.
 */
typedef struct evermap_batch evermap_batch;

/**
 * A walk over pairs. For one thread at a time. Between two calls it holds nothing in the store, so
 * it may be kept for any time.
 */
typedef struct evermap_cursor evermap_cursor;

/**
 * An open store, or a snapshot of one. For any number of threads.
 */
typedef struct evermap_db evermap_db;

/**
 * A map of a store, which it keeps open. For any number of threads.
 */
typedef struct evermap_map evermap_map;

/**
 * How to open a store. For one thread at a time.
 */
typedef struct evermap_options evermap_options;

/**
 * What keeps a value.
 */
typedef struct evermap_owner evermap_owner;

/**
 * Bytes with their length.
 */
typedef struct evermap_slice {
    /**
     * The bytes; may be NULL if there are none.
     */
    const void *data;
    /**
     * Their number.
     */
    size_t len;
} evermap_slice;

/**
 * A value that was read. It stays as it was, and keeps its store open, until it is released with
 * evermap_value_release(); then `data` must not be used any more. Any thread may read it, and any
 * one of them release it.
 *
 * Values that are `borrowed` keep memory in the file from being used again, so they should be
 * released soon: if more than 64 MiB, or a quarter of the file, waits for them, changes return
 * EVERMAP_ERR_HELD_UP. They are of no use in a forked child.
 */
typedef struct evermap_value {
    /**
     * The bytes. NULL if nothing was found, and never NULL otherwise.
     */
    const uint8_t *data;
    /**
     * Their number.
     */
    size_t len;
    /**
     * What identifies this version of the record: see evermap_compare_exchange(). Never 0 if
     * something was found.
     */
    uint64_t cas;
    /**
     * When the record expires, in seconds since 1970; 0 if it does not.
     */
    uint64_t expires_at;
    /**
     * 32 bits that belong to the program: see evermap_put_with().
     */
    uint32_t flags;
    /**
     * Whether `data` is where the value is stored, and not a copy.
     */
    bool borrowed;
    /**
     * What has to be released.
     */
    struct evermap_owner *owner;
} evermap_value;

/**
 * Figures of a map and of its store.
 */
typedef struct evermap_stat {
    /**
     * Records in the map, with those that have expired and are not removed yet.
     */
    uint64_t records;
    /**
     * Bytes that they take in the file.
     */
    uint64_t record_bytes;
    /**
     * Length of the file.
     */
    uint64_t file_bytes;
    /**
     * Bytes of memory, or of disk, that the file takes.
     */
    uint64_t used_bytes;
    /**
     * What it may take; UINT64_MAX without a limit.
     */
    uint64_t memory_limit;
    /**
     * Records that were evicted since the store was opened.
     */
    uint64_t evictions;
    /**
     * How often the file was opened.
     */
    uint64_t generation;
    /**
     * Whether `records` is exact: not before a file was counted in the background after a kill.
     */
    bool exact;
    /**
     * Whether the store was closed before it was opened.
     */
    bool clean_open;
} evermap_stat;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns an empty batch, to be freed with evermap_batch_free().
 */
struct evermap_batch *evermap_batch_new(void);

/**
 * Frees a batch.
 */
void evermap_batch_free(struct evermap_batch *batch);

/**
 * Makes what is added next concern the map called `name`, which must exist when the batch is
 * applied; NULL is the default map, as in the beginning.
 */
enum evermap_status evermap_batch_in_map(struct evermap_batch *batch, const char *name);

/**
 * Adds that a key is bound to a value. It expires after `seconds` from now, or never if that is 0.
 */
enum evermap_status evermap_batch_put(struct evermap_batch *batch,
                                      const void *key,
                                      size_t key_len,
                                      const void *value,
                                      size_t value_len,
                                      uint64_t seconds);

/**
 * Adds that a key is removed, if it is present.
 */
enum evermap_status evermap_batch_delete(struct evermap_batch *batch,
                                         const void *key,
                                         size_t key_len);

/**
 * Adds that `delta` is added to a counter, as by evermap_add().
 */
enum evermap_status evermap_batch_add(struct evermap_batch *batch,
                                      const void *key,
                                      size_t key_len,
                                      int64_t delta);

/**
 * Adds the condition that the record of a key is the one that `cas` identifies, or with 0 that the
 * key is absent: before any change of the batch.
 */
enum evermap_status evermap_batch_expect(struct evermap_batch *batch,
                                         const void *key,
                                         size_t key_len,
                                         uint64_t cas);

/**
 * Empties a batch, to be filled again: with changes of the default map.
 */
enum evermap_status evermap_batch_clear(struct evermap_batch *batch);

/**
 * Makes all changes of a batch, or none of them, also if the process is killed meanwhile. The
 * batch stays as it is, and may be applied again.
 *
 * Returns EVERMAP_REFUSED if a condition does not hold, and an error for a map that does not exist
 * or a counter that is none: nothing has changed then.
 */
enum evermap_status evermap_apply(const struct evermap_db *db, const struct evermap_batch *batch);

/**
 * Begins to walk over all pairs of a map, in no order, and stores a cursor before the first one to
 * `*cursor`: to be freed with evermap_cursor_free(). A pair that is there all the time is shown
 * once, one that comes or goes meanwhile at most once.
 */
enum evermap_status evermap_walk(const struct evermap_map *map, struct evermap_cursor **cursor);

/**
 * Begins to walk over the pairs with keys from `from` to before `to`, in the order of their bytes,
 * and stores a cursor before the first one to `*cursor`: to be freed with evermap_cursor_free().
 * NULL is no bound. If `reverse` is set, the last one comes first. Shows at most `limit` pairs, or
 * all if that is 0. Needs the option `ordered`.
 *
 * Sees every change that was made before this call; pairs are of different moments (for one
 * moment, scan a snapshot).
 */
enum evermap_status evermap_scan(const struct evermap_map *map,
                                 const void *from,
                                 size_t from_len,
                                 const void *to,
                                 size_t to_len,
                                 bool reverse,
                                 uint64_t limit,
                                 struct evermap_cursor **cursor);

/**
 * Begins to walk over the pairs whose keys begin with `prefix`; otherwise as evermap_scan().
 */
enum evermap_status evermap_scan_prefix(const struct evermap_map *map,
                                        const void *prefix,
                                        size_t prefix_len,
                                        bool reverse,
                                        uint64_t limit,
                                        struct evermap_cursor **cursor);

/**
 * Moves to the next pair, and stores its key and its value to `*key` and `*value`, which may be
 * NULL. They belong to the cursor: they are valid until it is moved again or freed.
 *
 * Returns EVERMAP_END behind the last pair, and EVERMAP_ERR_DAMAGED for a record that does not
 * verify, behind which the cursor can be moved on.
 */
enum evermap_status evermap_cursor_next(struct evermap_cursor *cursor,
                                        struct evermap_slice *key,
                                        struct evermap_slice *value);

/**
 * Frees a cursor.
 */
void evermap_cursor_free(struct evermap_cursor *cursor);

/**
 * Reads the value of a key, without copying it if the store lends its values (a store in memory,
 * or a file that was opened with the option `exclusive`), and stores it to `*value`: to be
 * released with evermap_value_release(), also if it is a copy. What `*value` was before is not
 * released.
 *
 * Returns EVERMAP_ABSENT if there is no such key; then, and after an error, `*value` is all zeros,
 * and need not be released.
 */
enum evermap_status evermap_get(const struct evermap_map *map,
                                const void *key,
                                size_t key_len,
                                struct evermap_value *value);

/**
 * Copies the value of a key to `buffer`: as much as fits into `capacity` bytes. Stores its whole
 * length to `*len`, which may be greater. Nothing has to be released.
 *
 * Returns EVERMAP_ABSENT if there is no such key.
 */
enum evermap_status evermap_read(const struct evermap_map *map,
                                 const void *key,
                                 size_t key_len,
                                 void *buffer,
                                 size_t capacity,
                                 size_t *len);

/**
 * Reads the values of `count` keys together, which is faster than one after the other, and stores
 * them to `values`, which has room for as many: all zeros where the key is absent. They are
 * copies, of one moment each. To be released, each with evermap_value_release(), or all with
 * evermap_values_release().
 *
 * After an error nothing has to be released, and `values` are all zeros.
 */
enum evermap_status evermap_get_many(const struct evermap_map *map,
                                     const struct evermap_slice *keys,
                                     size_t count,
                                     struct evermap_value *values);

/**
 * Returns EVERMAP_OK if the key is present, EVERMAP_ABSENT if it is not.
 */
enum evermap_status evermap_contains(const struct evermap_map *map,
                                     const void *key,
                                     size_t key_len);

/**
 * Binds a key to a value, whether or not it is present. Durable against kill -9 when it returns.
 */
enum evermap_status evermap_put(const struct evermap_map *map,
                                const void *key,
                                size_t key_len,
                                const void *value,
                                size_t value_len);

/**
 * Binds a key to a value, with what can be stored beside it.
 *
 * The record expires after `seconds`, at least one, or never if that is 0. `flags` are 32 bits
 * that belong to the program. Stores what identifies the new version to `*cas`, which may be
 * NULL; if nothing was stored, it is that of the record that is there, or 0.
 *
 * `when` is an evermap_when. Returns EVERMAP_KEPT if the key is present and had to be absent,
 * EVERMAP_ABSENT if it is absent and had to be present.
 */
enum evermap_status evermap_put_with(const struct evermap_map *map,
                                     const void *key,
                                     size_t key_len,
                                     const void *value,
                                     size_t value_len,
                                     uint64_t seconds,
                                     uint32_t flags,
                                     int32_t when,
                                     uint64_t *cas);

/**
 * Binds a key to a value if its record is still the one that `expected` identifies, as
 * evermap_get() has stored it; flags and expiry as for evermap_put_with(). Stores what identifies
 * the record that is there then to `*cas`, which may be NULL; 0 if there is none.
 *
 * Returns EVERMAP_KEPT if the key has another record, EVERMAP_ABSENT if it has none.
 */
enum evermap_status evermap_compare_exchange(const struct evermap_map *map,
                                             const void *key,
                                             size_t key_len,
                                             uint64_t expected,
                                             const void *value,
                                             size_t value_len,
                                             uint64_t seconds,
                                             uint32_t flags,
                                             uint64_t *cas);

/**
 * Removes a key. Returns EVERMAP_ABSENT if it was not there.
 */
enum evermap_status evermap_delete(const struct evermap_map *map, const void *key, size_t key_len);

/**
 * Removes a key if its record is the one that `expected` identifies. Returns EVERMAP_KEPT if it
 * has another one, EVERMAP_ABSENT if it has none.
 */
enum evermap_status evermap_delete_if(const struct evermap_map *map,
                                      const void *key,
                                      size_t key_len,
                                      uint64_t expected);

/**
 * Adds `delta` to the counter of a key, atomically, and stores the sum to `*sum`, which may be
 * NULL. A counter is a value of 8 bytes: an int64_t, little-endian. An absent key counts as 0;
 * flags and expiry stay.
 *
 * Returns EVERMAP_ERR_COUNTER for a value of another length, and if the sum does not fit: nothing
 * has changed then.
 */
enum evermap_status evermap_add(const struct evermap_map *map,
                                const void *key,
                                size_t key_len,
                                int64_t delta,
                                int64_t *sum);

/**
 * Appends bytes to the value of a key, atomically. An absent key gets them alone; flags and expiry
 * stay. Takes as long as writing the whole value.
 */
enum evermap_status evermap_append(const struct evermap_map *map,
                                   const void *key,
                                   size_t key_len,
                                   const void *data,
                                   size_t data_len);

/**
 * Makes a key expire after `seconds` from now, at least one, or never if that is 0. Its value is
 * not written again. Returns EVERMAP_ABSENT if it is not there.
 */
enum evermap_status evermap_expire(const struct evermap_map *map,
                                   const void *key,
                                   size_t key_len,
                                   uint64_t seconds);

/**
 * Stores how many seconds a key has to live to `*seconds`: -1 if it does not expire. Returns
 * EVERMAP_ABSENT if it is not there.
 */
enum evermap_status evermap_ttl(const struct evermap_map *map,
                                const void *key,
                                size_t key_len,
                                int64_t *seconds);

/**
 * Removes all records of the map at once.
 */
enum evermap_status evermap_clear(const struct evermap_map *map);

/**
 * Stores figures of the map and of its store to `*stat`. Costs little.
 */
enum evermap_status evermap_map_stat(const struct evermap_map *map, struct evermap_stat *stat);

/**
 * Returns the default options, to be freed with evermap_options_free().
 */
struct evermap_options *evermap_options_new(void);

/**
 * Sets an option, by its name and as text:
 *
 *     create            true (default) or false: a file that is not there is made
 *     read_only         true or false: several processes may read a file
 *     beside_writers    true (default) or false: read a copy while another process writes
 *     offers_copies     true or false: other processes may read copies of this store
 *     ordered           false (default), true (order in memory) or persistent (in the file)
 *     durability        process (default), log, adr or eadr
 *     acknowledge       each (default), group=TIME or async=TIME; with durability=log
 *     log_folder        a path; with durability=log
 *     log_in_memory     true or false: the folder of the log may be on tmpfs, for tests
 *     checkpoint_bytes  a size; with durability=log
 *     memory_limit      a size: what the file may take
 *     evict             true or false: the default map is a cache within memory_limit
 *     max_bytes         a size: what the records of the default map may take
 *     capacity          a size: how long a new file may ever become
 *     on_suspect        refuse (default), salvage or discard a file that cannot be trusted
 *     lock_wait         a time: how long to wait for a process that is dying
 *     verify_reads      true (default) or false
 *     exclusive         true or false: a promise that no other program writes to the file while
 *                       it is open, so that evermap_get() lends values instead of copying them.
 *                       Breaking it is undefined behaviour
 *     index             dash-eh (default) or another kind, for a new file
 *
 * A size is a number of bytes, or has K, M, G or T behind it; a time is a number of seconds, or
 * has ms, s or min behind it.
 *
 * Returns EVERMAP_ERR_INVALID for an unknown name, and for a value that it cannot have.
 */
enum evermap_status evermap_options_set(struct evermap_options *options,
                                        const char *name,
                                        const char *value);

/**
 * Frees options. They may be freed as soon as the store is open.
 */
void evermap_options_free(struct evermap_options *options);

/**
 * Returns what the last call of this thread that returned an error, or EVERMAP_REFUSED, has to
 * say: a sentence in English. Valid until the next such call of this thread, or its end; not to
 * be freed. Empty if there was none. Never NULL.
 */
const char *evermap_message(void);

/**
 * Returns the name of a status, such as "EVERMAP_ERR_NO_SPACE", for logs. Not to be freed.
 * An unknown number is "unknown".
 */
const char *evermap_status_name(int32_t status);

/**
 * Opens the file at `path`, or creates it, and stores a handle of it to `*db`: to be closed with
 * evermap_close(). `options` may be NULL. Takes about a millisecond, whatever the size of the
 * file, and however the process ended that had it open before.
 *
 * Errors: IN_USE if a process has the file open, SUSPECT after a crash of the machine,
 * NOT_A_STORE, NOT_FOUND, NO_SPACE, DAMAGED, CONFIG, FILE_SYSTEM, IO. `*db` is NULL then.
 */
enum evermap_status evermap_open(const char *path,
                                 const struct evermap_options *options,
                                 struct evermap_db **db);

/**
 * Creates a store in memory, which is gone when it is closed; otherwise as evermap_open().
 */
enum evermap_status evermap_open_memory(const struct evermap_options *options,
                                        struct evermap_db **db);

/**
 * Closes the store, for all handles of its maps too, and frees `db`: waits for calls of other
 * threads that are running, and leaves the file in order. Maps that were opened by name, cursors
 * and snapshots still have to be freed; what they are used for returns EVERMAP_ERR_CLOSED. The
 * file can be opened again when they are.
 *
 * Without it, as after a kill, nothing is lost; the next opening tidies up.
 *
 * Returns EVERMAP_ERR_DEADLOCK while values of this store are held: nothing was done then, and
 * `db` can be used as before. Any other error is reported, and `db` is freed nevertheless.
 */
enum evermap_status evermap_close(struct evermap_db *db);

/**
 * Returns the default map, which every store has. It belongs to `db`: it is not to be freed, and
 * valid until `db` is closed. NULL only if `db` is NULL.
 */
const struct evermap_map *evermap_default_map(const struct evermap_db *db);

/**
 * Opens the map called `name`, or creates it if `create` is set, and stores a handle of it to
 * `*map`: to be freed with evermap_map_free(). It is another map in the same file.
 *
 * Errors: NOT_FOUND if there is none and `create` is not set, INVALID for a name that is not 1 to
 * 250 bytes of UTF-8, NO_SPACE, DAMAGED, CLOSED. `*map` is NULL then.
 */
enum evermap_status evermap_map_open(const struct evermap_db *db,
                                     const char *name,
                                     bool create,
                                     struct evermap_map **map);

/**
 * Frees a handle of a map. What is in the map stays.
 */
void evermap_map_free(struct evermap_map *map);

/**
 * Removes the map called `name` with all that is in it, at once and for good.
 *
 * Returns EVERMAP_ABSENT if there is none.
 */
enum evermap_status evermap_drop_map(const struct evermap_db *db, const char *name);

/**
 * Copies the name of one of the maps to `name`, with a zero behind it: the one at place `at`, from
 * 0, in the order of their names. The default map has no name. `capacity` is the length of `name`;
 * EVERMAP_MAP_NAME_MAX + 1 is enough for any.
 *
 * Returns EVERMAP_END if there are not as many maps, EVERMAP_ERR_INVALID if the name is longer
 * than fits.
 */
enum evermap_status evermap_map_name(const struct evermap_db *db,
                                     size_t at,
                                     char *name,
                                     size_t capacity);

/**
 * Waits until everything that this thread has changed is durable, if the store has a log;
 * otherwise does nothing.
 */
enum evermap_status evermap_sync(const struct evermap_db *db);

/**
 * Stores a handle of the store as it is at this moment to `*snapshot`: all maps of one moment, to
 * be read while the store is changed, and to be closed with evermap_close(). Copies nothing, and
 * waits for calls of other threads that are running. Memory grows with what is changed meanwhile,
 * up to `limit` bytes, or without a limit if that is 0; then what is read returns
 * EVERMAP_ERR_TOO_OLD.
 *
 * Errors: DEADLOCK while values are held, CONFIG for a store in memory, CLOSED, NO_SPACE, IO.
 */
enum evermap_status evermap_snapshot(const struct evermap_db *db,
                                     uint64_t limit,
                                     struct evermap_db **snapshot);

/**
 * Writes a copy of the store as it is at this moment to a new file at `path`, while the store is
 * in use, and makes it durable. A copy that cannot be finished is removed.
 */
enum evermap_status evermap_backup(const struct evermap_db *db, const char *path);

/**
 * Makes a store at `path`, where there is no file, of a backup at `backup`.
 */
enum evermap_status evermap_restore(const char *backup, const char *path);

/**
 * Checks the store while it is in use, and the checksum of every record too if `deep` is set.
 * Stores the number of problems to `*problems`, which may be NULL; evermap_message() has the
 * first one.
 *
 * Returns EVERMAP_OK if there are none, and EVERMAP_ERR_DAMAGED otherwise.
 */
enum evermap_status evermap_check(const struct evermap_db *db, bool deep, uint64_t *problems);

/**
 * Returns free space of sparse parts of the file to the system. Stores the bytes to `*bytes`,
 * which may be NULL.
 */
enum evermap_status evermap_compact(const struct evermap_db *db, uint64_t *bytes);

/**
 * Returns the version of the library, such as "0.1.0". Not to be freed.
 */
const char *evermap_version(void);

/**
 * Releases a value, and makes it one that was not found: releasing it again does nothing.
 */
void evermap_value_release(struct evermap_value *value);

/**
 * Releases `count` values, as evermap_get_many() has stored them.
 */
void evermap_values_release(struct evermap_value *values, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EVERMAP_H */
