/* SPDX-License-Identifier: Apache-2.0 */
/* draw_weights - random weights of test models, written beside their config before tests run.
 *
 * A folder's weights.txt has a line for each tensor; the numbers are made of the seed, the tensor's
 * name and the element's place, with integers and single roundings of a double, so that every
 * machine writes the same bytes and goldens that torch computed once stay true. Committed are
 * weights.txt and the golden, at a tenth of the size. tests/data/redraw.py writes both.
 *
 *     draw_weights FOLDER/weights.txt ...
 *
 *     seed 7
 *     file model.safetensors                        the lines below it, up to the next
 *     F32 512,64 0 0.8 model.embed_tokens.weight    dtype, shape, centre, spread, name
 *     U8 6,64 118 124 model.scales                  bytes: the smallest and the largest
 *
 * A file that has these bytes already is left alone, so that its time does not change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/hub/safetensors_write.h"

#define LINES_MAX   4096u
#define NAME_MAX_   192u
#define TEXT_MAX    (1u << 20)
#define WEIGHTS_MAX (16u << 20) /* bytes of one file */
/* Of the sum of four numbers of 16 bits: twice its mean, and its standard deviation. */
#define SUM_MEAN    131070
#define SUM_SPREAD  37837.227 /* sqrt(4 * (65536^2 - 1) / 12) */

struct line {
    char name[NAME_MAX_];
    double centre, spread; /* U8: the smallest and the largest */
};

struct drawing { /* one file */
    uint64_t seed;
    char path[PATH_MAX];
    uint32_t n;
    struct line lines[LINES_MAX];
    struct safetensors_item items[LINES_MAX];
};

static uint64_t mixed(uint64_t x)
{
    /* The finalizer of splitmix64. Source: Steele, Lea, Flood: Fast splittable generators, 2014. */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t stream_of(uint64_t seed, const char *name)
{
    uint64_t h = mixed(seed + 1);
    for (; *name; name++)
        h = mixed(h ^ (unsigned char)*name);
    return h;
}

/* Bell-shaped, within 3.5 spreads of the centre. */
static float number(uint64_t bits, const struct line *l)
{
    int64_t sum = -SUM_MEAN;
    for (uint32_t i = 0; i < 4; i++)
        sum += (int64_t)(bits >> 16 * i & 0xffff);
    return (float)((double)sum * (l->spread / SUM_SPREAD) + l->centre);
}

static void add_element(struct buf *out, enum dtype dtype, uint64_t bits, const struct line *l)
{
    if (dtype == DT_U8) {
        const uint64_t low = (uint64_t)l->centre, high = (uint64_t)l->spread;
        buf_add_char(out, (char)(low + (bits >> 8) % (high - low + 1)));
        return;
    }
    const float f = number(bits, l);
    const uint16_t half = dtype == DT_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
    if (dtype == DT_F32)
        buf_add(out, &f, sizeof f);
    else
        buf_add(out, &half, sizeof half);
}

/* The file's bytes, and the file where it has others. */
static FALLIBLE draw(struct drawing *d, struct q_err *e)
{
    struct buf out = BUF_INIT_MAX(WEIGHTS_MAX), before = BUF_INIT_MAX(WEIGHTS_MAX);
    uint64_t n_file;
    enum q_code rc;
    if ((rc = safetensors_layout(d->items, d->n, &out, &n_file, e)))
        goto end;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct safetensors_item *item = &d->items[i];
        const uint64_t stream = stream_of(d->seed, item->name);
        const uint64_t n = item->n_bytes * 8 / dtype_bits(item->dtype);
        for (uint64_t k = 0; k < n; k++)
            add_element(&out, item->dtype, mixed(stream + (k + 1) * 0x9e3779b97f4a7c15u),
                        &d->lines[i]);
    }
    if ((rc = buf_check(&out, d->path, e)))
        goto end;
    if (file_exists(d->path) && (rc = file_read(&before, d->path, WEIGHTS_MAX, e)))
        goto end;
    if (before.len != out.len || memcmp(before.data, out.data, out.len) != 0)
        rc = file_write(d->path, out.data, out.len, 0644, e);
end:
    buf_release(&out);
    buf_release(&before);
    return rc;
}

/* "6,64" or "-" for a number by itself. */
static bool shape_parse(struct safetensors_item *item, const char *text)
{
    if (strcmp(text, "-") == 0)
        return true;
    for (char *end;; text = end + 1) {
        if (item->n_dim == TENSOR_DIMS_MAX)
            return false;
        item->shape[item->n_dim] = strtoull(text, &end, 10);
        if (end == text || !item->shape[item->n_dim++] || (*end && *end != ','))
            return false;
        if (!*end)
            return true;
    }
}

static FALLIBLE tensor_line(struct drawing *d, const char *text, struct q_err *e)
{
    char dtype[8], shape[64];
    struct line *l = &d->lines[d->n];
    struct safetensors_item *item = &d->items[d->n];
    *item = (struct safetensors_item){.name = l->name};
    if (d->n == LINES_MAX || !*d->path ||
        sscanf(text, "%7s %63s %lf %lf %191s", dtype, shape, &l->centre, &l->spread, l->name) !=
            5 ||
        !dtype_parse(&item->dtype, dtype) || !shape_parse(item, shape))
        return q_fail(e, Q_INVALID, "'%s' is no seed, file or tensor", text);
    if (item->dtype != DT_U8 && item->dtype != DT_F32 && item->dtype != DT_BF16 &&
        item->dtype != DT_F16)
        return q_fail(e, Q_INVALID, "%s: %s cannot be drawn", l->name, dtype);
    if (item->dtype == DT_U8 && !(l->centre >= 0 && l->spread >= l->centre && l->spread <= 255))
        return q_fail(e, Q_INVALID, "%s: bytes of %g to %g", l->name, l->centre, l->spread);
    d->n++;
    return Q_OK;
}

/* text: NUL-terminated, cut into lines here. */
static FALLIBLE draw_all(struct drawing *d, const char *folder, char *text, struct q_err *e)
{
    enum q_code rc = Q_OK;
    char *rest = text, *line;
    while (!rc && (line = strsep(&rest, "\n"))) {
        if (!*line || *line == '#')
            continue;
        if (strncmp(line, "seed ", 5) == 0) {
            d->seed = strtoull(line + 5, NULL, 10);
        } else if (strncmp(line, "file ", 5) == 0) {
            if (d->n && (rc = draw(d, e)))
                return rc;
            d->n = 0;
            rc = path_join(d->path, sizeof d->path, folder, line + 5, e);
        } else {
            rc = tensor_line(d, line, e);
        }
    }
    return rc ? rc : draw(d, e);
}

int main(int argc, char **argv)
{
    static struct drawing d;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        struct buf text = BUF_INIT_MAX(TEXT_MAX);
        struct q_err e = Q_ERR_INIT;
        char folder[PATH_MAX];
        const char *slash = strrchr(argv[i], '/');
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - argv[i]) : 1,
                 slash ? argv[i] : ".");
        d.n = 0;
        d.seed = 0;
        *d.path = '\0';
        if (file_read(&text, argv[i], TEXT_MAX, &e) || draw_all(&d, folder, text.data, &e)) {
            fprintf(stderr, "draw_weights: %s: %s\n", argv[i], e.message);
            failed = 1;
        }
        buf_release(&text);
    }
    return failed;
}
