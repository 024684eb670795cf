/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/maps.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/load/weight_finder.h"
#include "engine/model/plugin/plugin_arch.h"

#define PARTS_MAX   16u /* tensors that lie in one */
#define NAMES_BYTES ((size_t)1 << 26)

struct mapper {
    const struct arch *arch;
    const struct model_config *config;
    const struct quire_architecture *a;
    pcre2_code **codes; /* [a->n_map] */
    pcre2_match_data *match;
    struct arena names;
    struct tensor *items; /* [n] */
    size_t n, cap;
    uint32_t n_skipped;
    uint32_t n_permuted; /* parts of the tensor being mapped */
    struct q_err *e;
};

bool plugin_has_maps(const struct arch *a)
{
    return a->plugin && a->plugin->a.n_map;
}

/* ---- names ---- */

/* "a.$1.b" with what the pattern has found, [n] of it. */
static enum q_code expand(const struct mapper *m, char out[ARCH_NAME_MAX], const char *from,
                          size_t n, const struct tensor *t)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(m->match);
    const uint32_t n_found = pcre2_get_ovector_count(m->match);
    size_t at = 0;
    for (size_t i = 0; i < n && at + 1 < ARCH_NAME_MAX; i++) {
        const bool is_group =
            from[i] == '$' && i + 1 < n && from[i + 1] >= '0' && from[i + 1] <= '9';
        if (!is_group) {
            out[at++] = from[i];
            continue;
        }
        const uint32_t group = (uint32_t)(from[++i] - '0');
        if (group >= n_found || found[2 * group] == PCRE2_UNSET)
            return q_fail(m->e, Q_INVALID, "maps: \"%.*s\" has $%u, its pattern finds %u groups",
                          (int)n, from, group, n_found - 1);
        const size_t length = found[2 * group + 1] - found[2 * group];
        if (at + length >= ARCH_NAME_MAX)
            break;
        memcpy(out + at, t->name + found[2 * group], length);
        at += length;
    }
    out[at] = '\0';
    return at + 1 < ARCH_NAME_MAX ? Q_OK
                                  : q_fail(m->e, Q_CORRUPT,
                                           "%s: the mapped name of tensor %s is "
                                           "longer than %u",
                                           t->file, t->name, ARCH_NAME_MAX - 2);
}

static const struct quire_tensor_map *rule_of(const struct mapper *m, const struct tensor *t)
{
    for (uint32_t i = 0; i < m->a->n_map; i++)
        if (pcre2_match(m->codes[i], (PCRE2_SPTR)t->name, strlen(t->name), 0, 0, m->match, NULL) >
            0)
            return &m->a->maps[i];
    return NULL;
}

/* ---- tensors ---- */

static enum q_code add_item(struct mapper *m, const struct tensor *t, const char *name)
{
    enum q_code rc = q_grow(&m->items, &m->cap, m->n + 1, sizeof *m->items, 1u << 24, m->e);
    if (rc)
        return rc;
    struct tensor *to = &m->items[m->n];
    *to = *t;
    to->stored = strcmp(t->name, name) ? t->name : NULL;
    to->name = arena_strndup(&m->names, name, strlen(name));
    m->n++;
    return to->name ? Q_OK : q_fail(m->e, Q_NO_MEMORY, "out of memory for names of tensors");
}

/* Is a tensor of this name one that the rule permutes: q, k, or one that holds both? */
static int in_pairs(const struct mapper *m, enum quire_transform transform, const char *name)
{
    const enum arch_slot slot = weight_finder_slot(m->arch, m->config, name);
    const int wanted = transform == QUIRE_UNPERMUTE_Q    ? TENSOR_Q
                       : transform == QUIRE_UNPERMUTE_K  ? TENSOR_K
                       : transform == QUIRE_UNPERMUTE_QK ? TENSOR_Q | TENSOR_K
                                                         : 0;
    switch (slot) {
    case W_Q:
    case W_Q_BIAS:
        return wanted & TENSOR_Q;
    case W_K:
    case W_K_BIAS:
        return wanted & TENSOR_K;
    case W_QKV:
    case W_QKV_HEADS:
    case W_QKV_BIAS:
    case W_QKV_HEADS_BIAS:
        return wanted;
    default:
        return 0;
    }
}

static void set_pairs(const struct mapper *m, struct tensor *t, int pairs)
{
    t->in_pairs = pairs;
    t->head_rows = pairs ? m->config->head_dim : 0;
}

/* The rows of a tensor that are one of its parts; of one number, that number. */
static enum q_code add_part(struct mapper *m, const struct tensor *t,
                            const struct quire_tensor_map *rule, const char *name, uint64_t *first)
{
    struct tensor part = *t;
    if (t->n_dim == 0 || (t->n_dim == 1 && t->shape[0] == 1)) {
        *first = t->n_dim ? 1 : 0;
        return add_item(m, t, name);
    }
    const uint32_t rows = weight_finder_rows(m->arch, m->config, name);
    if (rows == 0)
        return q_fail(m->e, Q_INVALID,
                      "maps: tensor %s is to have a part %s, which neither %s nor the plugin knows",
                      t->name, name, m->a->base);
    if (*first + rows > t->shape[0])
        return q_fail(m->e, Q_MISMATCH, "%s: tensor %s has %llu rows, its parts up to %s take %llu",
                      t->file, t->name, (unsigned long long)t->shape[0], name,
                      (unsigned long long)(*first + rows));
    const uint64_t row = t->n_bytes / t->shape[0];
    part.data = (const char *)t->data + *first * row;
    part.n_bytes = rows * row;
    part.shape[0] = rows;
    part.first_row = *first;
    part.is_part = true;
    *first += rows;
    set_pairs(m, &part, in_pairs(m, rule->transform, name));
    m->n_permuted += part.head_rows > 0;
    return add_item(m, &part, name);
}

static enum q_code add_parts(struct mapper *m, const struct tensor *t,
                             const struct quire_tensor_map *rule)
{
    char name[ARCH_NAME_MAX];
    uint64_t first = 0;
    uint32_t n_part = 0;
    m->n_permuted = 0;
    for (const char *p = rule->name; *p;) {
        p += strspn(p, ", ");
        const size_t n = strcspn(p, ", ");
        enum q_code rc;
        if (!n)
            break;
        if (n_part++ == PARTS_MAX)
            return q_fail(m->e, Q_INVALID, "maps: \"%.60s …\" has more than %u parts", rule->name,
                          PARTS_MAX);
        if ((rc = expand(m, name, p, n, t)) || (rc = add_part(m, t, rule, name, &first)))
            return rc;
        p += n;
    }
    const bool is_one = t->n_dim == 0 || (t->n_dim == 1 && t->shape[0] == 1);
    if (rule->transform != QUIRE_AS_IS && !m->n_permuted && !is_one)
        return q_fail(
            m->e, Q_INVALID,
            "maps: tensor %s: its rule permutes q or k, and none of its parts \"%.60s\" is "
            "q or k of %s",
            t->name, rule->name, m->a->base);
    if (!is_one && first != t->shape[0])
        return q_fail(m->e, Q_MISMATCH, "%s: tensor %s has %llu rows, its %u parts take %llu",
                      t->file, t->name, (unsigned long long)t->shape[0], n_part,
                      (unsigned long long)first);
    return Q_OK;
}

static enum q_code map_one(struct mapper *m, const struct tensor *t)
{
    char name[ARCH_NAME_MAX];
    const struct quire_tensor_map *rule = rule_of(m, t);
    struct tensor whole = *t;
    if (!rule)
        return add_item(m, t, t->name);
    if (rule->transform == QUIRE_SKIP) {
        m->n_skipped++;
        return Q_OK;
    }
    if (strchr(rule->name, ','))
        return add_parts(m, t, rule);
    const enum q_code rc = expand(m, name, rule->name, strlen(rule->name), t);
    if (rc)
        return rc;
    if (rule->transform != QUIRE_AS_IS) {
        const int pairs = in_pairs(m, rule->transform, name);
        set_pairs(m, &whole,
                  pairs ? pairs : TENSOR_Q | TENSOR_K); /* a plugin's own has heads too */
    }
    return add_item(m, &whole, name);
}

/* ---- all of them ---- */

static enum q_code compile(struct mapper *m)
{
    m->codes = q_calloc((size_t)m->a->n_map + 1, sizeof(pcre2_code *));
    m->match = pcre2_match_data_create(10, NULL);
    if (!m->codes || !m->match)
        return q_fail(m->e, Q_NO_MEMORY, "out of memory for %u rules of names", m->a->n_map);
    for (uint32_t i = 0; i < m->a->n_map; i++) {
        PCRE2_SIZE at;
        int why;
        m->codes[i] = pcre2_compile((PCRE2_SPTR)m->a->maps[i].pattern, PCRE2_ZERO_TERMINATED,
                                    PCRE2_ANCHORED | PCRE2_ENDANCHORED, &why, &at, NULL);
        if (!m->codes[i]) /* it compiled when the plugin was loaded */
            return q_fail(m->e, Q_NO_MEMORY, "out of memory for rules of names");
    }
    return Q_OK;
}

FALLIBLE plugin_map_names(struct tensor_set *s, const struct arch *a, const struct model_config *c,
                          struct q_err *e)
{
    if (!plugin_has_maps(a))
        return Q_OK;
    struct mapper m = {
        .arch = a,
        .config = c,
        .a = &a->plugin->a,
        .names = ARENA_INIT(NAMES_BYTES),
        .e = e,
    };
    enum q_code rc = compile(&m);
    for (uint32_t i = 0; i < tensor_count(s) && !rc; i++)
        rc = map_one(&m, tensor_at(s, i));
    if (!rc)
        rc = tensor_set_replace(s, m.items, m.n, e);
    if (m.n_skipped && !rc)
        log_debug("plugin %s: %u tensors are known and not needed", plugin_arch_text(a->plugin),
                  m.n_skipped);
    for (uint32_t i = 0; m.codes && i < m.a->n_map; i++)
        pcre2_code_free(m.codes[i]);
    pcre2_match_data_free(m.match);
    q_free(m.codes);
    q_free(m.items);
    arena_release(&m.names);
    return rc ? q_wrap(e, "plugin %s", plugin_arch_text(a->plugin)) : Q_OK;
}
