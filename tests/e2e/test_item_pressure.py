# SPDX-License-Identifier: Apache-2.0
"""Requests with items where room is short: a KV cache of a few blocks, preemption by swap and by recompute, steps that end inside of
items, a worker that is killed meanwhile, equal ids with other contents in the prefix cache, parallel samples and beams, batch files with
bad items among good ones. The answers are those of a server with room, one request at a time."""
import base64
import json
import os
import signal
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from servers import BIN, MODELS, ROOT

GRID, STRIP = -7, -8
ROOM = ("--num-gpu-blocks-override", "256", "--no-enable-prefix-caching")
TIGHT = ("--num-gpu-blocks-override", "14", "--max-num-batched-tokens", "5", "--max-num-seqs", "6", "--max-model-len", "96")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "grids.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", ROOT, "-o", path, ROOT / "tests/plugins/grids.c"], check=True)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grids-model")
    config = json.loads((MODELS / "llama/config.json").read_text()) | {"architectures": ["GridsForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(MODELS / "llama/model.safetensors")
    return folder


@pytest.fixture
def serve(start, plugin, model):
    return lambda *options: start(model, "--plugin", plugin, "--skip-tokenizer-init", *options)


def ask_of(number, **more):
    """Two grids of four rows, a strip of five, tokens between them; the ids of all are equal but for the last."""
    return {"prompt": [3] * 13 + [GRID] * 4 + [5, 6] + [STRIP] + [7] * 9 + [GRID] * 4 + [8 + number % 3], "max_tokens": 40, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "detokenize": False,
            "multi_modal_data": {"grids": [[[number, 2, 3], [4, 5, number]], [[1, number, 1], [number, 1, 1]]], "strips": [[number, 2, 3, 4, 5]]}, **more}


def choices(server, ask):
    status, answer = server.post("/v1/completions", ask)
    assert status == 200, answer
    return [choice["token_ids"] for choice in answer["choices"]]


ASKS = [ask_of(seed) for seed in range(10)] + [ask_of(seed, temperature=1, seed=seed, n=2) for seed in range(3)] + [
    ask_of(seed, use_beam_search=True, n=2, max_tokens=12) for seed in range(2)] + [
    ask_of(4, temperature=1, seed=4, n=6)]  # its samples alone need 20 blocks: TIGHT preempts at any pace of the clients


@pytest.fixture(scope="module")
def want(tmp_path_factory, plugin, model):
    from servers import Server
    server = Server(model, "--plugin", plugin, "--skip-tokenizer-init", *ROOM)
    found = [choices(server, ask) for ask in ASKS]
    assert server.stop() == 0
    assert len({tuple(tokens[0]) for tokens in found[:10]}) > 3 and [len(tokens) for tokens in found[10:]] == [2] * 5 + [6]
    return found


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("crash", [False, True], ids=["", "crash"])
def test_answers_of_many_at_once(serve, want, mode, crash):
    server = serve(*TIGHT, "--preemption-mode", mode, "--swap-space", "1")
    with ThreadPoolExecutor(len(ASKS)) as pool:
        jobs = [pool.submit(choices, server, ask) for ask in ASKS]
        if crash:
            jobs[0].result()
            engine, = server.children("quire-engine")
            os.kill(server.children("quire-worker", engine)[0], signal.SIGKILL)
        assert [job.result() for job in jobs] == want
    if crash:  # the count of the engine that was replaced has ended with it; this request alone is preempted
        assert choices(server, ASKS[-1]) == want[-1]
    server.wait_metric_above("vllm:num_preemptions_total", 0)
    server.wait_metric("vllm:num_requests_running", 0)


def test_equal_ids_with_other_contents(serve, want):
    """Prefixes of a prompt whose items differ are not found; those whose items are equal are, through the item as well."""
    server = serve("--num-gpu-blocks-override", "256")
    hits = []
    for seed in (0, 3, 0, 6, 3, 9):  # of the same ids
        ask = ask_of(seed)
        status, answer = server.post("/v1/completions", ask)
        assert status == 200 and answer["choices"][0]["token_ids"] == want[seed][0]
        hits.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert hits == [0, 0, 32, 0, 32, 0]


def packed(*numbers):
    return {"data": base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode(), "shape": [2, 3]}


BAD = [({"grids": [[[1, 2, 3], [4, 5, 6]]], "strips": [[1]]}, "grids"), ({"grids": [[[1, 2, 3]] * 2, [[1, 2]] * 2]}, "grids[1]"),
       ({"grids": [packed(1, 2, 3, 4, 5, 6), {"path": "/no/such.npy"}]}, "/no/such.npy"), ({"nothing": [[1]]}, "nothing"),
       ({"grids": [packed(1, 2, 3, 4, 5, 6), packed(1, 2, 3, 4, 5, float("inf"))]}, "grids[1]"),
       ({"grids": [[[666, 2, 3], [4, 5, 6]], [[1, 2, 3]] * 2]}, "grids[0]: this grid cannot be computed"),
       ({"grids": [[[1, 2, 3]] * 2] * 7}, "grids: 7 items, expected at most 6 in a request")]


@pytest.mark.parametrize("verb", ["generate", "run-batch"])
def test_bad_items_among_good_ones(plugin, model, want, tmp_path, verb):
    lines = []
    for i in range(2 * len(BAD) + 1):
        ask = {**ask_of(i // 2), "model": model.name}
        if i % 2:
            ask["multi_modal_data"] = {"strips": [[1, 2, 3, 4, 5]], **BAD[i // 2][0]}
        if verb == "generate":
            ask = {"prompt_token_ids": ask.pop("prompt"), "multi_modal_data": ask["multi_modal_data"], "max_tokens": 40, "temperature": 0,
                   "ignore_eos": True}
        lines.append(ask if verb == "generate" else {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": ask})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("-i", tmp_path / "in.jsonl", "--plugin", plugin, "--skip-tokenizer-init")
    out = () if verb == "generate" else ("-o", tmp_path / "out.jsonl")
    done = subprocess.run([BIN / "quire", verb, model, *options, *out], capture_output=True, text=True, timeout=120)
    found = [json.loads(line) for line in ((tmp_path / "out.jsonl").read_text() if out else done.stdout).splitlines()]
    assert len(found) == len(lines), done.stderr
    for line in found:
        i = line["prompt"] - 1 if verb == "generate" else int(line["custom_id"])
        if verb == "generate":
            tokens, error = line.get("token_ids"), line.get("error")
        else:
            answer = line["response"]["body"]
            tokens, error = answer.get("choices", [{}])[0].get("token_ids"), answer.get("error", {}).get("message")
        if i % 2:
            assert error and BAD[i // 2][1] in error, (i, line)
        else:
            assert tokens == want[i // 2][0], (i, line)
