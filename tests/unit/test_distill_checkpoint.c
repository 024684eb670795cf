/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint: the same files from any division of the student into ranks, states that come back in
 * another division, and what remains after failures. What becomes of a state whose bytes change:
 * test_distill_state.c. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "checkpoint_run.h"
#include "common/hub/safetensors.h"
#include "common/mem.h"

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

/* ---- tests ---- */

static enum q_code save_all(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {0};
    for (uint64_t step = 1; step <= 6; step++) {
        enum q_code rc;
        if ((rc = checkpoint_save_model(c, step, err)) ||
            (rc = checkpoint_save_state(c, step * 10, &r->run, numbers, err)))
            return rc;
    }
    return checkpoint_save_state(c, 60, &r->run, numbers, err); /* replaced */
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
        rc = checkpoint_resume(other, &r->run, &r->step, r->numbers, err);
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
            !(rc = checkpoint_save_state(c, 1, &run_options, numbers, &e)))
            rc = checkpoint_resume(c, &run_options, &step, back, &e);
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
        IN_FOLDER(test_model),         IN_FOLDER(test_divisions),
        IN_FOLDER(test_shards),        IN_FOLDER(test_resume),
        IN_FOLDER(test_keep_last),     IN_FOLDER(test_output),
        IN_FOLDER(test_disk_full),     IN_FOLDER(test_disk_fails),
        IN_FOLDER(test_other_student), IN_FOLDER(test_one_run_at_a_time),
        IN_FOLDER(test_no_memory),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
