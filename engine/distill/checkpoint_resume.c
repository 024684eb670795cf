/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

static enum q_code check_run(const json_t *found, const char *run, const char *path,
                             struct q_err *e)
{
    json_t *want = json_loads(run, 0, NULL);
    const char *key;
    json_t *v;
    enum q_code rc = Q_OK;
    if (!json_is_object(want)) {
        json_decref(want);
        return q_fail(e, Q_INTERNAL, "the options of the run are no JSON object");
    }
    if (json_object_update_missing(want, (json_t *)(uintptr_t)found) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    json_t *now = rc ? NULL : json_loads(run, 0, NULL);
    json_object_foreach (want, key, v) {
        const json_t *before = json_object_get(found, key), *after = json_object_get(now, key);
        if (rc || (before && after && json_equal(before, after)))
            continue;
        char *x = before ? json_dumps(before, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char *y = after ? json_dumps(after, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        rc = q_fail(e, Q_MISMATCH,
                    "%s: the run was started with %s = %s, and is now asked for with %s; go on "
                    "with the same, or begin a new run in another folder",
                    path, key, x ? x : "nothing", y ? y : "nothing");
        release(x);
        release(y);
    }
    json_decref(now);
    json_decref(want);
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

static enum q_code read_state(const char *dir, uint64_t step, const char *run, double *numbers,
                              struct q_err *e)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    int64_t version = 0, said = -1;
    enum q_code rc;
    if ((rc = path_join(path, sizeof path, dir, "state.json", e)) ||
        (rc = hub_json_load(&root, path, e)))
        return rc;
    const struct hub_json_at at = {root, path};
    const struct hub_json_range any = {0, 9e15};
    const json_t *before = json_object_get(root, "run");
    if (!(rc = hub_json_int(&version, &at, "version", any, e)) &&
        !(rc = hub_json_int(&said, &at, "step", any, e))) {
        if (version != STATE_VERSION)
            rc = q_fail(e, Q_CORRUPT, "%s: version is %lld, expected %d", path, (long long)version,
                        STATE_VERSION);
        else if (said < 0 || (uint64_t)said != step)
            rc = q_fail(e, Q_CORRUPT, "%s: step is %lld, but the folder is of step %llu", path,
                        (long long)said, (unsigned long long)step);
        else if (!json_is_object(before))
            rc = q_fail(e, Q_CORRUPT, "%s: run is %s, expected an object", path,
                        hub_json_kind(before));
        else if (!(rc = check_run(before, run, path, e)))
            rc = read_numbers(numbers, json_object_get(root, "numbers"), path, e);
    }
    json_decref(root);
    return rc;
}

static enum q_code read_part(const struct tensor_set *set, const struct param *p,
                             const struct param_tensor *t, const char *prefix, float *to,
                             struct q_err *e)
{
    char name[ARCH_NAME_MAX + 4];
    snprintf(name, sizeof name, "%s.%s", prefix, t->name);
    const struct tensor *from = tensor_find(set, name);
    if (!from)
        return q_fail(e, Q_MISMATCH, "the state has no tensor %s", name);
    if (from->dtype != DT_F32 || from->n_dim != t->n_dim || from->shape[0] != t->all_rows ||
        (t->n_dim == 2 && from->shape[1] != t->all_cols))
        return q_fail(e, Q_MISMATCH, "%s: %s is not of f32 and %u x %u", from->file, name,
                      t->all_rows, t->all_cols);
    const char *data = from->data; /* without alignment */
    to += p->at + (size_t)t->row * p->n_col;
    for (uint32_t r = 0; r < t->n_row; r++)
        memcpy(to + (size_t)r * p->n_col,
               data + (((size_t)t->row_at + r) * t->all_cols + t->col_at) * sizeof(float),
               t->n_col * sizeof(float));
    tensor_drop(from->data, from->n_bytes);
    return Q_OK;
}

/* Copies of other ranks' parameters as well: they have the names of what they are copies of. */
static enum q_code read_arrays(struct checkpoint *c, const char *dir, struct q_err *e)
{
    const struct params *p = c->params;
    const struct {
        const char *prefix;
        float *to;
    } arrays[] = {{"w", p->w}, {"m", p->m}, {"v", p->v}};
    char path[PATH_MAX];
    struct tensor_set *set = NULL;
    enum q_code rc;
    if ((rc = path_join(path, sizeof path, dir, "state.safetensors", e)) ||
        (rc = tensor_set_open_file(&set, path, e)))
        return rc;
    if (tensor_count(set) != c->table.n * 3)
        rc = q_fail(e, Q_MISMATCH, "%s has %u tensors, the student needs %u", path,
                    tensor_count(set), c->table.n * 3);
    for (uint32_t a = 0; a < sizeof arrays / sizeof *arrays && !rc; a++)
        for (uint32_t i = 0; i < p->n && !rc; i++)
            for (uint32_t k = 0; k < p->all[i].n_tensor && !rc; k++)
                rc = read_part(set, &p->all[i], &p->all[i].tensors[k], arrays[a].prefix,
                               arrays[a].to, e);
    tensor_set_free(set);
    return rc;
}

enum q_code checkpoint_resume(struct checkpoint *c, uint64_t *step, const char *run,
                              double *numbers, struct q_err *e)
{
    struct transport *t = c->o.transport;
    const struct transport_group all = transport_all(t);
    uint64_t *steps = NULL, newest = 0;
    size_t n = 0;
    char dir[PATH_MAX];
    enum q_code rc = checkpoint_is_first(c) ? list_steps(&steps, &n, c->output, "state-", e) : Q_OK;
    if (n)
        newest = steps[n - 1];
    q_free(steps);
    memset(numbers, 0, CHECKPOINT_NUMBERS * sizeof *numbers);
    *step = 0;
    if ((rc = checkpoint_agree(t, rc, e)) || (rc = transport_max(t, &all, &newest, e)) ||
        newest == 0)
        return rc;
    if (snprintf(dir, sizeof dir, "%s/state-%llu", c->output, (unsigned long long)newest) >=
        (int)sizeof dir)
        rc = q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, c->output);
    if (!rc && !(rc = read_state(dir, newest, run, numbers, e)))
        rc = read_arrays(c, dir, e);
    if (rc == Q_CORRUPT || rc == Q_NOT_FOUND) {
        const struct q_err why = *e;
        rc = q_fail(e, Q_CORRUPT,
                    "the newest state cannot be read (without its folder the run goes on from the "
                    "one before): %s",
                    why.message);
    }
    if ((rc = checkpoint_agree(t, rc, e)))
        return rc;
    *step = newest;
    return Q_OK;
}
