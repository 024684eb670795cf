/* SPDX-License-Identifier: Apache-2.0 */
/* resize - an image of another size, with the bytes that Pillow's Image.resize gives (Pillow 11 and
 * 12; 13 does the columns first in some cases, and its bytes differ by the rounding between).
 *
 * Each output pixel x is a weighted mean of the input pixels i around its center. With the filter f
 * of support s, and scale = size in / size out:
 *
 *     center = (x + 0.5) * scale,  stretch = max(scale, 1)
 *     w[i] = f((i + 0.5 - center) / stretch) / sum,  i from round(center - s * stretch) to
 *     round(center + s * stretch) - 1, within the image
 *
 * Rows first, then columns; between them the image is rounded to bytes. Weights are computed in
 * double and rounded to integers of 22 fractional bits, sums are of integers: the result depends on
 * no order. A direction whose size stays is left as it is. IMAGE_NEAREST takes the pixel in which
 * the center lies.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_IMAGE_RESIZE_H
#define QUIRE_COMMON_IMAGE_RESIZE_H
#include "common/image/image.h"

/* Numbers of PIL.Image.Resampling, as "resample" of preprocessor_config.json has them. */
enum image_filter { IMAGE_NEAREST = 0, IMAGE_LANCZOS = 1, IMAGE_BILINEAR = 2, IMAGE_BICUBIC = 3 };

/* out: not `in`; need not be initialised, empty after an error. Errors: Q_INVALID (a size of 0, an
 * empty image), Q_UNSUPPORTED (another filter), Q_TOO_LARGE (a side, or the pixels of the result or
 * of the image between the two passes, which is `width` wide and as high as `in`),
 * Q_NO_MEMORY. Messages begin with "image: ". */
FALLIBLE image_resize(struct image *out, const struct image *in, uint32_t width, uint32_t height,
                      enum image_filter f, struct q_err *e);

#endif
