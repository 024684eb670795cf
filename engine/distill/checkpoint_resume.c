/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks try the newest state; where one of them finds it incomplete or changed, all try the one
 * before. What was passed over is renamed when a state was taken, so that it neither counts among
 * the last k nor is tried again; while none can be read, all keep their names, and a run does not
 * begin from its first step by itself. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

static enum q_code read_part(const struct tensor_set *set, const struct param *p,
                             const struct param_tensor *t, const char *prefix, float *to,
                             struct q_err *e)
{
    char name[ARCH_NAME_MAX + 4];
    snprintf(name, sizeof name, "%s.%s", prefix, t->name);
    const struct tensor *from = tensor_find(set, name);
    if (!from)
        return q_fail(e, Q_MISMATCH, "the state has no tensor %s", name);
    if (from->dtype != DT_F32 || from->n_dim != t->n_dim ||
        from->shape[0] != param_tensor_dim(t, 0) ||
        (t->n_dim == 2 && from->shape[1] != param_tensor_dim(t, 1)))
        return q_fail(e, Q_MISMATCH, "%s: %s is not of f32 and %u x %u", from->file, name,
                      param_tensor_dim(t, 0), param_tensor_dim(t, 1));
    struct param_walk walk = {.t = t};
    struct param_piece piece;
    to += p->at + (size_t)t->row * p->n_col;
    while (param_next_piece(&piece, &walk)) {
        const char *data = (const char *)from->data + piece.at * sizeof *to; /* not aligned */
        if (piece.step == 1)
            memcpy(to + piece.of, data, piece.n * sizeof *to);
        for (size_t i = 0; i < piece.n && piece.step > 1; i++)
            memcpy(to + piece.of + i * piece.step, data + i * sizeof *to, sizeof *to);
    }
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
    if ((rc = path_join(path, sizeof path, dir, STATE_TENSORS, e)) ||
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

/* ---- the newest that can be read ---- */

static enum q_code name_state(char out[PATH_MAX], const struct checkpoint *c, uint64_t step,
                              const char *suffix, struct q_err *e)
{
    if (snprintf(out, PATH_MAX, "%s/state-%llu%s", c->output, (unsigned long long)step, suffix) >=
        PATH_MAX)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, c->output);
    return Q_OK;
}

static enum q_code read_all(struct checkpoint *c, const struct checkpoint_run *run, uint64_t step,
                            double *numbers, struct q_err *e)
{
    char dir[PATH_MAX];
    const struct state_read s = {dir, step, run, numbers, checkpoint_is_first(c)};
    enum q_code rc = name_state(dir, c, step, "", e);
    if (!rc && !(rc = state_read(&s, e)))
        rc = read_arrays(c, dir, e);
    return checkpoint_agree(c->o.transport, rc, e);
}

/* Rank 0. */
static enum q_code set_aside(const struct checkpoint *c, uint64_t step, struct q_err *e)
{
    char from[PATH_MAX], to[PATH_MAX];
    enum q_code rc;
    if ((rc = name_state(from, c, step, "", e)) || (rc = name_state(to, c, step, STATE_BAD, e)) ||
        (rc = remove_all(to, e)))
        return rc;
    if (rename(from, to) != 0)
        return q_fail(e, Q_IO, "%s: cannot rename to %s: %s", from, to, strerror(errno));
    log_warning("%s is now %s; its files may be removed", from, to);
    return Q_OK;
}

struct candidates {  /* of rank 0; none on the others */
    uint64_t *steps; /* [n] ascending */
    size_t n, left;  /* those before `left` were not tried */
};

/* *step: 0: there is no state. */
static enum q_code find_state(struct checkpoint *c, const struct checkpoint_run *run,
                              struct candidates *all, uint64_t *step, double *numbers,
                              struct q_err *e)
{
    const struct transport_group ranks = transport_all(c->o.transport);
    struct q_err first = Q_ERR_INIT;
    for (all->left = all->n;; all->left -= all->left > 0) {
        uint64_t at = all->left ? all->steps[all->left - 1] : 0;
        enum q_code rc = transport_max(c->o.transport, &ranks, &at, e);
        if (rc)
            return rc;
        if (at == 0)
            break;
        rc = read_all(c, run, at, numbers, e);
        if (!rc)
            *step = at;
        if (rc != Q_CORRUPT && rc != Q_NOT_FOUND)
            return rc;
        if (!first.code)
            first = *e;
        if (checkpoint_is_first(c))
            log_warning("the state of step %llu cannot be read: %s", (unsigned long long)at,
                        e->message);
        q_err_reset(e);
    }
    if (!first.code)
        return Q_OK;
    return q_fail(e, Q_CORRUPT,
                  "%s has no state that can be read, so the run cannot go on; --output in another "
                  "folder begins again. The newest: %s",
                  c->output, first.message);
}

enum q_code checkpoint_resume(struct checkpoint *c, const struct checkpoint_run *run,
                              uint64_t *step, double *numbers, struct q_err *e)
{
    struct candidates all = {NULL, 0, 0};
    enum q_code rc = Q_OK;
    *step = 0;
    memset(numbers, 0, CHECKPOINT_NUMBERS * sizeof *numbers);
    if (checkpoint_is_first(c))
        rc = list_steps(&all.steps, &all.n, c->output, "state-", e);
    if ((rc = checkpoint_agree(c->o.transport, rc, e)) ||
        (rc = find_state(c, run, &all, step, numbers, e)))
        goto out;
    for (size_t i = all.left; *step && i < all.n && !rc; i++)
        rc = set_aside(c, all.steps[i], e);
    if (!rc && all.left < all.n && *step)
        log_warning("the run goes on from the state of step %llu", (unsigned long long)*step);
    rc = checkpoint_agree(c->o.transport, rc, e);
out:
    q_free(all.steps);
    return rc;
}
