/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/text_names.h"
#include <stdio.h>
#include <string.h>

#define MODEL "model."

static const struct {
    const char *before, *within; /* of all names; behind "model." */
} forms[TEXT_NAMES] = {
    [TEXT_NAMES_OWN] = {"", ""},
    [TEXT_NAMES_OUTER] = {"language_model.", ""},
    [TEXT_NAMES_INNER] = {"", "language_model."},
    [TEXT_NAMES_TEXT] = {"", "text_model."},
};

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

enum text_names text_names_of(const struct arch *a, const struct tensor_set *files)
{
    char name[ARCH_NAME_MAX];
    for (size_t i = 0; files && i < a->n_tensor; i++)
        for (enum text_names n = TEXT_NAMES_OUTER; n < TEXT_NAMES; n++) {
            if (a->tensors[i].slot != W_EMBED && a->tensors[i].slot != W_FINAL_NORM)
                continue;
            text_names_to_file(name, n, a->tensors[i].name);
            if (tensor_find(files, name))
                return n;
        }
    return TEXT_NAMES_OWN;
}

void text_names_to_file(char out[ARCH_NAME_MAX], enum text_names n, const char *name)
{
    const bool has_model = begins(name, MODEL);
    snprintf(out, ARCH_NAME_MAX, "%s%s%s%s", forms[n].before, has_model ? MODEL : "",
             has_model ? forms[n].within : "", has_model ? name + strlen(MODEL) : name);
}

bool text_names_of_file(char out[ARCH_NAME_MAX], enum text_names n, const char *name)
{
    if (!begins(name, forms[n].before))
        return false;
    name += strlen(forms[n].before);
    if (!begins(name, MODEL)) {
        snprintf(out, ARCH_NAME_MAX, "%s", name);
        return begins(name, "lm_head.") || *forms[n].before;
    }
    name += strlen(MODEL);
    if (!begins(name, forms[n].within))
        return false;
    snprintf(out, ARCH_NAME_MAX, MODEL "%s", name + strlen(forms[n].within));
    return true;
}
