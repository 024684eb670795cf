/* SPDX-License-Identifier: Apache-2.0 */
#include "trajectory.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "quire.h"

#define FRAMES_MAX    65536u
#define NUMBERS_MAX   4096u      /* patches or actions of a frame, numbers of an action */
#define POSITIONS_MAX (1u << 24) /* of a rollout */

struct array {
    const char *path;
    struct quire_input file;
    const uint32_t *dims; /* behind the one of rollouts */
    size_t n_rollout;     /* 1: counts for all of them */
    size_t n_each;        /* numbers of one */
};

static double number_at(const struct array *a, size_t i)
{
    switch (a->file.number) {
    case QUIRE_FLOAT32:
        return (double)((const float *)a->file.data)[i];
    case QUIRE_UINT8:
        return ((const uint8_t *)a->file.data)[i];
    case QUIRE_INT32:
        return ((const int32_t *)a->file.data)[i];
    default:
        return ((const double *)a->file.data)[i];
    }
}

/* false: it is none. */
static bool integer_at(const struct array *a, size_t i, int64_t *out)
{
    const double x = number_at(a, i);
    if (!(fabs(x) < 9e15) || x != floor(x))
        return false;
    *out = (int64_t)x;
    return true;
}

/* n_dim: dimensions of one rollout's. */
static bool read_array(struct array *a, const char *path, uint32_t n_dim, const char *shape,
                       char why[TRAJECTORY_WHY_MAX])
{
    struct quire_error error;
    size_t n = 1;
    a->path = path;
    if (quire_input_read(&a->file, path, NULL, &error)) {
        snprintf(why, TRAJECTORY_WHY_MAX, "%s: %.200s", path, error.message);
        return false;
    }
    for (uint32_t i = 0; i < a->file.n_dim; i++)
        n *= a->file.dims[i]; /* its bytes were counted */
    const bool is_many = a->file.n_dim == n_dim + 1;
    a->dims = a->file.dims + is_many;
    a->n_rollout = is_many ? a->file.dims[0] : 1;
    bool fits = (is_many || a->file.n_dim == n_dim) && a->n_rollout > 0 &&
                a->n_rollout <= ROLLOUTS_MAX && n > 0 && a->dims[0] <= FRAMES_MAX;
    for (uint32_t i = 1; i < n_dim && fits; i++)
        fits = a->dims[i] <= NUMBERS_MAX;
    if (!fits) {
        snprintf(why, TRAJECTORY_WHY_MAX,
                 "%s: it has %u dimensions or sizes out of range, expected %s, with a dimension of "
                 "up to %u rollouts before them or without",
                 path, a->file.n_dim, shape, ROLLOUTS_MAX);
        return false;
    }
    a->n_each = n / a->n_rollout;
    return true;
}

/* ---- how much there is ---- */

/* Tokens that are given: all, or those before the -1 in the last frame. */
static bool count_given(const struct array *a, size_t *n, char why[TRAJECTORY_WHY_MAX])
{
    int64_t id = 0;
    *n = a->n_each;
    while (*n > 0 && integer_at(a, *n - 1, &id) && id == -1)
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
        if (!integer_at(context, first + i, &id) || id < 0 || id > INT32_MAX) {
            snprintf(why, TRAJECTORY_WHY_MAX,
                     "%s: number %zu is %g, expected token ids from 0 (-1 at the end of the last "
                     "frame, as many in all rollouts)",
                     context->path, first + i, number_at(context, first + i));
            return false;
        }
        *out++ = (uint32_t)id;
        if ((i + 1) % t->n_patch == 0)
            for (uint32_t k = 0; k < t->n_action; k++)
                *out++ = PLACEHOLDER;
    }
    for (size_t i = n_given; i < context->n_each; i++) {
        int64_t id = 0;
        if (!integer_at(context, first + i, &id) || id != -1) {
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
        t->actions[rollout * n + i] = (float)number_at(actions, first + i);
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
    struct array context = {.path = NULL}, actions = {.path = NULL};
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
    quire_free(context.file.data);
    quire_free(actions.file.data);
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
