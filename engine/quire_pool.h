/* SPDX-License-Identifier: Apache-2.0 */
/* quire_pool.h - vectors of texts with the public library (quire.h): embeddings, scores, classes.
 *
 * For models that make a vector of a text in place of text: encoders, classifiers, and others with
 * the option "runner" set to "pooling" (quire_options_set). quire_engine_info has the size of the
 * vectors; quire_submit is refused for such models.
 *
 *     struct quire_error error = {QUIRE_OK, ""};   struct quire_engine *engine = NULL;
 *     struct quire_options o;   quire_options_init(&o, sizeof o);   o.model = "path/to/model";
 *     struct quire_pool_input inputs[2] = {{.text = "The sea is blue."}, {.text = "Grass."}};
 *     struct quire_pool_params p;   quire_pool_params_init(&p, sizeof p);
 *     p.inputs = inputs;   p.n_input = 2;
 *     struct quire_vectors v = {.values = NULL};
 *     if (!quire_engine_open(&engine, &o, &error) && !quire_pool(engine, &v, &p, &error))
 *         printf("%zu vectors of %u values\n", v.n, v.n_value);
 *     quire_free(v.values);
 *     quire_engine_close(engine);
 *
 * Threads: as beside each function. */
#ifndef QUIRE_POOL_H
#define QUIRE_POOL_H
#include "quire.h"
#ifdef __cplusplus
extern "C" {
#endif

struct quire_pool_input {
    const char *text;    /* UTF-8, NUL-terminated, or … */
    const uint32_t *ids; /* … [n_ids] token ids, if text is NULL */
    size_t n_ids;
    const char *second; /* a second text, for classifiers of pairs; NULL: none */
};
struct quire_pool_params {
    size_t size;
    const struct quire_pool_input *inputs; /* [n_input] */
    size_t n_input;
    uint32_t dimensions; /* the first so many values; 0 = all */
    bool raw;            /* without the model's normalization or activation */
    bool no_special;     /* add no special tokens to a single text */
    int32_t priority;    /* as quire_params has them */
    const char *cache_salt;
};
struct quire_vectors {
    float *values; /* [n, n_value] row-major; release with quire_free */
    size_t n;
    uint32_t n_value;
    uint64_t n_token; /* of all prompts */
};
QUIRE_API void quire_pool_params_init(struct quire_pool_params *p, size_t size);
/* The vectors of all inputs, in their order: embeddings, or a value for each class. Inputs are
 * computed together as far as the engine has room; the same input gives the same bits in any
 * batch. Errors: QUIRE_INVALID (an input, with its number; a model that generates text),
 * QUIRE_BUSY, QUIRE_UNAVAILABLE, QUIRE_NO_MEMORY; nothing is given then. Threads: any. */
QUIRE_API enum quire_code quire_pool(struct quire_engine *engine, struct quire_vectors *out,
                                     const struct quire_pool_params *p, struct quire_error *error);
/* How well `query` and each document fit together, scores[n]: the value of a classifier with one
 * class, or the cosine of two embeddings. Errors: as quire_pool; QUIRE_INVALID (more than one
 * class). Threads: any. */
QUIRE_API enum quire_code quire_score(struct quire_engine *engine, float *scores, const char *query,
                                      const char *const *documents, size_t n,
                                      struct quire_error *error);
/* The name of a class in the model's config.json; "LABEL_<i>" copied to `buffer` where it has none.
 * Threads: any. */
QUIRE_API const char *quire_class_name(const struct quire_engine *engine, uint32_t i,
                                       char buffer[32]);

#ifdef __cplusplus
}
#endif
#endif
