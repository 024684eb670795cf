/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/source/written.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

void tok_written_release(struct tok_written *w)
{
    buf_release(&w->json);
    q_free(w->extra.ranks);
    q_free(w->extra.scores);
    memset(w, 0, sizeof *w);
}

bool tok_config_bool(const struct tok_config *c, const char *key, bool fallback)
{
    const json_t *v = json_object_get(c->root, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

const char *tok_config_token(const struct tok_config *c, const char *key)
{
    const json_t *v = json_object_get(c->root, key);
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

void tok_config_read(struct tok_config *c, const json_t *root)
{
    const char *class = json_string_value(json_object_get(root, "tokenizer_class"));
    memset(c, 0, sizeof *c);
    c->root = root;
    snprintf(c->class_name, sizeof c->class_name, "%s", class ? class : "");
    size_t n = strlen(c->class_name);
    if (n > 4 && strcmp(c->class_name + n - 4, "Fast") == 0)
        c->class_name[n - 4] = '\0';
    c->class = c->class_name;
    c->has_bos = json_is_boolean(json_object_get(root, "add_bos_token"));
    c->has_eos = json_is_boolean(json_object_get(root, "add_eos_token"));
    c->add_bos = tok_config_bool(c, "add_bos_token", false);
    c->add_eos = tok_config_bool(c, "add_eos_token", false);
}
