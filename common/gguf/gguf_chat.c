/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gguf/gguf_chat.h"
#include <stdio.h>
#include <string.h>

#define TEMPLATE_KEY "tokenizer.chat_template"
#define KEY_MAX      256u

static const struct {
    const char *key, *config;
} tokens[] = {
    {"tokenizer.ggml.bos_token_id", "bos_token"},
    {"tokenizer.ggml.eos_token_id", "eos_token"},
    {"tokenizer.ggml.unknown_token_id", "unk_token"},
    {"tokenizer.ggml.padding_token_id", "pad_token"},
    {"tokenizer.ggml.seperator_token_id", "sep_token"}, /* as ggml spells it */
    {"tokenizer.ggml.mask_token_id", "mask_token"},
};

static const struct {
    const char *key, *config;
} flags[] = {
    {"tokenizer.ggml.add_bos_token", "add_bos_token"},
    {"tokenizer.ggml.add_eos_token", "add_eos_token"},
    {"tokenizer.ggml.add_space_prefix", "add_prefix_space"},
};

static enum q_code set_text(json_t *config, const struct gguf *g, const char *key,
                            struct gguf_text text, struct q_err *e)
{
    json_t *value = json_stringn(text.s, text.n);
    if (!value)
        return q_fail(e, Q_CORRUPT, "%s: the text for %s is not UTF-8, or out of memory", g->path,
                      key);
    return json_object_set_new(config, key, value)
               ? q_fail(e, Q_NO_MEMORY, "%s: out of memory", g->path)
               : Q_OK;
}

/* The text of token `id`. */
static enum q_code find_token(struct gguf_text *out, const struct gguf *g, const char *key,
                              int64_t id, struct q_err *e)
{
    struct gguf_texts all = {0};
    const bool has_tokens = gguf_texts_of(&all, gguf_find(g, "tokenizer.ggml.tokens"));
    int64_t i = 0;
    while (has_tokens && gguf_texts_next(&all, out) && i < id)
        i++;
    if (has_tokens && i == id && id >= 0)
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "%s: %s is %lld, which is no token of the %llu of the file",
                  g->path, key, (long long)id, (unsigned long long)all.left);
}

/* tokenizer.chat_template.NAME for each of tokenizer.chat_templates; the one without a name is the
 * default. */
static enum q_code set_templates(json_t *config, const struct gguf *g, struct gguf_text plain,
                                 struct q_err *e)
{
    struct gguf_texts names;
    struct gguf_text name, text;
    char key[KEY_MAX];
    if (!gguf_texts_of(&names, gguf_find(g, TEMPLATE_KEY "s")) || !names.left)
        return set_text(config, g, "chat_template", plain, e);
    json_t *list = json_array();
    bool ok = list && !json_array_append_new(list, json_pack("{s:s, s:s%}", "name", "default",
                                                             "template", plain.s, plain.n));
    while (ok && gguf_texts_next(&names, &name)) {
        snprintf(key, sizeof key, TEMPLATE_KEY ".%.*s", name.n < 200 ? (int)name.n : 200, name.s);
        if (gguf_text(gguf_find(g, key), &text))
            ok = !json_array_append_new(list, json_pack("{s:s%, s:s%}", "name", name.s, name.n,
                                                        "template", text.s, text.n));
    }
    if (ok && !json_object_set_new(config, "chat_template", list))
        return Q_OK;
    if (!ok)
        json_decref(list);
    return q_fail(e, Q_CORRUPT, "%s: a chat template is not UTF-8, or out of memory", g->path);
}

static enum q_code set_all(json_t *config, const struct gguf *g, struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct gguf_text text;
    int64_t id;
    bool flag;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !rc; i++)
        if (gguf_whole(gguf_find(g, tokens[i].key), &id) &&
            !(rc = find_token(&text, g, tokens[i].key, id, e)))
            rc = set_text(config, g, tokens[i].config, text, e);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !rc; i++)
        if (gguf_bool(gguf_find(g, flags[i].key), &flag) &&
            json_object_set_new(config, flags[i].config, json_boolean(flag)))
            rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", g->path);
    /* ggml puts a space in front of each stretch of text between special tokens */
    if (!rc && json_object_set_new(config, "legacy", json_true()))
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", g->path);
    if (!rc && gguf_text(gguf_find(g, TEMPLATE_KEY), &text))
        rc = set_templates(config, g, text, e);
    return rc;
}

enum q_code gguf_to_tokenizer_config(json_t **out, const struct gguf *g, struct q_err *e)
{
    json_t *config = json_object();
    const enum q_code rc =
        config ? set_all(config, g, e) : q_fail(e, Q_NO_MEMORY, "%s: out of memory", g->path);
    if (rc)
        json_decref(config);
    else
        *out = config;
    return rc;
}
