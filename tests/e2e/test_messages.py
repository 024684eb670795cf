# SPDX-License-Identifier: Apache-2.0
"""Anthropic's /v1/messages by the anthropic client: what it answers is what /v1/chat/completions answers, in blocks of content; a
stream has the same blocks."""
import concurrent.futures
import json

import anthropic
import openai
import pytest

from servers import BUNDLED, HANG_S
from test_responses import THINK, WEATHER, WHO

TOOL = {"name": "get_weather", "description": "the weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CHAT_TOOL = {"type": "function", "function": {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["input_schema"]}}


def client_of(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def messages(bundled):
    return client_of(bundled)


def user(content):
    return {"role": "user", "content": content}


def asked(question, more):
    """The client knows no temperature any more; older ones, and servers, do."""
    return {"model": "quire-tiny", "messages": [user(question)] if isinstance(question, str) else question, "max_tokens": 200, **more,
            "extra_body": {"temperature": 0, **more.get("extra_body", {})}}


def create(messages, question=WHO, **more):
    return messages.messages.create(**asked(question, more))


def chat(client, turns, **more):
    return client.chat.completions.create(model="quire-tiny", messages=turns, temperature=0, max_tokens=200, **more)


def valid(answer):
    """It has all members that the client's types have, of their types: the client itself takes anything."""
    type(answer).model_validate_json(answer.to_json())
    return answer


def stream(messages, question=WHO, **more):
    """All events, checked one by one; the message that the client adds up from them."""
    blocks, is_open, last = [], False, None
    for i, e in enumerate(messages.messages.create(stream=True, **asked(question, more))):
        valid(e)
        assert (i == 0) == (e.type == "message_start") and last is None
        if e.type == "message_start":
            assert not e.message.content and e.message.stop_reason is None and e.message.usage.output_tokens == 0
        elif e.type == "content_block_start":
            assert not is_open and e.index == len(blocks)
            is_open = True
            blocks.append(e.content_block)
        elif e.type in ("content_block_delta", "content_block_stop"):
            assert is_open and e.index == len(blocks) - 1
            is_open = e.type == "content_block_delta"
        elif e.type == "message_delta":
            assert not is_open and e.delta.stop_reason
        else:
            last = e
    assert last.type == "message_stop"
    with messages.messages.stream(**asked(question, more)) as events:
        return events.get_final_message()


def same(a, b):
    """Two answers to the same request: only ids, and what was in the cache, differ."""
    a, b = (m.model_dump(exclude={"id"}, exclude_none=True) for m in (a, b))
    for m in (a, b):
        usage = m["usage"]
        m["usage"] = (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"])
        for block in m["content"]:
            for key in ("id", "signature", "parsed_output"):
                block.pop(key, None)
    return a == b


def n_input(answer):
    return answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_a_text(messages, client):
    answer = valid(create(messages))
    plain = chat(client, [user(WHO)])
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text == plain.choices[0].message.content
    assert (answer.type, answer.role, answer.model, answer.stop_reason, answer.stop_sequence) == (
        "message", "assistant", "quire-tiny", "end_turn", None)
    assert n_input(answer) == plain.usage.prompt_tokens and answer.usage.output_tokens == plain.usage.completion_tokens
    assert same(stream(messages), answer)


@pytest.mark.parametrize("streams", [False, True])
def test_ends(messages, streams):
    ask = stream if streams else create
    answer = ask(messages, max_tokens=5)
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 5
    answer = ask(messages, stop_sequences=["zzz", "model"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "model") and answer.content[0].text == "I am the small "


def test_a_conversation(messages, client):
    """A system prompt, earlier turns as texts and as blocks: the prompt is the chat's."""
    turns = [user("Hello"), {"role": "assistant", "content": "Hello!"}, user(WHO)]
    plain = chat(client, [{"role": "system", "content": "Be brief."}, *turns])
    blocks = [{**m, "content": [{"type": "text", "text": m["content"], "cache_control": {"type": "ephemeral"}}]} for m in turns]
    for question, system in ((turns, "Be brief."), (blocks, [{"type": "text", "text": "Be brief."}])):
        answer = create(messages, question, system=system)
        assert answer.content[0].text == plain.choices[0].message.content and n_input(answer) == plain.usage.prompt_tokens


def test_the_answer_goes_on_with_the_last_message(messages):
    answer = create(messages, [user(WHO), {"role": "assistant", "content": "I am the small"}])
    assert "I am the small" + answer.content[0].text == create(messages).content[0].text


def test_calls(messages, client):
    answer = valid(create(messages, WEATHER, tools=[TOOL]))
    [call] = answer.content
    assert (call.type, call.name, call.input, answer.stop_reason) == ("tool_use", "get_weather", {"city": "Oslo"}, "tool_use")
    assert same(stream(messages, WEATHER, tools=[TOOL]), answer)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 21 degrees"}
    use = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
    told = create(messages, [user(WEATHER), use, user([result])], tools=[TOOL])
    plain = chat(client, [user(WEATHER), {"role": "assistant", "content": "", "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.input)}}]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}], tools=[CHAT_TOOL])
    assert told.content[0].text == plain.choices[0].message.content and "sunny" in told.content[0].text
    assert n_input(told) == plain.usage.prompt_tokens
    parts = {**result, "content": [{"type": "text", "text": "sunny, 21 degrees"}]}
    assert create(messages, [user(WEATHER), use, user([parts])], tools=[TOOL]).content[0].text == told.content[0].text
    for is_error in (True, False, None):  # no template has a place for it
        assert n_input(create(messages, [user(WEATHER), use, user([{**result, "is_error": is_error}])], tools=[TOOL])) == n_input(told)
    more = create(messages, [user(WEATHER), use, user([result, {"type": "text", "text": "Thank you."}])], tools=[TOOL])
    assert n_input(more) > n_input(told)  # a message of the tool, and one of the user


def test_choices_of_tools(messages):
    assert create(messages, WEATHER, tools=[TOOL], tool_choice={"type": "none"}).content[0].type == "text"
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "any", "disable_parallel_tool_use": True}):
        answer = create(messages, WHO, tools=[TOOL], tool_choice=choice)
        assert [block.type for block in answer.content] == ["tool_use"] and answer.stop_reason == "tool_use"
        assert same(stream(messages, WHO, tools=[TOOL], tool_choice=choice), answer)


def test_structured_output(messages):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"], "additionalProperties": False}
    answer = create(messages, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert set(json.loads(answer.content[0].text)) == {"name"}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    from servers import Server
    path = tmp_path_factory.mktemp("template") / "think.jinja"
    path.write_text(THINK)
    server = Server(BUNDLED, "--chat-template", path, "--num-gpu-blocks-override", "256", "--served-model-name", "quire-tiny")
    yield server
    assert server.stop() == 0


def test_thinking(thinking):
    messages = client_of(thinking)
    more = {"max_tokens": 12, "extra_body": {"chat_template_kwargs": {"think": True}}}
    answer = valid(create(messages, **more))
    [block] = answer.content
    assert block.type == "thinking" and block.thinking and block.signature and answer.stop_reason == "max_tokens"
    assert same(stream(messages, **more), answer)
    past = {"role": "assistant", "content": [block.model_dump(), {"type": "redacted_thinking", "data": "AAAA"}, {"type": "text", "text": "Hello!"}]}
    told = create(messages, [user("Hello"), past, user(WHO)], max_tokens=1)
    plain = openai.OpenAI(base_url=thinking.url + "/v1", api_key="none").chat.completions.create(model="quire-tiny", max_tokens=1, messages=[
        user("Hello"), {"role": "assistant", "content": "Hello!", "reasoning_content": block.thinking}, user(WHO)])
    assert n_input(told) == plain.usage.prompt_tokens


def test_counts_of_tokens(messages, client):
    """Of both dialects, without an answer."""
    more = {"system": "Be brief.", "tools": [TOOL]}
    counted = valid(messages.messages.count_tokens(model="quire-tiny", messages=[user(WEATHER)], **more))
    assert counted.input_tokens == n_input(create(messages, WEATHER, max_tokens=1, **more))
    tool = {"type": "function", "name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["input_schema"]}
    other = valid(client.responses.input_tokens.count(model="quire-tiny", input=WEATHER, instructions="Be brief.", tools=[tool]))
    assert other.input_tokens == counted.input_tokens and other.object == "response.input_tokens"


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
REFUSED = [
    ({}, "messages: expected an array, got nothing"),
    ({"messages": ["a"]}, "messages.0: expected an object, got a string"),
    ({"messages": [{"content": "a"}]}, "messages.0.role: expected a string, got nothing"),
    ({"messages": [user(3)]}, "messages.0.content: expected a string or an array of blocks, got an integer"),
    ({"messages": [user("a"), user([{"type": "tool_result"}])]}, "messages.1.content: tool_use_id: expected a string"),
    ({"messages": [user([{"type": "tool_result", "tool_use_id": "a", "content": 1}])]}, "expected a string or an array of blocks"),
    ({"messages": [user([{"type": "tool_result", "tool_use_id": "a", "is_error": "yes"}])]}, "is_error of a tool_result: expected a boolean"),
    ({"messages": [user("a"), user([IMAGE])], "system": "b"}, "messages: entry 1: content of type \"image\""),
    ({"messages": [user("a"), user([{"type": "tool_result", "tool_use_id": "a"}, IMAGE])]}, "messages: entry 1: content of type \"image\""),
    ({"messages": [user("a")], "system": [IMAGE]}, "system: content of type \"image\""),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "{}"}]}]}, "expected an object"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "b", "input": {}}]}]}, "id and name of a tool_use"),
    ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]}, "thinking: expected a string, got nothing"),
    ({"messages": [user([{"type": "image", "source": {"type": "url", "url": "http://x"}}])]}, "image"),
    ({"system": 1}, "system: expected a string or an array of blocks, got an integer"),
    ({"tools": {}}, "tools: expected an array, got an object"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 'tools.0.type: "web_search_20250305" is not supported'),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice: accepted are"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: expected"),
    ({"output_config": {"effort": "wild"}}, "output_config.effort: unknown value"),
    ({"output_config": "high"}, "output_config: expected an object"),
    ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers: not supported: no tool runs here"),
    ({"max_tokens": 0}, "max_tokens: 0 is out of range"),
    ({"max_tokens": 100000}, "maximum context length"),
    ({"stop_sequences": 3}, "stop_sequences: "),
    ({"stop": ["a"]}, "stop: this endpoint does not accept this field; use stop_sequences"),
    ({"n": 2}, "n: this endpoint does not accept this field"),
    ({"temperature": 9}, "temperature: 9 is out of range"),
    ({"thinking": {"type": "perhaps"}}, "thinking: expected"),
]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("more, said", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(bundled, more, said, path):
    body = {"model": "quire-tiny", "max_tokens": 5, **({"messages": [user(WHO)]} if more and "messages" not in more else {}), **more}
    status, answer = bundled.post(path, body)
    if path.endswith("count_tokens") and said in ("maximum context length", "max_tokens: 0 is out of range", "stop_sequences: ",
                                                  "temperature: 9 is out of range"):
        assert status == 200 and answer["input_tokens"] > 0  # what follows the prompt does not matter
        return
    assert status == 400 and set(answer) == {"type", "error"} and answer["type"] == "error", answer
    assert answer["error"]["type"] == "invalid_request_error" and said in answer["error"]["message"], answer


def test_unknown_members_are_reported(bundled):
    body = {"messages": [user(WHO)], "max_tokens": 5, "output_config": {"efort": "low"}, "tools": [{**TOOL, "strickt": True}],
            "tool_choice": {"type": "auto", "paralel": True}, "foo": 1}
    connection, answer = bundled.raw("POST", "/v1/messages", body)
    assert answer.status == 200
    for name in ("output_config.efort", "tools.strickt", "tool_choice.paralel", "foo"):
        assert name in answer.headers["X-Quire-Warning"]
    connection.close()


def test_errors_that_the_client_knows(messages, start):
    with pytest.raises(anthropic.NotFoundError) as raised:
        messages.messages.create(model="another", max_tokens=5, messages=[user(WHO)])
    assert raised.value.body["error"]["type"] == "not_found_error"
    server = start(BUNDLED, "--api-key", "secret", "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "128")
    with pytest.raises(anthropic.AuthenticationError):
        create(client_of(server))
    assert create(anthropic.Anthropic(base_url=server.url, api_key="secret")).content  # sent as X-Api-Key


@pytest.mark.parametrize("streams", [False, True])
def test_aborted(start, streams):
    """By an administrator's pause: an error, of the stream too."""
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream if streams else create, client_of(server), max_tokens=1900, extra_body={"ignore_eos": True})
        while server.metric("quire:engine_generation_tokens_total") < 1:
            assert not asked.done()
        assert server.post("/pause?mode=abort", {})[0] == 200
        with pytest.raises(anthropic.APIStatusError) as raised:
            asked.result(HANG_S)
    assert "aborted" in str(raised.value) and raised.value.body["error"]["type"] == "overloaded_error"
