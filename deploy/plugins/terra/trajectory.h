/* SPDX-License-Identifier: Apache-2.0 */
/* trajectory - what a rollout starts from: context frames and actions, as arrays of numpy.
 *
 *     context  [frame, patch] token ids, or [rollout, frame, patch]; a last frame that ends in
 *              -1 is generated from there on
 *     actions  [frame, action, number], or [rollout, frame, action, number]: of the context's
 *              frames, then of those that are generated; the last of these needs none
 *
 * An array without the dimension of rollouts counts for all of them. Threads: one. */
#ifndef TERRA_TRAJECTORY_H
#define TERRA_TRAJECTORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRAJECTORY_WHY_MAX 300u
#define ROLLOUTS_MAX       1024u
#define PLACEHOLDER        ((uint32_t)-3) /* stands in a prompt for an action */

struct trajectory_files {
    const char *context, *actions;
    uint32_t n_rollout, n_frame; /* 0: as many as the arrays have */
};
struct trajectory {
    uint32_t n_rollout;
    uint32_t n_patch, n_action; /* of a frame: tokens, actions */
    uint32_t action_dim;
    uint32_t n_context; /* frames that are given whole */
    uint32_t n_start;   /* tokens of the next one that are given */
    uint32_t n_frame;   /* to be generated, the started one among them */
    uint32_t n_id_max;  /* positions of the last frame's end */
    uint32_t *ids;      /* [n_rollout, n_id_max], n_id of each are set: the first prompt */
    uint32_t n_id;
    float *actions; /* [n_rollout, n_context + n_frame - 1, n_action, action_dim] */
};
#define TRAJECTORY_INIT \
    {                   \
        0               \
    }

/* false: why says which file, what is wrong with it, and what is accepted. */
bool trajectory_read(struct trajectory *t, const struct trajectory_files *files,
                     char why[TRAJECTORY_WHY_MAX]);
void trajectory_release(struct trajectory *t);

static inline uint32_t *trajectory_ids(const struct trajectory *t, uint32_t rollout)
{
    return t->ids + (size_t)rollout * t->n_id_max;
}
static inline const float *trajectory_actions(const struct trajectory *t, uint32_t rollout)
{
    const size_t n_frame = (size_t)t->n_context + t->n_frame - 1;
    return t->actions + rollout * n_frame * t->n_action * t->action_dim;
}

#endif
