/* SPDX-License-Identifier: Apache-2.0 */
/* Post-processors. For one text the whole chain adds ids before and after it, for two also between
 * them; types of ids say which belong to the second text. These ids are computed at load: each part
 * is applied to the rows of ids of the previous part. ByteLevel only changes offsets, which quire
 * does not have. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer_internal.h"

#define TEMPLATE_MAX 64 /* pieces of a template, ids of one special token */

void post_wrap_release(struct post_wrap *w)
{
    token_list_release(&w->before);
    token_list_release(&w->after);
}

static void rows_release(struct post_rows *r)
{
    for (size_t i = 0; i < r->n; i++)
        post_wrap_release(&r->rows[i].ids);
    q_free(r->rows);
    *r = (struct post_rows){NULL, 0, 0};
}

/* The row's lists belong to `r` then. */
static enum q_code rows_add(struct post_rows *r, struct post_row row, struct q_err *e)
{
    enum q_code rc = q_grow(&r->rows, &r->cap, r->n + 1, sizeof *r->rows, POST_ROWS_MAX, e);
    if (rc)
        post_wrap_release(&row.ids);
    else
        r->rows[r->n++] = row;
    return rc;
}

const struct post_ops post_offsets = {{NULL, NULL}, NULL, NULL};

/* ---- TemplateProcessing ---- */

struct piece {
    struct token_list ids;
    uint32_t i_row; /* which row stands here; ROW_NONE: the ids */
    uint32_t type;
};
#define ROW_NONE UINT32_MAX
struct template
{
    struct piece pieces[2][TEMPLATE_MAX]; /* for one row, for two */
    size_t n[2];
};

static void template_drop(void *self)
{
    struct template *t = self;
    for (int k = 0; t && k < 2; k++)
        for (size_t i = 0; i < t->n[k]; i++)
            token_list_release(&t->pieces[k][i].ids);
    q_free(t);
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

static enum q_code load_piece(struct piece *p, const json_t *spec, const json_t *piece,
                              const char *at, struct q_err *e)
{
    const json_t *special = json_object_get(piece, "SpecialToken");
    struct tok_str name;
    const json_t *part = special ? special : json_object_get(piece, "Sequence");
    enum q_code rc = tok_json_str(part, "id", at, &name, e);
    p->i_row = ROW_NONE;
    p->type = json_integer_value(json_object_get(part, "type_id")) != 0;
    if (!rc && special)
        return add_special(&p->ids, spec, name.s, at, e);
    if (!rc && strcmp(name.s, "A") != 0 && strcmp(name.s, "B") != 0)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s: unknown sequence \"%.20s\"", at, name.s);
    p->i_row = rc ? ROW_NONE : (uint32_t)(name.s[0] - 'A');
    return rc;
}

static enum q_code template_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    static const char *const keys[] = {"single", "pair"};
    struct template *t = q_calloc(1, sizeof *t);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = t;
    for (int k = 0; k < 2; k++) {
        const json_t *pieces = json_object_get(spec, keys[k]);
        if (k == 1 && !pieces)
            break;
        if (!json_is_array(pieces) || json_array_size(pieces) > TEMPLATE_MAX)
            return tok_json_bad(pieces, at, keys[k], "an array of at most 64 pieces", e);
        for (size_t i = 0; i < json_array_size(pieces); i++) {
            enum q_code rc =
                load_piece(&t->pieces[k][t->n[k]++], spec, json_array_get(pieces, i), at, e);
            if (rc)
                return rc;
        }
    }
    return Q_OK;
}

static enum q_code template_apply(const void *self, struct post_rows *rows, const char *at,
                                  struct q_err *e)
{
    const struct template *t = self;
    struct post_rows out = {NULL, 0, 0};
    enum q_code rc = Q_OK;
    if (rows->n > 2)
        return q_fail(e, Q_UNSUPPORTED,
                      "tokenizer.json: %s: a template does not accept the %zu rows of the previous "
                      "post-processor",
                      at, rows->n);
    for (size_t i = 0; i < t->n[rows->n - 1] && !rc; i++) {
        const struct piece *p = &t->pieces[rows->n - 1][i];
        struct post_row row = {0};
        if (p->i_row == ROW_NONE)
            rc = token_list_join(&row.ids.before, &p->ids, e);
        else if (p->i_row < rows->n) { /* taken out: a second time it is empty */
            row = rows->rows[p->i_row];
            rows->rows[p->i_row] = (struct post_row){0};
        }
        row.type = p->type;
        if (!rc)
            rc = rows_add(&out, row, e);
        else
            post_wrap_release(&row.ids);
    }
    rows_release(rows);
    *rows = out;
    return rc;
}

static size_t template_special(const void *self)
{
    const struct template *t = self;
    size_t n = 0;
    for (size_t i = 0; i < t->n[0]; i++)
        n += t->pieces[0][i].ids.n;
    return n;
}

const struct post_ops post_template = {
    {template_load, template_drop},
    template_apply,
    template_special,
};

/* ---- cls and sep ---- */

struct ends {
    uint32_t cls, sep;
    bool both; /* Roberta's: sep goes on both sides of the rows behind the first */
};

/* "cls": ["<s>", 0] and "sep": ["</s>", 2]. */
static enum q_code ends_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct ends *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = s;
    const char *type = json_string_value(json_object_get(spec, "type"));
    s->both = type && strcmp(type, "RobertaProcessing") == 0;
    if ((rc = tok_json_id(json_array_get(json_object_get(spec, "cls"), 1), at, "cls[1]", &s->cls,
                          e)))
        return rc;
    return tok_json_id(json_array_get(json_object_get(spec, "sep"), 1), at, "sep[1]", &s->sep, e);
}

static void ends_drop(void *self)
{
    q_free(self);
}

/* id goes before all that is in the list. */
static enum q_code put_first(struct token_list *l, uint32_t id, struct q_err *e)
{
    enum q_code rc = token_list_add(l, id, e);
    if (!rc) {
        memmove(l->ids + 1, l->ids, (l->n - 1) * sizeof *l->ids);
        l->ids[0] = id;
    }
    return rc;
}

static enum q_code ends_apply(const void *self, struct post_rows *rows, const char *at,
                              struct q_err *e)
{
    const struct ends *s = self;
    enum q_code rc = Q_OK;
    (void)at;
    for (size_t i = 0; i < rows->n && !rc; i++) {
        struct post_row *row = &rows->rows[i];
        row->type = s->both ? 0 : row->type;
        if (i == 0 || s->both)
            rc = put_first(&row->ids.before, i ? s->sep : s->cls, e);
        if (!rc)
            rc = token_list_add(row->text ? &row->ids.after : &row->ids.before, s->sep, e);
    }
    return rc;
}

static size_t ends_special(const void *self)
{
    (void)self;
    return 2;
}

const struct post_ops post_cls_sep = {{ends_load, ends_drop}, ends_apply, ends_special};

/* ---- the chain ---- */

/* The rows that the chain makes of so many texts. */
static enum q_code run_chain(struct post_rows *rows, const struct tok_chain *chain, uint32_t n_text,
                             struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < n_text && !rc; i++)
        rc = rows_add(rows, (struct post_row){.text = true, .type = i}, e);
    for (uint32_t i = 0; i < chain->n_part && !rc; i++) {
        const struct post_ops *ops = (const struct post_ops *)chain->parts[i].ops;
        char at[40];
        snprintf(at, sizeof at, "post_processor[%u]", i);
        rc = ops->apply ? ops->apply(chain->parts[i].self, rows, at, e) : Q_OK;
    }
    return rc;
}

enum q_code post_plan(struct post_wrap *out, const struct tok_chain *chain, struct q_err *e)
{
    struct post_rows rows = {NULL, 0, 0};
    size_t n_text = 0;
    enum q_code rc = run_chain(&rows, chain, 1, e);
    for (size_t i = 0; i < rows.n && !rc; i++) {
        const struct post_row *row = &rows.rows[i];
        if (!(rc = token_list_join(n_text ? &out->after : &out->before, &row->ids.before, e))) {
            n_text += row->text;
            rc = token_list_join(n_text ? &out->after : &out->before, &row->ids.after, e);
        }
    }
    if (!rc && n_text != 1)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "tokenizer.json: post_processor: must contain the text exactly once");
    rows_release(&rows);
    return rc;
}

/* ---- two texts ---- */

struct pairing {
    struct post_pair *to;
    uint32_t n_text; /* so far */
    bool is_mixed;   /* an id of type 0 behind one of type 1 */
};

static struct token_list *list_of(const struct pairing *t)
{
    struct token_list *lists[] = {&t->to->before, &t->to->between, &t->to->after};
    return lists[t->n_text];
}

/* Ids, or a text, of a type begin here. */
static void note_type(struct pairing *t, enum post_region at, size_t n_into, uint32_t type)
{
    t->is_mixed |= !type && t->to->second != POST_REGIONS;
    if (!type || t->to->second != POST_REGIONS)
        return;
    t->to->second = at;
    t->to->n_into = (uint32_t)n_into;
}

static enum q_code add_ids(struct pairing *t, const struct token_list *ids, uint32_t type,
                           struct q_err *e)
{
    struct token_list *to = list_of(t);
    if (ids->n)
        note_type(t, (enum post_region)(2 * t->n_text), to->n, type);
    return token_list_join(to, ids, e);
}

static enum q_code add_row(struct pairing *t, const struct post_row *row, struct q_err *e)
{
    enum q_code rc = add_ids(t, &row->ids.before, row->type, e);
    if (rc || (row->text && t->n_text == 2))
        return rc ? rc : q_fail(e, Q_UNSUPPORTED, "post_processor: a text is there twice");
    if (row->text) {
        note_type(t, (enum post_region)(2 * t->n_text + 1), 0, row->type);
        t->n_text++;
    }
    return add_ids(t, &row->ids.after, row->type, e);
}

FALLIBLE post_plan_pair(struct post_pair *out, const struct tok_chain *chain, struct q_err *e)
{
    struct post_rows rows = {NULL, 0, 0};
    struct pairing t = {.to = out};
    *out = (struct post_pair){.second = POST_REGIONS};
    enum q_code rc = run_chain(&rows, chain, 2, e);
    for (size_t i = 0; i < rows.n && !rc; i++)
        rc = add_row(&t, &rows.rows[i], e);
    rows_release(&rows);
    out->is_there = !rc && t.n_text == 2 && !t.is_mixed;
    if (rc == Q_UNSUPPORTED) {
        q_err_reset(e);
        rc = Q_OK;
    }
    return rc;
}

void post_pair_release(struct post_pair *p)
{
    token_list_release(&p->before);
    token_list_release(&p->between);
    token_list_release(&p->after);
}
