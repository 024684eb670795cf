/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/listing.h"
#include <stdlib.h>
#include <string.h>
#include "common/hub/hub_json.h"
#include "common/mem.h"
#include "common/printable.h"

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum q_code fail_name(const char *what, const char *name, struct q_err *e)
{
    struct buf shown = BUF_INIT;
    printable_line(name, strnlen(name, 200), &shown);
    enum q_code rc = q_fail(e, Q_CORRUPT,
                            "%s: the file name \"%s\" is no path inside of a folder; nothing is "
                            "downloaded",
                            what, buf_str(&shown));
    buf_release(&shown);
    return rc;
}

static enum q_code read_names(struct listing *l, const json_t *files, const char *what,
                              struct q_err *e)
{
    const size_t n = json_array_size(files);
    if (n > LISTING_FILES_MAX)
        return q_fail(e, Q_TOO_LARGE, "%s: lists %zu files, at most %u are accepted", what, n,
                      LISTING_FILES_MAX);
    l->names = q_calloc(n + 1, sizeof *l->names);
    if (!l->names)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for %zu names", what, n);
    for (size_t i = 0; i < n; i++) {
        const char *name =
            json_string_value(json_object_get(json_array_get(files, i), "rfilename"));
        if (!name)
            return q_fail(e, Q_CORRUPT, "%s: siblings[%zu] has no rfilename", what, i);
        if (!cache_is_file(name))
            return fail_name(what, name, e);
        l->names[i] = name;
    }
    qsort(l->names, n, sizeof *l->names, by_bytes);
    for (size_t i = 0; i < n; i++)
        if (!l->n || strcmp(l->names[l->n - 1], l->names[i]) != 0)
            l->names[l->n++] = l->names[i];
    return Q_OK;
}

enum q_code listing_parse(struct listing *out, const char *text, size_t n, const char *what,
                          struct q_err *e)
{
    struct listing l = LISTING_INIT;
    enum q_code rc = hub_json_parse(&l.root, text, n, what, e);
    if (rc)
        return rc;
    const char *sha = json_string_value(json_object_get(l.root, "sha"));
    const json_t *files = json_object_get(l.root, "siblings");
    if (!sha || !cache_is_hash(sha))
        rc = q_fail(e, Q_CORRUPT, "%s: \"sha\" is %s, expected a commit hash", what,
                    sha ? "no hash" : "missing");
    else if (!json_is_array(files))
        rc = q_fail(e, Q_CORRUPT, "%s: \"siblings\" is %s, expected a list of files", what,
                    files ? hub_json_kind(files) : "missing");
    else
        rc = read_names(&l, files, what, e);
    if (rc) {
        listing_release(&l);
        return rc;
    }
    memcpy(l.commit, sha, strlen(sha) + 1);
    *out = l;
    return Q_OK;
}

bool listing_has(const struct listing *l, const char *name)
{
    return l->n && bsearch(&name, l->names, l->n, sizeof *l->names, by_bytes);
}

void listing_release(struct listing *l)
{
    json_decref(l->root);
    q_free(l->names);
    *l = (struct listing)LISTING_INIT;
}
