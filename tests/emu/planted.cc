/* SPDX-License-Identifier: Apache-2.0 */
/* planted - bugs that the emulation must find, each beside the same kernel without it.
 *
 *   planted [CASE…]     every case in a process of its own, with several orders of threads
 *
 * A case is a kernel with its bug as a template argument. Without it the kernel must end and give the
 * right numbers; with it the emulation must stop it and say what the table says, whatever the order.
 * In the asan and tsan builds the sanitizer finds what the watch finds elsewhere (cuda_emu_watch.h), in
 * its own words; cases of which that build knows nothing are left out. */
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include "planted.h"

#if defined(__SANITIZE_ADDRESS__) || defined(EMU_ASAN)
#define BUILD_ASAN 1
#elif defined(EMU_TSAN)
#define BUILD_TSAN 1
#else
#define BUILD_WATCH 1
#endif
#define THREADS PLANTED_OUT
#define SEEDS   4u

struct words {
    unsigned x[THREADS], more[THREADS];
};
unsigned planted_out[PLANTED_OUT];
static unsigned (&out)[THREADS] = planted_out;
static const struct kern_exec alone = {};

/* ---- shared memory and barriers ---- */
/* Thread t reads what thread t + 40 wrote. */
template <bool BUG> static __global__ void no_barrier()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    s.x[t] = 3 * t;
    if (!BUG)
        __syncthreads();
    out[t] = s.x[(t + 40) % THREADS];
}

/* A barrier before the reads and none before the next round's writes. */
template <bool BUG> static __global__ void barrier_at_one_end()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    unsigned sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        s.x[t] = t + i;
        __syncthreads();
        sum += s.x[(t + 40) % THREADS] - (t + 40) % THREADS;
        if (!BUG)
            __syncthreads();
    }
    out[t] = 3 * ((t + 40) % THREADS) + sum - 3; /* sum is 0 + 1 + 2 */
}

/* A warp's barrier where another warp reads. */
template <bool BUG> static __global__ void warps_race()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x, from = BUG ? (t + 40) % THREADS : t / 32 * 32 + (t + 8) % 32;
    s.x[t] = 3 * t;
    __syncwarp();
    const unsigned v = s.x[from];
    out[t] = BUG ? v : 3 * ((t + 40) % THREADS) + v - 3 * from;
}

/* Two warps write one word, the same value even. */
template <bool BUG> static __global__ void two_writers()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    if (t == 0 || (BUG && t == 32))
        s.x[0] = 7;
    __syncthreads();
    out[t] = 3 * ((t + 40) % THREADS) + s.x[0] - 7;
}

/* A shuffle carries a value and orders nothing. */
template <bool BUG> static __global__ void shuffle_for_barrier()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    s.x[t] = 3 * t;
    const unsigned next = __shfl_sync(ALL_LANES, t, (t + 8) % 32);
    if (!BUG)
        __syncwarp();
    out[t] = 3 * ((t + 40) % THREADS) + s.x[next] - 3 * next;
}

/* A thread that has nothing to do does not wait for the kernel ahead of it. */
template <bool BUG> static __global__ void early_end()
{
    const unsigned t = threadIdx.x;
    emu_awaits = true; /* of the kernels here this one only */
    if (!BUG || t != 50)
        await_inputs();
    out[t] = 3 * ((t + 40) % THREADS);
}

/* A row more than there is: 4 bytes behind the block's memory. */
template <bool BUG> static __global__ void past_the_end()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    unsigned *all = s.x;
    all[t + (BUG ? THREADS + 1 : THREADS)] = 3 * t;
    __syncthreads();
    out[t] = s.more[(t + 40) % THREADS];
}

/* The same within it: the last thread's word of x is the first of more. */
template <bool BUG> static __global__ void past_an_array()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    s.x[t + (BUG ? emu_self.grid_dim.x : 0)] = 3 * t; /* no constant to the compiler */
    __syncthreads();
    out[t] = s.x[(t + 40) % THREADS];
}

template <bool BUG> static __global__ void never_written()
{
    SHARED_MEMORY(s, struct words);
    const unsigned t = threadIdx.x;
    if (!BUG || t != 50)
        s.x[t] = 3 * t;
    __syncthreads();
    out[t] = s.x[(t + 40) % THREADS];
}

template <bool BUG> static __global__ void barrier_not_for_all()
{
    const unsigned t = threadIdx.x;
    if (!BUG || t < 64)
        __syncthreads();
    out[t] = 3 * ((t + 40) % THREADS);
}

template <bool BUG> static __global__ void two_barriers()
{
    const unsigned t = threadIdx.x;
    if (BUG && t < 32)
        __syncthreads();
    else
        __syncthreads();
    out[t] = 3 * ((t + 40) % THREADS);
}

/* ---- warps ---- */
template <bool BUG> static __global__ void half_a_shuffle()
{
    const unsigned t = threadIdx.x;
    unsigned v = t;
    if (!BUG || t % 32 < 16)
        v = __shfl_xor_sync(ALL_LANES, v, 1);
    out[t] = 3 * ((t + 40) % THREADS) + v - (t ^ 1);
}

template <bool BUG> static __global__ void two_shuffles()
{
    const unsigned t = threadIdx.x;
    unsigned v;
    if (BUG && t % 2)
        v = __shfl_xor_sync(ALL_LANES, t, 1);
    else
        v = __shfl_xor_sync(ALL_LANES, t, 1);
    out[t] = 3 * ((t + 40) % THREADS) + v - (t ^ 1);
}

template <bool BUG> static __global__ void part_of_a_mask()
{
    const unsigned t = threadIdx.x;
    const unsigned v = __shfl_xor_sync(BUG ? 0xffffu : ALL_LANES, t, 1);
    out[t] = 3 * ((t + 40) % THREADS) + v - (t ^ 1);
}

/* ---- asynchronous copies ---- */
alignas(16) static unsigned source[THREADS * 4];
struct copied {
    uint4 x[THREADS];
};

template <bool BUG> static __global__ void copy_not_waited_for()
{
    SHARED_MEMORY(s, struct copied);
    const unsigned t = threadIdx.x;
    cp_async16(&s.x[t], source + 4 * t, 16);
    cp_async_commit();
    if (!BUG)
        cp_async_wait(0);
    __syncthreads();
    out[t] = s.x[(t + 40) % THREADS].x;
    cp_async_wait(0);
}

/* Waiting is for a thread's own copies: the others' need a barrier. */
template <bool BUG> static __global__ void copy_of_another()
{
    SHARED_MEMORY(s, struct copied);
    const unsigned t = threadIdx.x;
    cp_async16(&s.x[t], source + 4 * t, 16);
    cp_async_commit();
    cp_async_wait(0);
    if (!BUG)
        __syncthreads();
    out[t] = s.x[(t + 40) % THREADS].x;
}

template <bool BUG> static __global__ void copy_left_behind()
{
    SHARED_MEMORY(s, struct copied);
    const unsigned t = threadIdx.x;
    cp_async16(&s.x[t], source + 4 * t, 16);
    if (!BUG) {
        cp_async_commit();
        cp_async_wait(0);
    }
    out[t] = 3 * ((t + 40) % THREADS);
}

/* ---- the table ---- */
static const struct planted cases[] = {
#define CASE(name, shared, by, says)                                  \
    {                                                                 \
#name, name < false>, name < true>, THREADS, shared, by, says \
    }
    CASE(no_barrier, sizeof(words), BY_TSAN_TOO, "race: "),
    CASE(barrier_at_one_end, sizeof(words), BY_TSAN_TOO, "race: "),
    CASE(warps_race, sizeof(words), BY_TSAN_TOO, "race: "),
    CASE(two_writers, sizeof(words), BY_TSAN_TOO, "race: "),
    CASE(shuffle_for_barrier, sizeof(words), BY_TSAN_TOO, "race: "),
    CASE(past_the_end, sizeof(words), BY_ASAN_TOO, "out of bounds: "),
    CASE(past_an_array, sizeof(words), BY_ASAN_TOO, "an index past an array"),
    CASE(never_written, sizeof(words), BY_RESULT, "wrong result"),
    CASE(barrier_not_for_all, 0, BY_ALL, "is stuck"),
    CASE(two_barriers, 0, BY_ALL, "are at different barriers"),
    CASE(half_a_shuffle, 0, BY_ALL, "is stuck"),
    CASE(two_shuffles, 0, BY_ALL, "while other lanes of the warp are in"),
    CASE(part_of_a_mask, 0, BY_ALL, "the kernels use whole warps"),
    CASE(copy_not_waited_for, sizeof(copied), BY_RESULT_TOO, "race: "),
    CASE(copy_of_another, sizeof(copied), BY_WATCH, "race: "),
    CASE(early_end, 0, BY_ALL, "without await_inputs"),
    CASE(copy_left_behind, sizeof(copied), BY_ALL, "copies of cp.async under way"),
#undef CASE
    {},
};

static bool known_here(const struct planted *c)
{
#if defined(BUILD_ASAN)
    return c->by != BY_WATCH && c->by != BY_TSAN_TOO;
#elif defined(BUILD_TSAN)
    return c->by == BY_TSAN_TOO; /* the others abort, for which its fibers take minutes */
#else
    (void)c;
    return true;
#endif
}

static const char *words_of(const struct planted *c)
{
#if !defined(BUILD_WATCH)
    if (c->by == BY_RESULT_TOO)
        return "wrong result";
#endif
#if defined(BUILD_ASAN)
    if (c->by == BY_ASAN_TOO)
        return "";
#elif defined(BUILD_TSAN)
    if (c->by == BY_TSAN_TOO)
        return ""; /* a data race, or the wrong result before one is seen */
#endif
    return c->says;
}

/* In the child: 0 when the kernel ended and its numbers are right. */
static int run(const struct planted *c, bool bug, unsigned seed)
{
    emu_seed = seed;
    for (unsigned i = 0; i < THREADS * 4; i++)
        source[i] = 3 * (i / 4);
    launch(bug ? c->wrong : c->right, dim3(1), c->n_thread, c->shared, &alone);
    for (unsigned t = 0; t < THREADS; t++)
        if (out[t] != 3 * ((t + 40) % THREADS)) {
            fprintf(stderr, "wrong result\n");
            return 1;
        }
    return 0;
}

/* Exit status, and what it wrote to stderr. */
static int in_child(const struct planted *c, bool bug, unsigned seed, char *said, size_t n_said)
{
    int ends[2], status = 0;
    size_t n = 0;
    ssize_t got;
    fflush(NULL);
    if (pipe(ends))
        return -1;
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        _exit(run(c, bug, seed));
    }
    close(ends[1]);
    while ((got = read(ends[0], said + n, n_said - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static bool holds(const struct planted *c)
{
    static char said[1 << 16];
    for (unsigned seed = 1; seed <= SEEDS; seed++)
        for (int bug = 0; bug < 2; bug++) {
            const int status = in_child(c, bug, seed, said, sizeof said);
            if (bug ? status != 0 && strstr(said, words_of(c)) : status == 0)
                continue;
            printf("FAIL %s %s, seed %u: status %d, it said\n%s\n", c->name,
                   bug ? "with its bug" : "without a bug", seed, status, said);
            return false;
        }
    return true;
}

int main(int argc, char **argv)
{
    unsigned n = 0, n_failed = 0;
    emu_awaits = false; /* these kernels read nothing of others */
    for (const struct planted *table : {cases, planted_hopper})
        for (const struct planted *c = table; c->name; c++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc; i++)
                wanted |= strcmp(argv[i], c->name) == 0;
            if (!wanted || !known_here(c))
                continue;
            n++;
            if (holds(c))
                printf("ok   %s\n", c->name);
            else
                n_failed++;
        }
    printf("%u planted bugs, %u failures\n", n, n_failed);
    return n == 0 ? 2 : n_failed != 0;
}
