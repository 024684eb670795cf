/* SPDX-License-Identifier: Apache-2.0 */
/* family - a family made up for a test: a description of layers, a small config, a checkpoint of
 * random numbers, and what the model computes, in double precision and straight from the
 * description: no buffers, no cache, a whole sequence at a time. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_FAMILY_H
#define QUIRE_TESTS_UNIT_FAMILY_H
#include "engine/model/arch.h"
#include "folder.h"

#define FAMILY_TENSORS_MAX 40u
#define FAMILY_LAYERS      2u
#define FAMILY_VOCAB       96u
#define FAMILY_TOKENS_MAX  48u

/* optional tensors, as bits */
enum family_has {
    FAMILY_LM_HEAD = 1,
    FAMILY_LM_HEAD_BIAS = 2,
    FAMILY_NORM_BIAS = 4,
    FAMILY_BIASES = 8, /* of q, k, v, out and of the MLP */
    FAMILY_EXPERTS = 16,
    FAMILY_ROUTER_BIAS = 32,
    FAMILY_Q_NORM = 64,
    FAMILY_POSITIONS_2 = 128, /* two rows before the first position's */
    FAMILY_EMBED_NORM = 256,
    FAMILY_HEAD_NORMS = 512, /* a tensor for each head of q and of k */
    FAMILY_XIELU = 1024
};

struct family {
    const char *name;
    struct arch_layer layer;
    uint32_t has;
    const char *act;
    struct forward_config forward;
    uint32_t window; /* of the second layer */
    uint32_t n_head; /* 0: 4 */
    bool no_rope;    /* of the second layer */
};

struct family_model {
    const struct family *f;
    struct arch_tensor tensors[FAMILY_TENSORS_MAX];
    struct arch arch;
    struct model_config config;
    struct folder folder;
    float *numbers; /* of all tensors, by `find` */
    size_t n_number, capacity;
    struct family_entry {
        enum arch_slot slot;
        struct arch_place at;
        size_t first;
    } entries[FAMILY_TENSORS_MAX * FAMILY_LAYERS * 8]; /* at.expert: or the head */
    uint32_t n_entry;
};

/* Its checkpoint is in m->folder. */
void family_init(struct family_model *m, const struct family *f);
void family_release(struct family_model *m);
/* logits: [n, FAMILY_VOCAB] */
void family_logits(double *logits, const struct family_model *m, const uint32_t *ids, uint32_t n);

#endif
