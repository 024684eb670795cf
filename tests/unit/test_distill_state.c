/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run when its bytes have changed: every flipped byte and every truncation is found,
 * the state before is taken, and nothing is while there is none. */
#include <xxhash.h>
#include "checkpoint_run.h"

#define NUMBERS "\"numbers\": [0,0,0,0,0,0,0,0]"
#define TENSORS "\"tensors\": {\"bytes\": 1, \"sum\": \"0\"}"

/* State 9 has other values than state 7. */
static enum q_code save_next(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {9};
    visit(&r->p, 5, false, true);
    return checkpoint_save_state(c, 9, &r->run, numbers, err);
}

static enum q_code resume_next(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const enum q_code rc = checkpoint_resume(c, &r->run, &r->step, r->numbers, err);
    if (!rc)
        visit(&r->p, 5, true, false);
    return rc;
}

static enum q_code save_eight(struct rank_run *r, struct checkpoint *c, struct q_err *err)
{
    const double numbers[CHECKPOINT_NUMBERS] = {0};
    enum q_code rc = checkpoint_resume(c, &r->run, &r->step, r->numbers, err);
    return rc ? rc : checkpoint_save_state(c, 8, &r->run, numbers, err);
}

static void rename_in_output(const char *from, const char *to)
{
    char a[512];
    snprintf(a, sizeof a, "%s", in_output(from));
    assert_int_equal(rename(a, in_output(to)), 0);
}

/* Of state 7, with its checksum. */
static void write_text(const char *text)
{
    struct buf b = BUF_INIT;
    buf_printf(&b, "%s,\n\"sum\": \"%016llx\"}\n", text,
               (unsigned long long)XXH3_64bits(text, strlen(text)));
    assert_ok(file_write(in_output("state-7/state.json"), b.data, b.len, 0600, &e), &e);
    buf_release(&b);
}

static void test_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum q_code code;
        const char *part;
    } rows[] = {
        {"", Q_CORRUPT, "state.json"},
        {"{", Q_CORRUPT, "state.json: not valid JSON at line 1"},
        {"{\"version\": 1, \"step\": 7, \"run\": {}", Q_CORRUPT, "version is 1, expected 2"},
        {"{\"version\": 2, \"step\": 8, \"run\": {}", Q_CORRUPT,
         "step is 8, but the folder is of step 7"},
        {"{\"version\": 2, \"step\": \"7\", \"run\": {}", Q_CORRUPT, "step is a string"},
        {"{\"version\": 2, \"step\": 7, \"run\": 5", Q_CORRUPT, "run is a whole number"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 8}, " NUMBERS,
         Q_MISMATCH, "started with seed = 8, and is now asked for with 7"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\"}, " NUMBERS, Q_MISMATCH,
         "started with seed = nothing, and is now asked for with 7"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7, \"x\": "
         "[1]}, " NUMBERS,
         Q_MISMATCH, "started with x = [1], and is now asked for with nothing"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}", Q_CORRUPT,
         "numbers: expected a list of 8"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}, "
         "\"numbers\": [0,0,0,0,0,0,0,null]",
         Q_CORRUPT, "numbers[7] is nothing"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}, " NUMBERS,
         Q_CORRUPT, "tensors has no checksum"},
        {"{\"version\": 2, \"step\": 7, \"run\": {\"lr\": \"0.001\", \"seed\": 7}, " NUMBERS
         ", " TENSORS,
         Q_CORRUPT, "bytes, 1 were written"},
    };
    static const char *const unsigned_rows[] = {"", "{", "[]", "{\"version\": 2}"};
    struct checkpoint_options o = options();
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text(rows[i].text);
        assert_fails(run_all(&divisions[i % 4], &o, resume), rows[i].code, rows[i].part, &e);
    }
    for (size_t i = 0; i < sizeof unsigned_rows / sizeof *unsigned_rows; i++) {
        const char *text = unsigned_rows[i];
        assert_ok(file_write(in_output("state-7/state.json"), text, strlen(text), 0600, &e), &e);
        assert_fails(run_all(&divisions[1], &o, resume), Q_CORRUPT,
                     "its checksum is wrong or missing", &e);
    }
}

/* The newest state is broken: the one before comes back, the broken one has another name. */
static void check_passed_over(const struct division *d, const struct checkpoint_options *o)
{
    assert_ok(run_all(d, o, resume), &e);
    assert_int_equal(runs[0].step, 7);
    assert_true(runs[0].numbers[0] == 0.1);
    assert_true(dir_exists(in_output("state-9.bad")) && !dir_exists(in_output("state-9")));
    rename_in_output("state-9.bad", "state-9");
}

static void flip_bytes(const char *name, size_t step)
{
    struct checkpoint_options o = options();
    struct buf bytes = BUF_INIT;
    read_file(&bytes, name);
    for (size_t i = 0; i < bytes.len; i += i + 40 < bytes.len ? step : 1) {
        bytes.data[i] ^= (char)(1 << i % 8);
        assert_ok(file_write(in_output(name), bytes.data, bytes.len, 0600, &e), &e);
        bytes.data[i] ^= (char)(1 << i % 8);
        check_passed_over(&divisions[i % N_DIVISION], &o);
    }
    for (size_t n = 0; n < bytes.len; n += n + 3 < bytes.len ? bytes.len / 5 : 1) {
        assert_ok(file_write(in_output(name), bytes.data, n, 0600, &e), &e);
        check_passed_over(&divisions[n % N_DIVISION], &o);
    }
    assert_ok(file_write(in_output(name), bytes.data, bytes.len, 0600, &e), &e);
    buf_add_char(&bytes, ' ');
    assert_ok(file_write(in_output(name), bytes.data, bytes.len, 0600, &e), &e);
    check_passed_over(&alone, &o);
    assert_ok(file_write(in_output(name), bytes.data, bytes.len - 1, 0600, &e), &e);
    buf_release(&bytes);
}

static void test_changed_bytes(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    assert_ok(run_all(&divisions[2], &o, save_state), &e);
    assert_ok(run_all(&divisions[2], &o, save_next), &e);
    flip_bytes("state-9/state.json", 1);
    flip_bytes("state-9/state.safetensors", 61);
    assert_ok(run_all(&divisions[3], &o, resume_next), &e);
    assert_int_equal(runs[0].step, 9);
}

static void test_missing_files(void **state)
{
    (void)state;
    static const char *const names[] = {"state-9/state.safetensors", "state-9/state.json"};
    struct checkpoint_options o = options();
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(run_all(&divisions[1], &o, save_next), &e);
        assert_int_equal(unlink(in_output(names[i])), 0);
        check_passed_over(&divisions[i], &o);
    }
}

/* Each time the same error: a run never begins again by itself where it was further. */
static void test_none_can_be_read(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    assert_ok(run_all(&divisions[1], &o, save_next), &e);
    assert_int_equal(truncate(in_output("state-7/state.safetensors"), 2000), 0);
    assert_int_equal(unlink(in_output("state-9/state.json")), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_fails(run_all(&divisions[i], &o, resume), Q_CORRUPT, "has no state that can be read",
                     &e);
        assert_int_equal(count_entries(output, ""), 2);
        assert_true(dir_exists(in_output("state-7")) && dir_exists(in_output("state-9")));
    }
    assert_int_not_equal(run_all(&divisions[1], &o, resume), Q_OK);
    assert_non_null(strstr(e.message, "state-9/state.json"));
}

/* What is set aside is none of the last k, and an earlier one of its name gives way. */
static void test_keep_last(void **state)
{
    (void)state;
    struct checkpoint_options o = options();
    o.keep_last = 2;
    for (int i = 0; i < 2; i++) {
        assert_ok(run_all(&divisions[1], &o, save_state), &e);
        assert_ok(run_all(&divisions[1], &o, save_next), &e);
        assert_int_equal(truncate(in_output("state-9/state.safetensors"), 2000), 0);
        assert_ok(run_all(&divisions[1], &o, save_eight), &e);
        assert_true(dir_exists(in_output("state-7")) && dir_exists(in_output("state-8")));
        assert_true(dir_exists(in_output("state-9.bad")));
        assert_int_equal(count_entries(output, ""), 3);
        assert_ok(remove_all(in_output("state-8"), &e), &e);
    }
}

static enum q_code judge(void *ctx, uint64_t step, const char *before, struct q_err *err)
{
    const char *wanted = ctx;
    assert_int_equal(step, 7);
    return strcmp(before, wanted) == 0 ? Q_OK : q_fail(err, Q_MISMATCH, "it is %s", before);
}

static void test_judged(void **state)
{
    (void)state;
    char wanted[] = "{\"steps\":10}";
    struct checkpoint_options o = options();
    const struct checkpoint_run plain = run_options;
    run_options.text = "{\"seed\": 7, \"rates\": {\"steps\": 10}}";
    assert_ok(run_all(&divisions[1], &o, save_state), &e);
    run_options.text = "{\"seed\": 7, \"rates\": 5}";
    assert_fails(run_all(&divisions[1], &o, resume), Q_MISMATCH, "started with rates = ", &e);
    run_options.judged = "rates";
    run_options.judge = judge;
    run_options.ctx = wanted;
    assert_ok(run_all(&divisions[1], &o, resume), &e);
    wanted[3] = 'x';
    assert_fails(run_all(&divisions[1], &o, resume), Q_MISMATCH,
                 "state-7/state.json: it is {\"steps\":10}", &e);
    run_options.text = "{\"seed\": 8, \"rates\": 5}";
    assert_fails(run_all(&divisions[1], &o, resume), Q_MISMATCH, "started with seed = 7", &e);
    run_options.text = "{\"seed\": 7, \"x\": 5}";
    run_options.judged = "x";
    assert_fails(run_all(&divisions[1], &o, resume), Q_MISMATCH, "started with rates = ", &e);
    run_options = plain;
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_text),          IN_FOLDER(test_changed_bytes),
        IN_FOLDER(test_missing_files), IN_FOLDER(test_none_can_be_read),
        IN_FOLDER(test_keep_last),     IN_FOLDER(test_judged),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
