/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin is code of somebody else, but its tables are data: what of them makes no sense is told
 * of by its field, when the plugin is loaded and not in the middle of a request. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "common/json_read.h"
#include "common/utf8.h"
#include "engine/model/plugin/plugin_arch.h"

#define NAME_MAX_OWN 64u /* bytes of a name, with its end */

FALLIBLE plugin_take(void *to, size_t size, const void *from, const char *what, struct q_err *e)
{
    size_t given;
    if (!from)
        return q_fail(e, Q_INVALID, "%s is NULL", what);
    memcpy(&given, from, sizeof given);
    if (given < size)
        return q_fail(
            e, Q_INVALID,
            "%s: size is %zu, expected sizeof of the struct, which is %zu in version %u of "
            "engine/plugin.h",
            what, given, size, QUIRE_PLUGIN_ABI);
    if (given > 16 * size)
        return q_fail(e, Q_INVALID, "%s: size is %zu, expected %zu", what, given, size);
    for (size_t i = size; i < given; i++)
        if (((const unsigned char *)from)[i])
            return q_fail(e, Q_UNSUPPORTED,
                          "%s was built with a newer engine/plugin.h (size %zu, here %zu) and uses "
                          "what is new in it",
                          what, given, size);
    memcpy(to, from, size);
    return Q_OK;
}

/* A name for logs, errors and keys: letters of any alphabet, no control characters. */
static enum q_code check_name(const char *name, const char *what, struct q_err *e)
{
    if (!name)
        return q_fail(e, Q_INVALID, "%s is NULL, expected a name", what);
    const size_t n = strnlen(name, NAME_MAX_OWN);
    if (n == 0 || n == NAME_MAX_OWN)
        return q_fail(e, Q_INVALID, "%s has %zu characters%s, expected 1 to %u", what, n,
                      n ? " or more" : "", NAME_MAX_OWN - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
            return q_fail(e, Q_INVALID, "%s has control characters", what);
    return utf8_valid(name, n) ? Q_OK : q_fail(e, Q_INVALID, "%s is not UTF-8", what);
}

static enum q_code check_list(const void *list, uint32_t n, uint32_t most, const char *what,
                              struct q_err *e)
{
    if (n > most)
        return q_fail(e, Q_INVALID, "%s: %u of them, expected at most %u", what, n, most);
    if (n && !list)
        return q_fail(e, Q_INVALID, "%s is NULL, expected %u of them", what, n);
    return Q_OK;
}

FALLIBLE plugin_check(const struct quire_plugin *p, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_name(p->name, "name", e)) || (rc = check_name(p->version, "version", e)) ||
        (rc = check_list((const void *)p->architectures, p->n_architecture, 256, "architectures",
                         e)))
        return rc;
    if (p->n_architecture == 0)
        return q_fail(e, Q_INVALID, "n_architecture is 0, expected one or more");
    return check_list((const void *)p->operations, p->n_operation, 256, "operations", e);
}

FALLIBLE plugin_check_operation(const struct quire_operation *o, struct q_err *e)
{
    enum q_code rc = check_name(o->name, "operation: name", e);
    for (uint32_t i = 0; i < QUIRE_OP_PARAMS_MAX && o->params[i] && !rc; i++)
        rc = check_name(o->params[i], "operation: name of a parameter", e);
    if (!rc && !o->run)
        rc = q_fail(e, Q_INVALID, "operation %s: run is NULL; the CPU computes with it", o->name);
    return rc;
}

static enum q_code check_config(const struct quire_architecture *a, struct q_err *e)
{
    char what[160];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->n_config && !rc; i++) {
        const struct quire_config_rule *r = &a->config[i];
        snprintf(what, sizeof what, "config[%u]: key", i);
        if ((rc = check_name(r->key, what, e)))
            break;
        snprintf(what, sizeof what, "config[%u] (%s): from", i, r->key);
        if (r->from && (rc = plugin_size_check(r->from, what, e)))
            break;
        json_t *value = r->value ? json_read_string(r->value, JSON_DECODE_ANY, NULL) : NULL;
        if (r->value && !value)
            rc = q_fail(e, Q_INVALID, "config[%u] (%s): value \"%.60s\" is not JSON", i, r->key,
                        r->value);
        else if (!r->from && !r->value)
            rc =
                q_fail(e, Q_INVALID, "config[%u] (%s): neither from nor value is given", i, r->key);
        json_decref(value);
    }
    return rc;
}

static enum q_code check_pattern(const char *pattern, const char *what, struct q_err *e)
{
    PCRE2_UCHAR text[120];
    PCRE2_SIZE at;
    int why;
    if (!pattern)
        return q_fail(e, Q_INVALID, "%s: pattern is NULL", what);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_ANCHORED | PCRE2_ENDANCHORED, &why, &at, NULL);
    if (code) {
        pcre2_code_free(code);
        return Q_OK;
    }
    pcre2_get_error_message(why, text, sizeof text);
    return q_fail(e, Q_INVALID, "%s: pattern \"%.80s\", at %zu: %s", what, pattern, (size_t)at,
                  (const char *)text);
}

static enum q_code check_maps(const struct quire_architecture *a, struct q_err *e)
{
    char what[40];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->n_map && !rc; i++) {
        snprintf(what, sizeof what, "maps[%u]", i);
        rc = check_pattern(a->maps[i].pattern, what, e);
        if (!rc && (unsigned)a->maps[i].transform > QUIRE_UNPERMUTE_QK)
            rc = q_fail(e, Q_INVALID, "%s: transform is %d, expected 0 to %d", what,
                        (int)a->maps[i].transform, (int)QUIRE_UNPERMUTE_QK);
        if (!rc && a->maps[i].transform != QUIRE_SKIP && (!a->maps[i].name || !*a->maps[i].name))
            rc = q_fail(e, Q_INVALID, "%s: name is empty", what);
    }
    return rc;
}

static enum q_code check_tensor(const struct quire_tensor *t, uint32_t i, struct q_err *e)
{
    char what[120];
    const char *hole = t->name ? strstr(t->name, "%u") : NULL;
    enum q_code rc;
    snprintf(what, sizeof what, "tensors[%u]: id", i);
    if ((rc = check_name(t->id, what, e)))
        return rc;
    if (!t->name || !*t->name || strlen(t->name) >= ARCH_NAME_MAX - 16)
        return q_fail(e, Q_INVALID, "tensor %s: name is empty or longer than %u", t->id,
                      ARCH_NAME_MAX - 17);
    if (hole && strstr(hole + 2, "%u"))
        return q_fail(e, Q_INVALID, "tensor %s: name \"%s\" has two %%u, expected at most one",
                      t->id, t->name);
    if ((unsigned)t->kind > QUIRE_MATRIX)
        return q_fail(e, Q_INVALID, "tensor %s: kind is %d, expected 0 to %d", t->id, (int)t->kind,
                      (int)QUIRE_MATRIX);
    if (t->flags & ~(uint32_t)(QUIRE_TENSOR_OPTIONAL | QUIRE_TENSOR_NOT_QUANTIZED))
        return q_fail(e, Q_INVALID, "tensor %s: flags are %u, expected a sum of 1 and 2", t->id,
                      t->flags);
    snprintf(what, sizeof what, "tensor %s: rows", t->id);
    if ((rc = plugin_size_check(t->rows, what, e)))
        return rc;
    snprintf(what, sizeof what, "tensor %s: cols", t->id);
    if (t->cols && (rc = plugin_size_check(t->cols, what, e)))
        return rc;
    if (!t->cols != (t->kind == QUIRE_VECTOR))
        return q_fail(e, Q_INVALID, "tensor %s: a %s", t->id,
                      t->cols ? "vector has rows and no cols"
                              : "table or matrix has rows and cols");
    return Q_OK;
}

static enum q_code check_tensors(const struct quire_architecture *a, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->n_tensor && !rc; i++) {
        rc = check_tensor(&a->tensors[i], i, e);
        for (uint32_t k = 0; k < i && !rc; k++)
            if (strcmp(a->tensors[k].id, a->tensors[i].id) == 0)
                rc = q_fail(e, Q_INVALID, "tensors[%u]: its id %s is that of tensors[%u] too", i,
                            a->tensors[i].id, k);
    }
    return rc;
}

static enum q_code check_buffers(const struct quire_architecture *a, struct q_err *e)
{
    char what[40];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < QUIRE_BUFFERS_MAX && a->buffers[i] && !rc; i++) {
        snprintf(what, sizeof what, "buffers[%u]", i);
        rc = plugin_size_check(a->buffers[i], what, e);
    }
    return rc;
}

FALLIBLE plugin_check_architecture(const struct quire_architecture *a, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_name(a->name, "architecture: name", e)))
        return rc;
    const char *base = a->base ? archs_base(a->base, NULL) : NULL;
    char types[ARCHS_TYPES_MAX];
    if (!base || strcmp(base, a->base) != 0)
        return q_fail(e, Q_INVALID,
                      "architecture %s: its base %.60s is no family of this engine; these are %s",
                      a->name, a->base ? a->base : "NULL", archs_types(types));
    if (check_list(a->config, a->n_config, 256, "config", e) ||
        check_list(a->layer, a->n_layer, 64, "layer", e) ||
        check_list(a->maps, a->n_map, 1024, "maps", e) ||
        check_list(a->tensors, a->n_tensor, CONFIG_OWN_MAX, "tensors", e) ||
        check_list((const void *)a->modalities, a->n_modality, PLUGIN_MODALITIES_MAX, "modalities",
                   e) ||
        check_config(a, e) || check_maps(a, e) || check_tensors(a, e) || check_buffers(a, e))
        return q_wrap(e, "architecture %s", a->name);
    return Q_OK;
}

/* The sizes of an item. */
static enum q_code check_shape(const struct quire_modality *m, struct q_err *e)
{
    char what[120];
    enum q_code rc = Q_OK;
    if (m->n_dim == 0 || m->n_dim > QUIRE_DIMS_MAX)
        return q_fail(e, Q_INVALID, "n_dim is %u, expected 1 to %u", m->n_dim, QUIRE_DIMS_MAX);
    for (uint32_t i = 0; i < m->n_dim && !rc; i++) {
        snprintf(what, sizeof what, "dims[%u]", i);
        if (!m->dims[i])
            rc = q_fail(e, Q_INVALID, "%s is NULL; \"\" is any size", what);
        else if (*m->dims[i])
            rc = plugin_size_check(m->dims[i], what, e);
        else if (m->dims_max[i] == 0)
            rc = q_fail(e, Q_INVALID, "dims_max[%u] is 0, expected the most that %s may be", i,
                        what);
    }
    return rc;
}

FALLIBLE plugin_check_modality(const struct quire_modality *m, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_name(m->name, "modality: name", e)))
        return rc;
    if ((m->part_type && check_name(m->part_type, "part_type", e)) || check_shape(m, e) ||
        (m->max_items && plugin_size_check(m->max_items, "max_items", e)) ||
        (m->n_token && plugin_size_check(m->n_token, "n_token", e)))
        return q_wrap(e, "modality %s", m->name);
    if ((unsigned)m->dtype > QUIRE_I32)
        return q_fail(e, Q_INVALID, "modality %s: dtype is %d, expected 0 to %d", m->name,
                      (int)m->dtype, (int)QUIRE_I32);
    if (!m->n_token && !m->count_tokens)
        return q_fail(e, Q_INVALID, "modality %s: neither n_token nor count_tokens is given",
                      m->name);
    if (!m->embed_item)
        return q_fail(e, Q_INVALID, "modality %s: embed_item is NULL", m->name);
    if (m->placeholder < INT32_MIN || m->placeholder > INT32_MAX)
        return q_fail(e, Q_INVALID, "modality %s: placeholder is %lld, expected %d to %d", m->name,
                      (long long)m->placeholder, INT32_MIN, INT32_MAX);
    return Q_OK;
}
