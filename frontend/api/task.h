/* SPDX-License-Identifier: Apache-2.0 */
/* task - a request's work before it is answered, and who frees it when.
 *
 * `prepare` reads the body: in place when it is small, on another thread when parsing and
 * tokenizing it would hold up the loop. It may wait for a thread (lanes.h); when it gets one the
 * body is copied, since the exchange may end meanwhile. `go` follows on the loop, unless the
 * exchange is gone. `dispose` is called once: when the exchange is gone and no thread has the task.
 * Threads: the loop's, but for prepare; while it runs nothing else touches the task. */
#ifndef QUIRE_FRONTEND_API_TASK_H
#define QUIRE_FRONTEND_API_TASK_H
#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"
#include "frontend/api/lanes.h"
#include "frontend/http/exchange.h"

#define TASK_THREAD_BYTES ((size_t)32 << 10) /* bodies from here on are worked on beside the loop */

struct tasks { /* of one frontend: whose turn it is on the threads of its loop */
    struct lanes lanes;
    uv_loop_t *loop;
};
/* As many threads as the machine has processors, within limits; UV_THREADPOOL_SIZE says otherwise.
 * Before the process does anything on libuv's threads. */
void tasks_init(struct tasks *s, uv_loop_t *loop);
uint32_t tasks_n_working(const struct tasks *s); /* waiting for threads or on them now */

struct task;
struct task_calls {
    enum q_code (*prepare)(struct task *t, struct q_err *e);
    void (*go)(struct task *t, const struct q_err *e); /* e->code: what prepare returned */
    void (*dispose)(struct task *t);
};

struct task { /* embedded first in its owner */
    const struct task_calls *calls;
    struct tasks *tasks;
    struct http_exchange *x; /* NULL once gone */
    struct http_text text;   /* the body; borrowed from x or from copy */
    struct buf copy;
    struct q_err error;
    struct lane_job lane;
    uv_work_t work;
    bool waiting, working; /* for a thread; on one */
};
void task_start(struct task *t, const struct task_calls *calls, struct tasks *tasks,
                struct http_exchange *x);

#endif
