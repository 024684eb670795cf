# SPDX-License-Identifier: Apache-2.0
"""The example plugin on models of other shapes than the one of test_terra.py (tests/data/terra/make_shapes.py): actions of one number
and of eight, one action a frame and as many as patches, tied embeddings, grouped and wide heads, keys that the config leaves out."""
import concurrent.futures
import json
import subprocess

import pytest

from servers import BIN, Server
from terra import DATA, OPTIONS, PLACEHOLDER, PLUGIN, ROLLOUT, TOLERANCE, body_of, logprobs_of, read_npy, write_npy

SHAPES = sorted(path.name for path in (DATA / "shapes").iterdir())


class Shape:
    def __init__(self, name):
        self.folder = DATA / "shapes" / name
        self.config = json.loads((self.folder / "config.json").read_text())
        self.cases = json.loads((self.folder / "golden.json").read_text())["cases"]
        self.patches, self.dim = self.config["num_image_patches"], self.config["action_dim"]
        self.actions = self.config.get("num_action_tokens", self.config.get("num_action_embeddings"))
        self.longest = (self.patches + self.actions) * self.config["num_temporal_embeddings"]
        self.requests = [request for case in self.cases for request in self.frames(case)]

    def frames(self, case):
        """(prompt, actions, golden frame) of each request."""
        prompt = list(case["prompt_token_ids"])
        for frame in case["frames"]:
            assert frame["prompt_len"] == len(prompt) and prompt.count(PLACEHOLDER) == frame["n_actions"]
            yield list(prompt), case["actions"][:frame["n_actions"]], frame
            prompt += frame["tokens"] + [PLACEHOLDER] * self.actions


@pytest.fixture(params=SHAPES)
def shape(request):
    return Shape(request.param)


@pytest.mark.parametrize("options", [(), ("--max-num-batched-tokens", "7", "--max-num-seqs", "3"), ("--kv-cache-dtype", "float32")],
                         ids=lambda options: options[0] if options else "together")
def test_goldens_offline(shape, options):
    lines = [body_of(prompt, actions, len(frame["tokens"]), logprobs=20) for prompt, actions, frame in shape.requests]
    out = subprocess.run([BIN / "quire-generate", shape.folder, "-i", "-", *map(str, OPTIONS), *options], capture_output=True, text=True,
                         input="".join(json.dumps(line) + "\n" for line in lines), timeout=300)
    answers = sorted(map(json.loads, out.stdout.splitlines()), key=lambda a: a["prompt"])
    assert out.returncode == 0 and len(answers) == len(shape.requests) > 4, out.stderr
    for (prompt, _, frame), answer in zip(shape.requests, answers, strict=True):
        assert answer["token_ids"] == frame["tokens"], f"prompt of {len(prompt)}"
        want = logprobs_of(frame["logits"])
        for row in answer["logprobs"][0]["top"]:
            assert row["logprob"] == pytest.approx(want[row["token_id"]], abs=TOLERANCE)


def errors_of(shape):
    """Requests that must be refused, with what the refusal says."""
    prompt, actions, frame = shape.requests[0]
    n, dim = len(frame["tokens"]), shape.dim
    last_prompt, last_actions, last = max(shape.requests, key=lambda request: len(request[0]))
    wide = actions[:-1] + [actions[-1] + [0.5]]
    yield prompt, actions[:-1], n, f"actions: {len(actions) - 1} items, but the prompt has {len(actions)} placeholders (-3)" \
        if len(actions) > 1 else "placeholders (-3) of actions, but multi_modal_data has no actions"
    yield prompt, [*actions, actions[0]], n, f"actions: {len(actions) + 1} items, but the prompt has {len(actions)} placeholders (-3)"
    yield prompt, wide, n, f"actions[{len(actions) - 1}]: shape [{dim + 1}] is not [{dim}]"
    yield prompt, None, n, "placeholders (-3) of actions, but multi_modal_data has no actions"
    yield [1, 2], actions[:1], n, "actions: 1 items, but the prompt has 0 placeholders (-3)"
    yield [*prompt, shape.config["vocab_size"]], actions, n, f"token id {shape.config['vocab_size']} at position {len(prompt)}"
    yield [*prompt, -1], actions, n, f"token id -1 at position {len(prompt)}"
    yield last_prompt, last_actions, shape.longest - len(last_prompt) + 1, str(shape.longest)
    assert len(last_prompt) + len(last["tokens"]) <= shape.longest


def test_over_http(shape):
    server = Server(shape.folder, *OPTIONS)

    def ask(prompt, actions, max_tokens):
        return server.post("/v1/completions", body_of(prompt, actions, max_tokens, return_token_ids=True, detokenize=False))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [(frame, pool.submit(ask, prompt, actions, len(frame["tokens"]))) for prompt, actions, frame in shape.requests * 3]
        for frame, job in jobs:
            status, answer = job.result()
            assert status == 200 and answer["choices"][0]["token_ids"] == frame["tokens"], answer
    for prompt, actions, max_tokens, says in errors_of(shape):
        status, answer = ask(prompt, actions, max_tokens)
        assert status == 400 and says in answer["error"]["message"], (says, answer)
    prompt, actions, frame = shape.requests[-1]
    assert ask(prompt, actions, len(frame["tokens"]))[1]["choices"][0]["token_ids"] == frame["tokens"]
    assert server.stop() == 0


def test_rollouts(shape, tmp_path):
    """Four at once of the first case, two with their actions and two with other ones."""
    case, n = shape.cases[0], shape.patches
    ids = [token for token in case["prompt_token_ids"] if token != PLACEHOLDER]
    actions = [case["actions"][i:i + shape.actions] for i in range(0, len(case["actions"]), shape.actions)]
    other = [[[-x for x in row] for row in frame] for frame in actions]
    context = write_npy(tmp_path / "context.npy", [ids[i:i + n] for i in range(0, len(ids), n)], "i")
    moves = write_npy(tmp_path / "actions.npy", [actions, other, actions, other])
    out = subprocess.run([str(word) for word in (
        ROLLOUT, shape.folder, "--plugin", PLUGIN, "--context", context, "--actions", moves, "--out", tmp_path / "out.npy", "--", "--dtype",
        "float32", "--num-gpu-blocks-override", "512")], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    want = [token for frame in case["frames"] for token in frame["tokens"]]
    found, tokens = read_npy(tmp_path / "out.npy")
    rollouts = [tokens[i * len(want):(i + 1) * len(want)] for i in range(4)]
    assert found == (4, len(case["frames"]), n) and rollouts[0] == rollouts[2] == want and rollouts[1] == rollouts[3] != want
