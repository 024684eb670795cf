/* SPDX-License-Identifier: Apache-2.0 */
/* dataset - the workload selected on the command line (--dataset-name, --dataset-path): random
 * lengths, a trace, or prompts of a file. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_DATASET_H
#define QUIRE_ENGINE_BENCH_DATASET_H
#include "engine/bench/workload.h"

/* Errors: Q_INVALID (contradictory options), those of trace_read, trace_parse and
 * workload_custom. Ownership: *w by workload_release, after an error too. */
FALLIBLE dataset_open(struct workload *w, const struct options *o, struct q_err *e);

#endif
