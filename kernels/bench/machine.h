/* SPDX-License-Identifier: Apache-2.0 */
/* machine - description of the machine that a figure was measured on, as text and as JSON. Threads:
 * any. */
#ifndef QUIRE_KERNELS_BENCH_MACHINE_H
#define QUIRE_KERNELS_BENCH_MACHINE_H
#include <stdio.h>
#include "common/buf.h"
#include "kernels/bench/roofline.h"

struct machine {
    char cpu[96];      /* "AMD EPYC 9R14" */
    char isa[24];      /* the newest instructions the kernels use: "avx512_bf16" */
    char system[96];   /* "Linux 6.1.0" */
    uint32_t n_core;   /* physical, that this process may use */
    uint32_t n_thread; /* of the benchmark */
    double memory_gb;  /* of the machine */
    double load;       /* runnable processes, average over the last minute */
    double clock_unix; /* time of the measurement, seconds */
};
/* Call it before a team is made, which pins the calling thread: the CPUs of that thread are
 * counted. n_thread is 0; the caller sets it. */
void machine_describe(struct machine *m);
/* "AMD EPYC 9R14, 2 cores, 2 threads, avx512_bf16, 24.6 GB, Linux 6.1.0"; a second line when other
 * processes keep the machine busy. */
void machine_print(const struct machine *m, FILE *out);
/* {"cpu": …, "read_gb_s": …, …}; without the ceilings when r is NULL. */
void machine_json(struct buf *b, const struct machine *m, const struct roofline *r);
/* True if other processes use more than a fifth of a core, so that measured figures are
 * unreliable. */
bool machine_is_busy(const struct machine *m);

#endif
