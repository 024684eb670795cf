/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/served.h"

#include <string.h>
#include "common/hub/hub.h"
#include "common/log.h"

FALLIBLE served_open(struct served *s, const char *model, const struct options *o, struct q_err *e)
{
    enum q_code rc;
    memset(s, 0, sizeof(*s));
    s->options = o;
    if ((rc = hub_resolve(s->dir, model, *o->revision ? o->revision : NULL, e)) ||
        (rc = model_config_load(&s->config, &s->defaults, s->dir, e)))
        return rc;
    if (strcmp(o->generation_config, "auto") != 0 && strcmp(o->generation_config, "vllm") != 0)
        return q_fail(e, Q_INVALID,
                      "--generation-config: \"%s\" is not known, expected auto or vllm",
                      o->generation_config);
    s->names = o->served_model_name.n ? o->served_model_name.items : o->positional;
    s->n_name = o->served_model_name.n ? o->served_model_name.n : 1;
    s->max_model_len = o->max_model_len ? (uint32_t)o->max_model_len : s->config.max_position;
    return Q_OK;
}

FALLIBLE served_load(struct served *s, struct q_err *e)
{
    const struct options *o = s->options;
    enum q_code rc = hub_digest(s->digest, s->dir, e);
    if (rc != Q_OK)
        return rc;
    if (o->skip_tokenizer_init) {
        snprintf(s->chat_error, sizeof(s->chat_error),
                 "the server runs with --skip-tokenizer-init");
        return Q_OK;
    }
    if ((rc = tokenizer_open(&s->tokenizer, s->dir, e)) != Q_OK)
        return rc;
    rc = chat_open(&s->chat, s->dir, *o->chat_template ? o->chat_template : NULL, e);
    if (rc == Q_OK || *o->chat_template)
        return rc;
    /* A model without a chat template serves completions; chat requests get the reason. */
    snprintf(s->chat_error, sizeof(s->chat_error), "%s", e->message);
    log_warning("chat is off: %s", e->message);
    q_err_reset(e);
    return Q_OK;
}

FALLIBLE served_check_name(const struct served *s, const char *name, struct q_err *e)
{
    if (!name || !*name)
        return Q_OK;
    for (uint32_t i = 0; i < s->n_name; i++)
        if (!strcmp(s->names[i], name))
            return Q_OK;
    return q_fail(e, Q_NOT_FOUND, "The model `%.150s` does not exist; this server has `%.60s`.",
                  name, s->names[0]);
}

const struct generation_defaults *served_defaults(const struct served *s)
{
    return strcmp(s->options->generation_config, "vllm") ? &s->defaults : NULL;
}
