/* SPDX-License-Identifier: Apache-2.0 */
/* Post-processors. For one text each is some ids before it and some after it (pairs of texts are no
 * use to a language model and are not read); ByteLevel only moves offsets, which quire does not
 * have. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tok.h"

#define TEMPLATE_MAX 64 /* pieces of a template, ids of one special token */

static const struct post_wrap *wrap_none(const void *self)
{
    (void)self;
    return NULL;
}

const struct post_ops post_offsets = {{NULL, NULL}, wrap_none};

static void wrap_drop(void *self)
{
    struct post_wrap *w = self;
    if (!w)
        return;
    token_list_release(&w->before);
    token_list_release(&w->after);
    q_free(w);
}

static const struct post_wrap *wrap_self(const void *self)
{
    return self;
}

/* The ids of special_tokens[name] go to the end of `to`. */
static enum q_code add_special(struct token_list *to, const json_t *spec, const char *name,
                               const char *at, struct q_err *e)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(spec, "special_tokens"), name), "ids");
    if (!json_is_array(ids) || json_array_size(ids) > TEMPLATE_MAX)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s: special_tokens has no ids for \"%.40s\"",
                      at, name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id;
        enum q_code rc;
        if ((rc = tok_json_id(json_array_get(ids, i), at, "special_tokens", &id, e)) ||
            (rc = token_list_add(to, id, e)))
            return rc;
    }
    return Q_OK;
}

static enum q_code template_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    const json_t *pieces = json_object_get(spec, "single");
    struct post_wrap *w = q_calloc(1, sizeof *w);
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = w;
    if (!json_is_array(pieces) || json_array_size(pieces) > TEMPLATE_MAX)
        return tok_json_bad(pieces, at, "single", "an array of at most 64 pieces", e);
    bool seen = false; /* the text's place */
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        struct tok_str name;
        enum q_code rc;
        if (!special) {
            rc = tok_json_str(json_object_get(piece, "Sequence"), "id", at, &name, e);
            if (!rc && (seen || strcmp(name.s, "A") != 0))
                rc = q_fail(e, Q_UNSUPPORTED,
                            "tokenizer.json: %s.single must hold the text exactly once", at);
            seen = true;
        } else if (!(rc = tok_json_str(special, "id", at, &name, e)))
            rc = add_special(seen ? &w->after : &w->before, spec, name.s, at, e);
        if (rc)
            return rc;
    }
    if (!seen)
        return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s.single must hold the text exactly once",
                      at);
    return Q_OK;
}

const struct post_ops post_template = {{template_load, wrap_drop}, wrap_self};

/* "cls": ["<s>", 0] and "sep": ["</s>", 2]. */
static enum q_code cls_sep_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    uint32_t cls, sep;
    struct post_wrap *w = q_calloc(1, sizeof *w);
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = w;
    if ((rc =
             tok_json_id(json_array_get(json_object_get(spec, "cls"), 1), at, "cls[1]", &cls, e)) ||
        (rc =
             tok_json_id(json_array_get(json_object_get(spec, "sep"), 1), at, "sep[1]", &sep, e)) ||
        (rc = token_list_add(&w->before, cls, e)))
        return rc;
    return token_list_add(&w->after, sep, e);
}

const struct post_ops post_cls_sep = {{cls_sep_load, wrap_drop}, wrap_self};
