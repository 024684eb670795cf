/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks and the memory of cuda_emu_watch.h, and the calls that -fsanitize=thread makes (their names
 * are the compilers' interface, the same of gcc and clang). Not instrumented itself.
 *
 * Steps are numbered through all blocks and launches, so what an earlier block left in the bytes'
 * memory is below the floor of the next and need not be wiped. */
#include "cuda_emu_watch.h"
#include <map>
#include <vector>
#include "cuda_emu.h"

#define THREADS_MAX 1024u

struct touch { /* of one byte */
    uint32_t write, read[2];
    uint16_t writer, reader[2];
    bool generic; /* written by a plain store */
};

static char *memory;
static size_t n_byte;
static unsigned n_thread, self;
static uint32_t floor_step, now[THREADS_MAX], fenced[THREADS_MAX]; /* now: a thread's own step */
static bool clean[THREADS_MAX];      /* knows nothing above the floor but its own */
static std::vector<uint32_t> clocks; /* [n_thread][n_thread], a row valid when not clean */
static std::vector<touch> touches;
static std::map<const void *, std::vector<uint32_t>> barriers;
static bool active;

static uint32_t *row(unsigned t)
{
    uint32_t *r = clocks.data() + (size_t)t * n_thread;
    if (clean[t]) {
        for (unsigned u = 0; u < n_thread; u++)
            r[u] = floor_step;
        clean[t] = false;
    }
    r[t] = now[t];
    return r;
}

static void raise_floor(uint32_t to)
{
    floor_step = to;
    for (unsigned t = 0; t < n_thread; t++) {
        now[t] = to + 1;
        clean[t] = true;
    }
}

void watch_block(char *shared, size_t n, unsigned n_of_threads)
{
    uint32_t most = floor_step;
    for (unsigned t = 0; t < n_thread; t++)
        most = now[t] > most ? now[t] : most;
    memory = shared;
    n_byte = n;
    n_thread = n_of_threads;
    if (most > UINT32_MAX / 2) { /* days of running */
        touches.clear();
        most = 0;
    }
    touches.resize(n > touches.size() ? n : touches.size());
    clocks.resize((size_t)n_thread * n_thread);
    barriers.clear();
    for (unsigned t = 0; t < THREADS_MAX; t++)
        fenced[t] = most; /* what an earlier block wrote is not this one's */
    raise_floor(most);
    active = true;
}

void watch_run(unsigned index)
{
    self = index;
}

void watch_stop()
{
    active = false;
}

void watch_join(unsigned first, unsigned n)
{
    if (n == n_thread) {
        uint32_t most = floor_step;
        for (unsigned t = 0; t < n; t++)
            most = now[t] > most ? now[t] : most;
        raise_floor(most);
        return;
    }
    std::vector<uint32_t> all(n_thread, 0);
    for (unsigned t = first; t < first + n; t++) {
        const uint32_t *r = row(t);
        for (unsigned u = 0; u < n_thread; u++)
            all[u] = r[u] > all[u] ? r[u] : all[u];
    }
    for (unsigned t = first; t < first + n; t++) {
        memcpy(row(t), all.data(), n_thread * sizeof all[0]);
        now[t]++;
    }
}

void watch_release(const void *name)
{
    if (!active)
        return;
    std::vector<uint32_t> &b = barriers[name];
    const uint32_t *r = row(self);
    b.resize(n_thread);
    for (unsigned u = 0; u < n_thread; u++)
        b[u] = r[u] > b[u] ? r[u] : b[u];
    now[self]++;
}

void watch_acquire(const void *name)
{
    const auto b = barriers.find(name);
    if (!active || b == barriers.end())
        return;
    uint32_t *r = row(self);
    for (unsigned u = 0; u < n_thread; u++)
        r[u] = b->second[u] > r[u] ? b->second[u] : r[u];
}

void watch_pass(const void *from, const void *to)
{
    const auto f = barriers.find(from);
    if (!active || f == barriers.end())
        return;
    std::vector<uint32_t> &t = barriers[to];
    t.resize(n_thread);
    for (unsigned u = 0; u < n_thread; u++)
        t[u] = f->second[u] > t[u] ? f->second[u] : t[u];
    barriers.erase(f);
}

void watch_fence()
{
    fenced[self] = now[self]++;
}

/* ---- one access ---- */
static inline __attribute__((always_inline)) bool known(unsigned thread, uint32_t step)
{
    if (step <= floor_step || thread == self)
        return true;
    return !clean[self] && step <= clocks[(size_t)self * n_thread + thread];
}

struct access {
    size_t at, n;
    enum watch_how how;
    void *code;
};

__attribute__((noreturn)) static void fail_race(const struct access &a, unsigned other,
                                                const char *did)
{
    const emu_site mine = emu_last_site(self), its = emu_last_site(other);
    emu_fail(
        "race: thread %u %s %zu bytes of shared memory at %zu that thread %u %s, and no barrier is "
        "between; thread %u last synchronised at %s:%d, thread %u at %s:%d; code at %p",
        self, a.how == WATCH_READ || a.how == WATCH_ASYNC_READ ? "reads" : "writes", a.n, a.at,
        other, did, self, mine.file, mine.line, other, its.file, its.line, a.code);
}

static void touch_byte(touch &b, const struct access &a)
{
    const bool async = a.how == WATCH_ASYNC_READ || a.how == WATCH_ASYNC_WRITE;
    if (!known(b.writer, b.write))
        fail_race(a, b.writer, "wrote");
    if (async && b.generic && b.write > fenced[b.writer])
        emu_fail(
            "fence: the asynchronous proxy %s byte %zu of shared memory, which thread %u wrote "
            "without a fence.proxy.async after it",
            a.how == WATCH_ASYNC_READ ? "reads" : "writes", a.at, b.writer);
    if (a.how == WATCH_READ || a.how == WATCH_ASYNC_READ) {
        if (b.reader[0] / 32 != self / 32) { /* the last reader of another warp */
            b.reader[1] = b.reader[0];
            b.read[1] = b.read[0];
        }
        b.reader[0] = (uint16_t)self;
        b.read[0] = now[self];
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        if (!known(b.reader[i], b.read[i]))
            fail_race(a, b.reader[i], "read");
    b.writer = (uint16_t)self;
    b.write = now[self];
    b.generic = !async;
}

static void accessed(const void *p, size_t n, enum watch_how how, void *code)
{
    const size_t at = (size_t)((const char *)p - memory);
    if (!active || at + EMU_GUARD >= n_byte + 2 * EMU_GUARD) /* somewhere else */
        return;
    if (at >= n_byte || at + n > n_byte)
        emu_fail("out of bounds: %zu bytes at %lld of %zu bytes of shared memory; the thread last "
                 "synchronised at %s:%d; code at %p",
                 n, (long long)at, n_byte, emu_last_site(self).file, emu_last_site(self).line,
                 code);
    const struct access a = {at, n, how, code};
    for (size_t i = 0; i < n; i++)
        touch_byte(touches[at + i], a);
}

void watch_access(const void *p, size_t n, enum watch_how how)
{
    accessed(p, n, how, __builtin_return_address(0));
}

/* ---- the compiler's calls ---- */
#define CODE __builtin_return_address(0)
#define SIZED(n)                                        \
    extern "C" void __tsan_read##n(void *p);            \
    extern "C" void __tsan_write##n(void *p);           \
    extern "C" void __tsan_unaligned_read##n(void *p);  \
    extern "C" void __tsan_unaligned_write##n(void *p); \
    void __tsan_read##n(void *p)                        \
    {                                                   \
        accessed(p, n, WATCH_READ, CODE);               \
    }                                                   \
    void __tsan_write##n(void *p)                       \
    {                                                   \
        accessed(p, n, WATCH_WRITE, CODE);              \
    }                                                   \
    void __tsan_unaligned_read##n(void *p)              \
    {                                                   \
        accessed(p, n, WATCH_READ, CODE);               \
    }                                                   \
    void __tsan_unaligned_write##n(void *p)             \
    {                                                   \
        accessed(p, n, WATCH_WRITE, CODE);              \
    }
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)

extern "C" {
void __tsan_init();
void __tsan_func_entry(void *);
void __tsan_func_exit();
void __tsan_read_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n);
void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}
void __tsan_read_range(void *p, size_t n)
{
    accessed(p, n, WATCH_READ, CODE);
}
void __tsan_write_range(void *p, size_t n)
{
    accessed(p, n, WATCH_WRITE, CODE);
}
}
