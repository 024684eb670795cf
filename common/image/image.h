/* SPDX-License-Identifier: Apache-2.0 */
/* image - images from bytes to arrays of RGB.
 *
 *     PNG, JPEG, WebP or GIF -> [height][width][3] u8
 *
 * What the array holds, whatever the file has:
 * - Grey is repeated in the three channels, palettes are expanded.
 * - Alpha is composited on white: c' = round((c * a + 255 * (255 - a)) / 255), as Pillow's paste
 *   with a mask. A transparent color of a PNG or GIF has alpha 0.
 * - 16-bit channels become round(v * 255 / 65535) (png_set_scale_16), before compositing.
 * - CMYK and YCCK become RGB as in Pillow: with K' = 255 - K, R = K' - round(C * K' / 255). Files
 *   with Adobe's marker store the inks inverted; those without it do not.
 * - The orientation that EXIF names (1 to 8; in JPEG, PNG and WebP) is applied; any other value is
 *   as 1. Color profiles, gamma and the background colors of PNG, WebP and GIF are ignored.
 * - Of an animation the first frame, on a canvas that is white where the frame does not reach (of a
 *   PNG its default image).
 *
 * A file that is cut off or has broken data is an error, never a part of an image. What follows the
 * end of the (first) image is not read.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_IMAGE_IMAGE_H
#define QUIRE_COMMON_IMAGE_IMAGE_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* Of an image; checked from its header before anything is allocated for its pixels. The largest
 * images take 192 MiB, and while they are decoded up to about 800 MiB (progressive JPEG). */
#define IMAGE_PIXELS_MAX (1u << 26)
#define IMAGE_SIDE_MAX   65535u /* pixels; the most that JPEG and GIF can have */

struct image {
    uint32_t width, height;
    unsigned char *rgb; /* [height][width][3], rows without gaps; owned */
};

/* The format is found by the first bytes of data[n]; out need not be initialised and is empty after
 * an error. Errors: Q_UNSUPPORTED (none of these formats, the message says which there are; a
 * variant that is not read), Q_CORRUPT (cut off, broken: what), Q_TOO_LARGE (pixels, a side, scans
 * of a JPEG), Q_NO_MEMORY. Messages begin with "image: ". */
FALLIBLE image_decode(struct image *out, const void *data, size_t n, struct q_err *e);
void image_release(struct image *i); /* all zero is the empty value */

#endif
