/* SPDX-License-Identifier: Apache-2.0 */
/* task - processing of a request before its response, and its lifetime.
 *
 * `prepare` reads the body: on the loop if it is small, on another thread if parsing and
 * tokenizing, or a file that it names, would block the loop. It may wait for a thread
 * (fair_queue.h); then the body is copied, because the exchange may end meanwhile. `go` follows on
 * the loop, unless the exchange has ended.
 * `dispose` is called once: when the exchange has ended and no thread uses the task.
 * Threads: the loop's, except for prepare; while it runs no other code accesses the task. */
#ifndef QUIRE_FRONTEND_API_TASK_H
#define QUIRE_FRONTEND_API_TASK_H
#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"
#include "frontend/api/fair_queue.h"
#include "frontend/http/exchange.h"

#define TASK_THREAD_BYTES \
    ((size_t)32 << 10) /* bodies of this size and above are processed on
                        * threads */

struct tasks { /* of one frontend: the queue for the threads of its loop */
    struct fair_queue lanes;
    bool reads_files;  /* a body may name files, as inputs that are no tokens; set after init */
    bool reads_images; /* a body may have images: a few bytes can be a million pixels; likewise */
    uv_loop_t *loop;
};
/* Number of threads: the processors of the machine, within limits, or UV_THREADPOOL_SIZE. Call
 * before libuv's threads are used. */
void tasks_init(struct tasks *s, uv_loop_t *loop);
uint32_t tasks_n_working(const struct tasks *s); /* number of tasks waiting for threads or running
                                                  * on them */

struct task;
struct task_calls {
    enum q_code (*prepare)(struct task *t, struct q_err *e);
    void (*go)(struct task *t, const struct q_err *e); /* e->code: what prepare returned */
    void (*dispose)(struct task *t);
};

struct task { /* embedded first in its owner */
    const struct task_calls *calls;
    struct tasks *tasks;
    struct http_exchange *x; /* NULL after its end */
    struct http_text text;   /* the body, for prepare; borrowed from x or from copy */
    struct buf copy; /* or the text to prepare in place of the body, set before task_start */
    struct q_err error;
    struct fair_queue_job lane;
    uv_work_t work;
    bool waiting, working; /* for a thread; on one */
};
void task_start(struct task *t, const struct task_calls *calls, struct tasks *tasks,
                struct http_exchange *x);

#endif
