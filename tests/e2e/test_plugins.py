# SPDX-License-Identifier: Apache-2.0
"""Plugins at the programs: which file serves which architecture, where it is found, and what a person sees whose plugin is wrong:
one line, the exit code of a model that cannot be loaded, never a hang. The plugins are those of tests/plugins, built by the system's
compiler against engine/plugin.h alone."""
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from servers import BIN, MODELS, ROOT, Server

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
USAGE, MODEL = 2, 3
IDS = ("--skip-tokenizer-init",)
LLAMA = {"architectures": ["OperationForCausalLM"]}

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    for name in ("operation", "override", "faulty", "empty", "items"):
        subprocess.run([CC, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-I", ROOT, "-o", folder / f"{name}.so",
                        ROOT / "tests/plugins" / f"{name}.c", "-lm", "-ldl"], check=True)
    return folder


@pytest.fixture
def model(tmp_path):
    """Llama's golden folder as an architecture of a plugin."""
    config = json.loads((MODELS / "llama/config.json").read_text()) | LLAMA
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to((MODELS / "llama/model.safetensors").resolve())
    return tmp_path


def run(*args, env=None, seconds=60):
    """(exit code, standard output, standard error)"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_PLUGIN")}
    out = subprocess.run([str(BIN / "quire"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         errors="replace", env=clean | (env or {}), timeout=seconds)
    return out.returncode, out.stdout, out.stderr


def tokens(model, *options, env=None):
    code, out, err = run("generate", model, *IDS, "--prompt-ids", "5,6,7,8", "--max-tokens", "8", "--temperature", "0", *options, env=env)
    assert code == 0, err
    return out


def test_a_plugin_is_found_and_gives_the_familys_tokens(plugins, model):
    want = tokens(MODELS / "llama")
    file = plugins / "operation.so"
    assert tokens(model, "--plugin", file) == want
    assert tokens(model, env={"QUIRE_PLUGIN": str(file)}) == want
    search = model.parent / "search"
    search.mkdir(exist_ok=True)
    shutil.copy(file, search / "x.so")
    assert tokens(model, "--plugin-path", f"/no/such:{search}") == want
    assert tokens(model, env={"QUIRE_PLUGIN_PATH": str(search)}) == want
    code, out, err = run("check-model", model, "--plugin", file, "--program")
    assert code == 0 and "own add" in out and "serves OperationForCausalLM, as a variation of LlamaForCausalLM" in err


def test_no_plugin_no_architecture(model):
    for verb in (("generate", model, *IDS, "--prompt-ids", "1"), ("check-model", model), ("serve", model, "--port", "0", *IDS),
                 ("bench", "latency", model)):
        code, _, err = run(*verb)
        assert code == MODEL and "OperationForCausalLM is not supported" in err and "others by plugins (--plugin)" in err, err


CASES = [
    ("no_such.so", None, "no_such.so: no such file"),
    ("empty.so", None, "does not export quire_plugin_1"),
    ("faulty.so", "abi", "its ABI is version 99, this engine's is version 2"),
    ("faulty.so", "older abi", "its ABI is version 1, this engine's is version 2; build it with the engine/plugin.h of quire"),
    ("faulty.so", "null", "gave NULL"),
    ("faulty.so", "small", "size is"),
    ("faulty.so", "base", "is no family of this engine"),
    ("faulty.so", "crash", "crashed while it was loaded: signal 6"),
    ("faulty.so", "exit", "ended the process while it was loaded"),
    ("faulty.so", "crash in entry", "crashed while it was loaded: signal 11"),
    ("faulty.so", "wild list", "crashed while it was loaded: signal 11"),
    ("faulty.so", "huge count", "4294967295 of them, expected at most 256"),
]


@pytest.mark.parametrize("file, fault, part", CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_a_wrong_plugin_is_one_line_and_an_exit_code(plugins, model, file, fault, part):
    env = {"QUIRE_TEST_FAULT": fault} if fault else {}
    verbs = [("generate", model, *IDS, "--prompt-ids", "1"), ("check-model", model),
             ("engine", model, "--listen", f"ipc://{model}/engine"), ("serve", model, "--port", "0", *IDS)]
    for verb in verbs:
        code, _, err = run(*verb, "--plugin", plugins / file, env=env)
        assert code in (USAGE, MODEL), f"{verb[0]}: {code}\n{err}"
        assert part in err and len(err.splitlines()) == 1, f"{verb[0]}:\n{err}"


@pytest.mark.parametrize("fault, part", [
    ("crash in check", "plugin faulty 0 crashed in its callback check: signal 6"),
    ("exit in check", "plugin faulty 0 ended the process in its callback check, with status 3"),
    ("crash in program", "plugin faulty 0 crashed in its callback program: signal 6"),
    ("exit in program", "plugin faulty 0 ended the process in its callback program, with status 3"),
])
def test_a_callback_that_crashes_while_a_model_is_opened(plugins, model, fault, part):
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["FaultyForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    for verb in (("generate", model, *IDS, "--prompt-ids", "1"), ("engine", model, "--listen", f"ipc://{model}/engine"),
                 ("serve", model, "--port", "0", *IDS)):
        code, _, err = run(*verb, "--plugin", plugins / "faulty.so", env={"QUIRE_TEST_FAULT": fault})
        assert code in (USAGE, MODEL), f"{verb[0]}: {code}\n{err}"
        assert part in err, f"{verb[0]}:\n{err}"


def test_a_server_with_a_plugin(plugins, model):
    server = Server(model, "--plugin", plugins / "operation.so", *IDS, "--max-model-len", "128")
    answer = server.complete([5, 6, 7, 8], max_tokens=8, temperature=0, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 8
    assert server.stop() == 0


def test_a_crash_in_a_plugin_ends_its_request_alone(plugins, model):
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["OverrideForCausalLM"], "crashes_at": 499}
    (model / "config.json").write_text(json.dumps(config))
    server = Server(model, "--plugin", plugins / "override.so", *IDS, "--max-model-len", "128")
    more = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    status, answer = server.post("/v1/completions", {"prompt": [5, 499, 7], **more})
    assert status == 500 and "crashed each time" in json.dumps(answer), answer
    assert server.complete([5, 6, 7], **more)["usage"]["completion_tokens"] == 4
    assert server.stop() == 0


def test_a_pass_that_fails_ends_its_request_alone(plugins, model):
    """One of many at once, whose prompt has a token that the plugin's forward pass does not want, in steps with the others."""
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["OverrideForCausalLM"], "fails_at": 499}
    (model / "config.json").write_text(json.dumps(config))
    server = Server(model, "--plugin", plugins / "override.so", *IDS, "--max-model-len", "128", "--max-num-batched-tokens", "24")
    more = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    prompts = [[seed, 6, 7, seed] for seed in range(8, 14)]
    want = [server.complete(prompt, **more)["choices"][0]["token_ids"] for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(server.complete, prompt, **more) for prompt in prompts[:3]]
        failed = [pool.submit(server.post, "/v1/completions", {"prompt": [5] * n + [499, 7], **more}) for n in (1, 30)]
        rest = [pool.submit(server.complete, prompt, **more) for prompt in prompts[3:]]
        for f in failed:
            status, answer = f.result()
            assert status == 500 and "plugin override 1.0: forward: a token it does not want" in answer["error"]["message"], answer
        assert [f.result()["choices"][0]["token_ids"] for f in first + rest] == want
    assert server.stop() == 0


def test_an_item_that_crashes_ends_its_request_alone(plugins, model):
    config = json.loads((model / "config.json").read_text()) | {
        "architectures": ["ItemsForCausalLM"], "action_dim": 3, "num_frames": 5, "actions_per_frame": 6, "clip_max": 2}
    (model / "config.json").write_text(json.dumps(config))
    server = Server(model, "--plugin", plugins / "items.so", *IDS, "--max-model-len", "128", "--load-format", "dummy")

    def ask(mark):
        return server.post("/v1/completions", {
            "prompt": [5, 7, 7, 6], "multi_modal_data": {"marks": [[[mark, 1, 2], [3, 4, 5]]]}, "max_tokens": 4, "temperature": 0,
            "ignore_eos": True})

    status, want = ask(9)
    assert status == 200 and want["usage"]["completion_tokens"] == 4
    status, answer = ask(253)
    assert status == 500 and "crashed each time" in answer["error"]["message"], answer
    for error, says in ((255, "plugin items 2: marks[0]: 255 is no mark"),
                        (254, "plugin items 2: marks[0]: plugin items 2: embed_item failed and gave no reason")):
        status, answer = ask(error)
        assert status == 500 and says in answer["error"]["message"], answer
    assert any("marks[0]: 255 is no mark" in line for line in server.process.lines)
    status, answer = ask(9)
    assert status == 200 and answer["choices"][0]["token_ids"] == want["choices"][0]["token_ids"]
    assert server.stop() == 0
