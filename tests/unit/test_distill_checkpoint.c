/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint: the same files from any division of the student into ranks, states that come back in
 * another division, and what remains after failures. Ranks are threads; their transport is this
 * file's. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "common/hub/safetensors.h"
#include "common/log.h"
#include "common/mem.h"
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

/* ---- a disk that fails ---- */

static atomic_int writes_left = INT_MAX; /* before one fails; then all do */

enum q_code __real_file_write_at(const struct file_open *file, const void *data, size_t n,
                                 uint64_t at, struct q_err *err);
enum q_code __wrap_file_write_at(const struct file_open *file, const void *data, size_t n,
                                 uint64_t at, struct q_err *err);

enum q_code __wrap_file_write_at(const struct file_open *file, const void *data, size_t n,
                                 uint64_t at, struct q_err *err)
{
    if (atomic_fetch_sub(&writes_left, 1) <= 0)
        return q_fail(err, Q_IO, "%s: broken disk", file->path);
    return __real_file_write_at(file, data, n, at, err);
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

static float value(uint32_t tensor, uint32_t row, uint32_t col, uint32_t array)
{
    const uint32_t x = (tensor * 1000003u + row * 7919u + col * 104729u + array * 31u) % 100003u;
    return ((float)x - 50000.0f) / 12345.0f;
}

static struct q_err e;
static struct folder f, student;
static char output[256];

static bool has(const struct division *d, uint32_t rank, size_t i)
{
    return d->kind != PIPELINE || i * d->n / N_SPEC == rank;
}

static void add_tensor(struct param *p, const struct division *d, uint32_t rank, size_t i)
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

static float *array_at(const struct params *p, uint32_t i)
{
    return i == 0 ? p->w : i == 1 ? p->g : i == 2 ? p->m : p->v;
}

/* Every element with its value, or checked against it: that of step `offset`. */
static void visit(struct params *p, uint32_t offset, bool check, bool with_gradients)
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

static void params_make(struct params *p, const struct division *d, uint32_t rank)
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

static void params_drop(struct params *p)
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
    const char *run;
    bool is_closed; /* act has closed the checkpoint */
};

static void *run_rank(void *arg)
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
static const char *run_options = "{\"lr\": \"0.001\", \"seed\": 7}";

/* All ranks' code, which is the same; the message in `e`. */
static enum q_code run_all(const struct division *d, const struct checkpoint_options *o,
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

static enum q_code save_model(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    (void)r;
    return checkpoint_save_model(c, 5, err);
}

static enum q_code save_gradients(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    (void)r;
    return checkpoint_save_gradients(c, 2, err);
}

static enum q_code save_state(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {0.1, -1e300, 3, 1.0 / 3, 0, 5, 6, 7e-300};
    return checkpoint_save_state(c, 7, r->run, numbers, err);
}

static enum q_code save_all(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {0};
    for (uint64_t step = 1; step <= 6; step++) {
        enum q_code rc;
        if ((rc = checkpoint_save_model(c, step, err)) ||
            (rc = checkpoint_save_state(c, step * 10, r->run, numbers, err)))
            return rc;
    }
    return checkpoint_save_state(c, 60, r->run, numbers, err); /* replaced */
}

static enum q_code resume(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const struct params *p = &r->p;
    for (uint32_t a = 0; a < 4; a++)
        memset(array_at(p, a), 0xff, p->n_element * sizeof *p->w);
    enum q_code rc = checkpoint_resume(c, &r->step, r->run, r->numbers, err);
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

/* ---- tests ---- */

static int setup(void **state)
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

static int teardown(void **state)
{
    (void)state;
    folder_release(&f);
    folder_release(&student);
    return 0;
}

static struct checkpoint_options options(void)
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

static void read_file(struct buf *out, const char *name)
{
    buf_reset(out);
    assert_ok(file_read(out, in_output(name), 1 << 22, &e), &e);
}

static size_t count_entries(const char *path, const char *end)
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

static void check_tensors(const struct tensor_set *s, const char *prefix, uint32_t array,
                          enum dtype dtype)
{
    for (size_t i = 0; i < N_SPEC; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", prefix, specs[i].name);
        const struct tensor *t = tensor_find(s, name);
        assert_non_null(t);
        assert_true(t->dtype == dtype && t->n_dim == specs[i].n_dim);
        assert_true(t->shape[0] == specs[i].rows);
        assert_true(t->n_dim == 1 || t->shape[1] == specs[i].cols);
        for (uint32_t k = 0; k < specs[i].rows * specs[i].cols; k++) {
            const float v = value((uint32_t)i, k / specs[i].cols, k % specs[i].cols, array);
            float got;
            uint16_t half;
            if (dtype == DT_F32)
                memcpy(&got, (const char *)t->data + 4ul * k, 4);
            else
                memcpy(&half, (const char *)t->data + 2ul * k, 2);
            if (dtype == DT_F32)
                assert_true(got == v);
            else
                assert_int_equal(half, dtype == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v));
        }
    }
}

/* A folder that holds what a model folder holds, and no weights of the student's own. */
static void test_model(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    static const char *const copied[] = {
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
        "merges.txt",
        "additional_chat_templates/tool_use.jinja",
    };
    for (size_t i = 0; i < 3; i++) {
        struct checkpoint_options o = options();
        struct tensor_set *s = NULL;
        struct buf b = BUF_INIT;
        char name[96];
        o.dtype = dtypes[i];
        assert_ok(run_all(&alone, &o, save_model), &e);
        assert_ok(tensor_set_open(&s, in_output("step-5"), &e), &e);
        assert_int_equal(tensor_count(s), N_SPEC);
        check_tensors(s, "", 0, dtypes[i]);
        tensor_set_free(s);
        for (size_t k = 0; k < sizeof copied / sizeof *copied; k++) {
            snprintf(name, sizeof name, "step-5/%s", copied[k]);
            assert_true(file_exists(in_output(name)));
        }
        assert_int_equal(count_entries(in_output("step-5"), ""), 7);
        read_file(&b, "step-5/config.json");
        assert_non_null(strstr(buf_str(&b), names[i]));
        assert_non_null(strstr(buf_str(&b), "llama"));
        read_file(&b, "step-5/model.safetensors");
        assert_non_null(memmem(b.data, b.len, "\"format\":\"pt\"", 13));
        buf_release(&b);
        assert_int_equal(count_entries(output, ".tmp"), 0);
    }
}

/* The same bytes however the student is divided. */
static void test_divisions(void **state)
{
    (void)state;
    static act_fn *const acts[] = {save_model, save_gradients, save_state};
    static const char *const names[] = {
        "step-5/model.safetensors",
        "gradients-2.safetensors",
        "state-7/state.safetensors",
    };
    struct buf first = BUF_INIT, b = BUF_INIT;
    struct checkpoint_options o = options();
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < N_DIVISION; i++) {
            assert_ok(run_all(&divisions[i], &o, acts[k]), &e);
            read_file(i ? &b : &first, names[k]);
            if (i) {
                assert_int_equal(b.len, first.len);
                assert_memory_equal(b.data, first.data, b.len);
            }
        }
    struct tensor_set *s = NULL;
    assert_ok(tensor_set_open_file(&s, in_output("gradients-2.safetensors"), &e), &e);
    check_tensors(s, "", 1, DT_F32);
    tensor_set_free(s);
    buf_release(&first);
    buf_release(&b);
}

static void test_shards(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    struct tensor_set *s = NULL;
    o.shard_bytes = 700;
    for (size_t i = 0; i < N_DIVISION; i++) {
        assert_ok(run_all(&divisions[i], &o, save_model), &e);
        assert_false(file_exists(in_output("step-5/model.safetensors")));
        assert_true(file_exists(in_output("step-5/model-00001-of-00004.safetensors")));
        assert_ok(tensor_set_open(&s, in_output("step-5"), &e), &e);
        assert_int_equal(tensor_count(s), N_SPEC);
        assert_int_equal(tensor_set_n_file(s), 4);
        check_tensors(s, "", 0, DT_F32);
        tensor_set_free(s);
    }
}

/* From every division to every other one. */
static void test_resume(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    assert_ok(run_all(&alone, &o, resume), &e);
    assert_int_equal(runs[0].step, 0);
    for (size_t i = 0; i < N_DIVISION; i++) {
        assert_ok(run_all(&divisions[i], &o, save_state), &e);
        for (size_t k = 0; k < N_DIVISION; k++) {
            assert_ok(run_all(&divisions[k], &o, resume), &e);
            for (uint32_t r = 0; r < divisions[k].n; r++) {
                assert_int_equal(runs[r].step, 7);
                assert_true(runs[r].numbers[0] == 0.1 && runs[r].numbers[1] == -1e300);
                assert_true(runs[r].numbers[3] == 1.0 / 3 && runs[r].numbers[7] == 7e-300);
            }
        }
    }
}

static void test_keep_last(void **state)
{
    (void)state;
    const uint64_t steps[] = {1, 3};
    struct checkpoint_options o = options();
    o.keep_last = 2;
    o.keep_steps = steps;
    o.n_keep_step = 2;
    assert_ok(run_all(&divisions[1], &o, save_all), &e);
    static const char *const there[] = {"step-1", "step-3",   "step-5",
                                        "step-6", "state-50", "state-60"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        assert_true(dir_exists(in_output(there[i])));
    assert_int_equal(count_entries(output, ""), 6);
    assert_ok(run_all(&alone, &o, resume), &e);
    assert_int_equal(runs[0].step, 60);
}

static void test_output(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    o.output = student.path;
    assert_fails(run_all(&alone, &o, save_model), Q_INVALID, "is a model folder", &e);
    folder_text(&f, "file", "x");
    snprintf(output, sizeof output, "%s/file", f.path);
    o.output = output;
    assert_fails(run_all(&alone, &o, save_model), Q_INVALID, "is a file", &e);
    snprintf(output, sizeof output, "%s/out", f.path);
    folder_text(&f, "out/notes.txt", "kept");
    folder_text(&f, "out/step-3.tmp/model.safetensors", "x");
    folder_text(&f, "out/state-3.tmp/additional_chat_templates/x", "x");
    folder_text(&f, "out/gradients-3.safetensors.tmp", "x");
    folder_text(&f, "out/step-x.tmp", "kept");
    assert_ok(run_all(&divisions[1], &o, save_model), &e);
    assert_int_equal(count_entries(output, ""), 3);
    o.dtype = DT_I8;
    assert_fails(run_all(&divisions[1], &o, save_model), Q_INVALID, "accepted are F32", &e);
}

/* No room: what is there stays, nothing incomplete has a name, all ranks say the same. */
static void test_disk_full(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    struct buf before = BUF_INIT, after = BUF_INIT;
    struct rlimit old, small;
    o.shard_bytes = 700;
    assert_ok(run_all(&divisions[1], &o, save_model), &e);
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    read_file(&before, "step-5/model-00002-of-00004.safetensors");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 500;
    static act_fn *const acts[] = {save_model, save_state, save_gradients};
    for (size_t i = 0; i < N_DIVISION * 3; i++) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const enum q_code rc = run_all(&divisions[i / 3], &o, acts[i % 3]);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, Q_IO);
        assert_non_null(strstr(e.message, strerror(EFBIG)));
        assert_non_null(strstr(e.message, "bytes"));
        assert_int_equal(count_entries(output, ".tmp"), 0);
        assert_int_equal(count_entries(output, ""), 2);
    }
    read_file(&after, "step-5/model-00002-of-00004.safetensors");
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, after.len);
    assert_ok(run_all(&divisions[3], &o, resume), &e);
    assert_int_equal(runs[0].step, 7);
    assert_fails(check_room(output, UINT64_MAX, &e), Q_IO, "it needs 18446744073709551615 bytes, ",
                 &e);
    buf_release(&before);
    buf_release(&after);
}

/* Any write of any rank fails. */
static void test_disk_fails(void **state)
{
    (void)state;
    static act_fn *const acts[] = {save_model, save_state, save_gradients};
    struct checkpoint_options o = options();
    o.shard_bytes = 700;
    for (size_t i = 0; i < 9; i++) {
        const struct division *d = &divisions[i / 3 + 1];
        int n_failed = 0;
        for (enum q_code rc = Q_IO; rc; n_failed += rc != Q_OK) {
            atomic_store(&writes_left, n_failed);
            rc = run_all(d, &o, acts[i % 3]);
            atomic_store(&writes_left, INT_MAX);
            assert_true(rc == Q_OK || (rc == Q_IO && strstr(e.message, "broken disk")));
            assert_int_equal(count_entries(output, ".tmp"), 0);
            assert_int_equal(count_entries(output, ""), i % 3 + (rc == Q_OK));
        }
        assert_true(n_failed > (int)N_SPEC);
        if (i % 3 == 2) {
            assert_ok(remove_all(output, &e), &e);
        }
    }
}

static void write_state(const char *text)
{
    assert_ok(file_write(in_output("state-7/state.json"), text, strlen(text), 0600, &e), &e);
}

#define NUMBERS "\"numbers\": [0,0,0,0,0,0,0,0]"

static void test_bad_state(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum q_code code;
        const char *part;
    } rows[] = {
        {"", Q_CORRUPT, "state.json"},
        {"{", Q_CORRUPT, "state.json: not valid JSON at line 1"},
        {"[]", Q_CORRUPT, "found a list, expected a JSON object"},
        {"{\"version\": 2, \"step\": 7, \"run\": {}}", Q_CORRUPT, "version is 2, expected 1"},
        {"{\"version\": 1, \"step\": 8, \"run\": {}}", Q_CORRUPT,
         "step is 8, but the folder is of step 7"},
        {"{\"version\": 1, \"step\": \"7\", \"run\": {}}", Q_CORRUPT, "step is a string"},
        {"{\"version\": 1, \"step\": 7, \"run\": 5}", Q_CORRUPT, "run is a whole number"},
        {"{\"version\": 1, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 8}, " NUMBERS "}",
         Q_MISMATCH, "started with seed = 8, and is now asked for with 7"},
        {"{\"version\": 1, \"step\": 7, \"run\": {\"lr\": \"0.001\"}, " NUMBERS "}", Q_MISMATCH,
         "started with seed = nothing, and is now asked for with 7"},
        {"{\"version\": 1, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7, \"x\": "
         "[1]}, " NUMBERS "}",
         Q_MISMATCH, "started with x = [1], and is now asked for with nothing"},
        {"{\"version\": 1, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}}", Q_CORRUPT,
         "numbers: expected a list of 8"},
        {"{\"version\": 1, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}, "
         "\"numbers\": [0,0,0,0,0,0,0,null]}",
         Q_CORRUPT, "numbers[7] is nothing"},
    };
    struct checkpoint_options o = options();
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_state(rows[i].text);
        assert_fails(run_all(&divisions[i % 4], &o, resume), rows[i].code, rows[i].part, &e);
    }
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    assert_int_equal(truncate(in_output("state-7/state.safetensors"), 2000), 0);
    assert_fails(run_all(&divisions[1], &o, resume), Q_CORRUPT, "truncated", &e);
    assert_int_equal(unlink(in_output("state-7/state.safetensors")), 0);
    assert_fails(run_all(&divisions[1], &o, resume), Q_CORRUPT, "without its folder", &e);
}

static enum q_code open_again(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    struct checkpoint *other = NULL;
    struct checkpoint_options o = *r->o;
    o.transport = &r->transport;
    (void)c;
    const enum q_code rc = checkpoint_open(&other, &o, &r->p, err);
    checkpoint_close(other);
    return rc;
}

static void test_one_run_at_a_time(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    assert_fails(run_all(&divisions[1], &o, open_again), Q_INVALID, "another run is writing there",
                 &e);
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
}

/* A tensor of which no rank has some rows, and a state of another student. */
static enum q_code forget(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    struct checkpoint *other = NULL;
    struct checkpoint_options o = *r->o;
    o.transport = &r->transport;
    (void)c;
    r->p.all[0].tensors[0].n_row--;
    const enum q_code rc = checkpoint_open(&other, &o, &r->p, err);
    checkpoint_close(other);
    return rc;
}

static enum q_code rename_one(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    struct checkpoint *other = NULL;
    struct checkpoint_options o = *r->o;
    o.transport = &r->transport;
    checkpoint_close(c); /* one run writes there at a time */
    r->is_closed = true;
    if (r->transport.rank == 0)
        r->p.all[0].tensors[0].name[0] = 'x';
    enum q_code rc = checkpoint_open(&other, &o, &r->p, err);
    if (!rc)
        rc = checkpoint_resume(other, &r->step, r->run, r->numbers, err);
    checkpoint_close(other);
    return rc;
}

static void test_other_student(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    assert_fails(run_all(&divisions[1], &o, forget), Q_MISMATCH,
                 "model.embed_tokens.weight (24 x 8) do not make the whole of it", &e);
    assert_fails(run_all(&divisions[3], &o, forget), Q_MISMATCH, "model.embed_tokens.weight", &e);
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    assert_fails(run_all(&divisions[1], &o, rename_one), Q_MISMATCH,
                 "the state has no tensor w.xodel.embed_tokens.weight", &e);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    struct world w = {.n = 1};
    struct transport t = {&w, 0};
    struct params p;
    uint32_t n_failed = 0;
    pthread_barrier_init(&w.barrier, NULL, 1);
    o.transport = &t;
    o.shard_bytes = 700;
    params_make(&p, &alone, 0);
    visit(&p, 0, false, true);
    for (int64_t i = 0; i < 10000; i++) {
        const double numbers[CHECKPOINT_NUMBERS] = {0};
        double back[CHECKPOINT_NUMBERS];
        uint64_t step;
        struct checkpoint *c = NULL;
        mem_fail_after(i);
        enum q_code rc = checkpoint_open(&c, &o, &p, &e);
        if (!rc && !(rc = checkpoint_save_model(c, 1, &e)) &&
            !(rc = checkpoint_save_state(c, 1, run_options, numbers, &e)))
            rc = checkpoint_resume(c, &step, run_options, back, &e);
        mem_fail_after(-1);
        checkpoint_close(c);
        if (!rc)
            break;
        assert_int_equal(rc, Q_NO_MEMORY);
        assert_int_equal(dir_exists(output) ? count_entries(output, ".tmp") : 0, 0);
        n_failed++;
    }
    assert_true(n_failed > 10 && n_failed < 10000);
    params_drop(&p);
    pthread_barrier_destroy(&w.barrier);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_model),         IN_FOLDER(test_divisions),         IN_FOLDER(test_shards),
        IN_FOLDER(test_resume),        IN_FOLDER(test_keep_last),         IN_FOLDER(test_output),
        IN_FOLDER(test_disk_full),     IN_FOLDER(test_disk_fails),        IN_FOLDER(test_bad_state),
        IN_FOLDER(test_other_student), IN_FOLDER(test_one_run_at_a_time), IN_FOLDER(test_no_memory),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
