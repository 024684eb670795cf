/* SPDX-License-Identifier: Apache-2.0 */
/* vision_config - what a model folder says of images: which tower reads them, how they are cut into
 * squares, and how the tower's rows become rows of the text model.
 *
 * config.json has the tower's sizes (vision_config); preprocessor_config.json, or image_processor
 * of processor_config.json, the sizes and the numbers of pixels. What neither says is
 * transformers' default for the model. Threads: reentrant; a config is only read. */
#ifndef QUIRE_ENGINE_MODEL_VISION_VISION_CONFIG_H
#define QUIRE_ENGINE_MODEL_VISION_VISION_CONFIG_H
#include "common/hub/config.h"
#include "common/image/resize.h"
#include "engine/model/vision/vision_options.h"

struct arch_tensor;

#define VISION_CHANNELS   3u
#define VISION_SIDE_MAX   4096u  /* pixels along a side of a square, or of a resized image */
#define VISION_ROWS_MAX   16000u /* of a square; of all squares less than MODALITY_TOKENS_MAX */
#define VISION_TILES_SIDE 8u     /* in a row or a column */
#define VISION_TILES_MAX  (VISION_TILES_SIDE * VISION_TILES_SIDE)
#define VISION_NAMES      4u

enum vision_cut {
    VISION_CUT_SQUARE, /* one square: the image resized, then its middle */
    VISION_CUT_TILES,  /* Idefics 3: squares in rows and columns, then the whole image as one */
    VISION_CUT_GRID    /* the same by the grid whose ratio is nearest: InternVL, arXiv:2404.16821 */
};
enum vision_projector {
    VISION_MLP,        /* product, activation, product: LLaVA 1.5, arXiv:2310.03744 */
    VISION_SHUFFLE,    /* squares of patches side by side in one row, then a product: Idefics 3,
                       arXiv:2408.12637 */
    VISION_SHUFFLE_MLP /* such rows, a norm, then as MLP: InternVL */
};

struct vision_tower { /* a kind of tower: vision_config.model_type */
    const char *type;
    const char *prefixes[VISION_NAMES]; /* of its tensors, by who wrote the files; NULL ends them */
    const struct arch_tensor *layer;    /* [n_layer_tensor] names behind a prefix */
    uint32_t n_layer_tensor;
    const char *patch, *positions; /* names; of the patches' product without .weight and .bias */
    const char *class_row;         /* a row of its own before those of the patches; NULL: none */
    const char *first_norm, *last_norm; /* before and behind the layers; NULL: none */
    bool has_patch_bias;
    uint32_t hidden_size, intermediate_size, n_layer, n_head, image_size, patch_size;
    const char *act;
    double eps;
};

struct vision_model { /* an architecture of nested.def whose images are served */
    const char *architecture;
    const char *default_tower;
    bool reads_type; /* vision_config says which tower it is; else its model_type means nothing */
    enum vision_cut cut;
    enum vision_projector projector;
    const char *token_keys[2];          /* of config.json: the id that stands for an image */
    const char *prefixes[VISION_NAMES]; /* of the projector's tensors */
    bool has_last_norm;                 /* of the tower, before the projector */
    double mean[VISION_CHANNELS], std[VISION_CHANNELS];
    enum image_filter filter;
    uint32_t longest_edge; /* of tiled images */
};

struct vision_config {
    const struct vision_model *model;
    const struct vision_tower *tower;
    struct model_config layers; /* of the tower's layers that are computed */
    uint32_t image_size, patch_size;
    uint32_t n_side;    /* patches along a side: image_size / patch_size */
    uint32_t n_row;     /* rows of the tower for a square: its patches, and a class before them */
    uint32_t n_patch;   /* columns of a patch: VISION_CHANNELS * patch_size * patch_size */
    uint32_t shuffle;   /* patches along a side that become one row; 1: each is one */
    uint32_t n_token;   /* rows of the text model for a square */
    bool keeps_class;   /* the class's row is one of them */
    uint32_t text_size; /* columns of these rows */
    bool has_projector_bias;
    char projector_act[CONFIG_NAME_MAX];
    uint32_t placeholder; /* the token that stands for an image in a prompt */
    /* Pixels: (byte * rescale - mean) / std of each channel is byte * scale + offset. */
    float scale[VISION_CHANNELS], offset[VISION_CHANNELS];
    enum image_filter filter;
    uint32_t shortest_edge; /* VISION_CUT_SQUARE; 0: resized to the square, whatever the ratio */
    uint32_t longest_edge;  /* VISION_CUT_TILES */
    uint32_t tiles_min, tiles_max; /* VISION_CUT_GRID */
    bool splits;                   /* VISION_CUT_TILES: into tiles; else one square alone */
};

/* Is the architecture one whose images are served? NULL: no row. */
const struct vision_model *vision_model_of(const char *architecture);
const struct vision_tower *vision_tower_of(const char *type); /* NULL: there is none */
/* Of the model folder; *out NULL: the model has no images that are served, and *why says what of
 * them is not supported ("": it has none). text: the config of its text model. Errors: Q_CORRUPT
 * (file, key, found, expected), Q_NOT_FOUND, Q_NO_MEMORY. Ownership: q_free. */
FALLIBLE vision_config_load(struct vision_config **out, const char *dir,
                            const struct vision_options *o, const struct model_config *text,
                            struct buf *why, struct q_err *e);

#endif
