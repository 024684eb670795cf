/* SPDX-License-Identifier: Apache-2.0 */
/* item_intake - submits with large items, whose contents are copied, checked and hashed on a thread
 * while the engine runs.
 *
 *     add ─▶ the thread: read shared memory, core_items_fill ─▶ take: core_items_place, submit
 *
 * A job's piece of the store is reserved before, so the store bounds the bytes of all jobs; there
 * are ITEM_INTAKE_MAX of them at most. A piece is not released while the thread writes it: a job
 * that is aborted comes back first.
 * Threads: the core's loop; the thread sees the job that it was handed only. */
#ifndef QUIRE_ENGINE_CORE_ITEM_INTAKE_H
#define QUIRE_ENGINE_CORE_ITEM_INTAKE_H
#include "common/mem.h"
#include "engine/core/core_items.h"

#define ITEM_INTAKE_MAX    256u
#define ITEM_INTAKE_INLINE ((size_t)64 << 10) /* bytes; fewer are taken at once, in about 0.1 ms */

struct item_contents { /* where the data of a submit's items are */
    void *memory;      /* [n_byte] that the items point into, released by q_free; NULL: elsewhere */
    int fd;            /* shared memory to be read into `memory` first; -1: it is there already */
    void *frame;       /* the message that the items point into; NULL: elsewhere */
    void (*free_frame)(void *frame); /* of `frame`; any thread calls it */
    size_t n_byte;
    bool is_borrowed; /* elsewhere, and valid until the submit is accepted or refused */
};
/* clang-format off */
#define ITEM_CONTENTS_INIT {.fd = -1}
/* clang-format on */
void item_contents_release(struct item_contents *c);
/* Read the shared memory. Errors: those of item_memory_read. */
FALLIBLE item_contents_read(struct item_contents *c, struct q_err *e);

struct intake_job {
    struct core_items_job items;
    struct item_array *arrays; /* [items.args.n] */
    struct item_contents contents;
    struct buf frame; /* the submit without its items, encoded */
    struct arena arena;
    struct msg_submit submit; /* after item_intake_take */
    bool is_aborted;
    struct q_err error; /* of the thread */
    struct intake_job *next;
};

struct item_intake;
/* Errors: Q_NO_MEMORY, Q_IO. */
FALLIBLE item_intake_new(struct item_intake **out, struct q_err *e);
/* Waits for the job in progress; after item_intake_abandon it only lets the thread be. */
void item_intake_free(struct item_intake *x);
/* When the thread took the job that it has (clock_ms); 0: it has none. */
int64_t item_intake_since_ms(const struct item_intake *x);
/* The job in progress never ends: what the thread uses stays until the process ends. */
void item_intake_abandon(struct item_intake *x);
bool item_intake_abandoned(const struct item_intake *x); /* x may be NULL */
int item_intake_fd(const struct item_intake *x); /* readable if item_intake_take has a job */
/* A job for this submit, whose items are j (reserved): they are copied from j->args.items; contents
 * are the job's then, and are copied where they are neither owned nor borrowed.
 * Errors: Q_NO_SPACE (ITEM_INTAKE_MAX), Q_NO_MEMORY. */
FALLIBLE item_intake_add(struct item_intake *x, const struct core_items_job *j,
                         const struct msg_submit *m, struct item_contents *contents,
                         struct q_err *e);
/* The next job that the thread has ended, for item_intake_drop; NULL: none. */
struct intake_job *item_intake_take(struct item_intake *x);
void item_intake_drop(struct intake_job *j);
/* Wait until the thread has ended all jobs. */
void item_intake_wait(struct item_intake *x);
bool item_intake_has(const struct item_intake *x, struct item_owner owner);
/* Mark jobs as aborted: of this owner; of this frontend; all of them, one per call with its owner.
 * They come back by item_intake_take. */
bool item_intake_abort(struct item_intake *x, struct item_owner owner);
uint32_t item_intake_abort_frontend(struct item_intake *x, uint32_t frontend_id);
bool item_intake_abort_next(struct item_intake *x, struct item_owner *owner);
uint32_t item_intake_count(const struct item_intake *x); /* that are not aborted */
/* Has the thread a job, perhaps an aborted one? */
bool item_intake_works(const struct item_intake *x);

#endif
