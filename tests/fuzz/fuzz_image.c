/* SPDX-License-Identifier: Apache-2.0 */
/* A file with an image: an error with a message, or an image that can be read whole and resized. */
#include "common/image/image.h"
#include "common/image/image_internal.h"
#include "common/image/resize.h"

#define PIXELS_MAX (1u << 16) /* for speed: what is larger is an error */
#define SMALL      2048       /* pixels of images that are resized */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint64_t sink;

static void read_pixels(const struct image *i)
{
    for (size_t at = 0; at < (size_t)i->width * i->height * 3; at++)
        sink += i->rgb[at];
}

static void resize_all(const struct image *in)
{
    const uint32_t sizes[][2] = {{7, 5}, {1, 1}, {in->width * 2 + 1, 3}, {3, in->height}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int filter = IMAGE_NEAREST; filter <= IMAGE_BICUBIC; filter++) {
            struct image out;
            struct q_err e = Q_ERR_INIT;
            const enum q_code rc =
                image_resize(&out, in, sizes[i][0], sizes[i][1], (enum image_filter)filter, &e);
            Q_ASSERT(rc == Q_OK && out.width == sizes[i][0] && out.height == sizes[i][1]);
            read_pixels(&out);
            image_release(&out);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct image image;
    struct q_err e = Q_ERR_INIT;
    sink += image_exif_orientation(data, n);
    if (image_decode_within(&image, data, n, PIXELS_MAX, &e)) {
        Q_ASSERT(*e.message && !image.rgb);
        return 0;
    }
    Q_ASSERT(image.rgb && image.width && image.height);
    Q_ASSERT((uint64_t)image.width * image.height <= PIXELS_MAX);
    read_pixels(&image);
    if (image.width * image.height <= SMALL)
        resize_all(&image);
    image_release(&image);
    return 0;
}
