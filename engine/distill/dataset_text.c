/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/config.h"
#include "common/json_read.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/dataset_internal.h"

#define CONFIG_BYTES ((size_t)16 << 20)

/* The id of eos_token in one of the tokenizer's files; TOKEN_NONE: it says none. */
static uint32_t eos_of_file(const struct tokenizer *t, const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    uint32_t id = TOKEN_NONE;
    json_t *root = NULL;
    if (!path_join(path, sizeof path, dir, name, NULL) && file_exists(path) &&
        !file_read(&text, path, CONFIG_BYTES, NULL)) /* model_max_length may have 31 digits */
        root = json_read_bytes(buf_str(&text), text.len, JSON_DECODE_INT_AS_REAL, NULL);
    const json_t *v = json_object_get(root, "eos_token");
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (json_is_string(v))
        id = tokenizer_id(t, json_string_value(v));
    json_decref(root);
    buf_release(&text);
    return id;
}

/* As transformers' tokenizer.eos_token_id; else the first end token of the model's config. */
static uint32_t find_eos(const struct tokenizer *t, const char *dir)
{
    struct model_config *config;
    struct generation_defaults defaults;
    uint32_t id = eos_of_file(t, dir, "tokenizer_config.json");
    if (id == TOKEN_NONE)
        id = eos_of_file(t, dir, "special_tokens_map.json");
    if (id != TOKEN_NONE || !(config = q_calloc(1, sizeof *config)))
        return id;
    if (!model_config_load_any(config, &defaults, dir, NULL) && config->n_eos)
        id = config->eos_ids[0];
    q_free(config);
    return id;
}

enum q_code dataset_text_open(struct dataset_text *t, const char *dir, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    enum q_code rc;
    *t = (struct dataset_text){.eos = TOKEN_NONE};
    if (!dir)
        return q_fail(e, Q_INVALID,
                      "the data have lines with text or messages, which need a model folder with a "
                      "tokenizer");
    if ((rc = tokenizer_open(&t->tokenizer, dir, e)))
        return rc == Q_NOT_FOUND
                   ? q_wrap(e, "the data have lines with text or messages, which need a tokenizer")
                   : rc;
    t->eos = find_eos(t->tokenizer, dir);
    if (t->eos == TOKEN_NONE)
        log_warning("%s: no end token is known: eos_token is in none of tokenizer_config.json, "
                    "special_tokens_map.json and config.json; texts end without one",
                    dir);
    if (chat_open(&t->chat, dir, NULL, &why))
        snprintf(t->chat_error, sizeof t->chat_error, "%s", why.message);
    return Q_OK;
}

void dataset_text_release(struct dataset_text *t)
{
    tokenizer_free(t->tokenizer);
    chat_free(t->chat);
    *t = (struct dataset_text){.tokenizer = NULL};
}
