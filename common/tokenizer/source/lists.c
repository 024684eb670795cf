/* SPDX-License-Identifier: Apache-2.0 */
/* Folders without tokenizer.json: vocab.txt (WordPiece, one word per line), and vocab.json with
 * merges.txt (byte-level BPE), converted to the tokenizer.json that transformers would make of
 * them.
 *
 * The files contain words and merges only. The other settings depend on the tokenizer_class, which
 * is a row of a table; tokenizer_config.json overrides them. A class without a row is refused by
 * name; without a class the files are read as BERT's and GPT-2's. Special tokens keep the ids of
 * the vocabulary; the others are numbered after it. Source: transformers'
 * convert_slow_tokenizer.py. */
#include "common/tokenizer/source/lists.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define ENDINGS "'s|'t|'re|'ve|'m|'ll|'d"
#define QWEN2                                                                                   \
    "(?i:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*" \
    "[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CLIP ENDINGS "|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"

/* In the order in which they are numbered where the vocabulary has none of them. */
enum role { BOS, EOS, UNK, SEP, PAD, CLS, MASK, ROLES };
static const char *const role_keys[ROLES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                             "pad_token", "cls_token", "mask_token"};
enum wrap {
    WRAP_NONE,
    WRAP_BOS,    /* bos if add_bos_token says so */
    WRAP_CLS,    /* cls … sep */
    WRAP_BOS_EOS /* bos … eos */
};

static const struct class_row {
    const char *name; /* tokenizer_class; "": none is given */
    bool words;       /* a vocab.txt, not vocab.json with merges.txt */
    enum wrap wrap;
    bool nfc, clip;      /* BPE: how the text is prepared and cut */
    const char *pattern; /* BPE: NULL is ByteLevel's own */
    const char *tokens[ROLES];
} classes[] = {
#define BERT "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"
#define WORDS(name)                               \
    {                                             \
        name, true, WRAP_CLS, false, false, NULL, \
        {                                         \
            NULL, NULL, BERT                      \
        }                                         \
    }
    WORDS(""),
    WORDS("BertTokenizer"),
    WORDS("DistilBertTokenizer"),
    WORDS("ElectraTokenizer"),
    WORDS("MobileBertTokenizer"),
    WORDS("ConvBertTokenizer"),
    WORDS("SqueezeBertTokenizer"),
    WORDS("LayoutLMTokenizer"),
    WORDS("RetriBertTokenizer"),
    WORDS("DPRQuestionEncoderTokenizer"),
    WORDS("DPRContextEncoderTokenizer"),
    {"MPNetTokenizer",
     true,
     WRAP_CLS,
     false,
     false,
     NULL,
     {"<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"}},
#define END "<|endoftext|>"
#define GPT2(name)                                 \
    {                                              \
        name, false, WRAP_BOS, false, false, NULL, \
        {                                          \
            END                                    \
            , END                                  \
            , END                                  \
        }                                          \
    }
    GPT2(""),
    GPT2("GPT2Tokenizer"),
    GPT2("CodeGenTokenizer"),
    {"GPTNeoXTokenizer", false, WRAP_BOS, false, false, NULL, {END, END, END, NULL, "<|padding|>"}},
    {"Qwen2Tokenizer", false, WRAP_NONE, true, false, QWEN2, {NULL, END, END, NULL, END}},
#define ROBERTA_TOKENS "<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"
#define ROBERTA(name)                              \
    {                                              \
        name, false, WRAP_CLS, false, false, NULL, \
        {                                          \
            ROBERTA_TOKENS                         \
        }                                          \
    }
    ROBERTA("RobertaTokenizer"),
    ROBERTA("BartTokenizer"),
    ROBERTA("LongformerTokenizer"),
    ROBERTA("LEDTokenizer"),
    ROBERTA("MvpTokenizer"),
    {"DebertaTokenizer",
     false,
     WRAP_CLS,
     false,
     false,
     NULL,
     {"[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}},
    {"CLIPTokenizer",
     false,
     WRAP_BOS_EOS,
     true,
     true,
     CLIP,
     {"<|startoftext|>", END, END, NULL, END}},
};

static enum q_code find_class(const struct class_row **out, bool words, const struct tok_config *c,
                              struct q_err *e)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (classes[i].words == words && strcmp(classes[i].name, c->class) == 0) {
            *out = &classes[i];
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s of tokenizer_class \"%.40s\" requires a tokenizer.json: save the tokenizer "
                  "with transformers to create it",
                  words ? "vocab.txt" : "vocab.json and merges.txt", c->class);
}

struct writer {
    struct buf *b;
    const struct tok_config *config;
    const struct class_row *row;
    json_t *vocab; /* word -> id */
    json_t *added; /* added token -> id; those that vocab has not are numbered behind it */
    size_t n_more; /* of those */
};

/* The token of a role: the folder's, else the class's; NULL when there is none. */
static const char *token_of(const struct writer *w, enum role role)
{
    const json_t *own = json_object_get(w->config->root, role_keys[role]);
    const char *token = own ? tok_config_token(w->config, role_keys[role]) : w->row->tokens[role];
    return token && *token ? token : NULL;
}

/* ---- what both kinds have ---- */

/* Once each: what comes again changes nothing. */
static void add_token(struct writer *w, const char *token, const json_t *spec, bool strips)
{
    const json_t *known = json_object_get(w->vocab, token);
    if (json_object_get(w->added, token))
        return;
    buf_add_str(w->b, json_object_size(w->added) ? "," : "");
    json_int_t id =
        known ? json_integer_value(known) : (json_int_t)(json_object_size(w->vocab) + w->n_more++);
    if (json_object_set_new(w->added, token, json_integer(id)))
        w->b->failed = Q_NO_MEMORY;
    if (!spec) {
        buf_printf(w->b, "{\"special\":true,\"normalized\":false,\"lstrip\":%s,\"content\":",
                   strips ? "true" : "false");
        buf_add_json_str(w->b, token, strlen(token));
        buf_add_char(w->b, '}');
        return;
    }
    char *text = json_dumps(spec, JSON_COMPACT);
    buf_add_str(w->b, text ? text : "");
    if (!text)
        w->b->failed = Q_NO_MEMORY;
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
}

struct listed { /* an entry of added_tokens_decoder */
    unsigned long id;
    const char *token;
    const json_t *spec;
};

static int by_id(const void *a, const void *b)
{
    const struct listed *x = a;
    const struct listed *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Those of tokenizer_config.json, in the order of their ids. */
static enum q_code add_listed(struct writer *w, struct q_err *e)
{
    json_t *all = json_object_get(w->config->root, "added_tokens_decoder");
    const char *key;
    json_t *spec;
    size_t n = 0;
    if (json_object_size(all) == 0)
        return Q_OK;
    struct listed *list = q_calloc(json_object_size(all), sizeof *list);
    if (!list)
        return q_fail(e, Q_NO_MEMORY, "out of memory reading added tokens");
    json_object_foreach (all, key, spec) {
        const char *token = json_string_value(json_object_get(spec, "content"));
        if (token && *token) /* what is wrong with the others is said when the config is read */
            list[n++] = (struct listed){strtoul(key, NULL, 10), token, spec};
    }
    qsort(list, n, sizeof *list, by_id);
    for (size_t i = 0; i < n; i++)
        add_token(w, list[i].token, list[i].spec, false);
    q_free(list);
    return Q_OK;
}

/* Tokens with a role: those that are listed keep the flags they have there. */
static enum q_code write_added(struct writer *w, struct q_err *e)
{
    buf_add_str(w->b, ",\"added_tokens\":[");
    enum q_code rc = add_listed(w, e);
    for (int role = 0; role < ROLES && !rc; role++) {
        const char *token = token_of(w, (enum role)role);
        if (token)
            add_token(w, token, NULL, role == MASK && strcmp(token, "<mask>") == 0);
    }
    buf_add_char(w->b, ']');
    return rc;
}

static long long id_of(const struct writer *w, const char *added)
{
    return json_integer_value(json_object_get(w->added, added));
}

static void write_wrap(struct writer *w)
{
    static const struct {
        enum role before, after;
    } ends[] = {[WRAP_BOS] = {BOS, ROLES}, [WRAP_CLS] = {CLS, SEP}, [WRAP_BOS_EOS] = {BOS, EOS}};
    enum wrap wrap = w->row->wrap;
    if (wrap == WRAP_NONE || (wrap == WRAP_BOS && !w->config->add_bos))
        return;
    const char *before = token_of(w, ends[wrap].before);
    const char *after = ends[wrap].after == ROLES ? NULL : token_of(w, ends[wrap].after);
    buf_add_str(w->b, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    buf_add_str(w->b, before ? "{\"SpecialToken\":{\"id\":\"before\"}}," : "");
    buf_add_str(w->b, "{\"Sequence\":{\"id\":\"A\"}}");
    buf_add_str(w->b, after ? ",{\"SpecialToken\":{\"id\":\"after\"}}" : "");
    buf_add_str(w->b, "],\"special_tokens\":{");
    if (before)
        buf_printf(w->b, "\"before\":{\"ids\":[%lld]}%s", id_of(w, before), after ? "," : "");
    if (after)
        buf_printf(w->b, "\"after\":{\"ids\":[%lld]}", id_of(w, after));
    buf_add_str(w->b, "}}");
}

static const char *json_bool(bool b)
{
    return b ? "true" : "false";
}

/* ---- vocab.txt ---- */

/* A word a line, its id the line's number. Lines end as Python's text files do: \n, \r\n, \r. */
static enum q_code read_words(struct writer *w, struct tok_str file, struct q_err *e)
{
    json_int_t id = 0;
    for (size_t at = 0; at < file.n; id++) {
        size_t n = 0;
        while (at + n < file.n && file.s[at + n] != '\n' && file.s[at + n] != '\r')
            n++;
        if (id >= TOK_ID_MAX)
            return q_fail(e, Q_TOO_LARGE, "vocab.txt: more than %u words", TOK_ID_MAX);
        json_t *word = json_stringn(file.s + at, n); /* checks that it is UTF-8 */
        if (!word)
            return q_fail(e, Q_CORRUPT, "vocab.txt: line %lld: not UTF-8", (long long)id + 1);
        int failed = json_object_setn_new(w->vocab, json_string_value(word), n, json_integer(id));
        json_decref(word);
        if (failed)
            return q_fail(e, Q_NO_MEMORY, "out of memory reading vocab.txt");
        at += n;
        at += at + 1 < file.n && file.s[at] == '\r' && file.s[at + 1] == '\n' ? 2 : 1;
    }
    return id ? Q_OK : q_fail(e, Q_CORRUPT, "vocab.txt: the file is empty");
}

static enum q_code write_vocab(struct writer *w, struct q_err *e)
{
    void *at;
    const char *key;
    size_t n;
    json_t *id;
    bool first = true;
    buf_add_str(w->b, "\"vocab\":{");
    for (at = json_object_iter(w->vocab); at; at = json_object_iter_next(w->vocab, at)) {
        key = json_object_iter_key(at);
        n = json_object_iter_key_len(at);
        id = json_object_iter_value(at);
        buf_add_str(w->b, first ? "" : ",");
        buf_add_json_str(w->b, key, n);
        buf_printf(w->b, ":%lld", (long long)json_integer_value(id));
        first = false;
    }
    buf_add_str(w->b, "}");
    return buf_check(w->b, "a vocabulary as JSON", e);
}

static void write_bert(struct writer *w)
{
    const struct tok_config *c = w->config;
    bool basic = tok_config_bool(c, "do_basic_tokenize", true);
    const json_t *strip = json_object_get(c->root, "strip_accents");
    buf_printf(w->b,
               "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
               "\"handle_chinese_chars\":%s,\"strip_accents\":%s,\"lowercase\":%s},",
               json_bool(basic && tok_config_bool(c, "tokenize_chinese_chars", true)),
               !basic                   ? "false"
               : json_is_boolean(strip) ? json_bool(json_is_true(strip))
                                        : "null",
               json_bool(basic && tok_config_bool(c, "do_lower_case", true)));
    buf_add_str(w->b, "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":"
                      "\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}");
}

static enum q_code write_words(struct writer *w, struct tok_str vocab, struct q_err *e)
{
    enum q_code rc = read_words(w, vocab, e);
    if (rc)
        return rc;
    const char *unk = token_of(w, UNK);
    buf_add_str(w->b, "{");
    write_bert(w);
    rc = write_added(w, e);
    write_wrap(w);
    buf_add_str(w->b, ",\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\","
                      "\"max_input_chars_per_word\":100,\"unk_token\":");
    buf_add_json_str(w->b, unk ? unk : "[UNK]", strlen(unk ? unk : "[UNK]"));
    buf_add_str(w->b, ",");
    rc = rc ? rc : write_vocab(w, e);
    buf_add_str(w->b, "}}");
    return rc;
}

/* ---- vocab.json and merges.txt ---- */

/* "a b" a line; a first line "#version…" is none. */
static enum q_code write_merges(struct writer *w, struct tok_str file, struct q_err *e)
{
    size_t i_line = 0;
    bool first = true;
    buf_add_str(w->b, "\"merges\":[");
    for (size_t at = 0; at < file.n; i_line++) {
        const char *line = file.s + at;
        const char *end = memchr(line, '\n', file.n - at);
        size_t n = end ? (size_t)(end - line) : file.n - at;
        at += n + 1;
        n -= n && line[n - 1] == '\r';
        if (n == 0 || (i_line == 0 && n >= 8 && memcmp(line, "#version", 8) == 0))
            continue;
        json_t *text = json_stringn(line, n);
        const char *space = memchr(line, ' ', n);
        bool bad = !text || !space || space == line || space + 1 == line + n ||
                   memchr(space + 1, ' ', (size_t)(line + n - space - 1));
        json_decref(text);
        if (bad)
            return q_fail(e, Q_CORRUPT, "merges.txt: line %zu: expected \"left right\" in UTF-8",
                          i_line + 1);
        buf_add_str(w->b, first ? "" : ",");
        buf_add_json_str(w->b, line, n);
        first = false;
    }
    buf_add_str(w->b, "],");
    return Q_OK;
}

static void write_pipeline(struct writer *w)
{
    bool prefix = tok_config_bool(w->config, "add_prefix_space", false);
    const char *split =
        w->row->clip ? "\"Removed\",\"invert\":true" : "\"Isolated\",\"invert\":false";
    if (w->row->clip)
        buf_add_str(w->b, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                          "\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},"
                          "\"content\":\" \"},{\"type\":\"Lowercase\"}]},");
    else if (w->row->nfc)
        buf_add_str(w->b, "\"normalizer\":{\"type\":\"NFC\"},");
    buf_add_str(w->b, "\"pre_tokenizer\":");
    if (w->row->pattern) {
        buf_add_str(w->b, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                          "\"pattern\":{\"Regex\":");
        buf_add_json_str(w->b, w->row->pattern, strlen(w->row->pattern));
        buf_printf(w->b, "},\"behavior\":%s},", split);
    }
    /* CLIP cuts once more, by ByteLevel's own pattern */
    buf_printf(w->b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"use_regex\":%s}%s,",
               json_bool(prefix), json_bool(!w->row->pattern || w->row->clip),
               w->row->pattern ? "]}" : "");
    buf_add_str(w->b, "\"decoder\":{\"type\":\"ByteLevel\"}");
}

static enum q_code read_vocab(struct writer *w, struct tok_str file, struct q_err *e)
{
    const char *key;
    json_t *id;
    enum q_code rc = tok_json_parse(&w->vocab, file, "vocab.json", e);
    if (rc)
        return rc;
    if (!json_is_object(w->vocab))
        return q_fail(e, Q_CORRUPT, "vocab.json: expected an object, found %s",
                      json_kind(w->vocab));
    json_object_foreach (w->vocab, key, id) {
        uint32_t n;
        if ((rc = tok_json_id(id, "vocab.json", key, &n, e)))
            return rc;
    }
    return Q_OK;
}

static enum q_code write_bpe(struct writer *w, struct tok_str vocab, struct tok_str merges,
                             struct q_err *e)
{
    enum q_code rc = read_vocab(w, vocab, e);
    if (rc)
        return rc;
    buf_add_str(w->b, "{");
    write_pipeline(w);
    rc = write_added(w, e);
    write_wrap(w);
    buf_add_str(w->b, ",\"model\":{\"type\":\"BPE\",");
    if (w->row->clip) {
        const char *unk = token_of(w, UNK);
        buf_add_str(w->b, "\"end_of_word_suffix\":\"</w>\",\"unk_token\":");
        buf_add_json_str(w->b, unk ? unk : END, strlen(unk ? unk : END));
        buf_add_char(w->b, ',');
    }
    rc = rc ? rc : write_merges(w, merges, e);
    buf_add_str(w->b, "\"vocab\":");
    buf_add(w->b, vocab.s, vocab.n);
    buf_add_str(w->b, "}}");
    return rc ? rc : buf_check(w->b, "vocab.json and merges.txt as JSON", e);
}

/* ---- the files ---- */

static enum q_code begin(struct writer *w, struct tok_written *out, const struct tok_config *c,
                         bool words, struct q_err *e)
{
    *w = (struct writer){.b = &out->json, .config = c, .added = json_object()};
    if (!w->added)
        return q_fail(e, Q_NO_MEMORY, "out of memory reading a tokenizer");
    return find_class(&w->row, words, c, e);
}

enum q_code word_list_write(struct tok_written *out, struct tok_str vocab,
                            const struct tok_config *c, struct q_err *e)
{
    struct writer w;
    enum q_code rc = begin(&w, out, c, true, e);
    if (!rc && !(w.vocab = json_object()))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory reading vocab.txt");
    if (!rc)
        rc = write_words(&w, vocab, e);
    json_decref(w.vocab);
    json_decref(w.added);
    return rc;
}

enum q_code merge_list_write(struct tok_written *out, struct tok_str vocab, struct tok_str merges,
                             const struct tok_config *c, struct q_err *e)
{
    struct writer w;
    enum q_code rc = begin(&w, out, c, false, e);
    if (!rc)
        rc = write_bpe(&w, vocab, merges, e);
    json_decref(w.vocab);
    json_decref(w.added);
    return rc;
}
