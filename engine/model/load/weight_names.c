/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_names.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

#define MODEL       "model."
#define NAMES_BYTES ((size_t)1 << 26)

/* Ends of names. */
static const struct older {
    const char *older, *newer;
} olders[] = {
    {"LayerNorm.gamma", "LayerNorm.weight"},
    {"LayerNorm.beta", "LayerNorm.bias"},
};

static const struct {
    const char *before, *within; /* of all names; behind "model." */
} forms[WEIGHT_NAMES] = {
    [NAMES_PLAIN] = {"", ""},
    [NAMES_BARE] = {"", ""},
    [NAMES_OUTER] = {"language_model.", ""},
    [NAMES_INNER] = {"", "language_model."},
    [NAMES_TEXT] = {"", "text_model."},
};

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* Is the embedding or the final norm there by its name of this kind? */
static bool has_names(const struct arch *a, const struct tensor_set *files, enum weight_names n)
{
    char name[ARCH_NAME_MAX];
    for (size_t i = 0; i < a->n_tensor; i++) {
        const struct arch_tensor *t = &a->tensors[i];
        if ((t->slot != W_EMBED && t->slot != W_FINAL_NORM) || t->name == ARCH_ONES)
            continue;
        weight_names_pattern(name, n, a, t->name);
        if (tensor_find(files, name))
            return true;
    }
    return false;
}

static bool is_bare(const struct arch *a, const struct tensor_set *files)
{
    const size_t n = a->prefix ? strlen(a->prefix) : 0;
    bool whole = false, bare = false;
    for (size_t i = 0; n && i < a->n_tensor; i++) {
        const char *name = a->tensors[i].name;
        if (!name || strstr(name, "%u") || strncmp(name, a->prefix, n) != 0)
            continue;
        whole = whole || tensor_find(files, name);
        bare = bare || tensor_find(files, name + n);
    }
    return bare && !whole;
}

/* NULL: the name is none of them. */
static const struct older *find_older(const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof olders / sizeof *olders; i++) {
        const size_t n_end = strlen(olders[i].older);
        if (n >= n_end && strcmp(name + n - n_end, olders[i].older) == 0)
            return &olders[i];
    }
    return NULL;
}

static enum q_code rename_one(struct tensor *t, struct arena *names, struct q_err *e)
{
    const struct older *o = find_older(t->name);
    char name[ARCH_NAME_MAX];
    if (!o)
        return Q_OK;
    const int n = snprintf(name, sizeof name, "%.*s%s", (int)(strlen(t->name) - strlen(o->older)),
                           t->name, o->newer);
    if (n < 0 || (size_t)n >= sizeof name)
        return Q_OK; /* longer than any that is looked for */
    t->stored = t->name;
    t->name = arena_strndup(names, name, (size_t)n);
    return t->name ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for names of tensors");
}

enum q_code weight_names_map(struct tensor_set *files, struct q_err *e)
{
    const uint32_t n = tensor_count(files);
    struct arena names = ARENA_INIT(NAMES_BYTES);
    enum q_code rc = Q_OK;
    bool any = false;
    for (uint32_t i = 0; i < n && !any; i++)
        any = find_older(tensor_at(files, i)->name) != NULL;
    if (!any)
        return Q_OK;
    struct tensor *items = q_calloc((size_t)n + 1, sizeof *items);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "out of memory for names of tensors");
    for (uint32_t i = 0; i < n && !rc; i++) {
        items[i] = *tensor_at(files, i);
        rc = rename_one(&items[i], &names, e);
    }
    if (!rc)
        rc = tensor_set_replace(files, items, n, e);
    q_free(items);
    arena_release(&names);
    return rc;
}

enum weight_names weight_names_of(const struct arch *a, const struct model_config *c,
                                  const struct tensor_set *files)
{
    if (!files || (!*c->outer && has_names(a, files, NAMES_PLAIN)))
        return NAMES_PLAIN;
    for (enum weight_names n = NAMES_OUTER; n < WEIGHT_NAMES; n++)
        if (has_names(a, files, n))
            return n;
    return is_bare(a, files) ? NAMES_BARE : NAMES_PLAIN;
}

void weight_names_pattern(char out[ARCH_NAME_MAX], enum weight_names n, const struct arch *a,
                          const char *pattern)
{
    const bool has_model = *forms[n].within && begins(pattern, MODEL);
    const char *left_out = n == NAMES_BARE ? a->prefix : has_model ? MODEL : "";
    snprintf(out, ARCH_NAME_MAX, "%s%s%s%s", forms[n].before, has_model ? MODEL : "",
             has_model ? forms[n].within : "",
             pattern + (begins(pattern, left_out) ? strlen(left_out) : 0));
}

bool weight_names_is_text(enum weight_names n, const char *name)
{
    const char *before = forms[n].before;
    if (!begins(name, before))
        return false;
    name += strlen(before);
    if (!begins(name, MODEL))
        return *before || begins(name, "lm_head.");
    return begins(name + strlen(MODEL), forms[n].within);
}
