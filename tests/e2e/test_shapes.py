# SPDX-License-Identifier: Apache-2.0
"""The members of answers and chunks: those that a client written against vLLM (0.33) finds there; what each chunk counts."""
import json

import pytest

CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 6, "temperature": 0}
TEXT = {"prompt": "quire is", "max_tokens": 6, "temperature": 0}
BODY = {"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "kv_transfer_params", "ec_transfer_params",
        "metrics"}
CHOICE = {"index", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts", "weight_versions"}
MESSAGE = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
CHUNK = {"id", "object", "created", "model", "choices"}
NULLS = {"service_tier", "kv_transfer_params", "ec_transfer_params", "metrics", "routed_experts", "weight_versions", "prompt_text", "refusal",
         "annotations", "audio", "function_call"}


def ask(server, path, body):
    status, answer = server.post(path, body)
    assert status == 200, answer
    return answer


def assert_nulls(members):
    assert [k for k in NULLS & set(members) if members[k] is not None] == []


def chunks(server, path, body):
    return [c for c in server.events(path, body) if isinstance(c, dict)]


@pytest.mark.parametrize("ids", [False, True])
def test_whole_answers(bundled, ids):
    answer = ask(bundled, "/v1/chat/completions", {**CHAT, "return_token_ids": ids})
    choice = answer["choices"][0]
    assert set(answer) == BODY | {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
    assert set(choice) == CHOICE | {"message"} and set(choice["message"]) == MESSAGE  # no tool_calls where there are none
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"}
    for members in (answer, choice, choice["message"]):
        assert_nulls(members)
    assert answer["prompt_logprobs"] is None and choice["message"]["reasoning"] is None and choice["logprobs"] is None
    assert (choice["token_ids"] is not None, answer["prompt_token_ids"] is not None) == (ids, ids)
    answer = ask(bundled, "/v1/completions", {**TEXT, "return_token_ids": ids})
    choice = answer["choices"][0]
    assert set(answer) == BODY and set(choice) == CHOICE | {"text", "prompt_logprobs", "prompt_token_ids"}
    assert_nulls(answer)
    assert_nulls(choice)
    assert (choice["token_ids"] is not None, choice["prompt_token_ids"] is not None) == (ids, ids)


@pytest.mark.parametrize("ids", [False, True])
def test_chunks(bundled, ids):
    first, *rest = chunks(bundled, "/v1/chat/completions", {**CHAT, "return_token_ids": ids})
    assert CHUNK | {"prompt_token_ids", "prompt_text"} <= set(first) and (first["prompt_token_ids"] is not None) == ids
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {"index", "delta", "logprobs", "finish_reason"} <= set(first["choices"][0]) and first["choices"][0]["finish_reason"] is None
    for c in rest:
        assert CHUNK | {"kv_transfer_params"} <= set(c) and not {"usage", "prompt_token_ids"} & set(c)
        assert {"index", "delta", "logprobs", "finish_reason", "token_ids"} <= set(c["choices"][0])
        assert set(c["choices"][0]["delta"]) == {"content"} and (c["choices"][0]["token_ids"] is not None) == ids
    assert {"stop_reason", "weight_versions"} <= set(rest[-1]["choices"][0])
    assert [bool(c["choices"][0]["finish_reason"]) for c in rest] == [False] * (len(rest) - 1) + [True]
    text = chunks(bundled, "/v1/completions", {**TEXT, "return_token_ids": ids})
    for i, c in enumerate(text):
        assert CHUNK | {"kv_transfer_params"} <= set(c)
        assert {"index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids", "weight_versions"} <= set(c["choices"][0])
        assert (c["choices"][0]["prompt_token_ids"] is not None) == (ids and i == 0)


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_usage_of_chunks(bundled, path, body):
    """continuous_usage_stats asks for nothing without include_usage; a chunk counts its own choice, the last one all."""
    for options in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": False}, {}):
        assert all("usage" not in c for c in chunks(bundled, path, {**body, "stream_options": options}))
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": False}):
        *some, last = chunks(bundled, path, {**body, "stream_options": options})
        assert [c["usage"] for c in some] == [None] * len(some) and last["usage"]["completion_tokens"] == 6
    n = 2
    *some, last = chunks(bundled, path, {**body, "n": n, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    n_prompt = last["usage"]["prompt_tokens"]
    counted = [[] for _ in range(n)]
    for c in some:
        usage = c["usage"]
        assert usage["prompt_tokens"] == n_prompt and usage["total_tokens"] == n_prompt + usage["completion_tokens"]
        counted[c["choices"][0]["index"]].append(usage["completion_tokens"])
    for counts in counted:
        assert counts == sorted(counts) and counts[-1] == 6
        assert counts[0] == (0 if "chat" in path else counts[0])  # the role by itself
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6 * n


def test_tokens_without_text_make_chunks(bundled):
    """As many chunks as steps, whatever their text: under ignore_eos a model may say the end again and again."""
    end = ask(bundled, "/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False})["tokens"]
    assert len(end) == 1
    more = {"ignore_eos": True, "allowed_token_ids": end, "max_tokens": 9}
    got = chunks(bundled, "/v1/completions", {**TEXT, **more, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [c["usage"]["completion_tokens"] for c in got[:-1]]
    assert [c["choices"][0]["text"] for c in got[:-1]] == [""] * len(counts)
    assert counts == list(range(1, 10))
    got = chunks(bundled, "/v1/chat/completions", {**CHAT, **more, "return_token_ids": True})
    assert sum((c["choices"][0].get("token_ids") or [] for c in got), []) == end * 9 and len(got) == 10
    got = chunks(bundled, "/v1/chat/completions", {**CHAT, **more})
    assert len(got) == 10 and all(c["choices"][0]["delta"]["content"] == "" for c in got)
    assert got[-1]["choices"][0]["finish_reason"] == "length"


def test_echo_of_token_ids_keeps_special_tokens(bundled):
    """logprobs.tokens has them, so that text_offset only fits a text that has them too."""
    ids = ask(bundled, "/tokenize", {"messages": CHAT["messages"]})["tokens"]
    want = bundled.post("/detokenize", {"tokens": ids})[1]["prompt"]
    assert "<|im_start|>" in want
    body = {"prompt": ids, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 0}
    choice = ask(bundled, "/v1/completions", body)["choices"][0]
    streamed = chunks(bundled, "/v1/completions", body)
    assert "".join(c["choices"][0]["text"] for c in streamed) == choice["text"] and choice["text"].startswith(want)
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(ids) + 3
    for token, at in zip(logprobs["tokens"][:len(ids)], logprobs["text_offset"]):
        assert choice["text"][at:at + len(token)] == token
    only = ask(bundled, "/v1/completions", {**body, "max_tokens": 0})["choices"][0]
    assert only["text"] == want and json.dumps(only["logprobs"]["tokens"]) == json.dumps(logprobs["tokens"][:len(ids)])
