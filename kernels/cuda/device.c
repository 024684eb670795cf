/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels/device.h on CUDA's runtime API. The runtime is linked statically and loads
 * the driver.
 *
 * The runtime keeps the error of a launch or a copy until cudaGetLastError is called, and the error
 * of a running kernel until the process ends: check() and the waiting functions return it. Graphs
 * are captured in thread-local mode: an allocation in another thread does not break a capture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "kernels/cuda/device_internal.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/lt.h"
#include "kernels/cuda/no_device.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/trials.h"
#include "kernels/cuda/tune.h"
#include "kernels/cuda/workspace.h"

#define CAPABILITY_LEAST 80 /* 8.0: bf16 in the tensor cores */
#define MIB              1048576.0
#define LT_WORKSPACE     ((size_t)32 << 20) /* bytes; NVIDIA's recommendation for Hopper */

static enum q_code failed(cudaError_t rc, const char *what, struct q_err *e)
{
    if (rc == cudaSuccess)
        return Q_OK;
    (void)cudaGetLastError(); /* the error is returned here */
    return q_fail(e, rc == cudaErrorMemoryAllocation ? Q_NO_MEMORY : Q_IO, "CUDA: %s: %s (%s)",
                  what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* ---- the device ---- */

static enum q_code count_devices(int *n, struct q_err *e)
{
    int driver = 0;
    const cudaError_t rc = cudaGetDeviceCount(n);
    if (rc == cudaSuccess && *n > 0)
        return Q_OK;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver); /* stays 0 without one */
    return no_device(driver, cudaGetErrorString(rc), e);
}

static void fill_props(struct device *d, const struct cudaDeviceProp *p)
{
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    d->props = (struct device_props){
        .major = (uint32_t)p->major,
        .minor = (uint32_t)p->minor,
        .n_unit = (uint32_t)p->multiProcessorCount,
        .driver = (uint32_t)driver,
        .runtime = (uint32_t)runtime,
        .total_bytes = p->totalGlobalMem,
        .l2_bytes = (uint64_t)p->l2CacheSize,
    };
    snprintf(d->props.name, sizeof d->props.name, "%.90s", p->name);
}

/* cuBLASLt is fast, not needed: without it there is a reason, and our own kernels. */
static void open_lt(struct device *d)
{
    struct q_err e = Q_ERR_INIT;
    const struct lt_api *api = d->deterministic ? NULL : lt_api_open(d->why);
    if (api && lt_open(&d->lt, api, LT_WORKSPACE, &e))
        snprintf(d->why, sizeof d->why, "%.150s", e.message);
}

FALLIBLE device_find(struct device *d, uint32_t index, struct q_err *e)
{
    struct cudaDeviceProp p;
    int n = 0;
    enum q_code rc = count_devices(&n, e);
    if (rc)
        return rc;
    if (index >= (uint32_t)n)
        return q_fail(e, Q_NOT_FOUND, "CUDA: device %u does not exist: this machine has %d", index,
                      n);
    if ((rc = failed(cudaGetDeviceProperties(&p, (int)index), "its properties", e)))
        return rc;
    if (p.major * 10 + p.minor < CAPABILITY_LEAST)
        return q_fail(
            e, Q_UNSUPPORTED,
            "CUDA: device %u (%.90s) has compute capability %d.%d; %d.%d or newer is required",
            index, p.name, p.major, p.minor, CAPABILITY_LEAST / 10, CAPABILITY_LEAST % 10);
    *d = (struct device){.index = (int)index};
    fill_props(d, &p);
    kern_table_cuda(&d->kern, kern_caps_cuda(d->props.major, d->props.minor));
    return Q_OK;
}

FALLIBLE device_enter(struct device *d, struct q_err *e)
{
    return failed(cudaSetDevice(d->index), "choosing the device", e);
}

/* helper: forked already, as this calls CUDA. */
static FALLIBLE open_with(struct device *d, struct trial_helper *helper,
                          const struct device_options *o, struct q_err *e)
{
    uint32_t off;
    enum q_code rc;
    if ((rc = trials_off_parse(&off, getenv("QUIRE_CUDA_OFF"), e)) ||
        (rc = device_find(d, o->index, e)))
        return rc;
    d->deterministic = o->deterministic;
    d->tune_dir = o->tune_dir;
    trials_decide(d, helper, off, o->deterministic);
    if ((rc = device_enter(d, e)))
        return rc;
    if (off & OFF_CUBLASLT)
        snprintf(d->why, sizeof d->why, "QUIRE_CUDA_OFF");
    else
        open_lt(d);
    return Q_OK;
}

static enum q_code cuda_open(struct device **out, const struct device_options *o, struct q_err *e)
{
    struct trial_helper helper;
    struct device *d = q_calloc(1, sizeof *d);
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "CUDA: out of memory for a device");
    trials_prepare(&helper, o->index);
    const enum q_code rc = open_with(d, &helper, o, e);
    trials_end(&helper);
    if (rc)
        q_free(d);
    else
        *out = d;
    return rc;
}

static void cuda_close(struct device *d)
{
    if (d)
        lt_close(d->lt);
    q_free(d);
}

struct lt *lt_of(const struct kern_exec *x)
{
    return x->stream->d->lt;
}

void *lt_stream_of(const struct kern_exec *x)
{
    return x->stream->by.cuda;
}

static const struct device_props *cuda_props(const struct device *d)
{
    return &d->props;
}

static const struct kern_table *cuda_kern(const struct device *d)
{
    return &d->kern;
}

static enum q_code cuda_memory(struct device *d, uint64_t *free_bytes, uint64_t *total_bytes,
                               struct q_err *e)
{
    size_t left = 0, all = 0;
    enum q_code rc = failed(cudaMemGetInfo(&left, &all), "memory of the device", e);
    (void)d;
    *free_bytes = left;
    *total_bytes = all;
    return rc;
}

static enum q_code cuda_check(struct device *d, struct q_err *e)
{
    (void)d;
    return failed(cudaGetLastError(), "a launch", e);
}

/* ---- memory ---- */

static enum q_code cuda_alloc(struct device *d, void **out, size_t n, const char *what,
                              struct q_err *e)
{
    size_t left = 0, all = 0;
    (void)d;
    if (cudaMalloc(out, n) == cudaSuccess)
        return Q_OK;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&left, &all);
    return q_fail(
        e, Q_NO_MEMORY,
        "CUDA: out of memory for %s: %.1f MiB needed, %.1f MiB of the card's %.1f MiB are free",
        what, (double)n / MIB, (double)left / MIB, (double)all / MIB);
}

static void cuda_release(struct device *d, void *p)
{
    (void)d;
    (void)cudaFree(p);
}

static enum q_code cuda_host_alloc(struct device *d, void **out, size_t n, const char *what,
                                   struct q_err *e)
{
    (void)d;
    if (cudaHostAlloc(out, n, cudaHostAllocDefault) == cudaSuccess)
        return Q_OK;
    (void)cudaGetLastError();
    return q_fail(e, Q_NO_MEMORY, "CUDA: out of pinned host memory for %s: %.1f MiB needed", what,
                  (double)n / MIB);
}

static void cuda_host_free(struct device *d, void *p)
{
    (void)d;
    (void)cudaFreeHost(p);
}

/* ---- streams and events ---- */

static enum q_code cuda_stream_new(struct device *d, struct device_stream **out, struct q_err *e)
{
    struct device_stream *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "CUDA: out of memory for a stream");
    s->d = d;
    s->by.overlaps = d->overlaps;
    enum q_code rc =
        failed(cudaStreamCreateWithFlags(&s->by.cuda, cudaStreamNonBlocking), "a stream", e);
    if (rc)
        q_free(s);
    else
        *out = s;
    return rc;
}

static void cuda_stream_free(struct device_stream *s)
{
    if (s)
        (void)cudaStreamDestroy(s->by.cuda);
    q_free(s);
}

static void cuda_copy(struct device_stream *s, void *dst, const void *src, size_t n)
{
    (void)cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, s->by.cuda);
}

static void cuda_copy_rows(struct device_stream *s, const struct device_rows *r)
{
    (void)cudaMemcpy2DAsync(r->dst, r->dst_step, r->src, r->src_step, r->n, r->n_row,
                            cudaMemcpyDefault, s->by.cuda);
}

static void cuda_fill(struct device_stream *s, void *dst, int byte, size_t n)
{
    (void)cudaMemsetAsync(dst, byte, n, s->by.cuda);
}

static enum q_code cuda_sync(struct device_stream *s, struct q_err *e)
{
    return failed(cudaStreamSynchronize(s->by.cuda), "work of a stream", e);
}

static enum q_code cuda_event_new(struct device *d, struct device_event **out, struct q_err *e)
{
    struct device_event *v = q_calloc(1, sizeof *v);
    (void)d;
    if (!v)
        return q_fail(e, Q_NO_MEMORY, "CUDA: out of memory for an event");
    enum q_code rc = failed(cudaEventCreate(&v->cuda), "an event", e);
    if (rc)
        q_free(v);
    else
        *out = v;
    return rc;
}

static void cuda_event_free(struct device_event *v)
{
    if (v)
        (void)cudaEventDestroy(v->cuda);
    q_free(v);
}

static void cuda_event_record(struct device_event *v, struct device_stream *s)
{
    (void)cudaEventRecord(v->cuda, s->by.cuda);
}

static void cuda_stream_wait(struct device_stream *s, struct device_event *v)
{
    (void)cudaStreamWaitEvent(s->by.cuda, v->cuda, 0);
}

static enum q_code cuda_event_wait(struct device_event *v, struct q_err *e)
{
    return failed(cudaEventSynchronize(v->cuda), "a step", e);
}

/* "Not ready" is no error, yet the runtime keeps it as one: it is taken away again, but an error of
 * before is left for check(). */
static bool cuda_event_done(struct device_event *v)
{
    if (cudaPeekAtLastError() != cudaSuccess)
        return true;
    if (cudaEventQuery(v->cuda) != cudaErrorNotReady)
        return true;
    (void)cudaGetLastError();
    return false;
}

static float cuda_event_ms(struct device_event *from, struct device_event *to)
{
    float ms = 0;
    (void)cudaEventElapsedTime(&ms, from->cuda, to->cuda);
    return ms;
}

/* ---- graphs ---- */

static enum q_code cuda_graph_begin(struct device_stream *s, struct q_err *e)
{
    return failed(cudaStreamBeginCapture(s->by.cuda, cudaStreamCaptureModeThreadLocal),
                  "recording a graph", e);
}

static enum q_code cuda_graph_end(struct device_stream *s, struct device_graph **out,
                                  struct q_err *e)
{
    cudaGraph_t graph = NULL;
    *out = NULL;
    enum q_code rc = failed(cudaStreamEndCapture(s->by.cuda, &graph), "recording a graph", e);
    if (rc)
        return rc;
    struct device_graph *g = q_calloc(1, sizeof *g);
    if (!g)
        rc = q_fail(e, Q_NO_MEMORY, "CUDA: out of memory for a graph");
    else
        rc = failed(cudaGraphInstantiate(&g->cuda, graph, 0), "making a graph", e);
    (void)cudaGraphDestroy(graph);
    if (rc)
        q_free(g);
    else
        *out = g;
    return rc;
}

static void cuda_graph_launch(struct device_graph *g, struct device_stream *s)
{
    (void)cudaGraphLaunch(g->cuda, s->by.cuda);
}

static void cuda_graph_free(struct device_graph *g)
{
    if (g)
        (void)cudaGraphExecDestroy(g->cuda);
    q_free(g);
}

/* ---- sizes ---- */

static size_t cuda_kv_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim)
{
    return n_kv_head * cuda_kv_head_bytes(kv_dtype, head_dim);
}

static size_t cuda_workspace(const struct device *d, const struct device_limits *l)
{
    const size_t own = cuda_workspace_bytes(l, d->props.n_unit);
    const size_t lt = d->lt ? cuda_lt_workspace_bytes(l, LT_WORKSPACE) : 0;
    return own > lt ? own : lt;
}

static size_t cuda_plan_bytes(const struct device *d, const struct device_limits *l)
{
    (void)d;
    return plan_bytes(l);
}

static size_t cuda_plan(const struct device *d, void *out, const struct device_limits *l,
                        const struct attention_seq *seqs, uint32_t n_seq)
{
    (void)d;
    plan_make(out, l, attention_slots(l->kv_dtype, l->head_dim), seqs, n_seq);
    const struct plan_head *h = out;
    return h->large_at + h->n_large * sizeof(struct plan_piece);
}

static enum q_code cuda_tune(struct device *d, const struct device_tuning *what,
                             struct device_tuned *out, struct q_err *e);

const struct device_table *quire_device_7(void)
{
    static const struct device_table table = {
        .abi = DEVICE_ABI,
        .kern_bytes = sizeof(struct kern_table),
        .name = "cuda",
        .row_major = true,
        .open = cuda_open,
        .close = cuda_close,
        .props = cuda_props,
        .kern = cuda_kern,
        .memory = cuda_memory,
        .check = cuda_check,
        .alloc = cuda_alloc,
        .release = cuda_release,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .stream_new = cuda_stream_new,
        .stream_free = cuda_stream_free,
        .copy = cuda_copy,
        .copy_rows = cuda_copy_rows,
        .fill = cuda_fill,
        .sync = cuda_sync,
        .event_new = cuda_event_new,
        .event_free = cuda_event_free,
        .event_record = cuda_event_record,
        .stream_wait = cuda_stream_wait,
        .event_wait = cuda_event_wait,
        .event_done = cuda_event_done,
        .event_ms = cuda_event_ms,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_launch = cuda_graph_launch,
        .graph_free = cuda_graph_free,
        .matrix_bytes = cuda_matrix_bytes,
        .kv_block_bytes = cuda_kv_bytes,
        .workspace_bytes = cuda_workspace,
        .plan_bytes = cuda_plan_bytes,
        .plan = cuda_plan,
        .tune = cuda_tune,
    };
    return &table;
}

static enum q_code cuda_tune(struct device *d, const struct device_tuning *what,
                             struct device_tuned *out, struct q_err *e)
{
    const struct device_link link = {quire_device_7(), d, what->x->stream};
    struct tuner t = {
        .lt = d->lt,
        .link = &link,
        .dir = d->tune_dir,
        .card.card = {.major = d->props.major, .minor = d->props.minor, .driver = d->props.driver},
    };
    *out = (struct device_tuned){0};
    if (!d->lt) {
        snprintf(
            out->note, sizeof out->note, "%s%s",
            d->deterministic ? "deterministic: cuBLASLt is not used" : "no cuBLASLt: ", d->why);
        return Q_OK;
    }
    snprintf(t.card.card.name, sizeof t.card.card.name, "%s", d->props.name);
    t.card.library = lt_version(d->lt);
    return tune_products(&t, what, out, e);
}
