/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda - CUDA's runtime without a card, below kernels/cuda/device.c: kernels are those of the
 * host emulation, device memory is the host's. It has two headers: fake/cuda_runtime_api.h for the
 * code under test, and this one for the test.
 *
 * The runtime is as strict as CUDA's documentation allows a runtime to be, and work is done as late
 * as possible: when the host waits, and only as far as it waits for (fake_cuda.early: at once).
 * Device memory is inaccessible while no work runs, is NaN when it is new, and stays inaccessible
 * after its end. A call that is not legal in the state of its objects ends the program with a
 * sentence on standard error:
 *
 *     a handle or pointer that does not exist, or no longer       any call
 *     a copy from or to memory of the host that is not pinned     copies
 *     a copy or fill beyond the end of an allocation              copies, when given and when run
 *     allocation, waiting or polling in a capture's thread        those calls
 *     a capture within a capture, an event recorded in one        those calls
 *     an event's time, or its result, before it was recorded      events
 *     a call in the child of a process that has used CUDA         fails, as CUDA's own does
 *
 * Threads: one at a time. */
#ifndef QUIRE_TESTS_CUDA_FAKE_CUDA_H
#define QUIRE_TESTS_CUDA_FAKE_CUDA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#else
#include <stdatomic.h>
/* While it is set, giving a copy to a stream blocks. */
extern __attribute__((visibility("default"))) atomic_bool fake_cuda_is_closed;
#endif

#define FAKE_CUDA_QUERIES 4u    /* of an event, until its work runs */
#define FAKE_CUDA_MS      0.25f /* between any two events */

struct fake_cuda {
    int major, minor;          /* compute capability; 8.0 */
    int n_device, driver;      /* 1; its version */
    uint64_t total_bytes;      /* of a card */
    bool early;                /* work is done when it is given */
    bool records;              /* no work is done, launches are logged (launch_log.h); memory of
                                * the card has addresses alone, so it may be as large as a real
                                * card's, and no copy brings results: all of them are 0 */
    uint32_t fail_at;          /* number of the call that fails, counted from 1; 0: none */
    cudaError_t fail_with;     /* its result; of an allocation cudaErrorMemoryAllocation */
    uint32_t fault_at;         /* number of the kernel that ruins the device; 0: none */
    uint32_t crash_at;         /* of the kernel that ends the process by SIGSEGV; 0: none */
    uint32_t hang_at;          /* of the kernel that never ends; 0: none */
    uint32_t n_call;           /* calls that can fail, so far */
    uint32_t n_kernel;         /* kernels done, so far */
    uint64_t n_graph_launch;   /* so far */
    uint32_t n_ahead;          /* most kernels behind an event for which the host has waited */
    const char *failed;        /* name of the call that has failed by fail_at; NULL: none yet */
    float (*elapsed_ms)(void); /* of two events; NULL: FAKE_CUDA_MS */
};
extern __attribute__((visibility("default"))) struct fake_cuda fake_cuda;

/* Objects and allocations that exist. */
__attribute__((visibility("default"))) uint32_t fake_cuda_n_object(void);
/* Everything as at the start of the program; nothing may be left. */
__attribute__((visibility("default"))) void fake_cuda_begin(void);

typedef void fake_cuda_run(void *arg);
/* Give a kernel to a stream: run(copy of the n bytes of arg). */
void fake_cuda_launch(cudaStream_t s, fake_cuda_run *run, const void *arg, size_t n);
/* Ends the program. */
__attribute__((format(printf, 1, 2), noreturn)) void fake_cuda_illegal(const char *fmt, ...);

#ifdef __cplusplus
}
#endif
#endif
