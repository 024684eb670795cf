/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_open: selects the tokenizer's file in a folder. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "common/download.h"
#include "common/file.h"
#include "common/gguf/gguf_chat.h"
#include "common/gguf/gguf_file.h"
#include "common/tokenizer/source/gguf_tokens.h"
#include "common/tokenizer/source/lists.h"
#include "common/tokenizer/source/spm.h"
#include "common/tokenizer/source/tekken.h"
#include "common/tokenizer/source/tiktoken.h"
#include "common/tokenizer/tokenizer_internal.h"

#define CONFIG_MAX  ((size_t)64 << 20) /* bytes of tokenizer_config.json */
#define MISTRAL_SPM "tokenizer.model.v"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* The file of the folder whose name passes `wanted`, the last by name; false when there is none. */
static bool find_named(char path[PATH_MAX], const char *dir, bool (*wanted)(const char *name))
{
    char best[NAME_MAX + 1] = "";
    struct q_err e;
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (wanted(entry->d_name) && strcmp(entry->d_name, best) > 0)
            snprintf(best, sizeof best, "%s", entry->d_name);
    if (d)
        closedir(d);
    return *best && path_join(path, PATH_MAX, dir, best, &e) == Q_OK;
}

static bool is_tiktoken_name(const char *name)
{
    return ends_with(name, ".tiktoken");
}

/* "tekken.json", but also "tekken_240911.json". */
static bool is_tekken_name(const char *name)
{
    return ends_with(name, ".json") && strstr(name, "tekken");
}

/* "tokenizer.model.v3": a SentencePiece model as mistral-common knows it. */
static bool is_mistral_spm_name(const char *name)
{
    return strstr(name, MISTRAL_SPM) != NULL;
}

static bool has_file(char path[PATH_MAX], const char *dir, const char *name)
{
    struct q_err e;
    return path_join(path, PATH_MAX, dir, name, &e) == Q_OK && file_exists(path);
}

static bool find_file(char path[PATH_MAX], const char *dir)
{
    static const char *const names[] = {
#define TOKENIZER_FILE(name) name,
#define TOKENIZER_PART(name)
#define TOKENIZER_NAMED(part, end)
#include "common/tokenizer_files.def"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_file(path, dir, names[i]))
            return true;
    if (has_file(path, dir, "merges.txt") && has_file(path, dir, "vocab.json"))
        return true;
    return has_file(path, dir, "vocab.txt") || find_named(path, dir, is_tiktoken_name) ||
           find_named(path, dir, is_tekken_name) || find_named(path, dir, is_mistral_spm_name);
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

/* A file and where it lies. */
struct source {
    struct tok_str text;
    const char *dir, *name;
    const struct tok_config *config;
};

static enum q_code write_lists(struct tok_written *w, const struct source *f, struct q_err *e)
{
    struct mapping merges = MAPPING_INIT;
    char path[PATH_MAX];
    enum q_code rc;
    if (!(rc = path_join(path, sizeof path, f->dir, "merges.txt", e)) &&
        !(rc = mapping_open(&merges, path, e)))
        rc = merge_list_write(w, f->text, (struct tok_str){(const char *)merges.data, merges.size},
                              f->config, e);
    mapping_release(&merges);
    return rc;
}

/* As a tokenizer.json; what kind of file it is tells its name, else its first line. */
static enum q_code write_other(struct tok_written *w, const struct source *f, struct q_err *e)
{
    if (is_tekken_name(f->name))
        return tekken_write(w, f->text, e);
    if (strcmp(f->name, "vocab.json") == 0)
        return write_lists(w, f, e);
    if (strcmp(f->name, "vocab.txt") == 0)
        return word_list_write(w, f->text, f->config, e);
    if (is_tiktoken(f->text.s, f->text.n))
        return tiktoken_write(w, f->text, f->name, f->config, e);
    if (!is_mistral_spm_name(f->name))
        return spm_write(w, f->text.s, f->text.n, f->config, e);
    struct tok_config own; /* the model's own rules, whatever class a folder beside it names */
    tok_config_read(&own, NULL);
    own.has_bos = own.add_bos = true;
    return spm_write(w, f->text.s, f->text.n, &own, e);
}

static enum q_code open_other(struct tokenizer **out, const struct source *file,
                              struct tok_str config, struct q_err *e)
{
    struct source f = *file;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    struct tok_config c;
    json_t *root = NULL;
    enum q_code rc = config.n ? tok_json_parse(&root, config, CONFIG_NAME, e) : Q_OK;
    if (rc)
        return rc;
    tok_config_read(&c, root);
    f.config = &c;
    if (!(rc = write_other(&w, &f, e))) {
        bool mistral = is_tekken_name(f.name) || is_mistral_spm_name(f.name);
        struct tok_texts in = {{buf_str(&w.json), w.json.len}, config, &w.extra};
        if (mistral) /* the file says it all */
            in.config = (struct tok_str){"", 0};
        rc = tok_from_texts(out, &in, e);
    }
    json_decref(root);
    tok_written_release(&w);
    return rc;
}

/* The tokenizer of a GGUF file's metadata. */
static enum q_code open_gguf(struct tokenizer **out, const char *path, struct tok_str file,
                             struct q_err *e)
{
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    struct gguf g = GGUF_INIT;
    struct tok_config c;
    json_t *root = NULL;
    enum q_code rc = gguf_read(&g, file.s, file.n, path, e);
    if (!rc && !(rc = gguf_to_tokenizer_config(&root, &g, e))) {
        tok_config_read(&c, root);
        rc = gguf_tokens_write(&w, &g, &c, e);
    }
    if (!rc) {
        struct tok_texts in = {{buf_str(&w.json), w.json.len}, {"", 0}, &w.extra};
        rc = tok_from_texts(out, &in, e);
    }
    json_decref(root);
    tok_written_release(&w);
    gguf_release(&g);
    return rc;
}

static enum q_code open_file(struct tokenizer **out, const char *dir, const char *path,
                             struct tok_str config, struct q_err *e)
{
    struct mapping file = MAPPING_INIT;
    const char *slash = strrchr(path, '/');
    struct source f = {.dir = dir, .name = slash ? slash + 1 : path};
    enum q_code rc = mapping_open(&file, path, e);
    f.text = (struct tok_str){(const char *)file.data, file.size};
    bool other = is_tekken_name(f.name) || strcmp(f.name, "vocab.json") == 0;
    if (!rc && gguf_is(f.text.s, f.text.n)) {
        rc = open_gguf(out, path, f.text, e);
    } else if (!rc && ends_with(f.name, ".json") && !other) {
        struct tok_texts in = {f.text, config, NULL};
        rc = tok_from_texts(out, &in, e);
    } else if (!rc)
        rc = open_other(out, &f, config, e);
    mapping_release(&file);
    return rc;
}

/* No tokenizer, perhaps because a part of it is a link to nothing. */
static enum q_code refuse_folder(const char *dir, struct q_err *e)
{
    static const char *const names[] = {
#define TOKENIZER_FILE(name) name,
#define TOKENIZER_PART(name) name,
#define TOKENIZER_NAMED(part, end)
#include "common/tokenizer_files.def"
    };
    char path[PATH_MAX];
    enum q_code rc = Q_OK;
    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++)
        if (!(rc = path_join(path, sizeof path, dir, names[i], e)))
            rc = download_check_link(path, e);
    return rc ? rc
              : q_fail(e, Q_NOT_FOUND,
                       "%s: the folder has no tokenizer (tokenizer.json, tekken.json, "
                       "tokenizer.model, tiktoken ranks, vocab.json with merges.txt, or vocab.txt)",
                       dir);
}

/* The tokenizer's file and the folder it lies in; path: a folder or the file. */
static enum q_code locate(char found[PATH_MAX], char dir[PATH_MAX], const char *path,
                          struct q_err *e)
{
    bool is_dir = dir_exists(path);
    snprintf(dir, PATH_MAX, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!is_dir && slash)
        *slash = '\0';
    else if (!is_dir)
        snprintf(dir, PATH_MAX, ".");
    if (!is_dir && !file_exists(path) && !slash)
        return q_fail(e, Q_NOT_FOUND, "%s: no such folder or file", path);
    if (is_dir && !find_file(found, path))
        return refuse_folder(path, e);
    if (!is_dir && snprintf(found, PATH_MAX, "%s", path) >= PATH_MAX)
        return q_fail(e, Q_TOO_LARGE, "%s: the path is too long", path);
    return download_check_file(found, e);
}

enum q_code tokenizer_check(const char *path, struct q_err *e)
{
    /* added_tokens.json is not read: where it was not downloaded, other parts may be missing too */
    static const char *const names[] = {CONFIG_NAME, "added_tokens.json"};
    char found[PATH_MAX], dir[PATH_MAX], beside[PATH_MAX];
    enum q_code rc = locate(found, dir, path, e);
    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++)
        if (!(rc = path_join(beside, sizeof beside, dir, names[i], e)))
            rc = file_exists(beside) ? download_check_file(beside, e)
                                     : download_check_link(beside, e);
    return rc;
}

enum q_code tokenizer_open(struct tokenizer **out, const char *path, struct q_err *e)
{
    char dir[PATH_MAX];
    char found[PATH_MAX];
    char beside[PATH_MAX];
    struct buf config = BUF_INIT_MAX(CONFIG_MAX);
    enum q_code rc = tokenizer_check(path, e);
    if (rc || (rc = locate(found, dir, path, e)))
        return rc;
    if ((rc = path_join(beside, sizeof beside, dir, CONFIG_NAME, e)) == Q_OK && file_exists(beside))
        rc = file_read(&config, beside, CONFIG_MAX, e);
    if (!rc)
        rc = open_file(out, dir, found, (struct tok_str){buf_str(&config), config.len}, e);
    buf_release(&config);
    return rc ? q_wrap(e, "%s", path) : Q_OK;
}

enum q_code tokenizer_mistral_version(uint32_t *version, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    struct mapping file = MAPPING_INIT;
    *version = 0;
    if (!has_file(path, dir, "tekken.json") && !find_named(path, dir, is_tekken_name))
        return Q_OK;
    enum q_code rc = mapping_open(&file, path, e);
    if (!rc)
        rc = tekken_version(version, (struct tok_str){(const char *)file.data, file.size}, e);
    mapping_release(&file);
    return rc;
}

enum q_code tokenizer_apply_mode(char path[PATH_MAX], const char *mode, struct q_err *e)
{
    static const char *const same[] = {"auto", "hf", "slow"};
    char found[PATH_MAX];
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(mode, same[i]) == 0)
            return Q_OK;
    if (strcmp(mode, "mistral") != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "--tokenizer-mode: \"%.40s\" is not supported, expected auto, hf, slow or "
                      "mistral%s",
                      mode,
                      strcmp(mode, "custom")
                          ? ""
                          : " (custom requires Python code of vLLM, which is not executed)");
    if (!dir_exists(path))
        return Q_OK;
    if (!has_file(found, path, "tekken.json") && !find_named(found, path, is_tekken_name) &&
        !find_named(found, path, is_mistral_spm_name) && !has_file(found, path, "tokenizer.model"))
        return q_fail(e, Q_NOT_FOUND,
                      "%s: --tokenizer-mode mistral requires a tekken.json, tokenizer.model.vN or "
                      "tokenizer.model; auto accepts other files",
                      path);
    memcpy(path, found, sizeof found);
    return Q_OK;
}
