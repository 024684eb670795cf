/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/upload.h"
#include <string.h>

enum q_code upload_init(struct upload *u, const struct device_link *link, struct q_err *e)
{
    const struct device_table *t = link->t;
    enum q_code rc = Q_OK;
    *u = (struct upload){.link = link};
    for (uint32_t i = 0; i < 2 && !rc; i++) {
        struct upload_buffer *b = &u->buffers[i];
        if (!(rc = t->host_alloc(link->d, &b->host, UPLOAD_BYTES, "weights on their way", e)) &&
            !(rc = t->alloc(link->d, &b->device, UPLOAD_BYTES, "weights on their way", e)))
            rc = t->event_new(link->d, &b->free, e);
    }
    if (rc)
        upload_release(u);
    return rc;
}

void upload_release(struct upload *u)
{
    struct q_err ignored = Q_ERR_INIT;
    if (u->link && upload_end(u, &ignored))
        q_err_reset(&ignored); /* who wants to know has asked */
    for (uint32_t i = 0; u->link && i < 2; i++) {
        struct upload_buffer *b = &u->buffers[i];
        u->link->t->event_free(b->free);
        u->link->t->release(u->link->d, b->device);
        u->link->t->host_free(u->link->d, b->host);
    }
    *u = (struct upload){0};
}

void *upload_space(struct upload *u)
{
    struct upload_buffer *b = &u->buffers[u->at];
    struct q_err e = Q_ERR_INIT;
    if (b->is_used && u->link->t->event_wait(b->free, &e) && !u->error.code)
        u->error = e;
    b->is_used = false;
    return b->host;
}

void upload_copy(struct upload *u, void *dst, size_t n)
{
    u->link->t->copy(u->link->s, dst, u->buffers[u->at].host, n);
}

const void *upload_stage(struct upload *u, size_t n)
{
    struct upload_buffer *b = &u->buffers[u->at];
    upload_copy(u, b->device, n);
    return b->device;
}

void upload_next(struct upload *u)
{
    struct upload_buffer *b = &u->buffers[u->at];
    u->link->t->event_record(b->free, u->link->s);
    b->is_used = true;
    u->at ^= 1;
}

void upload_bytes(struct upload *u, void *dst, const void *src, size_t n)
{
    for (size_t at = 0; at < n; at += UPLOAD_BYTES) {
        const size_t part = n - at < UPLOAD_BYTES ? n - at : UPLOAD_BYTES;
        memcpy(upload_space(u), (const char *)src + at, part);
        upload_copy(u, (char *)dst + at, part);
        upload_next(u);
    }
}

enum q_code upload_end(struct upload *u, struct q_err *e)
{
    struct q_err now = Q_ERR_INIT;
    enum q_code rc = u->link->t->sync(u->link->s, &now);
    if (!rc)
        rc = u->link->t->check(u->link->d, &now);
    if (rc && !u->error.code)
        u->error = now;
    if (u->error.code && e)
        *e = u->error;
    return u->error.code;
}
