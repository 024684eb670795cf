/* SPDX-License-Identifier: Apache-2.0 */
/* refs/main of a cached model contains the commit of "main" at the time of the download, so the
 * newest snapshot is not guessed from dates, and a start asks the hub for nothing that is there.
 * A snapshot without all of its weights, or without a tokenizer that the hub may have, is an
 * interrupted download: the program that downloads is started, and finishes it. */
#include "common/hub/hub.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/file.h"
#include "common/gguf/gguf_file.h"
#include "common/hub/cache.h"
#include "common/hub/folder.h"
#include "common/hub/gguf_choice.h"
#include "common/hub/hub_download.h"
#include "common/hub/weight_files.h"
#include "common/log.h"
#include "common/options.h"

#define TOKENIZER_ABSENT "tokenizer.json" /* in .no_exist: the repository has no tokenizer */

/* " --revision R --download-dir D", for the values that are set. A value with characters that are
 * special to a shell is quoted. */
static void download_options(struct buf *out, const char *revision)
{
    const struct {
        const char *flag, *value;
    } options[] = {
        {"--revision", strcmp(revision, "main") ? revision : NULL},
        {"--download-dir", getenv(CACHE_DOWNLOAD_DIR)},
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

/* The model is not in the cache, and it cannot be downloaded now. */
static enum q_code fail_not_cached(const struct hub_wanted *w, const char *repo, const char *why,
                                   struct q_err *e)
{
    struct buf options = BUF_INIT;
    enum q_code rc;
    download_options(&options, w->revision);
    if (dir_exists(repo))
        rc = q_fail(e, Q_NOT_FOUND,
                    "%s has no revision \"%s\" in %s, and %s; download it with `quire download "
                    "%s%s`",
                    w->id, w->revision, repo, why, w->id, buf_str(&options));
    else
        rc = q_fail(e, Q_NOT_FOUND,
                    "%s is neither a folder nor in the Hugging Face cache (%s), and %s; download "
                    "it with `quire download %s%s`, or give the path of a folder",
                    w->id, repo, why, w->id, buf_str(&options));
    buf_release(&options);
    return rc;
}

bool hub_is_tokenizer_file(const char *name)
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

static bool has_tokenizer(const char *dir)
{
    bool has = false;
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && !has && (entry = readdir(d));)
        has = hub_is_tokenizer_file(entry->d_name) &&
              strcmp(entry->d_name, "tokenizer_config.json") != 0;
    if (d)
        closedir(d);
    return has;
}

/* Is the model one of the folder's GGUF files? By what is asked for, or because there is nothing
 * else. */
static bool is_gguf_folder(const char *dir, const struct hub_wanted *w)
{
    const bool asked = *w->tag || w->format == WEIGHTS_GGUF;
    char config[PATH_MAX];
    if (asked || w->format != WEIGHTS_AUTO)
        return asked;
    const bool has_config =
        (!path_join(config, sizeof config, dir, "config.json", NULL) && file_exists(config)) ||
        weight_files_has_params(dir);
    return !w->any_file && (!has_config || !weight_files_any(dir)) && gguf_choice_has(dir);
}

/* A snapshot of the cache. */
struct snapshot {
    char repo[PATH_MAX], dir[PATH_MAX], hash[CACHE_HASH_MAX + 1];
};

/* out: where the snapshot is, or would be. Errors: Q_CORRUPT, Q_IO, Q_TOO_LARGE, Q_NOT_FOUND (no
 * cache). */
static enum q_code snapshot_find(struct snapshot *s, const struct hub_wanted *w, struct q_err *e)
{
    enum q_code rc = cache_repo_dir(s->repo, w->id, e);
    if (rc || (rc = cache_read_ref(s->hash, s->repo, w->revision, e)))
        return rc;
    return cache_join(s->dir, s->repo, "snapshots", s->hash, e);
}

/* Has the snapshot what is wanted but for a tokenizer, which not every use needs? */
static bool snapshot_has_model(const struct snapshot *s, const struct hub_wanted *w)
{
    char path[PATH_MAX];
    struct q_err ignored = Q_ERR_INIT;
    if (is_gguf_folder(s->dir, w))
        return !gguf_choose(path, s->dir, w->tag, &ignored) &&
               !weight_files_check(path, WEIGHTS_GGUF, &ignored);
    return !path_join(path, sizeof path, s->dir, "config.json", NULL) &&
           (file_exists(path) || weight_files_has_params(s->dir)) &&
           !(w->weights && weight_files_check(s->dir, w->format, &ignored) == Q_NOT_FOUND);
}

/* Has the snapshot all that is wanted, as far as names and headers tell? Files of a kind that is
 * not read are left to the loader, which names them. */
static bool snapshot_is_complete(const struct snapshot *s, const struct hub_wanted *w)
{
    char path[PATH_MAX], absent[PATH_MAX];
    if (!snapshot_has_model(s, w))
        return w->any_file && has_tokenizer(s->dir);
    return is_gguf_folder(s->dir, w) || has_tokenizer(s->dir) ||
           (!cache_join(path, s->repo, ".no_exist", s->hash, NULL) &&
            !path_join(absent, sizeof absent, path, TOKENIZER_ABSENT, NULL) && file_exists(absent));
}

static enum q_code use_gguf(char path[PATH_MAX], const char *dir, const struct hub_wanted *w,
                            struct q_err *e)
{
    if (!*w->tag && w->format == WEIGHTS_GGUF && !gguf_choice_has(dir))
        return q_fail(e, Q_INVALID, "--load-format gguf: %s has no GGUF file%s", dir,
                      weight_files_any(dir) ? "; it has weights of another format (safetensors, pt "
                                              "or mistral; auto finds them)"
                                            : "");
    if (!*w->tag && w->format == WEIGHTS_GGUF && weight_files_any(dir))
        return q_fail(e, Q_INVALID,
                      "--load-format gguf: %s has weights of other formats too; give the path of "
                      "the GGUF file, or its quantization behind a colon, as in MODEL:Q4_K_M",
                      dir);
    return gguf_choose(path, dir, w->tag, e);
}

/* The folder of a snapshot that will not become more complete. */
static enum q_code snapshot_use(char dir[PATH_MAX], const struct snapshot *s,
                                const struct hub_wanted *w, const char *why, struct q_err *e)
{
    char config[PATH_MAX];
    enum q_code rc = path_join(config, sizeof config, s->dir, "config.json", e);
    if (rc)
        return rc;
    if (!dir_exists(s->dir))
        return fail_not_cached(w, s->repo, why, e);
    if (is_gguf_folder(s->dir, w))
        return use_gguf(dir, s->dir, w, e);
    if (!w->any_file && !file_exists(config) && !weight_files_has_params(s->dir) &&
        folder_refuse(s->dir, e))
        return q_wrap(e, "%s", w->id);
    memcpy(dir, s->dir, strlen(s->dir) + 1);
    return Q_OK;
}

/* Without a network a snapshot is used that lacks a tokenizer alone. */
static enum q_code snapshot_load(const struct snapshot *s, const struct hub_wanted *w,
                                 struct q_err *e)
{
    enum q_code rc = hub_download(w, e);
    if (rc && *w->tag)
        return q_wrap(e, "%s:%s", w->id, w->tag);
    if (rc != Q_UNAVAILABLE || w->any_file || !snapshot_has_model(s, w))
        return rc;
    log_warning("%s: the cached folder %s has no tokenizer; %s", w->id, s->dir, e->message);
    q_err_reset(e);
    return Q_OK;
}

static enum q_code resolve_cached(char dir[PATH_MAX], const struct hub_wanted *w, struct q_err *e)
{
    static const char offline[] = "HF_HUB_OFFLINE forbids downloads";
    struct snapshot s;
    enum q_code rc = snapshot_find(&s, w, e);
    if (rc)
        return rc;
    if (snapshot_is_complete(&s, w))
        return snapshot_use(dir, &s, w, "", e);
    if (cache_is_offline())
        return snapshot_use(dir, &s, w, offline, e);
    if (!hub_can_download())
        return snapshot_use(dir, &s, w, "this program does not download", e);
    if ((rc = snapshot_load(&s, w, e)) || (rc = snapshot_find(&s, w, e)))
        return rc;
    return snapshot_use(dir, &s, w, "the download left nothing there", e);
}

static bool looks_like_path(const char *model)
{
    const char *slash = strchr(model, '/');
    return strchr("/.~", model[0]) || (slash && strchr(slash + 1, '/')) || (slash && !slash[1]);
}

static enum q_code resolve_folder(char dir[PATH_MAX], const char *model, const struct hub_wanted *w,
                                  struct q_err *e)
{
    char config[PATH_MAX];
    if (is_gguf_folder(model, w))
        return use_gguf(dir, model, w, e);
    enum q_code rc = path_join(config, sizeof config, model, "config.json", e);
    if (rc)
        return rc;
    if (!file_exists(config) && !weight_files_has_params(model))
        return folder_refuse(model, e);
    memcpy(dir, model, strlen(model) + 1); /* fits: the longer path did */
    return Q_OK;
}

/* A GGUF file, or the first of those that it is split into. */
static enum q_code resolve_file(char path[PATH_MAX], const char *model, struct q_err *e)
{
    uint32_t number = 1, count;
    if (!gguf_file_is_named(model))
        return folder_refuse_file(model, e);
    if (gguf_file_split(&number, &count, model) && number != 1)
        return gguf_file_split_path(path, model, 1, e);
    return snprintf(path, PATH_MAX, "%s", model) < PATH_MAX
               ? Q_OK
               : q_fail(e, Q_TOO_LARGE, "%s: the path is too long", model);
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
                      "%s is a URL; quire downloads models of the Hugging Face hub: use an id "
                      "(org/name), or download the files and use their folder",
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
                  colon ? ": tags after a colon name a GGUF file of a folder or of an id "
                          "org/name; set a revision with --revision"
                        : "");
}

/* "MODEL:TAG" of a folder or an id: base [PATH_MAX] is it without the tag. */
static bool split_tag(char base[PATH_MAX], const char **tag, const char *model)
{
    const char *found;
    const size_t n = gguf_choice_tag(&found, model);
    if (!n || n >= PATH_MAX)
        return false;
    snprintf(base, PATH_MAX, "%.*s", (int)n, model);
    if (!dir_exists(base) && !(strchr(base, '/') && !looks_like_path(base) && cache_is_id(base)))
        return false;
    *tag = found;
    return true;
}

static enum q_code resolve(char dir[PATH_MAX], const char *model, struct hub_wanted w,
                           struct q_err *e)
{
    struct stat st;
    w.tag = "";
    if (!*model)
        return q_fail(e, Q_INVALID,
                      "the model name is empty; expected a folder or an id such as org/name");
    char base[PATH_MAX];
    int why = stat(model, &st) == 0 ? 0 : errno;
    if (why && split_tag(base, &w.tag, model)) {
        model = base;
        why = stat(model, &st) == 0 ? 0 : errno;
    }
    if (!why)
        return S_ISDIR(st.st_mode) ? resolve_folder(dir, model, &w, e)
                                   : resolve_file(dir, model, e);
    if (looks_like_path(model) || !cache_is_id(model))
        return fail_no_folder(model, why, e);
    if (!w.revision || !*w.revision)
        w.revision = "main";
    if (!cache_is_revision(w.revision))
        return q_fail(e, Q_INVALID, "\"%s\" is not a revision (a branch, tag or commit hash)",
                      w.revision);
    w.id = model;
    return resolve_cached(dir, &w, e);
}

enum q_code hub_resolve(char dir[PATH_MAX], const char *model, const char *revision,
                        struct q_err *e)
{
    return hub_resolve_format(dir, model, revision, WEIGHTS_AUTO, e);
}

enum q_code hub_resolve_format(char dir[PATH_MAX], const char *model, const char *revision,
                               enum weight_format format, struct q_err *e)
{
    const struct hub_wanted w = {.revision = revision, .weights = true, .format = format};
    return resolve(dir, model, w, e);
}

enum q_code hub_resolve_files(char dir[PATH_MAX], const char *model, const char *revision,
                              struct q_err *e)
{
    return resolve(dir, model, (struct hub_wanted){.revision = revision}, e);
}

enum q_code hub_find_tokenizer(char path[PATH_MAX], const char *what, const char *revision,
                               struct q_err *e)
{
    if (!dir_exists(what) && !file_exists(what))
        return resolve(path, what, (struct hub_wanted){.revision = revision, .any_file = true}, e);
    if (snprintf(path, PATH_MAX, "%s", what) >= PATH_MAX)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes", PATH_MAX);
    return Q_OK;
}

/* Has the snapshot the files that adapter.h reads? */
static bool snapshot_has_adapter(const struct snapshot *s)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors",
                                        "adapter_model.bin"};
    bool has[sizeof names / sizeof *names];
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        has[i] = !path_join(path, sizeof path, s->dir, names[i], NULL) && file_exists(path);
    return has[0] && (has[1] || has[2]);
}

enum q_code hub_find_adapter(char dir[PATH_MAX], const char *what, bool download, struct q_err *e)
{
    const struct hub_wanted w = {.id = what, .revision = "main", .adapter = true, .tag = ""};
    struct snapshot s;
    struct stat st;
    enum q_code rc;
    if (stat(what, &st) == 0 || looks_like_path(what) || !strchr(what, '/') || !cache_is_id(what))
        return snprintf(dir, PATH_MAX, "%s", what) < PATH_MAX
                   ? Q_OK
                   : q_fail(e, Q_TOO_LARGE, "path longer than %d bytes", PATH_MAX);
    if ((rc = snapshot_find(&s, &w, e)))
        return rc;
    if (!snapshot_has_adapter(&s)) {
        if (!download || cache_is_offline() || !hub_can_download())
            return fail_not_cached(&w, s.repo,
                                   !download            ? "requests start no download"
                                   : cache_is_offline() ? "HF_HUB_OFFLINE forbids downloads"
                                                        : "this program does not download",
                                   e);
        if ((rc = hub_download(&w, e)) || (rc = snapshot_find(&s, &w, e)))
            return rc;
    }
    memcpy(dir, s.dir, strlen(s.dir) + 1);
    return Q_OK;
}

enum q_code hub_resolve_tokenizer(char path[PATH_MAX], const char *tokenizer, const char *revision,
                                  const char *model_dir, struct q_err *e)
{
    if (!*tokenizer)
        return hub_find_tokenizer(path, model_dir, NULL, e);
    return hub_find_tokenizer(path, tokenizer, revision, e) ? q_wrap(e, "--tokenizer") : Q_OK;
}

/* Download a model id that is not in the cache; Q_OK for everything else. */
static enum q_code prepare(const char *model, struct hub_wanted w, struct q_err *e)
{
    struct stat st;
    struct snapshot s;
    char base[PATH_MAX];
    w.tag = "";
    if (stat(model, &st) != 0 && split_tag(base, &w.tag, model))
        model = base;
    w.id = model;
    w.revision = w.revision && *w.revision ? w.revision : "main";
    if (!*model || stat(model, &st) == 0 || looks_like_path(model) || !cache_is_id(model) ||
        !cache_is_revision(w.revision) || cache_is_offline() || !hub_can_download() ||
        snapshot_find(&s, &w, NULL) || snapshot_is_complete(&s, &w))
        return Q_OK;
    return snapshot_load(&s, &w, e);
}

/* Of --load-format; other values, which are refused later, have auto's. */
static enum weight_format format_of(const char *load_format)
{
    for (enum weight_format f = WEIGHTS_AUTO; f <= WEIGHTS_GGUF; f++)
        if (!strcmp(load_format, weight_format_name(f)))
            return f;
    return WEIGHTS_AUTO;
}

enum q_code hub_prepare(const struct options *o, struct q_err *e)
{
    const struct hub_wanted model = {
        .revision = o->revision,
        .weights = strcmp(o->load_format, "dummy") != 0, /* which loads none */
        .format = format_of(o->load_format),
    };
    const struct hub_wanted tokenizer = {.revision = o->tokenizer_revision, .any_file = true};
    enum q_code rc = o->n_positional ? prepare(o->positional[0], model, e) : Q_OK;
    return rc ? rc : prepare(o->tokenizer, tokenizer, e);
}
