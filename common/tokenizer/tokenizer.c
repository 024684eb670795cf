/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: tokenizer.json is read with jansson, each slot becomes a chain of parts from
 * tok_kinds.def, then the look-up tables of encoding and decoding are made. Ids of added tokens
 * follow the reference: the model's id if the content is in the vocabulary, else the next free id;
 * the id in the file is not used. */
#include "common/tokenizer/tokenizer.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/decode.h"
#include "common/tokenizer/encode.h"
#include "common/tokenizer/origin.h"
#include "common/tokenizer/tokenizer_internal.h"

#define TRIM_FROM ((size_t)1 << 20) /* bytes of tokenizer.json that take tens of MiB to parse */

#define OPS_NORM   norm_ops
#define OPS_PRE    pre_ops
#define OPS_POST   post_ops
#define OPS_DECODE dec_ops

#define KIND(slot, type, ops) extern const struct OPS_##slot ops;
#define MODEL(type, ops)      extern const struct model_ops ops;
#include "common/tokenizer/tok_kinds.def"

static const struct kind {
    enum tok_slot slot;
    const char *type;
    const struct tok_ops *ops;
} kinds[] = {
#define KIND(slot, type, ops) {TOK_##slot, type, &ops.base},
#define MODEL(type, ops)
#include "common/tokenizer/tok_kinds.def"
};

static const struct model_kind {
    const char *type;
    const struct model_ops *ops;
} models[] = {
#define KIND(slot, type, ops)
#define MODEL(type, ops) {type, &ops},
#include "common/tokenizer/tok_kinds.def"
};

static const struct slot_name {
    const char *key, *list; /* in tokenizer.json, in a Sequence of that slot */
} slot_names[TOK_SLOTS] = {
    [TOK_NORM] = {"normalizer", "normalizers"},
    [TOK_PRE] = {"pre_tokenizer", "pretokenizers"},
    [TOK_POST] = {"post_processor", "processors"},
    [TOK_DECODE] = {"decoder", "decoders"},
};

/* ---- chains ---- */

static enum q_code load_part(struct tok_chain *c, enum tok_slot slot, const json_t *spec,
                             struct tok_str type, struct q_err *e)
{
    char at[64];
    snprintf(at, sizeof at, "%s[%u]", slot_names[slot].key, c->n_part);
    if (c->n_part == TOK_PARTS_MAX)
        return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s: more than %d parts",
                      slot_names[slot].key, TOK_PARTS_MAX);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct tok_ops *ops = kinds[i].ops;
        if (kinds[i].slot != slot || strcmp(kinds[i].type, type.s) != 0)
            continue;
        struct tok_part *part = &c->parts[c->n_part++];
        *part = (struct tok_part){ops, NULL};
        return ops->load ? ops->load(&part->self, spec, at, e) : Q_OK;
    }
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s: type \"%.60s\" is not supported", at,
                  type.s);
}

/* One component: a part, or the parts of a Sequence. */
static enum q_code load_chain(struct tok_chain *c, enum tok_slot slot, const json_t *spec,
                              int depth, struct q_err *e)
{
    const struct slot_name *name = &slot_names[slot];
    struct tok_str type;
    enum q_code rc;
    if (!spec || json_is_null(spec))
        return Q_OK;
    if (!json_is_object(spec))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s: expected an object or null, found %s",
                      name->key, json_kind(spec));
    if ((rc = tok_json_str(spec, "type", name->key, &type, e)))
        return rc;
    if (strcmp(type.s, "Sequence") != 0)
        return load_part(c, slot, spec, type, e);
    const json_t *list = json_object_get(spec, name->list);
    if (!json_is_array(list))
        return tok_json_bad(list, name->key, name->list, "an array", e);
    if (depth == TOK_DEPTH_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "tokenizer.json: %s: Sequences are nested deeper than %d levels", name->key,
                      TOK_DEPTH_MAX);
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_object(item))
            return tok_json_bad(item, name->key, name->list, "objects", e);
        rc = load_chain(c, slot, item, depth + 1, e);
    }
    return rc;
}

/* ---- model ---- */

/* tokenizer.json but for its two big values, those, and tokenizer_config.json or NULL. */
struct files {
    json_t *root, *config;
    struct tok_big big;
    const struct tok_extra *extra; /* what the JSON cannot say, or NULL */
};

/* Older files leave the type out; then the keys tell, as they do for the reference. */
static const char *guess_model(const json_t *spec, const struct tok_big *big)
{
    if (big->merges.n)
        return "BPE";
    if (big->vocab.n && big->vocab.s[0] == '[')
        return "Unigram";
    return json_object_get(spec, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

static enum q_code load_model(struct tokenizer *t, const struct files *f, struct q_err *e)
{
    const json_t *spec = json_object_get(f->root, "model");
    struct model_src src = {spec, f->big, f->extra};
    if (!json_is_object(spec))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: model: expected an object, found %s",
                      json_kind(spec));
    const json_t *given = json_object_get(spec, "type");
    if (given && !json_is_string(given))
        return tok_json_bad(given, "model", "type", "a string", e);
    const char *type = given ? json_string_value(given) : guess_model(spec, &f->big);
    const struct tok_chain *pre = &t->chain[TOK_PRE];
    t->raw = pre->n_part && pre->parts[pre->n_part - 1].ops == &pre_byte_level.base;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].type, type) != 0)
            continue;
        t->model = models[i].ops;
        return t->model->load(&t->model_self, &src, &t->vocab, &t->raw, e);
    }
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: model: type \"%.60s\" is not supported", type);
}

/* ---- added tokens ---- */

static enum q_code read_added(struct tok_added *a, const json_t *spec, const char *at,
                              struct q_err *e)
{
    enum q_code rc;
    struct tok_str s;
    if ((rc = tok_json_str(spec, "content", at, &s, e)) ||
        (rc = tok_json_bool(spec, "lstrip", at, &a->lstrip, e)) ||
        (rc = tok_json_bool(spec, "rstrip", at, &a->rstrip, e)) ||
        (rc = tok_json_bool(spec, "single_word", at, &a->single_word, e)) ||
        (rc = tok_json_bool(spec, "special", at, &a->special, e)))
        return rc;
    a->normalized = !a->special;
    if ((rc = tok_json_bool(spec, "normalized", at, &a->normalized, e)))
        return rc;
    if (s.n > TOK_ADDED_CONTENT_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "tokenizer.json: %s: an added token has %zu bytes, expected at most %u", at,
                      s.n, TOK_ADDED_CONTENT_MAX);
    a->content = q_strndup(s.s, s.n);
    a->n_content = s.n;
    return a->content ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading added tokens");
}

/* Append or, when the content is known already, take over the flags. */
static enum q_code keep_added(struct tokenizer *t, struct tok_added *a, struct q_err *e)
{
    uint32_t i = tok_vocab_id(&t->added_index, a->content, a->n_content);
    if (i != TOKEN_NONE) {
        struct tok_added *old = &t->added[i];
        a->special = a->special || old->special;
        a->id = old->id;
        q_free(old->content);
        *old = *a;
        a->content = NULL;
        return Q_OK;
    }
    enum q_code rc =
        q_grow(&t->added, &t->added_cap, t->n_added + 1, sizeof *t->added, TOK_ADDED_MAX, e);
    if (rc)
        return rc;
    if (a->id == TOKEN_NONE)
        a->id = tok_vocab_id(&t->vocab, a->content, a->n_content);
    if (a->id == TOKEN_NONE)
        a->id = t->next_id++;
    if ((rc = tok_vocab_add(&t->added_index, a->content, a->n_content, (uint32_t)t->n_added, e)))
        return rc;
    t->added[t->n_added++] = *a;
    a->content = NULL;
    return Q_OK;
}

/* id: its own, TOKEN_NONE where the rules give it one. */
static enum q_code add_added(struct tokenizer *t, const json_t *spec, const char *at, uint32_t id,
                             struct q_err *e)
{
    struct tok_added a = {.id = id};
    enum q_code rc = read_added(&a, spec, at, e);
    if (!rc && a.n_content)
        rc = keep_added(t, &a, e);
    q_free(a.content);
    return rc;
}

static enum q_code load_added(struct tokenizer *t, const json_t *list, bool own_ids,
                              struct q_err *e)
{
    enum q_code rc = Q_OK;
    t->next_id = (uint32_t)t->vocab.n_word;
    if (!list || json_is_null(list))
        return Q_OK;
    if (!json_is_array(list))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: added_tokens: expected an array, found %s",
                      json_kind(list));
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        char at[40];
        const json_t *spec = json_array_get(list, i);
        uint32_t id = TOKEN_NONE;
        snprintf(at, sizeof at, "added_tokens[%zu]", i);
        if (own_ids)
            rc = tok_json_id(json_object_get(spec, "id"), at, "id", &id, e);
        rc = rc ? rc : add_added(t, spec, at, id, e);
    }
    return rc;
}

/* added_tokens_decoder of tokenizer_config.json: {"7": {"content": …}}; those that tokenizer.json
 * does not list. */
static enum q_code load_config_added(struct tokenizer *t, const json_t *config, struct q_err *e)
{
    const json_t *all = json_object_get(config, "added_tokens_decoder");
    const char *key;
    json_t *spec;
    json_object_foreach ((json_t *)all, key, spec) {
        char at[64];
        struct tok_str s;
        enum q_code rc;
        snprintf(at, sizeof at, "tokenizer_config.json added_tokens_decoder.%.12s", key);
        if ((rc = tok_json_str(spec, "content", at, &s, e)))
            return rc;
        if (tok_vocab_id(&t->added_index, s.s, s.n) == TOKEN_NONE &&
            (rc = add_added(t, spec, at, TOKEN_NONE, e)))
            return rc;
    }
    return Q_OK;
}

/* The patterns to look for: contents as they are, or normalized for tokens that say so. */
static enum q_code load_matchers(struct tokenizer *t, struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct tok_work w = {0};
    if ((rc = tok_regex_run_init(&w.regex, e)))
        return rc;
    for (size_t i = 0; i < t->n_added && !rc; i++) {
        struct tok_added *a = &t->added[i];
        w.text = a->content;
        w.n = a->n_content;
        if (a->normalized && (rc = tok_normalize(t, &w, e)))
            break;
        a->pattern = q_strndup(w.text, w.n);
        a->n_pattern = w.n;
        if (!a->pattern)
            rc = q_fail(e, Q_NO_MEMORY, "out of memory loading added tokens");
        else
            rc = tok_matcher_add(a->normalized ? &t->normed : &t->plain, a->pattern, a->n_pattern,
                                 (int32_t)i, e);
    }
    tok_work_release(&w);
    return rc;
}

/* ---- tables by id ---- */

static void set_text(struct tokenizer *t, uint32_t id, const char *s, size_t n, uint8_t flags)
{
    t->text_of[id] = s;
    t->text_len[id] = (uint32_t)n;
    t->flags[id] = flags;
}

/* The reference asks whether the text that it would decode is a special token's content. For a
 * token that is changed by normalization it is not, so such a token is never skipped. */
static uint8_t added_flags(const struct tokenizer *t, const struct tok_added *a)
{
    uint32_t i = tok_vocab_id(&t->added_index, a->pattern, a->n_pattern);
    bool skip = i != TOKEN_NONE && t->added[i].special;
    return (uint8_t)(TOK_F_ADDED | (a->special ? TOK_F_SPECIAL : 0) | (skip ? TOK_F_SKIP : 0) |
                     (a->control ? TOK_F_CONTROL : 0));
}

static enum q_code load_tables(struct tokenizer *t, struct q_err *e)
{
    for (size_t i = 0; i < t->vocab.n_word; i++)
        t->n_id = t->vocab.words[i].id >= t->n_id ? t->vocab.words[i].id + 1 : t->n_id;
    for (size_t i = 0; i < t->n_added; i++)
        t->n_id = t->added[i].id >= t->n_id ? t->added[i].id + 1 : t->n_id;
    t->text_of = q_calloc(t->n_id, sizeof *t->text_of);
    t->text_len = q_calloc(t->n_id, sizeof *t->text_len);
    t->flags = q_calloc(t->n_id, sizeof *t->flags);
    if (!t->text_of || !t->text_len || !t->flags)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u token ids", t->n_id);
    for (size_t i = 0; i < t->vocab.n_word; i++) {
        const struct tok_word *w = &t->vocab.words[i];
        set_text(t, w->id, t->vocab.pool.data + w->off, w->len, 0);
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const struct tok_added *a = &t->added[i];
        set_text(t, a->id, a->pattern, a->n_pattern, added_flags(t, a));
    }
    return Q_OK;
}

/* ---- the whole ---- */

static enum q_code load_all(struct tokenizer *t, const struct files *f, struct q_err *e)
{
    const json_t *root = f->root;
    enum q_code rc;
    if (!json_is_object(root))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: expected an object, found %s",
                      json_kind(root));
    for (int slot = 0; slot < TOK_SLOTS; slot++) {
        const json_t *spec = json_object_get(root, slot_names[slot].key);
        if ((rc = load_chain(&t->chain[slot], (enum tok_slot)slot, spec, 0, e)))
            return rc;
    }
    if ((rc = post_plan(&t->wrap, &t->chain[TOK_POST], e)) ||
        (rc = post_plan_pair(&t->pair, &t->chain[TOK_POST], e)) ||
        (rc = dec_chain_check(&t->chain[TOK_DECODE], e)) ||
        (rc = tok_limits_load(&t->limits, root, e)))
        return rc;
    const json_t *decoder = json_object_get(root, "decoder");
    t->no_decoder = !decoder || json_is_null(decoder);
    bool own_ids = f->extra && f->extra->own_ids;
    if ((rc = load_model(t, f, e)) ||
        (rc = load_added(t, json_object_get(root, "added_tokens"), own_ids, e)) ||
        (rc = load_config_added(t, f->config, e)) || (rc = load_matchers(t, e)) ||
        (rc = tok_control_load(t, e)))
        return rc;
    return load_tables(t, e);
}

/* The JSON with an empty string for each of the big values, which are read straight from the text.
 * If that does not parse, the whole text tells where the error is. */
static enum q_code parse_file(struct files *f, struct tok_str json, struct q_err *e)
{
    struct buf small = BUF_INIT;
    struct tok_str cuts[2];
    const char *at = json.s;
    if (!tok_big_find(json, &f->big))
        return tok_json_parse(&f->root, json, "tokenizer.json", e);
    bool swapped = f->big.merges.s < f->big.vocab.s;
    cuts[0] = swapped ? f->big.merges : f->big.vocab;
    cuts[1] = swapped ? f->big.vocab : f->big.merges;
    for (int i = 0; i < 2; i++) {
        if (cuts[i].n == 0)
            continue;
        buf_add(&small, at, (size_t)(cuts[i].s - at));
        buf_add_str(&small, "\"\"");
        at = cuts[i].s + cuts[i].n;
    }
    buf_add(&small, at, (size_t)(json.s + json.n - at));
    enum q_code rc = buf_check(&small, "tokenizer.json", e);
    if (!rc && (rc = tok_json_parse(&f->root, (struct tok_str){buf_str(&small), small.len},
                                    "tokenizer.json", e)) == Q_CORRUPT)
        rc = tok_json_parse(&f->root, json, "tokenizer.json", e);
    buf_release(&small);
    return rc;
}

enum q_code tok_from_texts(struct tokenizer **out, const struct tok_texts *in, struct q_err *e)
{
    enum q_code rc;
    struct files f = {.extra = in->extra};
    if (in->json.n > TOKENIZER_FILE_MAX)
        return q_fail(e, Q_TOO_LARGE, "tokenizer.json: %zu bytes, expected at most %zu", in->json.n,
                      TOKENIZER_FILE_MAX);
    struct tokenizer *t = q_calloc(1, sizeof *t);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
    if ((rc = parse_file(&f, in->json, e)) ||
        (in->config.n && (rc = tok_json_parse(&f.config, in->config, CONFIG_NAME, e))) ||
        (rc = load_all(t, &f, e)))
        goto out;
    *out = t;
    t = NULL;
out:
    json_decref(f.root);
    json_decref(f.config);
    tokenizer_free(t);
    if (in->json.n > TRIM_FROM)
        mem_trim();
    return rc;
}

enum q_code tokenizer_from_json(struct tokenizer **out, const char *json, size_t n, struct q_err *e)
{
    struct tok_texts in = {{json, n}, {"", 0}, NULL};
    return tok_from_texts(out, &in, e);
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    for (int slot = 0; slot < TOK_SLOTS; slot++) {
        for (uint32_t i = 0; i < t->chain[slot].n_part; i++) {
            const struct tok_part *p = &t->chain[slot].parts[i];
            if (p->ops->drop)
                p->ops->drop(p->self);
        }
    }
    if (t->model)
        t->model->drop(t->model_self);
    for (size_t i = 0; i < t->n_added; i++) {
        q_free(t->added[i].content);
        q_free(t->added[i].pattern);
    }
    q_free(t->added);
    post_wrap_release(&t->wrap);
    post_pair_release(&t->pair);
    tok_vocab_release(&t->added_index);
    tok_vocab_release(&t->vocab);
    tok_matcher_release(&t->plain);
    tok_matcher_release(&t->normed);
    tok_matcher_release(&t->control);
    q_free(t->text_of);
    q_free(t->text_len);
    q_free(t->flags);
    q_free(t);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->n_id;
}

uint32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    uint32_t i = tok_vocab_id(&t->added_index, token, n);
    return i != TOKEN_NONE ? t->added[i].id : tok_vocab_id(&t->vocab, token, n);
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->n_id && (t->flags[id] & TOK_F_SPECIAL);
}
