/* SPDX-License-Identifier: Apache-2.0 */
/* fake_device - a device (kernels/device.h) without a card: its memory is the host's, its kernels
 * are the reference's (fake_reference.c). For tests of code that drives a device; the CUDA kernels
 * and their runtime have tests/cuda/fake_cuda.h.
 *
 * It executes work as late as a device may. Work runs only when a caller waits for it or has polled
 * FAKE_ASKS times, and then no further than required: a stream's work runs up to the event, work of
 * other streams only where a stream waits for it. Device memory is inaccessible while no work runs
 * (mprotect), contains NaN when it is new, and has fake_total_bytes. Graphs are lists of work with
 * their arguments; the plan of attention is compared with its sequences. Threads: one, as a
 * device. */
#ifndef QUIRE_TESTS_UNIT_FAKE_DEVICE_H
#define QUIRE_TESTS_UNIT_FAKE_DEVICE_H
#include <stdatomic.h>
#include "kernels/device.h"

const struct device_table *fake_device_table(void);

struct fake_library { /* its kernels, linked into the same library; members as in struct
                    * device_table */
    const char *name;
    bool row_major;
    void (*kern)(struct kern_table *out);
    size_t (*matrix_bytes)(const struct packed *w);
    size_t (*kv_block_bytes)(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim);
    size_t (*workspace_bytes)(const struct device_limits *l);
    size_t (*plan_bytes)(const struct device_limits *l);
    size_t (*plan)(void *out, const struct device_limits *l, const struct attention_seq *seqs,
                   uint32_t n_seq);
    void (*check_plan)(const struct attention_args *a); /* NULL: not checked */
    void (*open)(const struct device_options *o);       /* these three may be NULL */
    void (*close)(void);
    enum q_code (*tune)(struct device *d, const struct device_tuning *t, struct device_tuned *out,
                        struct q_err *e);
};
extern const struct fake_library fake_library;

extern uint64_t fake_total_bytes; /* of a device that is opened; 1 GiB */
__attribute__((visibility("default"))) extern uint64_t fake_n_launch; /* of graphs, so far */
/* Products by linear_w4a16, so far; of the reference's kernels. */
__attribute__((visibility("default"))) extern uint64_t fake_n_half;
/* Calls of lora_shrink_grouped, so far; likewise. */
__attribute__((visibility("default"))) extern uint64_t fake_n_shrink;
/* Maximum work launched on the device after an event for which the host was waiting. */
struct fake_ahead {
    uint32_t n_forward, n_sample; /* counted by the kernels embed and sample */
    uint32_t n_wait;              /* for another stream */
};
__attribute__((visibility("default"))) extern struct fake_ahead fake_ahead;
/* While it is set, polling has no effect: work runs only when a caller waits. */
__attribute__((visibility("default"))) extern atomic_bool fake_is_lazy;
/* Gives work of a plugin's operation to a stream, as a CUDA launcher does. */
struct quire_op_call;
__attribute__((visibility("default"))) void fake_call(struct device_stream *s,
                                                      void (*run)(const struct quire_op_call *),
                                                      const struct quire_op_call *call);
#define FAKE_ASKS   4u
#define FAKE_ASK_US 50u   /* duration of a poll */
#define FAKE_MS     0.25f /* between any two events */
/* Number of allocations (of device memory, and of host memory for it) until one fails; 0: none
 * fails. */
__attribute__((visibility("default"))) extern uint32_t fake_refused_in;
/* While it is set, launching a copy blocks. */
__attribute__((visibility("default"))) extern atomic_bool fake_is_closed;

#endif
