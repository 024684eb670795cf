/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata has the tokens by id, their kinds (SentencePiece's numbers) and, by the kind of
 * tokenizer, scores or merges:
 *
 *     llama   SentencePiece's BPE: the pieces with their scores, as in a tokenizer.model
 *     gpt2    byte-level BPE: tokens in the byte-level alphabet, and merges. The split of the text
 *             into words is a name (tokenizer.ggml.pre), which a table here makes a pattern of.
 *
 * Control tokens are special; those that users defined are found in texts as well, and their texts
 * are as they are, not in the alphabet. Sources: ggml (docs/gguf.md), the tokenizer.json of the
 * models that the names stand for. */
#include "common/tokenizer/source/gguf_tokens.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/source/patterns.h"
#include "common/tokenizer/source/spm.h"
#include "common/utf8.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE }; /* kinds of tokens */
#define NAME_SHOWN 60

static const struct split {
    const char *names; /* "a b": values of tokenizer.ggml.pre */
    const char *pattern;
    bool digits; /* each digit is a word, before the pattern is looked for */
    bool nfc;    /* the text is normalized */
    bool whole;  /* a word that is a token is that token, whatever the merges */
    bool bos;    /* where the file does not say */
} splits[] = {
    // clang-format off
    {"gpt-2 phi-2 mpt olmo jais exaone4 gigachat jina-es jina-de roberta-bpe", PATTERN_GPT2, false, false, false, false},
    {"starcoder refact command-r smollm codeshell exaone", PATTERN_GPT2,   true,  false, false, false},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1",        PATTERN_CL100K, false, false, true,  true},
    {"dbrx smaug-bpe chatglm-bpe glm4",                    PATTERN_CL100K, false, false, false, false},
    {"qwen2 deepseek-r1-qwen megrez",                      PATTERN_QWEN,   false, true,  false, false},
    {"stablelm2 hunyuan",                                  PATTERN_QWEN,   false, false, false, false},
    {"tekken",                                             PATTERN_TEKKEN, false, false, true,  true},
    {"gpt-4o llama4",                                      PATTERN_O200K,  false, false, false, false},
    // clang-format on
};

struct writer {
    struct tok_written *out;
    const struct gguf *g;
    const struct tok_config *config;
    const struct gguf_value *kinds; /* may be NULL: all are normal */
    uint64_t n;                     /* tokens */
    struct q_err *e;
};

static const struct split *find_split(struct gguf_text name)
{
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        for (const char *p = splits[i].names; *p;) {
            const size_t n = strcspn(p, " ");
            if (n == name.n && memcmp(p, name.s, n) == 0)
                return &splits[i];
            p += n + (p[n] == ' ');
        }
    return NULL;
}

static enum q_code fail_key(const struct writer *w, const char *key, const char *expected)
{
    return q_fail(w->e, Q_CORRUPT, "%s: %s is missing or of another kind, expected %s", w->g->path,
                  key, expected);
}

static int64_t kind_of(const struct writer *w, uint64_t id)
{
    int64_t kind = NORMAL;
    (void)gguf_element_whole(w->kinds, id, &kind);
    return kind;
}

/* A text of the file that becomes one of JSON. */
static enum q_code check_text(const struct writer *w, struct gguf_text t, const char *what,
                              uint64_t i)
{
    return utf8_valid(t.s, t.n) ? Q_OK
                                : q_fail(w->e, Q_CORRUPT, "%s: %s %llu is not UTF-8", w->g->path,
                                         what, (unsigned long long)i);
}

/* ---- byte-level BPE ---- */

static enum q_code write_vocab(const struct writer *w)
{
    struct buf *b = &w->out->json;
    struct gguf_texts tokens;
    struct gguf_text t;
    enum q_code rc = Q_OK;
    (void)gguf_texts_of(&tokens, gguf_find(w->g, "tokenizer.ggml.tokens"));
    for (uint64_t id = 0; !rc && gguf_texts_next(&tokens, &t); id++) {
        rc = check_text(w, t, "token", id);
        buf_add_str(b, id ? "," : "");
        buf_add_json_str(b, t.s, t.n);
        buf_printf(b, ":%llu", (unsigned long long)id);
    }
    return rc;
}

static enum q_code write_merges(const struct writer *w)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct buf *b = &w->out->json;
    struct gguf_texts merges;
    struct gguf_text t;
    enum q_code rc = Q_OK;
    if (!gguf_texts_of(&merges, gguf_find(w->g, key)))
        return fail_key(w, key, "a list of texts");
    for (uint64_t i = 0; !rc && gguf_texts_next(&merges, &t); i++) {
        rc = check_text(w, t, "merge", i);
        buf_add_str(b, i ? "," : "");
        buf_add_json_str(b, t.s, t.n);
    }
    return rc;
}

static void write_added(const struct writer *w)
{
    struct buf *b = &w->out->json;
    struct gguf_texts tokens;
    struct gguf_text t;
    bool first = true;
    (void)gguf_texts_of(&tokens, gguf_find(w->g, "tokenizer.ggml.tokens"));
    for (uint64_t id = 0; gguf_texts_next(&tokens, &t); id++) {
        const int64_t kind = kind_of(w, id);
        if ((kind != CONTROL && kind != USER_DEFINED && kind != UNKNOWN) || !t.n)
            continue;
        buf_printf(
            b, "%s{\"id\":%llu,\"normalized\":false,\"special\":%s,\"content\":", first ? "" : ",",
            (unsigned long long)id, kind == USER_DEFINED ? "false" : "true");
        buf_add_json_str(b, t.s, t.n);
        buf_add_char(b, '}');
        first = false;
    }
}

static void write_text_rules(struct buf *b, const struct split *s)
{
    buf_add_str(b, s->nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "");
    buf_add_str(b, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (s->digits)
        buf_add_str(b, "{\"type\":\"Digits\",\"individual_digits\":true},");
    buf_add_str(b, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"
                   "\"pattern\":{\"Regex\":");
    buf_add_json_str(b, s->pattern, strlen(s->pattern));
    buf_add_str(b, "}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                   "\"decoder\":{\"type\":\"ByteLevel\"},");
}

/* bos and eos around the text, where they are wanted. */
static enum q_code write_post(const struct writer *w, const struct split *s)
{
    static const struct {
        const char *key, *name;
    } ends[] = {{"tokenizer.ggml.bos_token_id", "bos"}, {"tokenizer.ggml.eos_token_id", "eos"}};
    const struct tok_config *c = w->config;
    const bool wanted[2] = {c->has_bos ? c->add_bos : s->bos, c->has_eos && c->add_eos};
    struct buf *b = &w->out->json;
    int64_t ids[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        if (wanted[i] && (!gguf_whole(gguf_find(w->g, ends[i].key), &ids[i]) || ids[i] < 0 ||
                          (uint64_t)ids[i] >= w->n))
            return fail_key(w, ends[i].key, "the id of a token");
    if (!wanted[0] && !wanted[1])
        return Q_OK;
    buf_printf(b,
               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[%s"
               "{\"Sequence\":{\"id\":\"A\"}}%s],\"special_tokens\":{",
               wanted[0] ? "{\"SpecialToken\":{\"id\":\"bos\"}}," : "",
               wanted[1] ? ",{\"SpecialToken\":{\"id\":\"eos\"}}" : "");
    for (int i = 0; i < 2; i++)
        if (wanted[i])
            buf_printf(b, "%s\"%s\":{\"ids\":[%lld]}", i && wanted[0] ? "," : "", ends[i].name,
                       (long long)ids[i]);
    buf_add_str(b, "}},");
    return Q_OK;
}

static enum q_code fail_split(const struct writer *w, struct gguf_text name)
{
    struct buf names = BUF_INIT;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        buf_printf(&names, "%s%s", i ? " " : "", splits[i].names);
    const enum q_code rc = q_fail(
        w->e, Q_UNSUPPORTED,
        "%s: tokenizer.ggml.pre is %s%.*s%s, supported are: %s; use the tokenizer of the original "
        "model: --tokenizer",
        w->g->path, name.n ? "\"" : "missing", name.n < NAME_SHOWN ? (int)name.n : NAME_SHOWN,
        name.s, name.n ? "\"" : "", buf_str(&names));
    buf_release(&names);
    return rc;
}

static enum q_code write_byte_level(const struct writer *w)
{
    struct gguf_text name = {"", 0};
    struct buf *b = &w->out->json;
    enum q_code rc;
    (void)gguf_text(gguf_find(w->g, "tokenizer.ggml.pre"), &name);
    const struct split *s = find_split(name);
    if (!s)
        return fail_split(w, name);
    buf_add_char(b, '{');
    write_text_rules(b, s);
    if ((rc = write_post(w, s)))
        return rc;
    buf_printf(b, "\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{",
               s->whole ? "true" : "false");
    if ((rc = write_vocab(w)))
        return rc;
    buf_add_str(b, "},\"merges\":[");
    if ((rc = write_merges(w)))
        return rc;
    buf_add_str(b, "]},\"added_tokens\":[");
    write_added(w);
    buf_add_str(b, "]}");
    return buf_check(b, "the tokenizer as JSON", w->e);
}

/* ---- SentencePiece ---- */

static enum q_code write_pieces(const struct writer *w)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_value *scores = gguf_find(w->g, key);
    struct gguf_texts tokens;
    struct gguf_text t;
    enum q_code rc = Q_OK;
    if (!scores || scores->kind != GGUF_ARRAY || scores->n != w->n)
        return fail_key(w, key, "a number for each token");
    struct spm_piece *pieces = q_calloc(w->n + 1, sizeof *pieces);
    if (!pieces)
        return q_fail(w->e, Q_NO_MEMORY, "%s: out of memory for its tokens", w->g->path);
    (void)gguf_texts_of(&tokens, gguf_find(w->g, "tokenizer.ggml.tokens"));
    for (uint64_t id = 0; !rc && gguf_texts_next(&tokens, &t); id++) {
        double score = 0;
        rc = check_text(w, t, "token", id);
        if (!rc && !gguf_element(scores, id, &score))
            rc = fail_key(w, key, "numbers");
        pieces[id] = (struct spm_piece){{t.s, t.n}, (float)score, (uint32_t)kind_of(w, id)};
    }
    if (!rc)
        rc = spm_write_pieces(w->out, pieces, w->n, w->config, w->e);
    q_free(pieces);
    return rc;
}

/* ---- both ---- */

enum q_code gguf_tokens_write(struct tok_written *out, const struct gguf *g, struct tok_config *c,
                              struct q_err *e)
{
    struct writer w = {.out = out, .g = g, .config = c, .e = e};
    const struct gguf_value *model = gguf_find(g, "tokenizer.ggml.model");
    struct gguf_text name = {"", 0};
    struct gguf_texts tokens;
    w.kinds = gguf_find(g, "tokenizer.ggml.token_type");
    if (!gguf_texts_of(&tokens, gguf_find(g, "tokenizer.ggml.tokens")) || !tokens.left)
        return fail_key(&w, "tokenizer.ggml.tokens", "a list of texts");
    w.n = tokens.left;
    if (w.n > TOK_ID_MAX || (w.kinds && (w.kinds->kind != GGUF_ARRAY || w.kinds->n != w.n)))
        return fail_key(&w, "tokenizer.ggml.token_type", "a number for each token");
    if (gguf_text_is(model, "gpt2"))
        return write_byte_level(&w);
    if (gguf_text_is(model, "llama"))
        return write_pieces(&w);
    (void)gguf_text(model, &name);
    return q_fail(
        e, Q_UNSUPPORTED,
        "%s: tokenizer.ggml.model is %s%.*s%s, expected llama (SentencePiece BPE) or gpt2 "
        "(byte-level BPE); use the tokenizer of the original model: --tokenizer",
        g->path, name.n ? "\"" : "missing", name.n < NAME_SHOWN ? (int)name.n : NAME_SHOWN, name.s,
        name.n ? "\"" : "");
}
