/* SPDX-License-Identifier: Apache-2.0 */
/* params - a request body, checked field by field against the table (fields.def).
 *
 * The table defines the values of a single field; rules across fields (top_logprobs requires
 * logprobs, …) are checked here, so that a handler gets consistent values only. Messages name the
 * field, the value and the accepted values. Threads: values; strings and JSON are borrowed from the
 * body. */
#ifndef QUIRE_FRONTEND_API_PARAMS_H
#define QUIRE_FRONTEND_API_PARAMS_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/config.h"
#include "common/tokenizer/tokenizer.h"
#include "frontend/api/unknown.h"
#include "proto/sampling.h"

enum params_where {
    WHERE_CHAT = 1,
    WHERE_TEXT = 2,
    WHERE_BOTH = 3,
    WHERE_TOKENS = 4,
    WHERE_DETOK = 8,
    WHERE_EVERY = 15
};

enum field {
#define NUM(name, where, min, max) FIELD_##name,
#define INT(name, where, min, max) FIELD_##name,
#define BOOL(name, where)          FIELD_##name,
#define STR(name, where)           FIELD_##name,
#define LIST(name, where)          FIELD_##name,
#define OBJECT(name, where)        FIELD_##name,
#define ANY(name, where)           FIELD_##name,
#define NOT_YET(name, where, harmless)
#define NEVER(name, where, reason)
#define NO_EFFECT(name, where)
#define TOLD(name, where, values)
#include "frontend/api/fields.def"
    FIELD_COUNT
};

struct params {
    bool has[FIELD_COUNT];
#define NUM(name, where, min, max) double name;
#define INT(name, where, min, max) int64_t name;
#define BOOL(name, where)          bool name;
#define STR(name, where)           const char *name;
#define LIST(name, where)          const json_t *name;
#define OBJECT(name, where)        const json_t *name;
#define ANY(name, where)           const json_t *name;
#define NOT_YET(name, where, harmless)
#define NEVER(name, where, reason)
#define NO_EFFECT(name, where)
#define TOLD(name, where, values)
#include "frontend/api/fields.def"
    bool include_usage, continuous_usage; /* stream_options */
    uint32_t n_logprob;     /* alternatives; SAMPLE_NO_LOGPROBS = none, PARAMS_ALL = -1, all */
    struct unknown unknown; /* unknown fields and fields without effect */
    char param[64];         /* after an error: the invalid field, "" = none */
};

/* Read the body's fields. Errors: Q_INVALID, Q_UNSUPPORTED; p->param names the field. */
FALLIBLE params_read(struct params *p, const json_t *body, enum params_where where,
                     struct q_err *e);

/* For the files of params: set p->param to the field that an error's message begins with. */
void params_note_field(struct params *p, const struct q_err *e);
uint32_t params_count_logprobs(int64_t n); /* as proto/sampling.h has it */

#define PARAMS_ALL                 (UINT32_MAX - 1)
#define PARAMS_STREAM_LOGPROBS_MAX 4096 /* more per token would overflow a stream's buffer */

struct params_context {                         /* limits and defaults for the checks */
    const struct generation_defaults *defaults; /* NULL: the API's own */
    uint32_t vocab_size;  /* 0 = unknown, ids are then checked by the engine */
    int64_t max_logprobs; /* -1 = the whole vocabulary */
};
struct params_ids { /* arrays that sample_params borrows; all zero is the empty value */
    uint32_t stop_ids[SAMPLE_STOP_IDS_MAX];
    uint32_t *bias_ids; /* [entries of logit_bias], as bias */
    float *bias;
    struct token_list allowed, bad_words;
    struct buf grammar; /* its source */
};
void params_ids_release(struct params_ids *ids); /* call it also after a failed params_sampling */
/* Set the sampling parameters that exclude tokens, except bad_words (logits_processors.c). */
FALLIBLE params_masks(const struct params *p, const struct params_context *c,
                      struct sample_params *s, struct params_ids *ids, struct q_err *e);
/* bad_words as token sequences, as in vLLM: each word as given, and after a space if that has the
 * same number of tokens and another first token. t NULL: no tokenizer, an error if there are words.
 */
FALLIBLE params_bad_words(struct params *p, const struct tokenizer *t, struct sample_params *s,
                          struct params_ids *ids, struct q_err *e);
#endif
