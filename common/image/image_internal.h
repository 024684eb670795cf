/* SPDX-License-Identifier: Apache-2.0 */
/* image_internal - what the decoders of the formats share. Threads: reentrant. */
#ifndef QUIRE_COMMON_IMAGE_IMAGE_INTERNAL_H
#define QUIRE_COMMON_IMAGE_IMAGE_INTERNAL_H
#include "common/image/image.h"

/* The file of one call of image_decode. */
struct image_file {
    const unsigned char *data; /* [n], borrowed from the caller until image_decode returns */
    size_t n;
    uint32_t pixels_max;
};

/* A decoder: out is empty before, and after a failure whatever can be released. orientation: 1
 * before; what EXIF says after, not applied. */
typedef enum q_code (*image_decoder)(struct image *out, const struct image_file *f,
                                     unsigned *orientation, struct q_err *e);
FALLIBLE image_decode_png(struct image *out, const struct image_file *f, unsigned *orientation,
                          struct q_err *e);
FALLIBLE image_decode_jpeg(struct image *out, const struct image_file *f, unsigned *orientation,
                           struct q_err *e);
FALLIBLE image_decode_webp(struct image *out, const struct image_file *f, unsigned *orientation,
                           struct q_err *e);
FALLIBLE image_decode_gif(struct image *out, const struct image_file *f, unsigned *orientation,
                          struct q_err *e);

/* As image_decode, with another limit of pixels, at most IMAGE_PIXELS_MAX (fuzzing). */
FALLIBLE image_decode_within(struct image *out, const void *data, size_t n, uint32_t pixels_max,
                             struct q_err *e);

/* Memory for an image of this size, not initialised. Errors: Q_CORRUPT (a side of 0), Q_TOO_LARGE,
 * Q_NO_MEMORY. */
FALLIBLE image_new(struct image *out, uint64_t width, uint64_t height, uint32_t pixels_max,
                   struct q_err *e);
/* The checks of image_new alone. */
FALLIBLE image_check_size(uint64_t width, uint64_t height, uint32_t pixels_max, struct q_err *e);

/* rgba: [n_pixel][4], composited on white into rgb: [n_pixel][3]. */
void image_on_white(unsigned char *rgb, const unsigned char *rgba, size_t n_pixel);

/* The orientation (1 to 8) in a block of EXIF: a TIFF header and its first directory, with or
 * without "Exif\0\0" before it. 1 if there is none or the block is malformed. */
unsigned image_exif_orientation(const unsigned char *data, size_t n);

static inline uint32_t image_u32_be(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* round(a * b / 255) of bytes. */
static inline unsigned image_mul_255(unsigned a, unsigned b)
{
    const unsigned x = a * b + 128;
    return (x + (x >> 8)) >> 8;
}

#endif
