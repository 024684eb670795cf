# SPDX-License-Identifier: Apache-2.0
"""Event streams that are resumed with Last-Event-ID: every event once, whoever has gone."""
import concurrent.futures
import itertools
import json
import os
import signal
import time

import pytest

from event_streams import Broken, Progress, events, merged, patient, whole
from servers import BUNDLED, HANG_S, MODELS, Http

SMALL = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100")
KEPT = ("--stream-resume-timeout", "30")
WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
CASES = {
    "greedy": ("/v1/completions", {"prompt": "quire is", "max_tokens": 8, "temperature": 0}),
    "chat": ("/v1/chat/completions", {"messages": ASK, "max_tokens": 8, "temperature": 0, "stream_options": {"include_usage": True}}),
    "seeded": ("/v1/completions", {"prompt": ["quire is", "The engine"], "max_tokens": 6, "temperature": 1, "seed": 3, "n": 2, "logprobs": 2,
                                   "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "unseeded": ("/v1/chat/completions", {"messages": ASK, "max_tokens": 8, "temperature": 1}),
    "tools": ("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "temperature": 0, "tools": WEATHER, "tool_choice": "required"}),
    "logprobs": ("/v1/chat/completions", {"messages": ASK, "max_tokens": 8, "temperature": 1, "seed": 5, "n": 2, "logprobs": True,
                                          "top_logprobs": 3}),
    "stop": ("/v1/completions", {"prompt": "quire is", "max_tokens": 40, "temperature": 0, "stop": ["a"]}),
    "schema": ("/v1/chat/completions", {"messages": ASK, "max_tokens": 30, "temperature": 0, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                                                                       "required": ["a"]}}}}),
}


@pytest.fixture(scope="module")
def kept():
    from servers import Server
    server = Server(BUNDLED, "--num-gpu-blocks-override", "1024", "--api-server-count", "2", "--heartbeat-ms", "100", *KEPT)
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("name", CASES)
def test_every_event_once(kept, name):
    """The connection is cut behind each event in turn."""
    path, body = CASES[name]
    body = {**body, "stream": True}
    whole(kept, path, body)  # the prefix cache has the prompt from now on
    want = whole(kept, path, body)
    assert len({i for i, _ in want}) == len(want) and all(i for i, _ in want)
    assert [int(i.split(".")[1]) for i, _ in want] == list(range(1, len(want) + 1))
    for n in range(1, len(want)):
        first = list(itertools.islice(events(kept, path, body), n))
        if first[-1][1] == "[DONE]":
            continue  # without a seed an answer may be shorter
        rest = whole(kept, path, None if n % 2 else body, last_id=first[-1][0])
        got = first + rest
        assert len({e[0].split(".")[0] for e in got}) == 1
        assert [int(e[0].split(".")[1]) for e in got] == list(range(1, len(got) + 1))
        if name != "unseeded":
            assert merged(got) == merged(want), n
        assert len({e[1]["id"] for e in got if e[1] != "[DONE]"}) == 1  # one response, one id
        assert len({e[1]["created"] for e in got if e[1] != "[DONE]"}) == 1
        # Again from the same event, though that resumption has ended: the same events.
        assert whole(kept, path, body, last_id=first[-1][0]) == rest
        assert whole(kept, path, body, last_id=got[-1][0]) == [got[-1]]  # nothing but [DONE] is left


def refused(server, last_id, path="/v1/completions", key=None):
    status, answer = Http(server.url, key or server.key).post(path, None, headers={"Last-Event-ID": last_id})
    assert answer["error"]["code"] == "stream_not_found" and "Last-Event-ID" in answer["error"]["message"], answer
    return status


def wait_for_404(server):
    """An engine that has just started says 503 of ids that it does not know: frontends of the one before it may know more."""
    deadline = time.monotonic() + HANG_S
    while (status := server.post("/v1/completions", None, headers={"Last-Event-ID": "0" * 32 + ".1"})[0]) == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status == 404


def test_ids_that_are_not_known(kept):
    wait_for_404(kept)
    last = whole(kept, "/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True})[-1][0]
    unknown = ("0" if last[0] != "0" else "1") + last[1:]
    for wrong in (unknown, last + "0", last[:-2], last[:32] + "." + "9" * 30, "7", "x" * 40, last.upper() if last != last.upper() else "A" + last[1:],
                  last + ".1", "-" + last[1:]):
        assert refused(kept, wrong) == 404, wrong
    assert kept.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_who_may_resume(start, tmp_path):
    """The key that began it; streams expire; a server without the option keeps none."""
    server = start(MODELS / "llama", *SMALL, "--stream-resume-timeout", "3", "--api-key", "alpha", "beta", key="alpha")
    body = {"prompt": [5, 7], "max_tokens": 4, "stream": True, "ignore_eos": True}
    wait_for_404(server)
    found = whole(server, "/v1/completions", body)
    assert refused(server, found[0][0], key="beta") == 404
    assert Http(server.url, "gamma").post("/v1/completions", None, headers={"Last-Event-ID": found[0][0]})[0] == 401
    assert whole(server, "/v1/completions", None, last_id=found[0][0]) == found[1:]
    time.sleep(4)
    deadline = time.monotonic() + HANG_S
    while True:  # a resumption begins the time anew
        status = Http(server.url, "alpha").raw("POST", "/v1/completions", None, {"Last-Event-ID": found[0][0]})[1].status
        if status == 404:
            break
        assert time.monotonic() < deadline
        time.sleep(4)
    off = start(MODELS / "llama", *SMALL, "--stream-resume-timeout", "0")
    assert [i for i, _ in whole(off, "/v1/completions", body)] == [None] * len(found)
    wait_for_404(off)
    assert refused(off, found[0][0]) == 404


def test_who_gets_ids(start):
    """By default: clients that say that they read event streams."""
    server = start(MODELS / "llama", *SMALL)
    body = {"prompt": [5, 7], "max_tokens": 4, "stream": True, "ignore_eos": True}
    assert not any(i for i, _ in whole(server, "/v1/completions", body))
    assert not any(i for i, _ in whole(server, "/v1/completions", body, headers={"Accept": "*/*"}))
    found = whole(server, "/v1/completions", body, headers={"Accept": "text/html, Text/Event-Stream;q=0.9"})
    assert all(i for i, _ in found)
    assert whole(server, "/v1/completions", None, last_id=found[1][0]) == found[2:]
    with_beams = {**body, "use_beam_search": True, "n": 2}
    assert not any(i for i, _ in whole(server, "/v1/completions", with_beams, headers={"Accept": "text/event-stream"}))


def test_one_reader_at_a_time(start, large):
    """A stream that is resumed while its first connection still reads: that one ends with an error."""
    server = start(large, "--load-format", "dummy", *SMALL, "--api-server-count", "2", *KEPT)
    body = {"prompt": [5, 7, 9], "max_tokens": 120, "ignore_eos": True, "stream": True, "return_token_ids": True, "temperature": 1, "seed": 4}
    want = whole(server, "/v1/completions", body)
    for _ in range(3):  # at the same frontend, and at another
        first = events(server, "/v1/completions", body)
        seen = list(itertools.islice(first, 5))
        rest = whole(server, "/v1/completions", None, last_id=seen[2][0])
        assert merged(seen[:3] + rest) == merged(want)
        last = list(first)
        assert "another connection" in last[-2][1]["error"]["message"] and last[-1] == (None, "[DONE]") and last[-2][0] is None
    server.wait_metric("vllm:num_requests_running", 0)
    server.wait_metric("quire:kv_blocks_used", 0)


def test_frontends_are_killed(start, large):
    """kill -9 of one of two frontends under 8 streams, twice, and then of the engine: every event once."""
    server = start(large, "--load-format", "dummy", *SMALL, "--api-server-count", "2", *KEPT)
    bodies = [{"prompt": [5, 7, i + 1], "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": i % 2, "seed": i,
               "return_token_ids": True, "n": 1 + i % 3 // 2, "logprobs": i % 4 // 3 * 2} for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        want = list(pool.map(lambda b: whole(server, "/v1/completions", b), bodies))
        progress = Progress()
        streams = [pool.submit(patient, server, "/v1/completions", b, progress) for b in bodies]
        for k in range(3):
            while progress.n_event < sum(map(len, want)) * (k + 1) // 5 or progress.n_away:
                assert not all(s.done() for s in streams)
                time.sleep(0.001)
            mark = len(server.process.lines)
            name = "quire-engine" if k == 2 else "quire-frontend"
            pids = server.children(name)
            os.kill(pids[0] if k == 2 else max(pids, key=server.n_connection), signal.SIGKILL)  # a frontend that has streams
            server.process.wait_line(name[6:] + ".* was killed by signal 9.*restarting", start=mark)
        got = [s.result(HANG_S) for s in streams]
    for (found, _), expected in zip(got, want):
        assert merged(found) == merged(expected)
        assert [int(i.split(".")[1]) for i, _ in found] == list(range(1, len(found) + 1))
    assert sum(n for _, n in got) > 0


def test_the_engine_dies_before_the_frontend(start, large):
    """The frontend gives the new engine what it knows of the stream; then the frontend dies."""
    server = start(large, "--load-format", "dummy", *SMALL, "--api-server-count", "2", *KEPT)
    body = {"prompt": [5, 7, 9], "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 1, "seed": 4, "logprobs": 1}
    want = whole(server, "/v1/completions", body)
    stream = events(server, "/v1/completions", body)
    seen = list(itertools.islice(stream, 10))
    mark = len(server.process.lines)
    os.kill(server.children("quire-engine")[0], signal.SIGKILL)
    server.process.wait_line("engine .*was killed by signal 9", start=mark)
    seen += list(itertools.islice(stream, 30))
    for pid in server.children("quire-frontend"):
        os.kill(pid, signal.SIGKILL)
    try:
        seen += list(stream)
    except Broken:
        pass
    while seen[-1][1] != "[DONE]":
        try:
            seen += whole(server, "/v1/completions", None, last_id=seen[-1][0])
        except Broken:
            time.sleep(0.05)
        except AssertionError as e:
            assert e.args[0][0] == 503
            time.sleep(0.2)
    assert merged(seen) == merged(want)


def test_memory_is_limited(start):
    """Streams that nobody has any more are forgotten first; those that run are not disturbed."""
    server = start(MODELS / "llama", *SMALL, *KEPT, "--stream-resume-bytes", "64K")
    body = {"prompt": [5, 7], "max_tokens": 40, "stream": True, "ignore_eos": True}
    wait_for_404(server)
    found = [whole(server, "/v1/completions", body) for _ in range(60)]
    assert refused(server, found[0][0][0]) == 404
    assert whole(server, "/v1/completions", None, last_id=found[-1][0][0]) == found[-1][1:]
    assert all(len(f) == len(found[0]) for f in found)


def test_a_body_that_asks_for_ids_in_vain(kept):
    """Not kept, and so without ids: prompt logprobs."""
    found = whole(kept, "/v1/completions", {"prompt": "a b c", "max_tokens": 2, "echo": True, "logprobs": 1, "stream": True})
    assert not any(i for i, _ in found)
    assert json.dumps(found[0][1])
