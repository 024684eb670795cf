# SPDX-License-Identifier: Apache-2.0
"""Inputs that are no tokens, over HTTP, offline and through crashes: a plugin of the tests (tests/plugins/grids.c) over the
Llama golden. The goldens of Terra are in test_terra.py."""
import base64
import http.client
import json
import os
import signal
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from servers import BIN, HANG_S, MODELS, ROOT

GRID, STRIP, MARK = -7, -8, 7
ONE = [[1, 2, 3], [4, 5, 6]]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "grids.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", ROOT, "-o", path,
                    ROOT / "tests/plugins/grids.c"], check=True)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grids-model")
    config = json.loads((MODELS / "llama/config.json").read_text())
    config["architectures"] = ["GridsForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(MODELS / "llama/model.safetensors")
    return folder


@pytest.fixture
def serve(start, plugin, model):
    def begin(*options, **more):
        return start(model, "--plugin", plugin, "--skip-tokenizer-init", "--num-gpu-blocks-override", "128", *options, **more)
    return begin


def body(**more):
    return {"prompt": [1, 2, 3] + [GRID] * 4 + [5], "multi_modal_data": {"grids": [ONE]}, "max_tokens": 6, "temperature": 0,
            **more}


def tokens(server, **more):
    status, answer = server.post("/v1/completions", body(**more))
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def packed(values, code="f"):
    return base64.b64encode(struct.pack(f"<{len(values)}{code}", *values)).decode()


def npy(path, values, shape):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack(f"<{len(values)}f", *values))


def test_forms_of_an_item_agree(serve, tmp_path):
    server = serve("--allowed-local-media-path", tmp_path)
    want = tokens(server)
    flat = [1, 2, 3, 4, 5, 6]
    npy(tmp_path / "one.npy", flat, (2, 3))
    npy(tmp_path / "all.npy", flat, (1, 2, 3))
    forms = [
        [{"data": packed(flat), "dtype": "float32", "shape": [2, 3]}],
        [{"data": packed(flat, "d"), "dtype": "float64", "shape": [2, 3]}],
        [{"data": packed(flat, "q"), "dtype": "int64", "shape": [2, 3]}],
        {"data": packed(flat), "shape": [1, 2, 3]},
        [{"path": str(tmp_path / "one.npy")}],
        {"path": str(tmp_path / "all.npy")},
    ]
    for form in forms:
        assert tokens(server, multi_modal_data={"grids": form}) == want, form
    status, answer = server.post("/v1/completions", body(multi_modal_data={"grids": [{"path": "/etc/hostname.npy"}]}))
    assert status == 400 and "path" in answer["error"]["message"]
    outside = tmp_path.parent / "outside.npy"
    npy(outside, flat, (2, 3))
    (tmp_path / "link.npy").symlink_to(outside)
    for path in (outside, tmp_path / "link.npy", tmp_path / ".." / "outside.npy"):
        status, answer = server.post("/v1/completions", body(multi_modal_data={"grids": [{"path": str(path)}]}))
        assert status == 400 and "--allowed-local-media-path" in answer["error"]["message"], answer
    for path in ("/etc/hostname", "/no/such.npy", tmp_path / "none.npy", tmp_path, "../outside.npy"): # and no word of what there is
        status, answer = server.post("/v1/completions", body(multi_modal_data={"grids": [{"path": str(path)}]}))
        assert status == 400 and "is no file in the folder of --allowed-local-media-path" in answer["error"]["message"], answer
    os.mkfifo(tmp_path / "pipe.npy")
    for item, message in (({"path": str(tmp_path / "pipe.npy")}, "is a pipe or a device"), # opening it would wait for a writer
                          ({"path": str(tmp_path / "one.npy") + "\0"}, "path: has a NUL"),
                          ({"path": str(tmp_path / "one.npy"), "tensor": "x"}, "tensor: an .npy file has one array without a name"),
                          ({"path": str(tmp_path / "one.npy"), "tensor": 1}, "tensor: expected a string, got an integer"),
                          ({"data": packed(flat), "shape": [1 << 31, 1 << 31]}, "shape: more than 2^64 bytes")):
        status, answer = server.post("/v1/completions", body(multi_modal_data={"grids": [item]}))
        assert status == 400 and message in answer["error"]["message"], answer


def test_answer_has_ids(serve):
    server = serve()
    status, answer = server.post("/v1/completions", body(return_token_ids=True, detokenize=False, prompt_logprobs=1))
    choice = answer["choices"][0]
    assert status == 200 and choice["prompt_token_ids"] == body()["prompt"] and len(choice["token_ids"]) == 6
    rows = choice["prompt_logprobs"]
    assert [row is None for row in rows] == [True, False, False, True, True, True, True, False]
    streamed = [i for e in server.events("/v1/completions", body()) for i in e["choices"][0]["token_ids"]]
    assert streamed == choice["token_ids"]


def test_several_prompts(serve):
    server = serve()
    other = {"grids": [[[9, 9, 9], [9, 9, 9]]]}
    prompts = [body()["prompt"], [4] + [GRID] * 4]
    alone = [tokens(server), tokens(server, prompt=prompts[1], multi_modal_data=other)]
    status, answer = server.post("/v1/completions",
                                 body(prompt=prompts, multi_modal_data=[body()["multi_modal_data"], other]))
    assert status == 200 and [c["token_ids"] for c in answer["choices"]] == alone
    status, answer = server.post("/v1/completions", body(prompt=prompts, multi_modal_data=[other]))
    assert status == 400 and "1 objects for 2 prompts" in answer["error"]["message"]
    assert len(server.post("/v1/completions", body(n=3))[1]["choices"]) == 3


MISUSES = [
    ({"multi_modal_data": {"grids": []}}, "4 placeholders (-7) of grids, but multi_modal_data has no grids"),
    ({"multi_modal_data": None}, "4 placeholders (-7) of grids, but multi_modal_data has no grids"),
    ({"multi_modal_data": {"grids": [ONE, ONE]}}, "grids: 2 items of 8 rows in total, but the prompt has 4 placeholders (-7)"),
    ({"multi_modal_data": {"grids": [[1, 2, 3]]}}, "grids[0]: shape [3] is not [2, 3]"),
    ({"multi_modal_data": {"grids": [[[1, 2], [4, 5, 6]]]}}, "multi_modal_data: grids[0]: the lists are ragged"),
    ({"multi_modal_data": {"grids": [[[1, 2, "x"], [4, 5, 6]]]}}, "multi_modal_data: grids[0]: number 2 is a string"),
    ({"multi_modal_data": {"grids": [{"data": "AAAA", "shape": [2, 3]}]}}, "grids[0]: data: 3 bytes, expected 24"),
    ({"multi_modal_data": {"grids": [{"data": packed([1] * 6, "B"), "dtype": "uint8", "shape": [2, 3]}]}}, "grids[0]"),
    ({"multi_modal_data": {"grids": [{"data": packed([float("nan")] * 6), "shape": [2, 3]}]}}, "grids[0]"),
    ({"multi_modal_data": {"grids": [[[1e39, 2, 3], [4, 5, 6]]]}}, "grids[0]: number 0 is"),
    ({"multi_modal_data": {"grids": [{"data": "AAAA----", "dtype": "uint8", "shape": [3]}]}}, "grids[0]: data: not base64"),
    ({"multi_modal_data": {"grids": [{"data": "AAAA", "shape": [1], "tensor": "x"}]}}, 'grids[0]: unexpected member "tensor"'),
    ({"multi_modal_data": {"grids": [{"path": "a.npy", "dtype": "uint8"}]}}, 'grids[0]: unexpected member "dtype"'),
    ({"multi_modal_data": {"grids": [[[0] * 9000] + [[]] * 3000]}}, "grids[0]: the lists are ragged"),
    ({"multi_modal_data": {"grids": [{"data": "AAAA", "shape": [1], "dtype": ">f4"}]}}, 'grids[0]: dtype: expected "float32"'),
    ({"multi_modal_data": {"images": [1]}}, 'no modality "images", it has: grids, strips, marks'),
    ({"multi_modal_data": [1]}, "multi_modal_data: expected an object"),
    ({"multi_modal_data": {"grids": 3}}, "multi_modal_data: grids: expected a list of items, got an integer"),
    ({"multi_modal_data": {"grids": [ONE], "strips": [[300]]}, "prompt": [STRIP] + [GRID] * 4},
     "strips[0]: number 0 is 300, expected a whole number from 0 to 255"),
    ({"multi_modal_data": {"grids": [ONE], "marks": [[-1]]}, "prompt": [MARK] + [GRID] * 4}, "marks[0]"),
    ({"prompt": [-9], "multi_modal_data": {"blobs": [[253]]}}, "blobs[0]: plugin grids 1.0: plugin grids 1.0: check_item failed and gave no"),
    ({"prompt": [-9], "multi_modal_data": {"blobs": [[252]]}}, "blobs[0]: plugin grids 1.0: no blob  [1mbegins with 252"),
    ({"prompt": [1, -3, 2], "multi_modal_data": None}, "token id -3 at position 1 is not in the vocabulary (0 … 511)"),
    ({"prompt": [1, 512], "multi_modal_data": None}, "token id 512 at position 1 is not in the vocabulary (0 … 511)"),
    ({"prompt": [1] + [2 ** 32 + GRID] * 4 + [5]}, "token id 4294967289 at position 1 is not in the vocabulary (0 … 511)"),
    ({"prompt": [1, -2 ** 40], "multi_modal_data": None}, "is not in the vocabulary (0 … 511)"),
    ({"max_tokens": 250}, "maximum context length is 256 tokens"),
]


def test_misuse_is_refused_and_the_server_goes_on(serve):
    server = serve()
    want = tokens(server)
    for change, message in MISUSES:
        for stream in (False, True):
            status, answer = server.post("/v1/completions", body(stream=stream, **change))
            assert status == 400 and message in answer["error"]["message"], (change, answer)
    assert tokens(server) == want


def test_limits(serve):
    server = serve("--limit-mm-per-prompt", "grids=1,strips=0", "--mm-processor-cache-gb", "0.001")
    status, answer = server.post("/v1/completions",
                                 body(prompt=[GRID] * 8, multi_modal_data={"grids": [ONE, ONE]}))
    assert status == 400 and "grids: 2 items, expected at most 1 in a request" in answer["error"]["message"]
    tokens(server)
    big = {"grids": [{"data": packed([0.0] * 400000), "shape": [400000]}]}
    status, answer = server.post("/v1/completions", body(multi_modal_data=big))
    assert status == 413 and "--mm-processor-cache-gb" in answer["error"]["message"]
    third = {"grids": [{"data": packed([0.0] * 100000), "shape": [100000]}]}  # of which two fit, for ever
    status, answer = server.post("/v1/completions", body(multi_modal_data=third, n=3, temperature=1))
    assert status == 413 and "1200000 bytes in 3 choices" in answer["error"]["message"], answer
    tokens(server)


@pytest.mark.parametrize("limit", [
    ("--limit-mm-per-prompt.grids", "1"), ("--limit-mm-per-prompt.grids=1",), ("--limit_mm_per_prompt", "grids=1,strips=0"),
    ("--limit-mm-per-prompt", '{"grids": 1}'), ("--limit-mm-per-prompt", '{"grids": {"count": 1, "width": 2}, "image": 3}'),
    ("--limit-mm-per-prompt", "grids=3", "--limit-mm-per-prompt.grids", "1")], ids=" ".join)
def test_forms_of_limits(serve, plugin, model, limit):
    server = serve(*limit)
    status, answer = server.post("/v1/completions", body(prompt=[GRID] * 8, multi_modal_data={"grids": [ONE, ONE]}))
    assert status == 400 and "grids: 2 items, expected at most 1 in a request" in answer["error"]["message"], answer
    tokens(server)
    assert ("no modality \"image\", it has: grids, strips, marks" in server.process.log()) == ("image" in limit[-1])
    line = {"prompt_token_ids": [GRID] * 8, "multi_modal_data": {"grids": [ONE, ONE]}, "max_tokens": 1}
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--skip-tokenizer-init", "-i", "-", *limit],
                          input=json.dumps(line), capture_output=True, text=True)
    assert "grids: 2 items, expected at most 1" in done.stdout, done.stderr


@pytest.mark.parametrize("limit, says", [
    (("--limit-mm-per-prompt", "grids"), "neither a JSON object such as"), (("--limit-mm-per-prompt", "grids=x"), "grids: expected a whole"),
    (("--limit-mm-per-prompt.grids", "-1"), "grids is -1, expected 0 to 65536"), (("--limit-mm-per-prompt", "{1"), "is not valid JSON"),
    (("--limit-mm-per-prompt", "[1]"), "neither a JSON object"), (("--limit-mm-per-prompt.", "1"), "expected a key"),
    (("--limit-mm-per-prompt.grids", '{"width": "x"}'), "")], ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_limits_that_are_none(plugin, model, limit, says):
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--skip-tokenizer-init", "--prompt-ids", "1",
                           "--max-tokens", "1", *limit], capture_output=True, text=True)
    assert done.returncode == (2 if says else 0) and says in done.stderr, done.stderr


def shm():
    return {name for name in os.listdir("/dev/shm") if name.startswith("quire-items-")}


def test_large_items_leave_no_shared_memory(serve):
    before = shm()
    server = serve()
    big = {"grids": [{"data": packed([0.0] * 200000), "shape": [200000]}]}
    status, answer = server.post("/v1/completions", body(multi_modal_data=big))
    assert status == 400 and "grids[0]: shape [200000] is not [2, 3]" in answer["error"]["message"]
    tokens(server)
    assert shm() == before


def test_items_over_tcp(run, plugin, model, tmp_path):
    run("quire", "keygen", tmp_path / "keys").process.wait()
    engine = run("quire", "engine", model, "--plugin", plugin, "--listen", "tcp://127.0.0.1:0", "--keys", tmp_path / "keys",
                 "--num-gpu-blocks-override", "64")
    address = engine.wait_line(r"listening on (tcp://\S+)")[1]
    frontend = run("quire", "frontend", model, "--plugin", plugin, "--engine", address, "--keys", tmp_path / "keys",
                   "--port", "0", "--skip-tokenizer-init")
    from servers import Http
    server = Http(frontend.wait_line(r"listening on (http://\S+)")[1])
    frontend.wait_line("link: connected")
    before = shm()
    assert len(tokens(server)) == 6
    big = {"grids": [{"data": packed([0.0] * 200000), "shape": [200000]}]}
    status, answer = server.post("/v1/completions", body(multi_modal_data=big))
    assert status == 400 and "grids[0]: shape [200000] is not [2, 3]" in answer["error"]["message"]
    for first, status in ((7, 200), (255, 400)): # the thread reads the frame while small requests are computed
        blob = {"blobs": [{"data": base64.b64encode(bytes([first]) * 3000001).decode(), "shape": [3000001], "dtype": "uint8"}]}
        ask = {"prompt": [1, 2, 3, -9, 5], "multi_modal_data": blob, "max_tokens": 6, "temperature": 0, "detokenize": False,
               "return_token_ids": True}
        with ThreadPoolExecutor(4) as pool:
            many = [pool.submit(server.post, "/v1/completions", ask) for _ in range(4)]
            assert len(tokens(server)) == 6
        assert [f.result()[0] for f in many] == [status] * 4, many[0].result()
        answer = [f.result()[1] for f in many]
        if status == 200:
            assert len({tuple(a["choices"][0]["token_ids"]) for a in answer}) == 1
        else:
            assert "blobs[0]: plugin grids 1.0: no blob begins with 255" in answer[0]["error"]["message"]
    assert shm() == before


def test_large_items_over_tcp_outlive_the_engine(run, plugin, model, tmp_path):
    """More than a frame could have, and kill -9 of the engine in the middle of the answer and in the middle of the items: the next one
    gets all of them again."""
    from servers import Http
    from test_wire import free_port
    address, options = f"tcp://127.0.0.1:{free_port()}", ("--insecure-tcp", "--plugin", plugin)
    files = [blob_file(tmp_path / f"{i}.npy", i, 1 << 24) for i in (1, 2, 3)]

    def engine():
        process = run("quire", "engine", model, *options, "--listen", address, "--num-gpu-blocks-override", "64", "--heartbeat-ms", "200")
        process.wait_line("ready, fp_")
        return process

    def events(n):
        return server.events("/v1/completions", {"prompt": [1, 2] + [-9] * 3 + [5], "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                                 "multi_modal_data": {"blobs": [{"path": f} for f in files]}})

    first = engine()
    frontend = run("quire", "frontend", model, *options, "--engine", address, "--port", "0", "--skip-tokenizer-init",
                   "--allowed-local-media-path", tmp_path)
    server = Http(frontend.wait_line(r"listening on (http://\S+)")[1])
    frontend.wait_line("link: connected")
    want = [i for e in events(60) for i in e["choices"][0]["token_ids"]]
    assert len(want) == 60
    got = []
    for event in events(60):
        got += event["choices"][0]["token_ids"]
        if len(got) == 3:
            first.process.kill()
            first.process.wait()
            second = engine()
    assert got == want
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: [i for e in events(60) for i in e["choices"][0]["token_ids"]])
        time.sleep(0.1)  # the items are on their way, or are soon
        second.process.kill()
        second.process.wait()
        engine()
        assert job.result() == want


def kill(server, name):
    """One that runs: after a crash its successor may not be there yet."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        engines = server.children("quire-engine")
        found = engines if name == "quire-engine" else [p for e in engines for p in server.children(name, e)]
        if found:
            os.kill(found[0], signal.SIGKILL)
            return
    raise AssertionError(f"no {name}")


@pytest.mark.parametrize("name", ["quire-worker", "quire-engine"])
def test_a_crash_changes_no_token(serve, name):
    """A rollout: each request is the one before, its tokens, and another item."""
    server = serve("--max-num-batched-tokens", "5")
    prompt, items, want = [3] * 17, [], []

    def step(seed, crash):
        prompt.extend([GRID] * 4)
        items.append([[seed, 2, 3], [4, 5, seed]])
        ids = []
        for event in server.events("/v1/completions", {
                "prompt": prompt, "multi_modal_data": {"grids": items}, "max_tokens": 30, "temperature": 0,
                "ignore_eos": True}):
            if isinstance(event, dict):
                ids.extend(event["choices"][0]["token_ids"])
                if crash and len(ids) == 3:
                    kill(server, name)
        assert len(ids) == 30
        prompt.extend(ids)

    for crash in (False, True):
        del prompt[17:], items[:]
        for seed in range(4):
            step(seed, crash)
        want.append(list(prompt))
    assert want[0] == want[1]


def test_an_item_that_crashes_the_worker_ends_alone(serve):
    server = serve()
    want = tokens(server)
    status, answer = server.post("/v1/completions", body(multi_modal_data={"grids": [[[999, 2, 3], [4, 5, 6]]]}))
    assert status == 500 and "crashed each time" in answer["error"]["message"]
    for _ in range(2): # the blocks of one that fails are in no cache
        for stream in (False, True):
            prompt = [1] * 40 + [GRID] * 8 + [5]
            two = body(prompt=prompt, multi_modal_data={"grids": [ONE, [[666, 2, 3], [4, 5, 6]]]}, stream=stream)
            status, error = server.post("/v1/completions", two)
            assert status == 500, error
            assert "plugin grids 1.0: grids[1]: this grid cannot be computed" in error["error"]["message"]
    with ThreadPoolExecutor(8) as pool: # some share the blocks of others before these are computed
        good = {**two, "multi_modal_data": {"grids": [ONE, ONE]}, "stream": False}
        answers = pool.map(lambda ask: server.post("/v1/completions", ask), [{**two, "stream": False, "n": 3}, good] * 4)
        for i, (status, answer) in enumerate(answers):
            assert i % 2 and status == 200 or "grids[1]: this grid cannot be computed" in answer["error"]["message"], answer
    assert tokens(server) == want


@pytest.mark.parametrize("fault, says", [
    ("crash", "plugin grids 1.0 crashed with an item of zeros (count_tokens, scratch_bytes, check_item or embed_item): signal 6"),
    ("exit", "plugin grids 1.0 ended the process with an item of zeros"),
    ("fail", "an item of zeros: plugin grids 1.0: grids[0]: zeros are no grid")])
def test_what_fails_at_the_start(plugin, model, fault, says):
    """The engine measures its largest step with items of zeros; what a plugin does with them is an error of the start."""
    for verb in ("generate", "serve"):
        more = ("--prompt-ids", "1") if verb == "generate" else ("--port", "0")
        done = subprocess.run([BIN / "quire", verb, model, "--plugin", plugin, "--skip-tokenizer-init", *more], capture_output=True,
                              text=True, timeout=60, env=os.environ | {"QUIRE_TEST_ZEROS": fault})
        assert done.returncode == 3 and says in done.stderr, (done.returncode, done.stderr)


@pytest.mark.parametrize("what", ["rows", "small", "large"])
def test_a_callback_that_hangs_ends_its_request_alone(serve, what):
    """In the worker, on the engine's loop, on its thread for large items: the process is replaced until the request is found."""
    server = serve("--stall-timeout", "1", "--heartbeat-ms", "100")
    want = tokens(server)
    size = 10 if what == "small" else 3000000
    bad = {"grids": [[[777, 2, 3], [4, 5, 6]]]} if what == "rows" else {
        "blobs": [{"data": base64.b64encode(bytes([254]) * size).decode(), "shape": [size], "dtype": "uint8"}]}
    prompt = body()["prompt"] if what == "rows" else [1, 2, 3, -9, 5]
    with ThreadPoolExecutor(2) as pool:
        failed = pool.submit(server.post, "/v1/completions", body(prompt=prompt, multi_modal_data=bad), timeout=300)
        good = pool.submit(server.post, "/v1/completions", body(), timeout=300)
        status, answer = failed.result()
        says = "crashed each time" if what == "rows" else "the engine crashed 3 times while it computed this request"
        assert status == 500 and says in answer["error"]["message"], answer
        assert good.result()[1]["choices"][0]["token_ids"] == want
    assert tokens(server) == want


def test_an_engine_without_a_supervisor_ends_when_its_loop_hangs(run, plugin, model, tmp_path):
    address = f"ipc://{tmp_path}/engine"
    engine = run("quire-engine", model, "--plugin", plugin, "--num-gpu-blocks-override", "128", "--heartbeat-ms", "100", "--listen", address)
    frontend = run("quire-frontend", model, "--plugin", plugin, "--skip-tokenizer-init", "--engine", address, "--port", "0")
    port = int(frontend.wait_line(r"listening on http://\S+:(\d+)")[1])
    engine.wait_line("ready, ")
    blob = {"data": base64.b64encode(bytes([254]) * 10).decode(), "shape": [10], "dtype": "uint8"}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps(body(prompt=[1, 2, 3, -9, 5], multi_modal_data={"blobs": [blob]})),
                       {"Content-Type": "application/json"})
    assert engine.exit_code(60) == 7 and "the engine's loop has made no turn for 10 s" in engine.log()
    connection.close()


def streamed(server, ask):
    return [i for e in server.events("/v1/completions", ask) if "choices" in e for i in e["choices"][0]["token_ids"]]


@pytest.mark.parametrize("bad, message", [(999, "crashed each time"), (666, "grids[0]: this grid cannot be computed")], ids=["crash", "error"])
def test_others_finish_with_their_tokens(serve, bad, message):
    """Eight streams with items, of which three reach an engine together with a request whose item crashes the worker or is an
    error, and the others are in the middle of their tokens then."""
    server = serve("--max-num-batched-tokens", "6")
    asks = [body(multi_modal_data={"grids": [[[seed, 2, 3], [4, 5, seed]]]}, max_tokens=60, ignore_eos=True) for seed in range(8)]
    want = [streamed(server, ask) for ask in asks]
    assert {len(ids) for ids in want} == {60} and len({tuple(ids) for ids in want}) > 1
    with ThreadPoolExecutor(9) as pool:
        first = [pool.submit(streamed, server, ask) for ask in asks[:5]]
        failed = pool.submit(server.post, "/v1/completions", body(multi_modal_data={"grids": [[[bad, 2, 3], [4, 5, 6]]]}))
        rest = [pool.submit(streamed, server, ask) for ask in asks[5:]]
        status, answer = failed.result()
        assert status == 500 and message in answer["error"]["message"], answer
        assert [f.result() for f in first + rest] == want
    assert streamed(server, asks[3]) == want[3]


def test_the_cache_counts(serve):
    server = serve()
    prompt = [3] * 30 + [GRID] * 4 + [4] * 20
    usage = []
    for seed in (1, 1, 2):
        status, answer = server.post("/v1/completions",
                                     body(prompt=prompt, multi_modal_data={"grids": [[[seed] * 3] * 2]}))
        assert status == 200
        usage.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert usage == [0, 48, 16]


def test_offline_agrees(serve, plugin, model, tmp_path):
    server = serve()
    want = tokens(server)
    npy(tmp_path / "one.npy", [1, 2, 3, 4, 5, 6], (2, 3))
    line = {"prompt_token_ids": body()["prompt"], "max_tokens": 6, "temperature": 0, "detokenize": False}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**line, "multi_modal_data": {"grids": form}}) + "\n" for form in (
        [ONE], [{"path": str(tmp_path / "one.npy")}], [[1, 2]])))
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--skip-tokenizer-init", "-i",
                           tmp_path / "in.jsonl"], capture_output=True, text=True)
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda a: a["prompt"])
    assert [a.get("token_ids") for a in answers] == [want, want, None], done.stderr
    assert "grids[0]: shape [2] is not [2, 3]" in answers[2]["error"] and done.returncode == 1
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps({
        "custom_id": str(i), "method": "POST", "url": "/v1/completions",
        "body": {**body(multi_modal_data={"grids": form}), "model": "x"}}) + "\n" for i, form in enumerate((
            [ONE], [{"path": str(tmp_path / "one.npy")}]))))
    done = subprocess.run([BIN / "quire", "run-batch", model, "--plugin", plugin, "--skip-tokenizer-init",
                           "--served-model-name", "x", "-i", tmp_path / "batch.jsonl", "-o", tmp_path / "out.jsonl"],
                          capture_output=True, text=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [x["response"]["body"]["choices"][0]["token_ids"] for x in lines] == [want, want], done.stderr


def blob_file(path, first, n=1 << 23):
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", 118) + f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({n},), }}".encode()
                     .ljust(117) + b"\n" + bytes([first]) * n)
    return str(path)


def blob(path):
    return {"prompt": [1, 2, 3] * 6 + [-9, 5], "multi_modal_data": {"blobs": [{"path": path}]}, "max_tokens": 6, "temperature": 0,
            "ignore_eos": True}


def test_steps_with_items_are_replayed(serve, plugin, tmp_path):
    """A record holds the items; the plugin's code comes from the command line of the replay alone."""
    file = tmp_path / "steps"
    server = serve("--allowed-local-media-path", tmp_path, "--record", file)
    tokens(server)
    status, answer = server.post("/v1/completions", blob(blob_file(tmp_path / "1.npy", 1)))
    assert status == 200, answer
    server.stop()

    def replay(*more):
        return subprocess.run([BIN / "quire", "replay", file, "--json", *more], capture_output=True, text=True, timeout=120, check=False)

    done = replay("--plugin", plugin)
    assert done.returncode == 0, (done.stdout, done.stderr)
    said = json.loads(done.stdout)
    assert said["identical"] and said["tokens"] == 12
    without = replay()
    assert without.returncode == 3 and "GridsForCausalLM" in without.stderr, (without.returncode, without.stderr)


def test_large_items(serve, plugin, model, tmp_path):
    """8 MB each: read on a thread beside the others, and refused, aborted, repeated and replayed as small ones."""
    server = serve("--allowed-local-media-path", tmp_path)
    files = [blob_file(tmp_path / f"{i}.npy", i) for i in (1, 2, 3, 255)]
    small = tokens(server)

    def ask(file, **more):
        return server.post("/v1/completions", {**blob(file), **more})

    want = []
    for file in files[:3]:
        status, answer = ask(file)
        assert status == 200, answer
        want.append(answer["choices"][0]["token_ids"])
    assert len(set(map(tuple, want))) > 1
    status, answer = ask(files[0])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 16 and answer["choices"][0]["token_ids"] == want[0]
    for stream in (False, True):
        status, answer = ask(files[3], stream=stream)
        assert status == 400 and "blobs[0]: plugin grids 1.0: no blob begins with 255" in answer["error"]["message"], answer
        status, answer = ask(files[0], prompt=[1, 2], stream=stream)
        assert status == 400 and "blobs: 1 items" in answer["error"]["message"], answer
    with ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(ask, files[i % 4]) for i in range(8)] + [pool.submit(tokens, server) for _ in range(8)]
        for i, job in enumerate(jobs[:8]):
            status, answer = job.result()
            assert status == 400 if i % 4 == 3 else answer["choices"][0]["token_ids"] == want[i % 4], answer
        assert all(job.result() == small for job in jobs[8:])
    for _ in range(8): # clients that are gone before their items are read, or just after
        connection = server.raw("POST", "/v1/completions", {**blob(files[1]), "stream": True, "max_tokens": 100})[0]
        connection.close()
    assert ask(files[1], prompt=[1, 2, 3] * 6 + [STRIP, -9, 5], multi_modal_data={
        "blobs": [{"path": files[1]}], "strips": [[1, 2, 3]]}, return_token_ids=True)[1]["choices"][0]["prompt_token_ids"][18:22] == [
            STRIP, STRIP, STRIP, -9]
    events = []
    for event in server.events("/v1/completions", {**blob(files[2]), "max_tokens": 60}):
        events += event["choices"][0]["token_ids"]
        if len(events) == 3:
            kill(server, "quire-engine")
    assert events[:6] == want[2] and len(events) == 60
    lines = "".join(json.dumps({**{k: v for k, v in blob(f).items() if k != "prompt"}, "prompt_token_ids": blob(f)["prompt"]}) + "\n"
                    for f in files)
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--skip-tokenizer-init", "-i", "-"], input=lines,
                          capture_output=True, text=True)
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda a: a["prompt"])
    assert [a.get("token_ids") for a in answers[:3]] == want and "no blob begins with 255" in answers[3]["error"], done.stderr


@pytest.mark.parametrize("method", [
    {"method": "draft_model", "model": str(MODELS / "llama-draft"), "num_speculative_tokens": 3},
    {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}], ids=lambda m: m["method"])
def test_speculation_changes_no_token(serve, method):
    """A draft model has no items: it sees token 0 there, and its drafts are accepted or not as anywhere."""
    asks = [body(prompt=[3] * 20 + [GRID] * 4 + [5, 6, 5, 6] + [STRIP] + [5], max_tokens=40, ignore_eos=True, logprobs=1,
                 multi_modal_data={"grids": [[[seed, 2, 3], [4, 5, seed]]], "strips": [[1, 2, seed]]}) for seed in range(6)]

    def answers(server):
        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(lambda ask: server.post("/v1/completions", ask), asks))
        assert all(status == 200 for status, _ in done), done
        return [(a["choices"][0]["token_ids"], a["choices"][0]["logprobs"]["token_logprobs"]) for _, a in done]

    want = answers(serve("--max-num-batched-tokens", "24"))
    server = serve("--max-num-batched-tokens", "24", "--speculative-config", json.dumps(method))
    assert answers(server) == want
    assert server.metric("vllm:spec_decode_num_drafts_total") > 0
