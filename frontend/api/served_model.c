/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/served_model.h"

#include <string.h>
#include "common/file.h"
#include "common/hub/adapter_module.h"
#include "common/hub/config_source.h"
#include "common/hub/folder.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/mem.h"

#define SHARED_FILE_MAX ((size_t)1 << 20)

/* The tokenizer and the files beside it, as far as the options need them: --raw needs no template
 * and none of its variables. */
static enum q_code check_tokenizer(const struct served_model *s, struct q_err *e)
{
    if (s->options->skip_tokenizer_init)
        return Q_OK;
    enum q_code rc = tokenizer_check(s->tokenizer_path, e);
    if (!rc && s->options->raw)
        return Q_OK;
    if (!rc)
        return folder_check_text(dir_exists(s->tokenizer_path) ? s->tokenizer_path : s->dir,
                                 !*s->options->chat_template, e);
    if (rc == Q_NOT_FOUND && !*s->options->tokenizer)
        return q_fail(
            e, Q_NOT_FOUND,
            "%s; use --tokenizer to load one from another folder, or --skip-tokenizer-init "
            "to serve token ids only",
            e->message);
    return rc;
}

/* generation_config.json's, unless --generation-config vllm, under --override-generation-config. */
static enum q_code read_defaults(struct served_model *s, struct q_err *e)
{
    const struct options *o = s->options;
    struct generation_defaults over;
    enum q_code rc = generation_defaults_option(&over, o->override_generation_config, e);
    if (rc != Q_OK)
        return rc;
    if (strcmp(o->generation_config, "vllm") == 0)
        s->defaults = (struct generation_defaults){0};
    generation_defaults_merge(&s->defaults, &over);
    return Q_OK;
}

FALLIBLE served_model_open(struct served_model *s, const char *model, const struct options *o,
                           struct q_err *e)
{
    const bool has_plugins = o->plugin.n || *o->plugin_path;
    enum q_code rc;
    memset(s, 0, sizeof *s);
    s->options = o;
    struct config_source *source = q_alloc(sizeof *source);
    if (!source)
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    if (!(rc = hub_resolve_files(s->dir, model, *o->revision ? o->revision : NULL, e)))
        rc = config_source_options(source, s->dir, o, e);
    q_free(source);
    if (rc || (rc = (has_plugins ? model_config_load_any
                                 : model_config_load)(&s->config, &s->defaults, s->dir, e)))
        return rc;
    const struct pooling_options po = {o->runner, o->convert, o->pooler_config};
    if ((rc = pooling_read(&s->pooling, &s->config, s->dir, &po, e)))
        return rc;
    if (strcmp(o->generation_config, "auto") != 0 && strcmp(o->generation_config, "vllm") != 0)
        return q_fail(e, Q_INVALID,
                      "--generation-config: unknown value \"%s\", expected auto or vllm",
                      o->generation_config);
    if ((rc = read_defaults(s, e)) ||
        (rc = hub_resolve_tokenizer(s->tokenizer_path, o->tokenizer,
                                    *o->tokenizer_revision ? o->tokenizer_revision : NULL, s->dir,
                                    e)) ||
        (rc = tokenizer_apply_mode(s->tokenizer_path, o->tokenizer_mode, e)) ||
        (rc = check_tokenizer(s, e)))
        return rc;
    if (*o->chat_template && !chat_is_text(o->chat_template) && !file_exists(o->chat_template))
        return q_fail(e, Q_INVALID, "--chat-template: %s: %s", o->chat_template,
                      dir_exists(o->chat_template) ? "is a folder, expected a template file"
                                                   : "no such file");
    for (uint32_t i = 0; i < o->served_model_name.n; i++)
        if (!*o->served_model_name.items[i])
            return q_fail(e, Q_INVALID,
                          "--served-model-name is empty, expected a name for the API");
    model_names_init(&s->named, model, s->dir);
    if ((rc = adapter_modules_check(o, &s->named, e))) /* of programs that start the engine */
        return rc;
    s->shown[0] = s->named.shown;
    s->names = o->served_model_name.n ? o->served_model_name.items : s->shown;
    s->n_name = o->served_model_name.n ? o->served_model_name.n : 1;
    s->max_model_len = o->max_model_len > 0 ? (uint32_t)o->max_model_len : s->config.max_position;
    return Q_OK;
}

/* Share the beginning of all conversations with this system message: the system message and the
 * template's text before a user message. The user message is a placeholder, and as public as the
 * rest. */
static enum q_code add_shared_chat(struct served_model *s, const char *text, size_t n,
                                   struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct template_fault fault = {0};
    struct buf out = BUF_INIT;
    json_t *messages = json_pack("[{s:s,s:s%},{s:s,s:s}]", "role", "system", "content", text, n,
                                 "role", "user", "content", ".");
    struct ranges origin = RANGES_INIT;
    const struct chat_request r = {
        .messages = messages,
        .content = s->chat.content,
        .origin = s->chat.parse_special ? NULL : &origin,
    };
    enum q_code rc = messages ? chat_render(s->chat.template, &r, &out, &fault, e)
                              : q_fail(e, Q_INVALID, "not UTF-8, or out of memory");
    if (rc == Q_OK && (rc = buf_check(&out, "the rendered conversation", e)) == Q_OK &&
        (rc = tokenizer_encode_prompt(s->tokenizer,
                                      &(struct tokenizer_text){
                                          .data = buf_str(&out),
                                          .n = out.len,
                                          .content = &origin,
                                      },
                                      false, &ids, e)) == Q_OK)
        rc = shared_prompts_add(&s->shared, &ids, e);
    json_decref(messages);
    buf_release(&out);
    ranges_release(&origin);
    token_list_release(&ids);
    return rc;
}

static enum q_code add_shared(struct served_model *s, const char *path, struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct buf text = BUF_INIT;
    enum q_code rc = file_read(&text, path, SHARED_FILE_MAX, e);
    if (rc == Q_NOT_FOUND || rc == Q_IO) /* an error of the argument, not of the model */
        rc = e->code = Q_INVALID;
    size_t n = text.len;
    while (rc == Q_OK && n && strchr("\r\n", text.data[n - 1]))
        n--;
    if (rc == Q_OK && n == 0)
        rc = q_fail(e, Q_INVALID, "%s is empty", path);
    if (rc == Q_OK && (rc = tokenizer_encode(s->tokenizer, text.data, n, true, &ids, e)) == Q_OK)
        rc = shared_prompts_add(&s->shared, &ids, e);
    if (rc == Q_OK && s->chat.template && add_shared_chat(s, text.data, n, e) != Q_OK) {
        log_warning("--prefix-cache-shared %s: shared in completions only, because the chat "
                    "template does not accept it as a system message: %s",
                    path, e->message);
        q_err_reset(e);
    }
    buf_release(&text);
    token_list_release(&ids);
    return rc == Q_OK ? rc : q_wrap(e, "--prefix-cache-shared");
}

static enum q_code load_shared(struct served_model *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; rc == Q_OK && i < s->options->prefix_cache_shared.n; i++)
        rc = add_shared(s, s->options->prefix_cache_shared.items[i], e);
    return rc;
}

FALLIBLE served_model_load(struct served_model *s, struct q_err *e)
{
    const struct options *o = s->options;
    enum q_code rc = hub_digest(s->digest, s->dir, e);
    if (rc != Q_OK)
        return rc;
    if (o->skip_tokenizer_init) {
        snprintf(s->chat.error, sizeof s->chat.error, "the server runs with --skip-tokenizer-init");
        return Q_OK;
    }
    if ((rc = tokenizer_open(&s->tokenizer, s->tokenizer_path, e)) ||
        (rc = chat_model_open(&s->chat, o, s->dir, s->tokenizer_path, e)))
        return rc;
    s->token_bytes_max = tokenizer_token_bytes_max(s->tokenizer);
    if ((rc = chat_model_tags(&s->chat, s->tokenizer, e)) != Q_OK)
        return rc;
    if (!s->chat.template) {
        size_t n = strlen(s->chat.error);
        log_warning("chat is disabled: %s", s->chat.error);
        snprintf(s->chat.error + n, sizeof s->chat.error - n, "; %s accepts plain text",
                 served_model_pools(s) ? "input" : "/v1/completions");
    }
    return load_shared(s, e);
}

FALLIBLE served_model_check_name(const struct served_model *s, const char *name, struct q_err *e)
{
    if (!name || !*name)
        return Q_OK;
    for (uint32_t i = 0; i < s->n_name; i++)
        if (!strcmp(s->names[i], name))
            return Q_OK;
    if (!s->options->served_model_name.n && model_names_have(&s->named, name))
        return Q_OK;
    return q_fail(e, Q_NOT_FOUND, "The model `%s` does not exist; this server serves `%s`.", name,
                  s->names[0]);
}

FALLIBLE served_model_find_name(const struct served_model *s, const char *name,
                                const struct buf *adapters, struct adapter_entry *adapter,
                                struct q_err *e)
{
    struct q_err unknown = Q_ERR_INIT;
    *adapter = (struct adapter_entry){NULL, NULL, NULL};
    if (!served_model_check_name(s, name, &unknown))
        return Q_OK;
    if (adapter_list_find(adapters, name, adapter))
        return Q_OK;
    adapter->name = NULL;
    *e = unknown;
    return unknown.code;
}

const struct generation_defaults *served_model_defaults(const struct served_model *s)
{
    return &s->defaults;
}
