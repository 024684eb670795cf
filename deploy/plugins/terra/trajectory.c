/* SPDX-License-Identifier: Apache-2.0 */
#include "trajectory.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "npy.h"

#define FRAMES_MAX    65536u
#define NUMBERS_MAX   4096u      /* patches or actions of a frame, numbers of an action */
#define POSITIONS_MAX (1u << 24) /* of a rollout */

struct array {
    const char *path;
    struct npy npy;
    const size_t *dims; /* behind the one of rollouts */
    size_t n_rollout;   /* 1: counts for all of them */
    size_t n_each;      /* numbers of one */
};

/* n_dim: dimensions of one rollout's. */
static bool read_array(struct array *a, const char *path, uint32_t n_dim, const char *shape,
                       char why[TRAJECTORY_WHY_MAX])
{
    char reason[NPY_WHY_MAX];
    a->path = path;
    if (!npy_read(&a->npy, path, reason)) {
        snprintf(why, TRAJECTORY_WHY_MAX, "%s: %s", path, reason);
        return false;
    }
    const bool is_many = a->npy.n_dim == n_dim + 1;
    a->dims = a->npy.dims + is_many;
    a->n_rollout = is_many ? a->npy.dims[0] : 1;
    bool fits = (is_many || a->npy.n_dim == n_dim) && a->n_rollout > 0 &&
                a->n_rollout <= ROLLOUTS_MAX && a->npy.n > 0 && a->dims[0] <= FRAMES_MAX;
    for (uint32_t i = 1; i < n_dim && fits; i++)
        fits = a->dims[i] <= NUMBERS_MAX;
    if (!fits) {
        snprintf(why, TRAJECTORY_WHY_MAX,
                 "%s: it has %u dimensions or sizes out of range, expected %s, with a dimension of "
                 "up to %u rollouts before them or without",
                 path, a->npy.n_dim, shape, ROLLOUTS_MAX);
        return false;
    }
    a->n_each = a->npy.n / a->n_rollout;
    return true;
}

/* ---- how much there is ---- */

/* Tokens that are given: all, or those before the -1 in the last frame. */
static bool count_given(const struct array *a, size_t *n, char why[TRAJECTORY_WHY_MAX])
{
    int64_t id = 0;
    *n = a->n_each;
    while (*n > 0 && npy_integer(&a->npy, *n - 1, &id) && id == -1)
        --*n;
    if (*n > 0 && a->n_each - *n < a->dims[1])
        return true;
    snprintf(why, TRAJECTORY_WHY_MAX,
             "%s: -1, a token to be generated, fills a whole frame; leave that frame out", a->path);
    return false;
}

static bool count_rollouts(struct trajectory *t, uint32_t asked, const struct array *context,
                           const struct array *actions, char why[TRAJECTORY_WHY_MAX])
{
    size_t n = asked ? asked : context->n_rollout;
    n = !asked && n == 1 ? actions->n_rollout : n;
    t->n_rollout = (uint32_t)n;
    if ((context->n_rollout == 1 || context->n_rollout == n) &&
        (actions->n_rollout == 1 || actions->n_rollout == n))
        return true;
    snprintf(why, TRAJECTORY_WHY_MAX,
             "%zu rollouts, but %s has %zu and %s has %zu; expected the same number, or 1", n,
             context->path, context->n_rollout, actions->path, actions->n_rollout);
    return false;
}

static bool count_frames(struct trajectory *t, uint32_t asked, const struct array *context,
                         const struct array *actions, char why[TRAJECTORY_WHY_MAX])
{
    const size_t n_frame = actions->dims[0];
    t->n_frame = asked;
    if (!asked && n_frame >= t->n_context)
        t->n_frame = (uint32_t)n_frame - t->n_context + 1;
    if (t->n_frame == 0 || t->n_frame > FRAMES_MAX ||
        n_frame + 1 < (size_t)t->n_context + t->n_frame) {
        snprintf(why, TRAJECTORY_WHY_MAX,
                 "%s: it has actions of %zu frames; %u frames after %u of context in %s take %zu",
                 actions->path, n_frame, t->n_frame ? t->n_frame : 1, t->n_context, context->path,
                 (size_t)t->n_context + (t->n_frame ? t->n_frame : 1) - 1);
        return false;
    }
    const size_t n_id = ((size_t)t->n_context + t->n_frame) * (t->n_patch + t->n_action);
    if (n_id > POSITIONS_MAX) {
        snprintf(why, TRAJECTORY_WHY_MAX, "%u frames of %u positions are more than %u positions",
                 t->n_context + t->n_frame, t->n_patch + t->n_action, POSITIONS_MAX);
        return false;
    }
    t->n_id_max = (uint32_t)n_id;
    return true;
}

/* ---- numbers ---- */

static bool copy_ids(const struct trajectory *t, const struct array *context, uint32_t rollout,
                     size_t n_given, char why[TRAJECTORY_WHY_MAX])
{
    const size_t first = context->n_rollout == 1 ? 0 : rollout * context->n_each;
    uint32_t *out = trajectory_ids(t, rollout);
    for (size_t i = 0; i < n_given; i++) {
        int64_t id = -1;
        if (!npy_integer(&context->npy, first + i, &id) || id < 0 || id > INT32_MAX) {
            snprintf(why, TRAJECTORY_WHY_MAX,
                     "%s: number %zu is %g, expected token ids from 0 (-1 at the end of the last "
                     "frame, as many in all rollouts)",
                     context->path, first + i, npy_number(&context->npy, first + i));
            return false;
        }
        *out++ = (uint32_t)id;
        if ((i + 1) % t->n_patch == 0)
            for (uint32_t k = 0; k < t->n_action; k++)
                *out++ = PLACEHOLDER;
    }
    for (size_t i = n_given; i < context->n_each; i++) {
        int64_t id = 0;
        if (!npy_integer(&context->npy, first + i, &id) || id != -1) {
            snprintf(why, TRAJECTORY_WHY_MAX,
                     "%s: rollout %u has more tokens in its last frame than others", context->path,
                     rollout);
            return false;
        }
    }
    return true;
}

static void copy_actions(const struct trajectory *t, const struct array *actions, uint32_t rollout)
{
    const size_t n = ((size_t)t->n_context + t->n_frame - 1) * t->n_action * t->action_dim;
    const size_t first = actions->n_rollout == 1 ? 0 : rollout * actions->n_each;
    for (size_t i = 0; i < n; i++)
        t->actions[rollout * n + i] = (float)npy_number(&actions->npy, first + i);
}

static bool fill(struct trajectory *t, const struct array *context, const struct array *actions,
                 size_t n_given, char why[TRAJECTORY_WHY_MAX])
{
    const size_t n_action = ((size_t)t->n_context + t->n_frame) * t->n_action * t->action_dim;
    t->ids = calloc((size_t)t->n_rollout * t->n_id_max, sizeof *t->ids);
    t->actions = calloc(t->n_rollout * n_action, sizeof *t->actions);
    t->n_id = t->n_context * (t->n_patch + t->n_action) + t->n_start;
    if (!t->ids || !t->actions) {
        snprintf(why, TRAJECTORY_WHY_MAX, "not enough memory for %u rollouts", t->n_rollout);
        return false;
    }
    for (uint32_t r = 0; r < t->n_rollout; r++) {
        if (!copy_ids(t, context, r, n_given, why))
            return false;
        copy_actions(t, actions, r);
    }
    return true;
}

bool trajectory_read(struct trajectory *t, const struct trajectory_files *files,
                     char why[TRAJECTORY_WHY_MAX])
{
    struct array context = {.npy = NPY_INIT}, actions = {.npy = NPY_INIT};
    size_t n_given = 0;
    *t = (struct trajectory)TRAJECTORY_INIT;
    bool is_good = read_array(&context, files->context, 2, "[frames, patches of a frame]", why) &&
                   read_array(&actions, files->actions, 3,
                              "[frames, actions of a frame, numbers of an action]", why) &&
                   count_given(&context, &n_given, why);
    if (is_good) {
        t->n_patch = (uint32_t)context.dims[1];
        t->n_action = (uint32_t)actions.dims[1];
        t->action_dim = (uint32_t)actions.dims[2];
        t->n_context = (uint32_t)(n_given / t->n_patch);
        t->n_start = (uint32_t)(n_given % t->n_patch);
        is_good = count_rollouts(t, files->n_rollout, &context, &actions, why) &&
                  count_frames(t, files->n_frame, &context, &actions, why) &&
                  fill(t, &context, &actions, n_given, why);
    }
    npy_release(&context.npy);
    npy_release(&actions.npy);
    if (!is_good)
        trajectory_release(t);
    return is_good;
}

void trajectory_release(struct trajectory *t)
{
    free(t->ids);
    free(t->actions);
    *t = (struct trajectory)TRAJECTORY_INIT;
}
