/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/vision/vision_image.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"

#define TILED_SIDE_MAX 4096u /* of what an image is resized to before it is cut */

static uint32_t min_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t up_to(uint32_t n, uint32_t step) /* a multiple of step */
{
    return (n + step - 1) / step * step;
}

/* ---- sizes ----
 * Quotients are doubles that are cut to whole numbers, as transformers has them, so that sizes are
 * the same. */

static uint32_t at_least(double n, uint32_t least)
{
    return n > least ? (uint32_t)n : least;
}

/* The shorter side becomes v->shortest_edge. */
static struct vision_size by_shortest(const struct vision_config *v, struct vision_size s)
{
    const uint32_t edge = v->shortest_edge;
    if (s.width <= s.height)
        return (struct vision_size){at_least((double)((uint64_t)edge * s.height) / s.width, edge),
                                    edge};
    return (struct vision_size){edge,
                                at_least((double)((uint64_t)edge * s.width) / s.height, edge)};
}

/* The longer side becomes v->longest_edge, the other one even. */
static struct vision_size by_longest(const struct vision_config *v, struct vision_size s)
{
    const double ratio = (double)s.width / s.height;
    const uint32_t edge = min_of(v->longest_edge, TILED_SIDE_MAX);
    uint32_t other = (uint32_t)(s.width >= s.height ? edge / ratio : edge * ratio);
    other += other % 2;
    other = other ? other : 1;
    return s.width >= s.height ? (struct vision_size){other, edge}
                               : (struct vision_size){edge, other};
}

/* Both sides become multiples of a square's. */
static struct vision_size by_squares(const struct vision_config *v, struct vision_size s)
{
    const double ratio = (double)s.width / s.height;
    const uint32_t side = v->image_size;
    if (s.width >= s.height) {
        const uint32_t width = up_to(s.width, side);
        return (struct vision_size){up_to(at_least(width / ratio, 1), side), width};
    }
    const uint32_t height = up_to(s.height, side);
    return (struct vision_size){height, up_to(at_least(height * ratio, 1), side)};
}

static bool is_one_square(const struct vision_config *v, struct vision_size s)
{
    return s.height <= v->image_size && s.width <= v->image_size;
}

/* Of all grids the one whose ratio is nearest to the image's; of two that are as near, the larger
 * one if the image has more than half of its pixels. */
static struct vision_grid nearest_grid(const struct vision_config *v, struct vision_size image)
{
    const double ratio = (double)image.width / image.height;
    const double area = (double)image.width * image.height;
    const double square = (double)v->image_size * v->image_size;
    struct vision_grid best = {1, 1};
    double least = INFINITY;
    for (uint32_t n = v->tiles_min; n <= v->tiles_max; n++)
        for (uint32_t cols = 1; cols <= n; cols++) {
            const uint32_t rows = n / cols;
            const double off = fabs(ratio - (double)cols / rows);
            if (n % cols || off > least || (off >= least && area <= 0.5 * square * n))
                continue;
            least = off;
            best = (struct vision_grid){rows, cols};
        }
    return best;
}

struct vision_size vision_kept(const struct vision_config *v, struct vision_size image)
{
    const uint32_t side = v->image_size;
    if (v->model->cut == VISION_CUT_GRID) {
        const struct vision_grid g = nearest_grid(v, image);
        return (struct vision_size){(g.rows + (g.rows * g.cols > 1)) * side, g.cols * side};
    }
    if (v->model->cut != VISION_CUT_TILES || !v->splits)
        return (struct vision_size){side, side};
    const struct vision_size s = by_squares(v, by_longest(v, image));
    return is_one_square(v, s) ? s : (struct vision_size){s.height + side, s.width};
}

struct vision_grid vision_grid_of(const struct vision_config *v, struct vision_size kept)
{
    const uint32_t side = v->image_size;
    if (is_one_square(v, kept))
        return (struct vision_grid){0, 0};
    return (struct vision_grid){kept.height / side - 1, kept.width / side};
}

/* Tiles of one ratio: no image has more than a square one. */
uint32_t vision_squares_max(const struct vision_config *v)
{
    if (v->model->cut == VISION_CUT_GRID)
        return v->tiles_max + (v->tiles_max > 1);
    return vision_squares(vision_grid_of(v, vision_kept(v, (struct vision_size){1, 1})));
}

struct vision_size vision_square_at(const struct vision_config *v, struct vision_grid g, uint32_t i)
{
    if (i >= g.rows * g.cols)
        return (struct vision_size){g.rows * v->image_size, 0};
    return (struct vision_size){i / g.cols * v->image_size, i % g.cols * v->image_size};
}

/* ---- pixels ---- */

/* rows of `from`, [n, width] pixels, into an image of other rows. */
static void copy_rows(unsigned char *to, size_t to_width, const struct image *from, uint32_t top,
                      uint32_t left, struct vision_size n)
{
    for (uint32_t y = 0; y < n.height; y++)
        memcpy(to + y * to_width * VISION_CHANNELS,
               from->rgb + ((size_t)(top + y) * from->width + left) * VISION_CHANNELS,
               (size_t)n.width * VISION_CHANNELS);
}

static FALLIBLE keep_square(unsigned char *to, const struct vision_config *v,
                            const struct image *image, struct q_err *e)
{
    const struct vision_size square = {v->image_size, v->image_size};
    struct vision_size s = square;
    struct image first = {0}, resized = {0};
    if (v->model->cut == VISION_CUT_SQUARE && v->shortest_edge)
        s = by_shortest(v, (struct vision_size){image->height, image->width});
    const bool is_tiled = v->model->cut == VISION_CUT_TILES;
    const struct vision_size t = by_longest(v, (struct vision_size){image->height, image->width});
    enum q_code rc = Q_OK;
    if (is_tiled)
        rc = image_resize(&first, image, t.width, t.height, v->filter, e);
    if (!rc)
        rc = image_resize(&resized, is_tiled ? &first : image, s.width, s.height, v->filter, e);
    if (!rc)
        copy_rows(to, square.width, &resized, (s.height - square.height) / 2,
                  (s.width - square.width) / 2, square);
    image_release(&first);
    image_release(&resized);
    return rc;
}

/* The square of the whole image, below the tiles. */
static void put_whole(unsigned char *to, const struct image *whole, uint32_t rows, size_t width)
{
    unsigned char *below = to + (size_t)rows * width * VISION_CHANNELS;
    memset(below, 0, (size_t)whole->height * width * VISION_CHANNELS);
    copy_rows(below, width, whole, 0, 0, (struct vision_size){whole->height, whole->width});
}

static FALLIBLE keep_grid(unsigned char *to, const struct vision_config *v,
                          const struct image *image, struct q_err *e)
{
    struct image tiled = {0}, whole = {0};
    const struct vision_grid g = nearest_grid(v, (struct vision_size){image->height, image->width});
    const uint32_t side = v->image_size;
    const struct vision_size t = {g.rows * side, g.cols * side};
    enum q_code rc = image_resize(&tiled, image, t.width, t.height, v->filter, e);
    if (!rc)
        copy_rows(to, t.width, &tiled, 0, 0, t);
    if (!rc && !is_one_square(v, t) &&
        !(rc = image_resize(&whole, image, side, side, v->filter, e)))
        put_whole(to, &whole, t.height, t.width);
    image_release(&tiled);
    image_release(&whole);
    return rc;
}

static FALLIBLE keep_tiles(unsigned char *to, const struct vision_config *v,
                           const struct image *image, struct q_err *e)
{
    struct image first = {0}, tiled = {0}, whole = {0};
    const struct vision_size s = by_longest(v, (struct vision_size){image->height, image->width}),
                             t = by_squares(v, s), square = {v->image_size, v->image_size};
    enum q_code rc;
    if (!(rc = image_resize(&first, image, s.width, s.height, v->filter, e)) &&
        !(rc = image_resize(&tiled, &first, t.width, t.height, v->filter, e)))
        copy_rows(to, t.width, &tiled, 0, 0, t);
    if (!rc && !is_one_square(v, t) &&
        !(rc = image_resize(&whole, &tiled, square.width, square.height, v->filter, e)))
        put_whole(to, &whole, t.height, t.width);
    image_release(&first);
    image_release(&tiled);
    image_release(&whole);
    return rc;
}

FALLIBLE vision_keep(unsigned char *to, const struct vision_config *v, const unsigned char *rgb,
                     struct vision_size image, struct q_err *e)
{
    const struct image from = {
        .width = image.width,
        .height = image.height,
        .rgb = (unsigned char *)(uintptr_t)rgb,
    };
    if (v->model->cut == VISION_CUT_GRID)
        return keep_grid(to, v, &from, e);
    return v->model->cut == VISION_CUT_TILES && v->splits ? keep_tiles(to, v, &from, e)
                                                          : keep_square(to, v, &from, e);
}

static void fill_patch(float *out, const struct vision_config *v, const unsigned char *from,
                       size_t stride)
{
    const uint32_t side = v->patch_size;
    for (uint32_t c = 0; c < VISION_CHANNELS; c++)
        for (uint32_t y = 0; y < side; y++)
            for (uint32_t x = 0; x < side; x++)
                *out++ =
                    (float)from[y * stride + x * VISION_CHANNELS + c] * v->scale[c] + v->offset[c];
}

void vision_patches(float *out, const struct vision_config *v, const struct vision_patches *p)
{
    const size_t stride = (size_t)p->size.width * VISION_CHANNELS;
    for (uint32_t i = p->first; i < p->first + p->n; i++, out += v->n_patch) {
        const uint32_t y = p->at.height + i / v->n_side * v->patch_size;
        const uint32_t x = p->at.width + i % v->n_side * v->patch_size;
        fill_patch(out, v, p->kept + y * stride + (size_t)x * VISION_CHANNELS, stride);
    }
}

/* ---- the prompt ---- */

static void add_run(struct vision_layout *l, const struct vision_config *v, uint32_t token,
                    uint32_t square)
{
    Q_ASSERT(l->n < VISION_RUNS_MAX);
    l->runs[l->n++] = (struct vision_run){token, square};
    l->n_row += token == VISION_ROWS ? v->n_token : 1;
}

static void add_tokens(struct vision_layout *l, const struct vision_config *v, const uint32_t *ids,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        add_run(l, v, ids[i], 0);
}

static void add_tiles(struct vision_layout *l, const struct vision_config *v,
                      const struct vision_words *w, struct vision_grid g)
{
    for (uint32_t i = 0; i < g.rows * g.cols; i++) {
        const uint32_t row = i / g.cols, col = i % g.cols;
        const bool ends = col + 1 == g.cols, is_last = ends && row + 1 == g.rows;
        add_run(l, v, w->around, 0);
        add_run(l, v, w->tiles[row][col], 0);
        add_run(l, v, VISION_ROWS, i);
        if (is_last)
            add_tokens(l, v, w->last, w->n_last);
        else if (ends)
            add_tokens(l, v, w->newline, w->n_newline);
    }
}

void vision_layout(struct vision_layout *out, const struct vision_config *v,
                   const struct vision_words *w, struct vision_grid g)
{
    out->n = out->n_row = 0;
    if (v->model->cut == VISION_CUT_SQUARE) {
        add_run(out, v, VISION_ROWS, 0);
        return;
    }
    if (v->model->cut == VISION_CUT_GRID) {
        add_run(out, v, w->start, 0);
        for (uint32_t i = 0; i < vision_squares(g); i++)
            add_run(out, v, VISION_ROWS, i);
        add_run(out, v, w->end, 0);
        return;
    }
    add_tiles(out, v, w, g);
    add_run(out, v, w->around, 0);
    add_run(out, v, w->whole, 0);
    add_run(out, v, VISION_ROWS, g.rows * g.cols);
    add_run(out, v, w->around, 0);
}

static FALLIBLE find_token(uint32_t *out, const struct tokenizer *t, const char *text,
                           struct q_err *e)
{
    *out = tokenizer_id(t, text);
    return *out != TOKEN_NONE ? Q_OK
                              : q_fail(e, Q_UNSUPPORTED,
                                       "the tokenizer has no token %s, which stands "
                                       "before rows of an image",
                                       text);
}

static FALLIBLE encode(uint32_t out[VISION_NEWLINES], uint32_t *n, const struct tokenizer *t,
                       const char *text, struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    enum q_code rc = tokenizer_encode(t, text, strlen(text), false, &ids, e);
    if (!rc && ids.n > VISION_NEWLINES)
        rc = q_fail(e, Q_UNSUPPORTED, "newlines between rows of images have %zu tokens", ids.n);
    for (*n = 0; !rc && *n < ids.n; ++*n)
        out[*n] = ids.ids[*n];
    token_list_release(&ids);
    return rc;
}

static FALLIBLE read_ends(struct vision_words *w, const struct tokenizer *t, struct q_err *e)
{
    const enum q_code rc = find_token(&w->start, t, "<img>", e);
    return rc ? rc : find_token(&w->end, t, "</img>", e);
}

static FALLIBLE read_words(struct vision_words *w, const struct vision_config *v,
                           const struct tokenizer *t, struct q_err *e)
{
    const uint32_t n = (v->longest_edge + v->image_size - 1) / v->image_size;
    char text[64];
    enum q_code rc;
    if ((rc = find_token(&w->around, t, "<fake_token_around_image>", e)) ||
        (rc = find_token(&w->whole, t, "<global-img>", e)) ||
        (rc = encode(w->newline, &w->n_newline, t, "\n", e)) ||
        (rc = encode(w->last, &w->n_last, t, "\n\n", e)))
        return rc;
    for (uint32_t i = 0; i < n * n && v->splits && !rc; i++) {
        snprintf(text, sizeof text, "<row_%u_col_%u>", i / n + 1, i % n + 1);
        rc = find_token(&w->tiles[i / n][i % n], t, text, e);
    }
    return rc;
}

FALLIBLE vision_words_read(struct vision_words *w, const struct vision_config *v, const char *dir,
                           struct q_err *e)
{
    struct tokenizer *t = NULL;
    memset(w, 0, sizeof *w);
    if (v->model->cut == VISION_CUT_SQUARE)
        return Q_OK;
    enum q_code rc = tokenizer_open(&t, dir, e);
    if (!rc)
        rc = v->model->cut == VISION_CUT_GRID ? read_ends(w, t, e) : read_words(w, v, t, e);
    tokenizer_free(t);
    return rc;
}
