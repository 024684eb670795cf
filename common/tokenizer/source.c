/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_open: which file of a folder is the tokenizer. */
#include "common/tokenizer/source.h"
#include <dirent.h>
#include <limits.h>
#include <string.h>
#include "common/file.h"
#include "common/mem.h"

#define CONFIG_MAX ((size_t)64 << 20) /* bytes of tokenizer_config.json */

void tok_written_release(struct tok_written *w)
{
    buf_release(&w->json);
    q_free(w->extra.ranks);
    q_free(w->extra.scores);
    memset(w, 0, sizeof *w);
}

/* ---- tokenizer_config.json ---- */

bool tok_config_bool(const struct tok_config *c, const char *key, bool fallback)
{
    const json_t *v = json_object_get(c->root, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

const char *tok_config_token(const struct tok_config *c, const char *key)
{
    const json_t *v = json_object_get(c->root, key);
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

void tok_config_read(struct tok_config *c, const json_t *root)
{
    const char *class = json_string_value(json_object_get(root, "tokenizer_class"));
    memset(c, 0, sizeof *c);
    c->root = root;
    snprintf(c->class_name, sizeof c->class_name, "%s", class ? class : "");
    size_t n = strlen(c->class_name);
    if (n > 4 && strcmp(c->class_name + n - 4, "Fast") == 0)
        c->class_name[n - 4] = '\0';
    c->class = c->class_name;
    c->has_bos = json_is_boolean(json_object_get(root, "add_bos_token"));
    c->has_eos = json_is_boolean(json_object_get(root, "add_eos_token"));
    c->add_bos = tok_config_bool(c, "add_bos_token", false);
    c->add_eos = tok_config_bool(c, "add_eos_token", false);
}

/* ---- the file ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* The first of the usual names that is there, else the one *.tiktoken. */
static bool find_file(char path[PATH_MAX], const char *dir)
{
    static const char *const names[] = {"tokenizer.json",      "tokenizer.model", "spiece.model",
                                        "sentencepiece.model", "spm.model",       "tiktoken.model"};
    struct q_err e;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (path_join(path, PATH_MAX, dir, names[i], &e) == Q_OK && file_exists(path))
            return true;
    }
    DIR *d = opendir(dir);
    bool found = false;
    for (const struct dirent *entry; d && !found && (entry = readdir(d));)
        found = ends_with(entry->d_name, ".tiktoken") &&
                path_join(path, PATH_MAX, dir, entry->d_name, &e) == Q_OK;
    if (d)
        closedir(d);
    return found;
}

/* The first line is "base64 rank": base64 and digits only. */
static bool is_tiktoken(const char *s, size_t n)
{
    size_t i = 0;
    size_t n_space = 0;
    for (; i < n && s[i] != '\n' && s[i] != '\r'; i++) {
        unsigned char c = (unsigned char)s[i];
        n_space += c == ' ';
        if (c < ' ' || c > '~')
            return false;
    }
    return n_space == 1 && i > 2;
}

static enum q_code open_other(struct tokenizer **out, const struct mapping *file, const char *name,
                              struct tok_str config, struct q_err *e)
{
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    struct tok_config c;
    const char *data = (const char *)file->data;
    json_t *root = NULL;
    enum q_code rc = config.n ? tok_parse(&root, config, CONFIG_NAME, e) : Q_OK;
    if (rc)
        return rc;
    tok_config_read(&c, root);
    if (is_tiktoken(data, file->size))
        rc = tiktoken_write(&w, (struct tok_str){data, file->size}, name, &c, e);
    else
        rc = spm_write(&w, data, file->size, &c, e);
    if (!rc) {
        struct tok_texts in = {{buf_str(&w.json), w.json.len}, config, &w.extra};
        rc = tok_from_texts(out, &in, e);
    }
    json_decref(root);
    tok_written_release(&w);
    return rc;
}

static enum q_code open_file(struct tokenizer **out, const char *path, struct tok_str config,
                             struct q_err *e)
{
    struct mapping file = MAPPING_INIT;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    enum q_code rc = mapping_open(&file, path, e);
    if (!rc && ends_with(name, ".json")) {
        struct tok_texts in = {{(const char *)file.data, file.size}, config, NULL};
        rc = tok_from_texts(out, &in, e);
    } else if (!rc)
        rc = open_other(out, &file, name, config, e);
    mapping_release(&file);
    return rc;
}

enum q_code tokenizer_open(struct tokenizer **out, const char *path, struct q_err *e)
{
    char dir[PATH_MAX];
    char found[PATH_MAX];
    char beside[PATH_MAX];
    enum q_code rc;
    struct buf config = BUF_INIT_MAX(CONFIG_MAX);
    bool is_dir = dir_exists(path);
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!is_dir && slash)
        *slash = '\0';
    else if (!is_dir)
        snprintf(dir, sizeof dir, ".");
    if (!is_dir && !file_exists(path) && !slash)
        return q_fail(e, Q_NOT_FOUND, "%.180s: no such folder or file", path);
    if (is_dir && !find_file(found, path))
        return q_fail(e, Q_NOT_FOUND,
                      "%.120s: no tokenizer (tokenizer.json, tokenizer.model or tiktoken ranks)",
                      path);
    if (!is_dir && snprintf(found, sizeof found, "%s", path) >= (int)sizeof found)
        return q_fail(e, Q_TOO_LARGE, "%.80s…: the path is too long", path);
    if ((rc = path_join(beside, sizeof beside, dir, CONFIG_NAME, e)) == Q_OK && file_exists(beside))
        rc = file_read(&config, beside, CONFIG_MAX, e);
    if (!rc)
        rc = open_file(out, found, (struct tok_str){buf_str(&config), config.len}, e);
    buf_release(&config);
    return rc ? q_wrap(e, "%.80s", path) : Q_OK;
}

enum q_code tokenizer_check_mode(const char *mode, struct q_err *e)
{
    if (strcmp(mode, "auto") == 0 || strcmp(mode, "hf") == 0 || strcmp(mode, "slow") == 0)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "--tokenizer-mode: \"%.40s\" is not supported, expected auto, hf or slow", mode);
}
