/* SPDX-License-Identifier: Apache-2.0 */
/* item_image - an image in a request, in the forms that clients of OpenAI's and Anthropic's APIs
 * send:
 *
 *     "data:image/png;base64,…"                   the bytes; the media type has no effect
 *     "file:///srv/media/a.png"                   where the rules allow files
 *     {"url": "data:…", "detail": "auto"}         content parts, and items of multi_modal_data
 *     {"type": "base64", "media_type": "image/png", "data": "…"}, {"type": "url", "url": "data:…"}
 *
 * Nothing is fetched from the network. The format is told by the bytes (common/image). Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_ITEMS_ITEM_IMAGE_H
#define QUIRE_COMMON_ITEMS_ITEM_IMAGE_H
#include <jansson.h>
#include <stdbool.h>
#include "common/image/image.h"
#include "common/items/items.h"

/* Is it an image in one of these forms, and not an array of numbers? */
bool item_image_is(const json_t *v);
/* Errors: Q_INVALID (not base64, no image, a format that is not read), Q_UNSUPPORTED (a URL of the
 * network, a stored file, a file where none is allowed), Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE item_image_read(struct image *out, const json_t *v, const struct item_rules *rules,
                         struct q_err *e);
/* A part's or image's "detail": NULL, null, or one of OpenAI's words. It has no effect: the model
 * determines the resolution. Errors: Q_INVALID. */
FALLIBLE item_image_detail(const json_t *v, struct q_err *e);

#endif
