/* SPDX-License-Identifier: Apache-2.0 */
/* The two passes of a resampling, with the numbers of Pillow's: every rounding here is one of its.
 *
 * The horizontal pass sums the pixels of a row around each output pixel. The vertical pass adds
 * whole rows, each times one weight, to a row of sums: that loop is vectorized. */
#include "common/image/resize.h"
#include <math.h>
#include <stdbool.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

#define WEIGHT_BITS 22 /* fractional bits; 8 are left for the byte and 2 for sign and overshoot */

/* The weights of one direction; none (first is NULL) where the size stays. */
struct taps {
    uint32_t n_in, n_out, n_max;
    uint32_t *first; /* [n_out] the first input pixel of each output pixel, */
    uint32_t *n;     /* [n_out] how many there are */
    int32_t *weight; /* [n_out][n_max] and their weights */
};

/* ---- filters ---- */

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys' cubic convolution. */
static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static double sinc(double x)
{
    if (x == 0.0)
        return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double lanczos(double x)
{
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

static const struct {
    double (*at)(double x);
    double support;
} filters[] = {
    [IMAGE_LANCZOS] = {lanczos, 3.0},
    [IMAGE_BILINEAR] = {bilinear, 1.0},
    [IMAGE_BICUBIC] = {bicubic, 2.0},
};

/* ---- weights ---- */

static void taps_release(struct taps *t)
{
    q_free(t->first);
    q_free(t->n);
    q_free(t->weight);
    *t = (struct taps){0};
}

/* Those of output pixel x. exact: [n_max], scratch. */
static void set_taps(struct taps *t, uint32_t x, enum image_filter f, double *exact)
{
    const double scale = (double)t->n_in / t->n_out, stretch = scale < 1.0 ? 1.0 : scale;
    const double support = filters[f].support * stretch, per_pixel = 1.0 / stretch;
    const double center = (x + 0.5) * scale;
    const double begin = center - support + 0.5, end = center + support + 0.5;
    const uint32_t first = begin > 0 ? (uint32_t)begin : 0;
    const uint32_t n = (end < t->n_in ? (uint32_t)end : t->n_in) - first;
    const size_t at = (size_t)x * t->n_max;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        exact[i] = filters[f].at((i + first - center + 0.5) * per_pixel);
        sum += exact[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        const double w = (sum != 0.0 ? exact[i] / sum : exact[i]) * (1 << WEIGHT_BITS);
        t->weight[at + i] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
    t->first[x] = first;
    t->n[x] = n;
}

static enum q_code taps_init(struct taps *t, uint32_t n_in, uint32_t n_out, enum image_filter f,
                             struct q_err *e)
{
    const double stretch = n_in > n_out ? (double)n_in / n_out : 1.0;
    *t = (struct taps){
        .n_in = n_in,
        .n_out = n_out,
        .n_max = (uint32_t)ceil(filters[f].support * stretch) * 2 + 1,
    };
    if (n_in == n_out)
        return Q_OK;
    double *exact = q_alloc(t->n_max * sizeof *exact);
    t->first = q_alloc(n_out * sizeof *t->first);
    t->n = q_alloc(n_out * sizeof *t->n);
    t->weight = q_alloc((size_t)n_out * t->n_max * sizeof *t->weight);
    const bool is_complete = exact && t->first && t->n && t->weight;
    for (uint32_t x = 0; is_complete && x < n_out; x++)
        set_taps(t, x, f, exact);
    q_free(exact);
    return is_complete ? Q_OK : q_fail(e, Q_NO_MEMORY, "image: out of memory for weights");
}

/* ---- passes ---- */

static inline unsigned char to_byte(int32_t sum)
{
    sum >>= WEIGHT_BITS;
    return (unsigned char)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* from: [n_in][3]; to: [n_out][3]. */
static void resize_row(unsigned char *to, const unsigned char *from, const struct taps *t)
{
    for (uint32_t x = 0; x < t->n_out; x++, to += 3) {
        const unsigned char *p = from + (size_t)t->first[x] * 3;
        const int32_t *weight = t->weight + (size_t)x * t->n_max;
        int32_t r = 1 << (WEIGHT_BITS - 1), g = r, b = r;
        for (uint32_t i = 0; i < t->n[x]; i++, p += 3) {
            r += p[0] * weight[i];
            g += p[1] * weight[i];
            b += p[2] * weight[i];
        }
        to[0] = to_byte(r);
        to[1] = to_byte(g);
        to[2] = to_byte(b);
    }
}

static enum q_code resize_rows(struct image *out, const struct image *in, const struct taps *t,
                               struct q_err *e)
{
    enum q_code rc = image_new(out, t->n_out, in->height, IMAGE_PIXELS_MAX, e);
    if (rc)
        return rc;
    for (size_t y = 0; y < in->height; y++)
        resize_row(out->rgb + y * t->n_out * 3, in->rgb + y * in->width * 3, t);
    return Q_OK;
}

static void add_row(int32_t *restrict sums, const unsigned char *restrict row, size_t n,
                    int32_t weight)
{
    for (size_t i = 0; i < n; i++)
        sums[i] += row[i] * weight;
}

static enum q_code resize_columns(struct image *out, const struct image *in, const struct taps *t,
                                  struct q_err *e)
{
    const size_t n = (size_t)in->width * 3;
    enum q_code rc = image_new(out, in->width, t->n_out, IMAGE_PIXELS_MAX, e);
    if (rc)
        return rc;
    int32_t *sums = q_alloc(n * sizeof *sums);
    if (!sums) {
        image_release(out);
        return q_fail(e, Q_NO_MEMORY, "image: out of memory for a row");
    }
    for (size_t y = 0; y < t->n_out; y++) {
        for (size_t i = 0; i < n; i++)
            sums[i] = 1 << (WEIGHT_BITS - 1);
        for (size_t i = 0; i < t->n[y]; i++)
            add_row(sums, in->rgb + (t->first[y] + i) * n, n, t->weight[y * t->n_max + i]);
        for (size_t i = 0; i < n; i++)
            out->rgb[y * n + i] = to_byte(sums[i]);
    }
    q_free(sums);
    return Q_OK;
}

static enum q_code resample(struct image *out, const struct image *in, uint32_t width,
                            uint32_t height, enum image_filter f, struct q_err *e)
{
    struct taps across = {0}, down = {0};
    struct image between = {0};
    enum q_code rc;
    if (!(rc = taps_init(&across, in->width, width, f, e)) &&
        !(rc = taps_init(&down, in->height, height, f, e))) {
        if (!across.first)
            rc = resize_columns(out, in, &down, e);
        else if (!down.first)
            rc = resize_rows(out, in, &across, e);
        else if (!(rc = resize_rows(&between, in, &across, e)))
            rc = resize_columns(out, &between, &down, e);
    }
    image_release(&between);
    taps_release(&across);
    taps_release(&down);
    return rc;
}

/* The input pixel of each of n_out output pixels. Centers are sums of steps and no products, as
 * Pillow computes them: the last bit decides at the border of two pixels. */
static uint32_t *nearest_pixels(uint32_t n_in, uint32_t n_out)
{
    const double step = (double)n_in / n_out;
    double center = step * 0.5;
    uint32_t *pixels = q_alloc(n_out * sizeof *pixels);
    for (uint32_t x = 0; pixels && x < n_out; x++, center += step)
        pixels[x] = center < n_in ? (uint32_t)center : n_in - 1;
    return pixels;
}

static enum q_code take_nearest(struct image *out, const struct image *in, uint32_t width,
                                uint32_t height, struct q_err *e)
{
    enum q_code rc = image_new(out, width, height, IMAGE_PIXELS_MAX, e);
    if (rc)
        return rc;
    uint32_t *columns = nearest_pixels(in->width, width);
    uint32_t *rows = nearest_pixels(in->height, height);
    if (!columns || !rows) {
        image_release(out);
        rc = q_fail(e, Q_NO_MEMORY, "image: out of memory for %u x %u pixels", width, height);
    }
    for (uint32_t y = 0; !rc && y < height; y++) {
        unsigned char *to = out->rgb + (size_t)y * width * 3;
        const unsigned char *from = in->rgb + (size_t)rows[y] * in->width * 3;
        for (uint32_t x = 0; x < width; x++)
            memcpy(to + (size_t)x * 3, from + (size_t)columns[x] * 3, 3);
    }
    q_free(columns);
    q_free(rows);
    return rc;
}

FALLIBLE image_resize(struct image *out, const struct image *in, uint32_t width, uint32_t height,
                      enum image_filter f, struct q_err *e)
{
    *out = (struct image){0};
    if (width == 0 || height == 0 || !in->rgb)
        return q_fail(e, Q_INVALID, "image: resize of %u x %u to %u x %u pixels", in->width,
                      in->height, width, height);
    if ((unsigned)f > IMAGE_BICUBIC)
        return q_fail(e, Q_UNSUPPORTED,
                      "image: resample %u: 0 (nearest), 1 (lanczos), 2 (bilinear) and 3 (bicubic) "
                      "are supported",
                      (unsigned)f);
    enum q_code rc = image_check_size(width, height, IMAGE_PIXELS_MAX, e);
    if (rc)
        return rc;
    if (width == in->width && height == in->height) {
        if (!(rc = image_new(out, width, height, IMAGE_PIXELS_MAX, e)))
            memcpy(out->rgb, in->rgb, (size_t)width * height * 3);
        return rc;
    }
    if (f == IMAGE_NEAREST)
        return take_nearest(out, in, width, height, e);
    return resample(out, in, width, height, f, e);
}
