/* SPDX-License-Identifier: Apache-2.0 */
/* terra-rollout - videos' tokens from context frames and actions, over the C library.
 *
 * One request generates one frame. The next request's prompt is that prompt, the frame and the
 * placeholders of its actions; nearly all of it is in the prefix cache, so a frame costs as many
 * decode steps as it has tokens. The context of a rollout is never copied: its ids and actions lie
 * in two arrays that each request borrows a longer beginning of.
 *
 *     ids      frame 0 … -3 -3 -3 | frame 1 … -3 -3 -3 | frame 2, being generated
 *     actions  a a a                a a a                a a a (not yet passed)
 *
 * All rollouts run at once: an event of any request wakes the one thread here, which takes what
 * there is and starts the next frame of those that are done. */
#include <errno.h>
#include <quire.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "npy.h"
#include "options.h"
#include "picture.h"
#include "trajectory.h"

#define EXIT_FAILED 1
#define EXIT_START  3 /* the engine could not be opened */

struct rollout {
    struct quire_request *request; /* NULL: done, or waits */
    bool waits;                    /* the engine's queue was full */
    uint32_t number, frame;        /* of those that are generated */
    uint32_t n_id, n_end;          /* ids so far, and when the frame is whole */
};
struct frame_time { /* seconds since the start */
    double submitted, first, end;
    uint32_t n_prompt, n_token;
};
struct job {
    const struct rollout_options *o;
    struct trajectory t;
    struct quire_engine *engine;
    struct rollout *rollouts;   /* [n_rollout] */
    struct quire_input *inputs; /* [n_rollout, actions of the longest prompt] */
    double *token_s;          /* [n_rollout, n_frame, n_patch] of each token; NULL: not measured */
    struct frame_time *times; /* [n_rollout, n_frame] */
    uint32_t n_running;
    uint64_t n_token, n_token_all;
    sem_t events;
    struct timespec start;
    double shown;             /* when progress was */
    struct quire_stats first; /* when the first frame was whole: all contexts are prefilled */
};

static double seconds(const struct job *j)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - j->start.tv_sec) + 1e-9 * (double)(now.tv_nsec - j->start.tv_nsec);
}

/* ---- a frame ---- */

/* Actions of the longest prompt: the last frame's are never asked for. */
static uint32_t n_input_max(const struct trajectory *t)
{
    return (t->n_context + t->n_frame - 1) * t->n_action;
}

static bool fail(const char *doing, const struct quire_error *error)
{
    fprintf(stderr, "terra-rollout: %s: %s\n", doing, error->message);
    return false;
}

static bool fail_frame(const struct rollout *r, const char *what, const struct quire_error *error)
{
    fprintf(stderr, "terra-rollout: rollout %u, frame %u: %s: %s\n", r->number, r->frame, what,
            error->message);
    return false;
}

static struct frame_time *time_of(const struct job *j, const struct rollout *r)
{
    return j->times + (size_t)r->number * j->t.n_frame + r->frame;
}

static void wake(void *ctx) /* on a thread of the engine */
{
    sem_post(ctx);
}

/* The request of r's next frame. */
static bool start_frame(struct job *j, struct rollout *r)
{
    const struct trajectory *t = &j->t;
    const uint32_t per_frame = t->n_patch + t->n_action, n_left = t->n_patch - r->n_id % per_frame;
    const bool is_last = r->frame + 1 == t->n_frame;
    struct frame_time *time = time_of(j, r);
    struct quire_params p;
    struct quire_error error;
    quire_params_init(&p, sizeof p);
    p.ids = trajectory_ids(t, r->number);
    p.n_ids = r->n_id;
    p.inputs = j->inputs + (size_t)r->number * n_input_max(t);
    p.n_input = r->n_id / per_frame * t->n_action;
    p.max_tokens = is_last && j->o->tokens && j->o->tokens < n_left ? j->o->tokens : n_left;
    p.ignore_eos = true; /* a frame has as many tokens as it has patches */
    p.temperature = (float)j->o->temperature;
    p.seed = j->o->seed + r->number;
    p.notify = wake;
    p.notify_ctx = &j->events;
    r->n_end = r->n_id + p.max_tokens;
    *time = (struct frame_time){.submitted = seconds(j), .n_prompt = r->n_id};
    const enum quire_code rc = quire_submit(&r->request, j->engine, &p, &error);
    r->waits = rc == QUIRE_BUSY; /* until a request of another rollout ends */
    return rc == QUIRE_OK || r->waits || fail_frame(r, "the request is refused", &error);
}

/* The frame is whole: its actions' placeholders come behind it, and the next frame begins. */
static bool end_frame(struct job *j, struct rollout *r)
{
    quire_request_free(r->request);
    r->request = NULL;
    time_of(j, r)->end = seconds(j);
    if (j->first.size == 0) {
        j->first.size = sizeof j->first;
        quire_engine_stats(j->engine, &j->first);
    }
    if (++r->frame == j->t.n_frame) {
        j->n_running--;
        return true;
    }
    for (uint32_t i = 0; i < j->t.n_action; i++)
        trajectory_ids(&j->t, r->number)[r->n_id++] = PLACEHOLDER;
    return start_frame(j, r);
}

/* What there is of r's request. */
static bool take_events(struct job *j, struct rollout *r)
{
    struct quire_event event;
    struct quire_error error;
    while (r->request) {
        const enum quire_code rc = quire_next(r->request, &event, 0, &error);
        if (rc == QUIRE_TIMEOUT)
            return true;
        if (rc)
            return fail_frame(r, "the request failed", &error);
        if (event.kind == QUIRE_TOKEN && r->n_id < r->n_end) {
            struct frame_time *time = time_of(j, r);
            const double now = seconds(j);
            time->first = time->n_token ? time->first : now;
            if (j->token_s)
                j->token_s[(time - j->times) * j->t.n_patch + time->n_token] = now;
            time->n_token++;
            trajectory_ids(&j->t, r->number)[r->n_id++] = event.token;
            j->n_token++;
        }
        if (event.kind != QUIRE_FINISH)
            continue;
        if (r->n_id != r->n_end) {
            fprintf(stderr, "terra-rollout: rollout %u, frame %u: ended after %u tokens of %u\n",
                    r->number, r->frame, time_of(j, r)->n_token,
                    time_of(j, r)->n_token + r->n_end - r->n_id);
            return false;
        }
        if (!end_frame(j, r))
            return false;
    }
    return true;
}

/* ---- all rollouts ---- */

static void show_progress(struct job *j, bool last)
{
    const double now = seconds(j), done = (double)j->n_token / (double)j->n_token_all;
    if (!j->o->progress || (!last && now - j->shown < 0.5) || j->n_token == 0)
        return;
    j->shown = now;
    const double frames = done * j->t.n_frame * j->t.n_rollout;
    fprintf(stderr, "\r%.1f of %u frames, %.3f frames/s, %.0f s left   %s", frames,
            j->t.n_frame * j->t.n_rollout, frames / now, now / done - now, last ? "\n" : "");
}

static bool run(struct job *j)
{
    for (uint32_t i = 0; i < j->t.n_rollout; i++)
        if (!start_frame(j, &j->rollouts[i]))
            return false;
    while (j->n_running > 0) {
        while (sem_wait(&j->events) != 0 && errno == EINTR)
            ;
        while (sem_trywait(&j->events) == 0)
            ; /* one look at all requests for all events so far */
        for (uint32_t i = 0; i < j->t.n_rollout; i++)
            if (!take_events(j, &j->rollouts[i]) ||
                (j->rollouts[i].waits && !start_frame(j, &j->rollouts[i])))
                return false;
        show_progress(j, j->n_running == 0);
    }
    return true;
}

/* ---- results ---- */

/* The new frames, [n_rollout, n_frame, n_patch]. */
static int32_t *new_frames(const struct trajectory *t)
{
    const uint32_t per_frame = t->n_patch + t->n_action;
    int32_t *out = calloc((size_t)t->n_rollout * t->n_frame * t->n_patch, sizeof *out), *to = out;
    for (uint32_t r = 0; out && r < t->n_rollout; r++)
        for (uint32_t f = 0; f < t->n_frame; f++)
            for (uint32_t i = 0; i < t->n_patch; i++)
                *to++ = (int32_t)trajectory_ids(t, r)[(t->n_context + f) * per_frame + i];
    return out;
}

static bool refuse_file(const char *path, const char *why)
{
    fprintf(stderr, "terra-rollout: %s: %s\n", path, why);
    return false;
}

/* Before the work: what could not be written after it. */
static bool check_results(const struct job *j)
{
    char why[OUTPUT_WHY_MAX];
    const char *picture = j->o->picture;
    if (j->o->tokens)
        return true;
    if (!output_check(j->o->out, why))
        return refuse_file(j->o->out, why);
    if (picture && !output_check(picture, why))
        return refuse_file(picture, why);
    if (picture && !picture_columns(j->t.n_patch, j->o->columns)) {
        fprintf(stderr, "terra-rollout: --columns %u does not divide %u, the patches of a frame\n",
                j->o->columns, j->t.n_patch);
        return false;
    }
    return true;
}

static bool write_results(const struct job *j)
{
    const size_t dims[] = {j->t.n_rollout, j->t.n_frame, j->t.n_patch};
    const uint32_t columns = picture_columns(j->t.n_patch, j->o->columns);
    char why[OUTPUT_WHY_MAX] = "not enough memory";
    int32_t *tokens = new_frames(&j->t);
    bool is_good = tokens && npy_write(j->o->out, tokens, dims, 3, why);
    if (!is_good)
        refuse_file(j->o->out, why);
    if (is_good && j->o->picture && !picture_write(j->o->picture, tokens, dims, columns, why))
        is_good = refuse_file(j->o->picture, why);
    else if (is_good && j->o->picture)
        fprintf(stderr, "terra-rollout: %s is by a stand-in decoder: each token is a colour\n",
                j->o->picture);
    free(tokens);
    return is_good;
}

/* Prompt tokens that were computed and not found in the prefix cache: of the contexts, and of later
 * frames. Of the latter the last token of the frame before and its actions are new; the rest was in
 * a block of the cache that was not full. */
struct prefill {
    unsigned long long contexts, later, again;
    bool is_known; /* all contexts were prefilled when the first frame was whole */
};

static struct prefill count_prefill(const struct job *j, const struct quire_stats *end)
{
    const uint64_t n_later = (uint64_t)j->t.n_rollout * (j->t.n_frame - 1);
    struct prefill p = {.contexts = j->first.prefix_queries - j->first.prefix_hits};
    p.later = end->prefix_queries - end->prefix_hits - p.contexts;
    p.again = p.later - n_later * (j->t.n_action + 1);
    p.is_known = j->first.prefix_queries == (uint64_t)j->t.n_rollout * j->t.n_id;
    return p;
}

static void print_text(const struct job *j, const struct quire_stats *end, double all_s)
{
    const uint32_t n_frame = j->t.n_frame * j->t.n_rollout, n_later = n_frame - j->t.n_rollout;
    const struct prefill p = count_prefill(j, end);
    fprintf(stderr, "%u frames in %.1f s, %.3f frames/s\n", n_frame, all_s, n_frame / all_s);
    if (p.is_known)
        fprintf(stderr, "prefill: %llu tokens of context", p.contexts);
    if (p.is_known && n_later)
        fprintf(stderr, "; then %.1f a frame, %.1f of them again", (double)p.later / n_later,
                (double)p.again / n_later);
    fprintf(stderr, "%sdecode: %llu tokens in %llu steps, the first of each frame by its prefill\n",
            p.is_known ? "\n" : "", (unsigned long long)j->n_token, (unsigned long long)end->steps);
}

static void print_token_times(const struct job *j, uint32_t i_frame)
{
    const double *s = j->token_s + (size_t)i_frame * j->t.n_patch;
    for (uint32_t i = 0; j->token_s && i < j->times[i_frame].n_token; i++)
        printf("%s%.6f", i ? ", " : ", \"token_s\": [", s[i]);
    printf(j->token_s ? "]}" : "}");
}

static void print_json(const struct job *j, const struct quire_stats *end, double all_s)
{
    const struct prefill p = count_prefill(j, end);
    printf("{\"rollouts\": %u, \"frames\": %u, \"patches\": %u, \"seconds\": %.6f, ",
           j->t.n_rollout, j->t.n_frame, j->t.n_patch, all_s);
    printf("\"frames_per_second\": %.6f, \"steps\": %llu, \"generation_tokens\": %llu, ",
           (double)j->n_token / j->t.n_patch / all_s, (unsigned long long)end->steps,
           (unsigned long long)j->n_token);
    if (p.is_known)
        printf("\"prefill\": {\"contexts\": %llu, \"later_frames\": %llu, \"again\": %llu}, ",
               p.contexts, p.later, p.again);
    printf("\"requests\": [");
    for (uint32_t i = 0; i < j->t.n_rollout * j->t.n_frame; i++) {
        const struct frame_time *f = &j->times[i];
        printf("%s{\"rollout\": %u, \"frame\": %u, \"prompt_tokens\": %u, \"tokens\": %u, "
               "\"submitted_s\": %.6f, \"first_token_s\": %.6f, \"end_s\": %.6f",
               i ? ", " : "", i / j->t.n_frame, i % j->t.n_frame, f->n_prompt, f->n_token,
               f->submitted, f->first, f->end);
        print_token_times(j, i);
    }
    printf("]}\n");
}

/* ---- start and end ---- */

/* One action: the model has a placeholder for each. */
static struct quire_input action_input(const struct trajectory *t, const float *action)
{
    return (struct quire_input){
        .modality = "actions",
        .number = QUIRE_FLOAT32,
        .n_dim = 1,
        .dims = {t->action_dim},
        .data = action,
        .n_byte = t->action_dim * sizeof *action,
    };
}

/* Everything for all frames, so that nothing is allocated between them. */
static bool prepare(struct job *j)
{
    const struct trajectory *t = &j->t;
    const uint32_t n_input = n_input_max(t);
    const size_t n_each = (size_t)t->n_rollout * n_input;
    j->rollouts = calloc(t->n_rollout, sizeof *j->rollouts);
    j->times = calloc((size_t)t->n_rollout * t->n_frame, sizeof *j->times);
    j->inputs = calloc(n_each + 1, sizeof *j->inputs);
    if (j->o->tokens)
        j->token_s = calloc((size_t)t->n_rollout * t->n_frame * t->n_patch, sizeof *j->token_s);
    if (!j->rollouts || !j->times || !j->inputs || (j->o->tokens && !j->token_s)) {
        fprintf(stderr, "terra-rollout: not enough memory for %u rollouts\n", t->n_rollout);
        return false;
    }
    for (uint32_t r = 0; r < t->n_rollout; r++) {
        const float *actions = trajectory_actions(t, r);
        j->rollouts[r] = (struct rollout){.number = r, .n_id = t->n_id};
        for (uint32_t i = 0; i < n_input; i++)
            j->inputs[r * n_input + i] = action_input(t, actions + (size_t)i * t->action_dim);
    }
    j->n_running = t->n_rollout;
    j->n_token_all = (uint64_t)t->n_rollout * (t->n_frame * t->n_patch - t->n_start);
    return true;
}

static bool check_length(const struct job *j)
{
    struct quire_info info = {.size = sizeof info};
    const uint32_t n = j->t.n_id_max - j->t.n_action; /* the last frame's actions are not used */
    quire_engine_info(j->engine, &info);
    if (n <= info.max_model_len)
        return true;
    fprintf(stderr,
            "terra-rollout: %u frames of context and %u new ones are %u positions; the model has "
            "%u\n",
            j->t.n_context, j->t.n_frame, n, info.max_model_len);
    return false;
}

static bool work(struct job *j)
{
    clock_gettime(CLOCK_MONOTONIC, &j->start);
    if (!prepare(j) || !run(j))
        return false;
    const double all_s = seconds(j);
    struct quire_stats end = {.size = sizeof end};
    quire_engine_stats(j->engine, &end);
    if (j->o->json)
        print_json(j, &end, all_s);
    else
        print_text(j, &end, all_s);
    if (j->o->json && fflush(stdout) != 0)
        return refuse_file("standard output", strerror(errno));
    return j->o->tokens || write_results(j);
}

int main(int argc, char **argv)
{
    struct rollout_options o;
    struct job j = {.o = &o};
    struct quire_error error;
    char why[TRAJECTORY_WHY_MAX];
    int rc = options_read(&o, argc, argv);
    if (rc < 0 && !trajectory_read(&j.t, &o.files, why)) {
        fprintf(stderr, "terra-rollout: %s\n", why);
        rc = EXIT_FAILED;
    }
    if (rc < 0 && !check_results(&j))
        rc = EXIT_FAILED;
    if (rc < 0 && quire_engine_open(&j.engine, &o.engine, &error)) {
        fail(o.engine.model, &error);
        rc = EXIT_START;
    }
    quire_options_release(&o.engine);
    if (rc < 0) {
        sem_init(&j.events, 0, 0);
        rc = check_length(&j) && work(&j) ? EXIT_SUCCESS : EXIT_FAILED;
        for (uint32_t i = 0; i < j.t.n_rollout && j.rollouts; i++)
            quire_request_free(j.rollouts[i].request);
    }
    quire_engine_close(j.engine);
    trajectory_release(&j.t);
    free(j.rollouts);
    free(j.inputs);
    free(j.times);
    free(j.token_s);
    return rc;
}
