/* SPDX-License-Identifier: Apache-2.0 */
/* item_types - struct item_types in the modality fields of hello. Threads: values. */
#ifndef QUIRE_PROTO_ITEM_TYPES_H
#define QUIRE_PROTO_ITEM_TYPES_H
#include "common/item_types.h"
#include "proto/proto.h"

#define ITEM_TYPES_NAME_BYTES ((size_t)ITEM_TYPES_MAX * 2 * ITEM_TYPE_NAME_MAX)
#define ITEM_TYPES_NUMBERS    ((size_t)ITEM_TYPES_MAX * (4 + 2 * ITEM_TYPE_DIMS_MAX))

struct item_types_wire { /* what the fields borrow */
    unsigned char names[ITEM_TYPES_NAME_BYTES];
    uint32_t numbers[ITEM_TYPES_NUMBERS];
};
void item_types_put(struct msg_hello *m, struct item_types_wire *w, const struct item_types *t);
/* Errors: Q_CORRUPT (fields that do not fit each other, values out of range); *t is then empty. */
FALLIBLE item_types_read(struct item_types *t, const struct msg_hello *m, struct q_err *e);

#endif
