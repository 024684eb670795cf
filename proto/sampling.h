/* SPDX-License-Identifier: Apache-2.0 */
/* sampling - the sampling parameters of a request, from the frontend to the worker.
 *
 * Names, ranges and meaning are OpenAI's and vLLM's. Their order of application to a row of logits
 * (vLLM's): a forced end of reasoning, else the masks (grammar, allowed ids, bad words, repeated
 * n-grams, minimum tokens), logit_bias, repetition (prompt and output tokens), frequency and
 * presence (output tokens), top_n_sigma, temperature, min_p, top_k, top_p, then one draw by Philox
 * 4x32-10 on (seed, position of the new token). temperature 0 takes the lowest id of the largest
 * logit after the penalties. Logprobs are those of the raw logits unless adjusted_logprobs is set.
 * Threads: values. */
#ifndef QUIRE_PROTO_SAMPLING_H
#define QUIRE_PROTO_SAMPLING_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define SAMPLE_LOGPROBS_FEW 20 /* alternatives per token available in every row of a step */
#define SAMPLE_LOGPROBS_MAX \
    262144 /* alternatives per token; more than 20 only up to the vocabulary */
#define SAMPLE_BIAS_MAX     1024 /* logit_bias entries; OpenAI allows 1024 */
#define SAMPLE_STOP_IDS_MAX 64
#define SAMPLE_ALLOWED_MAX  262144 /* ids */
#define SAMPLE_BAD_MAX      8192   /* entries of bad_words */
#define SAMPLE_NGRAM_MAX    64     /* no_repeat_ngram */
#define SAMPLE_NO_LOGPROBS  UINT32_MAX

struct sample_params {
    float temperature;        /* [0, 2]; 0 = greedy; values below 0.01 count as 0.01 */
    float top_p;              /* (0, 1]; 1 = off */
    float min_p;              /* [0, 1]; 0 = off */
    uint32_t top_k;           /* 0 = off */
    float repetition_penalty; /* (0, 2]; 1 = off */
    float presence_penalty;   /* [-2, 2]; 0 = off */
    float frequency_penalty;  /* [-2, 2]; 0 = off */
    uint64_t seed;            /* always set; the frontend draws one if the client sets none */
    uint32_t max_tokens;      /* maximum new tokens, >= 1 */
    uint32_t min_tokens;      /* eos and stop ids are not allowed before; <= max_tokens */
    bool ignore_eos;
    uint32_t n_logprob; /* alternatives per new token, SAMPLE_NO_LOGPROBS = no logprobs at all */
    uint32_t n_prompt_logprob; /* the same for prompt tokens */
    const uint32_t *stop_ids;  /* [n_stop_id] also end the generation; borrowed */
    uint32_t n_stop_id;
    const uint32_t *bias_ids; /* [n_bias], none twice; borrowed */
    const float *bias;        /* [n_bias] each in [-100, 100], added to the logit */
    uint32_t n_bias;
    const uint32_t *allowed_ids; /* [n_allowed] allowed tokens; borrowed */
    uint32_t n_allowed;          /* 0 = all tokens */
    /* [n_bad] forbidden token sequences: for each its length, then its ids. The last id of a
     * sequence is masked if the output ends with the others. Borrowed. */
    const uint32_t *bad_words;
    uint32_t n_bad;
    /* No n-gram of this size occurs twice in prompt and output together; 0 = off. */
    uint32_t no_repeat_ngram;
    uint32_t no_repeat_window; /* window of the search in tokens; 0 = all */
    float
        top_n_sigma; /* >= 0: drop logits so many standard deviations below the largest; 0 = off */
    /* [n_thinking] The limit on the tokens of reasoning (common/thinking_budget.h); 0 = none. When
     * it is reached the tokens of the end marker are forced, whatever the other masks say.
     * Borrowed. */
    const uint32_t *thinking;
    uint32_t n_thinking;
    bool pools;             /* one vector of the prompt in place of tokens */
    uint32_t n_value;       /* pools: the first values of the vector; 0 = all */
    bool raw_vector;        /* pools: as it is, without the model's activation */
    uint32_t second_text;   /* pools: position of the first token of type 1; 0 = none is */
    bool adjusted_logprobs; /* logprobs after masks, bias and penalties, used by beam search */
    /* Not 0: the output follows a grammar of this kind (engine/grammar/grammar.h). grammar_data is
     * its source in a submit, its program [n_grammar / 4 words] inside the engine. Borrowed. */
    uint32_t grammar;
    const void *grammar_data;
    uint32_t n_grammar; /* bytes */
    /* [n_grammar_after] The grammar applies after the first occurrence of this text in the output:
     * the end of reasoning, if the prompt does not contain it. Borrowed; with a source only. */
    const char *grammar_after;
    uint32_t
        n_grammar_after; /* 0: it applies from the first token, or as the next field specifies */
    /* [n_reasoning_tags] Pairs start NUL end NUL: for an output that begins with a start marker the
     * grammar applies after the matching end marker. grammar_after takes precedence. */
    const char *reasoning_tags;
    uint32_t n_reasoning_tags;
};

/* Defaults of a request (max_tokens 16, as in OpenAI's completions). */
void sample_params_default(struct sample_params *p);
/* Ranges above, ids < vocab_size. Errors: Q_INVALID; the message starts with the parameter's public
 * name. */
FALLIBLE sample_params_check(const struct sample_params *p, uint32_t vocab_size, struct q_err *e);
/* True if lengths and ids of bad words match and all ids are < vocab_size. */
bool sample_bad_words_fit(const uint32_t *bad_words, uint32_t n_bad, uint32_t vocab_size);

/* To and from the fields of a submit message; arrays are not copied. Ranges are not checked here.
 * Errors: Q_INVALID (logit_bias ids and values of different number; too many of them, of stop ids,
 * allowed ids or bad words). */
struct msg_submit;
FALLIBLE sample_params_from_submit(struct sample_params *p, const struct msg_submit *m,
                                   struct q_err *e);
void sample_params_to_submit(struct msg_submit *m, const struct sample_params *p);

#endif
