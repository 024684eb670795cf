/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/pooling.h"
#include <limits.h>
#include <string.h>
#include <strings.h>
#include "common/file.h"
#include "common/hub/hub_json.h"

static const char *const kind_names[POOLING_KINDS] = {
    [POOLING_LAST] = "LAST",
    [POOLING_CLS] = "CLS",
    [POOLING_MEAN] = "MEAN",
    [POOLING_MAX] = "MAX",
    [POOLING_WEIGHTED_MEAN] = "WEIGHTEDMEAN",
    [POOLING_MEAN_SQRT_LEN] = "MEAN_SQRT_LEN_TOKENS",
};

const char *pooling_kind_name(enum pooling_kind kind)
{
    return kind_names[kind];
}

struct reading {
    struct pooling *p;
    const struct model_config *c;
    const char *dir;
    enum archs_end end; /* by the architecture's name */
    bool is_encoder;    /* the family's own name is no generating one */
    struct hub_json_at config;
    struct q_err *e;
};

/* ---- does it pool, and what does it make ---- */

static enum q_code choose(struct reading *r, bool has_modules, const struct pooling_options *o)
{
    const char *runner = o->runner && *o->runner ? o->runner : "auto";
    const char *convert = o->convert && *o->convert ? o->convert : "auto";
    const bool is_auto = !strcmp(convert, "auto"), is_none = !strcmp(convert, "none");
    const bool embeds = !strcmp(convert, "embed"), classifies = !strcmp(convert, "classify");
    const bool pools = !strcmp(runner, "pooling"), generates = !strcmp(runner, "generate");
    if (!pools && !generates && strcmp(runner, "auto") != 0)
        return q_fail(r->e, Q_INVALID, "--runner is \"%.40s\", expected auto, generate or pooling",
                      runner);
    if (!is_auto && !is_none && !embeds && !classifies)
        return q_fail(r->e, Q_INVALID,
                      "--convert is \"%.40s\", expected auto, none, embed or classify", convert);
    if (generates && (r->end != ARCHS_GENERATES || embeds || classifies))
        return q_fail(r->e, Q_INVALID,
                      "--runner generate: %s%s makes vectors; use --runner pooling or auto",
                      r->c->architecture, embeds || classifies ? " with --convert" : "");
    if (pools && is_none && r->end == ARCHS_GENERATES)
        return q_fail(r->e, Q_INVALID,
                      "--convert none: %s generates text; with --runner pooling use --convert "
                      "embed, classify or auto",
                      r->c->architecture);
    r->p->makes = embeds                                 ? ARCHS_EMBEDS
                  : classifies                           ? ARCHS_CLASSIFIES
                  : r->end != ARCHS_GENERATES            ? r->end
                  : pools || (has_modules && !generates) ? ARCHS_EMBEDS
                                                         : ARCHS_GENERATES;
    return Q_OK;
}

/* ---- sentence-transformers ---- */

static enum q_code take_modules(struct reading *r, const struct pooling_modules *m,
                                enum pooling_kind kind)
{
    struct pooling *p = r->p;
    uint32_t n = r->c->hidden_size;
    p->kind = kind;
    p->act = m->normalizes ? POOLING_ACT_NORMALIZE : POOLING_ACT_NONE;
    memcpy(p->dense, m->dense, sizeof p->dense);
    p->n_dense = m->n_dense;
    for (uint32_t i = 0; i < p->n_dense; n = p->dense[i++].n_out)
        if (p->dense[i].n_in != n)
            return q_fail(r->e, Q_MISMATCH,
                          "%s/%s/config.json: in_features is %u, the layer before it has %u values",
                          r->dir, p->dense[i].path, p->dense[i].n_in, n);
    p->n_out = n;
    return Q_OK;
}

/* Which inputs the tokenizer gives besides ids, as transformers has it: model_input_names, else
 * what its class has. The general class gives no types, classes of models with types do. */
static enum q_code read_pair_types(struct reading *r)
{
    static const char *const without[] = {"PreTrainedTokenizer", "PreTrainedTokenizerFast",
                                          "TokenizersBackend"};
    char path[PATH_MAX];
    json_t *root = NULL;
    const char *class = "";
    enum q_code rc = path_join(path, sizeof path, r->dir, "tokenizer_config.json", r->e);
    r->p->pair_types = r->c->n_type > 1;
    if (rc || !r->p->pair_types || !file_exists(path) || (rc = hub_json_load(&root, path, r->e)))
        return rc;
    const struct hub_json_at at = {root, path};
    const json_t *inputs = hub_json_find(&at, "model_input_names");
    rc = hub_json_str(&class, &at, "tokenizer_class", r->e);
    for (size_t i = 0; i < sizeof without / sizeof *without && !inputs; i++)
        r->p->pair_types = r->p->pair_types && strcmp(class, without[i]) != 0;
    for (size_t i = 0; i < json_array_size(inputs); i++) {
        const char *name = json_string_value(json_array_get(inputs, i));
        r->p->pair_types = name && !strcmp(name, "token_type_ids");
        if (r->p->pair_types)
            break;
    }
    json_decref(root);
    return rc;
}

static const struct hub_json_range lengths = {1, 1u << 28};

/* What an encoder's tokenizer says, where it is a length: 10^30 is none. */
static enum q_code read_tokenizer_length(struct reading *r, int64_t *n)
{
    static const char key[] = "model_max_length";
    char path[PATH_MAX];
    json_t *root = NULL;
    enum q_code rc = path_join(path, sizeof path, r->dir, "tokenizer_config.json", r->e);
    if (rc || !file_exists(path) || (rc = hub_json_load(&root, path, r->e)))
        return rc;
    const struct hub_json_at at = {root, path};
    const json_int_t given = json_integer_value(hub_json_find(&at, key));
    if (given >= (json_int_t)lengths.min && given <= (json_int_t)lengths.max)
        *n = given;
    json_decref(root);
    return Q_OK;
}

/* The key is in the first of these files that the folder has; newer releases leave it to the
 * tokenizer. */
static enum q_code read_max_length(struct reading *r)
{
    static const char *const names[] = {
        "sentence_bert_config.json",    "sentence_distilbert_config.json",
        "sentence_roberta_config.json", "sentence_xlm-roberta_config.json",
        "sentence_xlnet_config.json",
    };
    char path[PATH_MAX];
    int64_t n = 0;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rc; i++) {
        json_t *root = NULL;
        if ((rc = path_join(path, sizeof path, r->dir, names[i], r->e)) || !file_exists(path))
            continue;
        if (!(rc = hub_json_load(&root, path, r->e)))
            rc = hub_json_int(&n, &(struct hub_json_at){root, path}, "max_seq_length", lengths,
                              r->e);
        json_decref(root);
        break;
    }
    if (!rc && !n && r->is_encoder)
        rc = read_tokenizer_length(r, &n);
    r->p->max_length = (uint32_t)n;
    return rc;
}

/* Of sentence-transformers: {"prompts": {"query": "…"}, "default_prompt_name": null}. */
static enum q_code read_prompts(struct reading *r)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    const char *name, *first = NULL;
    json_t *v;
    enum q_code rc =
        path_join(path, sizeof path, r->dir, "config_sentence_transformers.json", r->e);
    if (rc || !file_exists(path) || (rc = hub_json_load(&root, path, r->e)))
        return rc;
    const struct hub_json_at at = {root, path};
    json_t *prompts = json_object_get(root, "prompts");
    if (prompts && !json_is_object(prompts) && !json_is_null(prompts))
        rc = q_fail(r->e, Q_CORRUPT, "%s: prompts is %s, expected an object of texts", path,
                    hub_json_kind(prompts));
    json_object_foreach (prompts, name, v)
        if (!json_is_string(v) && !rc)
            rc = q_fail(r->e, Q_CORRUPT, "%s: the prompt \"%.60s\" is %s, expected a text", path,
                        name, hub_json_kind(v));
    if (!rc)
        rc = hub_json_str(&first, &at, "default_prompt_name", r->e);
    if (!rc && first && !(r->p->prompt = json_string_value(json_object_get(prompts, first))))
        rc = q_fail(r->e, Q_CORRUPT, "%s: default_prompt_name \"%.60s\" is none of its prompts",
                    path, first);
    if (json_object_size(prompts))
        r->p->prompts = json_incref(prompts);
    json_decref(root);
    return rc;
}

/* The vector of the tokens behind a prompt, or of the first of them, is not what is computed. */
static enum q_code check_prompt(const struct reading *r, const struct pooling_modules *m)
{
    struct pooling *p = r->p;
    p->excludes_prompt = !m->with_prompt && p->kind != POOLING_LAST;
    if (!p->excludes_prompt || !p->prompt || !*p->prompt)
        return Q_OK;
    return q_fail(r->e, Q_UNSUPPORTED,
                  "%s/%s/config.json: include_prompt is false, and the model has a default prompt "
                  "(config_sentence_transformers.json): pooling without its tokens is not "
                  "supported, expected include_prompt true, or no default_prompt_name",
                  r->dir, m->pooling);
}

static enum q_code read_dimensions(struct reading *r)
{
    static const char key[] = "matryoshka_dimensions";
    const json_t *list = hub_json_find(&r->config, key);
    struct pooling *p = r->p;
    enum q_code rc = hub_json_bool(&p->is_matryoshka, &r->config, "is_matryoshka", r->e);
    if (rc || !list)
        return rc;
    p->n_dim = (uint32_t)json_array_size(list);
    if (!json_is_array(list) || !p->n_dim || p->n_dim > POOLING_DIMS_MAX)
        return q_fail(r->e, Q_CORRUPT, "%s: %s is %s, expected a list of 1 to %u numbers",
                      r->config.path, key, hub_json_kind(list), POOLING_DIMS_MAX);
    for (uint32_t i = 0; i < p->n_dim; i++) {
        const json_int_t n = json_integer_value(json_array_get(list, i));
        if (n < 1 || n > POOLING_WIDTH_MAX)
            return q_fail(r->e, Q_CORRUPT, "%s: %s[%u] is no number from 1 to %u", r->config.path,
                          key, i, POOLING_WIDTH_MAX);
        p->dims[i] = (uint32_t)n;
    }
    p->is_matryoshka = true;
    return Q_OK;
}

/* ---- classes ---- */

static enum q_code count_labels(struct reading *r)
{
    const json_t *names = hub_json_find(&r->config, "id2label");
    int64_t n = json_is_object(names) && json_object_size(names) ? (int64_t)json_object_size(names)
                                                                 : 2; /* transformers' default */
    if (!json_is_object(names)) {
        const enum q_code rc = hub_json_int(&n, &r->config, "num_labels",
                                            (struct hub_json_range){1, POOLING_LABELS_MAX}, r->e);
        if (rc)
            return rc;
    }
    if (n > POOLING_LABELS_MAX)
        return q_fail(r->e, Q_TOO_LARGE, "%s: id2label has %lld classes, expected at most %u",
                      r->config.path, (long long)n, POOLING_LABELS_MAX);
    if (json_is_object(names))
        r->p->labels = json_incref((json_t *)names);
    r->p->n_out = (uint32_t)n;
    return Q_OK;
}

/* Cross-encoders of sentence-transformers 5.4 and later say it in a file of their own. */
static enum q_code read_act_file(struct reading *r, bool *found)
{
    static const char key[] = "activation_fn";
    char path[PATH_MAX];
    json_t *root = NULL;
    const char *name = NULL;
    enum q_code rc =
        path_join(path, sizeof path, r->dir, "config_sentence_transformers.json", r->e);
    *found = false;
    if (rc || !file_exists(path) || (rc = hub_json_load(&root, path, r->e)))
        return rc;
    rc = hub_json_str(&name, &(struct hub_json_at){root, path}, key, r->e);
    *found = name != NULL;
    if (!rc && name)
        rc = pooling_parse_act(&r->p->act, name, path, key, r->e);
    json_decref(root);
    return rc;
}

/* Cross-encoders say their activation; other models by the problem that they were trained for. */
static enum q_code class_act(struct reading *r)
{
    const struct hub_json_at inner = {hub_json_find(&r->config, "sentence_transformers"),
                                      r->config.path};
    const char *older = NULL, *newer = NULL, *problem = "";
    bool found = false;
    enum q_code rc = read_act_file(r, &found);
    if (rc || found)
        return rc;
    if ((rc = hub_json_str(&older, &r->config, "sbert_ce_default_activation_function", r->e)) ||
        (rc = hub_json_str(&problem, &r->config, "problem_type", r->e)) ||
        (json_is_object(inner.object) &&
         (rc = hub_json_str(&newer, &inner, "activation_fn", r->e))))
        return rc;
    if (newer || older)
        return pooling_parse_act(&r->p->act, newer ? newer : older, r->config.path,
                                 newer ? "activation_fn" : "sbert_ce_default_activation_function",
                                 r->e);
    r->p->act = !strcmp(problem, "regression") ? POOLING_ACT_NONE
                : r->p->n_out == 1 || !strcmp(problem, "multi_label_classification")
                    ? POOLING_ACT_SIGMOID
                    : POOLING_ACT_SOFTMAX;
    return Q_OK;
}

static enum q_code class_kind(struct reading *r)
{
    const char *kind = "cls";
    enum q_code rc = Q_OK;
    r->p->kind = r->is_encoder ? POOLING_CLS : POOLING_LAST;
    if (strcmp(r->c->model_type, "modernbert") != 0 ||
        (rc = hub_json_str(&kind, &r->config, "classifier_pooling", r->e)))
        return rc;
    if (strcmp(kind, "cls") != 0 && strcmp(kind, "mean") != 0)
        return q_fail(r->e, Q_UNSUPPORTED,
                      "%s: classifier_pooling \"%.40s\" is not supported, expected cls or mean",
                      r->config.path, kind);
    r->p->kind = *kind == 'c' ? POOLING_CLS : POOLING_MEAN;
    return Q_OK;
}

static enum q_code read_classes(struct reading *r)
{
    enum q_code rc;
    if ((rc = count_labels(r)) || (rc = class_kind(r)))
        return rc;
    return class_act(r);
}

/* ---- --pooler-config ---- */

static enum q_code read_kind_option(struct reading *r, const struct hub_json_at *at,
                                    const char *key)
{
    const char *name = "";
    enum q_code rc = hub_json_str(&name, at, key, r->e);
    if (rc || !*name)
        return rc;
    for (int k = 0; k < POOLING_KINDS; k++)
        if (!strcasecmp(name, kind_names[k])) {
            r->p->kind = (enum pooling_kind)k;
            return Q_OK;
        }
    return q_fail(r->e, Q_UNSUPPORTED,
                  "%s: %s \"%.40s\" is not supported, expected LAST, CLS, MEAN, MAX, WEIGHTEDMEAN "
                  "or MEAN_SQRT_LEN_TOKENS",
                  at->path, key, name);
}

static enum q_code read_option(struct reading *r, const char *text)
{
    static const char flag[] = "--pooler-config";
    static const char *const keys[] = {"pooling_type", "seq_pooling_type", "use_activation",
                                       "normalize",    "activation",       "softmax"};
    struct pooling *p = r->p;
    json_t *root = NULL, *v;
    const char *key;
    bool acts = p->act != POOLING_ACT_NONE;
    const bool acted = acts;
    enum q_code rc = hub_json_parse(&root, text, strlen(text), flag, r->e);
    const struct hub_json_at at = {root, flag};
    json_object_foreach (root, key, v) {
        size_t i = 0;
        while (i < sizeof keys / sizeof *keys && strcmp(keys[i], key) != 0)
            i++;
        if (i == sizeof keys / sizeof *keys && !json_is_null(v) && !rc)
            rc = q_fail(r->e, Q_UNSUPPORTED,
                        "%s: \"%.60s\" is not supported; accepted are pooling_type (or "
                        "seq_pooling_type) and use_activation (or normalize, activation, softmax)",
                        flag, key);
    }
    if (!rc && !(rc = read_kind_option(r, &at, keys[0])))
        rc = read_kind_option(r, &at, keys[1]);
    for (size_t i = 2; i < sizeof keys / sizeof *keys && !rc; i++)
        rc = hub_json_bool(&acts, &at, keys[i], r->e);
    if (!rc && acts && !acted)
        p->act = p->makes == ARCHS_EMBEDS ? POOLING_ACT_NORMALIZE
                 : p->n_out == 1          ? POOLING_ACT_SIGMOID
                                          : POOLING_ACT_SOFTMAX;
    else if (!rc && !acts)
        p->act = POOLING_ACT_NONE;
    if (rc)
        rc = r->e->code = Q_INVALID;
    json_decref(root);
    return rc;
}

/* ---- the whole ---- */

static enum q_code read_all(struct reading *r, const struct pooling_options *o)
{
    struct pooling_modules m = {.n_dense = 0};
    enum pooling_kind kind = POOLING_LAST;
    struct pooling *p = r->p;
    bool has_modules;
    enum q_code rc = pooling_read_modules(&m, &kind, &has_modules, r->dir, r->e);
    if (rc || (rc = choose(r, has_modules, o)))
        return rc;
    if (p->makes == ARCHS_GENERATES)
        return o->pooler && *o->pooler
                   ? q_fail(r->e, Q_INVALID,
                            "--pooler-config: %s generates text; use --runner pooling",
                            r->c->architecture)
                   : Q_OK;
    p->n_out = r->c->hidden_size;
    p->kind = r->is_encoder ? POOLING_CLS : POOLING_LAST;
    p->act = POOLING_ACT_NORMALIZE;
    if (p->makes == ARCHS_CLASSIFIES)
        rc = read_classes(r);
    else if (has_modules)
        rc = take_modules(r, &m, kind);
    if (!rc && !(rc = read_dimensions(r)))
        rc = read_max_length(r);
    if (!rc)
        rc = read_pair_types(r);
    if (!rc && p->makes == ARCHS_EMBEDS && !(rc = read_prompts(r)) && has_modules)
        rc = check_prompt(r, &m);
    return rc || !o->pooler || !*o->pooler ? rc : read_option(r, o->pooler);
}

FALLIBLE pooling_read(struct pooling *out, const struct model_config *c, const char *dir,
                      const struct pooling_options *o, struct q_err *e)
{
    char path[PATH_MAX];
    struct reading r = {.p = out, .c = c, .dir = dir, .e = e};
    json_t *root = NULL;
    enum archs_end own = ARCHS_GENERATES;
    enum q_code rc;
    *out = (struct pooling)POOLING_INIT;
    const char *base = archs_base(c->architecture, &r.end);
    if (base && archs_base(base, &own))
        r.is_encoder = own != ARCHS_GENERATES;
    if ((rc = path_join(path, sizeof path, dir, "config.json", e)))
        return rc;
    if (file_exists(path)) /* else Mistral's params.json alone */
        rc = hub_json_load(&root, path, e);
    r.config = (struct hub_json_at){root, path};
    if (!rc)
        rc = read_all(&r, o);
    json_decref(root);
    if (rc)
        pooling_release(out);
    return rc;
}

void pooling_release(struct pooling *p)
{
    json_decref(p->labels);
    json_decref(p->prompts);
    *p = (struct pooling)POOLING_INIT;
}

const char *pooling_label(const struct pooling *p, uint32_t i, char buffer[32])
{
    snprintf(buffer, 32, "%u", i);
    const char *name = json_string_value(json_object_get(p->labels, buffer));
    if (!name)
        snprintf(buffer, 32, "LABEL_%u", i);
    return name ? name : buffer;
}
