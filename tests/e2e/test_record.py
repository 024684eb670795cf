# SPDX-License-Identifier: Apache-2.0
"""--record and quire replay; --record-requests and quire bench serve."""
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time

import pytest

from servers import BIN, BUNDLED, HANG_S, MODELS

OPTIONS = ("--num-gpu-blocks-override", "256", "--max-num-seqs", "8", "--heartbeat-ms", "100", "--dtype", "float32")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}


def replay(*args, **more):
    return subprocess.run([BIN / "quire", "replay", *map(str, args)], capture_output=True, text=True, timeout=120, **more)


def some_load(server):
    server.complete("Once upon a time", max_tokens=40, temperature=1, seed=3, logprobs=2, ignore_eos=True)
    server.complete(["What can you do?", "Who are you?"], max_tokens=12, n=2, seed=5, temperature=0.8)
    status, _ = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Call f, secretly"}], "tools": [TOOL], "tool_choice": "required", "max_tokens": 40,
        "user": "somebody", "temperature": 0})
    assert status == 200


def shown(file):
    """How many steps a file has so far, and how many tokens."""
    lines = [json.loads(line) for line in replay(file, "--show", "--json").stdout.splitlines()]
    steps = [line for line in lines if "step" in line]
    return len(steps), sum(len(s["tokens"]) for step in steps for s in step["sequences"])


def test_a_server_is_recorded_and_replayed(start, tmp_path):
    """Also when worker and engine were killed: each engine begins a file."""
    file = tmp_path / "steps.rec"
    server = start(os.path.relpath(BUNDLED), *OPTIONS, "--record", file)
    some_load(server)
    engine, = server.children("quire-engine")
    os.kill(server.children("quire-worker", of=engine)[0], signal.SIGKILL)
    some_load(server)
    deadline = time.monotonic() + HANG_S
    while min(shown(file)) < 80:  # a kill loses what was not written yet
        assert time.monotonic() < deadline
        time.sleep(0.1)
    mark = len(server.process.lines)
    os.kill(engine, signal.SIGKILL)
    server.process.wait_line("link: connected", start=mark)
    some_load(server)
    server.stop()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps.rec", "steps.rec.1"]
    for path in (file, tmp_path / "steps.rec.1"):
        done = replay(path, "--json")
        said = json.loads(done.stdout)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert said["identical"] and said["steps"] > 20 and said["tokens"] > 60
        assert said["fingerprint"] == said["recorded_fingerprint"]
        assert said["end"] == (None if path.name.endswith(".1") else "the engine ended")
    text = replay(file, cwd=tmp_path)
    assert text.returncode == 0 and text.stdout.startswith("byte-identical: ")


def test_exit_codes(start, tmp_path):
    file = tmp_path / "steps.rec"
    server = start(MODELS / "llama", "--skip-tokenizer-init", *OPTIONS, "--record", file)
    server.complete([5, 7, 9], max_tokens=30, ignore_eos=True, logprobs=1)
    server.stop()
    assert replay(file).returncode == 0
    # other arithmetic: the fingerprint and the first step with a logprob differ
    other = replay(file, "--dtype", "bfloat16", "--json")
    said = json.loads(other.stdout)
    assert other.returncode == 1 and not said["identical"] and said["fingerprint"] != said["recorded_fingerprint"]
    assert said["difference"]["step"] == said["steps"] and said["difference"]["what"] in ("tokens", "logprobs")
    assert "differs in" in replay(file, "--dtype", "bfloat16").stdout
    assert replay(file, MODELS / "mistral").returncode in (1, 3)
    gone = replay(file, tmp_path / "nothing")
    assert gone.returncode == 3 and "nothing" in gone.stderr
    assert replay(file, "--dtype", "float7").returncode == 2
    assert replay().returncode == 2
    missing = replay(tmp_path / "none.rec")
    assert missing.returncode == 4 and "none.rec" in missing.stderr
    (tmp_path / "bad.rec").write_bytes(b"quirerec" + bytes(100))
    bad = replay(tmp_path / "bad.rec")
    assert bad.returncode == 4 and "at byte 8" in bad.stderr
    data = file.read_bytes()
    (tmp_path / "cut.rec").write_bytes(data[:len(data) * 2 // 3])
    cut = replay(tmp_path / "cut.rec")
    assert cut.returncode == 0 and "cut, as after a kill" in cut.stdout
    (tmp_path / "hurt.rec").write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])
    assert replay(tmp_path / "hurt.rec").returncode == 4


def test_other_weights_begin_a_file(start, tmp_path):
    """Weights that are reloaded, in the middle of an answer that goes on with them: each file is replayed with its own."""
    file, other = tmp_path / "steps.rec", tmp_path / "other"
    shutil.copytree(MODELS / "llama", other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-4096:] = weights[-8192:-4096]
    (other / "model.safetensors").write_bytes(weights)
    server = start(MODELS / "llama", "--skip-tokenizer-init", *OPTIONS, "--record", file, "--allowed-weights-path", tmp_path)
    body = {"prompt": [5, 7, 9], "max_tokens": 120, "ignore_eos": True, "logprobs": 1, "temperature": 1, "seed": 2}
    stream = server.events("/v1/completions", body)
    next(stream)
    status, said = server.post("/reload_weights", {"weights_path": str(other), "mode": "keep"})
    assert status == 200, said
    list(stream)
    server.complete(**{key: value for key, value in body.items() if key != "stream"})
    server.stop()
    prints = []
    for path in (tmp_path / "steps.rec.1", file):
        done = replay(path, "--json")
        said = json.loads(done.stdout)
        assert done.returncode == 0 and said["identical"] and said["steps"] > 0, (done.stdout, done.stderr)
        assert said["fingerprint"] == said["recorded_fingerprint"]
        prints.append(said["fingerprint"])
    assert prints[0] != prints[1]


def test_show(start, tmp_path):
    file = tmp_path / "steps.rec"
    server = start(MODELS / "llama", "--skip-tokenizer-init", *OPTIONS, "--record", file)
    ids = server.complete([5, 7, 9], max_tokens=4, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]
    server.stop()
    steps = [json.loads(line) for line in replay(file, "--show", "--json").stdout.splitlines()]
    seqs = [s for step in steps if "step" in step for s in step["sequences"]]
    assert [t for s in seqs for t in s["tokens"]] == ids
    assert seqs[0]["admitted"] and seqs[0]["rows"] == 3 and seqs[0]["blocks"]
    assert steps[-1] == {"end": "the engine ended"}
    assert "rows 0 to 2, new blocks [" in replay(file, "--show").stdout


def test_code_is_not_taken_from_a_file(start, tmp_path):
    """A record may come from others: it cannot make quire load a shared object, nor write files."""
    file = tmp_path / "steps.rec"
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    server = start(MODELS / "llama", "--skip-tokenizer-init", *OPTIONS, "--record", file, "--plugin-path", plugins,
                   "--packed-cache", tmp_path / "packed")
    server.complete([5, 7], max_tokens=2)
    server.stop()
    shutil.rmtree(tmp_path / "packed")
    done = replay(file)
    assert done.returncode == 0 and done.stderr.count("give it on the command line") == 2, done.stderr
    assert "--plugin-path" in done.stderr and "--packed-cache" in done.stderr and not (tmp_path / "packed").exists()


DRAFT = json.dumps({"method": "draft_model", "model": str(MODELS / "llama-draft"), "num_speculative_tokens": 2})
ADAPTER = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={MODELS.parent / 'lora/llama-lora-r8'}")


@pytest.mark.parametrize("model, options, asked", [("llama", ADAPTER, "tuned"), ("llama", ("--speculative-config", DRAFT), None),
                                                   ("jamba", (), None)], ids=("adapter", "draft", "states"))
def test_every_kind_of_step_is_recorded(start, tmp_path, model, options, asked):
    """test_record_kinds.c has them in files that begin in the middle; here the command line is as a user has it."""
    file = tmp_path / "steps.rec"
    server = start(MODELS / model, "--skip-tokenizer-init", *OPTIONS, "--record", file, *options)
    prompt = [5 + i for i in range(20)]
    for seed in range(3):  # the second one finds cached blocks
        server.complete(prompt, max_tokens=12, ignore_eos=True, seed=seed, temperature=seed / 2, **({"model": asked} if asked else {}))
    server.stop()
    done = replay(file, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["identical"] and said["tokens"] == 36, (done.stdout, done.stderr)
    shown = replay(file, "--show").stdout
    assert ("adapter 1 is loaded" in shown) == bool(asked)


# ---- requests ----

SECRETS = ("Once upon", "secretly", "somebody", "sesame", "stopword", "get_secret", "Bearer")


@pytest.fixture
def recorded(start, tmp_path):
    file = tmp_path / "requests.jsonl"
    server = start(BUNDLED, *OPTIONS, "--record-requests", file, "--api-key", "sesame", key="sesame")
    rng = random.Random(1)
    shared = [rng.randrange(100, 1500) for _ in range(1100)]
    some_load(server)
    for tail in ([7], [8, 9]):
        server.complete(shared + tail, max_tokens=3, stop="stopword", logit_bias={"7": 1}, top_k=5)
    list(server.events("/v1/completions", {"prompt": "Once upon", "max_tokens": 5}))
    assert server.post("/v1/completions", {"prompt": "x", "temperature": 9})[0] == 400
    server.stop()
    return file


def test_requests_are_recorded_without_their_contents(recorded):
    text = recorded.read_text()
    assert stat.S_IMODE(recorded.stat().st_mode) == 0o600
    assert not [s for s in SECRETS if s in text]
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == 7  # one per prompt; what was refused is none
    first, many, _, chat, long, longer, stream = lines
    assert first["request"] == {"temperature": 1, "seed": 3, "ignore_eos": True, "logprobs": 2}
    assert first["output_length"] == 40 and first["finish"] == "length" and first["hash_ids"] == []
    assert many["request"]["n"] == 2 and many["output_length"] <= 12
    assert chat["endpoint"] == "chat" and chat["tools"] == 1 and chat["grammar"] is True and chat["request"] == {"temperature": 0}
    assert long["input_length"] == 1101 and len(long["hash_ids"]) == 2 and long["hash_ids"] == longer["hash_ids"]
    assert long["request"] == {"top_k": 5} and stream["stream"] is True
    assert all(a["timestamp"] <= b["timestamp"] for a, b in zip(lines, lines[1:]))


def test_recorded_requests_are_sent_again(recorded, start, tmp_path):
    """To a server of any kind: the same lengths and parameters."""
    again = tmp_path / "again.jsonl"
    server = start(BUNDLED, *OPTIONS, "--record-requests", again)
    done = subprocess.run([BIN / "quire", "bench", "serve", "--base-url", server.url, "--dataset-path", recorded, "--num-warmups", "0",
                           "--trace-speed", "1000", "--json", tmp_path / "out.json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    server.stop()
    want, got = ([json.loads(line) for line in path.read_text().splitlines()] for path in (recorded, again))

    def load(lines):
        return sorted((x["input_length"], x["output_length"], x["request"].get("top_k"), x["request"].get("n")) for x in lines)
    assert load(got) == load(want)
    shared = [x["hash_ids"] for x in got if x["hash_ids"]]
    assert len(shared) == 2 and shared[0] == shared[1]


def test_files_that_cannot_be_written_are_told_at_the_start(tmp_path):
    for flag in ("--record", "--record-requests"):
        done = subprocess.run([BIN / "quire", "serve", BUNDLED, "--port", "0", flag, tmp_path / "none/file"], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 2 and flag in done.stderr and "No such file" in done.stderr and "listening" not in done.stderr


def test_request_files_are_bounded(start, tmp_path):
    file = tmp_path / "requests.jsonl"
    server = start(MODELS / "llama", "--skip-tokenizer-init", *OPTIONS, "--frontends", "2", "--record-requests", file, "--record-size", "1M",
                   "--record-files", "2")
    file.write_text('{"old": true}\n' * 80000)  # full already
    for _ in range(8):
        server.complete([5], max_tokens=1)
    server.stop()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["requests.jsonl", "requests.jsonl.1"]
    assert len(file.read_text().splitlines()) == 8
