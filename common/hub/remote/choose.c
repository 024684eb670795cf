/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/choose.h"
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include "common/hub/hub.h"
#include "common/hub/hub_json.h"
#include "common/hub/loose_files.h"

/* Texts; FNM_PATHNAME, so that `*` stays in one folder. */
static const char *const texts[] = {
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "tokenizer.model.v*",
    "additional_chat_templates/*.jinja",
    "[0-9]*_*/*.json", /* sentence-transformers: 1_Pooling, 2_Dense */
    "[0-9]*_*/*.safetensors",
};
static const char *const no_texts[] = {
    "*.bin.index.json", /* chosen with the weights */
    "*.safetensors.index.json",
    "*.msgpack.index.json",
    "*.h5.index.json",
    "trainer_state.json",
    "all_results.json",
    "train_results.json",
    "eval_results.json",
    "LICENSE*",
    "license*",
    "NOTICE*",
    "Notice*",
    "USE_POLICY*",
    "requirements*.txt",
};

/* Formats of weights in the order of preference; the first file that exists is taken: the whole, an
 * index of shards, whatever matches. For auto a whole or an index of any format comes before what
 * matches, as in weight_files.h. */
static const struct format {
    const char *name, *whole, *index;
    const char *pattern, *not_pattern; /* of the others */
    bool is_loose;                     /* of these, those of loose_files.h */
    bool automatic;                    /* also for auto */
} formats[] = {
    {"safetensors", "model.safetensors", "model.safetensors.index.json", "*.safetensors", "", true,
     true},
    {"pt", "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin", "", false,
     true},
    {"mistral", "consolidated.safetensors", "consolidated.safetensors.index.json", "consolidated*",
     "*.json", false, true},
    {"adapter", "", "", "adapter_model.safetensors", "", false, true}, /* LoRA */
    {"adapter", "", "", "adapter_model.bin", "", false, true},
    {"gguf", "", "", "*.gguf", "", false, false},
};
#define N_FORMAT (sizeof formats / sizeof *formats)

bool choose_matches(const char *pattern, const char *name)
{
    char folder[CACHE_FILE_MAX + 2];
    const size_t n = strlen(pattern);
    if (n && n < CACHE_FILE_MAX && pattern[n - 1] == '/') {
        snprintf(folder, sizeof folder, "%s*", pattern);
        pattern = folder;
    }
    return fnmatch(pattern, name, 0) == 0;
}

static bool any_matches(const struct option_list *patterns, const char *name)
{
    for (uint32_t i = 0; i < patterns->n; i++)
        if (choose_matches(patterns->items[i], name))
            return true;
    return false;
}

static bool in_table(const char *const *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (fnmatch(table[i], name, FNM_PATHNAME) == 0)
            return true;
    return false;
}

static bool is_text(const char *name)
{
    return in_table(texts, sizeof texts / sizeof *texts, name) &&
           !in_table(no_texts, sizeof no_texts / sizeof *no_texts, name);
}

/* Is the file taken by --include and --exclude, or, without --include, by what is needed? */
static bool wanted(const struct choose_rules *r, const char *name, bool needed)
{
    return (r->include->n ? any_matches(r->include, name) : needed) &&
           !any_matches(r->exclude, name);
}

void choose_texts(bool *take, const struct listing *l, const struct choose_rules *r)
{
    const bool is_adapter = !strcmp(r->format, "adapter");
    for (size_t i = 0; i < l->n; i++)
        if (wanted(r, l->names[i],
                   is_adapter ? !strcmp(l->names[i], "adapter_config.json") : is_text(l->names[i])))
            take[i] = true;
}

/* Does the format's pattern match a file beside config.json? */
static bool is_of(const struct format *f, const char *name)
{
    return fnmatch(f->pattern, name, FNM_PATHNAME) == 0 && fnmatch(f->not_pattern, name, 0) != 0 &&
           (!f->is_loose || loose_files_is(name));
}

static bool is_named(const struct format *f, const struct listing *l)
{
    return listing_has(l, f->whole) || listing_has(l, f->index);
}

/* Mark the files of one format; false: there are none. */
static bool choose_format(bool *take, const char **index, const struct format *f,
                          const struct listing *l, const struct choose_rules *r)
{
    bool found = false;
    *index = NULL;
    const bool whole = listing_has(l, f->whole);
    if (!whole && listing_has(l, f->index))
        *index = f->index;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->names[i];
        const bool is = whole    ? !strcmp(name, f->whole)
                        : *index ? !strcmp(name, *index)
                                 : is_of(f, name);
        found = found || is;
        if (is && wanted(r, name, true))
            take[i] = true;
    }
    return found;
}

static enum q_code fail_none(const struct listing *l, const struct choose_rules *r,
                             const char *what, struct q_err *e)
{
    const struct format *gguf = &formats[N_FORMAT - 1];
    const bool automatic = !strcmp(r->format, "auto");
    for (size_t i = 0; automatic && i < l->n; i++)
        if (is_of(gguf, l->names[i]))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s has no safetensors; its weights are GGUF files (%s): say which, as "
                          "in %s:Q4_K_M, or download by name: quire download %s --include '%s'",
                          what, l->names[i], what, what, l->names[i]);
    return q_fail(e, Q_NOT_FOUND,
                  "%s has no weights%s%s that are known; quire download %s --include 'PATTERN' "
                  "takes files by name",
                  what, automatic ? "" : " of the format ", automatic ? "" : r->format, what);
}

enum q_code choose_weights(bool *take, const char **index, const struct listing *l,
                           const struct choose_rules *r, const char *what, struct q_err *e)
{
    bool known = !strcmp(r->format, "auto");
    const bool automatic = known;
    *index = NULL;
    if (!r->weights || r->include->n)
        return Q_OK;
    for (size_t i = 0; i < N_FORMAT && automatic; i++)
        if (formats[i].automatic && is_named(&formats[i], l) &&
            choose_format(take, index, &formats[i], l, r))
            return Q_OK;
    for (size_t i = 0; i < N_FORMAT; i++) {
        const bool named = !strcmp(r->format, formats[i].name);
        known = known || named;
        if ((named || (automatic && formats[i].automatic)) &&
            choose_format(take, index, &formats[i], l, r))
            return Q_OK;
    }
    if (!known)
        return q_fail(e, Q_INVALID,
                      "--load-format is \"%s\", expected auto, safetensors, pt, mistral, gguf or "
                      "adapter",
                      r->format);
    return fail_none(l, r, what, e);
}

/* Mark a shard, unless it is excluded; false: the repository does not have it. */
static bool take_shard(bool *take, const struct listing *l, const struct choose_rules *r,
                       const char *name)
{
    size_t low = 0, high = l->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const int order = strcmp(name, l->names[middle]);
        if (order == 0) {
            take[middle] = wanted(r, name, true);
            return true;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}

enum q_code choose_shards(bool *take, const struct listing *l, const struct choose_rules *r,
                          const struct choose_index *index, struct q_err *e)
{
    json_t *root = NULL;
    enum q_code rc = hub_json_parse(&root, index->text, index->n, index->name, e);
    if (rc)
        return rc;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_object_size(map))
        rc = q_fail(e, Q_CORRUPT, "%s: weight_map is missing or empty", index->name);
    for (void *it = json_object_iter(map); it && !rc; it = json_object_iter_next(map, it)) {
        const char *shard = json_string_value(json_object_iter_value(it));
        if (!shard || !take_shard(take, l, r, shard))
            rc = q_fail(e, Q_CORRUPT,
                        "%s: the tensor %.200s is in the file %.200s, which the repository does "
                        "not have",
                        index->name, json_object_iter_key(it), shard ? shard : "(none)");
    }
    json_decref(root);
    return rc;
}
