/* SPDX-License-Identifier: Apache-2.0 */
/* item_types - the inputs besides tokens that a model takes, as its engine says at hello: names,
 * the content parts of chat messages that are such inputs, placeholders, shapes and limits.
 *
 * A plugin declares them (engine/plugin.h); a frontend opens no plugin and knows them from here.
 * Threads: values. */
#ifndef QUIRE_COMMON_ITEM_TYPES_H
#define QUIRE_COMMON_ITEM_TYPES_H
#include <stdbool.h>
#include <stdint.h>

#define ITEM_TYPES_MAX       8u
#define ITEM_TYPE_NAME_MAX   64u /* bytes, with NUL */
#define ITEM_TYPE_DIMS_MAX   4u
#define ITEM_TYPE_TOKENS_MAX (1u << 20)

struct item_type {
    char modality[ITEM_TYPE_NAME_MAX];  /* key of multi_modal_data: "actions" */
    char part_type[ITEM_TYPE_NAME_MAX]; /* type of a content part: "action"; "": none */
    uint32_t placeholder; /* id in a prompt; a negative one is its two's complement, no token */
    uint32_t n_dim, dims[ITEM_TYPE_DIMS_MAX]; /* 0: any, from 1 to dims_max */
    uint32_t dims_max[ITEM_TYPE_DIMS_MAX];
    uint32_t n_token;   /* rows of the prompt that an item becomes; 0: it depends on the item */
    uint32_t max_items; /* in a request */
};
struct item_types {
    uint32_t n;
    bool unknown; /* no engine has said yet what it takes */
    struct item_type rows[ITEM_TYPES_MAX];
};

#endif
