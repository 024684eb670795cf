/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/err.h"
#include "fake_cuda_memory.h"

#define QUERY_US 50u /* duration of a query */

#define DEFAULTS                                                                      \
    {                                                                                 \
        .major = 8, .n_device = 1, .driver = 13000, .total_bytes = UINT64_C(1) << 30, \
        .fail_with = cudaErrorUnknown,                                                \
    }

struct fake_cuda fake_cuda = DEFAULTS;
atomic_bool fake_cuda_is_closed;

static cudaError_t last, sticky;
static pid_t user; /* the process that has used CUDA; its children cannot */

void fake_cuda_illegal(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("fake_cuda: illegal: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(134); /* no handler may hide it */
}

/* ---- objects ---- */

struct copy {
    void *dst;
    const void *src;
    size_t dst_step, src_step, width, height;
};
struct work {
    enum work_kind { WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_RECORD, WORK_WAIT } kind;
    fake_cuda_run *run;
    void *args; /* owned */
    size_t n_args;
    struct copy copy; /* of a fill: dst, height bytes, width is the byte */
    cudaEvent_t event;
    cudaStream_t stream; /* of the event, with its number there */
    uint64_t number;
};
struct list {
    struct work *items;
    size_t n, room;
};
enum kind { A_STREAM, AN_EVENT, A_GRAPH, AN_EXEC };
struct object { /* first in every handle */
    enum kind kind;
    struct object *next;
};
struct CUstream_st {
    struct object o;
    struct list todo;
    size_t first;
    uint64_t n_done; /* since its begin */
    bool capturing;
    struct list graph;
};
struct CUevent_st {
    struct object o;
    cudaStream_t stream; /* NULL: never recorded */
    uint64_t number;     /* of the work with which it happens */
    uint32_t n_query;
    bool happened; /* its stream is gone: it has */
};
struct CUgraph_st {
    struct object o;
    struct list list;
};
struct CUgraphExec_st {
    struct object o;
    struct list list;
};

static struct object *objects;
static cudaStream_t capture; /* in progress */
static pthread_t capture_thread;

static void *object_new(size_t n, enum kind kind)
{
    struct object *o = calloc(1, n);
    Q_ASSERT(o);
    *o = (struct object){kind, objects};
    objects = o;
    return o;
}

static void check_object(const void *handle, enum kind kind, const char *call)
{
    const struct object *o = objects;
    while (o && o != handle)
        o = o->next;
    if (!o || o->kind != kind)
        fake_cuda_illegal("%s: a handle that does not exist", call);
}

static void list_release(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].args);
    free(l->items);
    *l = (struct list){0};
}

static void object_free(void *handle)
{
    struct object **at = &objects;
    while (*at != handle)
        at = &(*at)->next;
    *at = (*at)->next;
    free(handle);
}

uint32_t fake_cuda_n_object(void)
{
    uint32_t n = memory_count();
    for (const struct object *o = objects; o; o = o->next)
        n++;
    return n;
}

/* ---- errors ---- */

/* A call begins; a result other than cudaSuccess is that of the call. */
static cudaError_t begin(const char *call)
{
    if (!user)
        user = getpid();
    if (user != getpid())
        return last = cudaErrorInitializationError;
    if (sticky)
        return last = sticky;
    if (++fake_cuda.n_call != fake_cuda.fail_at)
        return cudaSuccess;
    fake_cuda.failed = call;
    return last = fake_cuda.fail_with;
}

static void outside_capture(const char *call)
{
    if (capture && pthread_equal(capture_thread, pthread_self()))
        fake_cuda_illegal("%s in the thread of a capture", call);
}

const char *cudaGetErrorName(cudaError_t rc)
{
    return rc == cudaErrorMemoryAllocation      ? "cudaErrorMemoryAllocation"
           : rc == cudaErrorInitializationError ? "cudaErrorInitializationError"
           : rc == cudaErrorLaunchFailure       ? "cudaErrorLaunchFailure"
           : rc == cudaErrorNoDevice            ? "cudaErrorNoDevice"
                                                : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    return rc == cudaErrorMemoryAllocation      ? "out of memory"
           : rc == cudaErrorInitializationError ? "initialization error"
           : rc == cudaErrorLaunchFailure       ? "unspecified launch failure"
           : rc == cudaErrorNoDevice            ? "no CUDA-capable device is detected"
                                                : "unknown error";
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = last;
    last = sticky;
    return rc;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

/* ---- work ---- */

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

static void check_copy(const struct copy *c, const char *when)
{
    const size_t last_row = c->height - 1;
    if (!c->width || !c->height)
        return;
    if (!memory_has(c->dst, last_row * c->dst_step + c->width))
        fake_cuda_illegal(
            "a copy to memory that is neither the card's nor pinned, or has ended; %s", when);
    if (!memory_has(c->src, last_row * c->src_step + c->width))
        fake_cuda_illegal(
            "a copy from memory that is neither the card's nor pinned, or has ended; %s", when);
}

static void check_fill(const struct copy *c, const char *when)
{
    if (!memory_has(c->dst, c->height))
        fake_cuda_illegal("a fill of memory that does not exist; %s", when);
}

static void run_until(cudaStream_t s, uint64_t end);

static void do_work(const struct work *w)
{
    const struct copy *c = &w->copy;
    switch (w->kind) {
    case WORK_KERNEL:
        fake_cuda.n_kernel++;
        if (fake_cuda.n_kernel == fake_cuda.fault_at) {
            last = sticky = cudaErrorLaunchFailure;
            return;
        }
        if (fake_cuda.n_kernel == fake_cuda.crash_at)
            raise(SIGSEGV);
        while (fake_cuda.n_kernel == fake_cuda.hang_at)
            pause();
        w->run(w->args);
        return;
    case WORK_COPY:
        if (fake_cuda.records)
            return;
        check_copy(c, "when it is done");
        for (size_t i = 0; i < c->height; i++)
            memcpy((char *)c->dst + i * c->dst_step, (const char *)c->src + i * c->src_step,
                   c->width);
        return;
    case WORK_FILL:
        if (fake_cuda.records)
            return;
        check_fill(c, "when it is done");
        memset(c->dst, (int)c->width, c->height);
        return;
    case WORK_RECORD:
        return;
    case WORK_WAIT:
        if (w->stream)
            run_until(w->stream, w->number);
        return;
    }
}

/* All work of a stream before number `end`; of a ruined device nothing. */
static void run_until(cudaStream_t s, uint64_t end)
{
    const bool opens = !fake_cuda.records;
    if (opens)
        memory_open(true);
    while (s->first < s->todo.n && s->n_done < end) {
        const struct work w = s->todo.items[s->first++];
        s->n_done++;
        if (!sticky)
            do_work(&w);
        free(w.args);
    }
    if (s->first == s->todo.n)
        s->first = s->todo.n = 0;
    if (opens)
        memory_open(false);
}

static uint64_t given(cudaStream_t s)
{
    return s->n_done + (s->todo.n - s->first);
}

static void run_all(void)
{
    for (struct object *o = objects; o; o = o->next)
        if (o->kind == A_STREAM)
            run_until((cudaStream_t)(void *)o, UINT64_MAX);
}

static void give(cudaStream_t s, const struct work *w)
{
    *push_work(s->capturing ? &s->graph : &s->todo) = *w;
    if (fake_cuda.early && !s->capturing)
        run_until(s, UINT64_MAX);
}

static void *copy_of(const void *args, size_t n)
{
    void *p = malloc(n ? n : 1);
    Q_ASSERT(p);
    return memcpy(p, args, n);
}

void fake_cuda_launch(cudaStream_t s, fake_cuda_run *run, const void *arg, size_t n)
{
    check_object(s, A_STREAM, "cudaLaunchKernelEx");
    if (!begin("cudaLaunchKernelEx"))
        give(s, &(struct work){.run = run, .args = copy_of(arg, n), .n_args = n});
}

/* ---- the device ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_cuda.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    const cudaError_t rc = begin("cudaGetDeviceCount");
    *n = rc ? 0 : fake_cuda.n_device;
    return rc ? rc : *n ? cudaSuccess : (last = cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    const cudaError_t rc = begin("cudaGetDeviceProperties");
    if (rc)
        return rc;
    if (device >= fake_cuda.n_device)
        return last = cudaErrorInvalidDevice;
    *out = (struct cudaDeviceProp){
        .name = "emulated",
        .totalGlobalMem = fake_cuda.total_bytes,
        .major = fake_cuda.major,
        .minor = fake_cuda.minor,
        .multiProcessorCount = 4,
        .l2CacheSize = 1 << 20,
    };
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t rc = begin("cudaSetDevice");
    return rc ? rc : device < fake_cuda.n_device ? cudaSuccess : (last = cudaErrorInvalidDevice);
}

void fake_cuda_begin(void)
{
    Q_ASSERT(!fake_cuda_n_object() && !capture);
    last = sticky = cudaSuccess;
    user = 0;
    fake_cuda = (struct fake_cuda)DEFAULTS;
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const cudaError_t rc = begin("cudaMemGetInfo");
    if (rc)
        return rc;
    *all = fake_cuda.total_bytes;
    *left = fake_cuda.total_bytes - memory_card_bytes();
    return cudaSuccess;
}

static cudaError_t allocate(void **out, size_t n, bool on_card, const char *call)
{
    const cudaError_t rc = begin(call);
    const uint64_t left = fake_cuda.total_bytes - memory_card_bytes();
    outside_capture(call);
    if (rc)
        return last = sticky ? sticky : cudaErrorMemoryAllocation;
    *out = on_card && n > left ? NULL
           : fake_cuda.records ? memory_new_untouched(n, on_card)
                               : memory_new(n, on_card);
    return *out ? cudaSuccess : (last = cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    return allocate(out, n, true, "cudaMalloc");
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    return allocate(out, n, false, "cudaHostAlloc");
}

/* Both wait for the device, as CUDA's do. */
static cudaError_t release(void *p, bool on_card, const char *call)
{
    const cudaError_t rc = begin(call);
    outside_capture(call);
    run_all();
    if (p && !memory_free(p, on_card))
        fake_cuda_illegal("%s of memory that does not exist", call);
    return rc;
}

cudaError_t cudaFree(void *p)
{
    return release(p, true, "cudaFree");
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, false, "cudaFreeHost");
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    const cudaError_t rc = begin("cudaStreamCreateWithFlags");
    Q_ASSERT(flags == cudaStreamNonBlocking);
    if (!rc)
        *out = object_new(sizeof **out, A_STREAM);
    return rc;
}

/* All work of `gone` is done: nothing waits for it any more. */
static void forget_stream(cudaStream_t gone)
{
    for (struct object *o = objects; o; o = o->next) {
        if (o->kind == AN_EVENT) {
            struct CUevent_st *v = (struct CUevent_st *)(void *)o;
            if (v->stream == gone) {
                v->happened = true;
                v->stream = NULL;
            }
        } else if (o->kind == A_STREAM) {
            struct CUstream_st *s = (struct CUstream_st *)(void *)o;
            for (size_t i = s->first; i < s->todo.n; i++)
                if (s->todo.items[i].stream == gone)
                    s->todo.items[i].stream = NULL;
        }
    }
}

/* Work that is left is done. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const cudaError_t rc = begin("cudaStreamDestroy");
    check_object(s, A_STREAM, "cudaStreamDestroy");
    if (s->capturing)
        fake_cuda_illegal("cudaStreamDestroy of a stream that captures");
    run_until(s, UINT64_MAX);
    forget_stream(s);
    list_release(&s->todo);
    object_free(s);
    return rc;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const cudaError_t rc = begin("cudaStreamSynchronize");
    check_object(s, A_STREAM, "cudaStreamSynchronize");
    outside_capture("cudaStreamSynchronize");
    if (rc)
        return rc;
    run_until(s, UINT64_MAX);
    return sticky;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_step, const void *src, size_t src_step,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const struct copy c = {dst, src, dst_step, src_step, width, height};
    while (atomic_load(&fake_cuda_is_closed))
        usleep(200);
    const cudaError_t rc = begin("cudaMemcpy2DAsync");
    check_object(s, A_STREAM, "cudaMemcpy2DAsync");
    Q_ASSERT(kind == cudaMemcpyDefault);
    if (rc)
        return rc;
    if (dst_step < width || src_step < width)
        return last = cudaErrorInvalidValue;
    check_copy(&c, "when it is given");
    give(s, &(struct work){.kind = WORK_COPY, .copy = c});
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    return cudaMemcpy2DAsync(dst, n, src, n, n, 1, kind, s);
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t n, cudaStream_t s)
{
    const cudaError_t rc = begin("cudaMemsetAsync");
    const struct copy c = {.dst = dst, .height = n, .width = (size_t)byte};
    check_object(s, A_STREAM, "cudaMemsetAsync");
    if (rc)
        return rc;
    check_fill(&c, "when it is given");
    give(s, &(struct work){.kind = WORK_FILL, .copy = c});
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    const cudaError_t rc = begin("cudaEventCreate");
    if (!rc)
        *out = object_new(sizeof **out, AN_EVENT);
    return rc;
}

cudaError_t cudaEventDestroy(cudaEvent_t v)
{
    const cudaError_t rc = begin("cudaEventDestroy");
    check_object(v, AN_EVENT, "cudaEventDestroy");
    object_free(v);
    return rc;
}

cudaError_t cudaEventRecord(cudaEvent_t v, cudaStream_t s)
{
    const cudaError_t rc = begin("cudaEventRecord");
    check_object(v, AN_EVENT, "cudaEventRecord");
    check_object(s, A_STREAM, "cudaEventRecord");
    if (s->capturing)
        fake_cuda_illegal("cudaEventRecord in a capture, for an event of the host");
    if (rc)
        return rc;
    v->stream = s;
    v->number = given(s) + 1;
    v->n_query = 0;
    v->happened = false;
    give(s, &(struct work){.kind = WORK_RECORD});
    return cudaSuccess;
}

static void recorded(cudaEvent_t v, const char *call)
{
    check_object(v, AN_EVENT, call);
    if (!v->stream && !v->happened)
        fake_cuda_illegal("%s of an event that was never recorded", call);
}

static bool has_happened(cudaEvent_t v)
{
    return !v->stream || v->stream->n_done >= v->number;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t v, unsigned flags)
{
    const cudaError_t rc = begin("cudaStreamWaitEvent");
    (void)flags;
    check_object(s, A_STREAM, "cudaStreamWaitEvent");
    check_object(v, AN_EVENT, "cudaStreamWaitEvent");
    if (s->capturing)
        fake_cuda_illegal("cudaStreamWaitEvent in a capture, for an event outside of it");
    if (!rc)
        give(s, &(struct work){.kind = WORK_WAIT, .stream = v->stream, .number = v->number});
    return rc;
}

static void note_ahead(cudaEvent_t v)
{
    const struct CUstream_st *s = v->stream;
    uint32_t n = 0;
    for (size_t i = s->first; i < s->todo.n; i++)
        n += s->n_done + (i - s->first) >= v->number && s->todo.items[i].kind == WORK_KERNEL;
    fake_cuda.n_ahead = n > fake_cuda.n_ahead ? n : fake_cuda.n_ahead;
}

cudaError_t cudaEventSynchronize(cudaEvent_t v)
{
    const cudaError_t rc = begin("cudaEventSynchronize");
    outside_capture("cudaEventSynchronize");
    recorded(v, "cudaEventSynchronize");
    if (rc)
        return rc;
    if (v->stream) {
        note_ahead(v);
        run_until(v->stream, v->number);
    }
    return sticky;
}

cudaError_t cudaEventQuery(cudaEvent_t v)
{
    const cudaError_t rc = begin("cudaEventQuery");
    outside_capture("cudaEventQuery");
    recorded(v, "cudaEventQuery");
    if (rc)
        return rc;
    if (has_happened(v))
        return sticky;
    usleep(QUERY_US);
    if (++v->n_query < FAKE_CUDA_QUERIES)
        return last = cudaErrorNotReady;
    run_until(v->stream, v->number);
    return sticky;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const cudaError_t rc = begin("cudaEventElapsedTime");
    recorded(from, "cudaEventElapsedTime");
    recorded(to, "cudaEventElapsedTime");
    if (rc)
        return rc;
    if (!has_happened(from) || !has_happened(to))
        fake_cuda_illegal("cudaEventElapsedTime before both events have happened");
    *ms = fake_cuda.elapsed_ms ? fake_cuda.elapsed_ms() : FAKE_CUDA_MS;
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    const cudaError_t rc = begin("cudaStreamBeginCapture");
    check_object(s, A_STREAM, "cudaStreamBeginCapture");
    Q_ASSERT(mode == cudaStreamCaptureModeThreadLocal);
    if (capture)
        fake_cuda_illegal("cudaStreamBeginCapture within a capture");
    if (rc)
        return rc;
    capture = s;
    capture_thread = pthread_self();
    s->capturing = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const cudaError_t rc = begin("cudaStreamEndCapture");
    check_object(s, A_STREAM, "cudaStreamEndCapture");
    *out = NULL;
    if (!s->capturing)
        fake_cuda_illegal("cudaStreamEndCapture of a stream that does not capture");
    s->capturing = false;
    capture = NULL;
    if (rc) {
        list_release(&s->graph);
        return rc;
    }
    *out = object_new(sizeof **out, A_GRAPH);
    (*out)->list = s->graph;
    s->graph = (struct list){0};
    return cudaSuccess;
}

static void append_copies(struct list *to, const struct list *from)
{
    for (size_t i = 0; i < from->n; i++) {
        struct work w = from->items[i];
        if (w.args)
            w.args = copy_of(w.args, w.n_args);
        *push_work(to) = w;
    }
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    const cudaError_t rc = begin("cudaGraphInstantiate");
    check_object(g, A_GRAPH, "cudaGraphInstantiate");
    (void)flags;
    if (rc)
        return rc;
    *out = object_new(sizeof **out, AN_EXEC);
    append_copies(&(*out)->list, &g->list);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    const cudaError_t rc = begin("cudaGraphDestroy");
    check_object(g, A_GRAPH, "cudaGraphDestroy");
    list_release(&g->list);
    object_free(g);
    return rc;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    const cudaError_t rc = begin("cudaGraphLaunch");
    check_object(g, AN_EXEC, "cudaGraphLaunch");
    check_object(s, A_STREAM, "cudaGraphLaunch");
    if (s->capturing)
        fake_cuda_illegal("cudaGraphLaunch in a capture");
    if (rc)
        return rc;
    fake_cuda.n_graph_launch++;
    append_copies(&s->todo, &g->list);
    if (fake_cuda.early)
        run_until(s, UINT64_MAX);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    const cudaError_t rc = begin("cudaGraphExecDestroy");
    check_object(g, AN_EXEC, "cudaGraphExecDestroy");
    list_release(&g->list);
    object_free(g);
    return rc;
}
