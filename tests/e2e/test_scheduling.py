# SPDX-License-Identifier: Apache-2.0
"""Priorities, fair share, limits on prompts, timeouts and the trace, through the whole server."""
import json
import os
import signal
import subprocess
import threading
import time

import openai
import pytest

from servers import BIN, MODELS

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "50")
# One thread: on a machine that is busy with other things two of them mostly wait for each other.
SLOW = ("--skip-tokenizer-init", "--load-format", "dummy", "--num-gpu-blocks-override", "512", "--heartbeat-ms", "50",
        "--max-num-seqs", "1", "--threads", "1")
PATIENCE_S = 300


class Asked(threading.Thread):
    """One completion in a thread."""

    def __init__(self, server, **body):
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.start()

    def run(self):
        self.status, self.answer = self.server.post("/v1/completions", {"prompt": [5, 6, 7], "ignore_eos": True, **self.body},
                                                     timeout=PATIENCE_S)


def answered(server, path):
    """What --record-requests has of the requests that had all their tokens, in the order of their ends: threads of clients may wake up
    in another one. The server is stopped."""
    server.stop()
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["finish"] == "length"]


def occupied(server, **more):
    """A stream that holds the only slot; close() gives it up."""
    stream = server.events("/v1/completions", {"prompt": [1, 2], "max_tokens": 3900, "ignore_eos": True, **more})
    next(stream)
    return stream


def test_priority(start, large, tmp_path):
    server = start(large, *SLOW, "--scheduling-policy", "priority", "--record-requests", tmp_path / "requests")
    stream, asked = occupied(server), []
    for n, priority in enumerate([7, 0, -3]):
        asked.append(Asked(server, max_tokens=2, priority=priority))
        server.wait_metric("vllm:num_requests_waiting", n + 1)
    stream.close()
    for a in asked:
        a.join(PATIENCE_S)
        assert a.status == 200 and a.answer["choices"][0]["finish_reason"] == "length"
    assert [line["request"]["priority"] for line in answered(server, tmp_path / "requests")] == [-3, 0, 7]


def test_a_flood_of_one_user(start, large, tmp_path):
    server = start(large, *SLOW, "--max-num-queued-reqs", "4", "--record-requests", tmp_path / "requests")
    stream, asked = occupied(server, user="ann"), []
    for n in range(4):
        asked.append(Asked(server, max_tokens=40, user="ann"))
        server.wait_metric("vllm:num_requests_waiting", n + 1)
    status, refused = server.post("/v1/completions", {"prompt": [1], "max_tokens": 2, "user": "ann"})
    assert status == 429 and "full with 4 waiting requests" in refused["error"]["message"]
    asked.append(Asked(server, max_tokens=2, user="bob"))
    server.wait_metric("quire:requests_pushed_out_total", 1)  # the queue was full of ann's
    server.wait_metric("quire:tenants", 2)
    asked[3].join(PATIENCE_S)
    assert asked[3].status == 429 and "its API key or user has the most" in asked[3].answer["error"]["message"]
    stream.close()
    for a in asked:
        a.join(PATIENCE_S)
    assert [a.status for a in asked] == [200, 200, 200, 429, 200]
    order = [line["output_length"] for line in answered(server, tmp_path / "requests")]
    assert sorted(order) == [2, 40, 40, 40] and order.index(2) <= 1, order  # bob's is not behind all of ann's


def test_timeout(start, large):
    server = start(large, *SLOW, "--request-timeout", "10", "--scheduling-policy", "priority")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    errors, model = [], client.models.list().data[0].id
    first = Asked(server, max_tokens=3900)
    server.wait_metric("vllm:num_requests_running", 1)

    def ask_last():
        try:
            client.completions.create(model=model, prompt=[1, 2], max_tokens=3900,
                                      extra_body={"ignore_eos": True, "priority": 5})
        except openai.APIStatusError as error:
            errors.append(error)
    last = threading.Thread(target=ask_last, daemon=True)
    last.start()
    server.wait_metric("vllm:num_requests_waiting", 1)
    time.sleep(5)  # the time that the second has for a token once the first is over, on a busy machine
    second = Asked(server, max_tokens=3900)  # runs from the first's end beyond the last's time
    for thread in (first, second, last):
        thread.join(PATIENCE_S)
    assert errors and errors[0].status_code == 408 and "--request-timeout" in errors[0].message
    for asked in (first, second):
        assert asked.status == 200 and asked.answer["choices"][0]["finish_reason"] == "abort"
        assert 0 < asked.answer["usage"]["completion_tokens"] < 3900
    server.wait_metric("quire:requests_timed_out_total", 3)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 2
    server.wait_metric("quire:kv_blocks_used", 0)
    assert server.complete([1, 2], max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_limits_change_no_token(start, wide):
    server = start(MODELS / "llama", *OPTIONS, "--long-prefill-token-threshold", "7", "--max-num-partial-prefills", "3",
                   "--max-long-partial-prefills", "2", "--scheduler-delay-factor", "0.5", "--max-num-batched-tokens", "40")
    prompts = [[(7 * i + j) % 200 + 3 for j in range(n)] for i, n in enumerate((1, 6, 7, 8, 50, 90, 33))]
    def answers(s):
        return [c["text"] or c["token_ids"] for c in s.complete(prompts, max_tokens=8, temperature=0.7, seed=3)["choices"]]
    assert answers(server) == answers(wide)


@pytest.mark.parametrize("options, words", [
    (("--scheduling-policy", "lifo"), ["--scheduling-policy", '"lifo"', "fcfs or priority"]),
    (("--max-long-partial-prefills", "2"), ["--max-long-partial-prefills is 2", "--max-num-partial-prefills (1)"]),
    (("--request-timeout", "-1"), ["--request-timeout"]),
])
def test_bad_options(options, words):
    done = subprocess.run([BIN / "quire-engine", MODELS / "llama", "--listen", "ipc:///tmp/never", *options],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr


def test_trace_that_cannot_be_written():
    done = subprocess.run([BIN / "quire-engine", MODELS / "llama", "--listen", "ipc:///tmp/never", "--trace", "/no/such"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--trace /no/such: " in done.stderr and "No such file" in done.stderr


def read_trace(path):
    """The events, as a reader of an unfinished file takes them: the array may lack its end."""
    text = path.read_text()
    return json.loads(text if text.rstrip().endswith("]") else text + "]")


def n_written(path, name):
    """How many events of that name a file has that is being written: its last line may be half there."""
    return sum(f'"name":"{name}"' in line for line in path.read_text().splitlines()[:-1])


def test_trace(start, tmp_path):
    path = tmp_path / "trace.json"
    server = start(MODELS / "llama", *OPTIONS, "--trace", str(path))
    server.complete([[1, 2, 3]] * 4, max_tokens=10, ignore_eos=True)
    assert server.stop() == 0
    events = json.loads(path.read_text())
    parts = {}
    for event in events:
        assert event["ph"] in "XM"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            parts.setdefault(event["args"]["step"], {})[event["name"]] = event
    assert len(parts) >= 10
    for step in parts.values():
        assert set(step) == {"plan", "encode", "wait", "forward", "sample", "settle", "outbox"}
        order = [step[name]["ts"] for name in ("plan", "encode", "wait", "forward", "sample")]
        assert order == sorted(order)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"engine loop", "worker", "ring"}
    assert sum(step["plan"]["args"]["rows"] for step in parts.values()) >= 12 + 4 * 9
    assert sum(step["plan"]["args"]["admitted"] for step in parts.values()) == 4
    for row in {e["tid"] for e in events if e["ph"] == "X"}:  # nothing on one row overlaps
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == row)
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:]))


def test_trace_of_a_killed_engine(start, tmp_path):
    path = tmp_path / "trace.json"
    server = start(MODELS / "llama", *OPTIONS, "--trace", str(path))
    server.complete([[1, 2, 3]] * 4, max_tokens=10, ignore_eos=True)
    deadline = time.monotonic() + PATIENCE_S
    while min(n_written(path, "forward"), n_written(path, "outbox")) < 10:  # its thread writes a little later
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(server.children("quire-engine")[0], signal.SIGKILL)
    server.complete([1, 2, 3], max_tokens=3)  # of the next engine, which has begun its own file
    old = read_trace(tmp_path / "trace.json.old")
    assert sum(e["name"] == "forward" for e in old) >= 10
    with pytest.raises(json.JSONDecodeError):
        json.loads((tmp_path / "trace.json.old").read_text())  # the bracket is all that is missing
