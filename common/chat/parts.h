/* SPDX-License-Identifier: Apache-2.0 */
/* parts - content parts of messages that are inputs besides text: {"type": "action", "action":
 * [0.1, 0.2, 0.3]}, of the types that the model's engine announces (common/item_types.h).
 *
 * A template gets text only, so each item is a mark in its message's text: digits that a client
 * cannot know beforehand, and that templates leave as they are. parts_take finds the marks in the
 * rendered prompt, removes them, and says where the items' placeholders go: no text of a request
 * can be one. Items stand in the order of the prompt then.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_CHAT_PARTS_H
#define QUIRE_COMMON_CHAT_PARTS_H
#include <jansson.h>
#include "common/buf.h"
#include "common/items/items.h"
#include "common/ranges.h"
#include "common/tokenizer/tokenizer.h"

#define PARTS_NONCE 40u /* digits */

struct parts {
    const struct item_types *types; /* NULL: text only. Borrowed, as is rules.dir */
    struct item_rules rules;
    struct item_list list;
    size_t n_of[ITEM_TYPES_MAX];     /* items of each type */
    char nonce[PARTS_NONCE + 1];     /* "": no item yet */
    struct tokenizer_insert *places; /* [list.n] after parts_take */
};
struct part_place { /* for error messages */
    size_t i_message, i_part;
    const char *role;
};
/* The type that a content part has, by its part type or by its modality's name; NULL: none. */
const struct item_type *parts_type(const struct parts *p, const char *type);
/* The part's items, with a mark each in `text`. Errors: Q_INVALID, Q_TOO_LARGE, Q_UNSUPPORTED; the
 * message begins with "messages: entry 2: content part 1: ". */
FALLIBLE parts_add(struct parts *p, const struct item_type *type, const json_t *part,
                   const struct part_place *at, struct buf *text, struct q_err *e);
/* No such type: names those there are. Errors: Q_UNSUPPORTED; Q_UNAVAILABLE where no engine is
 * known yet. */
FALLIBLE parts_no_type(const struct parts *p, const char *type, size_t i_message, struct q_err *e);
/* After the last part. */
void parts_end(struct parts *p);
/* Remove the marks from the prompt and from the ranges of it, which begin at `from`; sets places
 * and the order of the items. Errors: Q_INVALID (the template left one out, or has it twice). */
FALLIBLE parts_take(struct parts *p, struct buf *prompt, size_t from, struct ranges *content,
                    struct q_err *e);
void parts_release(struct parts *p); /* all zero is the empty value */

#endif
