/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/archs.h"
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "common/buf.h"

static const struct {
    const char *name, *type;
} archs[] = {
#define ARCH(architecture, family) {#architecture, #family},
#include "common/hub/archs.def"
};
#define N_ARCH (sizeof archs / sizeof *archs)

/* Those of plugins, the last one first. Nothing is ever removed, so a reader needs no lock. */
static _Atomic(const struct archs_added *) added;

void archs_add(struct archs_added *a)
{
    a->next = atomic_load(&added);
    while (!atomic_compare_exchange_weak(&added, &a->next, a)) {
    }
}

const struct archs_added *archs_added_find(const char *name)
{
    const struct archs_added *a = atomic_load(&added);
    while (a && strcmp(a->name, name) != 0)
        a = a->next;
    return a;
}

bool archs_any_added(void)
{
    return atomic_load(&added) != NULL;
}

/* Ends of names, the longer one first where one is the end of another. */
static const struct {
    const char *text;
    enum archs_end is;
} ends[] = {
    {"ForSequenceClassification", ARCHS_CLASSIFIES},
    {"ForCausalLM", ARCHS_GENERATES},
    {"LMHeadModel", ARCHS_GENERATES},
    {"ForMaskedLM", ARCHS_EMBEDS},
    {"Model", ARCHS_EMBEDS},
};
#define N_END (sizeof ends / sizeof *ends)

/* The row whose name is the n characters of the stem and one of the ends; N_ARCH: none. */
static size_t find_stem(const char *stem, size_t n)
{
    for (size_t i = 0; i < N_ARCH; i++)
        for (size_t k = 0; k < N_END && strncmp(archs[i].name, stem, n) == 0; k++)
            if (strcmp(archs[i].name + n, ends[k].text) == 0)
                return i;
    return N_ARCH;
}

static bool generates(size_t i)
{
    const char *name = archs[i].name;
    return strstr(name, "ForCausalLM") || strstr(name, "LMHeadModel");
}

/* Other spellings of architectures. */
static const struct {
    const char *name, *is;
} spellings[] = {
    {"BaiChuanForCausalLM", "BaichuanForCausalLM"},
    {"Ernie4_5_ForCausalLM", "Ernie4_5ForCausalLM"},
    {"KimiK2ForCausalLM", "DeepseekV3ForCausalLM"},
    {"MiniMaxM1ForCausalLM", "MiniMaxForCausalLM"},
    {"MiniMaxText01ForCausalLM", "MiniMaxForCausalLM"},
};

static size_t find_row(const char *name, enum archs_end *end)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strcmp(spellings[i].name, name) == 0)
            name = spellings[i].is;
    const size_t n = strlen(name);
    for (size_t k = 0; k < N_END; k++) {
        const size_t n_end = strlen(ends[k].text);
        if (n <= n_end || strcmp(name + n - n_end, ends[k].text) != 0)
            continue;
        const size_t i = find_stem(name, n - n_end);
        const bool is_masked = strcmp(ends[k].text, "ForMaskedLM") == 0;
        *end = ends[k].is;
        if (i == N_ARCH || (ends[k].is == ARCHS_GENERATES && strcmp(archs[i].name, name) != 0) ||
            (is_masked && generates(i)))
            return N_ARCH;
        return i;
    }
    return N_ARCH;
}

const char *archs_base(const char *name, enum archs_end *end)
{
    enum archs_end is;
    const size_t i = find_row(name, &is);
    if (end && i < N_ARCH)
        *end = is;
    return i < N_ARCH ? archs[i].name : NULL;
}

const char *archs_type(const char *name)
{
    enum archs_end is;
    const size_t i = find_row(name, &is);
    return i < N_ARCH ? archs[i].type : NULL;
}

bool archs_is_own(const char *name)
{
    return archs_type(name) != NULL;
}

const char *archs_all_types(void)
{
    static const char types[] =
#define ARCH(architecture, family) ", " #family
#include "common/hub/archs.def"
        ;
    return types + 2;
}

const char *archs_types(char out[ARCHS_TYPES_MAX])
{
    const size_t n = 6;
    const char *all = archs_all_types(), *end = all;
    for (size_t i = 0; i < n; i++)
        end += strcspn(end, ",") + (i + 1 < n);
    const size_t n_byte = (size_t)(end - all);
    Q_ASSERT(n_byte < ARCHS_TYPES_MAX / 2);
    memcpy(out, all, n_byte);
    snprintf(out + n_byte, ARCHS_TYPES_MAX - n_byte,
             " and %u more (quire check-model --help lists all)", (unsigned)(N_ARCH - n));
    return out;
}

/* Is it the type of a row? "xlm-roberta" is xlm_roberta. */
static bool is_type(const char *row, const char *model_type)
{
    while (*row && (*row == *model_type || (*row == '_' && *model_type == '-'))) {
        row++;
        model_type++;
    }
    return *row == *model_type;
}

const char *archs_of_type(const char *model_type)
{
    for (size_t i = 0; i < N_ARCH; i++)
        if (is_type(archs[i].type, model_type))
            return archs[i].name;
    return NULL;
}

const char *archs_like(const char *model_type)
{
    static const struct {
        const char *name, *is;
    } types[] = {
        {"glm4v_text", "glm4"},         {"gpt-sw3", "gpt2"},
        {"kimi_k2", "deepseek_v3"},     {"minimax_m1", "minimax"},
        {"minimax_text_01", "minimax"}, {"qwen2_5_vl", "qwen2"},
        {"qwen2_5_vl_text", "qwen2"},   {"qwen2_vl", "qwen2"},
        {"qwen2_vl_text", "qwen2"},     {"qwen3_vl_moe_text", "qwen3_moe"},
        {"qwen3_vl_text", "qwen3"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, model_type) == 0)
            return types[i].is;
    return model_type;
}

/* "Qwen3NextForCausalLM" is most similar to the longest architecture name whose part before "For"
 * is a prefix of it: Qwen3ForCausalLM. Case is ignored. NULL: none. */
static const char *nearest(const char *architecture)
{
    const char *found = NULL;
    size_t longest = 0;
    for (size_t i = 0; i < N_ARCH; i++) {
        const char *stem_end = strstr(archs[i].name, "For");
        size_t n = stem_end ? (size_t)(stem_end - archs[i].name) : strlen(archs[i].name);
        if (n > longest && strncasecmp(archs[i].name, architecture, n) == 0) {
            longest = n;
            found = archs[i].name;
        }
    }
    return found;
}

enum q_code archs_check(const char *architecture, const char *path, struct q_err *e)
{
    struct buf plugins = BUF_INIT;
    char types[ARCHS_TYPES_MAX];
    if (archs_is_own(architecture) || archs_added_find(architecture))
        return Q_OK;
    const char *near = nearest(architecture);
    for (const struct archs_added *a = atomic_load(&added); a; a = a->next)
        buf_printf(&plugins, "%s%s", plugins.len ? ", " : ", and by plugins ", a->name);
    const enum q_code rc = q_fail(
        e, Q_UNSUPPORTED,
        "%s: architecture %s is not supported%s%s; supported are those of the model types "
        "%s%s",
        path, architecture, near ? ", the most similar is " : "", near ? near : "",
        archs_types(types), plugins.len ? buf_str(&plugins) : ", others by plugins (--plugin)");
    buf_release(&plugins);
    return rc;
}
