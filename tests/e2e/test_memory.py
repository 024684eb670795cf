# SPDX-License-Identifier: Apache-2.0
"""How much memory an engine takes: the sum it logs, KV dtypes over HTTP, and what is said when it is too little."""
import json
import os
import re
import signal

import pytest

from servers import MODELS

REFERENCE = json.loads((MODELS / "llama" / "golden.json").read_text())
ARGS = ["--skip-tokenizer-init", "--dtype", "float32"]


def test_the_sum_is_logged(start):
    log = start(MODELS / "llama", *ARGS, "--max-num-seqs", "8").process.log()
    assert re.search(r"weights \d+\.\d MiB, activations \d+\.\d MiB at most, "
                     r"step buffers at most \d+\.\d MiB, KV cache", log)
    assert "2048 tokens in 128 blocks of 16" in log  # 8 sequences of 256
    assert "Maximum concurrency for 256 tokens per request: 8.00x" in log


def test_packed_cache(start, tmp_path):
    """The second server maps what the first one packed, and answers alike."""
    args = [*ARGS, "--packed-cache", str(tmp_path / "packed")]
    body = {"max_tokens": 8, "temperature": 0, "logprobs": 2}
    answers = []
    for said in ("packed cache: wrote", "mapped and checked"):
        server = start(MODELS / "llama", *args)
        answer = server.complete(REFERENCE["prompts"][0]["ids"], **body)
        answers.append((answer["system_fingerprint"], answer["choices"]))
        assert server.stop() == 0  # by then it is written
        assert said in server.process.log()
    assert answers[0] == answers[1]


def test_int8_kv(start):
    """Another fingerprint, nearly the same logprobs; and the same bits alone and in a list."""
    servers = [start(MODELS / "llama", *ARGS, "--kv-cache-dtype", t) for t in ("auto", "int8")]
    prompts = [p["ids"] for p in REFERENCE["prompts"]]
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1}
    exact, coarse = ([s.complete(p, **body) for p in prompts] for s in servers)
    assert exact[0]["system_fingerprint"] != coarse[0]["system_fingerprint"]
    assert "KV cache I8" in servers[1].process.log()

    def logprob(answer):
        return answer["choices"][0]["logprobs"]["token_logprobs"][0]

    together = servers[1].complete(prompts, **body)["choices"]
    for i, (a, b) in enumerate(zip(exact, coarse)):
        assert abs(logprob(a) - logprob(b)) < 0.2
        assert together[i]["logprobs"]["token_logprobs"][0] == logprob(b)


@pytest.mark.parametrize("args, said", [
    (["--num-gpu-blocks-override", "3"], "--max-model-len 48, --num-gpu-blocks-override 16, or a smaller --kv-cache-dtype"),
    (["--kv-cache-memory-bytes", "1K"], "--kv-cache-memory-bytes 131072"),
    (["--gpu-memory-utilization", "0.0000001"], "raise --gpu-memory-utilization"),
    (["--gpu-memory-utilization", "2"], "from 0 to 1"),
    (["--kv-cache-dtype", "fp8_e5m2"], "expected auto, bfloat16, float32, int8 or fp8"),
    (["--kv-cache-dtype", "fp8"], "KV cache dtype fp8 is not supported on the CPU; int8 takes the same memory"),
    (["--preemption-mode", "swapp"], "expected auto, swap or recompute"),
    (["--swap-space", "-1"], "--swap-space"),
    (["--max-num-seqs", "0"], "--max-num-seqs"),
    (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens"),
    (["--threads", "257"], "--threads")])
def test_refused(run, args, said):
    engine = run("quire-engine", MODELS / "llama", "--listen", "ipc:///tmp/quire-none", *ARGS, *args)
    assert engine.exit_code() in (2, 3)
    assert said in engine.log()


@pytest.mark.parametrize("given", ["auto", "-1"])
def test_a_length_that_fits(start, given):
    """One line says it, the server answers with it, and so does the worker that replaces a dead one."""
    server = start(MODELS / "llama", *ARGS, "--max-model-len", given, "--num-gpu-blocks-override", "3", "--heartbeat-ms", "50")
    assert server.process.log().count("--max-model-len auto: 48 tokens, the limit of the KV cache") == 1
    assert json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"] == 48
    assert len(server.complete(list(range(1, 41)), max_tokens=8, ignore_eos=True)["choices"][0]["token_ids"]) == 8
    status, answer = server.post("/v1/completions", {"prompt": list(range(1, 41)), "max_tokens": 9})
    assert status == 400 and "maximum context length is 48" in answer["error"]["message"]
    engine, = server.process.children("quire-engine")
    worker, = server.process.children("quire-worker", of=engine)
    os.kill(worker, signal.SIGKILL)
    assert len(server.complete(list(range(1, 41)), max_tokens=8, ignore_eos=True)["choices"][0]["token_ids"]) == 8
    assert server.process.log().count("--max-model-len auto") == 1


def test_a_length_that_fits_as_it_is(start):
    server = start(MODELS / "llama", *ARGS, "--max-model-len", "auto")
    assert "--max-model-len auto: 256 tokens, the model's own limit" in server.process.log()


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption(start, mode, tmp_path):
    """Many requests through a pool of few blocks: what is preempted goes on with the same tokens."""
    server = start(MODELS / "llama", *ARGS, "--max-num-seqs", "8", "--num-gpu-blocks-override", "17", "--heartbeat-ms", "50",
                   "--swap-space", "0.01", "--preemption-mode", mode, "--no-enable-prefix-caching",
                   "--trace", str(tmp_path / "trace.json"))
    prompts = [[5 + 3 * i, 6, 7 + i] for i in range(8)]
    body = {"max_tokens": 120, "temperature": 0, "logprobs": 2, "ignore_eos": True}

    def answers(prompt):
        return [(c["text"], c["logprobs"]) for c in server.complete(prompt, **body)["choices"]]

    alone = [answers(p)[0] for p in prompts]
    assert server.metric("vllm:num_preemptions_total") == 0
    assert answers(prompts) == alone
    server.wait_metric_above("vllm:num_preemptions_total", 0)  # an older heartbeat says that nothing runs, too
    server.wait_metric("vllm:num_requests_running", 0)
    n = server.metric("vllm:num_preemptions_total")
    by_mode = {m: server.metric("quire:preemptions_by_mode_total", mode=m) for m in ("swap", "recompute")}
    assert by_mode == {"swap": 0, "recompute": 0, mode: n}
    server.wait_metric("quire:swap_blocks_used", 0)
    assert server.metric("vllm:num_requests_swapped") == server.metric("vllm:cpu_cache_usage_perc") == 0
    assert server.metric("quire:swap_blocks_total") > 17
    assert re.search(r"swap space for preempted requests \d+\.\d MiB, allocated on demand: \d+ blocks", server.process.log())
    assert server.stop() == 0
    copies = [e for e in json.loads((tmp_path / "trace.json").read_text()) if e["name"] == "copy"]
    assert all(e["dur"] >= 0 and e["args"]["blocks_out"] + e["args"]["blocks_in"] > 0 for e in copies)
    out, back = (sum(e["args"][f"blocks_{way}"] for e in copies) for way in ("out", "in"))
    assert out == back > 0 if mode == "swap" else not copies
