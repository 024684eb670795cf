/* SPDX-License-Identifier: Apache-2.0 */
/* parts - content parts of messages that are inputs besides text, of the types that the model's
 * engine announces (common/item_types.h): {"type": "action", "action": [0.1, 0.2, 0.3]}, and
 * images: {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}.
 *
 * Two forms tell where an item is in the rendered prompt:
 *   - A mark, for templates that get a message's text: digits in it that a client cannot know
 *     beforehand, and that templates leave as they are. parts_take removes them.
 *   - A literal, for images and templates that take lists of parts: the template gets
 *     {"type": "image"}, and writes the text of the placeholder's token ("<image>") for it, with
 *     what the model wants around it. parts_take removes the k-th literal for the k-th image. Only
 *     what the template itself wrote counts: a text of the request that spells the token is text.
 * Both leave a placeholder between the tokens, which no text of a request can be. Items stand in
 * the order of the prompt then.
 *
 * An image as a mark stands on a line of its own: a newline divides it from the text beside it.
 * So vLLM writes an image before the text of a template that takes strings, and with
 * --interleave-mm-strings one between texts; here each stays where the request has it.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_CHAT_PARTS_H
#define QUIRE_COMMON_CHAT_PARTS_H
#include <jansson.h>
#include "common/buf.h"
#include "common/items/items.h"
#include "common/ranges.h"
#include "common/tokenizer/tokenizer.h"

#define PARTS_NONCE       40u /* digits */
#define PARTS_LITERAL_MAX 128u

struct parts {
    const struct item_types *types; /* NULL: text only. Borrowed, as is rules.dir */
    struct item_rules rules;
    struct item_list list;
    size_t n_of[ITEM_TYPES_MAX];                      /* items of each type */
    char nonce[PARTS_NONCE + 1];                      /* "": no item yet */
    bool in_list;                                     /* images are literals */
    char literals[ITEM_TYPES_MAX][PARTS_LITERAL_MAX]; /* of types with images; parts_literals */
    struct tokenizer_insert *places;                  /* [list.n] after parts_take */
};
struct part_place { /* for error messages */
    size_t i_message, i_part;
    const char *role;
};
/* The type that a content part has, by its part type or by its modality's name; one of images also
 * by the words of other APIs, "input_image" and "image". NULL: none. */
const struct item_type *parts_type(const struct parts *p, const char *type);
/* The part's items. `text` gets a mark for each; for images NULL, where parts_mark_image writes
 * them. Errors: Q_INVALID, Q_TOO_LARGE, Q_UNSUPPORTED; the message begins with
 * "messages: entry 2: content part 1: ". */
FALLIBLE parts_add(struct parts *p, const struct item_type *type, const json_t *part,
                   const struct part_place *at, struct buf *text, struct q_err *e);
/* No such type: names those there are. Errors: Q_UNSUPPORTED; Q_UNAVAILABLE where no engine is
 * known yet. */
FALLIBLE parts_no_type(const struct parts *p, const char *type, size_t i_message, struct q_err *e);
/* After the last part. */
void parts_end(struct parts *p);
/* The first type with an image among the items; NULL: there is none. */
const struct item_type *parts_image_type(const struct parts *p);
/* The mark of the next image, in the order of the request; *next: 0 for the first. */
void parts_mark_image(const struct parts *p, size_t *next, struct buf *text);
/* Find the literals of the images' types in the vocabulary. False: one has none, because its
 * placeholder is no token. Errors: Q_NO_MEMORY. */
FALLIBLE parts_literals(struct parts *p, const struct tokenizer *t, bool *all, struct q_err *e);
/* Remove marks and literals from the prompt and from the ranges of it, which begin at `from`; sets
 * places and the order of the items. content: not NULL where images are literals. Errors: Q_INVALID
 * (the template left one out, or has it twice). */
FALLIBLE parts_take(struct parts *p, struct buf *prompt, size_t from, struct ranges *content,
                    struct q_err *e);
void parts_release(struct parts *p); /* all zero is the empty value */

#endif
