/* SPDX-License-Identifier: Apache-2.0 */
/* archs - the supported architectures by their names in config.json (archs.def), and those that
 * plugins add while the process runs. engine/model implements them; here an unsupported folder is
 * rejected before more of it is read. Threads: reentrant; what is added is there for all that is
 * read later, and stays. */
#ifndef QUIRE_COMMON_HUB_ARCHS_H
#define QUIRE_COMMON_HUB_ARCHS_H
#include <jansson.h>
#include <stdbool.h>
#include "common/err.h"

struct model_config;

struct archs_added;
typedef enum q_code archs_read(const struct archs_added *a, struct model_config *c, json_t *root,
                               const char *path, struct q_err *e);

struct archs_added { /* an architecture of a plugin, which is a variation of one of archs.def */
    const char *name, *base;
    /* `apply` puts the base's spelling into config.json's object before it is read, `resolve` what
     * only the plugin reads into *c afterwards. path: for messages. */
    archs_read *apply, *resolve;
    const void *family;             /* struct arch of engine/model */
    const struct archs_added *next; /* set by archs_add */
};
/* a: constant from here on, for the life of the process. It counts before one of archs.def with the
 * same name. */
void archs_add(struct archs_added *a);
/* NULL: there is none of that name. */
const struct archs_added *archs_added_find(const char *name);
/* Is there any? Only then files are taken whose tensors have names that no family of archs.def
 * has. */
bool archs_any_added(void);
/* What a model makes of a text. */
enum archs_end {
    ARCHS_GENERATES, /* tokens: …ForCausalLM, …LMHeadModel */
    ARCHS_EMBEDS,    /* a vector: …Model, …ForMaskedLM of an encoder */
    ARCHS_CLASSIFIES /* a score for each class: …ForSequenceClassification */
};
/* The row of archs.def that has the layers of an architecture: itself, or the one of its stem
 * (LlamaForSequenceClassification, LlamaModel: LlamaForCausalLM). NULL: there is none. end: may be
 * NULL. */
const char *archs_base(const char *name, enum archs_end *end);
/* Has it a row, its own or another's? */
bool archs_is_own(const char *name);
/* Its model_type, with _ for -; NULL: it is none. */
const char *archs_type(const char *name);

/* Check that it is supported. path: of its file, for the message. Errors: Q_UNSUPPORTED (with some
 * supported model types and the most similar architecture). */
FALLIBLE archs_check(const char *architecture, const char *path, struct q_err *e);
/* The architecture of a model_type ("llama"); NULL = of none that is served. */
const char *archs_of_type(const char *model_type);
/* The model_type that computes as this one: itself, but for text models and checkpoints under a
 * name of their own (qwen3_vl_text: qwen3). */
const char *archs_like(const char *model_type);
/* The model types of all of them: "llama, mistral, …". */
const char *archs_all_types(void);
#define ARCHS_TYPES_MAX 160u
/* The first of these, how many more there are, and the command that lists all: for messages, which
 * are shorter than the list. Returns out. */
const char *archs_types(char out[ARCHS_TYPES_MAX]);

#endif
