/* SPDX-License-Identifier: Apache-2.0 */
/* --config: a YAML file whose keys are options without their dashes, as in vLLM. libyaml parses it
 * into a graph of nodes (an alias is a reference to a node and may be inside that node). Each key
 * is looked up as a flag, and its value is converted to the arguments of that flag. */
#include <jansson.h>
#include <string.h>
#include <yaml.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/options_internal.h"

#define FILE_MAX  ((size_t)256 << 10)
#define DEPTH_MAX 16   /* of a value */
#define NODES_MAX 4096 /* of a value: aliases can expand a small file to a large value */
#define YAML_TAG  "tag:yaml.org,2002:"

struct config_file {
    struct options *o;
    const struct program_info *p;
    const char *path;
    yaml_document_t document;
    uint64_t before[sizeof((struct options *)0)->given / sizeof(uint64_t)]; /* given elsewhere */
    size_t n_node; /* visited for this value */
};

static unsigned line_of(const yaml_node_t *node)
{
    return (unsigned)node->start_mark.line + 1;
}

/* scalars */

static const char *scalar(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

static bool is_plain(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_one_of(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool is_null(const yaml_node_t *node)
{
    static const char *const words[] = {"", "~", "null"};
    return is_plain(node) && is_one_of(scalar(node), words, 3);
}

/* "true" or "false" for YAML's spellings of booleans, else NULL. */
static const char *truth(const yaml_node_t *node)
{
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    if (!is_plain(node))
        return NULL;
    return is_one_of(scalar(node), yes, 3)  ? "true"
           : is_one_of(scalar(node), no, 3) ? "false"
                                            : NULL;
}

/* Only plain data is accepted: a tag such as !!python/object and a NUL in a text are rejected. */
static FALLIBLE check_node(const yaml_node_t *node, struct q_err *e)
{
    const char *tag = (const char *)node->tag;
    if (tag && (strncmp(tag, YAML_TAG, strlen(YAML_TAG)) != 0 || strchr(tag, '/')))
        return q_fail(e, Q_UNSUPPORTED, "line %u: the tag %.60s is not supported", line_of(node),
                      tag);
    if (node->type == YAML_SCALAR_NODE && strlen(scalar(node)) != node->data.scalar.length)
        return q_fail(e, Q_INVALID, "line %u: the text contains a NUL character", line_of(node));
    return Q_OK;
}

/* values */

static FALLIBLE to_json(struct config_file *f, json_t **out, int i_node, int depth,
                        struct q_err *e);

static FALLIBLE sequence_to_json(struct config_file *f, json_t **out, const yaml_node_t *node,
                                 int depth, struct q_err *e)
{
    *out = json_array();
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        json_t *v = NULL;
        enum q_code rc = to_json(f, &v, *i, depth + 1, e);
        if (rc)
            return rc;
        if (json_array_append_new(*out, v) != 0)
            return q_fail(e, Q_NO_MEMORY, "out of memory");
    }
    return Q_OK;
}

static FALLIBLE mapping_to_json(struct config_file *f, json_t **out, const yaml_node_t *node,
                                int depth, struct q_err *e)
{
    *out = json_object();
    for (yaml_node_pair_t *i = node->data.mapping.pairs.start; i < node->data.mapping.pairs.top;
         i++) {
        const yaml_node_t *key = yaml_document_get_node(&f->document, i->key);
        json_t *v = NULL;
        enum q_code rc = check_node(key, e);
        if (rc)
            return rc;
        if (key->type != YAML_SCALAR_NODE)
            return q_fail(e, Q_INVALID, "line %u: a key is not a string", line_of(key));
        if ((rc = to_json(f, &v, i->value, depth + 1, e)))
            return rc;
        if (json_object_set_new(*out, scalar(key), v) != 0)
            return q_fail(e, Q_NO_MEMORY, "line %u: out of memory", line_of(key));
    }
    return Q_OK;
}

static json_t *scalar_to_json(const yaml_node_t *node)
{
    const char *word = truth(node), *text = scalar(node);
    if (word)
        return json_boolean(strcmp(word, "true") == 0);
    if (is_null(node))
        return json_null();
    json_t *v = is_plain(node) ? json_read_string(text, JSON_DECODE_ANY, NULL) : NULL;
    if (json_is_number(v))
        return v;
    json_decref(v);
    return json_stringn(text, node->data.scalar.length);
}

static FALLIBLE to_json(struct config_file *f, json_t **out, int i_node, int depth, struct q_err *e)
{
    const yaml_node_t *node = yaml_document_get_node(&f->document, i_node);
    enum q_code rc = check_node(node, e);
    if (rc)
        return rc;
    if (depth > DEPTH_MAX || ++f->n_node > NODES_MAX)
        return q_fail(e, Q_INVALID, "line %u: a value has more than %d levels or %d parts",
                      line_of(node), DEPTH_MAX, NODES_MAX);
    if (node->type == YAML_SEQUENCE_NODE)
        rc = sequence_to_json(f, out, node, depth, e);
    else if (node->type == YAML_MAPPING_NODE)
        rc = mapping_to_json(f, out, node, depth, e);
    else if (!(*out = scalar_to_json(node)))
        rc = q_fail(e, Q_NO_MEMORY, "line %u: out of memory", line_of(node));
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

/* A sequence or mapping as JSON text. */
static FALLIBLE json_word(struct config_file *f, const char **out, int i_node, struct q_err *e)
{
    json_t *v = NULL;
    f->n_node = 0;
    enum q_code rc = to_json(f, &v, i_node, 0, e);
    size_t n = rc ? 0 : json_dumpb(v, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = rc ? NULL : q_alloc(n + 1);
    if (text && json_dumpb(v, text, n, JSON_COMPACT | JSON_ENCODE_ANY) == n)
        *out = option_text(f->o, text, n);
    if (!rc && (!text || !*out))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory");
    q_free(text);
    json_decref(v);
    return rc;
}

static FALLIBLE scalar_word(struct config_file *f, const char **out, const yaml_node_t *node,
                            struct q_err *e)
{
    enum q_code rc = check_node(node, e);
    if (rc)
        return rc;
    if (node->type != YAML_SCALAR_NODE)
        return q_fail(e, Q_INVALID, "line %u: expected one value, got a list or mapping",
                      line_of(node));
    *out = option_text(f->o, scalar(node), node->data.scalar.length);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory");
}

static bool is_json(const struct option_target *t)
{
    return t->row ? t->row->type >= TYPE_JSON : t->vllm->takes == VLLM_JSON;
}

/* A text that is a JSON list: its row's default is one. */
static bool is_json_list(const struct option_target *t)
{
    return t->row && t->row->type == TYPE_STR && t->row->def[0] == '[';
}

static bool is_list(const struct option_target *t)
{
    return option_arity(t) == ARITY_MANY || (t->row && t->row->type == TYPE_LIST);
}

/* Convert the value to the arguments of the flag. */
static FALLIBLE read_words(struct config_file *f, const struct option_target *t, int i_node,
                           const char **words, size_t *n, struct q_err *e)
{
    const yaml_node_t *node = yaml_document_get_node(&f->document, i_node);
    const yaml_node_item_t *item = node->data.sequence.items.start;
    enum q_code rc = check_node(node, e);
    *n = 1;
    if (!rc && option_arity(t) == ARITY_NONE && (words[0] = truth(node)))
        return Q_OK;
    if (rc || node->type == YAML_SCALAR_NODE)
        return rc ? rc : scalar_word(f, words, node, e);
    if (is_json(t) || (is_json_list(t) && node->type == YAML_SEQUENCE_NODE))
        return json_word(f, words, i_node, e);
    if (node->type == YAML_MAPPING_NODE || !is_list(t))
        return q_fail(e, Q_INVALID, "line %u: %s takes %s", line_of(node), t->flag,
                      is_list(t) || is_json_list(t) ? "a list of values" : "one value");
    for (*n = 0; item < node->data.sequence.items.top && !rc; item++) {
        if (*n == OPTION_LIST_MAX)
            return q_fail(e, Q_INVALID, "line %u: more than %d values", line_of(node),
                          OPTION_LIST_MAX);
        rc = scalar_word(f, &words[(*n)++], yaml_document_get_node(&f->document, *item), e);
    }
    return rc;
}

/* keys */

static bool given_before(const struct config_file *f, const struct option_row *row)
{
    size_t i = (size_t)(row - option_rows);
    return row && f->before[i / 64] >> i % 64 & 1;
}

/* Options that are accepted on the command line only. */
static bool is_for_words_only(const struct option_row *row)
{
    return row && (strcmp(row->flag, "--config") == 0 || strcmp(row->flag, "--help") == 0 ||
                   strcmp(row->flag, "--version") == 0);
}

static FALLIBLE set_key(struct config_file *f, const char *key, int i_value, struct q_err *e)
{
    const yaml_node_t *value = yaml_document_get_node(&f->document, i_value);
    const char *words[OPTION_LIST_MAX] = {NULL};
    struct option_target t;
    size_t n = 0;
    char *flag = q_alloc(strlen(key) + 3);
    if (!flag)
        return q_fail(e, Q_NO_MEMORY, "out of memory");
    snprintf(flag, strlen(key) + 3, "%s%s", strncmp(key, "--", 2) == 0 ? "" : "--", key);
    enum q_code rc = option_find(&t, f->p, flag, strlen(flag), e);
    const struct option_row *row = rc ? NULL : option_row_of(&t);
    if (!rc && is_for_words_only(row))
        rc = q_fail(e, Q_INVALID, "%s is accepted on the command line only", t.flag);
    if (rc || is_null(value) || given_before(f, row))
        goto out;
    if ((rc = read_words(f, &t, i_value, words, &n, e)))
        goto out;
    bool is_off = false;
    if (t.negated && (rc = option_bool(&is_off, words[0], t.flag, e)))
        goto out;
    if (t.negated) /* no-enable-prefix-caching: true */
        words[0] = is_off ? "false" : "true";
    if (row)
        option_mark(f->o, row);
    rc = option_apply(f->o, f->p, &t, words, n, e);
out:
    q_free(flag);
    return rc;
}

static bool is_doubled(struct config_file *f, const yaml_node_t *root, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = yaml_document_get_node(&f->document, pair->key);
    for (yaml_node_pair_t *i = root->data.mapping.pairs.start; i < pair; i++)
        if (strcmp(scalar(yaml_document_get_node(&f->document, i->key)), scalar(key)) == 0)
            return true;
    return false;
}

static FALLIBLE set_keys(struct config_file *f, struct q_err *e)
{
    const yaml_node_t *root = yaml_document_get_root_node(&f->document);
    if (!root || is_null(root))
        return Q_OK; /* nothing but comments */
    if (root->type != YAML_MAPPING_NODE)
        return q_fail(e, Q_INVALID, "%s: expected a mapping of options such as port: 8000",
                      f->path);
    for (yaml_node_pair_t *i = root->data.mapping.pairs.start; i < root->data.mapping.pairs.top;
         i++) {
        const yaml_node_t *key = yaml_document_get_node(&f->document, i->key);
        enum q_code rc = check_node(key, e);
        if (!rc && key->type != YAML_SCALAR_NODE)
            rc = q_fail(e, Q_INVALID, "a key is not a string");
        if (!rc && is_doubled(f, root, i))
            rc = q_fail(e, Q_INVALID, "%.60s is given twice", scalar(key));
        if (rc || set_key(f, scalar(key), i->value, e) != Q_OK)
            return strncmp(e->message, "line ", 5) == 0 /* of a part of the value */
                       ? q_wrap(e, "%s", f->path)
                       : q_wrap(e, "%s line %u", f->path, line_of(key));
    }
    return Q_OK;
}

static FALLIBLE fail_yaml(const yaml_parser_t *parser, const char *path, struct q_err *e)
{
    return q_fail(e, Q_INVALID, "%s line %zu: not valid YAML: %s", path,
                  (size_t)parser->problem_mark.line + 1,
                  parser->problem ? parser->problem : "out of memory");
}

FALLIBLE options_file_text(struct options *o, const struct program_info *p, const char *text,
                           size_t n, const char *path, struct q_err *e)
{
    struct config_file f = {.o = o, .p = p, .path = path};
    yaml_document_t rest;
    yaml_parser_t parser;
    enum q_code rc;
    memcpy(f.before, o->given, sizeof f.before);
    if (!yaml_parser_initialize(&parser))
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    if (!yaml_parser_load(&parser, &f.document)) {
        rc = fail_yaml(&parser, path, e);
        goto out;
    }
    rc = set_keys(&f, e);
    yaml_document_delete(&f.document);
    if (rc)
        goto out;
    if (!yaml_parser_load(&parser, &rest)) {
        rc = fail_yaml(&parser, path, e);
        goto out;
    }
    if (yaml_document_get_root_node(&rest))
        rc = q_fail(e, Q_INVALID, "%s: expected one YAML document, got several", path);
    yaml_document_delete(&rest);
out:
    yaml_parser_delete(&parser);
    return rc;
}

FALLIBLE options_file(struct options *o, const struct program_info *p, const char *path,
                      struct q_err *e)
{
    struct buf text = BUF_INIT;
    const char *end = strrchr(path, '.');
    enum q_code rc = Q_OK;
    if (!end || (strcmp(end, ".yaml") != 0 && strcmp(end, ".yml") != 0))
        rc = q_fail(e, Q_INVALID,
                    "--config %.200s: expected a file with the name ending .yaml or .yml", path);
    else if (file_read(&text, path, FILE_MAX, e) != Q_OK)
        rc = q_wrap(e, "--config");
    else
        rc = options_file_text(o, p, buf_str(&text), text.len, path, e);
    buf_release(&text);
    return rc;
}
