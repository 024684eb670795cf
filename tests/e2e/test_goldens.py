# SPDX-License-Identifier: Apache-2.0
"""The reference answers of transformers (tests/data/models/*/golden.json) through the HTTP API: token-id prompts, float32.

Logprobs of prompt and greedy tokens within 1e-3, greedy tokens identical; but for checkpoints that are quantized already: the
reference multiplies their weights with inputs in float32, quire with inputs rounded to int8, so their prompts' logprobs are near.

`llama-rope-dynamic`, `phi3-longrope`: the reference computes every greedy token from scratch, with the frequencies of the length so far; with
a KV cache (quire, vLLM and transformers' own generate) the past keeps the frequencies it was computed with. Up to the original
length both are the same frequencies. Beyond it, the prompt itself and the first token after it are the same, because quire's
frequencies are those of the prompt's length (engine/model/README.md, rule 6); what follows the first token is not comparable."""
import json

import pytest

from servers import MODELS, Server

ALL = sorted(p.parent.name for p in MODELS.glob("*/golden.json"))
METHODS = {n: json.loads((MODELS / n / "config.json").read_text()).get("quantization_config", {}).get("quant_method") for n in ALL}
QUANTIZED = [n for n in ALL if METHODS[n] not in (None, "mxfp4")]  # MXFP4 is made bfloat16, which is exact
NAMES = [n for n in ALL if n not in QUANTIZED]
MEAN, MOST = 0.1, 0.5  # of the differences of logprobs, natural logarithms
FREE_LENGTH = 64  # original_max_position_embeddings of both


def served(name):
    reference = json.loads((MODELS / name / "golden.json").read_text())
    server = Server(MODELS / name, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256")
    yield server, reference
    assert server.stop() == 0


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    yield from served(request.param)


@pytest.fixture(scope="module", params=QUANTIZED)
def quantized(request):
    yield from served(request.param)


def comparable(reference, prompt):
    """How many greedy tokens of the prompt the reference took from the same frequencies as quire."""
    n = len(prompt["greedy"])
    is_long = "longrope" in reference["name"]
    if "dynamic" not in reference["name"] and not is_long or is_long and len(prompt["ids"]) > FREE_LENGTH:
        return n
    return min(n, max(1, FREE_LENGTH - len(prompt["ids"]) + 1))


def prompts_of(reference):
    """The prompts, their greedy tokens cut to what can be compared."""
    for prompt in reference["prompts"]:
        n = comparable(reference, prompt)
        yield {**prompt, "greedy": prompt["greedy"][:n], "greedy_logprobs": prompt["greedy_logprobs"][:n]}


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
    assert n == len(reference["prompts"]) >= 4


def test_streams_and_batches_give_the_same(golden):
    server, reference = golden
    limit = json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"]
    prompts = [p for p in prompts_of(reference) if len(p["ids"]) + 24 <= limit]
    assert len(prompts) >= 4
    body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    together = server.complete([p["ids"] for p in prompts], **body)
    assert [c["token_ids"][:len(p["greedy"])] for c, p in zip(together["choices"], prompts, strict=True)] == \
        [p["greedy"] for p in prompts]
    for choice, prompt in zip(together["choices"], prompts):  # alone, streamed or not, the same: also what has no reference
        assert server.complete(prompt["ids"], **body)["choices"][0]["token_ids"] == choice["token_ids"]
    for prompt in prompts[:2]:
        streamed = []
        for event in server.events("/v1/completions", {"prompt": prompt["ids"], **body}):
            streamed += event["choices"][0]["token_ids"]
        assert streamed[:len(prompt["greedy"])] == prompt["greedy"]


def test_quantized_checkpoints(quantized):
    server, reference = quantized
    differences, together = [], []
    for prompt in reference["prompts"]:
        body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        choice = server.complete(prompt["ids"], prompt_logprobs=0, **body)["choices"][0]
        together.append(choice["token_ids"])
        differences += [abs(row[str(token)]["logprob"] - other) for token, row, other in
                        zip(prompt["ids"][1:], choice["prompt_logprobs"][1:], prompt["prompt_logprobs"][1:])]
    assert sum(differences) / len(differences) < MEAN and max(differences) < MOST
    answers = server.complete([p["ids"] for p in reference["prompts"]], **body)["choices"]
    assert [c["token_ids"] for c in answers] == together


def short_table(folder, n_row, cut):
    """gemma3n with rows of the layers' table for ids below n_row: cut there, or the same row for all others."""
    folder.mkdir()
    config = json.loads((MODELS / "gemma3n/config.json").read_text())
    data = (MODELS / "gemma3n/model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    header, body, out = json.loads(data[8:8 + n]), data[8 + n:], bytearray()
    for name, at in header.items():
        part = body[slice(*at["data_offsets"])] if "data_offsets" in at else b""
        if name.endswith("embed_tokens_per_layer.weight"):
            row = len(part) // at["shape"][0]
            part = part[:n_row * row] + (b"" if cut else part[:row] * (at["shape"][0] - n_row))
            at["shape"][0] = len(part) // row
        if part:
            at["data_offsets"] = [len(out), len(out) + len(part)]
        out += part
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + out)
    (folder / "config.json").write_text(json.dumps(config | ({"vocab_size_per_layer_input": n_row} if cut else {})))
    return folder


def test_ids_that_the_table_of_the_layers_has_no_row_for(start, tmp_path):
    """They take its first row, as in Gemma 3n with its other inputs."""
    ask = dict(max_tokens=16, temperature=0, ignore_eos=True, return_token_ids=True, logprobs=0)
    prompts = [[3, 120, 99, 100, 127, 5], [119] * 20]
    answers = []
    for cut in (True, False):
        server = start(short_table(tmp_path / str(cut), 100, cut), "--skip-tokenizer-init", "--num-gpu-blocks-override", "64")
        answers.append([server.complete(p, **ask)["choices"] for p in prompts])
    assert answers[0] == answers[1]
    whole = start(MODELS / "gemma3n", "--skip-tokenizer-init", "--num-gpu-blocks-override", "64")
    assert answers[0][1] != whole.complete(prompts[1], **ask)["choices"]
