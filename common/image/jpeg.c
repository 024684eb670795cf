/* SPDX-License-Identifier: Apache-2.0 */
/* JPEG by libjpeg-turbo, with its defaults: the accurate integer DCT and smooth upsampling, as
 * Pillow has them.
 *
 * libjpeg reports an error by a function that must not return: fail_read leaves by longjmp to the
 * setjmp in run_guarded, across frames of libjpeg and of decode, which own nothing: whatever is
 * allocated is in struct reader, which the function above run_guarded owns. Warnings that mean
 * missing or broken data of pixels are errors, because libjpeg goes on with grey in their place;
 * other warnings are ignored. A progressive image is a sequence of scans, each of which costs time
 * in proportion to the whole image, and a scan can have a few bytes: scans are limited. */
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <jpeglib.h>
#include <jerror.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

#define SCANS_MAX 100 /* encoders write about 10 */
#define MEMORY_BYTES \
    (1l << 30) /* libjpeg's own, most of it coefficients: 8 bytes a pixel at most */
#define MARKER_EXIF (JPEG_APP0 + 1)

struct reader {
    const struct image_file *file;
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct image *out;
    unsigned char *cmyk; /* a row [width][4]; NULL for images without K */
    unsigned orientation;
    struct q_err *e;
    enum q_code rc; /* of fail_read */
    jmp_buf on_error;
};

static enum q_code code_of(int message)
{
    switch (message) {
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_EMPTY_IMAGE: /* of no rows: their number follows the first scan (DNL) */
    case JERR_SOF_UNSUPPORTED:
        return Q_UNSUPPORTED;
    case JERR_IMAGE_TOO_BIG:
    case JERR_NO_BACKING_STORE: /* more than MEMORY_BYTES */
        return Q_TOO_LARGE;
    case JERR_OUT_OF_MEMORY:
        return Q_NO_MEMORY;
    default:
        return Q_CORRUPT;
    }
}

static _Noreturn void fail_read(j_common_ptr jpeg)
{
    struct reader *r = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    r->rc = q_fail(r->e, code_of(jpeg->err->msg_code), "image: JPEG: %s", text);
    longjmp(r->on_error, 1);
}

/* level: -1 of a warning. Nothing else calls what would print. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level >= 0)
        return;
    switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER: /* a scan ends before its last block */
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC: /* a restart marker that is missing */
        fail_read(jpeg);
    }
}

static void check_scans(j_common_ptr jpeg)
{
    struct reader *r = jpeg->client_data;
    if (r->jpeg.input_scan_number <= SCANS_MAX)
        return;
    r->rc = q_fail(r->e, Q_TOO_LARGE, "image: JPEG: more than %d scans", SCANS_MAX);
    longjmp(r->on_error, 1);
}

static void cmyk_to_rgb(unsigned char *rgb, const unsigned char *cmyk, size_t n_pixel,
                        bool is_inverted)
{
    const unsigned invert = is_inverted ? 255 : 0;
    for (size_t i = 0; i < n_pixel; i++, rgb += 3, cmyk += 4) {
        const unsigned light = 255 - (cmyk[3] ^ invert);
        for (unsigned c = 0; c < 3; c++)
            rgb[c] = (unsigned char)(light - image_mul_255(cmyk[c] ^ invert, light));
    }
}

static enum q_code read_header(struct reader *r)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    jpeg_create_decompress(j);
    j->mem->max_memory_to_use = MEMORY_BYTES;
    j->progress = &r->progress;
    jpeg_mem_src(j, r->file->data, r->file->n);
    jpeg_save_markers(j, MARKER_EXIF, 0xffff);
    jpeg_read_header(j, TRUE);
    for (jpeg_saved_marker_ptr m = j->marker_list; m; m = m->next) {
        if (m->marker == MARKER_EXIF && m->data_length > 6 && memcmp(m->data, "Exif\0", 6) == 0) {
            r->orientation = image_exif_orientation(m->data, m->data_length);
            break;
        }
    }
    switch (j->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr:
        j->out_color_space = JCS_RGB;
        break;
    case JCS_CMYK:
    case JCS_YCCK:
        j->out_color_space = JCS_CMYK;
        break;
    default:
        return q_fail(r->e, Q_UNSUPPORTED, "image: JPEG: %d components; 1, 3 and 4 are read",
                      j->num_components);
    }
    return image_check_size(j->image_width, j->image_height, r->file->pixels_max, r->e);
}

static enum q_code decode(struct reader *r)
{
    struct jpeg_decompress_struct *j = &r->jpeg;
    enum q_code rc = read_header(r);
    if (rc || (rc = image_new(r->out, j->image_width, j->image_height, r->file->pixels_max, r->e)))
        return rc;
    const size_t width = j->image_width;
    if (j->out_color_space == JCS_CMYK && !(r->cmyk = q_alloc(width * 4)))
        return q_fail(r->e, Q_NO_MEMORY, "image: JPEG: out of memory");
    jpeg_start_decompress(j);
    while (j->output_scanline < j->output_height) {
        unsigned char *to = r->out->rgb + j->output_scanline * width * 3;
        unsigned char *row = r->cmyk ? r->cmyk : to;
        jpeg_read_scanlines(j, &row, 1);
        if (r->cmyk)
            cmyk_to_rgb(to, row, width, j->saw_Adobe_marker);
    }
    jpeg_finish_decompress(j); /* reads to the end of the image */
    return Q_OK;
}

static enum q_code run_guarded(struct reader *r)
{
    if (setjmp(r->on_error))
        return r->rc;
    return decode(r);
}

FALLIBLE image_decode_jpeg(struct image *out, const struct image_file *f, unsigned *orientation,
                           struct q_err *e)
{
    struct reader r = {.file = f, .out = out, .orientation = 1, .e = e};
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.jpeg.client_data = &r;
    r.errors.error_exit = fail_read;
    r.errors.emit_message = on_message;
    r.progress.progress_monitor = check_scans;
    enum q_code rc = run_guarded(&r);
    jpeg_destroy_decompress(&r.jpeg);
    q_free(r.cmyk);
    *orientation = r.orientation;
    return rc;
}
