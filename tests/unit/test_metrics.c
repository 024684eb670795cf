/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: the text format, histograms, and slots of several processes in one mapping. */
#include <sys/mman.h>
#include <unistd.h>
#include "check.h"
#include "common/metrics.h"

static struct buf text;

/* Render and find a line. */
static int has_line(const char *line)
{
    buf_reset(&text);
    metrics_render(&text, "m\"o\\d\nel");
    assert_int_equal(text.failed, Q_OK);
    const char *at = strstr(buf_str(&text), line);
    return at && (at == text.data || at[-1] == '\n') && at[strlen(line)] == '\n';
}

#define LABELS "engine=\"0\",model_name=\"m\\\"o\\\\d\\nel\""

static void test_counters_and_gauges(void **state)
{
    (void)state;
    metric_add(METRIC_SUCCESS_STOP, 1);
    metric_add(METRIC_SUCCESS_STOP, 2);
    metric_set(METRIC_KV_USAGE, 0.25);
    metric_set(METRIC_PREEMPTIONS, 9);
    metric_set(METRIC_ENGINE_PROMPT, 12345678901234.0);
    assert_true(has_line("vllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 3"));
    assert_true(has_line("vllm:request_success_total{" LABELS ",finished_reason=\"length\"} 0"));
    assert_true(has_line("vllm:kv_cache_usage_perc{" LABELS "} 0.25"));
    assert_true(has_line("vllm:num_preemptions_total{" LABELS "} 9"));
    assert_true(has_line("quire:engine_prompt_tokens_total{" LABELS "} 12345678901234"));
    assert_true(has_line("# TYPE vllm:num_preemptions_total counter"));
    assert_true(has_line("# TYPE vllm:kv_cache_usage_perc gauge"));
}

static void test_family_is_announced_once(void **state)
{
    (void)state;
    assert_true(has_line("# TYPE vllm:request_success_total counter"));
    const char *first = strstr(buf_str(&text), "# TYPE vllm:request_success_total");
    assert_null(strstr(first + 1, "# TYPE vllm:request_success_total"));
}

static void test_histogram(void **state)
{
    (void)state;
    metric_observe(METRIC_TTFT, 0.0004);
    metric_observe(METRIC_TTFT, 0.0005); /* a bound belongs to its bucket */
    metric_observe(METRIC_TTFT, 0.3);
    metric_observe(METRIC_TTFT, 1e9);
    assert_int_equal((int)metric_value(METRIC_TTFT), 4);
    assert_true(has_line("vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"0.0005\"} 2"));
    assert_true(has_line("vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"0.25\"} 2"));
    assert_true(has_line("vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"0.3\"} 3"));
    assert_true(has_line("vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"640\"} 3"));
    assert_true(has_line("vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"+Inf\"} 4"));
    assert_true(has_line("vllm:time_to_first_token_seconds_count{" LABELS "} 4"));
}

static void test_buckets_kept_elsewhere(void **state)
{
    (void)state;
    uint64_t counts[16] = {[0] = 5, [3] = 2, [15] = 1};
    metric_set_buckets(METRIC_ITERATION, counts, 16, 100);
    metric_set_buckets(METRIC_ITERATION, counts, 3, 7); /* another table of bounds: ignored */
    assert_true(has_line("vllm:iteration_tokens_total_bucket{" LABELS ",le=\"1\"} 5"));
    assert_true(has_line("vllm:iteration_tokens_total_bucket{" LABELS ",le=\"8\"} 7"));
    assert_true(has_line("vllm:iteration_tokens_total_count{" LABELS "} 8"));
    assert_true(has_line("vllm:iteration_tokens_total_sum{" LABELS "} 100"));
}

static void test_slots(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)metrics_bytes(2)) == 0);
    assert_fails(metrics_share(fd, 2, 2, &e), Q_INVALID, "slot 2 of 2", &e);
    assert_fails(metrics_share(fd, 0, METRICS_SLOTS_MAX + 1, &e), Q_INVALID, "slot", &e);
    assert_fails(metrics_share(-1, 0, 2, &e), Q_IO, "mmap", &e);
    assert_ok(metrics_share(fd, 0, 2, &e), &e);
    metric_add(METRIC_SUCCESS_STOP, 4);
    metric_set(METRIC_OPEN_REQUESTS, 3);
    metric_set(METRIC_RUNNING, 7);
    metric_observe(METRIC_TTFT, 0.01);
    assert_ok(metrics_share(fd, 1, 2, &e), &e); /* as another process would */
    metric_add(METRIC_SUCCESS_STOP, 5);
    metric_set(METRIC_OPEN_REQUESTS, 2);
    metric_set(METRIC_RUNNING, 6);
    metric_observe(METRIC_TTFT, 0.01);
    assert_true(has_line("vllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 9"));
    assert_true(has_line("quire:open_requests{" LABELS "} 5"));
    assert_true(has_line("vllm:num_requests_running{" LABELS "} 6")); /* as set above */
    assert_true(has_line("vllm:time_to_first_token_seconds_count{" LABELS "} 2"));
    assert_ok(metrics_share(fd, 0, 2, &e), &e); /* restarted: counters go on, gauges begin anew */
    assert_true(has_line("vllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 9"));
    assert_true(has_line("quire:open_requests{" LABELS "} 2"));
    close(fd);
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_and_gauges),
        cmocka_unit_test(test_family_is_announced_once),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_buckets_kept_elsewhere),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
