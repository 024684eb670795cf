/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/cache.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/buf.h"
#include "common/file.h"

#define ID_MAX        96  /* characters of an id part, as on the hub */
#define REVISION_MAX  128 /* characters */
#define COMPONENT_MAX 255 /* bytes: NAME_MAX */

/* Letters, digits, '-', '_', '.'; no "..", no leading '.' or '-'. */
static bool is_name(const char *s, size_t n, size_t max)
{
    if (n == 0 || n > max || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return false;
        if (i && s[i] == '.' && s[i - 1] == '.')
            return false;
    }
    return true;
}

bool cache_is_id(const char *model)
{
    const char *slash = strchr(model, '/');
    if (!slash)
        return is_name(model, strlen(model), ID_MAX);
    return is_name(model, (size_t)(slash - model), ID_MAX) &&
           is_name(slash + 1, strlen(slash + 1), ID_MAX);
}

bool cache_is_revision(const char *revision)
{
    if (strlen(revision) > REVISION_MAX)
        return false;
    for (;;) {
        const char *slash = strchr(revision, '/');
        if (!is_name(revision, slash ? (size_t)(slash - revision) : strlen(revision), REVISION_MAX))
            return false;
        if (!slash)
            return true;
        revision = slash + 1;
    }
}

bool cache_is_hash(const char *hash)
{
    return is_name(hash, strlen(hash), CACHE_HASH_MAX);
}

bool cache_is_file(const char *name)
{
    if (strlen(name) > CACHE_FILE_MAX)
        return false;
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '\\')
            return false;
    for (;;) {
        const size_t n = strcspn(name, "/");
        if (n == 0 || n > COMPONENT_MAX || (n <= 2 && !strncmp(name, "..", n)))
            return false;
        if (!name[n])
            return true;
        name += n + 1;
    }
}

bool cache_is_offline(void)
{
    static const char *const variables[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    static const char *const yes[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        for (size_t k = 0; value && k < sizeof yes / sizeof *yes; k++)
            if (!strcasecmp(value, yes[k]))
                return true;
    }
    return false;
}

/* The value of the variable that "$NAME" or "${NAME}" at text names, *n: its length; NULL: none. */
static const char *variable_at(const char *text, size_t *n)
{
    char name[128];
    const bool braces = text[1] == '{';
    const char *begin = text + 1 + braces;
    const size_t n_name = strspn(begin, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                        "0123456789_");
    if (!n_name || n_name >= sizeof name || (braces && begin[n_name] != '}'))
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)n_name, begin);
    *n = n_name + 1 + 2 * (size_t)braces;
    return getenv(name);
}

enum q_code cache_expand(char *out, const char *variable, const char *value, struct q_err *e)
{
    struct buf text = BUF_INIT_MAX(PATH_MAX - 1);
    const char *home = getenv("HOME"), *found;
    size_t n;
    if (value[0] == '~' && (!value[1] || value[1] == '/') && home && *home) {
        buf_add_str(&text, home);
        value++;
    }
    for (; *value; value += n) {
        found = *value == '$' ? variable_at(value, &n) : NULL;
        n = found ? n : 1;
        buf_add(&text, found ? found : value, found ? strlen(found) : 1);
    }
    const bool fits = !text.failed;
    if (fits)
        memcpy(out, buf_str(&text), text.len + 1);
    buf_release(&text);
    return fits ? Q_OK
                : q_fail(e, Q_TOO_LARGE, "%s: path longer than %d bytes", variable, PATH_MAX);
}

struct place {
    const char *variable, *below;
};

/* out: [PATH_MAX]. The value of the first variable that is set, and what is below it. */
static enum q_code first_place(char *out, const struct place *places, size_t n, struct q_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        char base[PATH_MAX];
        const enum q_code rc = cache_expand(base, places[i].variable, value, e);
        if (rc || *places[i].below)
            return rc ? rc : path_join(out, PATH_MAX, base, places[i].below, e);
        memcpy(out, base, strlen(base) + 1);
        return Q_OK;
    }
    return q_fail(e, Q_NOT_FOUND,
                  "no model cache: neither HF_HUB_CACHE nor HF_HOME nor HOME is set");
}

enum q_code cache_dir(char *out, struct q_err *e)
{
    static const struct place places[] = {
        {CACHE_DOWNLOAD_DIR, ""},
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "hub"},
        {"XDG_CACHE_HOME", "huggingface/hub"},
        {"HOME", ".cache/huggingface/hub"},
    };
    return first_place(out, places, sizeof places / sizeof *places, e);
}

enum q_code cache_home(char *out, struct q_err *e)
{
    static const struct place places[] = {
        {"HF_HOME", ""},
        {"XDG_CACHE_HOME", "huggingface"},
        {"HOME", ".cache/huggingface"},
    };
    return first_place(out, places, sizeof places / sizeof *places, e);
}

enum q_code cache_repo_dir(char *out, const char *id, struct q_err *e)
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

enum q_code cache_join(char *out, const char *dir, const char *a, const char *b, struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc = path_join(path, sizeof path, dir, a, e);
    return rc ? rc : path_join(out, PATH_MAX, path, b, e);
}

enum q_code cache_read_ref(char hash[CACHE_HASH_MAX + 1], const char *repo, const char *revision,
                           struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc = cache_join(path, repo, "refs", revision, e);
    if (rc)
        return rc;
    if (!file_exists(path)) {
        snprintf(hash, CACHE_HASH_MAX + 1, "%s", revision);
        return Q_OK;
    }
    if ((rc = file_read(&text, path, CACHE_HASH_MAX, e)))
        goto out;
    while (text.len && isspace((unsigned char)text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (!text.len) /* its write was interrupted: as if it were absent */
        snprintf(hash, CACHE_HASH_MAX + 1, "%s", revision);
    else if (strlen(buf_str(&text)) != text.len || !cache_is_hash(buf_str(&text)))
        rc = q_fail(e, Q_CORRUPT, "%s: does not contain a commit hash", path);
    else
        snprintf(hash, CACHE_HASH_MAX + 1, "%s", buf_str(&text));
out:
    buf_release(&text);
    return rc;
}

bool cache_id_of(char *out, size_t size, const char *name)
{
    static const char start[] = "models--";
    if (strncmp(name, start, sizeof start - 1) != 0)
        return false;
    const char *org = name + sizeof start - 1, *dashes = strstr(org, "--");
    int n = dashes ? snprintf(out, size, "%.*s/%s", (int)(dashes - org), org, dashes + 2)
                   : snprintf(out, size, "%s", org);
    return n > 0 && (size_t)n < size && cache_is_id(out);
}
