/* SPDX-License-Identifier: Apache-2.0 */
/* tekken.json, Mistral's own file, converted to tokenizer.json.
 *
 *   {"config": {"pattern", "default_vocab_size" V, "default_num_special_tokens" S,
 *    "version": "v7"},
 *    "vocab": [{"rank": 0, "token_bytes": base64, "token_str"} …],
 *    "special_tokens": [{"rank", "token_str"} …]}
 *
 * Ids 0 … S-1 are special tokens; those without a name in the file are "<SPECIAL_id>". The token
 * of rank r has the id S + r; only V - S of the file's tokens are used. Text is cut by the pattern
 * and merged by ranks, as in tiktoken. Special tokens that a text spells out are recognised, as in
 * transformers, because chat templates contain them; <s> is added first where special tokens are
 * added. Source: mistral-common's Tekkenizer. */
#include "common/tokenizer/source/tekken.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/scan.h"
#include "common/tokenizer/source/ranks.h"
#include "common/tokenizer/token_list.h"

#define SPECIAL_MAX (1u << 16) /* special tokens */
#define BOS         "<s>"

/* Files of before v11 may leave their special tokens out. */
static const char *const old_special[] = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "[INST]",
                                          "[/INST]",
                                          "[AVAILABLE_TOOLS]",
                                          "[/AVAILABLE_TOOLS]",
                                          "[TOOL_RESULTS]",
                                          "[/TOOL_RESULTS]",
                                          "[TOOL_CALLS]",
                                          "[IMG]",
                                          "<pad>",
                                          "[IMG_BREAK]",
                                          "[IMG_END]",
                                          "[PREFIX]",
                                          "[MIDDLE]",
                                          "[SUFFIX]",
                                          "[SYSTEM_PROMPT]",
                                          "[/SYSTEM_PROMPT]",
                                          "[TOOL_CONTENT]"};
#define N_OLD       (sizeof old_special / sizeof *old_special)
#define OLD_VERSION 7 /* the last one that may */

struct reader {
    struct tok_written *out;
    struct tok_str vocab; /* the JSON array */
    json_t *root;         /* the rest */
    struct tok_str pattern;
    uint32_t n_special, n_vocab; /* ids that are special tokens; tokens after them */
    uint32_t bos;                /* TOKEN_NONE: there is none */
};

/* ---- the parts of the file ---- */

/* The JSON but for its vocabulary, which is a hundred times as long as the rest. */
static enum q_code parse(struct reader *r, struct tok_str file, struct q_err *e)
{
    static const char key_wanted[] = "vocab";
    struct tok_scan s;
    struct tok_str key;
    struct buf rest = BUF_INIT;
    enum q_code rc = Q_OK;
    scan_init(&s, file);
    bool ok = scan_open(&s, '{');
    while (ok && scan_item(&s, '}'))
        if ((ok = scan_string(&s, &key) && scan_colon(&s))) {
            bool wanted = key.n == sizeof key_wanted - 1 && !memcmp(key.s, key_wanted, key.n);
            struct tok_str value;
            if ((ok = scan_value(&s, &value)) && wanted)
                r->vocab = value;
        }
    if (ok && !scan_failed(&s) && r->vocab.n) {
        size_t before = (size_t)(r->vocab.s - file.s);
        buf_add(&rest, file.s, before);
        buf_add_str(&rest, "[]");
        buf_add(&rest, r->vocab.s + r->vocab.n, file.n - before - r->vocab.n);
        rc = buf_check(&rest, "tekken.json", e);
        if (!rc)
            rc = tok_json_parse(&r->root, (struct tok_str){buf_str(&rest), rest.len}, "tekken.json",
                                e);
    } else if (!(rc = tok_json_parse(&r->root, file, "tekken.json", e)))
        rc = q_fail(e, Q_CORRUPT, "tekken.json: \"vocab\" is missing");
    scan_release(&s);
    buf_release(&rest);
    return rc;
}

static enum q_code read_count(const json_t *config, const char *key, uint32_t max, uint32_t *out,
                              struct q_err *e)
{
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return q_fail(e, Q_CORRUPT, "tekken.json: config.%s: expected an integer from 0 to %u", key,
                      max);
    *out = (uint32_t)json_integer_value(v);
    return Q_OK;
}

/* "v" and a number. */
static enum q_code read_version(const json_t *config, unsigned long *out, struct q_err *e)
{
    const char *version = json_string_value(json_object_get(config, "version"));
    char *end = NULL;
    if (version && version[0] == 'v' && version[1] >= '0' && version[1] <= '9')
        *out = strtoul(version + 1, &end, 10);
    if (!end || *end)
        return q_fail(e, Q_CORRUPT, "tekken.json: config.version: expected \"v\" and a number");
    return Q_OK;
}

static enum q_code read_config(struct reader *r, struct q_err *e)
{
    const json_t *config = json_object_get(r->root, "config");
    enum q_code rc;
    if (!json_is_object(config))
        return tok_json_bad(config, "tekken.json", "config", "an object", e);
    if ((rc = tok_json_str(config, "pattern", "tekken.json config", &r->pattern, e)) ||
        (rc = read_count(config, "default_vocab_size", TOK_ID_MAX - 1, &r->n_vocab, e)) ||
        (rc = read_count(config, "default_num_special_tokens", SPECIAL_MAX, &r->n_special, e)))
        return rc;
    if (r->n_vocab < r->n_special)
        return q_fail(e, Q_CORRUPT,
                      "tekken.json: config: default_vocab_size %u is less than "
                      "default_num_special_tokens %u",
                      r->n_vocab, r->n_special);
    r->n_vocab -= r->n_special;
    return Q_OK;
}

/* ---- writing ---- */

static void write_special(struct reader *r, uint32_t id, const char *text, size_t n)
{
    struct buf *b = &r->out->json;
    if (n == sizeof BOS - 1 && memcmp(text, BOS, n) == 0)
        r->bos = id;
    buf_printf(b, "%s{\"id\":%u,\"normalized\":false,\"special\":true,\"content\":", id ? "," : "",
               id);
    buf_add_json_str(b, text, n);
    buf_add_char(b, '}');
}

static enum q_code bad_special(size_t i, const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "tekken.json: special_tokens[%zu]: %s", i, what);
}

static enum q_code write_named(struct reader *r, const json_t *list, struct q_err *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *spec = json_array_get(list, i);
        const json_t *text = json_object_get(spec, "token_str");
        const json_t *rank = json_object_get(spec, "rank");
        if (!json_is_string(text) || json_string_length(text) == 0)
            return bad_special(i, "expected a \"token_str\"", e);
        if (!json_is_integer(rank) || json_integer_value(rank) != (json_int_t)i)
            return bad_special(i, "its \"rank\" is not its index in the list", e);
        write_special(r, (uint32_t)i, json_string_value(text), json_string_length(text));
    }
    return Q_OK;
}

static enum q_code write_specials(struct reader *r, struct q_err *e)
{
    const json_t *list = json_object_get(r->root, "special_tokens");
    bool none = !list || json_is_null(list);
    size_t n = none ? N_OLD : json_array_size(list);
    unsigned long version = 0;
    enum q_code rc = read_version(json_object_get(r->root, "config"), &version, e);
    if (rc)
        return rc;
    if (!none && !json_is_array(list))
        return tok_json_bad(list, "tekken.json", "special_tokens", "an array", e);
    if (none && version > OLD_VERSION)
        return q_fail(
            e, Q_CORRUPT,
            "tekken.json: \"special_tokens\" is missing; it is optional only up to version v%d",
            OLD_VERSION);
    if (n > r->n_special)
        return q_fail(
            e, Q_CORRUPT,
            "tekken.json: %zu special_tokens, but config.default_num_special_tokens is %u", n,
            r->n_special);
    buf_add_str(&r->out->json, "\"added_tokens\":[");
    if (!none)
        rc = write_named(r, list, e);
    for (size_t i = 0; none && i < N_OLD; i++)
        write_special(r, (uint32_t)i, old_special[i], strlen(old_special[i]));
    for (size_t i = n; !rc && i < r->n_special; i++) {
        char text[32];
        snprintf(text, sizeof text, "<SPECIAL_%zu>", i);
        write_special(r, (uint32_t)i, text, strlen(text));
    }
    buf_add_str(&r->out->json, "]");
    return rc;
}

static enum q_code bad_token(uint32_t i, const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "tekken.json: vocab[%u]: %s", i, what);
}

/* One object of the vocabulary; the token of rank i. */
static enum q_code read_token(struct reader *r, struct tok_scan *s, uint32_t i, struct q_err *e)
{
    unsigned char token[RANK_TOKEN_MAX + 4];
    struct tok_str key, text;
    size_t n = 0;
    uint64_t rank = UINT64_MAX;
    bool ok = scan_open(s, '{');
    while (ok && scan_item(s, '}')) {
        ok = scan_string(s, &key);
        bool is_rank = ok && key.n == 4 && memcmp(key.s, "rank", 4) == 0;
        bool is_bytes = ok && key.n == 11 && memcmp(key.s, "token_bytes", 11) == 0;
        ok = ok && scan_colon(s);
        if (is_bytes) {
            if ((ok = ok && scan_string(s, &text)) && (n = rank_token(token, text)) == 0)
                return bad_token(i, "token_bytes is not base64, or too long", e);
        } else
            ok = ok && (is_rank ? scan_uint(s, &rank) : scan_skip(s));
    }
    if (!ok || scan_failed(s))
        return bad_token(i, "expected {\"rank\", \"token_bytes\", \"token_str\"}", e);
    if (rank != i)
        return bad_token(i, "its \"rank\" is not its index in the list", e);
    if (n == 0)
        return bad_token(i, "no \"token_bytes\"", e);
    if (i < 256 && (n != 1 || token[0] != i))
        return bad_token(i, "the first 256 tokens must be the bytes in order", e);
    buf_add_str(&r->out->json, i ? "," : "");
    return rank_write(r->out, (struct tok_str){(const char *)token, n}, r->n_special + i, i, e);
}

static enum q_code write_vocab(struct reader *r, struct q_err *e)
{
    struct tok_scan s;
    enum q_code rc = Q_OK;
    uint32_t i = 0;
    scan_init(&s, r->vocab);
    if (!scan_open(&s, '['))
        rc = q_fail(e, Q_CORRUPT, "tekken.json: vocab: expected an array");
    for (; !rc && i < r->n_vocab && scan_item(&s, ']'); i++)
        rc = read_token(r, &s, i, e);
    scan_release(&s);
    if (!rc && i < r->n_vocab)
        rc = q_fail(e, Q_CORRUPT,
                    "tekken.json: vocab: %u tokens, but config.default_vocab_size requires %u "
                    "after the special tokens",
                    i, r->n_vocab);
    return rc;
}

static enum q_code write_all(struct reader *r, struct q_err *e)
{
    struct buf *b = &r->out->json;
    enum q_code rc = read_config(r, e);
    if (rc)
        return rc;
    buf_add_str(b, "{");
    if ((rc = write_specials(r, e)))
        return rc;
    buf_add_str(b, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                   "\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":");
    buf_add_json_str(b, r->pattern.s, r->pattern.n);
    buf_add_str(b, "}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                   "\"decoder\":{\"type\":\"ByteLevel\"}");
    if (r->bos != TOKEN_NONE)
        buf_printf(b,
                   ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                   "{\"SpecialToken\":{\"id\":\"bos\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                   "\"special_tokens\":{\"bos\":{\"ids\":[%u]}}}",
                   r->bos);
    buf_add_str(b, ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"merges\":[],\"vocab\":{");
    rc = write_vocab(r, e);
    buf_add_str(b, "}}}");
    r->out->extra.own_ids = true;
    return rc ? rc : buf_check(b, "tekken.json as tokenizer.json", e);
}

enum q_code tekken_write(struct tok_written *out, struct tok_str file, struct q_err *e)
{
    struct reader r = {.out = out, .vocab = {"", 0}, .bos = TOKEN_NONE};
    enum q_code rc = parse(&r, file, e);
    if (!rc)
        rc = write_all(&r, e);
    json_decref(r.root);
    return rc;
}

enum q_code tekken_version(uint32_t *version, struct tok_str file, struct q_err *e)
{
    struct reader r = {.vocab = {"", 0}};
    unsigned long read = 0;
    enum q_code rc = parse(&r, file, e);
    if (!rc && !(rc = read_version(json_object_get(r.root, "config"), &read, e)))
        *version = (uint32_t)(read < UINT32_MAX ? read : UINT32_MAX);
    json_decref(r.root);
    return rc;
}
