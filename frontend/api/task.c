/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/task.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/cpus.h"

#define THREADS_MAX   64
#define THREADS_SPARE 1 /* for libuv's own work on threads: names, files */

void tasks_init(struct tasks *s, uv_loop_t *loop)
{
    const char *given = getenv("UV_THREADPOOL_SIZE");
    unsigned n = given ? (unsigned)strtoul(given, NULL, 10) : uv_available_parallelism();
    char text[16];
    if (!given)
        n += THREADS_SPARE;
    if (n < FAIR_QUEUE_THREAD_MIN + THREADS_SPARE)
        n = FAIR_QUEUE_THREAD_MIN + THREADS_SPARE;
    if (n > THREADS_MAX)
        n = THREADS_MAX;
    snprintf(text, sizeof text, "%u", n);
    setenv("UV_THREADPOOL_SIZE", text, 1);
    s->loop = loop;
    s->reads_files = s->reads_images = false;
    fair_queue_init(&s->lanes, n - THREADS_SPARE);
}

uint32_t tasks_n_working(const struct tasks *s)
{
    return s->lanes.n_wait + fair_queue_n_busy(&s->lanes);
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
    if (t->waiting)
        fair_queue_remove(&t->tasks->lanes, &t->lane);
    if (!t->working)
        end(t);
}

static void run_task(struct task *t)
{
    enum q_code rc = t->calls->prepare(t, &t->error);
    (void)rc; /* kept in t->error */
}

/* A request lives as long as its answer: the text of its body does not. */
static void on_thread(uv_work_t *work)
{
    struct task *t = work->data;
    cpus_run_later();
    run_task(t);
    t->text = (struct http_text){NULL, 0};
    buf_release(&t->copy);
}

static void start_next(struct tasks *s);

static void after_thread(uv_work_t *work, int status)
{
    struct task *t = work->data;
    struct tasks *s = t->tasks;
    (void)status;
    t->working = false;
    fair_queue_done(&s->lanes, &t->lane);
    if (t->x)
        t->calls->go(t, &t->error);
    else
        end(t);
    start_next(s);
}

static void start(struct task *t)
{
    t->waiting = false;
    if (!t->copy.len)
        buf_add(&t->copy, t->text.data, t->text.n);
    if (buf_check(&t->copy, "the body", &t->error) != Q_OK) {
        fair_queue_done(&t->tasks->lanes, &t->lane);
        t->calls->go(t, &t->error);
        return;
    }
    t->text = (struct http_text){t->copy.data, t->copy.len};
    t->work.data = t;
    t->working = true;
    uv_queue_work(t->tasks->loop, &t->work, on_thread, after_thread);
}

static void start_next(struct tasks *s)
{
    struct fair_queue_job *job;
    while ((job = fair_queue_next(&s->lanes)))
        start((struct task *)((char *)job - offsetof(struct task, lane)));
}

/* The tenant of the prompt; 0 if the server has no keys. */
static uint64_t key_of(const struct http_exchange *x)
{
    unsigned char digest[32];
    uint64_t key = 0;
    if (http_key(x, digest))
        memcpy(&key, digest, sizeof key);
    return key;
}

/* Has the body the word, perhaps in escapes of JSON? */
static bool may_have(const struct http_text *body, const char *word)
{
    return body->n && (memmem(body->data, body->n, word, strlen(word)) ||
                       memmem(body->data, body->n, "\\u", 2));
}

/* The member "path" and file: URLs name files, which may be large; images are base64. */
static bool is_short(const struct task *t)
{
    const struct http_text *body = &t->text;
    if (t->tasks->reads_files && (may_have(body, "path") || may_have(body, "file:")))
        return false;
    return body->n < TASK_THREAD_BYTES && !(t->tasks->reads_images && may_have(body, "base64"));
}

void task_start(struct task *t, const struct task_calls *calls, struct tasks *tasks,
                struct http_exchange *x)
{
    t->calls = calls;
    t->tasks = tasks;
    t->x = x;
    t->text = t->copy.len ? (struct http_text){t->copy.data, t->copy.len} : http_body(x);
    http_on_gone(x, on_gone, t);
    if (is_short(t))
        run_task(t);
    else if (fair_queue_add(&tasks->lanes, &t->lane, t->text.n, key_of(x), &t->error) == Q_OK) {
        t->waiting = true;
        start_next(tasks);
        return;
    }
    t->calls->go(t, &t->error);
}
