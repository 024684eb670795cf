/* SPDX-License-Identifier: Apache-2.0 */
/* sample - one line of a data set to token ids and labels.
 *
 * Kinds of lines (exactly one of the three keys; other keys are ignored):
 *     {"input_ids": […], "labels": […], "attention_mask": […]}   the last two may be missing; what
 *                         attention_mask ends with a row of zeros is padding and left out
 *     {"text": "…"}       ids as the tokenizer gives them with its special tokens, and the end
 *                         token where it gives none; all of them are labels
 *     {"messages": […], "tools": […], "chat_template_kwargs": {…}}   chat_sample.h
 * A key twice in an object is an error: which of the values was meant is not known. A sample longer
 * than seq_len is cut. Threads: a source is only read, by any number of them. */
#ifndef QUIRE_ENGINE_DISTILL_SAMPLE_H
#define QUIRE_ENGINE_DISTILL_SAMPLE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/distill/sample_source.h"

#define SAMPLE_NOT_COUNTED (-1)

struct sample {
    uint32_t *ids;      /* [n] */
    int32_t *labels;    /* [n] of the positions themselves, not shifted; SAMPLE_NOT_COUNTED */
    uint32_t n;         /* tokens; 0 only after an error */
    uint32_t n_counted; /* labels that a row predicts: those behind the first */
    bool truncated;
};
void sample_release(struct sample *s); /* all zero is the empty value */

/* line: [n] bytes of JSON. *needs_tokenizer: the line has text or messages and there is no
 * tokenizer; nothing else was done then. Errors: Q_INVALID, Q_TOO_LARGE, Q_UNSUPPORTED (the line is
 * no sample, and why), Q_NO_MEMORY. */
FALLIBLE sample_read(struct sample *out, const struct sample_source *source, const char *line,
                     size_t n, bool *needs_tokenizer, struct q_err *e);
/* Rows of a sequence that count: labels of the positions 1 … n - 1. */
uint32_t sample_count_labels(const int32_t *labels, uint32_t n);

#endif
