/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_names.h"
#include <stdio.h>
#include <string.h>

#define MODEL "model."

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
