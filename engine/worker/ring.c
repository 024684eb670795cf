/* SPDX-License-Identifier: Apache-2.0 */
/* No wake-up is lost. Engine to worker: the futex watches the word `wake`, which changes with every
 * send and with stop. The worker stores that it sleeps, then the kernel compares `wake` before it
 * blocks; the engine changes `wake`, then checks whether the worker sleeps; all of these are
 * sequentially consistent. Worker to engine: the worker writes the eventfd after every result, and
 * the engine clears the eventfd before it reads `done`.
 *
 * Each side keeps its own position in private memory (taken, sent_own), so a worker that corrupts
 * the shared counters can only make the engine read a result that step_result_view rejects. */
#include "engine/worker/ring.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"

#define RING_MAGIC UINT64_C(0x676e697265726975) /* "uirering", little-endian */
#define RING_SPIN_US \
    10 /* a step that follows a step comes within microseconds; then the core is given back */
#define RING_PAGE     4096u
#define RING_BODY_MAX ((uint64_t)1 << 36) /* bytes; a size above is damage */

struct ring_head {
    uint64_t magic;
    uint64_t head_bytes; /* sizeof(struct ring_head) of the build that made it */
    struct worker_config config;
    struct worker_info info;       /* published by state = READY */
    struct q_err error;            /* published by state = FAILED */
    alignas(64) atomic_uint state; /* enum worker_state */
    atomic_uint percent;
    alignas(64) atomic_uint sent; /* steps published, wraps */
    atomic_uint wake;             /* moves with every send and with stop */
    atomic_uint asleep;           /* the worker is in its futex */
    atomic_uint stop;
    atomic_uint command;          /* enum ring_command; the engine sets it, the worker clears it */
    alignas(64) atomic_uint done; /* results published, wraps */
    atomic_uint computing;        /* steps that the worker has begun, wraps */
    char command_path[PATH_MAX];  /* published by command */
    uint32_t command_adapter;     /* likewise */
    struct q_err command_error;   /* published by command = RING_NO_COMMAND */
};

struct ring {
    struct ring_head *head;
    size_t head_bytes;   /* mapped */
    unsigned char *body; /* NULL until ready; in process the worker's mapping serves both */
    size_t body_bytes;
    size_t step_bytes, result_bytes;
    uint32_t taken;    /* engine: results taken */
    uint32_t sent_own; /* engine: steps sent */
    uint32_t begun;    /* worker: steps begun */
    int memory_fd, event_fd;
    int items_fd; /* -1: none */
    void *items;  /* worker: the item store */
    size_t items_bytes;
};

static size_t page_up(size_t n)
{
    return (n + RING_PAGE - 1) / RING_PAGE * RING_PAGE;
}

/* NULL, with `e` set (Q_NO_MEMORY), when it cannot be mapped. */
static void *map_at(int fd, size_t offset, size_t n, struct q_err *e)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (p != MAP_FAILED)
        return p;
    q_fail(e, Q_NO_MEMORY, "ring: cannot map %zu bytes: %s", n, strerror(errno));
    return NULL;
}

FALLIBLE ring_new(struct ring **out, const struct worker_config *c, struct q_err *e)
{
    struct ring *r = q_calloc(1, sizeof *r);
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "ring: out of memory");
    r->head_bytes = page_up(sizeof *r->head);
    r->items_fd = -1;
    r->memory_fd = memfd_create("quire-ring", MFD_CLOEXEC);
    r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum q_code rc = Q_OK;
    if (r->memory_fd < 0 || r->event_fd < 0 || ftruncate(r->memory_fd, (off_t)r->head_bytes))
        rc = q_fail(e, Q_IO, "ring: cannot make shared memory: %s", strerror(errno));
    if (rc)
        goto out;
    r->head = map_at(r->memory_fd, 0, r->head_bytes, e);
    if (!r->head) {
        rc = Q_NO_MEMORY;
        goto out;
    }
    /* Zeroed by the kernel: state LOADING, counters 0. */
    r->head->magic = RING_MAGIC;
    r->head->head_bytes = sizeof *r->head;
    r->head->config = *c;
    *out = r;
    return Q_OK;
out:
    ring_free(r);
    return rc;
}

FALLIBLE ring_open(struct ring **out, int memory_fd, int event_fd, struct q_err *e)
{
    struct stat st;
    struct ring *r = q_calloc(1, sizeof *r);
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "ring: out of memory");
    r->memory_fd = memory_fd;
    r->event_fd = event_fd;
    r->items_fd = -1;
    r->head_bytes = page_up(sizeof *r->head);
    enum q_code rc = Q_OK;
    if (fstat(memory_fd, &st))
        rc = q_fail(e, Q_IO, "ring: descriptor %d: %s", memory_fd, strerror(errno));
    else if ((uint64_t)st.st_size < r->head_bytes)
        rc = q_fail(e, Q_MISMATCH, "ring: descriptor %d holds %lld bytes, expected %zu", memory_fd,
                    (long long)st.st_size, r->head_bytes);
    if (rc)
        goto out;
    r->head = map_at(memory_fd, 0, r->head_bytes, e);
    if (!r->head) {
        rc = Q_NO_MEMORY;
        goto out;
    }
    if (r->head->magic != RING_MAGIC || r->head->head_bytes != sizeof *r->head) {
        rc = q_fail(
            e, Q_MISMATCH,
            "ring: engine and worker are different builds; they must be of one installation");
        goto out;
    }
    *out = r;
    return Q_OK;
out:
    ring_free(r);
    return rc;
}

void ring_free(struct ring *r)
{
    if (!r)
        return;
    if (r->body)
        munmap(r->body, r->body_bytes);
    if (r->head)
        munmap(r->head, r->head_bytes);
    if (r->memory_fd >= 0)
        close(r->memory_fd);
    if (r->event_fd >= 0)
        close(r->event_fd);
    if (r->items)
        munmap(r->items, r->items_bytes);
    if (r->items_fd >= 0)
        close(r->items_fd);
    q_free(r);
}

FALLIBLE ring_share_items(struct ring *r, int fd, struct q_err *e)
{
    Q_ASSERT(r->items_fd < 0);
    if (fd >= 0 && (r->items_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        return q_fail(e, Q_IO, "ring: cannot share the item store: %s", strerror(errno));
    return Q_OK;
}

int ring_items_fd(const struct ring *r)
{
    return r->items_fd;
}

FALLIBLE ring_items(struct ring *r, const unsigned char **items, struct q_err *e)
{
    struct stat st;
    const size_t n_byte = (size_t)r->head->config.item_mib << 20;
    *items = r->items;
    if (!n_byte || r->items)
        return Q_OK;
    if (r->items_fd < 0 || fstat(r->items_fd, &st) || (uint64_t)st.st_size != n_byte)
        return q_fail(e, Q_MISMATCH, "ring: the item store does not have %zu bytes", n_byte);
    void *p = mmap(NULL, n_byte, PROT_READ, MAP_SHARED | MAP_NORESERVE, r->items_fd, 0);
    if (p == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "ring: cannot map the item store of %zu bytes: %s", n_byte,
                      strerror(errno));
    *items = r->items = p;
    r->items_bytes = n_byte;
    return Q_OK;
}

int ring_memory_fd(const struct ring *r)
{
    return r->memory_fd;
}

int ring_event_fd(const struct ring *r)
{
    return r->event_fd;
}

const struct worker_config *ring_config(const struct ring *r)
{
    return &r->head->config;
}

static void notify(struct ring *r)
{
    uint64_t one = 1;
    ssize_t ignored = write(r->event_fd, &one, sizeof one);
    (void)ignored; /* EAGAIN: the counter is full, so the fd is readable anyway */
}

/* worker side */

void ring_progress(struct ring *r, uint32_t percent)
{
    if (atomic_load_explicit(&r->head->percent, memory_order_relaxed) == percent)
        return;
    atomic_store_explicit(&r->head->percent, percent, memory_order_relaxed);
    notify(r);
}

static FALLIBLE body_map(struct ring *r, const struct worker_info *info, struct q_err *e)
{
    r->step_bytes = info->step_bytes;
    r->result_bytes = info->result_bytes;
    r->body_bytes = RING_DEPTH * (info->step_bytes + info->result_bytes);
    r->body = map_at(r->memory_fd, r->head_bytes, r->body_bytes, e);
    return r->body ? Q_OK : Q_NO_MEMORY;
}

/* Sizes of the entries in whole pages, and of the body. */
static FALLIBLE body_sizes(size_t *step, size_t *result, uint64_t *body,
                           const struct step_limits *l, struct q_err *e)
{
    enum q_code rc = step_bytes_max(step, result, l, e);
    if (rc)
        return rc;
    *step = page_up(*step);
    *result = page_up(*result);
    *body = (uint64_t)RING_DEPTH * (*step + *result);
    if (*body > RING_BODY_MAX)
        return q_fail(
            e, Q_TOO_LARGE,
            "ring: a step of %zu bytes is too large; lower max_num_seqs or max_num_batched_tokens",
            *step);
    return Q_OK;
}

FALLIBLE ring_body_bytes(uint64_t *bytes, const struct step_limits *l, struct q_err *e)
{
    size_t step, result;
    return body_sizes(&step, &result, bytes, l, e);
}

FALLIBLE ring_ready(struct ring *r, struct worker_info *info, struct q_err *e)
{
    uint64_t body;
    enum q_code rc;
    if ((rc = body_sizes(&info->step_bytes, &info->result_bytes, &body, &info->limits, e)))
        return rc;
    if (ftruncate(r->memory_fd, (off_t)(r->head_bytes + body)))
        return q_fail(e, Q_NO_MEMORY, "ring: cannot grow to %llu bytes: %s",
                      (unsigned long long)body, strerror(errno));
    if ((rc = body_map(r, info, e)))
        return rc;
    r->head->info = *info;
    atomic_store_explicit(&r->head->state, WORKER_READY, memory_order_release);
    notify(r);
    return Q_OK;
}

void ring_failed(struct ring *r, const struct q_err *e)
{
    r->head->error = *e;
    atomic_store_explicit(&r->head->state, WORKER_FAILED, memory_order_release);
    notify(r);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool step_ready(const struct ring *r)
{
    return atomic_load_explicit(&r->head->sent, memory_order_acquire) != r->begun ||
           atomic_load_explicit(&r->head->command, memory_order_acquire) != RING_NO_COMMAND ||
           atomic_load_explicit(&r->head->stop, memory_order_acquire);
}

static void step_sleep(struct ring *r)
{
    struct ring_head *h = r->head;
    int64_t until = clock_us() + RING_SPIN_US;
    do {
        for (int i = 0; i < 32; i++) {
            if (step_ready(r))
                return;
            relax();
        }
    } while (clock_us() < until);
    for (;;) {
        unsigned wake = atomic_load(&h->wake);
        atomic_store(&h->asleep, 1);
        bool here = step_ready(r);
        if (!here)
            syscall(SYS_futex, (void *)&h->wake, FUTEX_WAIT, wake, NULL, NULL, 0);
        atomic_store(&h->asleep, 0);
        if (here || step_ready(r))
            return;
    }
}

bool ring_step_before(const struct ring *r, bool (*done)(void *ctx), void *ctx)
{
    while (!step_ready(r)) {
        if (done(ctx))
            return step_ready(r);
        relax();
    }
    return true;
}

bool ring_step_wait(struct ring *r, void **step, void **result)
{
    step_sleep(r);
    if (atomic_load(&r->head->stop))
        return false;
    *step = *result = NULL;
    if (ring_command_now(
            r)) /* a step that is seen was sent after a command, which then is seen too */
        return true;
    size_t i = r->begun++ % RING_DEPTH;
    atomic_store(&r->head->computing, r->begun);
    *step = r->body + i * r->step_bytes;
    *result = r->body + RING_DEPTH * r->step_bytes + i * r->result_bytes;
    return true;
}

enum ring_command ring_command_now(const struct ring *r)
{
    return (enum ring_command)atomic_load(&r->head->command);
}

void ring_command_path(const struct ring *r, char out[PATH_MAX])
{
    memcpy(out, r->head->command_path, PATH_MAX);
    out[PATH_MAX - 1] = '\0';
}

uint32_t ring_command_adapter(const struct ring *r)
{
    return r->head->command_adapter;
}

void ring_command_done(struct ring *r, const struct q_err *e)
{
    Q_ASSERT(ring_command_now(r) != RING_NO_COMMAND);
    r->head->command_error = e ? *e : (struct q_err)Q_ERR_INIT;
    atomic_store(&r->head->command, RING_NO_COMMAND);
    notify(r);
}

void ring_step_done(struct ring *r)
{
    atomic_fetch_add_explicit(&r->head->done, 1, memory_order_release);
    notify(r);
}

bool ring_stopped(const struct ring *r)
{
    return atomic_load(&r->head->stop) != 0;
}

/* engine side */

/* The worker's memory is not trusted. */
static void said_by_worker(const struct q_err *said, struct q_err *e)
{
    *e = *said;
    e->message[sizeof e->message - 1] = '\0';
    if (e->code >= Q_CODE_COUNT)
        e->code = Q_INTERNAL;
}

enum worker_state ring_state(const struct ring *r, uint32_t *percent, struct q_err *e)
{
    enum worker_state state = atomic_load_explicit(&r->head->state, memory_order_acquire);
    *percent = atomic_load_explicit(&r->head->percent, memory_order_relaxed);
    if (*percent > 100)
        *percent = 100;
    if (state == WORKER_FAILED && e) {
        said_by_worker(&r->head->error, e);
        if (e->code == Q_OK)
            e->code = Q_INTERNAL;
    }
    return state;
}

FALLIBLE ring_attach(struct ring *r, struct worker_info *info, struct q_err *e)
{
    struct stat st;
    *info = r->head->info;
    info->kernels[sizeof info->kernels - 1] = '\0';
    uint64_t one = (uint64_t)info->step_bytes + info->result_bytes;
    if (fstat(r->memory_fd, &st) || info->step_bytes > RING_BODY_MAX ||
        info->result_bytes > RING_BODY_MAX ||
        (uint64_t)st.st_size != r->head_bytes + RING_DEPTH * one)
        return q_fail(e, Q_CORRUPT, "ring: the worker's sizes do not match its memory");
    return r->body ? Q_OK : body_map(r, info, e);
}

bool ring_computing(const struct ring *r)
{
    return atomic_load(&r->head->computing) != atomic_load(&r->head->done);
}

uint32_t ring_in_flight(const struct ring *r)
{
    return r->sent_own - r->taken;
}

void *ring_step_space(struct ring *r)
{
    Q_ASSERT(r->body); /* ring_attach came first */
    if (ring_in_flight(r) >= RING_DEPTH)
        return NULL;
    return r->body + r->sent_own % RING_DEPTH * r->step_bytes;
}

static void wake_worker(struct ring *r)
{
    atomic_fetch_add(&r->head->wake, 1);
    if (atomic_load(&r->head->asleep))
        syscall(SYS_futex, (void *)&r->head->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void ring_command(struct ring *r, enum ring_command command, const char *path)
{
    Q_ASSERT(!ring_in_flight(r) && !ring_commanding(r));
    snprintf(r->head->command_path, sizeof r->head->command_path, "%s", path ? path : "");
    atomic_store(&r->head->command, (unsigned)command);
    wake_worker(r);
}

void ring_adapter(struct ring *r, enum ring_command command, uint32_t adapter, const char *path)
{
    Q_ASSERT(!ring_in_flight(r) && !ring_commanding(r));
    r->head->command_adapter = adapter;
    ring_command(r, command, path);
}

FALLIBLE ring_command_result(const struct ring *r, struct q_err *e)
{
    struct q_err said;
    said_by_worker(&r->head->command_error, &said);
    if (said.code && e)
        *e = said;
    return said.code;
}

bool ring_commanding(const struct ring *r)
{
    return ring_command_now(r) != RING_NO_COMMAND;
}

void ring_step_send(struct ring *r)
{
    Q_ASSERT(ring_in_flight(r) < RING_DEPTH);
    atomic_store(&r->head->sent, ++r->sent_own);
    wake_worker(r);
}

void *ring_result_next(struct ring *r)
{
    if (!ring_in_flight(r) ||
        atomic_load_explicit(&r->head->done, memory_order_acquire) == r->taken)
        return NULL;
    return r->body + RING_DEPTH * r->step_bytes + r->taken % RING_DEPTH * r->result_bytes;
}

void *ring_result_step(struct ring *r)
{
    Q_ASSERT(ring_in_flight(r) > 0);
    return r->body + r->taken % RING_DEPTH * r->step_bytes;
}

void ring_result_take(struct ring *r)
{
    Q_ASSERT(ring_in_flight(r) > 0);
    r->taken++;
}

void ring_event_clear(struct ring *r)
{
    uint64_t n;
    ssize_t ignored = read(r->event_fd, &n, sizeof n);
    (void)ignored; /* EAGAIN: nothing came since the last time */
}

void ring_stop(struct ring *r)
{
    atomic_store(&r->head->stop, 1);
    wake_worker(r);
}
