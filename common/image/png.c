/* SPDX-License-Identifier: Apache-2.0 */
/* PNG by libpng.
 *
 * libpng reports an error by a function that must not return: fail_read leaves by longjmp to the
 * setjmp in run_guarded, across frames of libpng and of decode, which own nothing: whatever is
 * allocated is in struct reader, which the function above run_guarded owns. The size is read from
 * the bytes of IHDR before libpng sees them, and so is eXIf, because libpng allocates what a
 * chunk's length says before it has the bytes. Of all other chunks libpng gets IHDR, PLTE, tRNS,
 * IDAT and IEND alone. */
#include <png.h>
#include <setjmp.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

#define SIGNATURE_BYTES 8
#define CHUNK_BYTES     12 /* length, type and CRC around the data of a chunk */
#define HEADER_BYTES    (SIGNATURE_BYTES + CHUNK_BYTES + 13)
#define CHUNK_BYTES_MAX (1u << 20) /* of one chunk but IDAT: PLTE and tRNS are smaller */

struct reader {
    const struct image_file *file;
    size_t at; /* of the next byte that libpng reads */
    png_struct *png;
    png_info *info;
    struct image *out;
    unsigned char *rgba; /* rows of an image with alpha: one, or all if it is interlaced */
    struct q_err *e;
    enum q_code rc; /* of fail_read */
    jmp_buf on_error;
};

static _Noreturn void fail_read(png_struct *png, const char *text)
{
    struct reader *r = png_get_error_ptr(png);
    r->rc = q_fail(r->e, Q_CORRUPT, "image: PNG: %s", text);
    longjmp(r->on_error, 1);
}

static void ignore_warning(png_struct *png, const char *text)
{
    (void)png;
    (void)text;
}

static void *allocate(png_struct *png, size_t n)
{
    (void)png;
    return q_alloc(n);
}

static void release(png_struct *png, void *p)
{
    (void)png;
    q_free(p);
}

static void read_bytes(png_struct *png, unsigned char *to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);
    if (n > r->file->n - r->at)
        png_error(png, "the file is cut off");
    memcpy(to, r->file->data + r->at, n);
    r->at += n;
}

static enum q_code start(struct reader *r)
{
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, fail_read, ignore_warning, NULL,
                                      allocate, release);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info)
        return q_fail(r->e, Q_NO_MEMORY, "image: PNG: out of memory");
    png_set_read_fn(r->png, r, read_bytes);
    png_set_user_limits(r->png, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(r->png, CHUNK_BYTES_MAX);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    return Q_OK;
}

static enum q_code decode(struct reader *r)
{
    enum q_code rc = start(r);
    if (rc)
        return rc;
    png_read_info(r->png, r->info);
    png_set_expand(r->png); /* palettes, fewer than 8 bits, tRNS to alpha */
    png_set_scale_16(r->png);
    png_set_gray_to_rgb(r->png);
    const int n_pass = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    const size_t width = png_get_image_width(r->png, r->info);
    const size_t height = png_get_image_height(r->png, r->info);
    const size_t n_channel = png_get_channels(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) != width * n_channel || n_channel < 3)
        png_error(r->png, "rows of an unknown form");
    if ((rc = image_new(r->out, width, height, r->file->pixels_max, r->e)))
        return rc;
    if (n_channel == 4 && !(r->rgba = q_alloc(width * 4 * (n_pass > 1 ? height : 1))))
        return q_fail(r->e, Q_NO_MEMORY, "image: PNG: out of memory");
    for (int i_pass = 0; i_pass < n_pass; i_pass++) {
        for (size_t y = 0; y < height; y++) {
            unsigned char *to = r->out->rgb + y * width * 3;
            unsigned char *row = r->rgba ? r->rgba + (n_pass > 1 ? y * width * 4 : 0) : to;
            png_read_row(r->png, row, NULL);
            if (r->rgba && i_pass == n_pass - 1)
                image_on_white(to, row, width);
        }
    }
    png_read_end(r->png, NULL);
    return Q_OK;
}

static enum q_code run_guarded(struct reader *r)
{
    if (setjmp(r->on_error))
        return r->rc;
    return decode(r);
}

static enum q_code read_header(const struct image_file *f, struct q_err *e)
{
    const unsigned char *header = f->data + SIGNATURE_BYTES;
    if (f->n < HEADER_BYTES)
        return q_fail(e, Q_CORRUPT, "image: PNG: cut off after %zu bytes", f->n);
    if (image_u32_be(header) != 13 || memcmp(header + 4, "IHDR", 4) != 0)
        return q_fail(e, Q_CORRUPT, "image: PNG: the first chunk is no header");
    return image_check_size(image_u32_be(header + 8), image_u32_be(header + 12), f->pixels_max, e);
}

/* Of the chunk eXIf, wherever it is; what is malformed is left to libpng to find. */
static unsigned find_orientation(const struct image_file *f)
{
    for (size_t at = SIGNATURE_BYTES; f->n - at >= CHUNK_BYTES;) {
        const size_t n = image_u32_be(f->data + at);
        if (n > f->n - at - CHUNK_BYTES)
            break;
        if (memcmp(f->data + at + 4, "eXIf", 4) == 0)
            return image_exif_orientation(f->data + at + 8, n);
        at += CHUNK_BYTES + n;
    }
    return 1;
}

FALLIBLE image_decode_png(struct image *out, const struct image_file *f, unsigned *orientation,
                          struct q_err *e)
{
    struct reader r = {.file = f, .out = out, .e = e};
    const uint64_t n_failure = mem_failure_count();
    enum q_code rc = read_header(f, e);
    if (rc)
        return rc;
    rc = mem_check(n_failure, run_guarded(&r), "an image", e);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    q_free(r.rgba);
    *orientation = find_orientation(f);
    return rc;
}
