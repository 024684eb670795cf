# SPDX-License-Identifier: Apache-2.0
"""The reference answers of transformers (tests/data/models/*/golden.json) through the HTTP API: token-id prompts, float32.

Logprobs of prompt and greedy tokens within 1e-3, greedy tokens identical. `llama-rope-dynamic` recomputes its frequencies
with the length, so only prompts that never cross the original length are compared (see where the goldens come from)."""
import json

import pytest

from servers import MODELS, Server

NAMES = sorted(p.parent.name for p in MODELS.glob("*/golden.json"))
DYNAMIC_LENGTH = 64


@pytest.fixture(scope="module", params=NAMES or ["none"])
def golden(request):
    if not NAMES:
        pytest.skip(f"no golden models in {MODELS}")
    reference = json.loads((MODELS / request.param / "golden.json").read_text())
    server = Server(MODELS / request.param, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256")
    yield server, reference
    assert server.stop() == 0


def prompts_of(reference):
    for prompt in reference["prompts"]:
        crosses = len(prompt["ids"]) + len(prompt["greedy"]) > DYNAMIC_LENGTH
        if not ("dynamic" in reference["name"] and crosses):
            yield prompt


def test_greedy_tokens_and_logprobs(golden):
    server, reference = golden
    n = 0
    for prompt in prompts_of(reference):
        answer = server.complete(prompt["ids"], max_tokens=len(prompt["greedy"]), temperature=0, ignore_eos=True,
                                 return_token_ids=True, logprobs=0, prompt_logprobs=0)
        choice = answer["choices"][0]
        assert choice["token_ids"] == prompt["greedy"]
        assert choice["prompt_token_ids"] == prompt["ids"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(prompt["greedy_logprobs"], abs=1e-3)
        rows = choice["prompt_logprobs"]
        assert rows[0] is None
        mine = [row[str(token)]["logprob"] for token, row in zip(prompt["ids"][1:], rows[1:])]
        assert mine == pytest.approx(prompt["prompt_logprobs"][1:], abs=1e-3)
        n += 1
    assert n >= 4


def test_streams_and_batches_give_the_same(golden):
    server, reference = golden
    prompts = list(prompts_of(reference))
    body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    together = server.complete([p["ids"] for p in prompts], **body)
    assert [c["token_ids"] for c in together["choices"]] == [p["greedy"] for p in prompts]
    for prompt in prompts[:2]:
        streamed = []
        for event in server.events("/v1/completions", {"prompt": prompt["ids"], **body}):
            streamed += event["choices"][0]["token_ids"]
        assert streamed == prompt["greedy"]
