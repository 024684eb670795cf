/* SPDX-License-Identifier: Apache-2.0 */
/* vision - images of built-in models: the modality "image", whose items are [height, width, 3]
 * bytes of red, green and blue.
 *
 *     engine    vision_open    what the folder says of images
 *               vision_rows    how many rows of the prompt an image of this size becomes
 *               vision_keep    the squares that the tower reads (vision_image.h)
 *     worker    vision_load    the weights
 *               vision_tokens  which of an image's rows are tokens, around the others
 *               vision_embed   the others: patches, the tower's layers, the projector
 *
 * A row depends on its image alone: a square is computed by itself, by all threads, with kernels
 * that keep this promise (ops.h). On a device images are computed by the CPU.
 * Threads: one owner; vision_rows, vision_kept_size, vision_keep and vision_tokens of any. */
#ifndef QUIRE_ENGINE_MODEL_VISION_VISION_H
#define QUIRE_ENGINE_MODEL_VISION_VISION_H
#include "engine/model/model.h"
#include "engine/model/vision/vision_image.h"

struct vision;
/* Of the model folder; *out NULL: it has no images that are served (what of them is not supported,
 * is logged). o: may be NULL. Errors: those of vision_config_load and vision_words_read. */
FALLIBLE vision_open(struct vision **out, const char *dir, const struct vision_options *o,
                     struct q_err *e);
void vision_free(struct vision *v); /* NULL is fine */
/* Adds how images of the model folder are served, or why they are not. text: the config of its text
 * model. Errors: those of vision_config_load. */
FALLIBLE vision_describe(struct buf *out, bool *served, const char *dir,
                         const struct model_config *text, struct q_err *e);
/* The id that stands for an image in a prompt. */
uint32_t vision_placeholder(const struct vision *v);

#define VISION_RATIO_MAX 200u /* of the longer to the shorter side */
/* Can it be resized? Errors: Q_INVALID: "1 x 65535 pixels: …". */
FALLIBLE vision_check(struct vision_size image, struct q_err *e);
/* Rows of the prompt that an image of this size becomes, tokens between its squares included. */
uint32_t vision_rows(const struct vision *v, struct vision_size image);
uint32_t vision_rows_max(const struct vision *v);       /* of any image */
uint32_t vision_rows_of_square(const struct vision *v); /* with tokens before it */
/* Of an image of this size as it is kept. */
struct vision_size vision_kept_size(const struct vision *v, struct vision_size image);
/* vision_keep of vision_image.h. */
FALLIBLE vision_keep_image(const struct vision *v, unsigned char *to, const unsigned char *rgb,
                           struct vision_size image, struct q_err *e);
/* ids: [n] of the rows from `first` on, of an image that is kept so large: the token's, or
 * VISION_ROWS. */
void vision_tokens(const struct vision *v, struct vision_size kept, uint32_t first, uint32_t n,
                   uint32_t *ids);

/* o: of the text model; o->team computes later, too. Again: other weights beside the old ones, of
 * which vision_settle keeps one. Errors: those of vision_weights_load; there are no others then. */
FALLIBLE vision_load(struct vision *v, const struct model_options *o, struct q_err *e);
/* After a second vision_load: one of both weights goes. */
void vision_settle(struct vision *v, bool keeps_new);
uint64_t vision_bytes(const struct vision *v); /* of vision_load */
struct vision_image {
    const unsigned char *kept;
    struct vision_size size;
};
struct vision_out { /* [rows of the image, text_size] f32, `stride` apart */
    float *rows;
    size_t stride;
    uint32_t first, end; /* the rows that are asked for, or that are there */
};
/* The squares that some rows are of. Returns all rows that are there then; those of tokens are not
 * written. Called by the team's owner, outside team_run. */
struct vision_out vision_embed(struct vision *v, const struct vision_image *image,
                               const struct vision_out *out);

#endif
