/* SPDX-License-Identifier: Apache-2.0 */
/* record - the file of --record: every step of an engine and its result, in order.
 *
 *     file    "quirerec" | frame | frame | …
 *     frame   kind u32 | bytes u32 | XXH3 of kind, bytes and payload u64 | payload, a multiple of 8
 *     HEAD    record_head, then texts with NUL: model, folder of weights, options
 *     ADAPTER record_adapter, then its folder with NUL: the worker has loaded a LoRA adapter
 *     ITEMS   record_items | the items' table | their contents: what an admission of the next
 *             SLOT or STEP finds in the item store
 *     SLOT    a sequence that was running when the file began: a step that admits it again
 *     STEP    record_step | record_row[n_row] | the step as the worker got it (proto/step.h)
 *     WORKER  a new worker: nothing is in its slots and blocks
 *     END     why the file ends; a file of an engine that was killed has none
 *
 * Integers and structs have the layout of the machine (little-endian), as a step has in shared
 * memory; RECORD_VERSION counts the layouts, and record.c asserts their sizes. The logprobs of a
 * row are kept as one hash. A file is read as bytes from outside. Threads: values. */
#ifndef QUIRE_ENGINE_RECORD_RECORD_H
#define QUIRE_ENGINE_RECORD_RECORD_H
#include "common/buf.h"
#include "common/file.h"
#include "proto/items.h"
#include "proto/step.h"

#define RECORD_VERSION     3u
#define RECORD_VERSION_MIN 3u /* those before have admissions of another layout */
#define RECORD_MAGIC       "quirerec"
#define RECORD_PAYLOAD_MAX ((uint64_t)1 << 30)
#define RECORD_OPTIONS_MAX 256u
#define RECORD_NAME_MAX    24u /* of a fingerprint, of a version of quire */

enum record_kind {
    RECORD_HEAD = 1,
    RECORD_SLOT,
    RECORD_STEP,
    RECORD_WORKER,
    RECORD_END,
    RECORD_ADAPTER,
    RECORD_ITEMS
};

struct record_head { /* what a worker has to be to compute the steps */
    uint32_t version;
    uint32_t n_option;
    struct step_limits limits;
    uint32_t n_block, n_swap_block, vocab_size;
    uint32_t max_model_len; /* of the model; limits has room for one token more where it pools */
    uint32_t continues;     /* 1: sequences were running when the file began */
    int64_t unix_s;
    char fingerprint[RECORD_NAME_MAX], program[RECORD_NAME_MAX]; /* with NUL */
};

struct record_row { /* of a step's result, in the order of slot, kind and position */
    uint32_t slot, position, token;
    uint32_t flags; /* RECORD_PROMPT … */
    uint64_t sum;   /* of rank, logprob and alternatives */
};
enum { RECORD_PROMPT = 1 << 0, RECORD_REJECTED = 1 << 1 };

struct record_step {
    uint32_t n_row, n_note;
    uint64_t step_bytes;
};

struct record_adapter {
    uint32_t number;
    uint32_t is_dropped;          /* 1: the worker has it no more */
    char digest[RECORD_NAME_MAX]; /* of its files, with NUL */
};

struct record_items {
    uint64_t offset;  /* of the table in the item store */
    uint32_t i_admit; /* number of the admission that has them */
    uint32_t n_item;  /* of its request: struct step_item[n_item], then the contents of each, padded
                       * to 8 bytes */
};

/* texts of a head */
struct record_texts {
    const char *model, *weights_dir;         /* "": the model's */
    const char *options[RECORD_OPTIONS_MAX]; /* [n_option] "--flag=value" */
};

/* The rows of a result, [result->head->n_row]; sorted, so that the order in which a worker wrote
 * them does not matter. */
void record_rows(struct record_row *out, const struct step_result *result);

/* ---- writing: frames are appended to `out` ---- */

void record_begin(struct buf *out); /* the magic bytes */
void record_put_head(struct buf *out, const struct record_head *head,
                     const struct record_texts *texts);
void record_put(struct buf *out, enum record_kind kind, const void *payload, size_t n);
/* view: valid; rows: [n_row]. */
void record_put_step(struct buf *out, const struct step_view *view,
                     const struct record_step *counts, const struct record_row *rows);
void record_put_adapter(struct buf *out, const struct record_adapter *a, const char *dir);
/* items: [head->n_item], whose contents are in store. */
void record_put_items(struct buf *out, const struct record_items *head,
                      const struct step_item *items, const unsigned char *store);

/* ---- reading ---- */

struct record_table {    /* of ITEMS */
    const void *payload; /* [n_payload] of the frame */
    size_t n_payload;
    struct record_items head;
    const struct step_item *items;
    const unsigned char *contents;
};

struct record_item { /* borrowed from the bytes */
    enum record_kind kind;
    struct step_view view;         /* STEP, SLOT */
    struct record_step counts;     /* STEP */
    const struct record_row *rows; /* STEP: [counts.n_row] */
    const char *reason;            /* END */
    struct record_adapter adapter; /* ADAPTER */
    const char *dir;               /* ADAPTER: the folder */
    struct record_table table;     /* ITEMS */
};

struct record_reader {
    const unsigned char *data; /* borrowed; on 8 bytes */
    size_t n, at;
    struct record_head head;
    struct record_texts texts;
    bool is_incomplete; /* the last frame is cut, as after a kill */
};

/* Read the head. Errors: Q_CORRUPT (no record; what is wrong and where), Q_MISMATCH (of another
 * version of the format). */
FALLIBLE record_open(struct record_reader *r, const void *data, size_t n, struct q_err *e);
/* The next frame; *more false: the end. Every index of a step is checked (step_view), each row has
 * a slot within the limits. Errors: Q_CORRUPT (the place in the file). */
FALLIBLE record_next(struct record_reader *r, struct record_item *out, bool *more, struct q_err *e);
/* The items of an ITEMS payload [n], checked against the limits. Errors: Q_CORRUPT. */
FALLIBLE record_read_items(struct record_table *out, const void *payload, size_t n,
                           const struct step_limits *l, struct q_err *e);
/* Table and contents, to where they were. store: [step_store_bytes] of the limits. */
void record_place(const struct record_table *t, unsigned char *store);

#endif
