/* SPDX-License-Identifier: Apache-2.0 */
/* state.json: what the run depends on, numbers, and checksums: of the file of tensors, and of
 * state.json itself up to its last member. The first rank sums the file when all have written, and
 * before anything is taken from it: no division of tensors into ranks has a part in it.
 *     {"version": 2, "step": …, "run": {…}, "numbers": […],
 *     "tensors": {"bytes": …, "sum": "…"},
 *     "sum": "0123456789abcdef"}
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"
#include "engine/distill/file_sum.h"

#define STATE_VERSION 2
#define SUM_FORMAT    "%016" PRIx64
#define TAIL          ",\n\"sum\": \"" SUM_FORMAT "\"}\n"
#define TAIL_BYTES    (sizeof ",\n\"sum\": \"0123456789abcdef\"}\n" - 1)

struct tensors { /* the file of tensors */
    uint64_t n_bytes, sum;
};

static enum q_code sum_tensors(struct tensors *out, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    struct stat st;
    struct file_open f = {-1, path};
    enum q_code rc = path_join(path, sizeof path, dir, STATE_TENSORS, e);
    if (rc)
        return rc;
    if ((f.fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return q_fail(e, errno == ENOENT ? Q_NOT_FOUND : Q_IO, "%s: cannot open: %s", path,
                      strerror(errno));
    if (fstat(f.fd, &st) != 0) {
        rc = q_fail(e, Q_IO, "%s: cannot read: %s", path, strerror(errno));
    } else {
        out->n_bytes = (uint64_t)st.st_size;
        rc = file_sum(&out->sum, &f, 0, out->n_bytes, e);
    }
    close(f.fd);
    return rc;
}

/* ---- writing ---- */

enum q_code state_write(const struct state_text *s, struct q_err *e)
{
    struct buf b = BUF_INIT;
    char path[PATH_MAX];
    struct tensors tensors = {0, 0};
    enum q_code rc;
    if ((rc = sum_tensors(&tensors, s->dir, e)))
        return rc;
    buf_printf(&b, "{\"version\": %d, \"step\": %" PRIu64 ",\n\"run\": %s,\n\"numbers\": [",
               STATE_VERSION, s->step, s->run->text);
    for (uint32_t i = 0; i < CHECKPOINT_NUMBERS; i++)
        buf_printf(&b, i ? ", %.17e" : "%.17e", s->numbers[i]);
    buf_printf(&b, "],\n\"tensors\": {\"bytes\": %" PRIu64 ", \"sum\": \"" SUM_FORMAT "\"}",
               tensors.n_bytes, tensors.sum);
    if (!(rc = buf_check(&b, "the state of a run", e))) {
        buf_printf(&b, TAIL, (uint64_t)XXH3_64bits(b.data, b.len));
        rc = buf_check(&b, "the state of a run", e);
    }
    if (!rc && !(rc = path_join(path, sizeof path, s->dir, STATE_TEXT, e)) &&
        !(rc = file_write(path, b.data, b.len, 0644, e)))
        rc = sync_path(s->dir, e);
    buf_release(&b);
    return rc;
}

/* ---- checksums ---- */

static enum q_code check_text(const struct buf *text, const char *path, struct q_err *e)
{
    char tail[TAIL_BYTES + 1] = "";
    const size_t n = text->len < TAIL_BYTES ? 0 : text->len - TAIL_BYTES;
    if (n)
        snprintf(tail, sizeof tail, TAIL, (uint64_t)XXH3_64bits(text->data, n));
    if (n && memcmp(tail, text->data + n, TAIL_BYTES) == 0)
        return Q_OK;
    return q_fail(e, Q_CORRUPT,
                  "%s: its checksum is wrong or missing: it has changed since it was written, or "
                  "was written by another version of quire",
                  path);
}

static enum q_code check_tensors(const struct state_read *s, const json_t *root, const char *path,
                                 struct q_err *e)
{
    const json_t *said = json_object_get(root, "tensors");
    const json_int_t n_bytes = json_integer_value(json_object_get(said, "bytes"));
    const char *sum = json_string_value(json_object_get(said, "sum"));
    struct tensors found = {0, 0};
    char text[17];
    enum q_code rc = sum ? sum_tensors(&found, s->dir, e)
                         : q_fail(e, Q_CORRUPT, "%s: tensors has no checksum", path);
    if (rc)
        return rc;
    snprintf(text, sizeof text, SUM_FORMAT, found.sum);
    if (n_bytes < 0 || (uint64_t)n_bytes != found.n_bytes)
        return q_fail(e, Q_CORRUPT,
                      "%s/" STATE_TENSORS ": it has %" PRIu64 " bytes, %lld were written", s->dir,
                      found.n_bytes, (long long)n_bytes);
    return strcmp(sum, text) == 0
               ? Q_OK
               : q_fail(e, Q_CORRUPT,
                        "%s/" STATE_TENSORS ": its checksum is %s, %s was written: some of its "
                        "bytes have changed",
                        s->dir, text, sum);
}

/* ---- reading ---- */

static void free_text(char *text)
{
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
}

static enum q_code differs(const char *path, const char *key, const json_t *before,
                           const json_t *after, struct q_err *e)
{
    char *x = before ? json_dumps(before, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *y = after ? json_dumps(after, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const enum q_code rc =
        q_fail(e, Q_MISMATCH,
               "%s: the run was started with %s = %s, and is now asked for with %s; go on "
               "with the same, or begin a new run in another folder",
               path, key, x ? x : "nothing", y ? y : "nothing");
    free_text(x);
    free_text(y);
    return rc;
}

static enum q_code judge(const struct state_read *s, const json_t *before, const char *path,
                         struct q_err *e)
{
    char *text = before ? json_dumps(before, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum q_code rc;
    if (!before)
        rc = q_fail(e, Q_CORRUPT, "%s: run has no %s", path, s->run->judged);
    else
        rc = text ? s->run->judge(s->run->ctx, s->step, text, e)
                  : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    free_text(text);
    return rc == Q_MISMATCH ? q_wrap(e, "%s", path) : rc;
}

static enum q_code check_run(const struct state_read *s, const json_t *found, const char *path,
                             struct q_err *e)
{
    json_t *now = json_read_string(s->run->text, 0, NULL), *all = NULL;
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    if (!json_is_object(now))
        rc = q_fail(e, Q_INTERNAL, "the options of the run are no JSON object");
    else if (!(all = json_copy(now)) ||
             json_object_update_missing(all, (json_t *)(uintptr_t)found) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    json_object_foreach (all, key, v) {
        const json_t *before = json_object_get(found, key), *after = json_object_get(now, key);
        if (rc || (s->run->judged && strcmp(key, s->run->judged) == 0))
            continue;
        if (!before || !after || !json_equal(before, after))
            rc = differs(path, key, before, after, e);
    }
    if (!rc && s->run->judged)
        rc = judge(s, json_object_get(found, s->run->judged), path, e);
    json_decref(all);
    json_decref(now);
    return rc;
}

static enum q_code read_numbers(double *numbers, const json_t *list, const char *path,
                                struct q_err *e)
{
    if (json_array_size(list) != CHECKPOINT_NUMBERS)
        return q_fail(e, Q_CORRUPT, "%s: numbers: expected a list of %u", path, CHECKPOINT_NUMBERS);
    for (uint32_t i = 0; i < CHECKPOINT_NUMBERS; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_number(v))
            return q_fail(e, Q_CORRUPT, "%s: numbers[%u] is %s, expected a number", path, i,
                          hub_json_kind(v));
        numbers[i] = json_number_value(v);
    }
    return Q_OK;
}

static enum q_code read_members(const struct state_read *s, const json_t *root, const char *path,
                                struct q_err *e)
{
    const struct hub_json_at at = {root, path};
    const struct hub_json_range any = {0, 9e15};
    const json_t *before = json_object_get(root, "run");
    int64_t version = 0, said = -1;
    enum q_code rc;
    if ((rc = hub_json_int(&version, &at, "version", any, e)) ||
        (rc = hub_json_int(&said, &at, "step", any, e)))
        return rc;
    if (version != STATE_VERSION)
        return q_fail(e, Q_CORRUPT, "%s: version is %lld, expected %d", path, (long long)version,
                      STATE_VERSION);
    if (said < 0 || (uint64_t)said != s->step)
        return q_fail(e, Q_CORRUPT, "%s: step is %lld, but the folder is of step %" PRIu64, path,
                      (long long)said, s->step);
    if (!json_is_object(before))
        return q_fail(e, Q_CORRUPT, "%s: run is %s, expected an object", path,
                      hub_json_kind(before));
    if ((rc = check_run(s, before, path, e)) ||
        (rc = read_numbers(s->numbers, json_object_get(root, "numbers"), path, e)))
        return rc;
    return s->check_tensors ? check_tensors(s, root, path, e) : Q_OK;
}

enum q_code state_read(const struct state_read *s, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    json_t *root = NULL;
    enum q_code rc;
    if (!(rc = path_join(path, sizeof path, s->dir, STATE_TEXT, e)) &&
        !(rc = file_read(&text, path, HUB_JSON_FILE_MAX, e)) &&
        !(rc = check_text(&text, path, e)) &&
        !(rc = hub_json_parse(&root, buf_str(&text), text.len, path, e)))
        rc = read_members(s, root, path, e);
    json_decref(root);
    buf_release(&text);
    return rc;
}
