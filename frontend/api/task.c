/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/task.h"

static uint32_t n_working; /* the loop's thread alone counts */

uint32_t task_n_working(void)
{
    return n_working;
}

static void end(struct task *t)
{
    buf_release(&t->copy);
    t->calls->dispose(t);
}

static void on_gone(void *ctx)
{
    struct task *t = ctx;
    t->x = NULL;
    if (!t->working)
        end(t);
}

static void run(struct task *t)
{
    enum q_code rc = t->calls->prepare(t, &t->error);
    (void)rc; /* kept in t->error */
}

static void on_thread(uv_work_t *work)
{
    run(work->data);
}

static void after_thread(uv_work_t *work, int status)
{
    struct task *t = work->data;
    (void)status;
    t->working = false;
    n_working--;
    if (t->x)
        t->calls->go(t, &t->error);
    else
        end(t);
}

void task_start(struct task *t, const struct task_calls *calls, uv_loop_t *loop,
                struct http_exchange *x)
{
    t->calls = calls;
    t->x = x;
    t->text = http_body(x);
    http_on_gone(x, on_gone, t);
    if (t->text.n >= TASK_THREAD_BYTES) {
        buf_add(&t->copy, t->text.data, t->text.n);
        if (buf_check(&t->copy, "the body", &t->error) == Q_OK) {
            t->text = (struct http_text){t->copy.data, t->copy.len};
            t->work.data = t;
            t->working = true;
            n_working++;
            uv_queue_work(loop, &t->work, on_thread, after_thread);
            return;
        }
    } else {
        run(t);
    }
    t->calls->go(t, &t->error);
}
