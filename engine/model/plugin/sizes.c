/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/hub/hub_json.h"
#include "engine/model/plugin/plugin_arch.h"

#define KEY_MAX 128u

/* Keys of config.json that have a value when the file does not say it. */
static const struct {
    const char *key;
    size_t offset; /* of a uint32_t in struct model_config */
} derived[] = {
    {"vocab_size", offsetof(struct model_config, vocab_size)},
    {"hidden_size", offsetof(struct model_config, hidden_size)},
    {"intermediate_size", offsetof(struct model_config, intermediate_size)},
    {"num_hidden_layers", offsetof(struct model_config, n_layer)},
    {"num_attention_heads", offsetof(struct model_config, n_head)},
    {"num_key_value_heads", offsetof(struct model_config, n_kv_head)},
    {"head_dim", offsetof(struct model_config, head_dim)},
    {"max_position_embeddings", offsetof(struct model_config, max_position)},
};

struct factor {
    bool is_number;
    uint64_t number;
    char key[KEY_MAX];
};

static bool is_key_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

/* The next factor; moves *text behind it and its "*". False: there is none. */
static bool next_factor(struct factor *f, const char **text)
{
    const char *p = *text + strspn(*text, " ");
    size_t n = 0;
    *f = (struct factor){.is_number = true};
    for (; is_key_char(p[n]) && n + 1 < KEY_MAX; n++) {
        f->key[n] = p[n];
        f->is_number = f->is_number && p[n] >= '0' && p[n] <= '9';
    }
    if (n == 0 || (f->is_number && n > 10))
        return false;
    for (size_t i = 0; f->is_number && i < n; i++)
        f->number = f->number * 10 + (uint64_t)(p[i] - '0');
    p += n;
    p += strspn(p, " ");
    if (*p == '*')
        p += 1 + strspn(p + 1, " ");
    else if (*p)
        return false;
    *text = p;
    return true;
}

static bool ends_in_star(const char *text)
{
    size_t n = strlen(text);
    while (n && text[n - 1] == ' ')
        n--;
    return n && text[n - 1] == '*';
}

FALLIBLE plugin_size_check(const char *text, const char *what, struct q_err *e)
{
    struct factor f;
    const char *p = text;
    bool is_size = text && *text && !ends_in_star(text);
    while (is_size && *p)
        is_size = next_factor(&f, &p) && !(f.is_number && f.number == 0);
    return is_size ? Q_OK
                   : q_fail(e, Q_INVALID,
                            "%s is \"%.60s\", expected a number, a key of config.json or a product "
                            "such as \"num_heads * head_dim\"",
                            what, text ? text : "NULL");
}

const json_t *plugin_key(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);
    char part[KEY_MAX];
    const size_t n = strcspn(key, ".");
    if (v || !key[n] || n >= sizeof part)
        return json_is_null(v) ? NULL : v;
    memcpy(part, key, n);
    part[n] = '\0';
    return plugin_key(json_object_get(root, part), key + n + 1);
}

bool plugin_size_derived(uint32_t *out, const struct plugin_sizes *s, const char *key)
{
    *out = 0;
    for (size_t i = 0; s->config && i < sizeof derived / sizeof *derived; i++)
        if (strcmp(derived[i].key, key) == 0)
            memcpy(out, (const char *)s->config + derived[i].offset, sizeof *out);
    return *out != 0;
}

/* False: no such key, or one that is no whole number above 0. */
static bool value_of(uint64_t *out, const struct plugin_sizes *s, const char *key)
{
    const json_t *v = plugin_key(s->root, key);
    const double real = json_is_real(v) ? json_real_value(v) : 0;
    uint32_t from_base;
    if (json_is_integer(v) && json_integer_value(v) > 0)
        *out = (uint64_t)json_integer_value(v);
    else if (real >= 1 && real <= 1e15 && real == (double)(uint64_t)real)
        *out = (uint64_t)real;
    else if (!v && plugin_size_derived(&from_base, s, key))
        *out = from_base;
    else
        return false;
    return true;
}

FALLIBLE plugin_size(uint32_t *out, const struct plugin_sizes *s, const char *text, uint32_t most,
                     const char *what, struct q_err *e)
{
    struct factor f;
    uint64_t product = 1, one;
    for (const char *p = text; *p;) {
        if (!next_factor(&f, &p)) /* plugin_size_check refuses it first */
            return q_fail(e, Q_INVALID, "%s is \"%.60s\", which is no size", what, text);
        one = f.number;
        if (!f.is_number && !value_of(&one, s, f.key)) {
            const json_t *v = plugin_key(s->root, f.key);
            return q_fail(e, Q_CORRUPT,
                          "%s: %s is %s, expected a whole number above 0, of which %s "
                          "is made (\"%s\")",
                          s->path, f.key, v ? hub_json_kind(v) : "missing", what, text);
        }
        if (one > most || product * one > most)
            return q_fail(e, Q_CORRUPT, "%s: %s = \"%s\" is above %u", s->path, what, text, most);
        product *= one;
    }
    *out = (uint32_t)product;
    return Q_OK;
}
