/* SPDX-License-Identifier: Apache-2.0 */
/* bench: what is said of samples, of a batch's clock and of a server's records; traces; streams.
 * The verbs themselves: tests/e2e/test_bench.py. */
#include "check.h"
#include <math.h>
#include <stdlib.h>
#include <zstd.h>
#include "common/file.h"
#include "engine/bench/cost.h"
#include "engine/bench/offline.h"
#include "engine/bench/serve_stats.h"
#include "engine/bench/sse.h"
#include "engine/bench/trace.h"

#define near(got, want) \
    assert_true(fabs((got) - (double)(want)) < 1e-9 * (1 + fabs((double)(want))))

static struct samples samples_of(const double *x, size_t n)
{
    struct samples s = SAMPLES_INIT;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < n; i++)
        assert_ok(samples_add(&s, x[i], &e), &e);
    return s;
}

static void samples_are_summed_up(void **state)
{
    (void)state;
    struct samples none = SAMPLES_INIT;
    assert_true(isnan(samples_median(&none)) && isnan(samples_mean(&none)) &&
                isnan(samples_std(&none)));
    const double x[] = {4, 1, 3, 2};
    struct samples s = samples_of(x, 4);
    samples_sort(&s);
    near(samples_median(&s), 2.5);
    near(samples_percentile(&s, 0), 1);
    near(samples_percentile(&s, 100), 4);
    near(samples_percentile(&s, 90), 3.7); /* numpy.percentile([1, 2, 3, 4], 90) */
    near(samples_mean(&s), 2.5);
    near(samples_std(&s), sqrt(1.25)); /* numpy.std */
    samples_release(&s);
    s = samples_of(x, 1);
    near(samples_percentile(&s, 99), 4);
    samples_release(&s);
}

/* Two sequences: the second gets its first token later, and its last one too. */
static void a_batch_is_measured_while_all_decode(void **state)
{
    (void)state;
    int64_t a[] = {20000, 30000, 40000, 50000}, b[] = {30000, 40000, 50000, 60000};
    struct token_clock clocks[2] = {
        {.sent_us = 0, .at_us = a, .n_max = 4},
        {.sent_us = 1000, .at_us = b, .n_max = 4},
    };
    const struct batch_shape s = {2, 300, 4};
    struct batch_times t;
    struct q_err e = Q_ERR_INIT;
    atomic_store(&clocks[0].n, 5); /* the end is an event too */
    atomic_store(&clocks[1].n, 5);
    assert_ok(batch_measure(&t, clocks, &s, &e), &e);
    near(t.prefill_tok_s, 600 / 0.030);
    near(t.ttft_ms, 24.5);
    near(t.decode_tok_s, 4 / 0.020); /* those in (30, 50] ms */
    near(t.itl_ms, 10);
    const struct batch_shape one = {1, 300, 1};
    clocks[0].n_max = 1;
    assert_ok(batch_measure(&t, clocks, &one, &e), &e);
    assert_true(isnan(t.decode_tok_s) && isnan(t.itl_ms));
    near(t.ttft_ms, 20);
    near(t.prefill_tok_s, 300 / 0.020);
}

static void costs_are_bytes_and_operations(void **state)
{
    (void)state;
    static struct bench b;
    struct quire_info info = {
        .dtype = "BF16",
        .row_ops = 1000,
        .logit_ops = 500,
        .context_ops = 10,
        .step_bytes = 4000,
        .kv_token_bytes = 8,
    };
    const struct cost_shape s = {2, 10, 4};
    near(cost_step_bytes(&info, &s), 4000 + 2 * 12 * 8);
    near(cost_prefill_ops(&info, &s), 2 * (10 * 1000 + 55 * 10 + 500));
    info.asked_row_ops = 100; /* of the last token alone */
    info.asked_context_ops = 1;
    near(cost_prefill_ops(&info, &s), 2 * (10 * 900 + 55 * 9 + 100 + 10 + 500));
    near(cost_ops(&info, 10, 3), 12 * 900 + 78 * 9 + 3 * 100 + (10 + 11 + 12) + 3 * 500);
    info.asked_row_ops = info.asked_context_ops = 0;
    options_defaults(&b.o);
    assert_true(isnan(cost_decode_fraction(&b, &info, &s, 5)));
    b.has_roofline = true;
    b.roofline =
        (struct roofline){.read_gb_s = 1e-6, .fp32_gop_s = 1, .bf16_gop_s = 2, .int8_gop_s = 4};
    near(cost_decode_fraction(&b, &info, &s, 100), (4000 + 192) * 50 / 1e3);
    near(cost_peak(&b, &info), 2e9);
    memcpy(info.quantization, "int4", sizeof "int4"); /* by the checkpoint, no option */
    near(cost_peak(&b, &info), 4e9);
    near(cost_prefill_fraction(&b, &info, &s, 20), cost_prefill_ops(&info, &s) / 4e9);
}

static void lists_are_numbers(void **state)
{
    (void)state;
    struct bench_list l;
    struct q_err e = Q_ERR_INIT;
    assert_ok(bench_list_parse(&l, "1,8,32", 100, "--x", &e), &e);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.x[2], 32);
    const char *const bad[] = {"", "1,", ",1", "0", "101", "1;2", "99999999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(bench_list_parse(&l, bad[i], 100, "--x", &e), Q_INVALID, "--x", &e);
}

static enum q_code parse(struct workload *w, const char *text, struct q_err *e)
{
    workload_release(w);
    q_err_reset(e);
    return trace_parse(w, text, strlen(text), e);
}

static void traces_are_read(void **state)
{
    (void)state;
    struct workload w = WORKLOAD_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(parse(&w,
                    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                    "2023-11-16 23:59:59.9000000,4808,10\r\n2023-11-17 00:00:01,3180,8\r\n",
                    &e),
              &e);
    assert_int_equal(w.n, 2);
    assert_true(w.timed);
    near(w.items[0].at_s, 0);
    assert_true(fabs(w.items[1].at_s - 1.1) < 1e-6);
    assert_int_equal(w.items[0].input_len, 4808);
    assert_int_equal(w.items[1].output_len, 8);
    assert_ok(parse(&w,
                    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                    "45,ChatGPT,472,18,490,Conversation log\n5,GPT-4,100,0,100,API log\n"
                    "44.5,GPT-4,7,9,16,API log\n",
                    &e),
              &e);
    assert_int_equal(w.n, 2); /* one had no answer; sorted by time */
    assert_int_equal(w.items[0].input_len, 7);
    near(w.items[1].at_s, 0.5);
    assert_ok(parse(&w,
                    "{\"timestamp\": 27482, \"input_length\": 600, \"output_length\": 52, "
                    "\"hash_ids\": [46, 47]}\n\n"
                    "{\"timestamp\": 28000.5, \"input_length\": 1100, \"output_length\": 1, "
                    "\"hash_ids\": [46, 48, 49]}",
                    &e),
              &e);
    assert_int_equal(w.n, 2);
    near(w.items[1].at_s, 0.5185);
    uint32_t one[600], two[1100];
    workload_ids(&w, 0, 1000, one);
    workload_ids(&w, 1, 1000, two);
    assert_memory_equal(one, two, 512 * sizeof *one); /* the block of the same name */
    assert_memory_not_equal(one + 512, two + 512, 88 * sizeof *one);
    for (size_t i = 0; i < 1100; i++)
        assert_in_range(two[i], 125, 999);
    workload_release(&w);
}

static void bad_traces_say_where(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "unknown trace format"},
        {"a,b\n1,2\n", "starts with \"a,b"},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
         "Azure trace, line 2: TIMESTAMP is \"yesterday\""},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1\n",
         "line 2: GeneratedTokens is missing"},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,4\n", "ContextTokens"},
        {"Timestamp,Model,Request tokens,Response tokens\nx,y,1,1\n", "Timestamp"},
        {"{\"timestamp\":1,\"input_length\":1,\"output_length\":1}\n{\n",
         "Mooncake trace, line 2: not a JSON object"},
        {"{\"input_length\":1}", "timestamp is not a number"},
        {"{\"timestamp\":1,\"input_length\":1.5,\"output_length\":1}",
         "input_length is not a whole"},
        {"{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[-1]}", "hash_ids"},
        {"{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":7}", "not a list"},
    };
    struct workload w = WORKLOAD_INIT;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(parse(&w, bad[i].text, &e), Q_CORRUPT, bad[i].says, &e);
    workload_release(&w);
}

static void compressed_traces_are_unpacked(void **state)
{
    (void)state;
    const size_t n = (size_t)1 << 20;
    char path[] = "/tmp/quire-test-trace-XXXXXX";
    char *text = malloc(n), *packed = malloc(ZSTD_compressBound(n));
    struct buf got = BUF_INIT, small = BUF_INIT_MAX(1000);
    struct q_err e = Q_ERR_INIT;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && text && packed);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i * 2654435761u % 26);
    size_t n_packed = ZSTD_compress(packed, ZSTD_compressBound(n), text, n, 1);
    assert_ok(file_write(path, packed, n_packed, 0600, &e), &e);
    assert_ok(trace_read(&got, path, &e), &e);
    assert_int_equal(got.len, n);
    assert_memory_equal(got.data, text, n);
    assert_int_not_equal(trace_read(&small, path, &e), Q_OK);
    q_err_reset(&e);
    assert_ok(file_write(path, packed, n_packed / 2, 0600, &e), &e);
    buf_reset(&got);
    assert_fails(trace_read(&got, path, &e), Q_CORRUPT, "zstd", &e);
    remove(path);
    assert_fails(trace_read(&got, path, &e), Q_NOT_FOUND, path, &e);
    buf_release(&got);
    buf_release(&small);
    free(text);
    free(packed);
}

static void custom_prompts_are_lines(void **state)
{
    (void)state;
    struct workload w = WORKLOAD_INIT;
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    const char good[] = "{\"prompt\":\"one\"}\n\n{\"prompt\":\"two\",\"output_tokens\":5}\n";
    assert_ok(workload_custom(&w, good, strlen(good), 9, &e), &e);
    assert_int_equal(w.n, 2);
    assert_int_equal(w.items[0].output_len, 9);
    assert_int_equal(w.items[1].output_len, 5);
    workload_words(&w, 1, &b);
    assert_string_equal(buf_str(&b), "two");
    assert_fails(workload_custom(&w, "{\"x\":1}", 7, 9, &e), Q_CORRUPT, "line 1: prompt", &e);
    assert_fails(workload_custom(&w, "[]", 2, 9, &e), Q_CORRUPT, "line 1: not a JSON object", &e);
    buf_release(&b);
    workload_release(&w);
}

static struct sse_piece pieces[16];
static uint32_t n_piece;

static enum q_code keep(void *ctx, const struct sse_piece *p, struct q_err *e)
{
    (void)ctx, (void)e;
    if (n_piece < 16)
        pieces[n_piece++] = *p;
    return Q_OK;
}

static enum q_code push_in_parts(const char *text, size_t part, bool *done, struct q_err *e)
{
    struct sse s;
    enum q_code rc = Q_OK;
    size_t n = strlen(text);
    n_piece = 0;
    sse_init(&s, keep, NULL);
    for (size_t at = 0; at < n && !rc; at += part)
        rc = sse_push(&s, text + at, n - at < part ? n - at : part, e);
    *done = s.done;
    sse_release(&s);
    return rc;
}

static void streams_are_read_in_any_pieces(void **state)
{
    (void)state;
    static const char stream[] =
        ": ping\n\nevent: x\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\r\n\r\n"
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
        "data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}],\"usage\":null}\n\n"
        "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[5]}]}\n\n"
        "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n"
        "data: [DONE]\n\n";
    struct q_err e = Q_ERR_INIT;
    for (size_t part = 1; part < sizeof stream; part += 1 + part / 3) {
        bool done;
        assert_ok(push_in_parts(stream, part, &done, &e), &e);
        assert_true(done);
        assert_int_equal(n_piece, 6);
        const bool tokens[] = {true, false, true, true, false, false};
        for (int i = 0; i < 6; i++)
            assert_int_equal(pieces[i].has_token, tokens[i]);
        assert_true(pieces[4].has_finish && !pieces[3].has_finish);
        assert_true(pieces[5].has_usage && !pieces[2].has_usage);
        assert_int_equal(pieces[5].n_output, 3);
    }
    bool done;
    assert_fails(push_in_parts("data: {\n", 3, &done, &e), Q_CORRUPT, "not a JSON object", &e);
    assert_fails(push_in_parts("data: {\"error\":{\"message\":\"too hot\"}}\n", 99, &done, &e),
                 Q_CORRUPT, "the server reports: too hot", &e);
    char text[64];
    const char refusal[] = "{\"error\":{\"message\":\"no\\nroom\"}}";
    sse_error_text(text, sizeof text, refusal, strlen(refusal));
    assert_string_equal(text, "no room");
    sse_error_text(text, sizeof text, "<html>", 6);
    assert_string_equal(text, "<html>");
}

static void records_become_figures(void **state)
{
    (void)state;
    /* ms: sent 0, first 100, end 300 with 3 tokens; sent 100, first 400, end 500 with 1; failed;
     * never sent */
    const struct serve_record records[] = {
        {
            .ok = true,
            .due_us = 1,
            .sent_us = 1,
            .first_us = 100001,
            .last_us = 300001,
            .end_us = 300001,
            .n_input = 10,
            .n_output = 3,
            .n_piece = 3,
        },
        {
            .ok = true,
            .due_us = 50001,
            .sent_us = 100001,
            .first_us = 400001,
            .last_us = 400001,
            .end_us = 500001,
            .n_input = 20,
            .n_output = 1,
            .n_piece = 1,
        },
        {.sent_us = 300001, .end_us = 1000001, .n_input = 5, .n_output = 5, .error = "no"},
        {.n_input = 5, .n_output = 5},
    };
    struct q_err e = Q_ERR_INIT;
    const double pauses_ms[] = {120, 80};
    struct samples pauses = samples_of(pauses_ms, 2);
    struct serve_limits limits = {{0}, false};
    struct serve_figures f;
    assert_ok(serve_limits_parse(&limits, "ttft:200 tpot:100,e2el:400", &e), &e);
    assert_ok(serve_figure_out(&f, records, 4, &pauses, &limits, &e), &e);
    assert_int_equal(f.n_ok, 2);
    assert_int_equal(f.n_failed, 1);
    assert_int_equal(f.n_good, 1);
    assert_int_equal(f.n_input, 30);
    assert_int_equal(f.n_output, 4);
    near(f.duration_s, 1);
    near(f.rate_good, 1);
    near(f.total_tok_s, 34);
    assert_int_equal(f.concurrency_max, 2);
    near(samples_median(&f.times[METRIC_TTFT]), 200);
    near(samples_median(&f.times[METRIC_TPOT]), 100); /* of the one with more than one token */
    assert_int_equal(f.times[METRIC_TPOT].n, 1);
    near(samples_median(&f.times[METRIC_ITL]), 100);
    near(samples_mean(&f.times[METRIC_E2EL]), 350);
    near(f.late_ms, 49.5); /* 99th percentile of 0 and 50 */
    serve_figures_release(&f);
    assert_fails(serve_limits_parse(&limits, "ttft", &e), Q_INVALID, "ttft:500", &e);
    assert_fails(serve_limits_parse(&limits, "x:1", &e), Q_INVALID, "not one of", &e);
    assert_fails(serve_limits_parse(&limits, "ttft:-1", &e), Q_INVALID, "--goodput", &e);
    struct serve_view v;
    assert_ok(serve_view_parse(&v, "ttft,e2el", "50,99.9", &e), &e);
    assert_true(v.metrics[METRIC_TTFT] && !v.metrics[METRIC_ITL] && v.n_percent == 2);
    assert_fails(serve_view_parse(&v, "ttft", "101", &e), Q_INVALID, "--metric-percentiles", &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_summed_up),
        cmocka_unit_test(a_batch_is_measured_while_all_decode),
        cmocka_unit_test(costs_are_bytes_and_operations),
        cmocka_unit_test(lists_are_numbers),
        cmocka_unit_test(traces_are_read),
        cmocka_unit_test(bad_traces_say_where),
        cmocka_unit_test(compressed_traces_are_unpacked),
        cmocka_unit_test(custom_prompts_are_lines),
        cmocka_unit_test(streams_are_read_in_any_pieces),
        cmocka_unit_test(records_become_figures),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
