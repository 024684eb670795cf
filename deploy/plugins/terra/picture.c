/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"
#include <stdio.h>
#include "output.h"

#define SQUARE 6u /* pixels of a token */
#define GAP    4u /* between frames */

struct layout {
    size_t n_rollout, n_frame, n_patch, columns, rows; /* of patches in a frame */
};

/* The golden ratio spreads the hues of neighbouring ids (Knuth's multiplicative hash); two
 * brightnesses tell apart what lies near in hue. */
static void colour_of(int32_t token, unsigned char rgb[3])
{
    const uint32_t hash = (uint32_t)token * 2654435769u;
    const double hue = hash / 4294967296.0 * 6, value = hash >> 7 & 1 ? 235 : 165;
    const unsigned sector = (unsigned)hue;
    const double rise = 40 + (value - 40) * (hue - sector), fall = value + 40 - rise;
    const double high_mid_low[6][3] = {
        {value, rise, 40}, {fall, value, 40}, {40, value, rise},
        {40, fall, value}, {rise, 40, value}, {value, 40, fall},
    };
    for (unsigned c = 0; c < 3; c++)
        rgb[c] = (unsigned char)high_mid_low[sector % 6][c];
}

static void write_line(FILE *f, const struct layout *l, const int32_t *frames, size_t line)
{
    const unsigned char white[3] = {255, 255, 255};
    for (size_t i = 0; i < l->n_frame; i++) {
        const int32_t *row = frames + i * l->n_patch + line / SQUARE * l->columns;
        for (size_t x = 0; x < l->columns * SQUARE; x++) {
            unsigned char rgb[3];
            colour_of(row[x / SQUARE], rgb);
            fwrite(rgb, 1, sizeof rgb, f);
        }
        for (size_t x = 0; x < GAP && i + 1 < l->n_frame; x++)
            fwrite(white, 1, sizeof white, f);
    }
}

uint32_t picture_columns(uint32_t n_patch, uint32_t columns)
{
    uint32_t found = columns;
    for (uint32_t rows = 1; !columns && rows <= n_patch / rows; rows++)
        found = n_patch % rows == 0 ? n_patch / rows : found;
    return found && n_patch % found == 0 ? found : 0;
}

bool picture_write(const char *path, const int32_t *tokens, const size_t dims[3], uint32_t columns,
                   char why[OUTPUT_WHY_MAX])
{
    const struct layout l = {
        .n_rollout = dims[0],
        .n_frame = dims[1],
        .n_patch = dims[2],
        .columns = columns,
        .rows = dims[2] / columns,
    };
    const size_t width = l.n_frame * (l.columns * SQUARE + GAP) - GAP;
    const size_t height = l.n_rollout * (l.rows * SQUARE + GAP) - GAP;
    struct output out;
    if (!output_open(&out, path, why))
        return false;
    fprintf(out.f, "P6\n# a stand-in decoder: each token is a colour\n%zu %zu\n255\n", width,
            height);
    for (size_t r = 0; r < l.n_rollout; r++) {
        for (size_t y = 0; y < l.rows * SQUARE; y++)
            write_line(out.f, &l, tokens + r * l.n_frame * l.n_patch, y);
        for (size_t k = 0; k < GAP * width && r + 1 < l.n_rollout; k++)
            fwrite("\xff\xff\xff", 1, 3, out.f);
    }
    return output_close(&out, why);
}
