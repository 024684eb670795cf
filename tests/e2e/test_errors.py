# SPDX-License-Identifier: Apache-2.0
"""What a wrong request gets: OpenAI's error object, the right status, and a message that names field, finding and range."""
import json

import openai
import pytest

from servers import BUNDLED

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "f"}}
UNCLOSED = {"type": "function", "function": {"name": "unclosed", "parameters": {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a"}}}}}


@pytest.mark.parametrize("change, param, words", [
    ({"temperature": 3}, "temperature", ["3", "0 to 2"]),
    ({"temperature": "hot"}, "temperature", ["number", "string"]),
    ({"top_p": 0}, "top_p", ["above 0"]),
    ({"top_p": 1.5}, "top_p", ["1.5"]),
    ({"top_k": -2}, "top_k", ["-2"]),
    ({"n": 0}, "n", ["0", "1 to 128"]),
    ({"max_tokens": 0}, "max_tokens", ["at least 1"]),
    ({"max_tokens": 1.5}, "max_tokens", ["integer"]),
    ({"stop": [""]}, "stop", ["empty"]),
    ({"stop": 5}, "stop", ["string", "integer"]),
    ({"stop": ["x"] * 17}, "stop", ["17", "16"]),
    ({"stop_token_ids": [-1]}, "stop_token_ids", ["entry 0"]),
    ({"logit_bias": {"a": 1}}, "logit_bias", ["\"a\""]),
    ({"logit_bias": {"5": 200}}, "logit_bias", ["-100 to 100"]),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["21", "20"]),
    ({"top_logprobs": 2}, "top_logprobs", ["logprobs"]),
    ({"logprobs": 3}, "logprobs", ["true or false"]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"min_tokens": 5}, "min_tokens", ["5", "2"]),
    ({"seed": 1.5}, "seed", ["integer"]),
    ({"messages": []}, "messages", ["0 entries"]),
    ({"messages": None}, "messages", ["missing"]),
    ({"messages": "hi"}, "messages", ["array", "string"]),
    ({"messages": ["hi"]}, "messages", ["entry 0", "object"]),
    ({"messages": [{"content": "x"}]}, "messages", ["role"]),
    ({"messages": [{"role": "user"}]}, "messages", ["content"]),
    ({"messages": [{"role": "user", "content": 5}]}, "messages", ["integer"]),
    ({"thinking": "perhaps"}, "thinking", ["true, false", "disabled"]), ({"enable_thinking": 2}, "enable_thinking", ["true, false"]),
    ({"tools": [{"type": "function"}]}, "tools", ["name"]),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice", ["sometimes", "auto"]),
    ({"tool_choice": "auto"}, "tool_choice", ["tools"]),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", ['"g"']),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice", ["required"]),
    ({"tools": [TOOL, UNCLOSED], "tool_choice": "required"}, "tools", ['tools: entry 1, function "unclosed": #/properties/', ': pattern: the group is not closed']),
    ({"tools": [TOOL, {**UNCLOSED, "function": {**UNCLOSED["function"], "strict": True}}]}, "tools", ['tools: entry 1, function "unclosed": #/properties/', ': pattern']),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "g"}]}}},
     "tool_choice", ["entry 0", '"g"']),
    ({"response_format": {"type": "jsonschema"}}, "response_format", ["jsonschema", "json_schema"]),
    ({"response_format": {"type": "json_schema"}}, "response_format", ["schema"]),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", ["only one"]),
    ({"guided_regex": ""}, "guided_regex", ["empty"]),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", ["together"]),
    ({"max_completion_tokens": 10**6}, "messages", ["maximum context length", "2048"]),
])
def test_refused(bundled, change, param, words):
    status, answer = bundled.post(CHAT, {**HELLO, **change})
    error = answer["error"]
    assert status == 400 and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["param"] == param
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize("change", [
    {"structured_outputs": {"unknown": " "}}, {"kv_transfer_params": {}}, {"logprob_token_ids": [1]}, {"audio": {}},
    {"functions": [{}]}, {"echo": True}, {"dry_multiplier": 0.5},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
])
def test_known_but_not_supported_is_said(bundled, change):
    status, answer = bundled.post(CHAT, {**HELLO, **change})
    assert status == 400 and "not supported" in answer["error"]["message"], answer
    assert answer["error"]["param"] in change


@pytest.mark.parametrize("change", [
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}, {"use_beam_search": False},
    {"response_format": {"type": "text"}}, {"bad_words": []}, {"priority": 0}, {"length_penalty": 1}, {"modalities": ["text"]},
    {"prediction": {"type": "content", "content": "x"}}, {"stream_options": {}}, {"tools": [{"function": {"name": "f"}}]},
    {"temperature": None, "stop": None, "tools": None, "seed": None, "logit_bias": None}, {"stream": False}, {"tools": []},
    {"something_else": 1}, {"echo": False}, {"logprobs": False, "top_logprobs": 0}, {"n": 1.0}, {"logit_bias": {"5": 1.5}},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": "}}]},
        {"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": None}]},
    {"thinking": {"type": "disabled"}}, {"enable_thinking": True}, {"thinking": {"type": "enabled", "budget_tokens": 100}},
    {"chat_template_kwargs": {"x": 1}, "documents": [], "reasoning_effort": "low", "parallel_tool_calls": False},
])
def test_harmless_is_accepted(bundled, change):
    status, answer = bundled.post(CHAT, {**HELLO, **change})
    assert status == 200, answer


@pytest.mark.parametrize("body, words", [
    (b"", ["no body"]), (b"{", ["not valid JSON"]), (b"[]", ["object"]), (b'"x"', ["JSON"]), (b"\xff", ["JSON"]),
    (b'{"prompt": "\xff"}', ["JSON"]), (b'{"a":' * 200, ["deeper"]), (b"[" * 100000, ["deeper"]),
    (b'{"prompt": [' + b"1," * 4000001 + b"1]}", ["values"]),
    (b'{"seed": 99999999999999999999}', ["seed", "out of range, expected -9223372036854775808 to 9223372036854775807"]),
])
def test_bad_json(bundled, body, words):
    status, answer = bundled.post(TEXT, body)
    assert status in (400, 413)
    for word in words:
        assert word in answer["error"]["message"]


@pytest.mark.parametrize("prompt, words", [
    (None, ["missing"]), ([], ["empty"]), (5, ["integer"]), ([1, "a"], ["entry 1"]), ([[1], 5], ["entry 1"]), ([[]], ["empty"]),
    ([-1], ["-1"]), ([10**9], ["1000000000", "vocabulary"]), ([True], ["boolean"]), ({"a": 1}, ["object"]), ([[1, None]], ["null"]),
    (["a"] * 3000, ["3000"]),
])
def test_bad_prompt(bundled, prompt, words):
    status, answer = bundled.post(TEXT, {"prompt": prompt, "max_tokens": 1})
    assert status in (400, 413) and answer["error"]["param"] == "prompt"
    for word in words:
        assert word in answer["error"]["message"]


def test_schemas_of_megabytes(bundled):
    """Up to 8 MiB are compiled; more is refused with both sizes."""
    def form(n):
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer", "description": n * "d"}}}}

    def tools(n):
        parameters = {"type": "object", "properties": {"x": {"type": "integer", "description": n * "d"}}}
        return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required"}
    status, answer = bundled.post(CHAT, {**HELLO, **form(3 << 20)})
    assert status == 200, answer
    for change, param in ((form(9 << 20), "response_format"), (tools(9 << 20), "tools")):
        status, answer = bundled.post(CHAT, {**HELLO, **change})
        assert status == 400 and answer["error"]["param"] == param
        assert "9437" in answer["error"]["message"] and "8388608" in answer["error"]["message"]


def test_context_length(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="quire-tiny", prompt=[5] * 2048)
    assert caught.value.code == "context_length_exceeded"
    assert "2048 tokens" in str(caught.value)


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO["messages"])
    assert caught.value.code == "model_not_found" and "gpt-9" in str(caught.value)


def test_routes(bundled):
    assert bundled.get("/nope")[0] == 404
    connection, answer = bundled.raw("GET", CHAT)
    assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert bundled.post("/health", {})[0] == 405
    connection, answer = bundled.raw("HEAD", "/health")
    assert answer.status == 200 and answer.read() == b""
    status, answer = bundled.post(CHAT, HELLO, headers={"Content-Type": "text/plain"})
    assert status == 415 and "application/json" in answer["error"]["message"]


def test_status_pages(bundled):
    assert bundled.get("/health") == (200, '{"status":"ok"}')
    assert bundled.get("/ready") == (200, '{"status":"ready","reasons":[],"codes":[]}')
    assert "version" in bundled.get("/version")[1]


def test_tokenize(bundled):
    status, answer = bundled.post("/tokenize", {"prompt": "Hello, wörld!", "return_token_strs": True})
    assert status == 200 and answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 2048
    # as the vocabulary spells them: what transformers' convert_ids_to_tokens gives
    file = json.loads((BUNDLED / "tokenizer.json").read_text())
    spelled = {i: s for s, i in file["model"]["vocab"].items()} | {t["id"]: t["content"] for t in file["added_tokens"]}
    assert answer["token_strs"] == [spelled[i] for i in answer["tokens"]]
    assert any(s.startswith(("\u0120", "\u2581")) for s in answer["token_strs"])  # a space, in the vocabulary's way
    assert bundled.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": "Hello, wörld!"})
    status, chat = bundled.post("/tokenize", {"messages": HELLO["messages"]})
    assert status == 200
    usage = bundled.post(CHAT, HELLO)[1]["usage"]
    assert chat["count"] == usage["prompt_tokens"]
    assert bundled.post("/detokenize", {"tokens": [10**9]})[0] == 400
    assert bundled.post("/detokenize", {"tokens": [5, -3]})[0] == 400
    assert bundled.post("/detokenize", {"tokens": "x"})[0] == 400
    assert bundled.post("/tokenize", {})[0] == 400
    assert bundled.post("/tokenize", {"prompt": ["a"]})[0] == 400
