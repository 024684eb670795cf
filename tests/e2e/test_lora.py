# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: PEFT's goldens over HTTP and offline, many in one batch, loading and unloading while requests run, folders that
are wrong or go away, and adapters that outlive the worker and the engine."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import pytest

from servers import BIN, MODELS

DATA = pathlib.Path(__file__).parents[1] / "data" / "lora"
LLAMA = MODELS / "llama"
OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--enable-lora")
R4, R8 = DATA / "llama-lora-r4", DATA / "llama-lora-r8"
BODY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def prompts(folder):
    return json.loads((folder / "golden.json").read_text())["prompts"]


def base_prompts():
    return json.loads((LLAMA / "golden.json").read_text())["prompts"]


def ask(server, ids, model=None, **more):
    status, answer = server.post("/v1/completions", {"prompt": ids, **BODY, **({"model": model} if model else {}), **more})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def load(server, name, path, **more):
    connection, answer = server.raw("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def unload(server, name):
    connection, answer = server.raw("POST", "/v1/unload_lora_adapter", {"lora_name": name})
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def scaled(folder, source, factor):
    """The adapter with every number times factor."""
    folder.mkdir()
    shutil.copy(source / "adapter_config.json", folder)
    data = bytearray((source / "adapter_model.safetensors").read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    n = (len(data) - start) // 4
    values = struct.unpack(f"<{n}f", data[start:])
    data[start:] = struct.pack(f"<{n}f", *(v * factor for v in values))
    (folder / "adapter_model.safetensors").write_bytes(data)
    return folder


@pytest.fixture
def server(start):
    return start(LLAMA, *OPTIONS, "--lora-modules", f"r4={R4}", json.dumps({"name": "r8", "path": str(R8)}))


def test_goldens_and_models(server):
    for name, folder in (("r4", R4), ("r8", R8)):
        for prompt in prompts(folder):
            assert ask(server, prompt["ids"], name) == prompt["greedy"]
    for prompt in base_prompts():
        assert ask(server, prompt["ids"]) == prompt["greedy"]
    listed = {m["id"]: m for m in json.loads(server.get("/v1/models")[1])["data"]}
    assert listed["llama"]["parent"] is None
    assert listed["r8"]["parent"] == "llama" and listed["r8"]["root"] == str(R8)
    assert json.loads(server.get("/v1/models/r4")[1])["id"] == "r4"
    status, answer = server.post("/v1/completions", {"prompt": [1, 2], "model": "r16"})
    assert status == 404 and "r16" in answer["error"]["message"]


def test_fingerprint_and_prefix_cache(server):
    """An adapter's blocks are its own: the same prompt hits for the same adapter alone."""
    ids = base_prompts()[-1]["ids"]
    seen = {}
    for model in (None, "r4", "r8", None, "r4", "r8"):
        body = {"prompt": ids, **BODY, **({"model": model} if model else {})}
        _, answer = server.post("/v1/completions", body)
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        if model in seen:
            assert answer["choices"][0]["token_ids"] == seen[model][0] and answer["system_fingerprint"] == seen[model][1]
        seen.setdefault(model, (answer["choices"][0]["token_ids"], answer["system_fingerprint"]))
    assert len({s[1] for s in seen.values()}) == 3
    hits = server.metric("vllm:prefix_cache_hits_total")
    assert hits == 3 * (len(ids) // 16 * 16 - (16 if len(ids) % 16 == 0 else 0)), (hits, cached)


def test_many_adapters_in_one_batch(start, tmp_path):
    """Twelve adapters, two of them in a step, three in memory: each request has the tokens that it has alone."""
    folders = [scaled(tmp_path / f"a{i}", R8, 0.5 + 0.1 * i) for i in range(12)]
    server = start(LLAMA, *OPTIONS, "--max-loras", "2", "--max-cpu-loras", "3",
                   "--lora-modules", *(f"a{i}={f}" for i, f in enumerate(folders)))
    ids = base_prompts()[2]["ids"]
    alone = {name: ask(server, ids, name) for name in [f"a{i}" for i in range(12)] + ["llama"]}
    assert len({tuple(v) for v in alone.values()}) > 6
    names = [n for _ in range(4) for n in alone]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for name, got in zip(names, pool.map(lambda n: ask(server, ids, n), names)):
            assert got == alone[name], name


def test_load_and_unload(server, tmp_path):
    ids = prompts(R8)[1]["ids"]
    assert load(server, "new", R8) == (200, "Success: LoRA adapter 'new' added successfully.")
    assert ask(server, ids, "new") == prompts(R8)[1]["greedy"]
    status, text = load(server, "new", R4)
    assert status == 400 and "load_inplace" in text
    assert load(server, "new", R4, load_inplace=True)[0] == 200
    assert ask(server, prompts(R4)[1]["ids"], "new") == prompts(R4)[1]["greedy"]
    assert unload(server, "new") == (200, "Success: LoRA adapter 'new' removed successfully.")
    status, text = unload(server, "new")
    assert status == 404 and "r4, r8" in text
    assert server.post("/v1/completions", {"prompt": ids, "model": "new"})[0] == 404
    for body, part in (({"lora_name": "x"}, "lora_path: is missing"), ({"lora_path": "x"}, "lora_name: is missing"),
                       ({"lora_name": 3, "lora_path": "x"}, "lora_name: expected a text"),
                       ({"lora_name": "x", "lora_path": "/nowhere"}, "no folder /nowhere"),
                       ({"lora_name": "x", "lora_path": str(tmp_path)}, "adapter_config.json"),
                       ({"lora_name": "x", "lora_path": "/", "y": 1}, "y: unknown field")):
        status, answer = server.post("/v1/load_lora_adapter", body)
        assert status in (400, 404) and part in answer["error"]["message"], answer


def stream(server, ids, model):
    """A stream that has begun: a function that reads the tokens of the rest of it, those of its first event before them."""
    connection, answer = server.raw("POST", "/v1/completions", {"prompt": ids, **BODY, "max_tokens": 200, "model": model, "stream": True})
    assert answer.status == 200, answer.read()

    def events():
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])["choices"][0]["token_ids"]

    rest = events()
    first = next(rest)

    def finish():
        tokens = first + [t for part in rest for t in part]
        connection.close()
        return tokens
    return finish


def test_an_adapter_is_not_named_as_the_model(server):
    """No request would reach it."""
    for name in (json.loads(server.get("/v1/models")[1])["data"][0]["id"], str(LLAMA)):
        status, answer = server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(R4)})
        assert status == 400 and answer["error"]["param"] == "lora_name" and "a name of the served model" in answer["error"]["message"], answer
        assert server.post("/v1/unload_lora_adapter", {"lora_name": name})[0] == 404


def test_start_with_the_name_of_the_model(tmp_path):
    """--lora-modules with a name of the served model: no request would reach the adapter."""
    lines = tmp_path / "in"
    lines.write_text("")
    name = LLAMA.name
    for options, taken in (
            (("--lora-modules", f"{name}={R4}"), name), (("--lora-modules", f"{LLAMA}={R4}"), str(LLAMA)),
            (("--served-model-name", "one", "two", "--lora-modules", f"r4={R4}", json.dumps({"name": "two", "path": str(R8)})), "two")):
        for program in (("quire-serve", LLAMA, "--port", "0"), ("quire-run-batch", LLAMA, "-i", lines, "-o", tmp_path / "out")):
            done = run_program(*program, *OPTIONS, *options)
            assert done.returncode == 2, done.stderr
            assert f'--lora-modules: "{taken}" is a name of the served model' in done.stderr, done.stderr


def test_the_name_of_the_model_behind_served_names(start):
    """With --served-model-name the folder's name is free for an adapter."""
    server = start(LLAMA, *OPTIONS, "--served-model-name", "base", "--lora-modules", f"{LLAMA.name}={R4}")
    for prompt in prompts(R4):
        assert ask(server, prompt["ids"], LLAMA.name) == prompt["greedy"]


def test_unload_while_requests_run(server):
    """A request that has begun keeps its adapter, in place of which another may come meanwhile."""
    ids = prompts(R8)[0]["ids"]
    want = ask(server, ids, "r8", max_tokens=200)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = list(pool.map(lambda _: stream(server, ids, "r8"), range(8)))
        assert load(server, "r8", R4, load_inplace=True)[0] == 200
        assert unload(server, "r8")[0] == 200
        assert [finish() for finish in running] == [want] * 8


@pytest.mark.parametrize("change,part", [
    (lambda c: c.update(use_dora=True), "DoRA"),
    (lambda c: c.update(modules_to_save=["lm_head"]), "modules_to_save"),
    (lambda c: c.update(r=9), "[9, 64]"),
    (lambda c: c.update(r=64), "--max-lora-rank"),
    (lambda c: c.update(target_modules=["q_proj"]), "target_modules"),
    (lambda c: c.update(bias="all"), "bias"),
])
def test_folders_that_do_not_fit(server, tmp_path, change, part):
    folder = tmp_path / "a"
    shutil.copytree(R8, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    change(config)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    status, text = load(server, "bad", folder)
    assert status in (400, 409, 500, 501) and part in text, text
    assert ask(server, prompts(R8)[1]["ids"], "r8") == prompts(R8)[1]["greedy"]


def test_files_that_change_or_go_away(start, tmp_path):
    """Of three adapters two are in memory; the one that is read again has changed, so its requests alone end."""
    folders = [scaled(tmp_path / f"a{i}", R8, 1 + 0.2 * i) for i in range(3)]
    server = start(LLAMA, *OPTIONS, "--max-loras", "1", "--max-cpu-loras", "2",
                   "--lora-modules", *(f"a{i}={f}" for i, f in enumerate(folders)))
    ids = prompts(R8)[1]["ids"]
    want = [ask(server, ids, f"a{i}") for i in range(3)]  # a0 is the one that left
    (folders[0] / "adapter_model.safetensors").write_bytes(b"cut")
    status, answer = server.post("/v1/completions", {"prompt": ids, **BODY, "model": "a0"})
    assert status == 409 and "changed" in answer["error"]["message"], answer
    assert [ask(server, ids, f"a{i}") for i in (1, 2)] == want[1:]
    shutil.rmtree(folders[1])
    ask(server, ids, "a2")
    status, text = load(server, "a0", folders[0], load_inplace=True)
    assert status == 500 and "adapter_model.safetensors" in text, text
    shutil.copytree(R8, folders[1])
    assert load(server, "a0", folders[1], load_inplace=True)[0] == 200
    assert ask(server, ids, "a0") == prompts(R8)[1]["greedy"]


def test_worker_killed(server):
    """A restarted worker has the adapters again, and streams go on with theirs."""
    ids = prompts(R8)[0]["ids"]
    want = {m: ask(server, ids, m, max_tokens=200) for m in ("r4", "r8", "llama")}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        running = list(pool.map(lambda m: (m, stream(server, ids, m)), list(want) * 4))
        engine = server.children("quire-engine")[0]
        os.kill(server.children("quire-worker", of=engine)[0], signal.SIGKILL)
        for model, finish in running:
            assert finish() == want[model], model


def test_engine_killed(server):
    """The engine in its place has the adapters that were loaded, and not those that were unloaded."""
    ids = prompts(R8)[0]["ids"]
    assert load(server, "new", R8)[0] == 200 and unload(server, "r4")[0] == 200
    want = ask(server, ids, "new", max_tokens=200)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = list(pool.map(lambda _: stream(server, ids, "new"), range(4)))
        os.kill(server.children("quire-engine")[0], signal.SIGKILL)
        assert [finish() for finish in running] == [want] * 4
    assert {m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]} == {"llama", "r8", "new"}


def test_administrators_alone(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("user-key\nadmin-key admin\n")
    keys.chmod(0o600)
    server = start(LLAMA, *OPTIONS, "--api-key-file", str(keys), key="user-key")
    assert load(server, "new", R8)[0] == 403
    assert unload(server, "new")[0] == 403


def test_not_enabled(start):
    server = start(LLAMA, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")
    status, text = load(server, "new", R8)
    assert status in (400, 501) and "--enable-lora" in text


def run_program(*args):
    return subprocess.run([BIN / args[0], *map(str, args[1:])], capture_output=True, text=True, timeout=60, check=False)


def test_offline(tmp_path):
    """quire generate: by an option, by a line; and an adapter that is not there."""
    lines = tmp_path / "in.jsonl"
    asked = [(None, base_prompts()[1]), ("r4", prompts(R4)[1]), ("r8", prompts(R8)[1])]
    lines.write_text("".join(json.dumps({"prompt": p["ids"], "adapter": a, "max_tokens": 24, "temperature": 0,
                                         "ignore_eos": True}) + "\n" for a, p in asked))
    options = ("--skip-tokenizer-init", "--dtype", "float32", "--enable-lora", "--lora-modules", f"r4={R4}", f"r8={R8}", "--json",
               "--num-gpu-blocks-override", "64")
    done = run_program("quire-generate", LLAMA, "--input-file", lines, *options)
    assert done.returncode == 0, done.stderr
    got = [json.loads(line) for line in done.stdout.splitlines()]
    assert [g["token_ids"] for g in got] == [p["greedy"] for _, p in asked]
    ids = ",".join(map(str, prompts(R8)[1]["ids"]))
    more = ("--max-tokens", "24", "--temperature", "0", "--ignore-eos")
    done = run_program("quire-generate", LLAMA, "--prompt-ids", ids, "--adapter", "r8", *more, *options)
    assert json.loads(done.stdout)["token_ids"] == prompts(R8)[1]["greedy"]
    done = run_program("quire-generate", LLAMA, "--prompt-ids", ids, "--adapter", "r9", *more, *options)
    assert done.returncode != 0 and "there is no adapter r9; loaded are: r4, r8" in done.stderr + done.stdout


def test_run_batch(tmp_path):
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = [("llama", base_prompts()[1]), ("r4", prompts(R4)[1]), ("r8", prompts(R8)[1])]
    lines.write_text("".join(json.dumps({"custom_id": m, "method": "POST", "url": "/v1/completions", "body": {
        **BODY, "prompt": p["ids"], "model": m}}) + "\n" for m, p in asked))
    done = run_program("quire-run-batch", LLAMA, "-i", lines, "-o", out, *OPTIONS, "--lora-modules", f"r4={R4}", f"r8={R8}")
    assert done.returncode == 0, done.stderr
    got = {}
    for line in out.read_text().splitlines():
        answer = json.loads(line)
        got[answer["custom_id"]] = answer["response"]["body"]["choices"][0]["token_ids"]
    assert got == {m: p["greedy"] for m, p in asked}


@pytest.mark.parametrize("options,part", [
    (("--lora-modules", "a=/x"), "--lora-modules needs --enable-lora"),
    (("--enable-lora", "--lora-modules", "a"), "expected NAME=PATH"),
    (("--enable-lora", "--lora-modules", "{\"name\": \"a\"}"), "expected an object with name and path"),
    (("--enable-lora", "--lora-modules", f"a={R4}", f"a={R8}"), "two adapters have the name a"),
    (("--enable-lora", "--lora-modules", "a=/nowhere"), "no folder /nowhere"),
    (("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "2"), "at least --max-loras (4)"),
    (("--enable-lora", "--lora-dtype", "int8"), "--lora-dtype is"),
    (("--enable-lora", "--max-lora-rank", "4", "--lora-modules", f"a={R8}"), "more than --max-lora-rank 4"),
])
def test_start_errors(options, part):
    done = run_program("quire-engine", LLAMA, "--listen", "ipc:///tmp/quire-lora-test-none", "--dtype", "float32", *options)
    assert done.returncode != 0 and part in done.stderr, done.stderr
