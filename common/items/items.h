/* SPDX-License-Identifier: Apache-2.0 */
/* items - `multi_modal_data` of a request, or of a line of a file: JSON to arrays of numbers.
 *
 *     {"actions": [[0.1, 0.2, 0.3], {"data": base64, "dtype": "float32", "shape": [3]},
 *                  {"path": "a.npy"}, {"path": "a.safetensors", "tensor": "x"}],
 *      "image": [{"url": "data:image/png;base64,…"}],
 *      "frames": {"data": base64, "dtype": "uint8", "shape": [2, 24, 24]}}
 *
 * A modality is a list of items, or one array whose first dimension counts them. Paths are read
 * only where the rules allow files. An image (item_image.h) becomes an array of bytes, [height,
 * width, 3]. Threads: reentrant. */
#ifndef QUIRE_COMMON_ITEMS_ITEMS_H
#define QUIRE_COMMON_ITEMS_ITEMS_H
#include <jansson.h>
#include <stdbool.h>
#include "common/buf.h"
#include "common/item_array.h"
#include "common/item_types.h"

#define ITEM_LIST_MAX   65536u              /* items of a request */
#define ITEM_LIST_BYTES ((size_t)256 << 20) /* of all of them */

#define ITEM_IMAGE_PART "image_url" /* the part type of OpenAI's API */

struct item_rules {
    bool files;      /* {"path": …} is allowed, */
    const char *dir; /* in this folder; NULL: anywhere */
};
struct item_list {
    struct item_array
        *items; /* [n] those of a modality in order; names are borrowed from the JSON */
    size_t n, cap;
    struct buf data;
};
/* clang-format off */
#define ITEM_LIST_INIT {.data = BUF_INIT_MAX(ITEM_LIST_BYTES)}
/* clang-format on */
/* value: of multi_modal_data; NULL or null: no items. Errors: Q_INVALID, Q_TOO_LARGE,
 * Q_UNSUPPORTED (a path where files are not allowed), Q_NO_MEMORY; the message begins with
 * "multi_modal_data: " and names the item. */
FALLIBLE item_list_read(struct item_list *out, const json_t *value, const struct item_rules *rules,
                        struct q_err *e);
/* Do items of the type have the part type of images, and their shape, [height, width, 3]? */
bool item_type_is_image(const struct item_type *t);
/* The value of a content part of this type: an item, a list of items, or an array whose first
 * dimension counts them, added to the list, whose names are borrowed from the type. first: items of
 * this modality before it. Their data are offsets until item_list_end. Errors: as item_list_read,
 * Q_INVALID too for another shape; the message begins with the item, "actions[3]: ". */
FALLIBLE item_list_add(struct item_list *l, const struct item_type *type, size_t first,
                       const json_t *value, const struct item_rules *rules, struct q_err *e);
void item_list_end(struct item_list *l); /* once, after the last item_list_add */
/* The array of an .npy file, or a tensor of a .safetensors file (NULL: its only one), as one item.
 * Errors: as item_list_read. */
FALLIBLE item_list_file(struct item_list *out, const char *path, const char *tensor,
                        struct q_err *e);
void item_list_release(struct item_list *l);

#endif
