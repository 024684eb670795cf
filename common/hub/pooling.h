/* SPDX-License-Identifier: Apache-2.0 */
/* pooling - what a model folder says of vectors: does the model generate tokens, or does it make
 * one vector of a text (an embedding, or a score of each class), from which rows, through which
 * layers behind the pooling, and how is it normalized.
 *
 * Sources, the first that says something: --pooler-config, sentence-transformers' files
 * (modules.json, N_Pooling/config.json, N_Dense/config.json, config_sentence_transformers.json),
 * config.json, the architecture's name.
 * --runner and --convert have vLLM's meaning. Threads: reentrant; a value that was read is
 * constant. */
#ifndef QUIRE_COMMON_HUB_POOLING_H
#define QUIRE_COMMON_HUB_POOLING_H
#include <jansson.h>
#include "common/hub/archs.h"
#include "common/hub/config.h"

#define POOLING_DENSE_MAX  8u
#define POOLING_DIMS_MAX   64u
#define POOLING_PATH_MAX   128u    /* of a folder in the model's folder */
#define POOLING_LABELS_MAX 65536u  /* classes */
#define POOLING_WIDTH_MAX  262144u /* values of a vector */

/* Of a vector, or of a layer behind the pooling. */
enum pooling_act {
    POOLING_ACT_NONE,
    POOLING_ACT_NORMALIZE, /* to length 1 */
    POOLING_ACT_SIGMOID,
    POOLING_ACT_SOFTMAX,
    POOLING_ACT_TANH,
    POOLING_ACT_RELU,
    POOLING_ACT_GELU
};

struct pooling_dense { /* sentence-transformers' Dense: y = act(W x + b) */
    char path[POOLING_PATH_MAX];
    uint32_t n_in, n_out;
    bool has_bias;
    enum pooling_act act;
};

struct pooling {
    enum archs_end makes; /* ARCHS_GENERATES: it does not pool, and nothing below is set */
    enum pooling_kind kind;
    enum pooling_act act; /* of the vector, unless a request wants it as it is */
    uint32_t n_out;       /* values of the vector */
    struct pooling_dense dense[POOLING_DENSE_MAX]; /* [n_dense], in order */
    uint32_t n_dense;
    uint32_t max_length;             /* tokens, of sentence_bert_config.json, or else of an
                                        encoder's tokenizer; 0: not said */
    bool is_matryoshka;              /* the first values of a vector are a vector */
    uint32_t dims[POOLING_DIMS_MAX]; /* [n_dim] how many of them may be asked for; 0: any number */
    uint32_t n_dim;
    bool pair_types;      /* the tokenizer says which tokens are the second text's */
    json_t *labels;       /* id2label; NULL: not said. Owned */
    json_t *prompts;      /* texts that are put before texts, by name; NULL: none. Owned */
    const char *prompt;   /* the one of requests that name none; NULL: none. Of `prompts` */
    bool excludes_prompt; /* a prompt's tokens are not pooled, so that none can be used */
};
/* clang-format off */
#define POOLING_INIT {.labels = NULL}
/* clang-format on */

struct pooling_options { /* "" or NULL: not given */
    const char *runner;  /* --runner: auto, generate, pooling */
    const char *convert; /* --convert: auto, none, embed, classify */
    const char *pooler;  /* --pooler-config, JSON */
};

/* Errors: Q_INVALID (an option), Q_CORRUPT, Q_UNSUPPORTED (file, key, found, accepted). Ownership:
 * pooling_release. */
FALLIBLE pooling_read(struct pooling *out, const struct model_config *c, const char *dir,
                      const struct pooling_options *o, struct q_err *e);
void pooling_release(struct pooling *p);
/* The name of class i, or "LABEL_i". */
const char *pooling_label(const struct pooling *p, uint32_t i, char buffer[32]);
const char *pooling_kind_name(enum pooling_kind kind); /* "LAST" */

struct pooling_modules {            /* of modules.json */
    char pooling[POOLING_PATH_MAX]; /* "": there is none */
    struct pooling_dense dense[POOLING_DENSE_MAX];
    uint32_t n_dense;
    bool normalizes;
    bool with_prompt; /* tokens of a prompt are pooled too */
};
/* The files from memory. path: for messages. Errors: Q_CORRUPT, Q_UNSUPPORTED. */
FALLIBLE pooling_parse_modules(struct pooling_modules *out, const char *text, size_t n,
                               const char *path, struct q_err *e);
FALLIBLE pooling_parse_kind(enum pooling_kind *out, bool *with_prompt, const char *text, size_t n,
                            const char *path, struct q_err *e);
FALLIBLE pooling_parse_dense(struct pooling_dense *out, const char *text, size_t n,
                             const char *path, struct q_err *e);
/* "torch.nn.modules.activation.Tanh" -> POOLING_ACT_TANH. path, key: for messages. */
FALLIBLE pooling_parse_act(enum pooling_act *out, const char *name, const char *path,
                           const char *key, struct q_err *e);
/* Those of a folder: *found is false where it has no modules.json. Errors: as above, Q_IO. */
FALLIBLE pooling_read_modules(struct pooling_modules *out, enum pooling_kind *kind, bool *found,
                              const char *dir, struct q_err *e);

#endif
