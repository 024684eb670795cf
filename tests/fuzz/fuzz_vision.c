/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and preprocessor_config.json of arbitrary bytes, a NUL between them: refused, named
 * as not supported, or sizes of squares and rows that fit each other for any image. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"
#include "engine/model/vision/vision_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[] = "/dev/shm/quire-fuzz-XXXXXX";

static void write_one(const char *name, const void *data, size_t n)
{
    char path[sizeof dir + 40];
    struct q_err e = Q_ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const enum q_code rc = file_write(path, data, n, 0600, &e);
    Q_ASSERT(!rc);
}

static void check_image(const struct vision_config *c, struct vision_size image)
{
    static struct vision_layout l;
    const struct vision_words w = {.n_newline = VISION_NEWLINES, .n_last = VISION_NEWLINES};
    const struct vision_size kept = vision_kept(c, image);
    const struct vision_grid g = vision_grid_of(c, kept);
    const uint32_t n = vision_squares(g);
    Q_ASSERT(kept.height && kept.width && kept.height % c->image_size == 0 &&
             kept.width % c->image_size == 0);
    Q_ASSERT(n <= vision_squares_max(c) && n <= VISION_TILES_MAX + 1);
    for (uint32_t i = 0; i < n; i++) {
        const struct vision_size at = vision_square_at(c, g, i);
        Q_ASSERT(at.height + c->image_size <= kept.height &&
                 at.width + c->image_size <= kept.width);
    }
    vision_layout(&l, c, &w, g);
    Q_ASSERT(l.n <= VISION_RUNS_MAX && l.n_row >= n * c->n_token);
}

static void check_config(const struct vision_config *c)
{
    static const uint32_t sides[] = {1, 2, 17, 333, 1024, 65535};
    const size_t n = sizeof sides / sizeof *sides;
    Q_ASSERT(c->n_side && c->n_token && c->n_row >= c->n_side * c->n_side && c->text_size);
    Q_ASSERT(c->shuffle && c->n_side % c->shuffle == 0 && c->layers.n_layer);
    Q_ASSERT(vision_squares_max(c) * c->n_token < 1u << 20);
    Q_ASSERT(c->n_side * c->patch_size <= c->image_size);
    for (size_t i = 0; i < n * n; i++)
        check_image(c, (struct vision_size){sides[i / n], sides[i % n]});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct model_config text;
    static bool is_made;
    struct vision_config *c = NULL;
    struct buf why = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    const uint8_t *end = memchr(data, 0, n);
    const size_t n_config = end ? (size_t)(end - data) : n;
    if (!is_made && !mkdtemp(dir))
        abort();
    is_made = true;
    write_one("config.json", data, n_config);
    write_one("preprocessor_config.json", end ? end + 1 : data, end ? n - n_config - 1 : 0);
    if (!model_config_load(&text, NULL, dir, &e)) {
        const enum q_code rc = vision_config_load(&c, dir, NULL, &text, &why, &e);
        Q_ASSERT(rc == e.code && (!c || !rc));
    }
    if (c)
        check_config(c);
    q_free(c);
    buf_release(&why);
    return 0;
}
