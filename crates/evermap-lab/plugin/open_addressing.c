/* An example of a plugin for `evermap lab`: open addressing with linear probing, sharded, a lock for each shard.
 *
 *     cc -std=c11 -O2 -shared -fPIC -pthread -o open_addressing.so open_addressing.c
 *     evermap lab run micro --plugin ./open_addressing.so --index open-addressing,dash-eh
 */
#include "evermap_lab_plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 64u
#define NO_MEMORY (-1)

enum state { FREE, TAKEN, DELETED };

struct slot {
    uint64_t key;
    uint64_t word;
};

struct shard {
    pthread_mutex_t lock;
    struct slot *slots;
    uint8_t *states;
    size_t places; /* a power of two */
    size_t taken;
    size_t used; /* taken and deleted */
};

struct table {
    struct shard shards[SHARDS];
};

/* The finaliser of splitmix64. The low bits choose the shard, the others the slot. */
static uint64_t hash(uint64_t key) {
    key ^= key >> 30;
    key *= 0xbf58476d1ce4e5b9u;
    key ^= key >> 27;
    key *= 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}

static struct shard *shard_of(struct table *table, uint64_t h) {
    return &table->shards[h % SHARDS];
}

/* The slot of `key`, or NULL. The shard is locked. */
static struct slot *find(struct shard *shard, uint64_t key, uint64_t h) {
    size_t mask = shard->places - 1;
    for (size_t at = (h / SHARDS) & mask;; at = (at + 1) & mask) {
        /* There is always a free slot, so this ends. */
        if (shard->states[at] == FREE) return NULL;
        if (shard->states[at] == TAKEN && shard->slots[at].key == key) return &shard->slots[at];
    }
}

/* Puts an absent key into the first slot that is not taken. There is room. */
static void place(struct shard *shard, uint64_t key, uint64_t word, uint64_t h) {
    size_t mask = shard->places - 1;
    size_t at = (h / SHARDS) & mask;
    while (shard->states[at] == TAKEN) at = (at + 1) & mask;
    shard->used += shard->states[at] == FREE;
    shard->states[at] = TAKEN;
    shard->slots[at].key = key;
    shard->slots[at].word = word;
    shard->taken++;
}

/* Gives the shard `places` empty places. */
static int empty(struct shard *shard, size_t places) {
    struct slot *slots = malloc(places * sizeof *slots);
    uint8_t *states = calloc(places, 1);
    if (!slots || !states) {
        free(slots);
        free(states);
        return NO_MEMORY;
    }
    shard->slots = slots;
    shard->states = states;
    shard->places = places;
    shard->taken = shard->used = 0;
    return 0;
}

/* Makes sure that one more slot can be used: at most seven in eight are. */
static int make_room(struct shard *shard) {
    struct shard old = *shard;
    if (old.used + 1 <= old.places - old.places / 8) return 0;
    /* Where most of them are deleted, the same size will do. */
    if (empty(shard, old.taken * 2 > old.places ? old.places * 2 : old.places) != 0) return NO_MEMORY;
    for (size_t at = 0; at < old.places; at++) {
        if (old.states[at] == TAKEN) {
            place(shard, old.slots[at].key, old.slots[at].word, hash(old.slots[at].key));
        }
    }
    free(old.slots);
    free(old.states);
    return 0;
}

static void destroy(void *self) {
    struct table *table = self;
    for (size_t i = 0; i < SHARDS; i++) {
        free(table->shards[i].slots);
        free(table->shards[i].states);
        pthread_mutex_destroy(&table->shards[i].lock);
    }
    free(table);
}

static void *create(const struct evermap_lab_setup *setup) {
    struct table *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    size_t places = 16;
    while (setup->presize && places * SHARDS * 3 / 4 < setup->keys) places *= 2;
    for (size_t i = 0; i < SHARDS; i++) pthread_mutex_init(&table->shards[i].lock, NULL);
    for (size_t i = 0; i < SHARDS; i++) {
        if (empty(&table->shards[i], places) != 0) {
            destroy(table);
            return NULL;
        }
    }
    return table;
}

static int insert(void *self, uint64_t key, uint64_t word) {
    uint64_t h = hash(key);
    struct shard *shard = shard_of(self, h);
    pthread_mutex_lock(&shard->lock);
    int answer = find(shard, key, h) != NULL;
    if (!answer) {
        answer = make_room(shard);
        if (answer == 0) place(shard, key, word, h);
    }
    pthread_mutex_unlock(&shard->lock);
    return answer;
}

static int get(void *self, uint64_t key, uint64_t *word) {
    uint64_t h = hash(key);
    struct shard *shard = shard_of(self, h);
    pthread_mutex_lock(&shard->lock);
    struct slot *slot = find(shard, key, h);
    if (slot) *word = slot->word;
    pthread_mutex_unlock(&shard->lock);
    return slot != NULL;
}

static int update(void *self, uint64_t key, uint64_t word, uint64_t *old) {
    uint64_t h = hash(key);
    struct shard *shard = shard_of(self, h);
    pthread_mutex_lock(&shard->lock);
    struct slot *slot = find(shard, key, h);
    if (slot) {
        *old = slot->word;
        slot->word = word;
    }
    pthread_mutex_unlock(&shard->lock);
    return slot != NULL;
}

static int remove_key(void *self, uint64_t key, uint64_t *old) {
    uint64_t h = hash(key);
    struct shard *shard = shard_of(self, h);
    pthread_mutex_lock(&shard->lock);
    struct slot *slot = find(shard, key, h);
    if (slot) {
        *old = slot->word;
        shard->states[slot - shard->slots] = DELETED;
        shard->taken--;
    }
    pthread_mutex_unlock(&shard->lock);
    return slot != NULL;
}

static uint64_t len(void *self) {
    struct table *table = self;
    uint64_t sum = 0;
    for (size_t i = 0; i < SHARDS; i++) sum += table->shards[i].taken;
    return sum;
}

static uint64_t places(struct table *table) {
    uint64_t sum = 0;
    for (size_t i = 0; i < SHARDS; i++) sum += table->shards[i].places;
    return sum;
}

static uint64_t bytes(void *self) {
    return sizeof(struct table) + places(self) * (sizeof(struct slot) + 1);
}

static double load_factor(void *self) {
    return (double)len(self) / (double)places(self);
}

static const char *error(int answer) {
    return answer == NO_MEMORY ? "no memory for a larger table" : "unknown";
}

static const struct evermap_lab_plugin PLUGIN = {
    .abi = EVERMAP_LAB_ABI,
    .name = "open-addressing",
    .about = "the example of a plugin: linear probing, a lock for each of 64 shards",
    .create = create,
    .destroy = destroy,
    .insert = insert,
    .get = get,
    .update = update,
    .remove = remove_key,
    .len = len,
    .bytes = bytes,
    .load_factor = load_factor,
    .error = error,
};

const struct evermap_lab_plugin *evermap_lab_plugin(void) {
    return &PLUGIN;
}
