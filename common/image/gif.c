/* SPDX-License-Identifier: Apache-2.0 */
/* GIF by giflib: records are read up to the first frame, which is drawn row by row. The image has
 * the size of the screen, and is larger where the frame reaches over it, as in Pillow. Indices
 * without an entry in the palette, and files without a palette, are grey, likewise. */
#include <gif_lib.h>
#include <stdbool.h>
#include "common/image/image_internal.h"
#include "common/mem.h"

#define COLORS 256

struct source {
    const struct image_file *file;
    size_t at; /* of the next byte that giflib reads */
};

static int read_bytes(GifFileType *gif, GifByteType *to, int n)
{
    struct source *s = gif->UserData;
    const size_t left = s->file->n - s->at, n_read = (size_t)n < left ? (size_t)n : left;
    memcpy(to, s->file->data + s->at, n_read);
    s->at += n_read;
    return (int)n_read;
}

static enum q_code fail_read(int error, const struct source *s, struct q_err *e)
{
    const char *text = GifErrorString(error);
    if (error == D_GIF_ERR_NOT_ENOUGH_MEM)
        return q_fail(e, Q_NO_MEMORY, "image: GIF: out of memory");
    if (s->at == s->file->n)
        return q_fail(e, Q_CORRUPT, "image: GIF: cut off after %zu bytes", s->at);
    return q_fail(e, Q_CORRUPT, "image: GIF: %s, at byte %zu", text ? text : "broken data", s->at);
}

/* An extension; of a graphics control the transparent color, or NO_TRANSPARENT_COLOR. */
static bool read_extension(GifFileType *gif, int *transparent)
{
    GifByteType *block; /* its length, its bytes */
    GraphicsControlBlock control;
    int kind;
    if (DGifGetExtension(gif, &kind, &block) != GIF_OK)
        return false;
    if (kind == GRAPHICS_EXT_FUNC_CODE && block &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
        *transparent = control.TransparentColor;
    while (block) {
        if (DGifGetExtensionNext(gif, &block) != GIF_OK)
            return false;
    }
    return true;
}

/* Reads up to the first frame and its description. */
static enum q_code find_frame(GifFileType *gif, int *transparent, struct q_err *e)
{
    const struct source *s = gif->UserData;
    GifRecordType kind;
    for (;;) {
        if (DGifGetRecordType(gif, &kind) != GIF_OK)
            return fail_read(gif->Error, s, e);
        if (kind == IMAGE_DESC_RECORD_TYPE)
            break;
        if (kind == TERMINATE_RECORD_TYPE)
            return q_fail(e, Q_CORRUPT, "image: GIF: no frame");
        if (kind == EXTENSION_RECORD_TYPE && !read_extension(gif, transparent))
            return fail_read(gif->Error, s, e);
    }
    return DGifGetImageDesc(gif) == GIF_OK ? Q_OK : fail_read(gif->Error, s, e);
}

/* colors: [COLORS][3]. */
static void read_palette(unsigned char *colors, const GifFileType *gif, int transparent)
{
    const ColorMapObject *map = gif->Image.ColorMap ? gif->Image.ColorMap : gif->SColorMap;
    for (int i = 0; i < COLORS; i++) {
        if (i == transparent) {
            memset(colors + 3 * i, 255, 3);
        } else if (map && i < map->ColorCount) {
            const GifColorType *c = map->Colors + i;
            colors[3 * i] = c->Red;
            colors[3 * i + 1] = c->Green;
            colors[3 * i + 2] = c->Blue;
        } else {
            memset(colors + 3 * i, i, 3);
        }
    }
}

/* The frame lies in the image. row: [width of the frame]. */
static enum q_code draw_frame(struct image *out, GifFileType *gif, const unsigned char *colors,
                              unsigned char *row, struct q_err *e)
{
    static const struct {
        size_t first, step;
    } interlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, plain[] = {{0, 1}};
    const GifImageDesc *frame = &gif->Image;
    const size_t width = (size_t)frame->Width, height = (size_t)frame->Height;
    const size_t n_pass = frame->Interlace ? 4 : 1;
    for (size_t i_pass = 0; i_pass < n_pass; i_pass++) {
        const size_t first = frame->Interlace ? interlaced[i_pass].first : plain->first;
        const size_t step = frame->Interlace ? interlaced[i_pass].step : plain->step;
        for (size_t y = first; y < height; y += step) {
            if (DGifGetLine(gif, row, frame->Width) != GIF_OK)
                return fail_read(gif->Error, gif->UserData, e);
            unsigned char *to =
                out->rgb + (((size_t)frame->Top + y) * out->width + (size_t)frame->Left) * 3;
            for (size_t x = 0; x < width; x++)
                memcpy(to + 3 * x, colors + 3 * row[x], 3);
        }
    }
    return Q_OK;
}

static enum q_code decode(struct image *out, GifFileType *gif, struct q_err *e)
{
    const struct source *s = gif->UserData;
    const GifImageDesc *frame = &gif->Image;
    unsigned char colors[COLORS * 3], *row = NULL;
    int transparent = NO_TRANSPARENT_COLOR;
    enum q_code rc = find_frame(gif, &transparent, e);
    if (rc)
        return rc;
    /* Four numbers of 16 bits in the file. */
    const uint64_t right = (uint64_t)frame->Left + (uint64_t)frame->Width;
    const uint64_t bottom = (uint64_t)frame->Top + (uint64_t)frame->Height;
    const uint64_t width = right > (uint64_t)gif->SWidth ? right : (uint64_t)gif->SWidth;
    const uint64_t height = bottom > (uint64_t)gif->SHeight ? bottom : (uint64_t)gif->SHeight;
    if ((rc = image_check_size((uint64_t)frame->Width, (uint64_t)frame->Height, s->file->pixels_max,
                               e)) ||
        (rc = image_new(out, width, height, s->file->pixels_max, e)))
        return rc;
    if ((uint64_t)frame->Width < width || (uint64_t)frame->Height < height)
        memset(out->rgb, 255, (size_t)(width * height * 3));
    if (!(row = q_alloc((size_t)frame->Width)))
        return q_fail(e, Q_NO_MEMORY, "image: GIF: out of memory");
    read_palette(colors, gif, transparent);
    rc = draw_frame(out, gif, colors, row, e);
    q_free(row);
    return rc;
}

FALLIBLE image_decode_gif(struct image *out, const struct image_file *f, unsigned *orientation,
                          struct q_err *e)
{
    struct source s = {f, 0};
    int error = 0;
    (void)orientation; /* GIF has no EXIF */
    GifFileType *gif = DGifOpen(&s, read_bytes, &error);
    if (!gif)
        return fail_read(error, &s, e);
    enum q_code rc = decode(out, gif, e);
    (void)DGifCloseFile(gif, &error); /* its failures are of files that it opened itself */
    return rc;
}
