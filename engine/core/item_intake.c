/* SPDX-License-Identifier: Apache-2.0 */
/* The loop keeps a list of all jobs; while the thread has one, it owns everything of it but
 * is_aborted and next. */
#include "engine/core/item_intake.h"
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/queue.h"
#include "proto/item_memory.h"

struct item_intake {
    struct queue jobs, done; /* of struct intake_job * */
    pthread_t thread;
    bool running, is_abandoned;
    _Atomic int64_t since_ms; /* of the job in progress; 0: none */
    void *hasher;             /* the thread's */
    struct intake_job *all;
    uint32_t n; /* in `all` */
};

void item_contents_release(struct item_contents *c)
{
    q_free(c->memory);
    if (c->fd >= 0)
        close(c->fd);
    if (c->frame)
        c->free_frame(c->frame);
    *c = (struct item_contents)ITEM_CONTENTS_INIT;
}

FALLIBLE item_contents_read(struct item_contents *c, struct q_err *e)
{
    if (c->fd < 0)
        return Q_OK;
    enum q_code rc = item_memory_read(c->memory, c->fd, c->n_byte, e);
    close(c->fd);
    c->fd = -1;
    return rc;
}

static void work(struct item_intake *x, struct intake_job *j)
{
    enum q_code rc;
    j->items.hasher = x->hasher;
    rc = item_contents_read(&j->contents, &j->error);
    if (!rc)
        rc = core_items_fill(&j->items, &j->error);
    item_contents_release(&j->contents); /* what is used from now on is in the store */
    (void)rc;                            /* in j->error */
}

static void *run(void *arg)
{
    struct item_intake *x = arg;
    struct intake_job *j;
    while (queue_pop(&x->jobs, &j, -1)) {
        struct q_err ignored = Q_ERR_INIT;
        atomic_store(&x->since_ms, clock_ms());
        work(x, j);
        atomic_store(&x->since_ms, 0);
        if (queue_push(&x->done, &j, &ignored)) {
            /* never: the queue has room for all jobs and is not closed */
        }
    }
    return NULL;
}

FALLIBLE item_intake_new(struct item_intake **out, struct q_err *e)
{
    struct item_intake *x = q_calloc(1, sizeof *x);
    enum q_code rc;
    if (!x)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for items");
    x->hasher = EVP_MD_CTX_new();
    if (!x->hasher || !EVP_DigestInit_ex(x->hasher, EVP_sha256(), NULL))
        rc = q_fail(e, Q_NO_MEMORY, "items: SHA-256 is not available");
    else if (!(rc = queue_init(&x->jobs, sizeof(struct intake_job *), ITEM_INTAKE_MAX, false, e)) &&
             !(rc = queue_init(&x->done, sizeof(struct intake_job *), ITEM_INTAKE_MAX, true, e)) &&
             !(rc = queue_reserve(&x->jobs, e)) && !(rc = queue_reserve(&x->done, e)) &&
             pthread_create(&x->thread, NULL, run, x))
        rc = q_fail(e, Q_IO, "engine: cannot start a thread for items");
    if (rc) {
        item_intake_free(x);
        return rc;
    }
    x->running = true;
    pthread_setname_np(x->thread, "quire-items");
    *out = x;
    return Q_OK;
}

void item_intake_free(struct item_intake *x)
{
    if (!x || x->is_abandoned)
        return;
    if (x->running) {
        queue_close(&x->jobs);
        pthread_join(x->thread, NULL);
    }
    for (struct intake_job *j = x->all, *next; j; j = next) {
        next = j->next;
        item_intake_drop(j);
    }
    queue_release(&x->jobs);
    queue_release(&x->done);
    EVP_MD_CTX_free(x->hasher);
    q_free(x);
}

int64_t item_intake_since_ms(const struct item_intake *x)
{
    return atomic_load(&x->since_ms);
}

void item_intake_abandon(struct item_intake *x)
{
    x->is_abandoned = true;
}

bool item_intake_abandoned(const struct item_intake *x)
{
    return x && x->is_abandoned;
}

int item_intake_fd(const struct item_intake *x)
{
    return queue_fd(&x->done);
}

void item_intake_drop(struct intake_job *j)
{
    if (!j)
        return;
    item_contents_release(&j->contents);
    buf_release(&j->frame);
    arena_release(&j->arena);
    q_free(j->arrays);
    q_free(j);
}

/* Contents that are only there during the call. */
static FALLIBLE copy_contents(struct intake_job *j, struct q_err *e)
{
    size_t n_byte = 0;
    char *to;
    for (uint32_t i = 0; i < j->items.args.n; i++)
        n_byte += j->arrays[i].n_byte;
    if (!(to = j->contents.memory = q_alloc(n_byte + 1)))
        return q_fail(e, Q_NO_MEMORY, "items: out of memory for %zu bytes", n_byte);
    j->contents.n_byte = n_byte;
    for (uint32_t i = 0; i < j->items.args.n; i++) {
        if (j->arrays[i].n_byte)
            memcpy(to, j->arrays[i].data, j->arrays[i].n_byte);
        j->arrays[i].data = to;
        to += j->arrays[i].n_byte;
    }
    return Q_OK;
}

static FALLIBLE fill_job(struct intake_job *j, const struct core_items_job *items,
                         const struct msg_submit *m, struct q_err *e)
{
    const uint32_t n = items->args.n;
    struct msg_submit own = *m;
    own.item_modalities = (struct proto_bytes){NULL, 0};
    own.item_shapes = (struct proto_u32s){NULL, 0};
    own.item_data = (struct proto_words){NULL, 0};
    own.item_memory = (struct proto_str){NULL, 0};
    own.item_bytes = 0;
    j->items = *items;
    j->arrays = q_calloc(n, sizeof *j->arrays);
    if (!j->arrays)
        return q_fail(e, Q_NO_MEMORY, "items: out of memory for %u items", n);
    for (uint32_t i = 0; i < n; i++) {
        const struct item_array *from = &items->args.items[i];
        j->arrays[i] = *from;
        j->arrays[i].modality = /* the frame that has the name goes away */
            items->modalities->rows[modality_find(items->modalities, from->modality)].name;
    }
    j->items.args.items = j->arrays;
    enum q_code rc = msg_submit_encode(&own, &j->frame, e);
    if (!rc && !j->contents.memory && !j->contents.frame && !j->contents.is_borrowed)
        rc = copy_contents(j, e);
    return rc;
}

FALLIBLE item_intake_add(struct item_intake *x, const struct core_items_job *items,
                         const struct msg_submit *m, struct item_contents *contents,
                         struct q_err *e)
{
    struct intake_job *j = q_calloc(1, sizeof *j);
    enum q_code rc;
    if (!j)
        return q_fail(e, Q_NO_MEMORY, "items: out of memory for a request");
    j->arena = (struct arena)ARENA_INIT(PROTO_FRAME_MAX);
    j->contents = *contents;
    *contents = (struct item_contents)ITEM_CONTENTS_INIT;
    if (x->n == ITEM_INTAKE_MAX)
        rc = q_fail(e, Q_NO_SPACE,
                    "too many requests with large items: %u are being read; retry later",
                    ITEM_INTAKE_MAX);
    else if (!(rc = fill_job(j, items, m, e)))
        rc = queue_push(&x->jobs, &j, e);
    if (rc) {
        item_intake_drop(j);
        return rc;
    }
    j->next = x->all;
    x->all = j;
    x->n++;
    return Q_OK;
}

struct intake_job *item_intake_take(struct item_intake *x)
{
    struct intake_job *j, **at = &x->all;
    if (!queue_pop(&x->done, &j, 0))
        return NULL;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->next = NULL;
    x->n--;
    struct q_err why = Q_ERR_INIT; /* it was encoded here, so only memory can be missing */
    if (msg_submit_decode(&j->submit, j->frame.data, j->frame.len, &j->arena, &why) &&
        !j->error.code)
        j->error = why;
    return j;
}

void item_intake_wait(struct item_intake *x)
{
    if (x->running && !x->is_abandoned) {
        queue_close(&x->jobs);
        pthread_join(x->thread, NULL);
        x->running = false;
    }
}

static struct intake_job *find(const struct item_intake *x, struct item_owner owner)
{
    struct intake_job *j = x->all;
    while (j && (j->is_aborted || j->items.args.owner.frontend_id != owner.frontend_id ||
                 j->items.args.owner.req_id != owner.req_id))
        j = j->next;
    return j;
}

bool item_intake_has(const struct item_intake *x, struct item_owner owner)
{
    return find(x, owner) != NULL;
}

bool item_intake_abort(struct item_intake *x, struct item_owner owner)
{
    struct intake_job *j = find(x, owner);
    if (j)
        j->is_aborted = true;
    return j != NULL;
}

uint32_t item_intake_abort_frontend(struct item_intake *x, uint32_t frontend_id)
{
    uint32_t n = 0;
    for (struct intake_job *j = x->all; j; j = j->next)
        if (!j->is_aborted && j->items.args.owner.frontend_id == frontend_id) {
            j->is_aborted = true;
            n++;
        }
    return n;
}

bool item_intake_abort_next(struct item_intake *x, struct item_owner *owner)
{
    for (struct intake_job *j = x->all; j; j = j->next)
        if (!j->is_aborted) {
            j->is_aborted = true;
            *owner = j->items.args.owner;
            return true;
        }
    return false;
}

uint32_t item_intake_count(const struct item_intake *x)
{
    uint32_t n = 0;
    for (const struct intake_job *j = x->all; j; j = j->next)
        n += !j->is_aborted;
    return n;
}

bool item_intake_works(const struct item_intake *x)
{
    return x->n > 0;
}
