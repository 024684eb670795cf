/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_port - gauges of a run as Prometheus text over HTTP, on 127.0.0.1: GET /metrics.
 * Threads: one owner sets values; a thread of its own answers, one connection after another. */
#ifndef QUIRE_ENGINE_DISTILL_METRICS_PORT_H
#define QUIRE_ENGINE_DISTILL_METRICS_PORT_H
#include <stdint.h>
#include "common/err.h"

enum run_metric {
#define RUN_METRIC(id, name, kind, help) RUN_##id,
#include "engine/distill/run_metrics.def"
    RUN_METRICS
};

struct metrics_port;
/* n_rank: of the gauge of each rank's memory. Errors: Q_IO (the port is taken), Q_NO_MEMORY. */
FALLIBLE metrics_port_open(struct metrics_port **out, uint32_t port, uint32_t n_rank,
                           struct q_err *e);
void metrics_port_close(struct metrics_port *p);
void metrics_port_set(struct metrics_port *p, enum run_metric m, double value);
void metrics_port_add(struct metrics_port *p, enum run_metric m, double value);
void metrics_port_rss(struct metrics_port *p, uint32_t rank, double mb);

#endif
