/* SPDX-License-Identifier: Apache-2.0 */
/* cut - division of spans at matches, shared by the pre-tokenizers. Private to common/tokenizer.
 * Threads: as tok_work. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_CUT_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_CUT_H
#include "common/tokenizer/tokenizer_internal.h"

enum cut_behavior { CUT_ISOLATED, CUT_REMOVED, CUT_CONTIGUOUS, CUT_PREVIOUS, CUT_NEXT };

struct cut { /* the first three are set by the caller */
    struct tok_work *w;
    enum cut_behavior behavior;
    bool invert;
    size_t at;         /* the span is dealt with up to here */
    size_t start, end; /* a piece that may still grow, if held */
    bool held, was_match;
};
/* For each span of w: cut_begin, cut_match in order, cut_end. After the last span tok_spans_done.
 */
void cut_begin(struct cut *c, const struct tok_span *s);
FALLIBLE cut_match(struct cut *c, size_t start, size_t end, struct q_err *e);
FALLIBLE cut_end(struct cut *c, const struct tok_span *s, struct q_err *e);
/* All of that for every match of a pattern. */
FALLIBLE cut_regex(struct cut *c, const struct tok_regex *x, struct q_err *e);
enum cut_behavior cut_behavior_of(const struct tok_part *p); /* of Split or Punctuation */
FALLIBLE cut_behavior(const json_t *spec, const char *at, enum cut_behavior *out, struct q_err *e);

struct tok_pattern { /* one of the two is set; owned by who asked */
    struct tok_regex *regex;
    char *string; /* [n] */
    size_t n;
};
/* "pattern": {"String": …} or {"Regex": …}. */
FALLIBLE tok_pattern(const json_t *spec, const char *at, struct tok_pattern *out, struct q_err *e);
/* cut_begin … tok_spans_done for every match of either. */
FALLIBLE cut_pattern(struct cut *c, const struct tok_pattern *p, struct q_err *e);

#endif
