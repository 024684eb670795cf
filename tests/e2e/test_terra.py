# SPDX-License-Identifier: Apache-2.0
"""The example plugin: the goldens of a reference in float64, offline and over HTTP, alone and together; what is refused; and that the
plugin builds against an installed quire. The rollout programs: test_terra_rollout.py."""
import concurrent.futures
import json
import os
import shutil
import subprocess

import pytest

from servers import BIN, ROOT, Server
from terra import (ACTIONS, CASES, CONFIG, DATA, ERRORS, FOLDERS, OPTIONS, PATCHES, PLACEHOLDER, PLUGIN, PLUGINS, REQUESTS, TOLERANCE,
                   VOCABULARY, body_of, logprobs_of)

# What a refusal has to say: the item with its index and the shape, or the counts, or the length.
SAYS = {
    "action_count_mismatch": [r"actions"],
    "action_dim_mismatch": [r"actions\[\d+\]", r"\[3\]"],
    "placeholder_without_actions": [r"actions"],
    "too_many_frames": [r"90"],
    "token_out_of_range": [r"\b9[56]\b|-1\b|-2\b"],
}


def generate(model, lines, *options):
    out = subprocess.run([BIN / "quire-generate", model, "-i", "-", *OPTIONS, *map(str, options)], capture_output=True, text=True,
                         input="".join(json.dumps(line) + "\n" for line in lines), timeout=300)
    answers = {a["prompt"] - 1: a for a in map(json.loads, out.stdout.splitlines())}
    assert sorted(answers) == list(range(len(lines))), out.stderr
    return [answers[i] for i in range(len(lines))], out


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("way", ["together", "alone"])
def test_goldens_offline(folder, way):
    lines = [body_of(prompt, actions, len(frame["tokens"]), logprobs=20) for _, prompt, actions, frame in REQUESTS]
    options = ("--max-num-seqs", "1", "--no-enable-prefix-caching") if way == "alone" else ()
    answers, out = generate(DATA / folder, lines, *options)
    assert out.returncode == 0 and len(REQUESTS) == 23
    for (name, prompt, _, frame), answer in zip(REQUESTS, answers, strict=True):
        assert answer["token_ids"] == frame["tokens"], f"{name}, prompt of {len(prompt)}"
        want = logprobs_of(frame["logits"])
        top = answer["logprobs"][0]["top"]
        assert len(top) == 20
        for row in top:
            assert row["logprob"] == pytest.approx(want[row["token_id"]], abs=TOLERANCE), name


@pytest.mark.parametrize("options", [("--max-num-batched-tokens", "17", "--max-num-seqs", "4"), ("--num-gpu-blocks-override", "24"),
                                     ("--threads", "1"), ("--async-scheduling",)], ids=lambda options: options[0])
def test_goldens_in_chunks_and_when_preempted(options):
    """Chunks end inside of a frame's actions; blocks for two rollouts of several."""
    lines = [body_of(prompt, actions, len(frame["tokens"])) for _, prompt, actions, frame in REQUESTS]
    answers, out = generate(DATA / "model", lines, *options)
    assert out.returncode == 0
    assert [a["token_ids"] for a in answers] == [frame["tokens"] for _, _, _, frame in REQUESTS]


def test_errors_offline():
    lines = [body_of(e["prompt_token_ids"], e["actions"], e["max_tokens"]) for e in ERRORS]
    _, prompt, actions, frame = REQUESTS[0]
    answers, out = generate(DATA / "model", [*lines, body_of(prompt, actions, 12)])
    assert out.returncode == 1 and answers[-1]["token_ids"] == frame["tokens"]
    check_messages([answer.get("error") for answer in answers[:-1]])


def check_messages(messages):
    import re
    assert len(messages) == len(ERRORS) == 13
    for error, message in zip(ERRORS, messages, strict=True):
        assert message, f"{error['name']} is accepted"
        for pattern in SAYS[error["expect_error"]]:
            assert re.search(pattern, message), f"{error['name']}: {message}"


# ---- HTTP ----

@pytest.fixture(scope="module", params=FOLDERS)
def server(request):
    server = Server(DATA / request.param, *OPTIONS, "--max-logprobs", VOCABULARY)
    yield server
    assert server.stop() == 0


def ask(server, prompt, actions, max_tokens, **more):
    return server.post("/v1/completions", body_of(prompt, actions, max_tokens, return_token_ids=True, detokenize=False, **more))


def check_answer(name, frame, status, answer):
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["token_ids"] == frame["tokens"] and choice["finish_reason"] == "length", name
    return choice


def test_goldens_over_http(server):
    """All logits of a prompt's last position: the vocabulary's log-probabilities."""
    for name, prompt, actions, frame in REQUESTS:
        choice = check_answer(name, frame, *ask(server, prompt, actions, len(frame["tokens"]), logprobs=VOCABULARY,
                                                return_tokens_as_token_ids=True))
        top, want = choice["logprobs"]["top_logprobs"][0], logprobs_of(frame["logits"])
        assert len(top) == VOCABULARY
        for token, logprob in top.items():
            assert logprob == pytest.approx(want[int(token.removeprefix("token_id:"))], abs=TOLERANCE), name


def test_many_at_once_over_http(server):
    """Eight clients, the requests of all cases in another order each; prompts that differ in their actions alone are among them."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(request, pool.submit(ask, server, request[1], request[2], len(request[3]["tokens"])))
                for i in range(8) for request in REQUESTS[i:] + REQUESTS[:i]]
        for (name, _, _, frame), job in jobs:
            check_answer(name, frame, *job.result())


def test_streaming(server):
    name, prompt, actions, frame = REQUESTS[2]
    body = body_of(prompt, actions, 12, return_token_ids=True, detokenize=False)
    tokens = [token for event in server.events("/v1/completions", body) if isinstance(event, dict)
              for choice in event["choices"] for token in choice.get("token_ids") or []]
    assert tokens == frame["tokens"], name


def test_errors_over_http(server):
    messages = []
    for error in ERRORS:
        status, answer = ask(server, error["prompt_token_ids"], error["actions"], error["max_tokens"])
        assert status == 400, (error["name"], answer)
        messages.append(answer["error"]["message"])
        name, prompt, actions, frame = REQUESTS[len(messages)]
        check_answer(name, frame, *ask(server, prompt, actions, len(frame["tokens"])))
    check_messages(messages)


# ---- the config ----

def variant(tmp_path, **keys):
    """A folder of the golden with other keys; None leaves one out."""
    config = {**CONFIG, **keys}
    for key in [key for key, value in keys.items() if value is None]:
        del config[key]
    folder = tmp_path / "variant"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(DATA / "model/model.safetensors")
    return folder


@pytest.mark.parametrize("keys", [
    {"num_action_tokens": None}, {"num_action_embeddings": None}, {"max_position_embeddings": None},
    {"max_position_embeddings": 40}, {"max_position_embeddings": 100000}, {"head_dim": None},
    {"eos_token_id": None, "bos_token_id": None}], ids=lambda keys: next(iter(keys)) + f"_{next(iter(keys.values()))}")
def test_spellings_of_the_config(tmp_path, keys):
    """The longest sequence is S * T = 90 whatever the config says, and no token ends a frame."""
    folder = variant(tmp_path, **keys)
    case = CASES["max_context_last_frame"]
    lines = [body_of(prompt, actions, len(frame["tokens"])) for _, prompt, actions, frame in REQUESTS]
    lines.append(body_of(case["prompt_token_ids"], case["actions"], 15))
    lines.append(body_of(case["prompt_token_ids"], case["actions"], 16))
    answers, _ = generate(folder, lines)
    assert [a["token_ids"] for a in answers[:len(REQUESTS)]] == [frame["tokens"] for _, _, _, frame in REQUESTS]
    assert len(answers[-2]["token_ids"]) == 15 and "90" in answers[-1]["error"]


@pytest.mark.parametrize(("keys", "says"), [
    ({"num_image_patches": 11}, "num_spatio_embeddings is 15"),
    ({"num_spatio_embeddings": 16, "num_image_patches": 13}, "spatio_embeddings"),
    ({"num_temporal_embeddings": 7}, "temporal_embeddings"),
    ({"action_dim": 4}, "action_projection"),
])
def test_configs_that_do_not_fit(tmp_path, keys, says):
    out = subprocess.run([BIN / "quire-generate", variant(tmp_path, **keys), "--prompt-ids", "1,2", *OPTIONS], capture_output=True,
                         text=True, timeout=60)
    assert out.returncode == 3 and says in out.stderr, out.stderr


def test_it_is_found_in_a_folder():
    out = subprocess.run([BIN / "quire-generate", DATA / "model", "--prompt-ids", "1,2", "--max-tokens", "2", "--json",
                          "--skip-tokenizer-init"], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "QUIRE_PLUGIN_PATH": str(PLUGINS)})
    assert out.returncode == 0 and len(json.loads(out.stdout)["token_ids"]) == 2, out.stderr


def test_quantized():
    """int8 weights of this model: the projection of actions and the tables stay as they are; most tokens stay too."""
    lines = [body_of(prompt, actions, len(frame["tokens"])) for _, prompt, actions, frame in REQUESTS]
    answers, out = generate(DATA / "model_bf16", lines, "--quantization", "int8")
    assert out.returncode == 0
    same = sum(a == b for answer, (_, _, _, frame) in zip(answers, REQUESTS, strict=True)
               for a, b in zip(answer["token_ids"], frame["tokens"], strict=True))
    assert same > 100


# ---- a build of its own ----

def test_build_against_an_installed_quire(tmp_path):
    prefix, build = tmp_path / "prefix", tmp_path / "build"

    def run(*command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    run("cmake", "--install", BIN.parent, "--prefix", prefix)
    run("cmake", "-S", ROOT / "deploy/plugins/terra", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror")
    run("cmake", "--build", build)
    assert "libquire" not in run("ldd", build / "terra.so") and str(prefix) in run("ldd", build / "terra-rollout")
    _, prompt, actions, frame = REQUESTS[0]
    out = subprocess.run([prefix / "bin/quire", "generate", DATA / "model", "-i", "-", "--plugin", build / "terra.so",
                          "--skip-tokenizer-init", "--dtype", "float32"], capture_output=True, text=True, timeout=60,
                         input=json.dumps(body_of(prompt, actions, PATCHES)))
    assert json.loads(out.stdout)["token_ids"] == frame["tokens"], out.stderr
    shutil.rmtree(prefix)
