# SPDX-License-Identifier: Apache-2.0
"""quire bench: each verb on something small, the shape of its JSON, and what it says when things go wrong."""
import http.server
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from servers import BIN, BUNDLED, MODELS, ROOT

LATENCY_KEYS = {"batch_size", "input_len", "output_len", "prefill_tok_s", "decode_tok_s", "ttft_ms", "itl_ms", "peak_rss_mb",
                "fraction_of_bandwidth", "fraction_of_peak", "step_bytes", "prefill_ops", "step_gap_us"}
DUMMY = ("--load-format", "dummy")


def bench(*args):
    return subprocess.run([BIN / "quire", "bench", *map(str, args)], capture_output=True, text=True, timeout=300)


def results(*args):
    """The object that --json - prints; the table goes to standard error then."""
    out = bench(*args, "--json", "-")
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout), out.stderr


@pytest.fixture(params=sorted({p.parent.name for p in MODELS.glob("*/config.json")}))
def family(request, tmp_path):
    """A folder with nothing but the config.json of one of the golden models."""
    config = (MODELS / request.param / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    return tmp_path


def test_config_alone_is_enough(family):
    answer, _ = results("latency", family, *DUMMY, "--no-roofline", "--input-len", 8, "--output-len", 3, "--batch-size", "2",
                        "--repeats", 1)
    assert answer["results"][0]["decode_tok_s"] > 0


def test_latency(tmp_path):
    file = tmp_path / "out.json"
    out = bench("latency", MODELS / "llama", *DUMMY, "--dtype", "bfloat16", "--input-len", "16,24", "--output-len", 8,
                "--batch-size", "1,3", "--threads", 1, "--repeats", 2, "--json", file)
    assert out.returncode == 0 and out.stderr == ""
    answer = json.loads(file.read_text())
    assert [(r["input_len"], r["batch_size"]) for r in answer["results"]] == [(16, 1), (16, 3), (24, 1), (24, 3)]
    for row in answer["results"]:
        assert set(row) == LATENCY_KEYS and all(row[k] > 0 for k in LATENCY_KEYS - {"step_gap_us"}), row
        assert row["step_gap_us"] >= 0
    assert {"cpu", "threads", "read_gb_s", "bf16_gop_s", "int8_gop_s", "load_1m"} <= set(answer["machine"])
    assert answer["machine"]["threads"] == 1 and answer["run"]["dtype"] == "BF16"
    assert "peaks:" in out.stdout and "BF16" in out.stdout


def test_one_token_has_no_decode():
    answer, _ = results("latency", MODELS / "llama", *DUMMY, "--no-roofline", "--input-len", 8, "--output-len", 1, "--repeats", 1)
    row = answer["results"][0]
    assert row["decode_tok_s"] is None and row["itl_ms"] is None and row["fraction_of_peak"] is None and row["ttft_ms"] > 0


@pytest.mark.parametrize("args, code, said", [
    (("latency",), 2, "MODEL is missing"),
    (("latency", "a", "b"), 2, "unexpected argument"),
    (("latency", MODELS / "llama", "--batch-size", "1,x"), 2, "--batch-size"),
    (("latency", MODELS / "llama", "--input-len", "100000", "--no-roofline"), 2, "max_model_len"),
    (("latency", MODELS / "llama", "--quantization", "int5", "--no-roofline"), 2, "quantization"),
    (("latency", "/nowhere/model", "--no-roofline"), (2, 3), "/nowhere/model"),
    (("latency", MODELS / "llama", "--no-roofline", "--json", "/nowhere/x", "--input-len", "4", "--output-len", "1"), 1, "/nowhere"),
    (("throughput", MODELS / "llama", "--dataset-name", "trace"), 2, "requires --dataset-path"),
    (("throughput", MODELS / "llama", "--dataset-path", __file__), 1, "unknown trace format"),
    (("quality", MODELS / "llama", "--input-len", "2"), 2, "8 or more"),
    (("kernels", "--op", "nonsense", "--json", "-"), 2, "set a file name"),
    (("serve", "--backend", "smtp"), 2, "--backend"),
    (("serve", "--base-url", "ftp://x"), 2, "--base-url"),
    (("serve", "--goodput", "ttft"), 2, "--goodput"),
    (("serve", "--request-rate", "1,fast"), 2, "--request-rate"),
    (("serve", "--extra-body", "[1]"), 2, "--extra-body"),
    (("serve", "--port", "1", "--ready-check-timeout-sec", "0.1"), 1, "did not become ready within"),
    (("elephant",), 2, 'unknown verb "elephant"')])
def test_what_is_wrong_is_said(args, code, said):
    out = bench(*args)
    assert out.returncode in (code if isinstance(code, tuple) else (code,)) and said in out.stderr, out


def test_throughput(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": i, "input_length": 20 + i, "output_length": 2 + i, "hash_ids": [i // 2]}) + "\n"
                             for i in range(6)))
    answer, _ = results("throughput", MODELS / "llama", *DUMMY, "--no-roofline", "--dataset-path", trace, "--max-num-queued-reqs", 1,
                        "--max-num-seqs", 2)
    row = answer["results"][0]
    assert row["step_gap_us"] >= 0
    assert row["num_requests"] == 6 and row["total_input_tokens"] == sum(20 + i for i in range(6))
    assert row["total_output_tokens"] == sum(2 + i for i in range(6)) and row["tokens_per_second"] > 0
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "Once upon a time"}\n{"prompt": "Hello", "output_tokens": 3}\n')
    answer, _ = results("throughput", BUNDLED, "--no-roofline", "--dataset-name", "custom", "--dataset-path", lines, "--output-len", 4)
    assert answer["results"][0]["total_output_tokens"] == 7


def test_quality(tmp_path):
    same, _ = results("quality", BUNDLED, "--dtype", "bfloat16", "--num-prompts", 2, "--input-len", 24)
    row = same["results"][0]
    assert row["top1_agreement"] == 1 and row["perplexity"] == row["perplexity_reference"] > 1 and row["positions"] == 46
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a small engine. " * 20)
    other, table = results("quality", BUNDLED, "--kv-cache-dtype", "int8", "--num-prompts", 2, "--input-len", 64, "--dataset-path", text)
    row = other["results"][0]
    assert 0.5 < row["top1_agreement"] <= 1 and row["mean_logprob_change"] > 0 and "KV int8" in table
    int8, _ = results("quality", BUNDLED, "--quantization", "int8", "--num-prompts", 4, "--input-len", 64)
    assert int8["results"][0]["top1_agreement"] >= 0.99 and int8["run"]["quantization"] == "int8"
    int4, _ = results("quality", BUNDLED, "--quantization", "int4", "--num-prompts", 4, "--input-len", 64)
    assert int4["results"][0]["top1_agreement"] >= 0.95 and int4["run"]["quantization"] == "int4"


def test_serve_our_server(bundled, tmp_path):
    answer, table = results("serve", "--base-url", bundled.url + "/v1", "--num-prompts", 6, "--input-len", 12, "--output-len", 5,
                            "--request-rate", "50,inf", "--goodput", "ttft:60000,e2el:60000", "--save-detailed")
    assert [r["request_rate"] for r in answer["results"]] == [50, "inf"]
    for row in answer["results"]:
        assert row["completed"] == 6 and row["failed"] == 0
        assert row["total_input_tokens"] == 72 and row["total_output_tokens"] == 30
        assert 0 < row["p50_ttft_ms"] <= row["p99_ttft_ms"] and row["mean_e2el_ms"] > 0 and row["output_throughput"] > 0
        assert row["request_goodput"] == pytest.approx(row["request_throughput"])
        assert len(row["ttfts"]) == 6 and row["output_lens"] == [5] * 6 and row["errors"] == [""] * 6
    assert answer["run"]["model_id"] == "quire-tiny" and "p99" in table
    chat, _ = results("serve", "--base-url", bundled.url, "--backend", "openai-chat", "--num-prompts", 3, "--input-len", 8,
                      "--output-len", 4, "--max-concurrency", 1)
    row = chat["results"][0]
    assert row["completed"] == 3 and row["max_concurrent_requests"] == 1 and row["total_output_tokens"] == 12
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,9,2\n2023-11-16 18:17:04.0,5,3\n")
    timed, _ = results("serve", "--base-url", bundled.url, "--dataset-path", trace, "--trace-speed", 20)
    row = timed["results"][0]
    assert row["request_rate"] is None and row["total_input_tokens"] == 14 and row["duration"] > 0.04


class Fake(http.server.BaseHTTPRequestHandler):
    """A server that does what it is told to: self.server.mode."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json", length=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        server = self.server
        server.n_get += 1
        if server.n_get <= server.loading:
            return self.answer(503, b'{"error":{"message":"loading"}}')
        if server.mode == "key" and self.headers.get("Authorization") != "Bearer secret":
            return self.answer(401, b"{}")
        return self.answer(200, json.dumps({"data": server.models}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append((self.path, body, dict(self.headers)))
            n = len(server.bodies)
        mode = server.mode if n > 1 else "good"  # the warm-up is answered
        stream = "".join(f'data: {{"choices":[{{"text":"t{i}","finish_reason":null}}]}}\n\n' for i in range(3))
        end = ('data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
               'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}}\n\ndata: [DONE]\n\n')
        if mode == "full":
            self.answer(429, b'{"error":{"message":"the queue is full"}}')
        elif mode == "cut":
            self.answer(200, stream.encode(), "text/event-stream", len(stream) + 100)
            self.close_connection = True
        elif mode == "short":
            self.answer(200, stream.encode(), "text/event-stream")
        elif mode == "broken":
            self.answer(200, b"data: {\n\n", "text/event-stream")
        elif mode == "error":
            self.answer(200, (stream + 'data: {"error":{"message":"out of KV"}}\n\n').encode(), "text/event-stream")
        elif mode == "plain":
            self.answer(200, b'{"choices":[{"text":"x","finish_reason":"stop"}]}')
        elif mode == "slow":
            time.sleep(20)
        else:
            self.answer(200, (stream + end).encode(), "text/event-stream")


@pytest.fixture
def fake():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    server.daemon_threads = True
    server.mode, server.models, server.bodies, server.lock = "good", [{"id": "m\"1"}], [], threading.Lock()
    server.n_get = server.loading = 0
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_serve_sends_what_it_is_asked_to(fake):
    fake.loading, fake.mode = 2, "key"
    answer, _ = results("serve", "--base-url", fake.url + "/", "--num-prompts", 3, "--input-len", 4, "--output-len", 3,
                        "--api-key", "secret", "--header", "X-Trace=7", "--extra-body", '{"temperature": 0.5, "min_p": 0.1}',
                        "--vocab-size", 64, "--random-prefix-len", 2, "--num-warmups", 0)
    assert answer["results"][0]["completed"] == 3 and answer["results"][0]["total_output_tokens"] == 9
    prompts = set()
    for path, body, headers in fake.bodies:
        assert path == "/v1/completions" and headers["X-Trace"] == "7" and headers["Authorization"] == "Bearer secret"
        assert body.keys() == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options", "ignore_eos", "min_p"}
        assert body["model"] == 'm"1' and body["temperature"] == 0.5 and body["max_tokens"] == 3 and body["stream"] is True
        assert len(body["prompt"]) == 6 and all(0 <= t < 64 for t in body["prompt"])
        prompts.add(tuple(body["prompt"]))
    assert len(prompts) == 3 and len({p[:2] for p in prompts}) == 1
    denied = bench("serve", "--base-url", fake.url, "--num-prompts", 1)
    assert denied.returncode == 2 and "--api-key" in denied.stderr


@pytest.mark.parametrize("mode, said", [
    ("full", "HTTP 429: the queue is full"), ("cut", "request 1:"), ("short", "the stream ended without [DONE]"),
    ("broken", "not a JSON object"), ("error", "the server reports: out of KV"), ("plain", "the response is not an event stream"),
    ("slow", "timed out")])
def test_serve_counts_failures(fake, mode, said):
    fake.mode = mode
    out = bench("serve", "--base-url", fake.url, "--num-prompts", 2, "--input-len", 4, "--output-len", 3, "--num-warmups", 0,
                "--max-concurrency", 1, "--timeout", "1.5" if mode == "slow" else "60", "--json", "-")
    assert out.returncode == 1 and said in out.stderr and "1 requests failed" in out.stderr, out.stderr
    row = json.loads(out.stdout)["results"][0]
    assert row["completed"] == 1 and row["failed"] == 1 and row["total_output_tokens"] == 3


def test_serve_without_models(fake):
    fake.models = []
    out = bench("serve", "--base-url", fake.url, "--num-prompts", 1)
    assert out.returncode == 1 and "--model" in out.stderr
    assert bench("serve", "--base-url", fake.url, "--num-prompts", 1, "--model", "any").returncode == 0
    fake.mode, fake.bodies = "full", [None]
    out = bench("serve", "--base-url", fake.url, "--model", "any")
    assert out.returncode == 1 and "the first request failed: HTTP 429" in out.stderr


def test_serve_interrupted_says_what_it_has(fake):
    fake.mode = "slow"  # but for the warm-up
    process = subprocess.Popen([BIN / "quire-bench", "serve", "--base-url", fake.url, "--num-prompts", "3", "--input-len", "4",
                                "--num-warmups", "1"], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(fake.bodies) < 2:  # the warm-up, and the first request that is measured
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "successful requests" in out


def test_roofline_and_kernels(tmp_path):
    answer, table = results("roofline", "--threads", 2)
    assert answer["machine"]["read_gb_s"] > 0 and "peaks:" in table
    assert answer["machine"]["barrier_us"] > 0 and answer["results"][-1]["unit"] == "us" and "a barrier" in table
    assert table.count("prefetched 1 KiB ahead") >= 1 and f"weights of one row: {answer['machine']['reading']} (" in table
    assert {"name", "best", "median", "unit"} == set(answer["results"][0]) and len(answer["results"]) >= 6
    file = tmp_path / "k.json"
    out = bench("kernels", "--op", "embed", "--threads", 1, "--cpu-isa", "none", "--json", file)
    assert out.returncode == 0 and "embed" in out.stdout
    rows = json.loads(pathlib.Path(file).read_text())["results"]
    assert rows and all(r["op"] == "embed" and r["variant"] == "ref" and r["rate"] > 0 for r in rows)


def test_committed_figures_are_of_quiet_machines():
    """peers.py marks the runs of a busy machine."""
    tables = list((ROOT / "tests/bench").glob("peers*.md"))
    assert tables
    for table in tables:
        assert "not to be committed" not in table.read_text(encoding="utf-8"), table
    for rounds in (ROOT / "tests/bench").glob("peers*.json"):
        assert all(run["load_before"] <= 0.3 for run in json.loads(rounds.read_text())["runs"]), rounds


def test_part_of_the_ceiling():
    """The longer of reading and multiplying bounds a step of decode; a prompt multiplies in two types."""
    sys.path.insert(0, str(ROOT / "tests/bench"))
    try:
        import peers
    finally:
        sys.path.pop(0)
    weights, attention = peers.operations("qwen05", 1)
    assert abs(weights / 2 - 494.0e6) < 0.1e6  # of Qwen2.5-0.5B: each is multiplied once
    assert attention == 4 * 24 * 14 * 64  # of 24 layers and 14 heads of 64: with one K, one V
    runs = [{"ceilings": {"bf16_gop_s": 400, "int8_gop_s": 800}}, {"ceilings": {}}]
    of = lambda row, speed, precision, parts: peers.of_the_ceiling("qwen05", precision, row, speed, parts, runs)
    assert of("decode, 1 sequence", 50, "int8", [0.2, 0.3, 0.4]) == 0.3
    assert abs(of("decode, 32 sequences, context 64-190", 600, "int8", [0.3]) - 600 * weights / 800e9) < 1e-6
    assert abs(of("decode, 8 sequences", 300, "bf16", [0.1]) - 300 * weights / 400e9) < 1e-6
    weights, attention = peers.operations("qwen05", 2048)
    assert 0.1 < attention / weights < 0.15
    assert abs(of("prefill 2048", 700, "int4", []) - (weights / 800e9 + attention / 400e9) * 700 / 2048) < 1e-6


def test_peers_are_limited_alike():
    """Each limit of peers.py is one of quire's, oneDNN's and, below AVX-512, of llama.cpp's build."""
    spec = importlib.util.spec_from_file_location("peers_isa", ROOT / "tests/bench/peers_isa.py")
    isa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(isa)
    names = {name for name, _ in re.findall(r'{"(\w+)", ((?:CAP|LEVEL)_\w+)', (ROOT / "kernels/kern.c").read_text(encoding="utf-8"))}
    assert {"avx2", "avx512_bf16"} <= set(isa.ONEDNN) <= names
    for name, limit in isa.ONEDNN.items():
        assert isa.limits(name)["env"]["ONEDNN_MAX_CPU_ISA"] == limit and limit in isa.said(name)
    assert "-DGGML_AVX512=OFF" in isa.llama_build("avx2")["CMAKE_ARGS"] and isa.llama_build("auto") == {}
    assert isa.limits("auto") == {} and isa.said("auto") == ""
