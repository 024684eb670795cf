/* SPDX-License-Identifier: Apache-2.0 */
/* A file of tiktoken ranks ("base64 rank" per line) converted to tokenizer.json.
 *
 * The file contains tokens only. The pattern and the special tokens are code in other projects, so
 * they are a table here: by the tokenizer_class of the folder, or by the name of the encoding. Two
 * tokens merge if the result is a token, the lowest rank first; a word that is a token becomes that
 * token at once. Source: tiktoken and the authors of the tokenizers. */
#include "common/tokenizer/source/tiktoken.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/source/patterns.h"
#include "common/tokenizer/source/ranks.h"
#include "common/utf8.h"

#define NO_HAN(class) "(?:(?!\\p{Han})" class ")"
#define KIMI                                                                        \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(PATTERN_UPPER) "*" NO_HAN(          \
        PATTERN_LOWER) "+" PATTERN_CONTRACTIONS                                     \
                       "?|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(PATTERN_UPPER) "+" NO_HAN( \
                           PATTERN_LOWER) "*" PATTERN_CONTRACTIONS "?|\\p{N}{1,3}" PATTERN_TAIL

struct named_id {
    const char *text; /* %u in it: its id */
    uint32_t id, n;   /* n of them, from id on */
};
static const struct known {
    const char *class, *file; /* either may be "", which is no reason to match */
    const char *pattern;
    bool nfc, bos; /* the text is normalized; bos_token goes first where not said */
    struct named_id special[5];
} knowns[] = {
    {"TikTokenTokenizer", "", KIMI, false, false, {{"<|reserved_token_%u|>", 163584, 256}}},
    {"QWenTokenizer",
     "qwen.tiktoken",
     PATTERN_QWEN,
     true,
     false,
     {
         {"<|endoftext|>", 151643, 1},
         {"<|im_start|>", 151644, 1},
         {"<|im_end|>", 151645, 1},
         {"<|extra_%u|>", 151646, 205},
     }},
    {"",
     "o200k_base.tiktoken",
     PATTERN_O200K,
     false,
     false,
     {{"<|endoftext|>", 199999, 1}, {"<|endofprompt|>", 200018, 1}}},
    {"",
     "cl100k_base.tiktoken",
     PATTERN_CL100K,
     false,
     false,
     {
         {"<|endoftext|>", 100257, 1},
         {"<|fim_prefix|>", 100258, 1},
         {"<|fim_middle|>", 100259, 1},
         {"<|fim_suffix|>", 100260, 1},
         {"<|endofprompt|>", 100276, 1},
     }},
    {"", "r50k_base.tiktoken", PATTERN_GPT2, false, false, {{"<|endoftext|>", 50256, 1}}},
    {"LlamaTokenizer", "", PATTERN_CL100K, false, true, {{NULL, 0, 0}}},
    {"PreTrainedTokenizer", "", PATTERN_CL100K, false, true, {{NULL, 0, 0}}},
    {"TokenizersBackend", "", PATTERN_CL100K, false, true, {{NULL, 0, 0}}},
};

static const struct known *find_known(const char *name, const struct tok_config *c)
{
    for (size_t i = 0; i < sizeof knowns / sizeof *knowns; i++) {
        const struct known *k = &knowns[i];
        if ((*k->file && strcmp(k->file, name) == 0) ||
            (*k->class && strcmp(k->class, c->class) == 0))
            return k;
    }
    return NULL;
}

struct writer {
    struct tok_written *out;
    const struct known *known;
    const struct tok_config *config;
    uint32_t n_rank; /* tokens of the file */
};

/* ---- the ranks ---- */

static enum q_code bad_line(size_t i_line, const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "tiktoken ranks: line %zu: %s; expected \"base64 rank\"",
                  i_line + 1, what);
}

static enum q_code read_line(struct writer *w, const char *line, size_t n, size_t i_line,
                             struct q_err *e)
{
    unsigned char token[RANK_TOKEN_MAX + 4];
    const char *space = memchr(line, ' ', n);
    size_t n_code = space ? (size_t)(space - line) : 0;
    uint64_t rank = 0;
    size_t n_token = rank_token(token, (struct tok_str){line, n_code});
    if (n_token == 0)
        return bad_line(i_line, "not base64", e);
    size_t i = n_code + 1;
    for (; i < n && line[i] >= '0' && line[i] <= '9' && rank < TOK_ID_MAX; i++)
        rank = rank * 10 + (uint64_t)(line[i] - '0');
    if (i == n_code + 1 || i != n || rank >= TOK_ID_MAX)
        return bad_line(i_line, "not a rank", e);
    buf_add_str(&w->out->json, w->n_rank ? "," : "");
    w->n_rank++;
    return rank_write(w->out, (struct tok_str){(const char *)token, n_token}, (uint32_t)rank,
                      (uint32_t)rank, e);
}

static enum q_code read_ranks(struct writer *w, struct tok_str file, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t i_line = 0;
    for (size_t at = 0; at < file.n && !rc; i_line++) {
        const char *end = memchr(file.s + at, '\n', file.n - at);
        size_t n = end ? (size_t)(end - file.s) - at : file.n - at;
        size_t next = at + n + 1;
        if (n && file.s[at + n - 1] == '\r')
            n--;
        if (n)
            rc = read_line(w, file.s + at, n, i_line, e);
        at = next;
    }
    return rc || w->n_rank ? rc : bad_line(0, "the file is empty", e);
}

/* ---- special tokens ---- */

/* Whether tokenizer_config.json has a token of this id. */
static bool in_config(const struct tok_config *c, uint32_t id)
{
    char key[16];
    snprintf(key, sizeof key, "%u", id);
    return json_object_get(json_object_get(c->root, "added_tokens_decoder"), key) != NULL;
}

static void add_special(struct writer *w, struct buf *list, const char *text, uint32_t id)
{
    buf_add_char(&w->out->json, ',');
    buf_add_json_str(&w->out->json, text, strlen(text));
    buf_printf(&w->out->json, ":%u", id);
    buf_printf(list, "%s{\"id\":%u,\"normalized\":false,\"special\":true,\"content\":",
               list->len ? "," : "", id);
    buf_add_json_str(list, text, strlen(text));
    buf_add_char(list, '}');
}

/* Those of the table into the vocabulary and `list`; the config's into the vocabulary alone, their
 * flags are read with the config. */
static void add_specials(struct writer *w, struct buf *list)
{
    const char *key;
    json_t *spec;
    json_object_foreach (json_object_get(w->config->root, "added_tokens_decoder"), key, spec) {
        const char *content = json_string_value(json_object_get(spec, "content"));
        if (!content)
            continue;
        buf_add_char(&w->out->json, ',');
        buf_add_json_str(&w->out->json, content, strlen(content));
        buf_printf(&w->out->json, ":%lu", strtoul(key, NULL, 10));
    }
    for (size_t i = 0; i < 5 && w->known->special[i].text; i++) {
        const struct named_id *s = &w->known->special[i];
        bool by_id = strcmp(s->text, "<|reserved_token_%u|>") == 0;
        for (uint32_t k = 0; k < s->n; k++) {
            char text[64];
            const char *number = strstr(s->text, "%u");
            snprintf(text, sizeof text, "%s", s->text);
            if (number)
                snprintf(text, sizeof text, "%.*s%u%s", (int)(number - s->text), s->text,
                         by_id ? s->id + k : k, number + 2);
            if (!in_config(w->config, s->id + k))
                add_special(w, list, text, s->id + k);
        }
    }
}

/* The beginning-of-text token's id, if one is to be added. */
static bool find_bos(const struct writer *w, const char *bos, unsigned long *id)
{
    const struct tok_config *c = w->config;
    const char *key;
    json_t *spec;
    if (!bos || !(c->has_bos ? c->add_bos : w->known->bos))
        return false;
    json_object_foreach (json_object_get(c->root, "added_tokens_decoder"), key, spec) {
        const char *content = json_string_value(json_object_get(spec, "content"));
        *id = strtoul(key, NULL, 10);
        if (content && strcmp(content, bos) == 0)
            return true;
    }
    return false;
}

enum q_code tiktoken_write(struct tok_written *out, struct tok_str file, const char *name,
                           const struct tok_config *c, struct q_err *e)
{
    struct writer w = {out, find_known(name, c), c, 0};
    struct buf *b = &out->json;
    struct buf list = BUF_INIT;
    unsigned long id;
    const char *bos = tok_config_token(c, "bos_token");
    if (!w.known)
        return q_fail(e, Q_UNSUPPORTED,
                      "%.60s: the split pattern of these tiktoken ranks is unknown for "
                      "tokenizer_class \"%.40s\"; a tokenizer.json is required",
                      name, c->class);
    buf_add_str(b,
                "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                "\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
    buf_add_json_str(b, w.known->pattern, strlen(w.known->pattern));
    buf_add_str(b, "}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                   "\"decoder\":{\"type\":\"ByteLevel\"}");
    buf_add_str(b, w.known->nfc ? ",\"normalizer\":{\"type\":\"NFC\"}" : "");
    if (find_bos(&w, bos, &id)) {
        buf_add_str(b, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                       "{\"SpecialToken\":{\"id\":\"bos\"}},{\"Sequence\":{\"id\":\"A\"}}],");
        buf_printf(b, "\"special_tokens\":{\"bos\":{\"ids\":[%lu]}}}", id);
    }
    buf_add_str(b, ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"merges\":[],\"vocab\":{");
    enum q_code rc = read_ranks(&w, file, e);
    add_specials(&w, &list);
    buf_add_str(b, "}},\"added_tokens\":[");
    buf_add(b, buf_str(&list), list.len);
    buf_add_str(b, "]}");
    if (!rc)
        rc = buf_check(&list, "special tokens", e);
    buf_release(&list);
    return rc ? rc : buf_check(b, "tiktoken ranks as JSON", e);
}
