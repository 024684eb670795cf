/* SPDX-License-Identifier: Apache-2.0 */
/* A SentencePiece model (tokenizer.model, spiece.model) converted to tokenizer.json.
 *
 * The settings are in the file: pieces with scores and kinds, BPE or unigram, normalization.
 * Families of transformers whose class processes the text differently have a row in `families`;
 * classes that renumber the pieces are refused by name. For any other class each stretch of text
 * between special tokens is encoded by SentencePiece.
 *
 * A BPE model has no list of merges: two pieces merge if the result is a piece, the best score
 * first, the leftmost of equals. Scores are therefore ranks (tok_extra). */
#include "common/tokenizer/source/spm.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/source/pb.h"
#include "common/utf8.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE }; /* kinds of pieces */
enum { UNIGRAM = 1, BPE };                                         /* kinds of models */
#define PIECES_MAX ((size_t)1 << 24)
#define MARK       "\xe2\x96\x81" /* U+2581, stands for a space */

struct spm {
    struct spm_piece *pieces; /* [n], owned; texts borrowed from the file */
    size_t n, cap;
    uint32_t model;
    bool byte_fallback, suffix, dummy_prefix, remove_spaces, escape;
    uint32_t unk_id;
    struct tok_str charsmap;
};

enum style { SENTENCEPIECE, LLAMA, GEMMA, T5, REFUSED };

static const struct family {
    const char *class;
    enum style style;
    bool bos, eos; /* added where tokenizer_config.json does not say */
} families[] = {
    {"LlamaTokenizer", LLAMA, true, false},  {"CodeLlamaTokenizer", LLAMA, true, false},
    {"GemmaTokenizer", GEMMA, true, false},  {"T5Tokenizer", T5, false, true},
    {"AlbertTokenizer", REFUSED, 0, 0},      {"BarthezTokenizer", REFUSED, 0, 0},
    {"BigBirdTokenizer", REFUSED, 0, 0},     {"CamembertTokenizer", REFUSED, 0, 0},
    {"CodeGenTokenizer", REFUSED, 0, 0},     {"DebertaV2Tokenizer", REFUSED, 0, 0},
    {"FNetTokenizer", REFUSED, 0, 0},        {"M2M100Tokenizer", REFUSED, 0, 0},
    {"MBart50Tokenizer", REFUSED, 0, 0},     {"MBartTokenizer", REFUSED, 0, 0},
    {"MarianTokenizer", REFUSED, 0, 0},      {"NllbTokenizer", REFUSED, 0, 0},
    {"PegasusTokenizer", REFUSED, 0, 0},     {"PLBartTokenizer", REFUSED, 0, 0},
    {"ReformerTokenizer", REFUSED, 0, 0},    {"RemBertTokenizer", REFUSED, 0, 0},
    {"SeamlessM4TTokenizer", REFUSED, 0, 0}, {"UdopTokenizer", REFUSED, 0, 0},
    {"XGLMTokenizer", REFUSED, 0, 0},        {"XLMRobertaTokenizer", REFUSED, 0, 0},
    {"XLNetTokenizer", REFUSED, 0, 0},
};

static const struct family *family_of(const struct tok_config *c)
{
    static const struct family other = {"", SENTENCEPIECE, false, false};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].class, c->class) == 0)
            return &families[i];
    }
    return &other;
}

/* ---- reading ---- */

static enum q_code damaged(const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "tokenizer.model: not a SentencePiece model (%s)", what);
}

static enum q_code read_piece(struct spm *m, struct tok_str bytes, struct q_err *e)
{
    struct pb f;
    struct spm_piece p = {{"", 0}, 0, NORMAL};
    enum q_code rc = q_grow(&m->pieces, &m->cap, m->n + 1, sizeof *m->pieces, PIECES_MAX, e);
    pb_init(&f, bytes);
    while (!rc && pb_next(&f)) {
        if (f.field == 1)
            p.text = f.bytes;
        else if (f.field == 2)
            p.score = pb_float(&f);
        else if (f.field == 3)
            p.kind = (uint32_t)f.number;
    }
    if (rc)
        return rc;
    if (f.bad || !utf8_valid(p.text.s, p.text.n) || !isfinite(p.score))
        return damaged("a piece", e);
    m->pieces[m->n++] = p;
    return Q_OK;
}

static enum q_code read_trainer(struct spm *m, struct tok_str bytes, struct q_err *e)
{
    struct pb f;
    pb_init(&f, bytes);
    while (pb_next(&f)) {
        switch (f.field) {
        case 3:
            m->model = (uint32_t)f.number;
            break;
        case 24:
            m->suffix = f.number;
            break;
        case 35:
            m->byte_fallback = f.number;
            break;
        case 40:
            m->unk_id = (uint32_t)f.number;
            break;
        default:
            break;
        }
    }
    return f.bad ? damaged("trainer_spec", e) : Q_OK;
}

static enum q_code read_normalizer(struct spm *m, struct tok_str bytes, struct q_err *e)
{
    struct pb f;
    pb_init(&f, bytes);
    while (pb_next(&f)) {
        switch (f.field) {
        case 2:
            m->charsmap = f.bytes;
            break;
        case 3:
            m->dummy_prefix = f.number;
            break;
        case 4:
            m->remove_spaces = f.number;
            break;
        case 5:
            m->escape = f.number;
            break;
        default:
            break;
        }
    }
    return f.bad ? damaged("normalizer_spec", e) : Q_OK;
}

static enum q_code read_model(struct spm *m, struct tok_str file, struct q_err *e)
{
    struct pb f;
    enum q_code rc = Q_OK;
    m->model = UNIGRAM;
    m->dummy_prefix = m->remove_spaces = m->escape = true;
    pb_init(&f, file);
    while (!rc && pb_next(&f)) {
        if (f.field == 1)
            rc = read_piece(m, f.bytes, e);
        else if (f.field == 2)
            rc = read_trainer(m, f.bytes, e);
        else if (f.field == 3)
            rc = read_normalizer(m, f.bytes, e);
    }
    if (rc)
        return rc;
    if (f.bad || m->n == 0)
        return damaged(f.bad ? "its fields" : "no pieces", e);
    if (m->model != UNIGRAM && m->model != BPE)
        return q_fail(
            e, Q_UNSUPPORTED,
            "tokenizer.model: model_type %u is not supported; accepted are unigram and BPE",
            m->model);
    if (m->suffix || !m->escape)
        return q_fail(e, Q_UNSUPPORTED, "tokenizer.model: %s is not supported",
                      m->suffix ? "treat_whitespace_as_suffix" : "escape_whitespaces = false");
    if (m->unk_id >= m->n)
        return damaged("unk_id", e);
    return Q_OK;
}

/* ---- what goes beside the JSON ---- */

struct order { /* a piece's place by score */
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    float x = ((const struct order *)a)->score;
    float y = ((const struct order *)b)->score;
    return (x < y) - (x > y);
}

/* Equal scores have equal ranks. */
static enum q_code add_ranks(const struct spm *m, struct tok_extra *x, struct q_err *e)
{
    struct order *o = q_calloc(m->n, sizeof *o);
    x->ranks = q_calloc(m->n, sizeof *x->ranks);
    x->n = m->n;
    if (!o || !x->ranks) {
        q_free(o);
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu pieces", m->n);
    }
    for (uint32_t i = 0; i < m->n; i++)
        o[i] = (struct order){m->pieces[i].score, i};
    qsort(o, m->n, sizeof *o, by_score);
    for (uint32_t i = 0, rank = 0; i < m->n; i++) {
        const struct spm_piece *p = &m->pieces[o[i].id];
        rank = i && o[i].score < o[i - 1].score ? i : rank;
        bool merges = p->kind == NORMAL || p->kind == USER_DEFINED || p->kind == UNUSED;
        x->ranks[o[i].id] = merges ? rank : RANK_NONE;
    }
    q_free(o);
    return Q_OK;
}

/* A user-defined piece scores 0.1 for each of its bytes but the first; the others' scores are
 * negative, so that it always wins. Source: what SentencePiece 0.2.3 answers where two ways of
 * cutting differ in the last bit of their totals. */
static enum q_code add_scores(const struct spm *m, enum style style, struct tok_extra *x,
                              struct q_err *e)
{
    float low = FLT_MAX;
    for (size_t i = 0; i < m->n; i++) {
        float score = m->pieces[i].score;
        if (m->pieces[i].kind != NORMAL)
            continue;
        low = score < low ? score : low;
    }
    x->single = style == SENTENCEPIECE;
    x->low = (double)low;
    x->scores = q_calloc(m->n, sizeof *x->scores);
    x->n = m->n;
    for (size_t i = 0; x->scores && i < m->n; i++)
        x->scores[i] = m->pieces[i].kind == USER_DEFINED && m->pieces[i].text.n
                           ? (double)(0.1f * (float)(m->pieces[i].text.n - 1))
                           : (double)m->pieces[i].score;
    return x->scores ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for %zu pieces", m->n);
}

/* ---- writing ---- */

/* With SentencePiece's own rules a unigram model's user-defined pieces stay in the lattice, where
 * their score lets them win. */
static bool is_added(const struct spm *m, enum style style, uint32_t kind)
{
    if (kind == USER_DEFINED)
        return m->model == BPE || style != SENTENCEPIECE;
    return kind == CONTROL || kind == UNKNOWN;
}

static void write_added(const struct spm *m, enum style style, struct buf *b)
{
    bool first = true;
    buf_add_str(b, "\"added_tokens\":[");
    for (size_t i = 0; i < m->n; i++) {
        const struct spm_piece *p = &m->pieces[i];
        if (!is_added(m, style, p->kind) || !p->text.n)
            continue;
        buf_printf(b, "%s{\"id\":%zu,\"normalized\":false,\"special\":%s,\"content\":",
                   first ? "" : ",", i, p->kind == USER_DEFINED ? "false" : "true");
        buf_add_json_str(b, p->text.s, p->text.n);
        buf_add_char(b, '}');
        first = false;
    }
    buf_add_char(b, ']');
}

static void write_base64(struct buf *b, struct tok_str s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < s.n; i += 3) {
        uint32_t x = 0;
        for (size_t k = 0; k < 3; k++)
            x = x << 8 | (i + k < s.n ? (unsigned char)s.s[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            buf_add_char(b, i + k <= s.n ? digits[x >> (18 - 6 * k) & 63] : '=');
    }
}

static void write_charsmap(const struct spm *m, bool own_rules, struct buf *b)
{
    buf_add_str(b, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    write_base64(b, m->charsmap);
    buf_printf(b, "\",\"" SPM_RULES "\":%s},", own_rules ? "true" : "false");
}

#define METASPACE \
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"%s\",\"split\":%s}"
#define REPLACE_SPACE \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"

/* Every stretch of text as SentencePiece normalizes it. */
static void write_own_rules(const struct spm *m, struct buf *b)
{
    buf_add_str(b, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (m->charsmap.n)
        write_charsmap(m, true, b);
    if (m->remove_spaces)
        buf_add_str(b, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +| +\\\\z\"},"
                       "\"content\":\"\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},"
                       "\"content\":\" \"},");
    if (m->dummy_prefix)
        buf_add_str(b, "{\"type\":\"Prepend\",\"prepend\":\" \"},");
    buf_add_str(b, REPLACE_SPACE "]}");
}

static void write_text_rules(const struct spm *m, enum style style, const struct tok_config *c,
                             struct buf *b)
{
    bool prefix = tok_config_bool(c, "add_prefix_space", true);
    const char *scheme = tok_config_bool(c, "legacy", false) ? "always" : "first";
    switch (style) {
    case LLAMA:
        buf_printf(b, ",\"pre_tokenizer\":" METASPACE, prefix ? scheme : "never", "false");
        break;
    case GEMMA:
        buf_add_str(b, ",\"normalizer\":" REPLACE_SPACE);
        break;
    case T5:
        buf_add_str(b, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
        if (m->charsmap.n)
            write_charsmap(m, false, b);
        buf_add_str(b, "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
                       "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"" MARK
                       "\"}]}");
        buf_printf(b, ",\"pre_tokenizer\":" METASPACE, prefix ? "always" : "never", "true");
        break;
    default:
        write_own_rules(m, b);
    }
    if (style == T5)
        buf_printf(b, ",\"decoder\":" METASPACE, prefix ? "always" : "never", "true");
    else
        buf_printf(b,
                   ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                   "\"pattern\":{\"String\":\"" MARK "\"},\"content\":\" \"},{\"type\":"
                   "\"ByteFallback\"%s},{\"type\":\"Fuse\"}%s]}",
                   style != SENTENCEPIECE ? ""
                   : m->remove_spaces     ? ",\"" SPM_RULES "\":true,\"" SPM_STRIP_ALL "\":true"
                   : m->dummy_prefix      ? ",\"" SPM_RULES "\":true,\"" SPM_STRIP "\":true"
                                          : ",\"" SPM_RULES "\":true",
                   style == LLAMA && prefix
                       ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
                       : "");
}

static void write_vocab(const struct spm *m, struct buf *b)
{
    bool unigram = m->model == UNIGRAM;
    for (size_t i = 0; i < m->n; i++) {
        buf_add_str(b, i ? "," : "");
        buf_add_str(b, unigram ? "[" : "");
        buf_add_json_str(b, m->pieces[i].text.s, m->pieces[i].text.n);
        if (unigram)
            buf_add_str(b, ",0]"); /* tok_extra has the score */
        else
            buf_printf(b, ":%zu", i);
    }
}

static const json_t *added_decoder(const struct tok_config *c)
{
    return json_object_get(c->root, "added_tokens_decoder");
}

static bool has_piece(const struct spm *m, const char *text, size_t *id)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < m->n; i++) {
        if (m->pieces[i].text.n == n && memcmp(m->pieces[i].text.s, text, n) == 0) {
            *id = i;
            return true;
        }
    }
    return false;
}

/* Tokens that tokenizer_config.json adds behind the pieces; their ids are the file's. */
static void write_more_vocab(const struct spm *m, const struct tok_config *c, struct buf *b)
{
    const char *key;
    json_t *spec;
    json_object_foreach ((json_t *)added_decoder(c), key, spec) {
        const json_t *content = json_object_get(spec, "content");
        size_t id = strtoul(key, NULL, 10);
        if (!json_is_string(content) || id < m->n)
            continue;
        buf_add_char(b, ',');
        buf_add_json_str(b, json_string_value(content), json_string_length(content));
        buf_printf(b, ":%zu", id);
    }
}

static bool token_id(const struct spm *m, const struct tok_config *c, const char *text, size_t *id)
{
    const char *key;
    json_t *spec;
    if (has_piece(m, text, id))
        return true;
    json_object_foreach ((json_t *)added_decoder(c), key, spec) {
        const char *content = json_string_value(json_object_get(spec, "content"));
        if (content && strcmp(content, text) == 0) {
            *id = strtoul(key, NULL, 10);
            return true;
        }
    }
    return false;
}

static void write_special(struct buf *b, const char *text)
{
    buf_add_str(b, "{\"SpecialToken\":{\"id\":");
    buf_add_json_str(b, text, strlen(text));
    buf_add_str(b, ",\"type_id\":0}}");
}

/* bos and eos around the text, where they are wanted. */
static enum q_code write_post(const struct spm *m, const struct family *f,
                              const struct tok_config *c, struct buf *b, struct q_err *e)
{
    static const char *const keys[] = {"bos_token", "eos_token"};
    static const char *const defaults[] = {"<s>", "</s>"};
    bool wanted[2] = {c->has_bos ? c->add_bos : f->bos, c->has_eos ? c->add_eos : f->eos};
    const char *text[2] = {NULL, NULL};
    size_t ids[2] = {0, 0};
    if (!wanted[0] && !wanted[1])
        return Q_OK;
    for (int i = 0; i < 2; i++) {
        text[i] = tok_config_token(c, keys[i]);
        text[i] = text[i] ? text[i] : f->style == GEMMA ? (i ? "<eos>" : "<bos>") : defaults[i];
        if (wanted[i] && !token_id(m, c, text[i], &ids[i]))
            return q_fail(e, Q_CORRUPT, "tokenizer.model: %s \"%.40s\" is not among its pieces",
                          keys[i], text[i]);
    }
    buf_add_str(b, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (wanted[0])
        write_special(b, text[0]);
    buf_printf(b, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", wanted[0] ? "," : "");
    if (wanted[1]) {
        buf_add_char(b, ',');
        write_special(b, text[1]);
    }
    buf_add_str(b, "],\"special_tokens\":{");
    for (int i = 0; i < 2; i++) {
        if (!wanted[i])
            continue;
        buf_add_str(b, i && wanted[0] ? "," : "");
        buf_add_json_str(b, text[i], strlen(text[i]));
        buf_printf(b, ":{\"ids\":[%zu]}", ids[i]);
    }
    buf_add_str(b, "}}");
    return Q_OK;
}

static enum q_code write_json(const struct spm *m, const struct family *f,
                              const struct tok_config *c, struct buf *b, struct q_err *e)
{
    const char *fallback = m->byte_fallback ? "true" : "false";
    const struct tok_str unk = m->pieces[m->unk_id].text;
    buf_add_char(b, '{');
    write_added(m, f->style, b);
    write_text_rules(m, f->style, c, b);
    enum q_code rc = write_post(m, f, c, b, e);
    if (m->model == BPE) {
        buf_printf(b,
                   ",\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":%s,"
                   "\"unk_token\":",
                   fallback);
        buf_add_json_str(b, unk.s, unk.n);
        buf_add_str(b, ",\"merges\":[],\"vocab\":{");
        write_vocab(m, b);
        write_more_vocab(m, c, b);
        buf_add_str(b, "}}}");
    } else {
        buf_printf(b,
                   ",\"model\":{\"type\":\"Unigram\",\"unk_id\":%u,\"byte_fallback\":%s,"
                   "\"vocab\":[",
                   m->unk_id, fallback);
        write_vocab(m, b);
        for (int i = f->style == T5 ? 99 : -1; i >= 0; i--)
            buf_printf(b, ",[\"<extra_id_%d>\",0]", i);
        buf_add_str(b, "]}}");
    }
    return rc ? rc : buf_check(b, "tokenizer.model as JSON", e);
}

enum q_code spm_write(struct tok_written *out, const char *file, size_t n,
                      const struct tok_config *c, struct q_err *e)
{
    const struct family *f = family_of(c);
    struct spm m = {0};
    enum q_code rc;
    if (f->style == REFUSED)
        return q_fail(
            e, Q_UNSUPPORTED,
            "tokenizer.model: %s requires a tokenizer.json, which the folder does not have",
            f->class);
    if (!(rc = read_model(&m, (struct tok_str){file, n}, e)) &&
        !(rc = m.model == BPE ? add_ranks(&m, &out->extra, e)
                              : add_scores(&m, f->style, &out->extra, e)))
        rc = write_json(&m, f, c, &out->json, e);
    q_free(m.pieces);
    return rc;
}

enum q_code spm_write_pieces(struct tok_written *out, const struct spm_piece *pieces, size_t n,
                             const struct tok_config *c, struct q_err *e)
{
    static const struct family llama = {"LlamaTokenizer", LLAMA, true, false};
    struct spm m = {.model = BPE, .n = n, .unk_id = UINT32_MAX};
    enum q_code rc = Q_OK;
    m.pieces = q_calloc(n + 1, sizeof *m.pieces);
    if (!m.pieces)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu pieces", n);
    for (size_t i = 0; i < n; i++) {
        m.pieces[i] = pieces[i];
        m.byte_fallback = m.byte_fallback || pieces[i].kind == BYTE;
        if (pieces[i].kind == UNKNOWN && m.unk_id == UINT32_MAX)
            m.unk_id = (uint32_t)i;
        if (!isfinite(pieces[i].score))
            rc = q_fail(e, Q_CORRUPT, "the score of token %zu is not finite", i);
    }
    if (!rc && m.unk_id == UINT32_MAX)
        rc = q_fail(e, Q_CORRUPT, "no token is of the kind 2, unknown");
    if (!rc && !(rc = add_ranks(&m, &out->extra, e)))
        rc = write_json(&m, &llama, c, &out->json, e);
    q_free(m.pieces);
    return rc;
}
