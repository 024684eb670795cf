/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_run - the checkpoints of a small student in any division into ranks: ranks are
 * threads, their transport is this file's, each element of each array has a value of its own.
 * Threads: the test's; a rank's functions its own. */
#ifndef QUIRE_TESTS_UNIT_CHECKPOINT_RUN_H
#define QUIRE_TESTS_UNIT_CHECKPOINT_RUN_H
#include <pthread.h>
#include "common/log.h"
#include "engine/distill/checkpoint.h"
#include "engine/distill/checkpoint_internal.h"
#include "folder.h"

#define RANKS_MAX 4u

/* ---- a transport between threads ---- */

struct world {
    uint32_t n;
    pthread_barrier_t barrier;
    const void *in[RANKS_MAX];
    uint32_t ranks[RANKS_MAX];
};
struct transport {
    struct world *w;
    uint32_t rank;
};

uint32_t transport_rank(const struct transport *t)
{
    return t->rank;
}

uint32_t transport_size(const struct transport *t)
{
    return t->w->n;
}

struct transport_group transport_all(const struct transport *t)
{
    return (struct transport_group){t->w->ranks, t->w->n};
}

enum q_code transport_gather(struct transport *t, const struct transport_group *g, const void *x,
                             size_t bytes, void *out, struct q_err *err)
{
    (void)err;
    t->w->in[t->rank] = x;
    pthread_barrier_wait(&t->w->barrier);
    for (uint32_t i = 0; i < g->n; i++)
        memcpy((char *)out + i * bytes, t->w->in[i], bytes);
    pthread_barrier_wait(&t->w->barrier);
    return Q_OK;
}

enum q_code transport_max(struct transport *t, const struct transport_group *g, uint64_t *x,
                          struct q_err *err)
{
    uint64_t all[RANKS_MAX];
    const enum q_code rc = transport_gather(t, g, x, sizeof *x, all, err);
    for (uint32_t i = 0; i < g->n; i++)
        *x = all[i] > *x ? all[i] : *x;
    return rc;
}

/* ---- a student in parts ---- */

static const struct tensor_spec {
    const char *name;
    uint32_t rows, cols, n_dim;
    enum cut { CUT_ROWS, CUT_COLS, CUT_NOT } cut; /* by tensor parallelism */
} specs[] = {
    {"model.embed_tokens.weight", 24, 8, 2, CUT_ROWS},
    {"model.layers.0.self_attn.q_proj.weight", 8, 8, 2, CUT_ROWS},
    {"model.layers.0.self_attn.k_proj.weight", 4, 8, 2, CUT_ROWS},
    {"model.layers.0.self_attn.v_proj.weight", 4, 8, 2, CUT_ROWS},
    {"model.layers.0.mlp.down_proj.weight", 8, 12, 2, CUT_COLS},
    {"model.layers.0.input_layernorm.weight", 8, 1, 1, CUT_NOT},
    {"model.layers.1.self_attn.q_proj.bias", 8, 1, 1, CUT_ROWS},
    {"model.layers.1.mlp.down_proj.weight", 8, 12, 2, CUT_COLS},
    {"model.norm.weight", 8, 1, 1, CUT_NOT},
};
#define N_SPEC (sizeof specs / sizeof *specs)
#define FUSED  1u /* specs[1 … 3] are one parameter */

enum layout_kind {
    PIPELINE, /* a part of the tensors each */
    TENSOR,   /* a part of each tensor each */
    REPLICAS, /* everything each */
};
struct division {
    enum layout_kind kind;
    uint32_t n;
    bool tied; /* the last rank has a copy of the embedding */
};

static inline float value(uint32_t tensor, uint32_t row, uint32_t col, uint32_t array)
{
    const uint32_t x = (tensor * 1000003u + row * 7919u + col * 104729u + array * 31u) % 100003u;
    return ((float)x - 50000.0f) / 12345.0f;
}

static struct q_err e;
static struct folder f, student;
static char output[256];

static inline bool has(const struct division *d, uint32_t rank, size_t i)
{
    return d->kind != PIPELINE || i * d->n / N_SPEC == rank;
}

static inline void add_tensor(struct param *p, const struct division *d, uint32_t rank, size_t i)
{
    const struct tensor_spec *s = &specs[i];
    struct param_tensor *t = &p->tensors[p->n_tensor++];
    const uint32_t n = d->kind == TENSOR ? d->n : 1, at = d->kind == TENSOR ? rank : 0;
    *t = (struct param_tensor){
        .row = p->n_row,
        .n_row = s->rows,
        .n_col = s->cols,
        .all_rows = s->rows,
        .all_cols = s->cols,
        .n_dim = s->n_dim,
    };
    snprintf(t->name, sizeof t->name, "%s", s->name);
    if (s->cut == CUT_ROWS) {
        t->row_at = s->rows * at / n;
        t->n_row = s->rows * (at + 1) / n - t->row_at;
    } else if (s->cut == CUT_COLS) {
        t->col_at = s->cols * at / n;
        t->n_col = s->cols * (at + 1) / n - t->col_at;
    }
    p->n_row += t->n_row;
    p->n_col = t->n_col;
}

static inline float *array_at(const struct params *p, uint32_t i)
{
    return i == 0 ? p->w : i == 1 ? p->g : i == 2 ? p->m : p->v;
}

/* Every element with its value, or checked against it: that of step `offset`. */
static inline void visit(struct params *p, uint32_t offset, bool check, bool with_gradients)
{
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->all[i].n_tensor; k++) {
            const struct param_tensor *t = &p->all[i].tensors[k];
            size_t spec = 0;
            while (strcmp(specs[spec].name, t->name) != 0)
                spec++;
            for (uint32_t j = 0; j < t->n_row * t->n_col * 4; j++) {
                const uint32_t a = j % 4, r = j / 4 / t->n_col, c = j / 4 % t->n_col;
                float *at =
                    array_at(p, a) + p->all[i].at + (size_t)(t->row + r) * p->all[i].n_col + c;
                const float v = value((uint32_t)spec, t->row_at + r, t->col_at + c, a + offset);
                if (!check)
                    *at = v;
                else if (a != 1 || with_gradients)
                    assert_true(*at == v);
            }
        }
}

static inline void params_make(struct params *p, const struct division *d, uint32_t rank)
{
    *p = (struct params){.all = calloc(N_SPEC + 1, sizeof *p->all)};
    for (size_t i = 0; i < N_SPEC; i++) {
        const bool joins = i > FUSED && i < FUSED + 3 && has(d, rank, i - 1);
        if (!has(d, rank, i))
            continue;
        add_tensor(joins ? &p->all[p->n - 1] : &p->all[p->n++], d, rank, i);
    }
    if (d->tied && rank + 1 == d->n) {
        p->all[p->n].is_copy = true;
        add_tensor(&p->all[p->n++], d, rank, 0);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->all[i].at = p->n_element;
        p->n_element += ((size_t)p->all[i].n_row * p->all[i].n_col + 15) / 16 * 16;
    }
    p->w = calloc(p->n_element + 1, sizeof *p->w);
    p->g = calloc(p->n_element + 1, sizeof *p->g);
    p->m = calloc(p->n_element + 1, sizeof *p->m);
    p->v = calloc(p->n_element + 1, sizeof *p->v);
}

static inline void params_drop(struct params *p)
{
    free(p->all);
    free(p->w);
    free(p->g);
    free(p->m);
    free(p->v);
}

/* ---- runs of all ranks ---- */

struct rank_run {
    pthread_t thread;
    struct transport transport;
    const struct division *d;
    const struct checkpoint_options *o;
    enum q_code (*act)(struct rank_run *r, struct checkpoint *c, struct q_err *err);
    struct params p;
    enum q_code rc;
    struct q_err err;
    uint64_t step;
    double numbers[CHECKPOINT_NUMBERS];
    struct checkpoint_run run;
    bool is_closed; /* act has closed the checkpoint */
};

static inline void *run_rank(void *arg)
{
    struct rank_run *r = arg;
    struct checkpoint_options o = *r->o;
    struct checkpoint *c = NULL;
    o.transport = &r->transport;
    params_make(&r->p, r->d, r->transport.rank);
    visit(&r->p, 0, false, true);
    r->rc = checkpoint_open(&c, &o, &r->p, &r->err);
    if (!r->rc)
        r->rc = r->act(r, c, &r->err);
    if (!r->is_closed)
        checkpoint_close(c);
    return NULL;
}

typedef enum q_code act_fn(struct rank_run *r, struct checkpoint *c, struct q_err *err);

static struct rank_run runs[RANKS_MAX];
static struct checkpoint_run run_options = {.text = "{\"lr\": \"0.001\", \"seed\": 7}"};

/* All ranks' code, which is the same; the message in `e`. */
static inline enum q_code run_all(const struct division *d, const struct checkpoint_options *o,
                                  act_fn *act)
{
    struct world w = {.n = d->n, .ranks = {0, 1, 2, 3}};
    q_err_reset(&e);
    pthread_barrier_init(&w.barrier, NULL, d->n);
    for (uint32_t i = 0; i < d->n; i++) {
        runs[i] = (struct rank_run){
            .transport = {&w, i},
            .d = d,
            .o = o,
            .act = act,
            .run = run_options,
        };
        assert_int_equal(pthread_create(&runs[i].thread, NULL, run_rank, &runs[i]), 0);
    }
    for (uint32_t i = 0; i < d->n; i++)
        pthread_join(runs[i].thread, NULL);
    pthread_barrier_destroy(&w.barrier);
    for (uint32_t i = 0; i < d->n; i++) {
        assert_int_equal(runs[i].rc, runs[0].rc);
        assert_int_equal(runs[i].err.code, runs[0].rc);
        assert_string_equal(runs[i].err.message, runs[0].err.message);
        params_drop(&runs[i].p);
    }
    e = runs[0].err;
    return runs[0].rc;
}

static inline enum q_code save_model(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    (void)r;
    return checkpoint_save_model(c, 5, err);
}

static inline enum q_code save_gradients(struct rank_run *r, struct checkpoint *c,
                                         struct q_err *err)
{
    (void)r;
    return checkpoint_save_gradients(c, 2, err);
}

static inline enum q_code save_state(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {0.1, -1e300, 3, 1.0 / 3, 0, 5, 6, 7e-300};
    return checkpoint_save_state(c, 7, &r->run, numbers, err);
}

static inline enum q_code resume(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const struct params *p = &r->p;
    for (uint32_t a = 0; a < 4; a++)
        memset(array_at(p, a), 0xff, p->n_element * sizeof *p->w);
    enum q_code rc = checkpoint_resume(c, &r->run, &r->step, r->numbers, err);
    if (!rc && r->step)
        visit(&r->p, 0, true, false);
    return rc;
}

static const struct division divisions[] = {
    {PIPELINE, 1, false}, {PIPELINE, 2, false}, {PIPELINE, 3, true}, {TENSOR, 2, false},
    {TENSOR, 4, false},   {REPLICAS, 2, false}, {TENSOR, 2, true},   {PIPELINE, 1, true},
};
#define N_DIVISION (sizeof divisions / sizeof *divisions)
static const struct division alone = {PIPELINE, 1, false};

/* ---- folders ---- */

static inline int setup(void **state)
{
    (void)state;
    folder_init(&f);
    folder_init(&student);
    snprintf(output, sizeof output, "%s/a/out", f.path);
    folder_text(
        &student, "config.json",
        "{\"model_type\": \"llama\", \"torch_dtype\": \"float32\", \"rms_norm_eps\": 1e-06}");
    folder_text(&student, "tokenizer.json", "{}");
    folder_text(&student, "generation_config.json", "{\"eos_token_id\": 2}");
    folder_text(&student, "chat_template.jinja", "{{ 1 }}");
    folder_text(&student, "additional_chat_templates/tool_use.jinja", "{{ 2 }}");
    folder_text(&student, "merges.txt", "");
    folder_text(&student, "model.safetensors", "weights");
    folder_text(&student, "model.safetensors.index.json", "{}");
    folder_text(&student, "pytorch_model.bin", "weights");
    folder_text(&student, "x.packed", "cache");
    folder_text(&student, ".gitattributes", "x");
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    folder_release(&f);
    folder_release(&student);
    return 0;
}

static inline struct checkpoint_options options(void)
{
    return (struct checkpoint_options){
        .output = output,
        .student_dir = student.path,
        .dtype = DT_F32,
    };
}

static const char *in_output(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", output, name);
    return path;
}

static inline void read_file(struct buf *out, const char *name)
{
    buf_reset(out);
    assert_ok(file_read(out, in_output(name), 1 << 22, &e), &e);
}

static inline size_t count_entries(const char *path, const char *end)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *x; (x = readdir(d));)
        n += x->d_name[0] != '.' && strlen(x->d_name) >= strlen(end) &&
             strcmp(x->d_name + strlen(x->d_name) - strlen(end), end) == 0;
    closedir(d);
    return n;
}

#endif
