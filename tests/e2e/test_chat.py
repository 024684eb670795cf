# SPDX-License-Identifier: Apache-2.0
"""Chat through the real openai package, on the bundled model."""
import json

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                   "required": ["city"]}}}
OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]


def ask(client, messages=None, **more):
    more.setdefault("temperature", 0)
    more.setdefault("max_tokens", 60)
    return client.chat.completions.create(model="quire-tiny", messages=messages or HELLO, **more)


def test_answer(client):
    answer = ask(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == "quire-tiny" and answer.system_fingerprint
    assert choice.message.role == "assistant" and choice.message.content.strip()
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_same_request_same_tokens(client):
    one = ask(client, temperature=1, seed=7).choices[0].message.content
    assert all(ask(client, temperature=1, seed=7).choices[0].message.content == one for _ in range(3))


def test_stream_equals_whole(client):
    whole = ask(client, temperature=1, seed=11)
    chunks = list(ask(client, temperature=1, seed=11, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_length(client):
    choice = ask(client, max_tokens=2).choices[0]
    assert choice.finish_reason == "length"
    assert ask(client, max_completion_tokens=3).usage.completion_tokens == 3


def test_n(client):
    answer = ask(client, n=3, temperature=1, seed=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    streamed = {}
    for chunk in ask(client, n=3, temperature=1, seed=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {c.index: c.message.content for c in answer.choices}


def test_stop_string(client):
    text = ask(client).choices[0].message.content
    stop = text[len(text) // 2:len(text) // 2 + 3]
    cut = text[:text.index(stop)]
    choice = ask(client, stop=[stop, "never-in-there"]).choices[0]
    assert choice.message.content == cut
    assert choice.finish_reason == "stop" and choice.model_extra["stop_reason"] == stop
    with_stop = ask(client, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert with_stop.message.content == cut + stop
    streamed = "".join(c.choices[0].delta.content or "" for c in ask(client, stop=stop, stream=True))
    assert streamed == cut


def test_logprobs(client):
    choice = ask(client, logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode().startswith(choice.message.content)
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        values = [t.logprob for t in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert values[0] == token.logprob  # greedy takes the best
    streamed = []
    for chunk in ask(client, logprobs=True, top_logprobs=3, max_tokens=8, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content


def test_token_ids(client):
    answer = ask(client, extra_body={"return_token_ids": True, "return_tokens_as_token_ids": True}, logprobs=True)
    choice = answer.choices[0]
    ids = choice.model_extra["token_ids"]
    assert len(ids) == answer.usage.completion_tokens
    assert len(answer.model_extra["prompt_token_ids"]) == answer.usage.prompt_tokens
    assert [t.token for t in choice.logprobs.content] == [f"token_id:{i}" for i in ids]


def test_tool_call(client):
    answer = ask(client, OSLO, tools=[WEATHER])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id and call.function.name
    assert isinstance(json.loads(call.function.arguments), dict)
    assert choice.message.content in (None, "")


def test_tool_call_streams(client):
    whole = ask(client, OSLO, tools=[WEATHER]).choices[0].message.tool_calls
    name, arguments, ids, reason, pieces = "", "", set(), None, 0
    for chunk in ask(client, OSLO, tools=[WEATHER], stream=True):
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert call.function.name is None or not arguments  # the name comes first, once
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            pieces += bool(call.function.arguments)
            ids |= {call.id} - {None}
    assert (name, arguments) == (whole[0].function.name, whole[0].function.arguments)
    assert reason == "tool_calls" and len(ids) == 1 and pieces > 1


def test_answer_after_tool_result(client):
    messages = OSLO + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21, "sky": "clear"}'}]
    choice = ask(client, messages, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "stop" and choice.message.content.strip()


def test_tool_choice_none_makes_no_call(client):
    choice = ask(client, OSLO, tools=[WEATHER], tool_choice="none").choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason in ("stop", "length")


def test_parts_and_roles(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    assert ask(client, parts).choices[0].message.content == ask(client).choices[0].message.content
    assert ask(client, [{"role": "developer", "content": "Be brief."}] + HELLO).choices[0].message.content


def test_models(client):
    assert [m.id for m in client.models.list()] == ["quire-tiny"]
    assert client.models.retrieve("quire-tiny").id == "quire-tiny"
    for model in (client.models.list().data[0], client.models.retrieve("quire-tiny")):
        permission, = model.permission  # clients of vLLM read the first
        assert permission["id"].startswith("modelperm-") and permission["created"] == model.created
        assert {k: v for k, v in permission.items() if k not in ("id", "created")} == {
            "object": "model_permission", "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None,
            "is_blocking": False}
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_request_id(client, bundled):
    answer = client.chat.completions.with_raw_response.create(
        model="quire-tiny", messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": "my-id-42"})
    assert answer.headers["x-request-id"] == "my-id-42" and answer.parse().id == "chatcmpl-my-id-42"
    # the field, as vLLM has it, where there is no such header
    named = {"extra_body": {"request_id": "of.body:1"}, "model": "quire-tiny", "max_tokens": 1}
    assert client.chat.completions.create(messages=HELLO, **named).id == "chatcmpl-of.body:1"
    assert {c.id for c in client.chat.completions.create(messages=HELLO, stream=True, **named)} == {"chatcmpl-of.body:1"}
    assert client.completions.create(prompt="a", **named).id == "cmpl-of.body:1"
    assert client.completions.create(prompt="a", extra_headers={"X-Request-Id": "my-id-43"}, **named).id == "cmpl-my-id-43"
    assert bundled.post("/v1/messages", {"messages": HELLO, "max_tokens": 1, "request_id": "m1"})[1]["id"] == "msg_m1"
    for wrong in "", "a b", "x" * 65:
        status, answer = bundled.post("/v1/chat/completions", {"messages": HELLO, "request_id": wrong})
        assert status == 400 and answer["error"]["param"] == "request_id" and "1 to 64 letters" in answer["error"]["message"]
    made = [bundled.raw("GET", "/health")[1].headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1] and len(made[0]) == 32
