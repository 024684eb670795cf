/* SPDX-License-Identifier: Apache-2.0 */
/* written - a tokenizer.json made from another file, and the helpers of the readers of those
 * files.
 *
 * tokenizer.json is loaded unchanged. A SentencePiece model, a file of ranks or a list of words is
 * first converted to an equivalent tokenizer.json; properties that tokenizer.json cannot express
 * (ranks, exact scores) are stored beside it. Private to common/tokenizer. Threads: reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_WRITTEN_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_WRITTEN_H
#include "common/buf.h"
#include "common/tokenizer/json.h"

#define RANK_NONE UINT32_MAX /* of a token that no merge makes */

/* Key of a Precompiled or ByteFallback that spm.c wrote: as SentencePiece does it, where the
 * `tokenizers` package reads the same rules in another way. */
#define SPM_RULES     "sentencepiece_rules"
/* ByteFallback: a space that the first token starts with is not of the text; nor, with ALL, those
 * of the next ones while there is no text yet. */
#define SPM_STRIP     "sentencepiece_strip"
#define SPM_STRIP_ALL "sentencepiece_strip_all"

struct tok_extra {   /* by token id; NULL: not used */
    uint32_t *ranks; /* [n] BPE without a list of merges: two tokens merge to a third at its rank */
    double *scores;  /* [n] Unigram, where JSON would round them */
    size_t n, rank_cap;
    bool single;  /* scores are added up in single precision, as SentencePiece does, and */
    double low;   /* the unknown piece is below this score */
    bool own_ids; /* added_tokens have the "id" they say, whatever else is written like them */
};
struct tok_written { /* a tokenizer.json made from another file */
    struct buf json;
    struct tok_extra extra;
};
void tok_written_release(struct tok_written *w);

/* tokenizer_config.json as far as it says what those files do not. */
struct tok_config {
    const json_t *root; /* NULL: there is none */
    const char *class;  /* tokenizer_class without "Fast" at its end; "" when not given */
    char class_name[64];
    bool add_bos, add_eos;
    bool has_bos, has_eos; /* the file says so */
};
void tok_config_read(struct tok_config *c, const json_t *root);
bool tok_config_bool(const struct tok_config *c, const char *key, bool fallback);
/* "bos_token" and the like: a string or an added token; NULL when there is none. */
const char *tok_config_token(const struct tok_config *c, const char *key);

#endif
