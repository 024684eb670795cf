/* SPDX-License-Identifier: Apache-2.0 */
/* --steps, --lr, --min-lr and --warmup-steps make one function of the step. They may change while a
 * run goes on where that function has the same values for all steps that are done: a constant rate
 * (--min-lr equal to --lr) is prolonged, a run in its warm-up may get another end. Everything else
 * would make a run whose first steps nobody has asked for. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "common/hub/hub_json.h"
#include "engine/distill/trainer_internal.h"

#define WHERE "the learning rates"

void trainer_rates_write(struct buf *out, const struct optimizer_options *p)
{
    buf_printf(out, "{\"steps\": %" PRIu64 ", \"lr\": %.17g, \"min_lr\": %.17g, ", p->n_step, p->lr,
               p->min_lr);
    buf_printf(out, "\"warmup_steps\": %" PRIu64 "}", p->warmup_steps);
}

static FALLIBLE read_rates(struct optimizer_options *p, const char *text, struct q_err *e)
{
    json_t *root = NULL;
    int64_t n_step = 0, warmup = 0;
    const struct hub_json_range counts = {0, 9e15}, rates = {0, 1e9};
    enum q_code rc = hub_json_parse(&root, text, strlen(text), WHERE, e);
    const struct hub_json_at at = {root, WHERE};
    if (!rc && !(rc = hub_json_int(&n_step, &at, "steps", counts, e)) &&
        !(rc = hub_json_int(&warmup, &at, "warmup_steps", counts, e)) &&
        !(rc = hub_json_number(&p->lr, &at, "lr", rates, e)))
        rc = hub_json_number(&p->min_lr, &at, "min_lr", rates, e);
    p->n_step = (uint64_t)n_step;
    p->warmup_steps = (uint64_t)warmup;
    json_decref(root);
    return rc;
}

/* The options that differ: "--steps 10 and is now asked for with --steps 20". */
static void say_difference(char out[Q_MESSAGE_MAX / 2], const struct optimizer_options *before,
                           const struct optimizer_options *now)
{
    const struct {
        const char *flag;
        double before, now;
    } all[] = {
        {"--steps", (double)before->n_step, (double)now->n_step},
        {"--lr", before->lr, now->lr},
        {"--min-lr", before->min_lr, now->min_lr},
        {"--warmup-steps", (double)before->warmup_steps, (double)now->warmup_steps},
    };
    char old[160] = "", new[160] = "";
    size_t n_old = 0, n_new = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].before == all[i].now)
            continue;
        n_old += (size_t)snprintf(old + n_old, sizeof old - n_old, "%s%s %.10g", n_old ? ", " : "",
                                  all[i].flag, all[i].before);
        n_new += (size_t)snprintf(new + n_new, sizeof new - n_new, "%s%s %.10g", n_new ? ", " : "",
                                  all[i].flag, all[i].now);
    }
    snprintf(out, Q_MESSAGE_MAX / 2, "the run was started with %s and is now asked for with %s",
             old, new);
}

enum q_code trainer_rates_judge(void *ctx, uint64_t step, const char *before, struct q_err *e)
{
    const struct optimizer_options *now = ctx;
    struct optimizer_options was = {.n_step = 0};
    char difference[Q_MESSAGE_MAX / 2];
    enum q_code rc = read_rates(&was, before, e);
    if (rc || (was.n_step == now->n_step && was.lr == now->lr && was.min_lr == now->min_lr &&
               was.warmup_steps == now->warmup_steps))
        return rc;
    say_difference(difference, &was, now);
    if (now->n_step < step)
        return q_fail(e, Q_MISMATCH,
                      "%s, but has done step %" PRIu64 " already; expected --steps of %" PRIu64
                      " or more",
                      difference, step, step);
    for (uint64_t i = 1; i <= step; i++) {
        const double a = optimizer_lr(&was, i), b = optimizer_lr(now, i);
        if (a != b)
            return q_fail(e, Q_MISMATCH,
                          "%s, which changes steps that are done: step %" PRIu64
                          " had the learning rate %.9g and would have had %.9g. A run can be "
                          "prolonged when its rate is constant behind the warm-up (--min-lr equal "
                          "to --lr); otherwise go on with the same, or begin a new run from a "
                          "step-N folder",
                          difference, i, a, b);
    }
    return Q_OK;
}
