/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"
#include "engine/plugin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARGS_MAX 256u
#define PIECES   64u /* allocations of device memory */
#define PAGE     4096u

uint64_t fake_total_bytes = UINT64_C(1) << 30;
uint64_t fake_n_launch;
uint32_t fake_refused_in;
struct fake_ahead fake_ahead;
atomic_bool fake_is_closed, fake_is_lazy;

typedef void run_fn(const void *args, const struct kern_exec *x);
struct work {
    enum { WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_RECORD, WORK_WAIT } kind;
    run_fn *run;
    const char *name; /* of a kernel */
    union {
        unsigned char args[ARGS_MAX];
        struct device_rows rows;
        struct {
            struct device_event *event;
            struct device_stream *stream;
            uint64_t number; /* of the event's work in its stream */
        } at;
    } u;
    struct kern_exec x;
};
struct list {
    struct work *items;
    size_t n, room;
};

struct device {
    struct kern_table kern;
    struct device_props props;
    uint64_t total, used;
    struct piece {
        void *p;
        size_t n;
    } pieces[PIECES];
    uint32_t depth; /* runs in progress: memory is open */
};
struct device_stream {
    struct device *d;
    struct list todo;
    uint64_t n_done; /* work of todo before `first` that is gone */
    size_t first;
    bool recording;
    struct list graph;
};
struct device_event {
    struct device_stream *stream; /* NULL: never recorded */
    uint64_t number;
    uint32_t n_ask; /* since then */
};
struct device_graph {
    struct list list;
};

static struct work *push_work(struct list *l)
{
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->items = realloc(l->items, l->room * sizeof *l->items);
        Q_ASSERT(l->items);
    }
    memset(&l->items[l->n], 0, sizeof *l->items);
    return &l->items[l->n++];
}

static struct work *give(struct device_stream *s)
{
    return push_work(s->recording ? &s->graph : &s->todo);
}

static void open_memory(struct device *d, bool open)
{
    d->depth = open ? d->depth + 1 : d->depth - 1;
    if (d->depth != open)
        return;
    for (uint32_t i = 0; i < PIECES; i++)
        if (d->pieces[i].p)
            Q_ASSERT(!mprotect(d->pieces[i].p, d->pieces[i].n,
                               open ? PROT_READ | PROT_WRITE : PROT_NONE));
}

/* All work of a stream before number `end`. */
static void run_until(struct device_stream *s, uint64_t end)
{
    open_memory(s->d, true);
    while (s->first < s->todo.n && s->n_done < end) {
        const struct work w = s->todo.items[s->first++];
        s->n_done++;
        switch (w.kind) {
        case WORK_KERNEL:
            w.run(w.u.args, &w.x);
            break;
        case WORK_COPY:
            for (size_t i = 0; i < w.u.rows.n_row; i++)
                memcpy((char *)w.u.rows.dst + i * w.u.rows.dst_step,
                       (const char *)w.u.rows.src + i * w.u.rows.src_step, w.u.rows.n);
            break;
        case WORK_FILL:
            memset(w.u.rows.dst, (int)w.u.rows.dst_step, w.u.rows.n);
            break;
        case WORK_RECORD:
            break;
        case WORK_WAIT:
            if (w.u.at.stream)
                run_until(w.u.at.stream, w.u.at.number);
            break;
        }
    }
    if (s->first == s->todo.n)
        s->first = s->todo.n = 0;
    open_memory(s->d, false);
}

/* ---- kernels ---- */
static struct kern_table real;

static size_t fake_plan(const struct device *d, void *out, const struct device_limits *l,
                        const struct attention_seq *seqs, uint32_t n_seq)
{
    (void)d;
    Q_ASSERT(n_seq <= l->n_seq_max);
    return fake_library.plan(out, l, seqs, n_seq);
}

static size_t fake_plan_bytes(const struct device *d, const struct device_limits *l)
{
    (void)d;
    return fake_library.plan_bytes(l);
}

/* For each operation: `launch_op` gives it to the stream, `run_op` is the work. */
#define OP(op, tolerance)                                                         \
    static void run_##op(const void *args, const struct kern_exec *x)             \
    {                                                                             \
        if (!strcmp(#op, "attention") && fake_library.check_plan)                 \
            fake_library.check_plan(args);                                        \
        real.op(args, x);                                                         \
    }                                                                             \
    static void launch_##op(const struct op##_args *a, const struct kern_exec *x) \
    {                                                                             \
        _Static_assert(sizeof *a <= ARGS_MAX, "arguments of " #op);               \
        struct work *w = give(x->stream);                                         \
        w->kind = WORK_KERNEL;                                                    \
        w->run = run_##op;                                                        \
        w->name = #op;                                                            \
        memcpy(w->u.args, a, sizeof *a);                                          \
        w->x = (struct kern_exec){                                                \
            .nth = 1, .scratch = x->scratch, .scratch_bytes = x->scratch_bytes};  \
    }
#define OP_DEVICE(op) OP(op, 0)
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"

static const struct kern_table *fake_kern(const struct device *d)
{
    return &d->kern;
}

static size_t fake_workspace(const struct device *d, const struct device_limits *l)
{
    (void)d;
    return fake_library.workspace_bytes(l);
}

/* ---- the device ---- */
static enum q_code fake_open(struct device **out, const struct device_options *o, struct q_err *e)
{
    if (o->index)
        return q_fail(e, Q_NOT_FOUND, "fake: device %u, there is 1", o->index);
    struct device *d = calloc(1, sizeof *d);
    Q_ASSERT(d);
    fake_library.kern(&real);
    if (fake_library.open)
        fake_library.open(o);
#define OP(op, tolerance) d->kern.op = real.op ? launch_##op : NULL;
#define OP_DEVICE(op)     OP(op, 0)
#define IMPL(table, op, variant, caps)
#include "kernels/kernels.def"
    d->total = fake_total_bytes;
    const char *bytes = getenv("QUIRE_FAKE_BYTES");
    if (bytes)
        d->total = strtoull(bytes, NULL, 10);
    d->props =
        (struct device_props){.name = "fake", .major = 9, .n_unit = 1, .total_bytes = d->total};
    *out = d;
    return Q_OK;
}

static void fake_close(struct device *d)
{
    Q_ASSERT(!d || !d->used); /* nothing is left behind */
    if (d && fake_library.close)
        fake_library.close();
    free(d);
}

static const struct device_props *fake_props(const struct device *d)
{
    return &d->props;
}

static enum q_code fake_memory(struct device *d, uint64_t *free_bytes, uint64_t *total_bytes,
                               struct q_err *e)
{
    (void)e;
    *free_bytes = d->total - d->used;
    *total_bytes = d->total;
    return Q_OK;
}

static enum q_code fake_check(struct device *d, struct q_err *e)
{
    (void)d;
    (void)e;
    return Q_OK;
}

static bool is_refused(void)
{
    return fake_refused_in && --fake_refused_in == 0;
}

static enum q_code fake_alloc(struct device *d, void **out, size_t n, const char *what,
                              struct q_err *e)
{
    const size_t size = (n + PAGE - 1) / PAGE * PAGE;
    uint32_t i = 0;
    while (i < PIECES && d->pieces[i].p)
        i++;
    Q_ASSERT(i < PIECES);
    if (is_refused() || size > d->total - d->used)
        return q_fail(e, Q_NO_MEMORY, "fake: %s takes %zu bytes, %llu of %llu are free", what, n,
                      (unsigned long long)(d->total - d->used), (unsigned long long)d->total);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Q_ASSERT(p != MAP_FAILED);
    memset(p, 0xff, size);
    Q_ASSERT(!mprotect(p, size, PROT_NONE));
    d->used += size;
    d->pieces[i] = (struct piece){p, size};
    *out = p;
    return Q_OK;
}

static void fake_free(struct device *d, void *p)
{
    for (uint32_t i = 0; p && i < PIECES; i++)
        if (d->pieces[i].p == p) {
            munmap(p, d->pieces[i].n);
            d->used -= d->pieces[i].n;
            d->pieces[i] = (struct piece){0};
        }
}

static enum q_code fake_host_alloc(struct device *d, void **out, size_t n, const char *what,
                                   struct q_err *e)
{
    (void)d;
    *out = is_refused() ? NULL : malloc(n);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "fake: %s takes %zu bytes of host memory", what, n);
}

static void fake_host_free(struct device *d, void *p)
{
    (void)d;
    free(p);
}

/* ---- streams and events ---- */
static enum q_code fake_stream_new(struct device *d, struct device_stream **out, struct q_err *e)
{
    (void)e;
    *out = calloc(1, sizeof **out);
    Q_ASSERT(*out);
    (*out)->d = d;
    return Q_OK;
}

static void fake_stream_free(struct device_stream *s)
{
    if (s) {
        Q_ASSERT(!s->recording);
        run_until(s, UINT64_MAX);
        free(s->todo.items);
    }
    free(s);
}

static void fake_copy_rows(struct device_stream *s, const struct device_rows *r)
{
    while (atomic_load(&fake_is_closed))
        usleep(200);
    struct work *w = give(s);
    w->kind = WORK_COPY;
    w->u.rows = *r;
}

struct plugin_call {
    void (*run)(const struct quire_op_call *);
    struct quire_op_call call;
};
_Static_assert(sizeof(struct plugin_call) <= ARGS_MAX, "it fits");

static void run_plugin_call(const void *args, const struct kern_exec *x)
{
    const struct plugin_call *c = args;
    (void)x;
    c->run(&c->call);
}

void fake_call(struct device_stream *s, void (*run)(const struct quire_op_call *),
               const struct quire_op_call *call)
{
    const struct plugin_call c = {run, *call};
    struct work *w = give(s);
    w->kind = WORK_KERNEL;
    w->run = run_plugin_call;
    w->name = "plugin";
    memcpy(w->u.args, &c, sizeof c);
}

static void fake_copy(struct device_stream *s, void *dst, const void *src, size_t n)
{
    fake_copy_rows(s, &(struct device_rows){.dst = dst, .src = src, .n = n, .n_row = 1});
}

static void fake_fill(struct device_stream *s, void *dst, int byte, size_t n)
{
    struct work *w = give(s);
    w->kind = WORK_FILL;
    w->u.rows = (struct device_rows){.dst = dst, .n = n, .dst_step = (size_t)byte};
}

static enum q_code fake_sync(struct device_stream *s, struct q_err *e)
{
    (void)e;
    Q_ASSERT(!s->recording);
    run_until(s, UINT64_MAX);
    return Q_OK;
}

static enum q_code fake_event_new(struct device *d, struct device_event **out, struct q_err *e)
{
    (void)d;
    (void)e;
    *out = calloc(1, sizeof **out);
    Q_ASSERT(*out);
    return Q_OK;
}

static void fake_event_free(struct device_event *v)
{
    free(v);
}

static void fake_event_record(struct device_event *v, struct device_stream *s)
{
    Q_ASSERT(!s->recording);
    give(s)->kind = WORK_RECORD;
    v->stream = s;
    v->number = s->n_done + (s->todo.n - s->first);
    v->n_ask = 0;
}

static void fake_stream_wait(struct device_stream *s, struct device_event *v)
{
    Q_ASSERT(!s->recording);
    struct work *w = give(s);
    w->kind = WORK_WAIT;
    w->u.at.stream = v->stream;
    w->u.at.number = v->number;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void note_ahead(const struct device_event *v)
{
    const struct device_stream *s = v->stream;
    struct fake_ahead n = {0}, *most = &fake_ahead;
    for (size_t i = s->first; i < s->todo.n; i++) {
        const struct work *w = &s->todo.items[i];
        if (s->n_done + (i - s->first) < v->number)
            continue;
        n.n_forward += w->kind == WORK_KERNEL && !strcmp(w->name, "embed");
        n.n_sample += w->kind == WORK_KERNEL && !strcmp(w->name, "sample");
        n.n_wait += w->kind == WORK_WAIT;
    }
    *most = (struct fake_ahead){larger(n.n_forward, most->n_forward),
                                larger(n.n_sample, most->n_sample), larger(n.n_wait, most->n_wait)};
}

static enum q_code fake_event_wait(struct device_event *v, struct q_err *e)
{
    (void)e;
    if (v->stream) {
        note_ahead(v);
        run_until(v->stream, v->number);
    }
    return Q_OK;
}

static bool has_happened(const struct device_event *v)
{
    return !v->stream || v->stream->n_done >= v->number;
}

static bool fake_event_done(struct device_event *v)
{
    if (has_happened(v))
        return true;
    usleep(FAKE_ASK_US);
    if (atomic_load(&fake_is_lazy) || ++v->n_ask < FAKE_ASKS)
        return false;
    run_until(v->stream, v->number);
    return true;
}

static float fake_event_ms(struct device_event *from, struct device_event *to)
{
    Q_ASSERT(from->stream && to->stream && has_happened(from) && has_happened(to));
    return FAKE_MS;
}

/* ---- graphs ---- */
static enum q_code fake_graph_begin(struct device_stream *s, struct q_err *e)
{
    (void)e;
    Q_ASSERT(!s->recording);
    s->recording = true;
    return Q_OK;
}

static enum q_code fake_graph_end(struct device_stream *s, struct device_graph **out,
                                  struct q_err *e)
{
    (void)e;
    Q_ASSERT(s->recording);
    s->recording = false;
    *out = calloc(1, sizeof **out);
    Q_ASSERT(*out);
    (*out)->list = s->graph;
    s->graph = (struct list){0};
    return Q_OK;
}

static void fake_graph_launch(struct device_graph *g, struct device_stream *s)
{
    Q_ASSERT(!s->recording);
    fake_n_launch++;
    for (size_t i = 0; i < g->list.n; i++)
        *give(s) = g->list.items[i];
}

static void fake_graph_free(struct device_graph *g)
{
    if (g)
        free(g->list.items);
    free(g);
}

const struct device_table *fake_device_table(void)
{
    static struct device_table table = {
        .abi = DEVICE_ABI,
        .kern_bytes = sizeof(struct kern_table),
        .open = fake_open,
        .close = fake_close,
        .props = fake_props,
        .kern = fake_kern,
        .memory = fake_memory,
        .check = fake_check,
        .alloc = fake_alloc,
        .release = fake_free,
        .host_alloc = fake_host_alloc,
        .host_free = fake_host_free,
        .stream_new = fake_stream_new,
        .stream_free = fake_stream_free,
        .copy = fake_copy,
        .copy_rows = fake_copy_rows,
        .fill = fake_fill,
        .sync = fake_sync,
        .event_new = fake_event_new,
        .event_free = fake_event_free,
        .event_record = fake_event_record,
        .stream_wait = fake_stream_wait,
        .event_wait = fake_event_wait,
        .event_done = fake_event_done,
        .event_ms = fake_event_ms,
        .graph_begin = fake_graph_begin,
        .graph_end = fake_graph_end,
        .graph_launch = fake_graph_launch,
        .graph_free = fake_graph_free,
        .workspace_bytes = fake_workspace,
        .plan_bytes = fake_plan_bytes,
        .plan = fake_plan,
    };
    table.name = fake_library.name;
    table.row_major = fake_library.row_major;
    table.matrix_bytes = fake_library.matrix_bytes;
    table.kv_block_bytes = fake_library.kv_block_bytes;
    table.tune = fake_library.tune;
    return &table;
}
