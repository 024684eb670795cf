/* SPDX-License-Identifier: Apache-2.0 */
/* check - the CUDA kernels against the C reference on random shapes.
 *
 * One program, built twice: on tests/emu, where the kernels run on the host, and on a card, where
 * kc_buf gives memory that host and device share. Operations whose arguments mean the same on both
 * use their check of tests/kcheck; those with a layout of their own (matrices, the cache) have one
 * here. Threads: one. */
#ifndef QUIRE_TESTS_CUDA_CHECK_H
#define QUIRE_TESTS_CUDA_CHECK_H
#include "kcheck.h"

struct cuda_check {
    const char *name;
    kc_call *ref, *cuda;
    uint32_t tolerance; /* multiples of 2^-24, as in kernels.def */
    void (*check)(struct kcheck *k);
    uint32_t n_case; /* of a short run */
};

/* A launcher as a kc_call: once for all the threads that kc_run makes, with workspace, and waited
 * for. */
void cuda_run(void (*launcher)(const void *args, const struct kern_exec *x), const void *args);
/* On the emulation, with the shared memory of sm_90. */
void cuda_run_sm90(void (*launcher)(const void *args, const struct kern_exec *x), const void *args);

/* On the emulation: so many bytes of workspace for the launches to come, and what lies before it is
 * guarded; 0, and on a card: enough for all. */
void cuda_workspace(size_t bytes);

/* On the emulation: the card multiplies e4m3 by mma.sync, as sm_89, or does not. */
void cuda_with_e4m3(bool there);

/* On a card the launchers are those of libquire-cuda.so's table. */
#ifdef QUIRE_CUDA_CARD
const struct kern_table *cuda_kern(void);
#define CUDA_LAUNCHER(op)
#define CUDA_LAUNCH(op) cuda_kern()->op
#else
#define CUDA_LAUNCHER(op) void op##_cuda(const struct op##_args *a, const struct kern_exec *x);
#define CUDA_LAUNCH(op)   op##_cuda
#endif

/* Defines call_##op, to be given to cuda_check. */
#define CUDA_CALL(op)                                                    \
    CUDA_LAUNCHER(op)                                                    \
    static void launch_##op(const void *args, const struct kern_exec *x) \
    {                                                                    \
        CUDA_LAUNCH(op)(args, x);                                        \
    }                                                                    \
    static void call_##op(const void *args, const struct kern_exec *x)   \
    {                                                                    \
        if (x->ith == 0)                                                 \
            cuda_run(launch_##op, args);                                 \
    }
#define REF_CALL(op)                                                  \
    static void ref_##op(const void *args, const struct kern_exec *x) \
    {                                                                 \
        op##_ref(args, x);                                            \
    }

extern const struct cuda_check cuda_checks_rows[], cuda_checks_kv[], cuda_checks_attention[],
    cuda_checks_linear[], cuda_checks_lora[], cuda_checks_mla[], cuda_checks_moe[],
    cuda_checks_sample[], cuda_checks_fp8[], cuda_checks_blocks[], cuda_checks_state[],
    cuda_checks_lt[], cuda_checks_wgmma[];
/* each ends with a NULL name; lt, wgmma: not on a card, where tuner and trial compare */

#endif
