/* SPDX-License-Identifier: Apache-2.0 */
/* metrics - counters, gauges and histograms of a process, from one table (metrics.def), as
 * Prometheus text.
 *
 * All values of one process are in one flat array, the process's slot. Frontends that share a port
 * share one mapping with one slot each (metrics_share), so that each of them can report the sum of
 * all, and counters never decrease when another process answers or one is restarted. TOTAL rows are
 * counters of another process (the engine): they are set, not incremented. Threads: one thread per
 * slot writes; rendering may read other slots while they are written. */
#ifndef QUIRE_COMMON_METRICS_H
#define QUIRE_COMMON_METRICS_H
#include <stdint.h>
#include "common/buf.h"

enum metric {
#define COUNTER(id, name, labels, help)    METRIC_##id,
#define TOTAL(id, name, labels, help)      METRIC_##id,
#define GAUGE(id, name, labels, sum, help) METRIC_##id,
#define HISTOGRAM(id, name, buckets, help) METRIC_##id,
#include "common/metrics.def"
    METRIC_COUNT
};

#define METRICS_SLOTS_MAX  64
#define METRIC_BUCKETS_MAX 32 /* bounds of one histogram, without +Inf */

/* Give this process slot `slot` of the `n_slot` in the file `fd` (a memfd made by the supervisor
 * with the size metrics_bytes; the caller may close it). Without this call the process has a
 * private slot. Errors: Q_INVALID (slot), Q_IO (mmap). */
FALLIBLE metrics_share(int fd, uint32_t slot, uint32_t n_slot, struct q_err *e);
uint64_t metrics_bytes(uint32_t n_slot);

void metric_add(enum metric m, double value);     /* COUNTER, GAUGE */
void metric_set(enum metric m, double value);     /* GAUGE, TOTAL */
void metric_observe(enum metric m, double value); /* HISTOGRAM */
/* HISTOGRAM of another process: counts [n] per bucket, the last one +Inf. A different number of
 * buckets is ignored. */
void metric_set_buckets(enum metric m, const uint64_t *counts, uint32_t n, double sum);
double metric_value(enum metric m); /* of this process's slot; a histogram's count */

/* Append the Prometheus text format 0.0.4. model is the label model_name. */
void metrics_render(struct buf *out, const char *model);
/* Append a gauge of value 1 with the information in its labels (`a="b",c="d"`). */
void metrics_render_info(struct buf *out, const char *model, const char *name, const char *help,
                         const char *labels);

#endif
