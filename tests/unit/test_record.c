/* SPDX-License-Identifier: Apache-2.0 */
/* --record and quire replay: what an engine computed in small pools, with swap, a prefix cache,
 * drafts, logprobs and dying workers is computed again to the same bits, from each file alone;
 * what differs is named; damaged files are refused. */
#include "record_run.h"
#include <signal.h>
#include <sys/resource.h>
#include "common/mem.h"
#include "engine/record/mirror.h"

static struct golden g;
static struct q_err e;

static int setup(void **state)
{
    (void)state;
    folder_init(&record_folder);
    golden_get(&g, "llama");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&record_folder);
    return 0;
}

static struct core_config recorded(const char *name, uint64_t file_bytes)
{
    return record_config(config_of(g.dir), name, file_bytes);
}

/* Greedy ones, and seeded ones with logprobs of the answer and of the prompt. */
static void submit_some(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct golden_prompt *p = &g.prompts[i % g.n];
        const bool sampled = i % 2;
        const struct msg_submit m = {
            .req_id = i,
            .prompt = {p->ids, p->n},
            .temperature = sampled ? 1 : 0,
            .seed = i,
            .top_p = 1,
            .repetition_penalty = 1,
            .max_tokens = p->n_greedy,
            .ignore_eos = true,
            .n_logprob = sampled ? 3 : 0, /* one more on the wire */
            .n_prompt_logprob = i % 4 == 3 ? 2 : 0,
        };
        assert_ok(core_submit(engine.core, 1, &m, &e), &e);
    }
}

/* preempts: now and then the last running one is preempted. */
static struct scheduler_stats run_all(const struct core_config *c, uint32_t n, bool preempts)
{
    struct scheduler_stats s;
    open_core(c);
    submit_some(n);
    assert_ok(core_step(engine.core, &e), &e);
    for (uint32_t i = 0; engine.n_finished < n; i++) {
        bits_turn(&engine);
        if (preempts && i % 3 == 2)
            core_preempt_last(engine.core);
    }
    core_stats(engine.core, &s);
    core_free(engine.core);
    return s;
}

static struct scheduler_stats run_some(const struct core_config *c, uint32_t n)
{
    return run_all(c, n, false);
}

static void a_record_is_replayed(void **state)
{
    (void)state;
    struct core_config c = recorded("one", 1 << 30);
    uint32_t n_file;
    uint64_t n_filled;
    const struct scheduler_stats s = run_some(&c, 2 * g.n);
    assert_int_equal(replay_all(&c, &n_file, &n_filled), s.step);
    assert_int_equal(n_file, 1);
    assert_int_equal(n_filled, 0);
}

/* Every file begins in the middle: running sequences, shared blocks and swapped ones of before are
 * computed first. */
static void each_file_is_replayed_alone(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n_block, n_seq, chunk;
        enum preemption_mode mode;
        bool drafts;
    } cases[] = {
        {"wide", 64, 8, 64, PREEMPT_AUTO, false},
        {"swap", 28, 4, 16, PREEMPT_SWAP, false},
        {"recompute", 11, 3, 33, PREEMPT_RECOMPUTE, false},
        {"drafts", 20, 4, 64, PREEMPT_SWAP, true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct core_config c = recorded(cases[k].name, 4000);
        uint32_t n_file;
        uint64_t n_filled;
        c.worker.max_model_len = 144;
        c.worker.n_block = cases[k].n_block;
        c.worker.max_num_seqs = cases[k].n_seq;
        c.worker.max_num_batched_tokens = cases[k].chunk;
        c.worker.swap_bytes = 1 << 22;
        c.policy.preemption = cases[k].mode;
        if (cases[k].drafts)
            assert_ok(speculative_parse(&c.worker.speculation,
                                        "{\"method\": \"ngram\", \"num_speculative_tokens\": 3}",
                                        &e),
                      &e);
        const struct scheduler_stats s =
            run_all(&c, 3 * g.n, cases[k].mode == PREEMPT_SWAP && !cases[k].drafts);
        assert_int_equal(replay_all(&c, &n_file, &n_filled), s.step);
        print_message("%s: %u files, %llu steps, %llu rows computed first, %llu swapped in\n",
                      cases[k].name, n_file, (unsigned long long)s.step,
                      (unsigned long long)n_filled, (unsigned long long)s.n_swap_in);
        assert_true(n_file > 5 && n_filled > 0);
        assert_true(cases[k].mode != PREEMPT_SWAP || cases[k].drafts || s.n_swap_in > 10);
    }
}

static void a_worker_that_dies_is_replayed(void **state)
{
    (void)state;
    struct core_config c = recorded("deaths", 1 << 30);
    uint32_t n_file, n_death = 0;
    uint64_t n_filled;
    c.in_process = false;
    open_core(&c);
    submit_some(2 * g.n);
    assert_ok(core_step(engine.core, &e), &e);
    while (engine.n_finished < 2 * g.n) {
        bits_turn(&engine);
        if (n_death < 3 && core_state(engine.core, NULL) == CORE_READY &&
            engine.n_finished >= 2 + 4 * n_death && core_worker_pid(engine.core)) {
            assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
            n_death++;
        }
    }
    assert_true(core_n_restart(engine.core) > 0);
    core_free(engine.core);
    assert_true(replay_all(&c, &n_file, &n_filled) > 0);
    assert_int_equal(n_file, 1);
}

/* ---- what differs, and what is damaged ---- */

static void read_all(struct buf *out, const struct core_config *c)
{
    assert_ok(file_read(out, c->record.path, 1 << 24, &e), &e);
}

/* The same record, with `change` made to the rows of its n-th step. */
static void with_change(struct buf *out, const struct buf *from, uint32_t n,
                        void (*change)(struct record_row *row))
{
    struct record_reader r;
    struct record_item item;
    bool more = true;
    static struct record_row rows[64];
    assert_ok(record_open(&r, from->data, from->len, &e), &e);
    record_begin(out);
    record_put_head(out, &r.head, &r.texts);
    for (uint32_t i = 0; more;) {
        assert_ok(record_next(&r, &item, &more, &e), &e);
        if (!more || item.kind != RECORD_STEP)
            continue;
        assert_true(item.counts.n_row <= 64);
        memcpy(rows, item.rows, item.counts.n_row * sizeof *rows);
        if (item.counts.n_row && i++ == n)
            change(&rows[item.counts.n_row - 1]);
        record_put_step(out, &item.view, &item.counts, rows);
    }
    assert_ok(buf_check(out, "a record", &e), &e);
}

static void other_token(struct record_row *row)
{
    row->token ^= 1;
}

static void other_logprob(struct record_row *row)
{
    row->sum ^= 1;
}

static void the_first_difference_is_named(void **state)
{
    (void)state;
    struct core_config c = recorded("changed", 1 << 30);
    static const struct {
        void (*change)(struct record_row *row);
        const char *what;
    } cases[] = {{other_token, "tokens"}, {other_logprob, "logprobs"}};
    struct buf all = BUF_INIT, changed = BUF_INIT;
    run_some(&c, g.n);
    read_all(&all, &c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_reset(&changed);
        with_change(&changed, &all, 7, cases[i].change);
        const struct replayed r = replay_bytes(&c, changed.data, changed.len);
        assert_true(r.difference.step > 0 && r.difference.step == r.n_step);
        assert_string_equal(r.difference.what, cases[i].what);
        assert_true(r.difference.has_row);
    }
    buf_release(&all);
    buf_release(&changed);
}

/* Read to the end. */
static enum q_code read_bytes(const void *data, size_t n, bool *is_incomplete)
{
    struct record_reader r;
    struct record_item item;
    struct mirror m = MIRROR_INIT;
    struct buf slot = BUF_INIT;
    bool more = true;
    q_err_reset(&e);
    enum q_code rc = record_open(&r, data, n, &e);
    if (!rc)
        assert_ok(mirror_init(&m, r.head.limits.max_num_seqs, &e), &e);
    while (!rc && more && !(rc = record_next(&r, &item, &more, &e)))
        if (more && item.kind == RECORD_STEP) {
            assert_ok(mirror_step(&m, &item.view, item.rows, item.counts.n_row, &e), &e);
            buf_reset(&slot);
            mirror_put(&m, item.view.head->n_seq ? item.view.seqs[0].slot : 0, &slot);
        }
    *is_incomplete = !rc && r.is_incomplete;
    mirror_release(&m);
    buf_release(&slot);
    return rc;
}

static void a_cut_file_is_read_to_its_last_frame(void **state)
{
    (void)state;
    struct core_config c = recorded("cut", 1 << 30);
    struct buf all = BUF_INIT;
    bool cut, any_whole = false;
    run_some(&c, 1);
    read_all(&all, &c);
    for (size_t n = 0; n < all.len; n += n < 2048 ? 1 : 61) {
        const enum q_code rc = read_bytes(all.data, n, &cut);
        assert_true(rc == Q_OK || rc == Q_CORRUPT);
        any_whole |= rc == Q_OK && cut;
    }
    assert_true(any_whole);
    assert_int_equal(read_bytes(all.data, all.len, &cut), Q_OK);
    assert_false(cut);
    for (size_t i = 0; i < all.len; i += i < 512 ? 1 : 97) { /* a damaged byte is found */
        all.data[i] ^= 0x40;
        const enum q_code rc = read_bytes(all.data, all.len, &cut);
        assert_true(rc == Q_CORRUPT || rc == Q_MISMATCH || cut);
        all.data[i] ^= 0x40;
    }
    buf_release(&all);
}

/* ---- disks, memory ---- */

/* The disk is full in the middle: recording stops, answers go on, what is there can be read. */
static void a_full_disk_stops_recording_alone(void **state)
{
    (void)state;
    struct core_config c = recorded("full", 1 << 30);
    struct rlimit before, small;
    struct buf all = BUF_INIT;
    bool cut;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    open_core(&c);
    small = (struct rlimit){6001, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t i = 0; i < g.n; i++)
        submit_prompt(i, &g.prompts[i], 0);
    finish_all(g.n);
    core_free(engine.core);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    for (uint32_t i = 0; i < g.n; i++)
        check_answer(i, &g.prompts[i], "on a full disk");
    read_all(&all, &c);
    assert_int_equal(all.len, 6001);
    assert_int_equal(read_bytes(all.data, all.len, &cut), Q_OK);
    assert_true(cut);
    buf_release(&all);
}

static void a_file_that_cannot_be_opened_stops_recording_alone(void **state)
{
    (void)state;
    struct core_config c = recorded("nowhere/file", 1 << 30);
    open_core(&c);
    submit_prompt(0, &g.prompts[0], 0);
    finish_all(1);
    check_answer(0, &g.prompts[0], "without a file");
    core_free(engine.core);
}

static void the_oldest_file_is_replaced(void **state)
{
    (void)state;
    struct core_config c = recorded("few", 4000);
    char path[PATH_MAX];
    c.record.n_file = 3;
    run_some(&c, 3 * g.n);
    for (int i = 1; i < 5; i++) {
        snprintf(path, sizeof path, "%s.%d", c.record.path, i);
        assert_int_equal(file_exists(path), i < 3);
    }
}

/* Other weights of the same shapes are found at the first step that they change. */
static void another_model_differs(void **state)
{
    (void)state;
    struct core_config c = recorded("weights", 1 << 30);
    static struct replay r;
    struct mapping m = MAPPING_INIT;
    run_some(&c, 2);
    assert_ok(mapping_open(&m, c.record.path, &e), &e);
    r = (struct replay)REPLAY_INIT;
    r.config = c;
    snprintf(r.config.worker.model_dir, sizeof r.config.worker.model_dir,
             GOLDENS_DIR "/llama-bias-tied");
    assert_ok(record_open(&r.file, m.data, m.size, &e), &e);
    const enum q_code rc = replay_open(&r, &e);
    if (rc) {
        assert_int_equal(rc, Q_MISMATCH);
    } else {
        assert_ok(replay_run(&r, &e), &e);
        assert_true(r.difference.step > 0);
        assert_string_not_equal(r.fingerprint, r.file.head.fingerprint);
    }
    replay_release(&r);
    mapping_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_replayed),
        cmocka_unit_test(each_file_is_replayed_alone),
        cmocka_unit_test(a_worker_that_dies_is_replayed),
        cmocka_unit_test(the_first_difference_is_named),
        cmocka_unit_test(a_cut_file_is_read_to_its_last_frame),
        cmocka_unit_test(a_full_disk_stops_recording_alone),
        cmocka_unit_test(a_file_that_cannot_be_opened_stops_recording_alone),
        cmocka_unit_test(the_oldest_file_is_replaced),
        cmocka_unit_test(another_model_differs),
    };
    log_setup("test", getenv("QUIRE_TEST_LOG") ? LOG_DEBUG : LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
