/* SPDX-License-Identifier: Apache-2.0 */
/* arch - a model family as data: which tensors a checkpoint has, what each is for, its shape and
 * when it must be there, and how a layer is made of operations. Adding a family is a file in
 * families/ and a line in common/hub/archs.def. Threads: constants and pure functions. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_H
#define QUIRE_ENGINE_MODEL_ARCH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/model/arch_dim.h"
#include "engine/model/arch_head.h"
#include "engine/model/arch_layer.h"
#include "engine/model/arch_slot.h"
#include "engine/model/arch_when.h"

/* how tensor parallel ranks share it */
enum arch_shard {
    SHARD_NONE, /* every rank has all of it */
    SHARD_ROWS,
    SHARD_COLS
};

/* The names of vectors that no checkpoint has: numbers of 1 (a norm's weight), of 0, and for each
 * head the logarithm of the rate at which lightning attention forgets (weight_source.h). */
#define ARCH_ONES  NULL
#define ARCH_ZEROS arch_zeros
#define ARCH_RATES arch_rates
extern const char arch_zeros[], arch_rates[];

struct arch_tensor {
    /* The first "%u" stands for the layer's number, a second for the expert's or the head's; or
     * one of these. Without a second one an expert's tensor holds all experts of the layer: its
     * first dimension is D_EXPERTS, and dims are those of one. Two rows of a slot in a layer are
     * two names that the files may have for it. */
    const char *name;
    enum arch_slot slot;
    enum arch_dim dims[3]; /* rows, cols, or rows alone; D_TRANSPOSED behind them */
    enum arch_shard shard;
    enum arch_when when;
};

static inline bool arch_is_transposed(const struct arch_tensor *t)
{
    return t->dims[2] == D_TRANSPOSED;
}

static inline bool arch_is_made(const struct arch_tensor *t) /* has no checkpoint it? */
{
    return t->name == ARCH_ONES || t->name == ARCH_ZEROS || t->name == ARCH_RATES;
}

bool arch_is_stacked(const struct arch_tensor *t); /* does it hold all experts of a layer? */

struct quire_tensor;
struct plugin_arch;
struct arch_own { /* a tensor of a plugin; its sizes: model_config.own of the same number */
    const struct quire_tensor *tensor;
    struct arch_tensor spec; /* its name; no slot and no dims */
    bool of_layer;           /* once a layer */
    uint32_t weight;         /* enum program_weight */
};

struct arch {
    const char *name;
    const char *prefix; /* of names, which a checkpoint of the model without a head has not; NULL */
    const struct arch_tensor *tensors; /* [n_tensor] */
    size_t n_tensor;
    struct arch_layer layer;
    struct arch_head head[ARCH_HEAD_LAYERS]; /* without a name: one product, "score" */
    bool experts_in_rows; /* those of a tensor, one after the other, in two dimensions */
    bool is_part;         /* of a larger model: other tensors of its files are not its own */
    const struct plugin_arch *plugin; /* NULL: built in, and then there is nothing below */
    const struct arch_own *own;       /* [n_own] */
    uint32_t n_own;
    bool takes_items; /* rows of its input may be others than the embedding's (modality.h) */
};

/* A plugin's before one that is built in; the second: of these alone. Errors: Q_UNSUPPORTED (names
 * the families there are). */
FALLIBLE arch_find(const struct arch **out, const char *name, struct q_err *e);
FALLIBLE arch_find_own(const struct arch **out, const char *name, struct q_err *e);
/* Does the model need the slot? One that gives vectors has no head. */
bool arch_is_read(const struct model_config *c, enum arch_slot slot);

struct arch_place {         /* where a tensor belongs; what does not apply is not looked at */
    uint32_t layer, expert; /* expert: or the head */
};
#define ARCH_NAME_MAX 128u /* bytes of a tensor's name with the numbers put in */
/* Does the family's table have it, for this config and layer? */
bool arch_has(const struct arch *a, const struct model_config *c, enum arch_slot slot,
              uint32_t layer);
/* How many positions its learned table has; UINT32_MAX: there is no table. */
uint32_t arch_positions_max(const struct arch *a, const struct model_config *c);
/* Errors: none; a pattern without "%u" is copied. */
void arch_tensor_name(char out[ARCH_NAME_MAX], const char *pattern, struct arch_place at);

#define ARCH(architecture, family) extern const struct arch arch_##family;
#include "common/hub/archs.def"

#endif
