# SPDX-License-Identifier: Apache-2.0
"""/metrics: vLLM's names, the text format, and figures that agree with what was asked."""
import os
import re
import signal
import threading

from servers import MODELS

NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total
generation_tokens_total request_success_total e2e_request_latency_seconds time_to_first_token_seconds
inter_token_latency_seconds request_time_per_output_token_seconds request_queue_time_seconds request_prompt_tokens
request_generation_tokens iteration_tokens_total prefix_cache_queries_total prefix_cache_hits_total
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_params_max_tokens
request_params_n num_requests_swapped prompt_tokens_by_source_total corrupted_requests_total prompt_tokens_cached_total
request_max_num_generation_tokens request_prefill_kv_computed_tokens cache_config_info cpu_cache_usage_perc""".split()


def test_names_and_format(wide):
    status, text = wide.get("/metrics")
    types, seen = {}, {}
    for line in text.splitlines():
        if match := re.fullmatch(r"# TYPE (\S+) (counter|gauge|histogram)", line):
            assert match[1] not in types, "a family is announced twice"
            types[match[1]] = match[2]
        elif not line.startswith("# HELP "):
            name, labels, value = re.fullmatch(r"([a-z_:]+[a-z0-9_:]*)\{(.*)\} (\S+)", line).groups()
            family = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            assert types[family], line
            assert 'model_name="' in labels
            seen.setdefault(family, []).append((name, labels, float(value)))
    assert status == 200 and set(types) == set(seen)
    for name in NAMES:
        assert f"vllm:{name}" in types
    for name, kind in types.items():
        if kind == "histogram":
            counts = [value for n, _, value in seen[name] if n.endswith("_bucket")]
            assert counts == sorted(counts) and 'le="+Inf"' in seen[name][len(counts) - 1][1]
            assert counts[-1] == next(value for n, _, value in seen[name] if n.endswith("_count"))
    bounds = re.findall(r'vllm:time_to_first_token_seconds_bucket\{.*le="([^"]+)"', text)
    assert bounds[0] == "0.0005" and {"0.01", "0.1", "1", "10", "640"} <= set(bounds)


def test_figures_agree(wide):
    def figures():
        return {name: wide.metric(name, **labels) for name, labels in [
            ("vllm:prompt_tokens_total", {}), ("vllm:generation_tokens_total", {}),
            ("vllm:request_success_total", {"finished_reason": "length"}), ("vllm:e2e_request_latency_seconds_count", {}),
            ("vllm:inter_token_latency_seconds_count", {}), ("vllm:request_params_n_sum", {}),
            ("vllm:prompt_tokens_by_source_total", {}), ("vllm:request_prefill_kv_computed_tokens_count", {}),
            ("vllm:request_max_num_generation_tokens_sum", {}), ("vllm:request_params_max_tokens_sum", {}),
            ("quire:http_responses_total", {"code": "4xx"})]}
    before = figures()
    wide.complete([[1, 2, 3], [4, 5]], max_tokens=6, ignore_eos=True, n=2)
    assert wide.post("/v1/completions", {"prompt": 5})[0] == 400
    after = figures()
    grown = {name: after[name] - before[name] for name in before}
    # the prompt counts for each sequence that computes it
    assert grown == {"vllm:prompt_tokens_total": 10, "vllm:generation_tokens_total": 24, "vllm:request_success_total": 4,
                     "vllm:e2e_request_latency_seconds_count": 4, "vllm:inter_token_latency_seconds_count": 20,
                     "vllm:request_params_n_sum": 2, "vllm:prompt_tokens_by_source_total": 10,
                     "vllm:request_prefill_kv_computed_tokens_count": 4, "vllm:request_max_num_generation_tokens_sum": 6,
                     "vllm:request_params_max_tokens_sum": 24, "quire:http_responses_total": 1}


def test_figures_are_current(start):
    """Whatever the heartbeat: a scrape behind an answer shows what that answer changed; with two frontends too."""
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", "--heartbeat-ms", "60000",
                   "--frontends", "2")
    n_step, n_token = 0, 0
    for i in range(8):
        assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
        server.complete([1 + i, 2, 3, 4], max_tokens=5, ignore_eos=True, enable_prefix_caching=False)
        now = server.metric("vllm:iteration_tokens_total_count"), server.metric("vllm:iteration_tokens_total_sum")
        assert now[0] >= n_step + 5 and now[1] >= n_token + 8, (now, n_step, n_token)
        n_step, n_token = now
        assert server.metric("quire:kv_blocks_used") == 0
        assert server.metric("quire:engine_generation_tokens_total") == 5 * (i + 1)
    assert server.post("/pause?mode=keep", b"{}")[0] == 200
    thread = threading.Thread(target=lambda: server.complete([1, 2], max_tokens=20, ignore_eos=True, n=3))
    thread.start()
    server.wait_metric("vllm:num_requests_waiting", 3)
    assert server.post("/resume", b"{}")[0] == 200
    thread.join()
    assert server.metric("vllm:num_requests_running") == 0 and server.metric("vllm:kv_cache_usage_perc") == 0


def test_figures_without_an_engine(start):
    """An engine that is away holds up no scrape."""
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")
    engine = server.children("quire-engine")[0]
    os.kill(engine, signal.SIGSTOP)
    assert server.get("/metrics", timeout=20)[0] == 200
    os.kill(engine, signal.SIGCONT)


def test_time_between_steps_is_counted(wide):
    before = wide.metric("quire:step_gaps_total")
    wide.complete([[1, 2, 3]], max_tokens=6, ignore_eos=True)
    wide.wait_metric_above("quire:step_gaps_total", before)  # a heartbeat tells
    assert wide.metric("quire:step_gap_seconds_total") >= 0
