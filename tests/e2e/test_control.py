# SPDX-License-Identifier: Apache-2.0
"""What those who train in a loop do: sleep, wake up, pause, resume, other weights; and profiles. Requests meanwhile wait and
give the same tokens, or those of the weights that are served then."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import tempfile
import threading
import time

import openai
import pytest

from servers import MODELS

LLAMA = MODELS / "llama"
BODY = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", "--heartbeat-ms", "500",
           "--allowed-weights-path", MODELS, "--allowed-weights-path", tempfile.gettempdir())


@pytest.fixture
def server(start):
    return start(LLAMA, *OPTIONS, "--api-key", "k", "--enable-steering", key="k")


@pytest.fixture
def slow(start, large):
    """One sequence at once, slow enough to be seen in the middle of it."""
    return start(large, "--skip-tokenizer-init", "--load-format", "dummy", "--num-gpu-blocks-override", "512",
                 "--heartbeat-ms", "500", "--max-num-seqs", "1", "--threads", "1")


def post(server, path, body=None):
    connection, answer = server.raw("POST", path, body, timeout=300)
    status, text = answer.status, answer.read()
    connection.close()
    return status, json.loads(text) if text else None


def state(server, name):
    return json.loads(server.get("/" + name)[1])[name]


def in_thread(call, *args, **more):
    """The list gets the answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call(*args, **more)), daemon=True)
    thread.start()
    return thread, answers


def ids(answer):
    return answer["choices"][0]["token_ids"]


def trained(folder, factor, like=LLAMA, config=True):
    """Other weights of the same model: every number times factor."""
    folder.mkdir()
    data = bytearray((like / "model.safetensors").read_bytes())
    n = 8 + struct.unpack("<Q", data[:8])[0]
    numbers = struct.unpack(f"<{(len(data) - n) // 4}f", data[n:])
    data[n:] = struct.pack(f"<{len(numbers)}f", *(x * factor for x in numbers))
    (folder / "model.safetensors").write_bytes(data)
    if config:
        shutil.copy(like / "config.json", folder)
    return folder


@pytest.mark.parametrize("begin, end, name", [("/sleep", "/wake_up", "is_sleeping"), ("/sleep?level=2", "/wake_up", "is_sleeping"),
                                              ("/pause?mode=keep", "/resume", "is_paused"), ("/pause", "/resume", "is_paused"),
                                              ("/pause?mode=wait&clear_cache=true", "/resume", "is_paused")])
def test_rest_and_go_on(server, begin, end, name):
    want = ids(server.post("/v1/completions", BODY)[1])
    assert not state(server, name)
    said = {"status": "paused"} if "pause" in begin else None
    assert post(server, begin) == (200, said) and state(server, name)
    assert post(server, begin) == (200, said)  # again is fine
    if begin.startswith("/pause") and "keep" not in begin:  # as in vLLM
        for body in (BODY, {**BODY, "stream": True}):
            connection, answer = server.raw("POST", "/v1/completions", body)
            error = json.loads(answer.read())["error"]
            assert (answer.status, error["code"]) == (503, "service_unavailable") and "paused" in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
        assert server.metric("vllm:num_requests_waiting") == 0
        assert post(server, "/pause?mode=keep") == (200, said)  # now they are taken and wait
    thread, answers = in_thread(server.post, "/v1/completions", BODY)
    server.wait_metric("vllm:num_requests_waiting", 1)
    assert not answers
    assert post(server, end) == (200, {"status": "resumed"} if said else None) and not state(server, name)
    thread.join()
    assert ids(answers[0][1]) == want


def test_a_pause_refuses_at_every_frontend(start):
    server = start(LLAMA, *OPTIONS, "--frontends", "3")
    for mode in ("abort", "wait"):
        assert post(server, "/pause?mode=" + mode)[0] == 200
        for _ in range(20):
            assert server.post("/v1/completions", BODY)[0] == 503
        assert post(server, "/resume")[0] == 200
        until = time.monotonic() + 60
        while server.post("/v1/completions", BODY)[0] != 200:  # one frontend may hear of the end a little later
            assert time.monotonic() < until


def test_refused(server):
    for path, param in [("/sleep?level=3", "level"), ("/pause?mode=soon", "mode"), ("/pause?clear_cache=maybe", "clear_cache")]:
        status, body = post(server, path)
        assert status == 400 and body["error"]["param"] == param
    server.key = None
    for path in ["/sleep", "/wake_up", "/pause?mode=keep", "/resume", "/reload_weights", "/start_profile", "/stop_profile"]:
        assert post(server, path)[0] == 401


def test_pause_aborts(slow):
    """Streams and whole answers end with what they have, and say so; what comes later is refused."""
    client = openai.OpenAI(base_url=slow.url + "/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.completions.create(model=str(slow.process.args[2]), prompt=[1, 2], max_tokens=3000, stream=True,
                                       extra_body={"ignore_eos": True})
    next(stream)
    queued, answers = in_thread(slow.post, "/v1/completions", {**BODY, "n": 2})
    slow.wait_metric("vllm:num_requests_waiting", 2)
    assert post(slow, "/pause") == (200, {"status": "paused"})
    assert [c.choices[0].finish_reason for c in stream][-1] == "abort"
    queued.join()
    assert [c["finish_reason"] for c in answers[0][1]["choices"]] == ["abort"] * 2 and answers[0][1]["usage"]["completion_tokens"] == 0
    assert slow.post("/v1/completions", BODY)[0] == 503
    post(slow, "/pause?mode=keep")
    beams, found = in_thread(slow.post, "/v1/completions", {**BODY, "n": 2, "use_beam_search": True})
    slow.wait_metric("vllm:num_requests_waiting", 1)
    post(slow, "/pause?mode=abort")
    beams.join()
    assert found[0][0] == 503 and "paus" in found[0][1]["error"]["message"]
    post(slow, "/resume")
    assert len(ids(slow.post("/v1/completions", BODY, timeout=300)[1])) == 8


def test_pause_waits(slow):
    """Requests that have begun go on to their end; those in the queue stay there; new ones are refused."""
    stream = slow.events("/v1/completions", {**BODY, "max_tokens": 3000})
    next(stream)
    later, answers = in_thread(slow.post, "/v1/completions", BODY, timeout=300)
    slow.wait_metric("vllm:num_requests_waiting", 1)
    pause, paused = in_thread(post, slow, "/pause?mode=wait")
    until = time.monotonic() + 300
    while not (seen := json.loads(slow.get("/is_paused")[1]))["is_paused"] and time.monotonic() < until:
        time.sleep(0.05)
    assert seen == {"is_paused": True, "is_draining": True} and not paused
    assert slow.post("/v1/completions", BODY)[0] == 503
    for _ in range(3):
        next(stream)
    stream.close()  # its end
    pause.join()
    assert paused == [(200, {"status": "paused"})]
    assert json.loads(slow.get("/is_paused")[1]) == {"is_paused": True, "is_draining": False}
    slow.wait_metric("vllm:num_requests_waiting", 1)
    assert not answers
    post(slow, "/resume")
    later.join()
    assert len(ids(answers[0][1])) == 8


def test_reload(server, tmp_path):
    """The real client sees other answers and another fingerprint, and the old ones when they come back."""
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0, timeout=60)
    new = trained(tmp_path / "step-2", 1.3)

    def ask():
        answer = client.completions.create(model=str(LLAMA), prompt=[5, 6, 7], max_tokens=16, temperature=0, extra_body={"ignore_eos": True})
        return answer.system_fingerprint, answer.choices[0].token_ids
    old = ask()
    status, said = post(server, "/reload_weights", {"weights_path": str(new)})
    assert status == 200 and said["status"] == "reloaded" and said["weights_path"] == str(new)
    after = ask()
    assert after[0] == said["system_fingerprint"] != old[0] and after[1] != old[1]
    # an engine that dies is replaced by one that has them too, and so is a worker
    pid = server.children("quire-engine")[0]
    os.kill(server.children("quire-worker", of=pid)[0], signal.SIGKILL)
    assert ask() == after
    os.kill(pid, signal.SIGKILL)
    assert ask() == after
    # the same folder, overwritten as a whole
    fresh = trained(tmp_path / "step-3", 0.8, config=False)
    os.replace(fresh / "model.safetensors", new / "model.safetensors")
    assert post(server, "/reload_weights")[0] == 200
    third = ask()
    assert third[0] not in (old[0], after[0])
    assert post(server, "/reload_weights", {"weights_path": str(LLAMA), "mode": "abort"})[0] == 200
    assert ask() == old


def test_reload_that_does_not_fit(server, tmp_path):
    want = ids(server.complete(**BODY))
    for body, status, param, words in [
            ({"weights_path": "/nowhere"}, 400, "weights_path", "/nowhere is not in a folder of --allowed-weights-path"),
            ({"weights_path": str(MODELS / "mistral"), "mode": "abort"}, 409, None, "architecture MistralForCausalLM"),
            ({"weights_path": str(MODELS / "llama-rope-linear")}, 409, None, "intermediate_size 80, the served model has 96"),
            ({"weights_path": 5}, 400, "weights_path", "a string"), ({"weights_path": ""}, 400, "weights_path", "empty"),
            ({"mode": "soon"}, 400, "mode", "abort"), ({"path": "x"}, 400, "path", "weights_path")]:
        got, answer = post(server, "/reload_weights", body)
        assert (got, answer["error"]["param"]) == (status, param) and words in answer["error"]["message"], (body, got, answer)
    assert post(server, "/reload_weights", "[1]")[0] == 400
    assert ids(server.complete(**BODY)) == want


def test_reload_reads_allowed_folders_only(start, tmp_path):
    """By default the served one and those in it; a folder elsewhere and none at all get the same words."""
    served, outside = tmp_path / "served", trained(tmp_path / "outside", 1.3)
    shutil.copytree(LLAMA, served)
    inside = trained(served / "step-2", 1.3)
    (served / "link").symlink_to(outside)
    pipe = trained(served / "pipe", 1.3)
    (pipe / "model.safetensors").unlink()
    os.mkfifo(pipe / "model.safetensors")  # opening it would wait for a writer
    server = start(served, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")
    for path in (outside, served / "link", f"{served}/../outside", f"{served}-none", served / "none", "/", "outside"):
        status, answer = post(server, "/reload_weights", {"weights_path": str(path)})
        assert status == 400 and answer["error"]["param"] == "weights_path", (path, answer)
        assert f"{path} is not in the served model's folder; others are named by --allowed-weights-path" in answer["error"]["message"]
    status, answer = post(server, "/reload_weights", {"weights_path": str(pipe)})
    assert status >= 400 and "expected a file" in answer["error"]["message"], answer
    old = ids(server.complete(**BODY))
    assert post(server, "/reload_weights", {"weights_path": str(inside)})[0] == 200
    assert ids(server.complete(**BODY)) != old
    assert post(server, "/reload_weights", {"weights_path": str(served)})[0] == 200
    assert ids(server.complete(**BODY)) == old
    assert post(server, "/reload_weights")[0] == 200


def test_reload_in_the_middle_of_an_answer(start, tmp_path):
    """Kept requests go on with the new weights; the answer names both, and each chunk its own."""
    server = start(LLAMA, *OPTIONS)
    new = trained(tmp_path / "step-2", 1.3)
    body = {**BODY, "max_tokens": 200, "return_token_ids": True}
    old = server.complete(**body)
    assert post(server, "/pause?mode=keep")[0] == 200
    whole, answers = in_thread(server.complete, **body)
    server.wait_metric("vllm:num_requests_waiting", 1)
    stream = server.events("/v1/completions", body)
    first = in_thread(next, stream)
    server.wait_metric("vllm:num_requests_waiting", 2)
    post(server, "/resume")
    first[0].join()
    assert post(server, "/reload_weights", {"weights_path": str(new), "mode": "keep"})[0] == 200
    chunks = [c for c in first[1] + list(stream) if isinstance(c, dict)]  # no comments
    whole.join()
    fingerprints = list(dict.fromkeys(c["system_fingerprint"] for c in chunks))
    streamed = sum((ids(c) for c in chunks), [])
    assert fingerprints[0] == old["system_fingerprint"] and len(streamed) == 200
    if len(fingerprints) == 2:  # the reload came in the middle of it, not after the end
        n = sum(len(ids(c)) for c in chunks if c["system_fingerprint"] == fingerprints[0])
        assert streamed[:n] == ids(old)[:n] and streamed != ids(old)
        rest = server.complete([5, 6, 7] + streamed[:n], max_tokens=200 - n, temperature=0, ignore_eos=True)
        assert streamed[n:] == ids(rest)
    answer = answers[0]
    assert answer["system_fingerprint"].split("+") == (fingerprints if ids(answer) != ids(old) else fingerprints[:1])


def test_reload_in_a_pause(start, tmp_path):
    """As vLLM's users do it: pause, other weights, resume; what became of requests was said with the pause."""
    server = start(LLAMA, *OPTIONS, "--max-num-seqs", "1")
    new = trained(tmp_path / "step-2", 1.3)
    assert post(server, "/pause?mode=keep")[0] == 200
    thread, answers = in_thread(server.complete, **BODY)
    server.wait_metric("vllm:num_requests_waiting", 1)
    assert post(server, "/reload_weights", {"weights_path": str(new)})[0] == 200
    assert not answers and state(server, "is_paused")
    post(server, "/resume")
    thread.join()
    assert ids(answers[0]) == ids(server.complete(**BODY))
    assert post(server, "/sleep?level=2")[0] == 200
    assert post(server, "/reload_weights", {"weights_path": str(LLAMA)})[0] == 200
    assert post(server, "/wake_up")[0] == 200
    assert ids(server.complete(**BODY)) != ids(answers[0])


def test_profile(start, server, tmp_path):
    status, answer = post(server, "/start_profile")
    assert status == 400 and "--profiler-dir" in answer["error"]["message"]
    profiled = start(LLAMA, *OPTIONS, "--profiler-dir", tmp_path / "made")
    assert post(profiled, "/stop_profile")[0] == 400
    profiled.complete(**BODY)
    status, began = post(profiled, "/start_profile")
    assert status == 200 and pathlib.Path(began["path"]).parent == tmp_path / "made"
    assert post(profiled, "/start_profile")[0] == 400
    profiled.complete(**BODY)
    assert post(profiled, "/stop_profile") == (200, began)
    events = json.loads(pathlib.Path(began["path"]).read_text())
    parts = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in parts} == {"plan", "encode", "settle", "outbox", "wait", "forward", "sample"}
    assert sum(e["name"] == "forward" for e in parts) >= 8 and len({e["args"]["step"] for e in parts}) < 12
    assert re.fullmatch(r"quire-\d+-\d+-1\.trace\.json", pathlib.Path(began["path"]).name)
