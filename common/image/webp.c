/* SPDX-License-Identifier: Apache-2.0 */
/* WebP by libwebp: the demuxer finds the first frame and EXIF in the container, the decoder writes
 * the frame into memory of ours. A frame without alpha is decoded where it belongs in the image;
 * one with alpha apart, to be composited on white. */
#include <stdbool.h>
#include <webp/decode.h>
#include <webp/demux.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

static enum q_code fail_status(VP8StatusCode status, struct q_err *e)
{
    switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return q_fail(e, Q_NO_MEMORY, "image: WebP: out of memory");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return q_fail(e, Q_UNSUPPORTED, "image: WebP: a feature that libwebp does not support");
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return q_fail(e, Q_CORRUPT, "image: WebP: the data of the frame is cut off");
    default:
        return q_fail(e, Q_CORRUPT, "image: WebP: the data of the frame is broken");
    }
}

/* The frame, of its own width and height, to pixels of 3 or 4 (is_alpha) bytes; stride: bytes from
 * row to row. */
static enum q_code decode_frame(unsigned char *to, size_t stride, bool is_alpha,
                                const WebPIterator *frame, struct q_err *e)
{
    WebPDecoderConfig config;
    const size_t width = (size_t)frame->width, height = (size_t)frame->height;
    if (!WebPInitDecoderConfig(&config))
        return q_fail(e, Q_UNSUPPORTED, "image: WebP: another version of libwebp");
    VP8StatusCode status =
        WebPGetFeatures(frame->fragment.bytes, frame->fragment.size, &config.input);
    if (status != VP8_STATUS_OK)
        return fail_status(status, e);
    if (config.input.width != frame->width || config.input.height != frame->height)
        return q_fail(e, Q_CORRUPT, "image: WebP: a frame of %d x %d pixels has data of %d x %d",
                      frame->width, frame->height, config.input.width, config.input.height);
    config.output.colorspace = is_alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = to;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = stride * (height - 1) + width * (is_alpha ? 4 : 3);
    status = WebPDecode(frame->fragment.bytes, frame->fragment.size, &config);
    WebPFreeDecBuffer(&config.output);
    return status == VP8_STATUS_OK ? Q_OK : fail_status(status, e);
}

/* The demuxer has checked that the frame lies in the image. */
static enum q_code draw_frame(struct image *out, const WebPIterator *frame, struct q_err *e)
{
    const size_t stride = (size_t)out->width * 3, width = (size_t)frame->width;
    const size_t height = (size_t)frame->height;
    unsigned char *first = out->rgb + (size_t)frame->y_offset * stride + frame->x_offset * 3;
    if (width < out->width || height < out->height)
        memset(out->rgb, 255, stride * out->height);
    if (!frame->has_alpha)
        return decode_frame(first, stride, false, frame, e);
    unsigned char *rgba = q_alloc(width * height * 4);
    if (!rgba)
        return q_fail(e, Q_NO_MEMORY, "image: WebP: out of memory");
    enum q_code rc = decode_frame(rgba, width * 4, true, frame, e);
    for (size_t y = 0; !rc && y < height; y++)
        image_on_white(first + y * stride, rgba + y * width * 4, width);
    q_free(rgba);
    return rc;
}

static unsigned find_orientation(const WebPDemuxer *demuxer)
{
    WebPChunkIterator exif;
    unsigned orientation = 1;
    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &exif)) {
        orientation = image_exif_orientation(exif.chunk.bytes, exif.chunk.size);
        WebPDemuxReleaseChunkIterator(&exif);
    }
    return orientation;
}

/* RIFF says how many bytes follow its first 8. */
static bool is_cut_off(const struct image_file *f)
{
    const uint32_t n = (uint32_t)f->data[7] << 24 | (uint32_t)f->data[6] << 16 |
                       (uint32_t)f->data[5] << 8 | f->data[4];
    return n > f->n - 8;
}

FALLIBLE image_decode_webp(struct image *out, const struct image_file *f, unsigned *orientation,
                           struct q_err *e)
{
    const WebPData data = {f->data, f->n};
    WebPIterator frame;
    if (is_cut_off(f))
        return q_fail(e, Q_CORRUPT, "image: WebP: cut off after %zu bytes", f->n);
    WebPDemuxer *demuxer = WebPDemux(&data);
    if (!demuxer)
        return q_fail(e, Q_CORRUPT, "image: WebP: the container is broken");
    enum q_code rc;
    if (!WebPDemuxGetFrame(demuxer, 1, &frame)) {
        rc = q_fail(e, Q_CORRUPT, "image: WebP: no frame");
    } else {
        if (!(rc = image_new(out, WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH),
                             WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT), f->pixels_max, e)))
            rc = draw_frame(out, &frame, e);
        WebPDemuxReleaseIterator(&frame);
    }
    *orientation = find_orientation(demuxer);
    WebPDemuxDelete(demuxer);
    return rc;
}
