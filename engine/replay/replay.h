/* SPDX-License-Identifier: Apache-2.0 */
/* replay - computes the steps of a record again, on a worker of its own, and compares the results.
 *
 * The worker gets each step as it was recorded: the same rows, blocks and parameters. What the file
 * refers to and does not contain is computed first, from tokens that it does contain: sequences
 * that were running when the file began, and states, blocks of the prefix cache and of swap space
 * from before. By DESIGN section 6 their bits are those of the recorded run. Threads: one owner. */
#ifndef QUIRE_ENGINE_REPLAY_REPLAY_H
#define QUIRE_ENGINE_REPLAY_REPLAY_H
#include "engine/core/core.h"
#include "engine/core/item_store.h"
#include "engine/core/worker_process.h"
#include "engine/record/record.h"

struct replay_difference {
    uint64_t step;    /* 0: none */
    const char *what; /* "tokens", "logprobs", "rows" */
    bool has_row;     /* the rows exist in both */
    struct record_row recorded, computed;
};

struct replay_span { /* bytes of the item store */
    uint64_t start, end;
    bool is_lost; /* something else was written there */
};

struct replay_items {
    struct item_store store;   /* its pieces are not used: the file says where items are */
    struct record_table *next; /* [max_num_seqs] by admission of the next SLOT or STEP; n_item 0:
                                * it has none */
    uint32_t n_next;
    struct record_table *waiting; /* [max_num_seqs] by slot, of replay.waiting */
    struct replay_span *spans;    /* [max_num_seqs] by slot: the table that the worker's slot has */
};

struct replay {
    struct record_reader file;
    struct core_config config;
    struct ring *ring;
    struct worker_process worker;
    struct worker_info info;
    char fingerprint[CORE_FINGERPRINT_MAX];    /* now */
    uint64_t n_sent;                           /* steps to the worker, with those that fill */
    uint64_t n_step, n_row, n_token, n_filled; /* compared; rows computed to fill */
    struct record_row *rows;                   /* of the last result */
    struct step_view *waiting; /* [max_num_seqs] running sequences that no step had yet; head NULL:
                                * none */
    uint64_t *blocks, *hosts, *states; /* a bit for each: its contents are known */
    uint32_t n_scratch;                /* blocks behind those of the record */
    struct replay_items items;
    uint32_t *adapters; /* [n_adapter] numbers of those that the worker has */
    size_t n_adapter, adapters_cap;
    const char *end; /* why the file ends; NULL: it does not say */
    struct replay_difference difference;
};
/* clang-format off */
#define REPLAY_INIT {.worker = WORKER_PROCESS_INIT, .items = {.store = ITEM_STORE_INIT}}
/* clang-format on */

/* r->file and r->config are set. Load the model.
 * Errors: those of loading; Q_MISMATCH (the model does not fit the record). */
FALLIBLE replay_open(struct replay *r, struct q_err *e);
/* All steps, until one differs. Errors: Q_CORRUPT (the file), Q_UNAVAILABLE (the worker died). */
FALLIBLE replay_run(struct replay *r, struct q_err *e);
void replay_release(struct replay *r);

/* The worker computes the step, under a number of its own; *result until the next one. */
FALLIBLE replay_compute(struct replay *r, const struct step_view *v, struct step_result *result,
                        struct q_err *e);

/* Wait until the worker has done something. Errors: Q_UNAVAILABLE (it died). */
FALLIBLE replay_wait(struct replay *r, struct q_err *e);

/* replay_adapters.c */
/* The worker loads or drops the adapter of this frame, from its folder, or from the one of
 * config.adapters with the same files. Errors: Q_MISMATCH (no folder has these files), those of
 * loading. */
FALLIBLE replay_adapter(struct replay *r, const struct record_item *item, struct q_err *e);
/* A new worker was recorded: it has none. */
FALLIBLE replay_adapters_forget(struct replay *r, struct q_err *e);

/* replay_items.c */
FALLIBLE replay_items_init(struct replay *r, struct q_err *e);
void replay_items_release(struct replay *r);
/* Items of an admission of the next SLOT or STEP, until replay_items_drop. */
void replay_items_add(struct replay *r, const struct record_table *t);
void replay_items_drop(struct replay *r);
const struct record_table *replay_items_of(const struct record_table *tables, uint32_t i);
/* Into the store, for a slot that is admitted next. */
void replay_items_place(struct replay *r, uint32_t slot, const struct record_table *t);
/* The same of all admissions of a step. Errors: Q_CORRUPT (an admission without its items). */
FALLIBLE replay_items_begin(struct replay *r, const struct step_view *v, struct q_err *e);
/* Before the step is computed. Errors: Q_CORRUPT (items of a slot were overwritten). */
FALLIBLE replay_items_check(const struct replay *r, const struct step_view *v, struct q_err *e);

/* replay_fill.c */
FALLIBLE replay_fill_init(struct replay *r, struct q_err *e);
void replay_fill_release(struct replay *r);
/* A running sequence that the file begins with; computed when a step has it. */
void replay_fill_add(struct replay *r, const struct step_view *v);
/* Compute what step v reads and the worker does not have, and note what v computes. */
FALLIBLE replay_fill(struct replay *r, const struct step_view *v, struct q_err *e);
void replay_fill_forget(struct replay *r); /* a new worker was recorded */

/* replay_show.c: a step, as text or as a JSON object on a line. */
void replay_show(const struct record_item *item, bool as_json, struct buf *out);

#endif
