/* SPDX-License-Identifier: Apache-2.0 */
/* A cached model is models--org--name/{refs/REVISION, snapshots/HASH/files}: refs/main contains the
 * hash of "main" at the time of the download, so the newest snapshot is not guessed from dates. Ids
 * and revisions come from users and become path components, so both are checked character by
 * character before they are used in a path. */
#include "common/hub/hub.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/file.h"
#include "common/hub/folder.h"
#include "common/hub/hub_json.h"

#define ID_MAX       96  /* characters of an id part and of the whole id, as on the hub */
#define REVISION_MAX 128 /* characters */
#define HASH_MAX     128 /* characters of a commit hash in refs/ */

#define DOWNLOAD_DIR "QUIRE_DOWNLOAD_DIR" /* --download-dir; options_main puts it there */

/* Letters, digits, '-', '_', '.'; no "..", no leading '.' or '-'. */
static bool is_name(const char *s, size_t n)
{
    if (n == 0 || n > ID_MAX || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return false;
        if (i && s[i] == '.' && s[i - 1] == '.')
            return false;
    }
    return true;
}

/* "name" or "org/name". */
static bool is_id(const char *model)
{
    const char *slash = strchr(model, '/');
    if (!slash)
        return is_name(model, strlen(model));
    return is_name(model, (size_t)(slash - model)) && is_name(slash + 1, strlen(slash + 1));
}

/* Names separated by single slashes: "main", "v1.0", "refs/pr/3". */
static bool is_revision(const char *revision)
{
    if (strlen(revision) > REVISION_MAX)
        return false;
    for (;;) {
        const char *slash = strchr(revision, '/');
        if (!is_name(revision, slash ? (size_t)(slash - revision) : strlen(revision)))
            return false;
        if (!slash)
            return true;
        revision = slash + 1;
    }
}

/* out: [PATH_MAX]. The cache folder by the rules of huggingface_hub. */
static enum q_code cache_dir(char *out, struct q_err *e)
{
    static const struct {
        const char *variable, *below;
    } places[] = {
        {DOWNLOAD_DIR, ""},
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "hub"},
        {"XDG_CACHE_HOME", "huggingface/hub"},
        {"HOME", ".cache/huggingface/hub"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        if (*places[i].below)
            return path_join(out, PATH_MAX, value, places[i].below, e);
        if (snprintf(out, PATH_MAX, "%s", value) >= PATH_MAX)
            return q_fail(e, Q_TOO_LARGE, "%s: path longer than %d bytes", places[i].variable,
                          PATH_MAX);
        return Q_OK;
    }
    return q_fail(e, Q_NOT_FOUND,
                  "no model cache: neither HF_HUB_CACHE nor HF_HOME nor HOME is set");
}

/* out: [PATH_MAX]. CACHE/models--org--name */
static enum q_code repo_dir(char *out, const char *id, struct q_err *e)
{
    char cache[PATH_MAX];
    char name[sizeof "models----" + 2 * ID_MAX + 2];
    enum q_code rc = cache_dir(cache, e);
    if (rc)
        return rc;
    const char *slash = strchr(id, '/');
    int n_org = slash ? (int)(slash - id) : 0;
    snprintf(name, sizeof name, "models--%.*s%s%s", n_org, id, slash ? "--" : "",
             slash ? slash + 1 : id);
    return path_join(out, PATH_MAX, cache, name, e);
}

/* out: [PATH_MAX]. repo/a/b */
static enum q_code join2(char *out, const char *repo, const char *a, const char *b, struct q_err *e)
{
    char dir[PATH_MAX];
    enum q_code rc = path_join(dir, sizeof dir, repo, a, e);
    return rc ? rc : path_join(out, PATH_MAX, dir, b, e);
}

/* The hash in refs/REVISION; the revision itself if there is no such file (it may be a hash). */
static enum q_code read_ref(char hash[HASH_MAX + 1], const char *repo, const char *revision,
                            struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc = join2(path, repo, "refs", revision, e);
    if (rc)
        return rc;
    if (!file_exists(path)) {
        snprintf(hash, HASH_MAX + 1, "%s", revision);
        return Q_OK;
    }
    if ((rc = file_read(&text, path, HASH_MAX, e)))
        goto out;
    while (text.len && isspace((unsigned char)text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (!is_name(buf_str(&text), text.len))
        rc = q_fail(e, Q_CORRUPT, "%s: does not contain a commit hash", path);
    else
        snprintf(hash, HASH_MAX + 1, "%s", buf_str(&text));
out:
    buf_release(&text);
    return rc;
}

/* The remedy for a missing model. */
#define DOWNLOAD "quire does not download models yet: download it with `hf download "

/* " --revision R --cache-dir D", for the values that are set. A value with characters that are
 * special to a shell is quoted. */
static void download_options(struct buf *out, const char *revision)
{
    const struct {
        const char *flag, *value;
    } options[] = {
        {"--revision", strcmp(revision, "main") ? revision : NULL},
        {"--cache-dir", getenv(DOWNLOAD_DIR)},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const char *value = options[i].value;
        if (!value || !*value)
            continue;
        bool plain = true;
        for (const char *p = value; *p; p++)
            plain = plain && (isalnum((unsigned char)*p) || strchr("/._-+:=@,", *p));
        buf_printf(out, plain ? " %s %s" : " %s '%s'", options[i].flag, value);
    }
}

static enum q_code fail_no_revision(const char *id, const char *revision, const char *repo,
                                    struct q_err *e)
{
    struct buf options = BUF_INIT;
    download_options(&options, revision);
    enum q_code rc = q_fail(e, Q_NOT_FOUND, "%s has no revision \"%s\" in %s; " DOWNLOAD "%s%s`",
                            id, revision, repo, id, buf_str(&options));
    buf_release(&options);
    return rc;
}

static enum q_code fail_not_cached(const char *id, const char *revision, const char *repo,
                                   struct q_err *e)
{
    struct buf options = BUF_INIT;
    const char *gguf =
        strcasestr(id, "gguf")
            ? " (its name indicates GGUF files, which quire does not read: use the original model)"
            : "";
    download_options(&options, revision);
    enum q_code rc = q_fail(e, Q_NOT_FOUND,
                            "%s is neither a folder nor in the Hugging Face cache (%s)%s; " DOWNLOAD
                            "%s%s` (pip install huggingface_hub), or give the path of a folder",
                            id, repo, gguf, id, buf_str(&options));
    buf_release(&options);
    return rc;
}

static enum q_code resolve_cached(char *dir, const char *id, const char *revision, struct q_err *e)
{
    char repo[PATH_MAX], hash[HASH_MAX + 1], path[PATH_MAX], config[PATH_MAX];
    enum q_code rc = repo_dir(repo, id, e);
    if (rc)
        return rc;
    if (!dir_exists(repo))
        return fail_not_cached(id, revision, repo, e);
    if ((rc = read_ref(hash, repo, revision, e)) ||
        (rc = join2(path, repo, "snapshots", hash, e)) ||
        (rc = path_join(config, sizeof config, path, "config.json", e)))
        return rc;
    if (!dir_exists(path))
        return fail_no_revision(id, revision, repo, e);
    if (!file_exists(config))
        return folder_refuse(path, e) ? q_wrap(e, "%s", id) : Q_OK;
    memcpy(dir, path, strlen(path) + 1);
    return Q_OK;
}

static bool looks_like_path(const char *model)
{
    const char *slash = strchr(model, '/');
    return strchr("/.~", model[0]) || (slash && strchr(slash + 1, '/')) || (slash && !slash[1]);
}

static enum q_code resolve_folder(char dir[PATH_MAX], const char *model, struct q_err *e)
{
    char config[PATH_MAX];
    enum q_code rc = path_join(config, sizeof config, model, "config.json", e);
    if (rc)
        return rc;
    if (!file_exists(config))
        return folder_refuse(model, e);
    memcpy(dir, model, strlen(model) + 1); /* fits: the longer path did */
    return Q_OK;
}

/* The error for a MODEL that is neither a folder nor a file, and looks like a path or is not a
 * valid id. */
static enum q_code fail_no_folder(const char *model, int why, struct q_err *e)
{
    static const char site[] = "://huggingface.co/";
    const char *url = strstr(model, site), *colon = strchr(model, ':');
    const char *hf = strncmp(model, "hf://", 5) ? NULL : model + 5;
    if (hf && !strncmp(hf, "models/", 7))
        hf += 7;
    if (url || hf) {
        const char *id = hf ? hf : url + sizeof site - 1, *slash = strchr(id, '/');
        const size_t n = slash ? (size_t)(slash - id) + 1 + strcspn(slash + 1, "/?#") : strlen(id);
        return q_fail(e, Q_INVALID, "%s is a URL; use the model id: %.*s", model, (int)n, id);
    }
    if (strstr(model, "://"))
        return q_fail(e, Q_INVALID,
                      "%s is a URL, and quire does not download models: download the files and use "
                      "their folder, or the id of a model in the Hugging Face cache (org/name)",
                      model);
    if (why != ENOENT && why != ENOTDIR)
        return q_fail(e, Q_IO, "%s: cannot read the folder: %s", model, strerror(why));
    if (model[0] == '~')
        return q_fail(e, Q_NOT_FOUND,
                      "%s: no such folder (the shell expands ~ to the home directory only at the "
                      "beginning of an unquoted word)",
                      model);
    if (looks_like_path(model))
        return q_fail(e, Q_NOT_FOUND, "%s: no such folder", model);
    return q_fail(e, Q_INVALID, "\"%s\" is neither a folder nor a model id (org/name)%s", model,
                  colon ? ": tags after a colon (of GGUF files or of another server's model "
                          "library) are not supported; set a revision with --revision"
                        : "");
}

enum q_code hub_resolve(char dir[PATH_MAX], const char *model, const char *revision,
                        struct q_err *e)
{
    struct stat st;
    if (!*model)
        return q_fail(e, Q_INVALID,
                      "the model name is empty; expected a folder or an id such as org/name");
    int why = stat(model, &st) == 0 ? 0 : errno;
    if (!why)
        return S_ISDIR(st.st_mode) ? resolve_folder(dir, model, e) : folder_refuse_file(model, e);
    if (looks_like_path(model) || !is_id(model))
        return fail_no_folder(model, why, e);
    if (!revision || !*revision)
        revision = "main";
    if (!is_revision(revision))
        return q_fail(e, Q_INVALID, "\"%s\" is not a revision (a branch, tag or commit hash)",
                      revision);
    return resolve_cached(dir, model, revision, e);
}

enum q_code hub_find_tokenizer(char path[PATH_MAX], const char *what, const char *revision,
                               struct q_err *e)
{
    if (!dir_exists(what) && !file_exists(what))
        return hub_resolve(path, what, revision, e);
    if (snprintf(path, PATH_MAX, "%s", what) >= PATH_MAX)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes", PATH_MAX);
    return Q_OK;
}

enum q_code hub_resolve_tokenizer(char path[PATH_MAX], const char *tokenizer, const char *revision,
                                  const char *model_dir, struct q_err *e)
{
    if (!*tokenizer)
        return hub_find_tokenizer(path, model_dir, NULL, e);
    return hub_find_tokenizer(path, tokenizer, revision, e) ? q_wrap(e, "--tokenizer") : Q_OK;
}

/* Add one part to the digest: name, length and bytes, so that different sets of parts give
 * different digests. */
static bool digest_part(EVP_MD_CTX *ctx, const char *name, const void *data, size_t n)
{
    uint64_t n64 = n;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n64 >> (8 * i));
    return EVP_DigestUpdate(ctx, name, strlen(name) + 1) &&
           EVP_DigestUpdate(ctx, length, sizeof length) &&
           (n == 0 || EVP_DigestUpdate(ctx, data, n));
}

/* config.json with sorted keys and without white space, so that equal values give equal texts. */
static enum q_code config_text(char **out, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    enum q_code rc = path_join(path, sizeof path, dir, "config.json", e);
    if (rc || (rc = hub_json_load(&root, path, e)))
        return rc;
    *out = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(root);
    return *out ? Q_OK : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
}

/* Can a file of this name be the tokenizer, or contain its settings? */
static bool is_tokenizer_file(const char *name)
{
    static const char *const names[] = {
#define TOKENIZER_FILE(name) name,
#define TOKENIZER_PART(name) name,
#define TOKENIZER_NAMED(part, end)
#include "common/tokenizer_files.def"
    };
    static const char *const parts[][2] = {
#define TOKENIZER_FILE(name)
#define TOKENIZER_PART(name)
#define TOKENIZER_NAMED(part, end) {part, end},
#include "common/tokenizer_files.def"
    };
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n_end = strlen(parts[i][1]);
        if (strstr(name, parts[i][0]) && n >= n_end && strcmp(name + n - n_end, parts[i][1]) == 0)
            return true;
    }
    return false;
}

/* Replace `name` by the next greater name of a tokenizer file in the folder; false: there is
 * none. */
static bool next_file(char name[NAME_MAX + 1], const char *dir)
{
    char best[NAME_MAX + 1] = "";
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (is_tokenizer_file(entry->d_name) && strcmp(entry->d_name, name) > 0 &&
            (!*best || strcmp(entry->d_name, best) < 0))
            snprintf(best, sizeof best, "%s", entry->d_name);
    if (d)
        closedir(d);
    snprintf(name, NAME_MAX + 1, "%s", best);
    return *best;
}

/* The folder's tokenizer files, by name. */
static enum q_code digest_tokenizer(EVP_MD_CTX *ctx, const char *dir, struct q_err *e)
{
    char name[NAME_MAX + 1] = "";
    enum q_code rc = Q_OK;
    while (!rc && next_file(name, dir)) {
        char path[PATH_MAX];
        struct mapping file = MAPPING_INIT;
        if (!(rc = path_join(path, sizeof path, dir, name, e)) && file_exists(path) &&
            !(rc = mapping_open(&file, path, e)) && !digest_part(ctx, name, file.data, file.size))
            rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", path);
        mapping_release(&file);
    }
    return rc;
}

enum q_code hub_digest(unsigned char digest[32], const char *dir, struct q_err *e)
{
    char *config = NULL;
    EVP_MD_CTX *ctx = NULL;
    enum q_code rc = config_text(&config, dir, e);
    if (rc)
        goto out;
    ctx = EVP_MD_CTX_new();
    if (!ctx || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ||
        !digest_part(ctx, "config", config, strlen(config)))
        rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", dir);
    else
        rc = digest_tokenizer(ctx, dir, e);
    if (!rc && !EVP_DigestFinal_ex(ctx, digest, NULL))
        rc = q_fail(e, Q_NO_MEMORY, "SHA-256 over %s failed", dir);
out:
    EVP_MD_CTX_free(ctx);
    if (config) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(config);
    }
    return rc;
}
