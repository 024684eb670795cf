/* SPDX-License-Identifier: Apache-2.0 */
/* source - from the files that models come with to one way of loading.
 *
 * tokenizer.json is loaded as it is. A SentencePiece model or a file of tiktoken ranks is first
 * written as the tokenizer.json that means the same; what that cannot say (ranks, exact scores)
 * goes beside it. Private to common/tokenizer. Threads: reentrant. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_SOURCE_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_SOURCE_H
#include "common/tokenizer/json.h"
#include "common/tokenizer/tokenizer.h"

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
struct tok_texts {
    struct tok_str json, config;   /* tokenizer.json; tokenizer_config.json, which may be empty */
    const struct tok_extra *extra; /* NULL with a tokenizer.json */
};
/* tokenizer.c. Errors: those of tokenizer_open. */
FALLIBLE tok_from_texts(struct tokenizer **out, const struct tok_texts *in, struct q_err *e);
#define CONFIG_NAME "tokenizer_config.json"
/* name: CONFIG_NAME or another file's, for messages. Errors: Q_CORRUPT (line and column). */
FALLIBLE tok_parse(json_t **out, struct tok_str json, const char *name, struct q_err *e);

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

/* spm.c, tiktoken.c: file [n]. name: of the file, for messages and, with tiktoken, the pattern. */
FALLIBLE spm_write(struct tok_written *out, const char *file, size_t n, const struct tok_config *c,
                   struct q_err *e);
FALLIBLE tiktoken_write(struct tok_written *out, struct tok_str file, const char *name,
                        const struct tok_config *c, struct q_err *e);
/* tekken.c: Mistral's own file. Everything is in it, so there is no config to read. */
FALLIBLE tekken_write(struct tok_written *out, struct tok_str file, struct q_err *e);
FALLIBLE tekken_version(uint32_t *version, struct tok_str file, struct q_err *e);
/* lists.c: vocab.txt (a word a line), and vocab.json with merges.txt; how the words are used is
 * told by the tokenizer_class. */
FALLIBLE word_list_write(struct tok_written *out, struct tok_str vocab, const struct tok_config *c,
                         struct q_err *e);
FALLIBLE merge_list_write(struct tok_written *out, struct tok_str vocab, struct tok_str merges,
                          const struct tok_config *c, struct q_err *e);

/* What the files of ranks share. Append ,"token":id (the token in the byte-level alphabet) to
 * out->json, and note its rank. */
FALLIBLE rank_write(struct tok_written *out, struct tok_str token, uint32_t id, uint32_t rank,
                    struct q_err *e);
#define RANK_TOKEN_MAX 4096 /* bytes of one token */
/* Bytes of the token written in base64, at most RANK_TOKEN_MAX; 0: it is not base64, or longer. */
size_t rank_token(unsigned char token[RANK_TOKEN_MAX + 4], struct tok_str base64);

#endif
