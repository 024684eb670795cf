# SPDX-License-Identifier: Apache-2.0
"""/v1/completions in all its prompt forms, echo, n, logprobs."""
import json
import shutil
import threading

import pytest

from servers import MODELS

PROMPT = "quire is"


def test_openai_client(client):
    answer = client.completions.create(model="quire-tiny", prompt=PROMPT, max_tokens=8, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text and answer.choices[0].finish_reason in ("length", "stop")
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="quire-tiny", prompt=PROMPT, max_tokens=8, temperature=0, stream=True))
    assert text == answer.choices[0].text


def test_default_length_is_16(bundled):
    assert bundled.complete(PROMPT, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_prompt_forms_agree(bundled):
    ids = bundled.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
    forms = [PROMPT, [PROMPT], ids, [ids]]
    texts = [bundled.complete(form, max_tokens=6, temperature=0)["choices"][0]["text"] for form in forms]
    assert len(set(texts)) == 1


def test_lists_keep_their_order(bundled):
    prompts = ["one", "two and more", "three"]
    alone = [bundled.complete(p, max_tokens=5, temperature=0)["choices"][0]["text"] for p in prompts]
    answer = bundled.complete(prompts, max_tokens=5, temperature=0, n=2)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [c["text"] for c in answer["choices"]] == [t for t in alone for _ in range(2)]
    assert answer["usage"]["completion_tokens"] == sum(
        bundled.complete(p, max_tokens=5, temperature=0)["usage"]["completion_tokens"] for p in prompts) * 2


def test_n_with_seed_differs_and_repeats(bundled):
    def texts():
        return [c["text"] for c in bundled.complete(PROMPT, max_tokens=12, n=4, seed=5, temperature=1.5)["choices"]]
    assert texts() == texts() and len(set(texts())) > 1


def test_echo(bundled):
    plain = bundled.complete(PROMPT, max_tokens=4, temperature=0)["choices"][0]["text"]
    assert bundled.complete(PROMPT, max_tokens=4, temperature=0, echo=True)["choices"][0]["text"] == PROMPT + plain
    streamed = "".join(e["choices"][0]["text"] for e in bundled.events(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True}))
    assert streamed == PROMPT + plain


def test_logprobs(bundled):
    choice = bundled.complete(PROMPT, max_tokens=5, temperature=0, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(v) for v in logprobs.values()} == {len(logprobs["tokens"])}
    assert "".join(logprobs["tokens"]).startswith(choice["text"])
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert top[token] == value == max(top.values()) and len(top) in (2, 3)
    zero = bundled.complete(PROMPT, max_tokens=5, temperature=0, logprobs=0)["choices"][0]["logprobs"]
    assert zero["token_logprobs"] == logprobs["token_logprobs"]


def test_scoring_a_prompt(bundled):
    """echo with logprobs, as evaluation harnesses ask; with max_tokens 0 nothing is added."""
    scored = bundled.complete(PROMPT, max_tokens=0, echo=True, logprobs=1)
    logprobs = scored["choices"][0]["logprobs"]
    assert scored["choices"][0]["text"] == PROMPT and scored["usage"]["completion_tokens"] == 0
    assert len(logprobs["tokens"]) == scored["usage"]["prompt_tokens"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(v <= 0 for v in logprobs["token_logprobs"][1:])
    longer = bundled.complete(PROMPT, max_tokens=3, temperature=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert longer["token_logprobs"][:len(logprobs["tokens"])] == logprobs["token_logprobs"]
    pieces = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text = ""
    for event in bundled.events("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1}):
        text += event["choices"][0]["text"]
        for name in pieces:
            pieces[name] += event["choices"][0]["logprobs"][name]
    assert pieces == longer and text.startswith(PROMPT)
    assert logprobs["text_offset"][0] == 0 and logprobs["text_offset"] == sorted(logprobs["text_offset"])


def test_prompt_logprobs(bundled):
    choice = bundled.complete(PROMPT, max_tokens=1, temperature=0, prompt_logprobs=2, return_token_ids=True)["choices"][0]
    rows, ids = choice["prompt_logprobs"], choice["prompt_token_ids"]
    assert rows[0] is None and len(rows) == len(ids)
    for token, row in zip(ids[1:], rows[1:]):
        own = row[str(token)]
        assert own["logprob"] <= 0 and own["rank"] >= 1 and isinstance(own["decoded_token"], str)
        ranks = sorted(entry["rank"] for entry in row.values())
        assert ranks[:2] == [1, 2] and len(row) == (2 if own["rank"] <= 2 else 3)
    scored = bundled.complete(PROMPT, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
    assert [row[str(t)]["logprob"] for t, row in zip(ids[1:], rows[1:])] == scored[1:]


def test_sampling_fields_reach_the_engine(wide):
    """On random weights every field has a visible effect."""
    def ids(**more):
        fields = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, **more}
        return wide.complete([5, 6, 7, 8], **fields)["choices"][0]["token_ids"]
    greedy = ids()
    assert ids() == greedy
    first = greedy[0]
    assert ids(logit_bias={str(first): -100})[0] != first
    assert ids(logit_bias={"77": 100}) == [77] * 12
    assert ids(logit_bias={"77": 100}, max_tokens=2) == [77] * 2
    assert ids(temperature=2, seed=1) != greedy
    assert ids(temperature=2, seed=1) == ids(temperature=2, seed=1) != ids(temperature=2, seed=2)
    assert ids(temperature=2, seed=1, top_k=1) == greedy
    assert ids(temperature=2, seed=1, top_p=1e-6) == greedy
    assert ids(temperature=2, seed=1, min_p=1) == greedy
    assert len(set(ids(logit_bias={"77": 30}, presence_penalty=2, frequency_penalty=2, max_tokens=40))) > 1
    assert len(set(ids(logit_bias={"77": 8}, repetition_penalty=2, max_tokens=40))) > 1


def test_stop_token_ids(wide):
    answer = wide.complete([5, 6, 7, 8], max_tokens=12, temperature=0, ignore_eos=True)["choices"][0]
    ids = answer["token_ids"]
    stop = ids[5]
    cut = wide.complete([5, 6, 7, 8], max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[stop])["choices"][0]
    assert cut["token_ids"] == ids[:ids.index(stop) + 1]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    later = wide.complete([5, 6, 7, 8], max_tokens=12, temperature=0, ignore_eos=True, stop_token_ids=[stop],
                          min_tokens=10)["choices"][0]
    assert stop not in later["token_ids"][:9] and len(later["token_ids"]) >= 10


def test_without_tokenizer_text_is_refused(wide):
    for path, body in [("/v1/completions", {"prompt": "text"}), ("/v1/completions", {"prompt": [1], "stop": "x"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                       ("/tokenize", {"prompt": "x"})]:
        status, answer = wide.post(path, body)
        assert status == 400 and "skip-tokenizer-init" in answer["error"]["message"], answer


def test_generation_config_defaults(start, tmp_path):
    """Sampling defaults come from generation_config.json unless --generation-config vllm."""
    folder = tmp_path / "model"
    shutil.copytree(MODELS / "llama", folder)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "do_sample": True, "temperature": 1.9, "top_k": 1}))
    options = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")
    body = {"max_tokens": 16, "ignore_eos": True, "seed": 1}
    server = start(folder, *options)
    greedy = server.complete([5, 6, 7], temperature=0, **body)["choices"][0]["token_ids"]
    assert server.complete([5, 6, 7], **body)["choices"][0]["token_ids"] == greedy  # top_k 1
    other = start(folder, *options, "--generation-config", "vllm")
    assert other.complete([5, 6, 7], **body)["choices"][0]["token_ids"] != greedy


def test_long_prompt_does_not_block_others(bundled):
    """A text that takes long to tokenize is worked on beside the loop."""
    done = threading.Event()
    result = []

    def long():
        result.append(bundled.post("/v1/completions", {"prompt": "words and more " * 400000, "max_tokens": 1}))
        done.set()
    thread = threading.Thread(target=long)
    thread.start()
    answered = 0
    while not done.is_set():
        assert bundled.get("/health")[0] == 200
        answered += 1
    thread.join()
    assert result[0][0] == 400 and result[0][1]["error"]["code"] == "context_length_exceeded"
    assert answered > 3


@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_prompt_logprobs_over_chunked_prefill(wide, start, chunk):
    """A prompt of many steps: every position has its row, in order, whatever the chunk; echo and prompt_logprobs agree."""
    prompt = [(7 * i + i * i) % 500 + 3 for i in range(130)]
    body = {"max_tokens": 3, "temperature": 0, "ignore_eos": True, "echo": True, "logprobs": 2, "prompt_logprobs": 3}
    want = wide.complete(prompt, **body)["choices"][0]
    small = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64",
                  "--max-num-batched-tokens", str(chunk), "--heartbeat-ms", "50")
    for _ in range(2):  # the second time the prompt is in the prefix cache, and its rows are computed all the same
        got = small.complete(prompt, **body)["choices"][0]
        assert got["prompt_logprobs"] == want["prompt_logprobs"] and got["logprobs"] == want["logprobs"]
    small.wait_metric_above("quire:engine_step", 2 * len(prompt) // chunk)
    rows, echoed = got["prompt_logprobs"], got["logprobs"]
    assert len(rows) == len(prompt) and rows[0] is None and len(echoed["tokens"]) == len(prompt) + 3
    assert echoed["tokens"][:130] == [f"token_id:{i}" for i in prompt] and echoed["token_logprobs"][0] is None
    for token, row, value in zip(prompt[1:], rows[1:], echoed["token_logprobs"][1:130]):
        assert row[str(token)]["logprob"] == value
