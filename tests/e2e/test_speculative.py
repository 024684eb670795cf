# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding over HTTP: the golden pair of model and draft, n-gram lookup, what the flag refuses."""
import json

import pytest

from servers import MODELS

REFERENCE = json.loads((MODELS / "llama" / "golden.json").read_text())
ARGS = ["--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256"]
DRAFT = {"model": str(MODELS / "llama-draft"), "num_speculative_tokens": 4}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def answers(server):
    """Greedy and sampled answers with logprobs to the golden's prompts, each alone and as a list."""
    got = []
    for temperature in (0, 0.8):
        body = {"max_tokens": 24, "temperature": temperature, "seed": 7, "ignore_eos": True, "logprobs": 3}
        ids = [p["ids"] for p in REFERENCE["prompts"]]
        for prompt in (*ids, ids):
            got += [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in server.complete(prompt, **body)["choices"]]
    return got


@pytest.mark.parametrize("config", [DRAFT, NGRAM], ids=["draft", "ngram"])
def test_same_answers_in_fewer_steps(start, config):
    plain = start(MODELS / "llama", *ARGS)
    guessing = start(MODELS / "llama", *ARGS, "--speculative-config", json.dumps(config))
    want = answers(plain)
    assert answers(guessing) == want
    assert [ids for ids, _ in want[:len(REFERENCE["prompts"])]] == [p["greedy"] for p in REFERENCE["prompts"]]
    guessing.wait_metric_above("vllm:spec_decode_num_accepted_tokens_total", 0)
    # Each figure is at least as new as the one before it, and all of them only grow.
    first = guessing.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=0)
    accepted = guessing.metric("vllm:spec_decode_num_accepted_tokens_total")
    drafted = guessing.metric("vllm:spec_decode_num_draft_tokens_total")
    assert 0 < first <= accepted <= drafted
    assert first <= guessing.metric("vllm:spec_decode_num_drafts_total")
    assert plain.metric("vllm:spec_decode_num_draft_tokens_total") == 0


def test_a_stream_gets_every_token_once(start):
    server = start(MODELS / "llama", *ARGS, "--speculative-config", json.dumps(DRAFT))
    prompt = REFERENCE["prompts"][2]
    streamed = []
    for event in server.events("/v1/completions", {"prompt": prompt["ids"], "max_tokens": 24, "temperature": 0,
                                                   "ignore_eos": True, "return_token_ids": True}):
        streamed += event["choices"][0]["token_ids"]
    assert streamed == prompt["greedy"]


@pytest.mark.parametrize("config, said", [
    ('{"method": "medusa", "num_speculative_tokens": 2}', "ngram and draft_model"),
    ('{"method": "ngram"}', "num_speculative_tokens is missing"),
    ('{"method": "ngram"', "not valid JSON")])
def test_refused(run, config, said):
    engine = run("quire-engine", MODELS / "llama", "--listen", "ipc:///tmp/quire-none", "--speculative-config", config)
    assert engine.exit_code() != 0
    assert said in engine.log()
