/* SPDX-License-Identifier: Apache-2.0 */
/* report_text - the parts of a report as text and as JSON. Threads: pure. */
#ifndef QUIRE_ENGINE_DISTILL_REPORT_TEXT_H
#define QUIRE_ENGINE_DISTILL_REPORT_TEXT_H
#include "common/buf.h"
#include "engine/distill/report_values.h"

/* For people: no newline at the end of a step and an evaluation. */
void report_text_cut(struct buf *out, const struct report_cut *c);
void report_text_step(struct buf *out, const struct report_step *s, uint64_t n_step);
void report_text_eval(struct buf *out, const struct report_eval *v);

/* Lines with a newline. */
void report_json_cut(struct buf *out, const struct report_cut *c);
/* all: with the members beyond those of --metrics. */
void report_json_step(struct buf *out, const struct report_step *s, bool all);
void report_json_eval(struct buf *out, const struct report_eval *v);
void report_json_data(struct buf *out, const char *what, const struct dataset_counts *c);

#endif
