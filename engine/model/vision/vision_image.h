/* SPDX-License-Identifier: Apache-2.0 */
/* vision_image - from an image to the squares that a tower reads, and what stands for it in a
 * prompt.
 *
 * An image is kept as its squares, so that it is resized once, by the engine, and no worker sees
 * its original size: [height, width, 3] of one square; or of tiles in rows and columns, with a
 * square of the whole image below them, at the left:
 *
 *     tile 1,1   tile 1,2        in the prompt: a token, rows of tile 1,1, a token, rows of tile
 *     tile 2,1   tile 2,2        1,2, a newline … the rows of the whole image, a token
 *     whole      0
 *
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_VISION_VISION_IMAGE_H
#define QUIRE_ENGINE_MODEL_VISION_VISION_IMAGE_H
#include "engine/model/vision/vision_config.h"

struct vision_size {
    uint32_t height, width;
};
struct vision_grid { /* of tiles; 0: the image is one square */
    uint32_t rows, cols;
};
/* How large the kept image of an image of this size is. */
struct vision_size vision_kept(const struct vision_config *v, struct vision_size image);
/* The tiles of a kept image. */
struct vision_grid vision_grid_of(const struct vision_config *v, struct vision_size kept);
static inline uint32_t vision_squares(struct vision_grid g)
{
    return g.rows * g.cols + 1;
}
/* The most squares of an image. */
uint32_t vision_squares_max(const struct vision_config *v);
/* rgb: [image.height, image.width, 3]; to: [kept.height, kept.width, 3]. Errors: Q_NO_MEMORY. */
FALLIBLE vision_keep(unsigned char *to, const struct vision_config *v, const unsigned char *rgb,
                     struct vision_size image, struct q_err *e);
/* Where square i of a kept image begins: its upper left pixel. */
struct vision_size vision_square_at(const struct vision_config *v, struct vision_grid g,
                                    uint32_t i);
/* Patches first … first + n - 1 of a square as rows of floats, [n, v->n_patch]: channel, row and
 * column of the patch, as the tower's first product has its inputs. */
struct vision_patches {
    const unsigned char *kept; /* the whole kept image */
    struct vision_size size, at;
    uint32_t first, n;
};
void vision_patches(float *out, const struct vision_config *v, const struct vision_patches *p);

/* ---- the prompt ---- */

#define VISION_NEWLINES 4u
struct vision_words {                                     /* token ids around the rows of tiles */
    uint32_t around, whole;                               /* VISION_CUT_TILES, as what follows */
    uint32_t tiles[VISION_TILES_SIDE][VISION_TILES_SIDE]; /* of row, column */
    uint32_t newline[VISION_NEWLINES], n_newline;         /* behind a row of tiles */
    uint32_t last[VISION_NEWLINES], n_last;               /* behind the last one */
    uint32_t start, end;                                  /* VISION_CUT_GRID: around all rows */
};
#define VISION_ROWS UINT32_MAX /* vision_run.token: rows of a square */
struct vision_run {            /* what stands for an image, in order */
    uint32_t token;            /* one row, of this token; or VISION_ROWS */
    uint32_t square;           /* which one, with VISION_ROWS: v->n_token rows of it */
};
#define VISION_RUNS_MAX (3 * VISION_TILES_MAX + VISION_TILES_SIDE * VISION_NEWLINES + 8)
struct vision_layout {
    struct vision_run runs[VISION_RUNS_MAX]; /* [n] */
    uint32_t n, n_row;
};
void vision_layout(struct vision_layout *out, const struct vision_config *v,
                   const struct vision_words *w, struct vision_grid g);
/* Of the model folder's tokenizer, for images in tiles; of others *w is all zeros. Errors:
 * Q_UNSUPPORTED (a token that it does not have, by name), those of tokenizer_open. */
FALLIBLE vision_words_read(struct vision_words *w, const struct vision_config *v, const char *dir,
                           struct q_err *e);

#endif
