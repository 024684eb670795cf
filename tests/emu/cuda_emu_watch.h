/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_emu_watch - who touched which byte of a block's shared memory, and in what order.
 *
 * The .cu files are compiled with -fsanitize=thread, which puts a call before each access to
 * memory; the calls come to cuda_emu_watch.cc and not to a sanitizer's run time. Found, in every
 * build but those of real sanitizers (which see the same in their own way):
 *
 *     two threads on one byte, one of them writing, and no barrier between   "race"
 *     an access outside the block's shared memory, up to EMU_GUARD bytes     "out of bounds"
 *     tensor cores or the copy engine on bytes that a thread wrote before
 *     it said fence.proxy.async                                              "fence"
 *
 * Order is kept in vector clocks: clock[t][u] is the last of thread u's steps that thread t knows
 * of. A thread counts a step when it gives its knowledge away. An access is ordered before another
 * if the other's thread knows the step in which it happened. Only barriers, __syncwarp and
 * mbarriers pass knowledge on; a shuffle orders nothing, as on a card. What all threads know,
 * after a barrier of the block, is one number, the floor.
 *
 * A byte remembers its last writer and two readers of different warps: a race that only a third
 * reader would show can be missed in one run, and the next run has another order. Threads: one. */
#ifndef QUIRE_TESTS_EMU_CUDA_EMU_WATCH_H
#define QUIRE_TESTS_EMU_CUDA_EMU_WATCH_H
#include <cstddef>
#include <cstdint>

#define EMU_GUARD (16u << 10) /* bytes around shared memory that belong to nobody */

enum watch_how { WATCH_READ, WATCH_WRITE, WATCH_ASYNC_READ, WATCH_ASYNC_WRITE };
#ifdef EMU_NO_WATCH /* a sanitizer watches */
#define WATCHED(...)               \
    static inline void __VA_ARGS__ \
    {                              \
    }
#else
#define WATCHED(...) void __VA_ARGS__;
#endif
/* clang-format off */
/* The scheduler: a block of so many threads and bytes begins; a thread runs from now on. */
WATCHED(watch_block(char *, size_t, unsigned))
WATCHED(watch_run(unsigned))
WATCHED(watch_stop()) /* the block is done */

/* Of `n` threads from the first given, each knows what any of them knows. */
WATCHED(watch_join(unsigned, unsigned))

/* What is not a thread's plain access: the engine that copies and the tensor cores, on behalf of
 * the running thread. ASYNC: by the asynchronous proxy. */
WATCHED(watch_access(const void *, size_t, enum watch_how))
WATCHED(watch_fence()) /* fence.proxy.async of the running thread */

/* Knowledge by way of an mbarrier, which is a name here. */
WATCHED(watch_release(const void *))
WATCHED(watch_acquire(const void *))
WATCHED(watch_pass(const void *, const void *)) /* from the first name to the second */
/* clang-format on */
#undef WATCHED

#endif
