/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include "engine/model/plugin/plugin_arch.h"

#define WORDS_MAX 8u

static const struct setting_row {
    const char *key;
    size_t offset, size; /* of the field */
    enum { TYPE_CHOICE, TYPE_FLAG, TYPE_SET } type;
    const char *words[WORDS_MAX]; /* NULL ends them */
} rows[] = {
#define SETTING(key, field, type, ...)                                                             \
    {#key, offsetof(struct arch_layer, field), sizeof((struct arch_layer *)0)->field, TYPE_##type, \
     __VA_ARGS__},
#include "engine/model/plugin/settings.def"
};
#define N_ROW (sizeof rows / sizeof *rows)

static enum q_code fail_key(const char *key, struct q_err *e)
{
    char keys[400] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_ROW && n < sizeof keys; i++)
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", i ? ", " : "", rows[i].key);
    return q_fail(e, Q_INVALID, "layer: there is no setting \"%.60s\"; settings are %s", key, keys);
}

static enum q_code fail_value(const struct setting_row *r, const char *value, struct q_err *e)
{
    char words[200] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < WORDS_MAX && r->words[i] && n < sizeof words; i++)
        n += (size_t)snprintf(words + n, sizeof words - n, "%s%s", i ? ", " : "", r->words[i]);
    return q_fail(e, Q_INVALID, "layer: %s is \"%.60s\", expected %s%s", r->key, value,
                  r->type == TYPE_SET ? "some of " : "one of ", words);
}

/* Which word it is; WORDS_MAX: none. */
static uint32_t word_at(const struct setting_row *r, const char *text, size_t n)
{
    for (uint32_t i = 0; i < WORDS_MAX && r->words[i]; i++)
        if (strlen(r->words[i]) == n && memcmp(r->words[i], text, n) == 0)
            return i;
    return WORDS_MAX;
}

static enum q_code set_of(uint32_t *out, const struct setting_row *r, const char *value,
                          struct q_err *e)
{
    for (const char *p = value; *p;) {
        p += strspn(p, ", ");
        const size_t n = strcspn(p, ", ");
        const uint32_t i = n ? word_at(r, p, n) : WORDS_MAX;
        if (n && i == WORDS_MAX)
            return fail_value(r, value, e);
        *out |= n ? 1u << i : 0;
        p += n;
    }
    return *out ? Q_OK : fail_value(r, value, e);
}

static enum q_code set_one(struct arch_layer *l, const struct setting_row *r, const char *value,
                           struct q_err *e)
{
    void *field = (char *)l + r->offset;
    uint32_t v = word_at(r, value, strlen(value));
    const bool flag = v == 1;
    if (r->type == TYPE_SET) {
        v = 0;
        const enum q_code rc = set_of(&v, r, value, e);
        if (rc)
            return rc;
    } else if (v == WORDS_MAX) {
        return fail_value(r, value, e);
    }
    if (r->type == TYPE_FLAG)
        memcpy(field, &flag, sizeof flag);
    else
        memcpy(field, &v, sizeof v);
    return Q_OK;
}

FALLIBLE plugin_settings(struct arch_layer *l, const struct quire_setting *s, uint32_t n,
                         struct q_err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct setting_row *r = rows;
        if (!s[i].key || !s[i].value)
            return q_fail(e, Q_INVALID, "layer[%u]: key or value is NULL", i);
        while (r < rows + N_ROW && strcmp(r->key, s[i].key) != 0)
            r++;
        if (r == rows + N_ROW)
            return fail_key(s[i].key, e);
        Q_ASSERT(r->size == (r->type == TYPE_FLAG ? sizeof(bool) : sizeof(uint32_t)));
        const enum q_code rc = set_one(l, r, s[i].value, e);
        if (rc)
            return rc;
    }
    return Q_OK;
}
