/* SPDX-License-Identifier: Apache-2.0 */
/* A good step is viewed as it was laid out; each single count or index out of line is refused;
 * random damage is either refused or harmless (asan watches). */
#include "check.h"
#include <stdlib.h>
#include "common/mem.h"
#include "proto/step.h"

static const struct step_limits limits = {
    .max_num_seqs = 4,
    .max_num_batched_tokens = 32,
    .max_model_len = 64,
    .logit_rows_max = 8,
    .known_max = 64,
    .copies_max = 3,
    .n_state = 6,
};
static struct q_err e;

struct fixture {
    void *memory;
    size_t n, result_n;
    struct step_view v;
};

/* Slot 2 decodes with a new block; slot 0 is admitted with 20 tokens in two blocks, prompt logprobs
 * of 5 rows. */
static int make_step(void **state)
{
    static struct fixture f;
    assert_ok(step_bytes_max(&f.n, &f.result_n, &limits, &e), &e);
    f.memory = q_calloc(1, f.n);
    const struct step_head head = {
        .step = 7,
        .n_seq = 2,
        .n_admit = 1,
        .n_block = 3,
        .n_known = 20,
        .n_stop_id = 2,
        .n_bias = 1,
        .n_list = 5,
        .n_token = 6,
        .n_logit = 6,
        .n_out = 2,
        .n_in = 1,
        .n_snapshot = 3,
    };
    assert_ok(step_layout(&f.v, f.memory, f.n, &head, &e), &e);
    f.v.seqs[0] = (struct step_seq){2, STEP_SAMPLE, 16, 1, 1};
    f.v.seqs[1] = (struct step_seq){0, STEP_ADMIT | STEP_PROMPT_LOGPROBS, 0, 5, 2};
    f.v.admits[0] = (struct step_admit){
        .n_known = 20,
        .n_prompt = 18,
        .n_stop_id = 2,
        .n_bias = 1,
        .n_allowed = 3,
        .n_bad = 2,
        .state = 1,
        .state_from = STEP_STATE_ZERO,
    };
    for (uint32_t i = 0; i < 3; i++)
        f.v.blocks[i] = 100 + i;
    for (uint32_t i = 0; i < 20; i++)
        f.v.known[i] = i;
    f.v.stop_ids[0] = f.v.stop_ids[1] = f.v.bias_ids[0] = 5;
    f.v.bias[0] = 1.5f;
    for (uint32_t i = 0; i < 5; i++)
        f.v.lists[i] = i < 3 ? 50 + i : 1;
    f.v.outs[0] = (struct step_copy){.block = 7, .host = 8};
    f.v.outs[1] = (struct step_copy){.block = 9, .host = 1};
    f.v.ins[0] = (struct step_copy){.block = 100, .host = 2};
    f.v.snapshots[0] = (struct step_snapshot){.seq = 0, .position = 17, .state = 5};
    f.v.snapshots[1] = (struct step_snapshot){.seq = 1, .position = 1, .state = 4};
    f.v.snapshots[2] = (struct step_snapshot){.seq = 1, .position = 5, .state = 0};
    *state = &f;
    return 0;
}

static int drop_step(void **state)
{
    q_free(((struct fixture *)*state)->memory);
    return 0;
}

static void test_view(void **state)
{
    struct fixture *f = *state;
    struct step_view v;
    assert_ok(step_view(&v, f->memory, f->n, &limits, &e), &e);
    assert_memory_equal(&v, &f->v, sizeof v);
    assert_int_equal(v.head->step, 7);
    assert_int_equal(v.blocks[2], 102);
    assert_int_equal(v.known[19], 19);
    assert_true(v.bias[0] == 1.5f);
    assert_int_equal(v.lists[2], 52);
    assert_int_equal(v.outs[1].block, 9);
    assert_int_equal(v.ins[0].host, 2);
    assert_int_equal(v.snapshots[2].position, 5);
    assert_int_equal((uintptr_t)v.seqs % 8 + (uintptr_t)v.blocks % 8 + (uintptr_t)v.bias % 8, 0);
}

#define BREAK(place, value, part)                                                        \
    do {                                                                                 \
        __typeof__(place) was_ = (place);                                                \
        struct step_view v_;                                                             \
        (place) = (value);                                                               \
        assert_fails(step_view(&v_, f->memory, f->n, &limits, &e), Q_CORRUPT, part, &e); \
        (place) = was_;                                                                  \
        assert_ok(step_view(&v_, f->memory, f->n, &limits, &e), &e);                     \
    } while (0)

static void test_counts(void **state)
{
    struct fixture *f = *state;
    struct step_head *h = f->v.head;
    BREAK(h->n_seq, 5, "n_seq is 5, expected at most 4");
    BREAK(h->n_seq, UINT32_MAX, "n_seq");
    BREAK(h->n_seq, 1, "n_");
    BREAK(h->n_admit, 3, "n_admit");
    BREAK(h->n_admit, 0, "the flags indicate 1");
    BREAK(h->n_admit, 2, "the flags indicate 1");
    BREAK(h->n_block, 2, "n_block is 2, the sum over the seqs is 3");
    BREAK(h->n_block, UINT32_MAX, "n_block");
    BREAK(h->n_known, 19, "n_");
    BREAK(h->n_known, 65, "n_known is 65, expected at most 64");
    BREAK(h->n_stop_id, 1, "n_");
    BREAK(h->n_bias, UINT32_MAX, "n_bias");
    BREAK(h->n_list, STEP_LISTS_MAX + 1, "n_list");
    BREAK(h->n_list, 4, "n_");
    BREAK(h->n_token, 7, "n_token is 7, the sum over the seqs is 6");
    BREAK(h->n_token, 33, "n_token is 33, expected at most 32");
    BREAK(h->n_logit, 5, "n_logit is 5");
    BREAK(h->n_logit, 9, "n_logit is 9, expected at most 8");
    BREAK(h->n_out, 4, "n_out is 4, expected at most 3");
    BREAK(h->n_in, UINT32_MAX, "n_in");
    BREAK(h->n_snapshot, 13, "n_snapshot is 13, expected at most 12");
}

static void test_indices(void **state)
{
    struct fixture *f = *state;
    struct step_seq *q = f->v.seqs;
    struct step_admit *a = f->v.admits;
    BREAK(q[0].slot, 4, "a slot is 4");
    BREAK(q[0].slot, 0, "slot 0 appears twice");
    BREAK(q[0].flags, 16, "flags");
    BREAK(q[0].flags, STEP_SPECULATE, "has draft tokens with flags 8");
    BREAK(q[1].flags, STEP_SPECULATE | STEP_SAMPLE | STEP_ADMIT, "has draft tokens with flags 11");
    BREAK(q[0].n_token, 0, "no rows");
    BREAK(q[0].start, 64, "the end of a seq is 65");
    BREAK(q[0].start, UINT32_MAX, "the end of a seq");
    BREAK(q[0].start, 63, "samples beyond max_model_len");
    BREAK(q[0].n_new_block, 5, "n_new_block");
    BREAK(q[1].flags, STEP_SAMPLE, "n_admit");
    BREAK(q[0].flags, STEP_ADMIT, "n_admit");
    BREAK(a->n_known, 65, "n_known");
    BREAK(a->n_cached, 21, "n_cached is 21, expected at most 20");
    BREAK(q[1].start, 1, "an admitted seq's start is 1, expected at most 0");
    struct step_snapshot *s = f->v.snapshots;
    BREAK(a->state, 6, "an admit's state is 6, expected at most 5");
    BREAK(a->state_from, 6, "an admit's state_from is 6, expected at most 5");
    BREAK(s[0].state, 6, "a snapshot's state is 6, expected at most 5");
    BREAK(s[2].seq, 2, "a snapshot's seq is 2, expected at most 1");
    BREAK(s[0].seq, 1, "is not");
    BREAK(s[1].position, 5, "snapshot 2 is not in order");
    BREAK(s[0].position, 16, "snapshot 0 at 16 is not of rows 16 to 17");
    BREAK(s[2].position, 6, "snapshot 2 at 6 is not of rows 0 to 5");
    BREAK(a->n_restored, 21, "n_restored is 21, expected at most 20");
    a->n_restored = 6;
    BREAK(q[1].start, 7, "an admitted seq's start is 7, expected at most 6");
    a->n_restored = 0;
    BREAK(a->n_known, 4, "n_prompt is 18");
    BREAK(a->n_prompt, 0, "n_prompt");
    BREAK(a->n_prompt, 21, "n_prompt");
    BREAK(q[1].start, 16, "an admitted seq's end is 21");
    BREAK(a->n_stop_id, 1, "n_stop_id");
    BREAK(a->n_stop_id, UINT32_MAX, "n_stop_id");
    BREAK(a->n_bias, 0, "n_bias");
    BREAK(a->n_bias, SAMPLE_BIAS_MAX + 1, "n_bias");
    BREAK(a->n_allowed, 2, "n_list is 5, the sum over the seqs is 4");
    BREAK(a->n_allowed, SAMPLE_ALLOWED_MAX + 1, "n_allowed");
    BREAK(a->n_thinking, 1, "n_list is 5, the sum over the seqs is 6");
    BREAK(a->n_thinking, 2049, "n_thinking");
    BREAK(a->n_bad, SAMPLE_BAD_MAX + 1, "n_bad");
}

static void test_memory(void **state)
{
    struct fixture *f = *state;
    struct step_view v;
    struct step_head head = *f->v.head;
    size_t used = ((size_t)((char *)(f->v.snapshots + 3) - (char *)f->memory) + 7) & ~(size_t)7;
    assert_ok(step_view(&v, f->memory, used, &limits, &e), &e);
    assert_fails(step_view(&v, f->memory, used - 1, &limits, &e), Q_CORRUPT, "its size", &e);
    assert_fails(step_view(&v, f->memory, 3, &limits, &e), Q_CORRUPT, "do not contain a head", &e);
    assert_fails(step_view(&v, (char *)f->memory + 4, used, &limits, &e), Q_CORRUPT,
                 "do not contain a head", &e);
    assert_fails(step_layout(&v, f->memory, used - 1, &head, &e), Q_TOO_LARGE, "bytes needed", &e);
}

/* The largest step within the limits fits exactly step_bytes_max. */
static void test_bytes_max(void **state)
{
    (void)state;
    size_t n, result_n;
    struct step_view v;
    struct step_result r;
    assert_ok(step_bytes_max(&n, &result_n, &limits, &e), &e);
    struct step_head head = {
        .n_seq = 4,
        .n_admit = 4,
        .n_block = 16,
        .n_known = 64,
        .n_stop_id = 4 * STEP_STOP_IDS_MAX,
        .n_bias = 4 * SAMPLE_BIAS_MAX,
        .n_list = STEP_LISTS_MAX,
        .n_out = 3,
        .n_in = 3,
        .n_snapshot = 4 * STEP_SEQ_SNAPSHOTS,
    };
    void *memory = q_alloc(n), *result = q_alloc(result_n);
    assert_ok(step_layout(&v, memory, n, &head, &e), &e);
    assert_fails(step_layout(&v, memory, n - 1, &head, &e), Q_TOO_LARGE, "bytes needed", &e);
    assert_ok(step_result_layout(&r, result, result_n, 8, 8 * SAMPLE_LOGPROBS_FEW, &e), &e);
    assert_fails(step_result_layout(&r, result, result_n, 8, 8 * SAMPLE_LOGPROBS_FEW + 400, &e),
                 Q_TOO_LARGE, "bytes needed", &e);
    q_free(memory);
    q_free(result);
    struct step_limits huge = limits;
    huge.max_num_seqs = STEP_SEQS_MAX + 1;
    assert_fails(step_bytes_max(&n, &result_n, &huge, &e), Q_TOO_LARGE, "max_num_seqs", &e);
    huge = limits;
    huge.logit_rows_max = UINT32_MAX;
    assert_fails(step_bytes_max(&n, &result_n, &huge, &e), Q_TOO_LARGE, "logit_rows_max", &e);
}

static void test_result(void **state)
{
    struct fixture *f = *state;
    struct step_result r, v;
    void *memory = q_calloc(1, f->result_n);
    assert_ok(step_result_layout(&r, memory, f->result_n, 2, 3, &e), &e);
    r.head->step = 9;
    r.rows[0] = (struct step_row){.slot = 3, .position = 63, .n_top = 1, .top_start = 0};
    r.rows[1] = (struct step_row){.slot = 0, .position = 0, .n_top = 2, .top_start = 1};
    assert_ok(step_result_view(&v, memory, f->result_n, &limits, &e), &e);
    assert_memory_equal(&v, &r, sizeof v);
#define BREAK_RESULT(place, value, part)                                                           \
    do {                                                                                           \
        uint32_t was_ = (place);                                                                   \
        (place) = (value);                                                                         \
        assert_fails(step_result_view(&v, memory, f->result_n, &limits, &e), Q_CORRUPT, part, &e); \
        (place) = was_;                                                                            \
    } while (0)
    BREAK_RESULT(r.head->n_row, 9, "n_row");
    BREAK_RESULT(r.head->n_row, UINT32_MAX, "n_row");
    BREAK_RESULT(r.head->n_top, 8 * SAMPLE_LOGPROBS_FEW + 1, "n_top");
    BREAK_RESULT(r.head->error, Q_CODE_COUNT, "error");
    BREAK_RESULT(r.rows[0].slot, 4, "slot");
    BREAK_RESULT(r.rows[0].position, 64, "position");
    BREAK_RESULT(r.rows[1].n_top, 3, "alternatives");
    BREAK_RESULT(r.rows[1].top_start, UINT32_MAX, "alternatives");
    BREAK_RESULT(r.rows[1].n_top, SAMPLE_LOGPROBS_MAX + 1, "n_top");
    q_free(memory);
}

static void test_result_notes(void **state)
{
    struct fixture *f = *state;
    struct step_result r, v;
    struct step_note note;
    char long_text[2000];
    void *memory = q_calloc(1, f->result_n);
    assert_ok(step_result_layout(&r, memory, f->result_n, 8, 8 * SAMPLE_LOGPROBS_FEW, &e), &e);
    for (uint32_t i = 0; i < limits.max_num_seqs; i++) {
        step_note_set(&note, i, 0, "grids[0]: \x01no\ngrid\xff\xc3\xa9");
        assert_ok(step_result_note(&r, f->result_n, &note, &e), &e);
    }
    assert_fails(step_result_note(&r, f->result_n, &note, &e), Q_TOO_LARGE, "for a note", &e);
    assert_ok(step_result_view(&v, memory, f->result_n, &limits, &e), &e);
    assert_memory_equal(&v, &r, sizeof v);
    assert_string_equal(v.notes[limits.max_num_seqs - 1].text, "grids[0]:  no grid \xc3\xa9");
    BREAK_RESULT(r.head->n_note, limits.max_num_seqs + 1, "n_note");
    BREAK_RESULT(r.notes[0].slot, limits.max_num_seqs, "note's slot");
    BREAK_RESULT(r.notes[0].slot, 1, "two notes");
    memset(r.notes[1].text, 'a', sizeof r.notes[1].text);
    assert_fails(step_result_view(&v, memory, f->result_n, &limits, &e), Q_CORRUPT, "no end", &e);
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    memcpy(long_text + STEP_NOTE_MAX - 2, "\xe2\x82\xac", 3); /* does not fit */
    step_note_set(&note, 3, 0, long_text);
    assert_int_equal(strlen(note.text), STEP_NOTE_MAX - 2);
    q_free(memory);
}

/* Read everything a view promises. */
static uint64_t read_all(const struct step_view *v)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        sum += v->seqs[i].slot;
    for (uint32_t i = 0; i < v->head->n_admit; i++)
        sum += v->admits[i].n_known;
    for (uint32_t i = 0; i < v->head->n_block; i++)
        sum += v->blocks[i];
    for (uint32_t i = 0; i < v->head->n_known; i++)
        sum += v->known[i];
    for (uint32_t i = 0; i < v->head->n_stop_id; i++)
        sum += v->stop_ids[i];
    for (uint32_t i = 0; i < v->head->n_bias; i++)
        sum += v->bias_ids[i] + (v->bias[i] > 0);
    for (uint32_t i = 0; i < v->head->n_list; i++)
        sum += v->lists[i];
    for (uint32_t i = 0; i < v->head->n_out; i++)
        sum += v->outs[i].host;
    for (uint32_t i = 0; i < v->head->n_in; i++)
        sum += v->ins[i].host;
    for (uint32_t i = 0; i < v->head->n_snapshot; i++)
        sum += v->snapshots[i].state;
    return sum;
}

static void test_damage(void **state)
{
    struct fixture *f = *state;
    size_t used = ((size_t)((char *)(f->v.snapshots + 3) - (char *)f->memory) + 7) & ~(size_t)7;
    char *tight =
        q_alloc(used); /* exactly as large, so that a sanitizer reports one byte too far */
    uint64_t random = 88172645463325252u, sum = 0;
    uint32_t n_taken = 0;
    for (int i = 0; i < 20000; i++) {
        struct step_view v;
        memcpy(tight, f->memory, used);
        for (int k = 0; k < 1 + i % 3; k++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            tight[random % used] = (char)(random >> 40);
        }
        if (!step_view(&v, tight, used, &limits, &e)) {
            sum += read_all(&v);
            n_taken++;
        }
    }
    assert_true(n_taken > 100 && sum > 0); /* damage to tokens and blocks is not seen here */
    q_free(tight);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, make_step, drop_step)
    const struct CMUnitTest tests[] = {
        T(view),      T(counts), T(indices),      T(memory),
        T(bytes_max), T(result), T(result_notes), T(damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
