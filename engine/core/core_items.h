/* SPDX-License-Identifier: Apache-2.0 */
/* core_items - the items of submitted requests: checked against the model's modalities, matched to
 * the placeholders of the prompt, copied into the item store.
 *
 *     submit: prompt, arrays by modality  ──▶  submit: prompt with a row for each placeholder,
 *                                               table of struct step_item in the store
 *
 * The k-th placeholder of a modality (or run of n_token of them) takes its k-th item; a placeholder
 * of a modality with `expand` becomes n_token of them. A submit that says where the placeholders
 * are (item_positions) has one for each item, whatever its modality says, and no other id is one.
 * Threads: the core's owner. */
#ifndef QUIRE_ENGINE_CORE_CORE_ITEMS_H
#define QUIRE_ENGINE_CORE_CORE_ITEMS_H
#include "common/item_array.h"
#include "common/item_types.h"
#include "engine/core/item_store.h"
#include "engine/model/modality.h"
#include "engine/worker/ring.h"
#include "proto/items.h"

struct core_item_limit { /* of --limit-mm-per-prompt */
    char name[MODALITY_NAME_MAX];
    uint32_t n;
};
struct core_item_config {
    uint64_t store_bytes;
    struct core_item_limit limits[MODALITIES_MAX]; /* [n_limit] */
    uint32_t n_limit;
};

struct core_expansions { /* placeholders of a submit's prompt that became several rows */
    uint32_t *positions; /* [n] ascending, in the prompt as it was sent */
    uint32_t *n_token;   /* [n] rows there */
    size_t n;
    uint32_t n_prompt; /* tokens of the prompt then */
};

struct core_items {
    struct modalities *modalities; /* NULL before core_items_open */
    struct item_store store;
    void *hasher;     /* of OpenSSL */
    uint32_t *prompt; /* [n_prompt] of the submit being read, after expansion */
    size_t n_prompt, prompt_cap;
    struct item_array *arrays; /* of the submit being read */
    size_t arrays_cap;
    struct core_expansions expanded; /* of the last core_items_take */
    size_t expanded_cap[2];
    struct item_types types; /* of modalities */
};
/* clang-format off */
#define CORE_ITEMS_INIT {.store = ITEM_STORE_INIT}
/* clang-format on */

/* worker: model folder and images. Errors: those of modalities_open and item_store_init; Q_INVALID
 * (a limit beyond MODALITY_ITEMS_LIMIT). */
FALLIBLE core_items_open(struct core_items *x, const struct core_item_config *c,
                         const struct worker_config *worker, struct q_err *e);
void core_items_release(struct core_items *x);
/* Does the model take items? */
static inline bool core_items_any(const struct core_items *x)
{
    return x->modalities && x->modalities->n;
}
/* Tensors of a submit's item_* fields; valid until the next call. Errors: as item_wire_read. */
FALLIBLE core_items_read(struct core_items *x, const struct msg_submit *m, uint32_t *n,
                         struct q_err *e);

struct core_items_args {
    struct item_owner owner;
    const struct item_array *items; /* [n] those of a modality in the order of their placeholders */
    uint32_t n;
    uint32_t max_model_len, vocab_size;
    uint64_t settled; /* as item_store_add */
};
/* Take the items of m: its prompt and item fields become the engine's own (step_items_put); the
 * prompt is borrowed until the next call. Errors: Q_INVALID (the item and what is expected),
 * Q_TOO_LARGE, Q_NO_SPACE, Q_NO_MEMORY; nothing is in the store then. */
FALLIBLE core_items_take(struct core_items *x, struct msg_submit *m,
                         const struct core_items_args *a, struct q_err *e);

struct core_items_job {          /* the same in steps, so that a thread may do the second */
    struct core_items_args args; /* items and their data: borrowed until core_items_fill */
    const struct modalities *modalities;
    struct core_items *x;              /* core_items_place */
    unsigned char *memory;             /* of the store */
    void *hasher;                      /* of OpenSSL; a thread has its own */
    uint32_t n_of[MODALITIES_MAX];     /* items */
    uint64_t n_row_of[MODALITIES_MAX]; /* their rows */
    struct step_item *table;           /* [n] in the order of the items, then by position */
    uint64_t offset;                   /* of the table in the store */
};
/* May this submit have items? *any false: the model takes none, and it has none. Errors: Q_INVALID,
 * Q_MISMATCH (its owner has items). */
FALLIBLE core_items_begin(struct core_items *x, const struct core_items_args *a, bool *any,
                          struct q_err *e);
/* 1. Counts and sizes, by shapes alone; a piece of the store. */
FALLIBLE core_items_reserve(struct core_items *x, struct core_items_job *j,
                            const struct core_items_args *a, struct q_err *e);
/* 2. Contents: copied, checked, hashed. Writes the job and its piece alone. Threads: any one. */
FALLIBLE core_items_fill(struct core_items_job *j, struct q_err *e);
/* 3. As core_items_take, of a job that is filled. After an error its piece is the caller's to
 * drop. */
FALLIBLE core_items_place(struct core_items *x, struct core_items_job *j, struct msg_submit *m,
                          struct q_err *e);
/* Those that core_items_take put into the store, into m. */
void core_items_put(const struct core_items *x, struct msg_submit *m, struct item_owner owner);

#endif
