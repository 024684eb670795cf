/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the format, lets its decoder work, and turns the image as EXIF says. */
#include "common/image/image.h"
#include <stdbool.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

/* '?' in a signature is any byte. */
static const struct format {
    const char *name, *signature;
    size_t n;
    image_decoder decode;
} formats[] = {
    {"PNG", "\x89PNG\r\n\x1a\n", 8, image_decode_png},
    {"JPEG", "\xff\xd8\xff", 3, image_decode_jpeg},
    {"WebP", "RIFF????WEBP", 12, image_decode_webp},
    {"GIF", "GIF87a", 6, image_decode_gif},
    {"GIF", "GIF89a", 6, image_decode_gif},
};

FALLIBLE image_check_size(uint64_t width, uint64_t height, uint32_t pixels_max, struct q_err *e)
{
    if (width == 0 || height == 0)
        return q_fail(e, Q_CORRUPT, "image: %llu x %llu pixels", (unsigned long long)width,
                      (unsigned long long)height);
    if (width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX)
        return q_fail(e, Q_TOO_LARGE, "image: %llu x %llu pixels, a side has at most %u",
                      (unsigned long long)width, (unsigned long long)height, IMAGE_SIDE_MAX);
    if (width * height > pixels_max)
        return q_fail(e, Q_TOO_LARGE, "image: %llu x %llu pixels, at most %u are accepted",
                      (unsigned long long)width, (unsigned long long)height, pixels_max);
    return Q_OK;
}

FALLIBLE image_new(struct image *out, uint64_t width, uint64_t height, uint32_t pixels_max,
                   struct q_err *e)
{
    enum q_code rc = image_check_size(width, height, pixels_max, e);
    if (rc)
        return rc;
    unsigned char *rgb = q_alloc((size_t)(width * height * 3));
    if (!rgb)
        return q_fail(e, Q_NO_MEMORY, "image: out of memory for %llu x %llu pixels",
                      (unsigned long long)width, (unsigned long long)height);
    *out = (struct image){(uint32_t)width, (uint32_t)height, rgb};
    return Q_OK;
}

void image_on_white(unsigned char *rgb, const unsigned char *rgba, size_t n_pixel)
{
    for (size_t i = 0; i < n_pixel; i++, rgb += 3, rgba += 4) {
        /* One division for the sum of both products: two would round twice. */
        const unsigned alpha = rgba[3], white = 255 * (255 - alpha) + 128;
        for (unsigned c = 0; c < 3; c++) {
            const unsigned x = rgba[c] * alpha + white;
            rgb[c] = (unsigned char)((x + (x >> 8)) >> 8);
        }
    }
}

/* Replaces the image by the one that is shown for this orientation: pixel (x, y) of it is that at
 * first + x * step_x + y * step_y of the stored one. */
static enum q_code apply_orientation(struct image *i, unsigned orientation, struct q_err *e)
{
    const ptrdiff_t w = i->width, h = i->height, last = w * h - 1;
    const struct {
        ptrdiff_t first, step_x, step_y;
    } maps[9] = {
        [2] = {w - 1, -1, w},        // mirrored left to right
        [3] = {last, -1, -w},        // turned by 180 degrees
        [4] = {last - w + 1, 1, -w}, // mirrored top to bottom
        [5] = {0, w, 1},             // mirrored at the main diagonal
        [6] = {last - w + 1, -w, 1}, // turned by 90 degrees clockwise
        [7] = {last, -w, -1},        // mirrored at the other diagonal
        [8] = {w - 1, w, -1},        // turned by 90 degrees counterclockwise
    };
    struct image shown = {0};
    if (orientation < 2 || orientation > 8)
        return Q_OK;
    const bool is_turned = orientation >= 5;
    enum q_code rc = image_new(&shown, is_turned ? i->height : i->width,
                               is_turned ? i->width : i->height, IMAGE_PIXELS_MAX, e);
    if (rc)
        return rc;
    unsigned char *to = shown.rgb;
    for (uint32_t y = 0; y < shown.height; y++) {
        ptrdiff_t at = maps[orientation].first + (ptrdiff_t)y * maps[orientation].step_y;
        for (uint32_t x = 0; x < shown.width; x++, to += 3, at += maps[orientation].step_x)
            memcpy(to, i->rgb + at * 3, 3);
    }
    image_release(i);
    *i = shown;
    return Q_OK;
}

/* data[n] begins with this signature, or is a beginning of it. */
static bool is_format(const struct format *f, const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n && i < f->n; i++) {
        if (f->signature[i] != '?' && (unsigned char)f->signature[i] != data[i])
            return false;
    }
    return true;
}

FALLIBLE image_decode_within(struct image *out, const void *data, size_t n, uint32_t pixels_max,
                             struct q_err *e)
{
    const struct image_file file = {data, n, pixels_max};
    *out = (struct image){0};
    if (n == 0)
        return q_fail(e, Q_CORRUPT, "image: no bytes");
    const struct format *f = formats, *end = formats + sizeof formats / sizeof *formats;
    while (f < end && !is_format(f, data, n))
        f++;
    if (f == end)
        return q_fail(e, Q_UNSUPPORTED,
                      "image: the first bytes are of none of the accepted formats: PNG, JPEG, "
                      "WebP, GIF");
    if (n < f->n)
        return q_fail(e, Q_CORRUPT, "image: %s: cut off after %zu bytes", f->name, n);
    unsigned orientation = 1;
    struct image image = {0};
    enum q_code rc;
    if ((rc = f->decode(&image, &file, &orientation, e)) ||
        (rc = apply_orientation(&image, orientation, e))) {
        image_release(&image);
        return rc;
    }
    *out = image;
    return Q_OK;
}

FALLIBLE image_decode(struct image *out, const void *data, size_t n, struct q_err *e)
{
    return image_decode_within(out, data, n, IMAGE_PIXELS_MAX, e);
}

void image_release(struct image *i)
{
    q_free(i->rgb);
    *i = (struct image){0};
}
