# SPDX-License-Identifier: Apache-2.0
"""n, best_of and beam search: against the same search written down here, over answers of one token each."""
import json
import math
import socket

import openai
import pytest

from servers import MODELS

PROMPT = [5, 6, 7, 8]


def top(server, ids, n):
    """The n likeliest next tokens with their logprobs, from logprobs of completions."""
    answer = server.complete(ids, max_tokens=1, temperature=0, logprobs=n, ignore_eos=True)["choices"][0]
    return [(int(k.removeprefix("token_id:")), v) for k, v in answer["logprobs"]["top_logprobs"][0].items()][:n]


def search(server, prompt, width, max_tokens, penalty=1.0, ends=()):
    """(score, tokens) of the best, best first."""
    beams, ended = [(0.0, [])], []
    for _ in range(max_tokens):
        found = []
        for total, tokens in beams:
            for token, logprob in top(server, prompt + tokens, 2 * width):
                if token in ends:
                    ended.append(((total + logprob) / (len(prompt) + len(tokens)) ** penalty, tokens + [token]))
                else:
                    found.append((total + logprob, tokens + [token]))
        beams = sorted(found, key=lambda b: -b[0])[:width]
    ended += [(total / (len(prompt) + len(tokens)) ** penalty, tokens) for total, tokens in beams]
    return sorted(ended, key=lambda b: -b[0])[:width]


def beams(server, prompt, width, **more):
    body = {"use_beam_search": True, "n": width, "max_tokens": 5, **more}
    return server.complete(prompt, **body)


@pytest.mark.parametrize("width, penalty", [(1, 1.0), (3, 1.0), (3, -2.0)])
def test_beam_search(wide, width, penalty):
    probe = search(wide, PROMPT, 3, 5)
    ends = [probe[0][1][2], probe[1][1][3]]  # so that some answers end early
    want = search(wide, PROMPT, width, 5, penalty, ends)
    answer = beams(wide, PROMPT, width, length_penalty=penalty, ignore_eos=True, stop_token_ids=ends, logprobs=2)
    got = [c["token_ids"] for c in answer["choices"]]
    assert got == [tokens for _, tokens in want]
    for choice, (score, tokens) in zip(answer["choices"], want):
        ended = tokens[-1] in ends
        assert choice["finish_reason"] == ("stop" if ended else "length")
        total = sum(choice["logprobs"]["token_logprobs"])
        assert abs(total / (len(PROMPT) + len(tokens) - ended) ** penalty - score) < 1e-6
        assert all(len(row) in (2, 3) for row in choice["logprobs"]["top_logprobs"])
    assert answer["usage"]["completion_tokens"] == sum(len(t) for t in got)
    assert beams(wide, PROMPT, width, length_penalty=penalty, ignore_eos=True, stop_token_ids=ends)["choices"][0]["token_ids"] == got[0]


def adjusted(server, ids, n, fields, n_begun):
    """The n likeliest next tokens after bias, masks and penalties, from the raw logprobs of all tokens."""
    answer = server.complete(ids, max_tokens=1, temperature=0, logprobs=-1, ignore_eos=True)["choices"][0]
    row = {int(k.removeprefix("token_id:")): v for k, v in answer["logprobs"]["top_logprobs"][0].items()}
    # raw logprobs are logits but for a constant, which the penalties on output tokens and the bias do not see
    for token in range(max(row) + 1):
        if "allowed_token_ids" in fields and token not in fields["allowed_token_ids"]:
            row.pop(token, None)
    for token, bias in fields.get("logit_bias", {}).items():
        row[int(token)] += bias
    output = ids[len(ids) - n_begun:]
    for token in set(output) & set(row):
        row[token] -= fields.get("frequency_penalty", 0) * output.count(token) + fields.get("presence_penalty", 0)
    total = math.log(sum(math.exp(v) for v in row.values()))
    return sorted(((t, v - total) for t, v in row.items()), key=lambda x: (-x[1], x[0]))[:n]


@pytest.mark.parametrize("fields", [{"logit_bias": {"77": 3.5, "12": -100}}, {"allowed_token_ids": [4, 9, 77, 130, 131, 200, 300]},
                                    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {"77": 6, "78": 5}}])
def test_what_shapes_the_search(start, fields):
    """Bias, masks and penalties act on every step of it, and count the beam's own tokens as output."""
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--max-logprobs", "-1")
    width, max_tokens, beams_now = 3, 4, [(0.0, [])]
    for step in range(max_tokens):
        found = []
        for total, tokens in beams_now:
            found += [(total + v, tokens + [t]) for t, v in adjusted(server, PROMPT + tokens, 2 * width, fields, step)]
        beams_now = sorted(found, key=lambda b: -b[0])[:width]
    answer = beams(server, PROMPT, width, max_tokens=max_tokens, ignore_eos=True, logprobs=0, **fields)
    assert [c["token_ids"] for c in answer["choices"]] == [tokens for _, tokens in beams_now]
    for choice, (total, _) in zip(answer["choices"], beams_now):
        assert abs(sum(choice["logprobs"]["token_logprobs"]) - total) < 1e-3


def test_masks_in_a_search(wide):
    plain = beams(wide, PROMPT, 3)["choices"]
    never = plain[0]["token_ids"][1]
    for choice in beams(wide, PROMPT, 3, logits_processors=[{"qualname": "suppress_tokens", "args": [[never]]}])["choices"]:
        assert never not in choice["token_ids"]
    for choice in beams(wide, PROMPT, 2, max_tokens=12, no_repeat_ngram_size=2, logit_bias={"77": 8, "78": 8})["choices"]:
        pairs = list(zip(choice["token_ids"], choice["token_ids"][1:]))
        assert len(set(pairs)) == len(pairs)


def test_a_stop_string_ends_a_beam(bundled, client):
    """It ends there, is cut off, and is told; the tokens are a beginning of what would have come."""
    body = {"use_beam_search": True, "n": 3, "max_tokens": 24, "ignore_eos": True}
    plain = bundled.complete("Once upon", **body)["choices"]
    text = max((c["text"] for c in plain), key=len)
    stop = text[len(text) // 2:len(text) // 2 + 3]
    for include in (False, True):
        answer = client.completions.create(model="quire-tiny", prompt="Once upon", n=3, max_tokens=24, stop=[stop], extra_body={
            "use_beam_search": True, "ignore_eos": True, "include_stop_str_in_output": include, "return_token_ids": True})
        ended = [c for c in answer.choices if c.finish_reason == "stop"]
        assert ended
        for choice in ended:
            assert choice.stop_reason == stop and choice.text.count(stop) == include and (not include or choice.text.endswith(stop))
        for choice in answer.choices:
            assert choice.finish_reason == "stop" or (stop not in choice.text and len(choice.token_ids) == 24)
    assert bundled.complete("Once upon", **body)["choices"] == plain  # no stop, as before


def test_beams_of_several_prompts_and_streams(wide):
    prompts = [PROMPT, [9, 10]]
    alone = [c["token_ids"] for p in prompts for c in beams(wide, p, 2)["choices"]]
    answer = beams(wide, prompts, 2, temperature=1.7, seed=4)
    assert [c["token_ids"] for c in answer["choices"]] == alone and [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    streamed = {}
    for event in wide.events("/v1/completions", {"prompt": prompts, "use_beam_search": True, "n": 2, "max_tokens": 5}):
        for choice in event["choices"]:
            streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [streamed[i] for i in range(4)] == alone


def test_beam_search_with_the_client(client):
    answer = client.chat.completions.create(model="quire-tiny", messages=[{"role": "user", "content": "Hello!"}], n=2,
                                            max_tokens=8, extra_body={"use_beam_search": True, "early_stopping": True})
    assert len(answer.choices) == 2 and answer.choices[0].message.content != answer.choices[1].message.content
    again = client.chat.completions.create(model="quire-tiny", messages=[{"role": "user", "content": "Hello!"}], n=2,
                                           max_tokens=8, extra_body={"use_beam_search": True, "early_stopping": True})
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]


def test_best_of(wide):
    body = {"max_tokens": 6, "temperature": 2, "seed": 9, "ignore_eos": True, "logprobs": 0}
    every = wide.complete(PROMPT, n=6, **body)["choices"]
    want = sorted(every, key=lambda c: -sum(c["logprobs"]["token_logprobs"]))
    answer = wide.complete(PROMPT, n=2, best_of=6, **body)
    assert [c["token_ids"] for c in answer["choices"]] == [c["token_ids"] for c in want[:2]]
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 36  # all that was made
    plain = wide.complete(PROMPT, best_of=6, **{**body, "logprobs": None})["choices"]
    assert len(plain) == 1 and plain[0]["logprobs"] is None and plain[0]["token_ids"] == want[0]["token_ids"]


@pytest.mark.parametrize("body, param, words", [
    ({"best_of": 1, "n": 2}, "best_of", ["less than n"]),
    ({"best_of": 3, "stream": True}, "best_of", ["stream"]),
    ({"length_penalty": 2}, "length_penalty", ["use_beam_search"]),
    ({"early_stopping": True}, "early_stopping", ["use_beam_search"]),
    ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping", ["never"]),
    ({"use_beam_search": True, "n": 11}, "n", ["11", "1 to 10"]),
    ({"use_beam_search": True, "top_n_sigma": 1}, "top_n_sigma", ["together with use_beam_search"]),
    ({"use_beam_search": True, "prompt_logprobs": 1}, "prompt_logprobs", ["together"]),
    ({"use_beam_search": True, "echo": True, "logprobs": 1}, "echo", ["and logprobs"]),
    ({"use_beam_search": True, "n": 2, "max_tokens": 1, "allowed_token_ids": [5]}, "n", ["1 of 2", "allowed"]),
])
def test_what_does_not_go_together(client, body, param, words):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="quire-tiny", prompt="x", extra_body=body)
    assert refused.value.param == param
    for word in words:
        assert word in refused.value.message


def test_a_search_can_be_given_up(bundled):
    """A client that goes away takes its beams along."""
    body = json.dumps({"prompt": "x", "use_beam_search": True, "n": 8, "max_tokens": 400, "ignore_eos": True})
    plain = socket.create_connection((bundled.host, int(bundled.port)))
    plain.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    bundled.wait_metric_above("quire:open_sequences", 0)
    plain.close()
    bundled.wait_metric("quire:open_sequences", 0)
