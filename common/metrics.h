/* SPDX-License-Identifier: Apache-2.0 */
/* metrics - counters, gauges and histograms of a process, from one table (metrics.def), as
 * Prometheus text.
 *
 * All values of one process lie in one flat array, the process's slot. Several frontends that share
 * a port share one mapping with a slot each (metrics_share), so that whichever of them answers
 * /metrics tells the sum of all, and a counter never runs backwards because another process
 * answered or one was restarted. TOTAL rows are counters that another process (the engine) keeps:
 * they are set, not added to. Threads: one thread per slot writes; rendering may read other slots
 * while they are written. */
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

/* Give this process slot `slot` of the `n_slot` in the file `fd` (a memfd the supervisor made and
 * sized by metrics_bytes; closed or kept open by the caller). Without a call the process has a slot
 * of its own. Errors: Q_INVALID (slot), Q_IO (mmap). */
FALLIBLE metrics_share(int fd, uint32_t slot, uint32_t n_slot, struct q_err *e);
uint64_t metrics_bytes(uint32_t n_slot);

void metric_add(enum metric m, double value);     /* COUNTER, GAUGE */
void metric_set(enum metric m, double value);     /* GAUGE, TOTAL */
void metric_observe(enum metric m, double value); /* HISTOGRAM */
/* HISTOGRAM kept elsewhere: counts [n] per bucket, the last one +Inf. Others than the table's
 * number are ignored. */
void metric_set_buckets(enum metric m, const uint64_t *counts, uint32_t n, double sum);
double metric_value(enum metric m); /* of this process's slot; a histogram's count */

/* Append the Prometheus text format 0.0.4. model is the label model_name. */
void metrics_render(struct buf *out, const char *model);
/* Append a gauge of value 1 whose labels (`a="b",c="d"`) are what it tells. */
void metrics_render_info(struct buf *out, const char *model, const char *name, const char *help,
                         const char *labels);

#endif
