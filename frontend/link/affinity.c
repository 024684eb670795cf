/* SPDX-License-Identifier: Apache-2.0 */
/* The table is set-associative: a key's set is given by its lower bits, and has WAYS entries. */
#include "frontend/link/affinity.h"

#include <string.h>
#include <xxhash.h>
#include "common/mem.h"

#define WAYS             8u
#define SETS             (AFFINITY_ENTRIES / WAYS)
#define ITEM_ENDS        16384u /* bytes */
#define ITEMS_MAX_HASHED 256u   /* of a prompt; behind them it has no keys */

struct entry {
    uint64_t key;
    uint32_t engines; /* a bit for each; 0: the entry is free */
    uint32_t used;    /* affinity.now of its last affinity_add */
};
struct affinity {
    struct entry entries[SETS][WAYS];
    uint32_t now;
};

FALLIBLE affinity_new(struct affinity **out, struct q_err *e)
{
    *out = q_calloc(1, sizeof **out);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for the table of prefixes");
}

void affinity_free(struct affinity *a)
{
    q_free(a);
}

struct hashed_items { /* of a prompt, in the order of their positions */
    struct item_array items[ITEMS_MAX_HASHED];
    const uint32_t *positions;
    uint32_t n, at;
};

/* False: their places are not known here, or there are too many. */
static bool read_items(struct hashed_items *h, const struct generation *f)
{
    struct msg_submit m = {0};
    struct q_err none = Q_ERR_INIT;
    h->n = h->at = 0;
    h->positions = f->item_positions;
    if (!f->items)
        return true;
    item_wire_put(&m, f->items);
    return f->item_positions && item_wire_count(&h->n, &m, &none) == Q_OK &&
           h->n <= ITEMS_MAX_HASHED && h->n == f->n_item_position &&
           item_wire_read(h->items, h->n, &m, NULL, 0, &none) == Q_OK;
}

/* An item may have megabytes, and this is the loop's thread: its first and last bytes will do. */
static uint64_t add_ends(const struct item_array *i, uint64_t key)
{
    const size_t n = i->n_byte < ITEM_ENDS ? i->n_byte : ITEM_ENDS;
    key = XXH3_64bits_withSeed(i->data, n, key);
    return XXH3_64bits_withSeed((const char *)i->data + (i->n_byte - n), n, key);
}

/* Mix in the items before `end`. */
static uint64_t add_items(struct hashed_items *h, uint32_t end, uint64_t key)
{
    for (; h->at < h->n && h->positions[h->at] < end; h->at++) {
        const struct item_array *i = &h->items[h->at];
        key = XXH3_64bits_withSeed(i->modality, strlen(i->modality), key);
        key = XXH3_64bits_withSeed(i->dims, i->n_dim * sizeof *i->dims, key);
        key = add_ends(i, key);
    }
    return key;
}

void affinity_keys(struct affinity_keys *out, const struct generation *f)
{
    struct hashed_items items;
    uint64_t key = f->adapter ? XXH3_64bits(f->adapter, strlen(f->adapter)) : 0;
    bool is_salted = false;
    out->n = 0;
    if (f->no_prefix_cache || !read_items(&items, f))
        return;
    while (out->n < AFFINITY_CHUNKS_MAX && (out->n + 1) * AFFINITY_CHUNK <= f->n_prompt) {
        const uint32_t at = out->n * AFFINITY_CHUNK, end = at + AFFINITY_CHUNK;
        if (f->n_cache_salt && end > f->n_shared && !is_salted) {
            key = XXH3_64bits_withSeed(f->cache_salt, f->n_cache_salt, key);
            is_salted = true;
        }
        key = add_items(&items, end, key);
        key = XXH3_64bits_withSeed(f->prompt + at, AFFINITY_CHUNK * sizeof *f->prompt, key);
        out->keys[out->n++] = key;
    }
}

static uint32_t engines_of(const struct affinity *a, uint64_t key)
{
    const struct entry *set = a->entries[key % SETS];
    for (uint32_t i = 0; i < WAYS; i++)
        if (set[i].key == key)
            return set[i].engines;
    return 0;
}

void affinity_find(const struct affinity *a, const struct affinity_keys *k, uint32_t *n_token)
{
    uint32_t with = UINT32_MAX;
    memset(n_token, 0, AFFINITY_ENGINES * sizeof *n_token);
    for (uint32_t i = 0; i < k->n && (with &= engines_of(a, k->keys[i])); i++)
        for (uint32_t engine = 0; engine < AFFINITY_ENGINES; engine++)
            if (with >> engine & 1)
                n_token[engine] = (i + 1) * AFFINITY_CHUNK;
}

/* The key's entry, else a free one, else the one that was used longest ago. */
static struct entry *entry_for(struct affinity *a, uint64_t key)
{
    struct entry *set = a->entries[key % SETS], *best = set;
    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].engines && set[i].key == key)
            return &set[i];
        if (best->engines && (!set[i].engines || a->now - set[i].used > a->now - best->used))
            best = &set[i];
    }
    *best = (struct entry){.key = key};
    return best;
}

void affinity_add(struct affinity *a, const struct affinity_keys *k, uint32_t engine)
{
    a->now++;
    for (uint32_t i = 0; i < k->n; i++) {
        struct entry *to = entry_for(a, k->keys[i]);
        to->engines |= 1u << engine;
        to->used = a->now;
    }
}

void affinity_forget(struct affinity *a, uint32_t engine)
{
    for (uint32_t i = 0; i < SETS; i++)
        for (uint32_t j = 0; j < WAYS; j++)
            a->entries[i][j].engines &= ~(1u << engine);
}
