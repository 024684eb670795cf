/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of cuda_emu.h. Each thread of a block has a stack of its own and one of these states:
 *
 *     READY     can run
 *     BLOCK     waits in __syncthreads until all threads of the block do
 *     WARP      waits in a warp operation until its 32 lanes do
 *     PAUSED    waits for a phase of an mbarrier (cuda_emu_hopper.cc)
 *     DONE      returned from the kernel
 *
 * Whoever waits gives the processor back to the scheduler, which picks a READY thread at random.
 * Nobody READY and not all DONE is an error of the kernel, and the message says who waits where.
 *
 * The values of a warp operation lie in two sets of slots by turns: a lane can be one operation ahead
 * of the others, never two.
 *
 * This file is compiled without the sanitizers' instrumentation of memory accesses; it tells tsan of
 * the order that barriers make (tsan's fibers know no other), and asan of the stacks. */
#include "cuda_emu.h"
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "cuda_emu_hopper.h"
#include "cuda_emu_watch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || defined(EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#define WITH_TSAN           1
#define HAPPENS_BEFORE(tag) __tsan_release((void *)(tag))
#define HAPPENS_AFTER(tag)  __tsan_acquire((void *)(tag))
#else
#define HAPPENS_BEFORE(tag) ((void)(tag))
#define HAPPENS_AFTER(tag)  ((void)(tag))
#endif

#define THREADS_MAX 1024u
#define WARPS_MAX   (THREADS_MAX / 32)
#define STACK_BYTES (192u << 10)
#define WORDS_MAX   8u /* of one lane in one warp operation */
#define FILL        0xff

enum state { READY, BLOCK, WARP, PAUSED, DONE };

/* ---- stacks: swapcontext where there is nothing better; it makes two system calls a change ---- */
#if defined(__x86_64__)
struct stack_at { /* what the System V ABI keeps over a call is on the stack itself */
    void *rsp;
};
extern "C" void emu_swap(stack_at *from, stack_at *to);
asm(".text\n.globl emu_swap\nemu_swap:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void stack_start(stack_at *s, char *stack, size_t bytes, void (*main)())
{
    void **top = (void **)(stack + bytes) - 8; /* 64-byte aligned */
    for (int i = 0; i < 8; i++)
        top[i] = nullptr;
    top[-1] = nullptr;      /* main's return address: it never returns */
    top[-2] = (void *)main; /* where emu_swap returns to */
    for (int i = 3; i <= 8; i++)
        top[-i] = nullptr; /* the six registers */
    s->rsp = top - 8;
}
#else
#include <ucontext.h>
typedef ucontext_t stack_at;
static void emu_swap(stack_at *from, stack_at *to)
{
    swapcontext(from, to);
}
static void stack_start(stack_at *s, char *stack, size_t bytes, void (*main)())
{
    getcontext(s);
    s->uc_stack.ss_sp = stack;
    s->uc_stack.ss_size = bytes;
    s->uc_link = nullptr;
    makecontext(s, main, 0);
}
#endif

struct fiber {
    stack_at context;
    char *stack;
    enum state state;
    emu_site site; /* where it waits */
    unsigned turn; /* warp operations so far */
    emu_thread self;
    unsigned index; /* of the block's threads */
    emu_copies copies;
    bool awaited;
    void *tsan, *asan;
};

struct warp {
    unsigned n_arrived;
    const char *what;
    emu_site site;
    uint32_t slots[2][32][WORDS_MAX];
};

emu_thread emu_self;
uint64_t emu_seed = 1, emu_n_launch, emu_n_switch;
size_t emu_shared_max = 99 << 10;
bool emu_awaits = true;

static fiber *fibers[THREADS_MAX];
static warp warps[WARPS_MAX];
static stack_at scheduler;
static fiber *running;
static unsigned n_thread, n_waiting, n_done;
static emu_site block_site;
static void *shared;
static size_t shared_bytes;
static emu_body *body;
static void *body_arg;
static uint64_t rng;
static char tag_launch, tag_end, tag_block; /* tsan: what happens before what */
static char tag_warp[WARPS_MAX];
#ifdef WITH_TSAN
static void *tsan_scheduler;
#endif
#ifdef WITH_ASAN
static const void *asan_bottom;
static size_t asan_size;
#endif

void emu_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "cuda_emu: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    if (running)
        fprintf(stderr,
                "cuda_emu: in thread (%u,%u,%u) of block (%u,%u,%u), launch %llu, seed %llu\n",
                emu_self.thread.x, emu_self.thread.y, emu_self.thread.z, emu_self.block.x,
                emu_self.block.y, emu_self.block.z, (unsigned long long)emu_n_launch,
                (unsigned long long)emu_seed);
    abort();
}

/* What -fsanitize=bounds does where no sanitizer's run time is. */
static void trapped(int)
{
    emu_fail("an index past an array, or another trap of the compiler; last synchronised at %s:%d",
             running ? running->site.file : "?", running ? running->site.line : 0);
}

static unsigned pick(unsigned n)
{
    rng ^= rng << 13; /* xorshift64 */
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (unsigned)((rng >> 32) * n >> 32);
}

/* ---- changing stacks ---- */
static void to_scheduler(bool last)
{
    fiber *f = running;
    emu_n_switch++;
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(tsan_scheduler, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &f->asan, asan_bottom, asan_size);
#endif
    (void)last;
    emu_swap(&f->context, &scheduler);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(f->asan, nullptr, nullptr);
#endif
}

static void run(fiber *f)
{
    running = f;
    emu_self = f->self;
    watch_run(f->index);
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef WITH_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
    emu_swap(&scheduler, &f->context);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    running = nullptr;
}

static void thread_main()
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &asan_bottom, &asan_size);
#endif
    HAPPENS_AFTER(&tag_launch);
    body(body_arg);
    if (!running->copies.open.empty())
        emu_fail("a thread ended with %zu copies of cp.async under way",
                 running->copies.open.size());
    if (emu_awaits && !running->awaited)
        emu_fail("a thread ended without await_inputs");
    emu_hopper_end(running->index);
    HAPPENS_BEFORE(&tag_end);
    running->state = DONE;
    n_done++;
    to_scheduler(true);
    abort(); /* nobody runs it again */
}

static void fiber_start(fiber *f, dim3 thread, dim3 block, dim3 block_dim, dim3 grid)
{
    f->state = READY;
    f->site = {"the start", 0};
    f->index = (thread.z * block_dim.y + thread.y) * block_dim.x + thread.x;
    f->turn = 0;
    f->copies.group = 0;
    f->awaited = false;
    f->self = {thread, block, block_dim, grid};
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(f->stack, STACK_BYTES); /* what the last kernel left on it */
#endif
    stack_start(&f->context, f->stack, STACK_BYTES, thread_main);
}

static fiber *fiber_new()
{
    fiber *f = new fiber();
    f->stack = (char *)aligned_alloc(64, STACK_BYTES);
#ifdef WITH_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

/* ---- waiting ---- */
static unsigned index_of(const fiber *f)
{
    return f->index;
}

emu_site emu_last_site(unsigned thread)
{
    return fibers[thread]->site;
}

void emu_syncthreads(emu_site site)
{
    if (n_waiting && (strcmp(block_site.file, site.file) != 0 || block_site.line != site.line))
        emu_fail("%s:%d: threads of one block are at different barriers, others at %s:%d",
                 site.file, site.line, block_site.file, block_site.line);
    block_site = site;
    HAPPENS_BEFORE(&tag_block);
    running->site = site;
    if (++n_waiting == n_thread) {
        n_waiting = 0;
        watch_join(0, n_thread);
        for (unsigned i = 0; i < n_thread; i++)
            fibers[i]->state = READY;
    } else {
        running->state = BLOCK;
    }
    to_scheduler(false); /* also who came last, so that anybody can be the first behind it */
    HAPPENS_AFTER(&tag_block);
}

static void warp_wait(const char *what, unsigned mask, emu_site site, bool orders)
{
    warp *w = &warps[index_of(running) / 32];
    if (mask != ~0u)
        emu_fail("%s:%d: %s with mask %08x; the kernels use whole warps", site.file, site.line,
                 what, mask);
    if (w->n_arrived &&
        (w->what != what || w->site.line != site.line || strcmp(w->site.file, site.file) != 0))
        emu_fail("%s:%d: %s while other lanes of the warp are in %s at %s:%d", site.file, site.line,
                 what, w->what, w->site.file, w->site.line);
    w->what = what;
    w->site = site;
    running->site = site;
    if (++w->n_arrived == 32) {
        const unsigned at = index_of(running) / 32 * 32;
        w->n_arrived = 0;
        if (orders)
            watch_join(at, 32);
        for (unsigned i = 0; i < 32; i++)
            fibers[at + i]->state = READY;
    } else {
        running->state = WARP;
    }
    to_scheduler(false);
}

void emu_syncwarp(unsigned mask, emu_site site)
{
    char *tag = &tag_warp[index_of(running) / 32];
    HAPPENS_BEFORE(tag);
    warp_wait("__syncwarp", mask, site, true);
    HAPPENS_AFTER(tag);
}

void emu_gather(unsigned mask, const uint32_t *mine, uint32_t *all, unsigned n, emu_site site)
{
    fiber *f = running;
    const unsigned index = index_of(f), turn = f->turn++ % 2;
    warp *w = &warps[index / 32];
    for (unsigned i = 0; i < n; i++)
        w->slots[turn][index % 32][i] = mine[i];
    warp_wait("a warp operation", mask, site, false);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < n; i++)
            all[lane * n + i] = w->slots[turn][lane][i];
}

unsigned emu_index()
{
    return running->index;
}

void emu_pause(emu_site site)
{
    running->site = site;
    running->state = PAUSED;
    to_scheduler(false);
}

void emu_resume(unsigned thread)
{
    fibers[thread]->state = READY;
}

/* ---- a launch ---- */
static void fail_stuck()
{
    fprintf(stderr, "cuda_emu: %u of %u threads wait for others that %s:\n", n_thread - n_done,
            n_thread, n_done ? "returned or wait elsewhere" : "wait elsewhere");
    unsigned printed = 0;
    for (unsigned i = 0; i < n_thread && printed < 4; i++)
        if (fibers[i]->state != DONE &&
            (i == 0 || fibers[i]->site.line != fibers[i - 1]->site.line)) {
            fprintf(stderr, "cuda_emu:   thread %u at %s:%d\n", i, fibers[i]->site.file,
                    fibers[i]->site.line);
            printed++;
        }
    emu_fail("block (%u,%u,%u) is stuck", emu_self.block.x, emu_self.block.y, emu_self.block.z);
}

static void run_block()
{
    std::vector<unsigned> ready;
    n_waiting = n_done = 0;
    memset(warps, 0, sizeof warps);
    while (n_done < n_thread) {
        ready.clear();
        for (unsigned i = 0; i < n_thread; i++)
            if (fibers[i]->state == READY)
                ready.push_back(i);
        if (ready.empty() && emu_hopper_step(1))
            continue;
        if (ready.empty())
            fail_stuck();
        /* all that are ready now, in random order; who becomes ready meanwhile comes next */
        for (unsigned left = (unsigned)ready.size(); left; left--) {
            unsigned i = pick(left);
            run(fibers[ready[i]]);
            ready[i] = ready[left - 1];
            emu_hopper_step(8);
        }
    }
    emu_hopper_done();
}

static dim3 at(unsigned i, dim3 n)
{
    return dim3(i % n.x, i / n.x % n.y, i / n.x / n.y);
}

/* Shared memory of a block, with EMU_GUARD bytes around that nobody may touch. tsan sees no order between
 * blocks, so there each has its own; else they take turns. */
static size_t room_bytes(size_t bytes)
{
    return (bytes + 2 * EMU_GUARD + 1023) / 1024 * 1024;
}

static char *room_new(size_t bytes)
{
#ifndef WITH_TSAN
    static char *only;
    static size_t only_bytes;
    if (only_bytes >= room_bytes(bytes)) {
#ifdef WITH_ASAN
        __asan_unpoison_memory_region(only + EMU_GUARD, bytes);
        __asan_poison_memory_region(only + EMU_GUARD + bytes, only_bytes - EMU_GUARD - bytes);
#endif
        return only + EMU_GUARD;
    }
#ifdef WITH_ASAN
    if (only)
        __asan_unpoison_memory_region(only, only_bytes);
#endif
    free(only);
    only_bytes = room_bytes(bytes < 128 << 10 ? 128 << 10 : bytes); /* once for nearly all */
    char *m = only = (char *)aligned_alloc(1024, only_bytes);
#else
    char *m = (char *)aligned_alloc(1024, room_bytes(bytes));
#endif
#ifdef WITH_ASAN
    __asan_poison_memory_region(m, EMU_GUARD);
    __asan_poison_memory_region(m + EMU_GUARD + bytes, only_bytes - EMU_GUARD - bytes);
#endif
    return m + EMU_GUARD;
}

static void room_free(char *m, size_t bytes)
{
    (void)bytes;
#ifdef WITH_TSAN
    free(m - EMU_GUARD);
#else
    (void)m; /* for the next launch */
#endif
}

emu_give *emu_gives;

void emu_launch_on(void *stream, const emu_work &work, void *arg, size_t n)
{
    if (emu_gives)
        emu_gives(stream, &work, arg, n);
    else
        emu_launch(work.grid, work.block, work.shared_bytes, work.body, arg);
}

void emu_launch(dim3 grid, dim3 block, size_t bytes, emu_body *fn, void *arg)
{
    const unsigned n_block = grid.x * grid.y * grid.z;
    n_thread = block.x * block.y * block.z;
    emu_n_launch++;
    if (n_thread == 0 || n_thread > THREADS_MAX || n_thread % 32 || n_block == 0 ||
        grid.y > 65535 || grid.z > 65535)
        emu_fail("launch of %u x %u x %u blocks of %u threads", grid.x, grid.y, grid.z, n_thread);
    if (bytes > emu_shared_max)
        emu_fail("launch with %zu bytes of shared memory, a block may have %zu", bytes,
                 emu_shared_max);
    signal(SIGILL, trapped);
    body = fn;
    body_arg = arg;
    rng = (emu_seed + emu_n_launch) * 0x9e3779b97f4a7c15u | 1;
#ifdef WITH_TSAN
    tsan_scheduler = __tsan_get_current_fiber();
#endif
    for (unsigned i = 0; i < n_thread; i++)
        if (!fibers[i])
            fibers[i] = fiber_new();
    std::vector<unsigned> order(n_block);
    std::vector<char *> memory(n_block);
    for (unsigned i = 0; i < n_block; i++) {
        order[i] = i;
        memory[i] = room_new(bytes);
    }
    HAPPENS_BEFORE(&tag_launch);
    for (unsigned left = n_block; left; left--) {
        unsigned i = pick(left), number = order[i];
        order[i] = order[left - 1];
        shared = memory[number];
        shared_bytes = bytes;
        for (size_t j = 0; j < bytes; j++)
            ((char *)shared)[j] = (char)FILL;
        for (unsigned t = 0; t < n_thread; t++)
            fiber_start(fibers[t], at(t, block), at(number, grid), block, grid);
        watch_block((char *)shared, bytes, n_thread);
        emu_hopper_block((char *)shared);
        run_block();
        watch_stop();
    }
    HAPPENS_AFTER(&tag_end);
    for (char *m : memory)
        room_free(m, bytes);
}

emu_copies *emu_my_copies()
{
    return &running->copies;
}

void emu_await()
{
    running->awaited = true;
}

void *emu_shared(size_t bytes)
{
    if (bytes > shared_bytes)
        emu_fail("the kernel has %zu bytes of shared memory and uses %zu", shared_bytes, bytes);
    return shared;
}

uint64_t emu_atomic(enum emu_atomic_op op, void *p, uint64_t v, size_t bytes, bool is_signed)
{
    uint64_t old = 0, next = v;
    memcpy(&old, p, bytes); /* one OS thread: nobody comes between */
    const unsigned shift = 64 - 8 * (unsigned)bytes;
    const bool less =
        is_signed ? (int64_t)(old << shift) < (int64_t)(v << shift) : old << shift < v << shift;
    if (op == EMU_ADD)
        next = old + v;
    else if (op == EMU_OR)
        next = old | v;
    else if (op == EMU_MAX)
        next = less ? v : old;
    else if (op == EMU_MIN)
        next = less ? old : v;
    memcpy(p, &next, bytes);
    return old;
}
