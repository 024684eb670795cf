# SPDX-License-Identifier: Apache-2.0
"""/v1/responses by the openai client: what it answers is what /v1/chat/completions answers, in items; a stream has the same items."""
import concurrent.futures
import json

import openai
import pytest
from openai.types import responses as types

from servers import BUNDLED, HANG_S

WHO = "Who are you?"
TOOL = {"type": "function", "name": "get_weather", "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CHAT_TOOL = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
WEATHER = "What is the weather in Oslo?"
THINK = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
         "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}")


def create(client, question=WHO, **more):
    return client.responses.create(model="quire-tiny", input=question, **{"temperature": 0, **more})


def chat(client, messages, **more):
    return client.chat.completions.create(model="quire-tiny", messages=messages, temperature=0, **more)


def valid(answer):
    """It has all members that the client's types have, of their types: the client itself takes anything."""
    type(answer).model_validate_json(answer.to_json())
    return answer


def stream(client, question=WHO, **more):
    """All events, checked one by one: numbers in order, places that exist, pieces that add up to the item; the last response."""
    events = list(create(client, question, stream=True, **more))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert all(e.response.status == "in_progress" and not e.response.output and e.response.usage is None for e in events[:2])
    items, text = [], ""
    for e in events[2:-1]:
        if e.type == "response.output_item.added":
            assert e.output_index == len(items) and e.item.status == "in_progress"
            items.append(e.item)
            text = ""
            continue
        assert e.output_index == len(items) - 1  # one item at a time
        if e.type == "response.output_item.done":
            assert e.item.id == items[-1].id and e.item.status in ("completed", "incomplete")
            items[-1] = e.item
            assert text == (e.item.arguments if e.item.type == "function_call" else e.item.content[0].text)
            continue
        assert e.item_id == items[-1].id
        if e.type.endswith(".delta"):
            text += e.delta
        elif e.type == "response.function_call_arguments.done":
            assert (e.arguments, e.name) == (text, items[-1].name)
        elif e.type.endswith("_text.done"):
            assert e.text == text
        else:
            assert e.type in ("response.content_part.added", "response.content_part.done") and e.part.text in ("", text)
    last = events[-1].response
    assert events[-1].type == f"response.{last.status}" and last.output == items
    for e in events:
        valid(e)
    return last


def same(a, b):
    """Two responses to the same request: only ids and times differ."""
    a, b = (r.model_dump() for r in (a, b))
    for r in (a, b):
        for key in ("id", "created_at", "completed_at"):
            r.pop(key)
        r["usage"].pop("input_tokens_details")  # the second may find the prompt in the cache
        for item in r["output"]:
            item["id"] = item.get("call_id", "call_")[:5]
            item.pop("call_id", None)
    return a == b


def test_a_text(client):
    answer = valid(create(client))
    assert answer.object == "response" and answer.status == "completed" and answer.error is None and answer.incomplete_details is None
    assert [item.type for item in answer.output] == ["message"] and answer.output[0].status == "completed"
    plain = chat(client, [{"role": "user", "content": WHO}])
    assert answer.output_text == plain.choices[0].message.content and answer.model == "quire-tiny"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (plain.usage.prompt_tokens, plain.usage.completion_tokens)
    assert answer.usage.total_tokens == plain.usage.total_tokens and answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.created_at <= answer.completed_at and answer.temperature == 0 and answer.text.format.type == "text"
    assert same(stream(client), answer)


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_that_is_cut(client, streams):
    answer = (stream if streams else create)(client, max_output_tokens=5)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens" and answer.max_output_tokens == 5
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 5 and answer.completed_at is None


def test_a_conversation(client):
    """Instructions, earlier turns as items and as messages: the prompt is the chat's."""
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": WHO}]
    plain = chat(client, [{"role": "system", "content": "Be brief."}, *turns])
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
             {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{"type": "output_text", "text": "Hello!", "annotations": []}]}, turns[2]]
    for question in (turns, items):
        answer = create(client, question, instructions="Be brief.")
        assert answer.output_text == plain.choices[0].message.content and answer.usage.input_tokens == plain.usage.prompt_tokens
        assert answer.instructions == "Be brief."


def test_calls(client):
    answer = valid(create(client, WEATHER, tools=[TOOL]))
    [call] = answer.output
    assert (call.type, call.name, json.loads(call.arguments), call.status) == ("function_call", "get_weather", {"city": "Oslo"}, "completed")
    assert answer.status == "completed" and answer.tools[0].name == "get_weather" and same(stream(client, WEATHER, tools=[TOOL]), answer)
    history = [{"role": "user", "content": WEATHER}, *answer.output,
               {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 degrees"}]
    told = create(client, history, tools=[TOOL])
    messages = [{"role": "user", "content": WEATHER},
                {"role": "assistant", "content": "", "tool_calls": [{"id": call.call_id, "type": "function", "function": {
                    "name": call.name, "arguments": call.arguments}}]},
                {"role": "tool", "tool_call_id": call.call_id, "content": "sunny, 21 degrees"}]
    plain = chat(client, messages, tools=[CHAT_TOOL])
    assert told.output_text == plain.choices[0].message.content and "sunny" in told.output_text
    assert told.usage.input_tokens == plain.usage.prompt_tokens
    parts = [*history[:2], {**history[2], "output": [{"type": "input_text", "text": "sunny, 21 degrees"}]}]
    assert create(client, parts, tools=[TOOL]).output_text == told.output_text


def test_choices_of_tools(client):
    assert create(client, WEATHER, tools=[TOOL], tool_choice="none").output[0].type == "message"
    for choice in ("required", {"type": "function", "name": "get_weather"},
                   {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}):
        answer = create(client, WHO, tools=[TOOL], tool_choice=choice)
        assert [item.type for item in answer.output] == ["function_call"] and answer.output[0].name == "get_weather"
        assert same(stream(client, WHO, tools=[TOOL], tool_choice=choice), answer)


def test_several_calls(client):
    """A model that is made to call twice; the calls of a turn come back in one message, whose results follow."""
    calls = "\n".join('<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>' % city for city in ("Oslo", "Rome"))
    more = {"tools": [TOOL], "extra_body": {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": calls}}}}
    answer = create(client, WEATHER, **more)
    assert [json.loads(item.arguments)["city"] for item in answer.output] == ["Oslo", "Rome"]
    assert len({item.call_id for item in answer.output}) == 2 and same(stream(client, WEATHER, **more), answer)
    outputs = [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in answer.output]
    calls = [{"id": i.call_id, "type": "function", "function": {"name": i.name, "arguments": i.arguments}} for i in answer.output]
    question = {"role": "user", "content": WEATHER}
    messages = [question, {"role": "assistant", "content": "", "tool_calls": calls},
                *({"role": "tool", "tool_call_id": o["call_id"], "content": o["output"]} for o in outputs)]
    told = create(client, [question, *answer.output, *outputs], tools=[TOOL])
    assert told.usage.input_tokens == chat(client, messages, tools=[CHAT_TOOL]).usage.prompt_tokens


def test_text_behind_a_call(start):
    """Also where a step has the end of the call and the text: the call keeps its arguments, and both are complete."""
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--speculative-config",
                   json.dumps({"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 1}))
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\nThat is all.'
    more = {"tools": [TOOL], "extra_body": {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": text}}}}
    for answer in (stream(client, f"{WEATHER} {text} {text}", **more), create(client, f"{WEATHER} {text} {text}", **more)):
        items = {item.type: item for item in answer.output}
        assert set(items) == {"function_call", "message"} and len(answer.output) == 2
        assert json.loads(items["function_call"].arguments) == {"city": "Oslo"} and "all." in items["message"].content[0].text
        assert {item.status for item in answer.output} == {"completed"}


def test_structured_output(client):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    answer = create(client, text=form)
    assert set(json.loads(answer.output_text)) == {"name"} and answer.text.format.name == "person"
    assert same(stream(client, text=form), answer)
    plain = chat(client, [{"role": "user", "content": WHO}], response_format={"type": "json_object"}, max_tokens=40)
    assert create(client, text={"format": {"type": "json_object"}}, max_output_tokens=40).output_text == plain.choices[0].message.content


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs(client, streams):
    answer = (stream if streams else create)(client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = answer.output[0].content[0].logprobs
    plain = chat(client, [{"role": "user", "content": WHO}], logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [p.model_dump() for p in logprobs] == [p.model_dump() for p in plain] and len(plain) == answer.usage.output_tokens


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    from servers import Server
    path = tmp_path_factory.mktemp("template") / "think.jinja"
    path.write_text(THINK)
    server = Server(BUNDLED, "--chat-template", path, "--num-gpu-blocks-override", "256", "--served-model-name", "quire-tiny")
    yield openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    assert server.stop() == 0


def test_reasoning(thinking):
    more = {"max_output_tokens": 12, "extra_body": {"chat_template_kwargs": {"think": True}}}
    answer = create(thinking, **more)
    [item] = answer.output
    assert item.type == "reasoning" and item.content[0].text and item.status == "incomplete" and not answer.output_text
    assert answer.usage.output_tokens_details.reasoning_tokens == answer.usage.output_tokens == 12
    assert same(stream(thinking, **more), answer)


def test_reasoning_comes_back(thinking):
    """An item of reasoning and the text behind it are one message; an item without its text is none."""
    def n_token(*items):
        return create(thinking, [{"role": "user", "content": "Hello"}, *items, {"role": "user", "content": WHO}],
                      max_output_tokens=1).usage.input_tokens
    text = {"role": "assistant", "content": "Hello!"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "They greet."}]}
    brief = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}]}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"}
    plain = thinking.chat.completions.create(model="quire-tiny", max_tokens=1, messages=[
        {"role": "user", "content": "Hello"}, {**text, "reasoning_content": "They greet."}, {"role": "user", "content": WHO}])
    assert n_token(thought, text) == n_token(brief, text) == plain.usage.prompt_tokens > n_token(text) == n_token(sealed, text)


REFUSED = [
    ({}, "input", "expected a string or an array of items, got nothing"),
    ({"input": ["a"]}, "input[0]", "expected an object, got a string"),
    ({"input": [{"role": "user", "content": "a"}, {"type": "web_search_call"}]}, "input[1].type", "accepted are message, reasoning"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "send the item"),
    ({"input": [{"content": "a"}]}, "input[0].role", "expected a string, got nothing"),
    ({"input": [{"role": "user"}]}, "input[0].content", "expected a string or an array of parts"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments", "expected a string"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": 1}]}, "input[0].output", "got an integer"),
    ({"input": [{"type": "reasoning", "content": [{"type": "reasoning_text"}]}]}, "input[0].content", "parts with a text"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "input", "input_image"),
    ({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}],
      "instructions": "b"}, "input", "input: entry 1: content of type"),
    ({"input": [{"type": "reasoning", "content": [{"text": "a"}]}, {"role": "assistant", "content": [{"type": "input_image"}]}],
      "instructions": "b"}, "input", "input: entry 1: content of type"),
    ({"input": [{"role": "wizard", "content": "a"}], "instructions": "b"}, "input", "input: entry 0: unknown role"),
    ({"input": WHO, "instructions": 1}, "instructions", "expected a string, got an integer"),
    ({"input": WHO, "tools": [{"type": "web_search"}]}, "tools[0].type", "no tool runs here"),
    ({"input": WHO, "tools": [CHAT_TOOL]}, "tools", "name"),
    ({"input": WHO, "tool_choice": {"type": "web_search"}}, "tool_choice", "tool_choice"),
    ({"input": WHO, "text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "schema"),
    ({"input": WHO, "text": {"format": {"type": "xml"}}}, "text.format", "xml"),
    ({"input": WHO, "reasoning": {"effort": "wild"}}, "reasoning.effort", "wild"),
    ({"input": WHO, "reasoning": "high"}, "reasoning", "expected an object"),
    ({"input": WHO, "include": ["everything"]}, "include[0]", "everything"),
    ({"input": WHO, "top_logprobs": 3}, "top_logprobs", "requires"),
    ({"input": WHO, "previous_response_id": "resp_1"}, "previous_response_id", "responses are not kept"),
    ({"input": WHO, "conversation": "conv_1"}, "conversation", "conversations are not kept"),
    ({"input": WHO, "background": True}, "background", "responses are not kept"),
    ({"input": WHO, "prompt": {"id": "pmpt_1"}}, "prompt", "prompts are not kept"),
    ({"input": WHO, "truncation": "auto"}, "truncation", "disabled"),
    ({"input": WHO, "messages": []}, "messages", "use input"),
    ({"input": WHO, "max_tokens": 5}, "max_tokens", "use max_output_tokens"),
    ({"input": WHO, "n": 2}, "n", "does not accept"),
    ({"input": WHO, "max_output_tokens": 0}, "max_output_tokens", "0 is out of range"),
    ({"input": WHO, "max_output_tokens": 100000}, "input", "maximum context length"),
    ({"input": WHO, "temperature": 9}, "temperature", "out of range"),
    ({"input": WHO, "model": "another"}, "model", "another"),
]


@pytest.mark.parametrize("body, param, said", REFUSED, ids=[f"{i}-{row[1]}" for i, row in enumerate(REFUSED)])
def test_refused(bundled, body, param, said):
    status, answer = bundled.post("/v1/responses", body)
    assert status in (400, 404), answer
    assert answer["error"]["param"] == param and said in answer["error"]["message"], answer
    assert answer["error"]["message"].startswith(("input", "This model", "The model", "the model", param.split("[")[0])), answer


def test_responses_are_not_stored(client, bundled):
    """What would read, delete or cancel one is told so, in OpenAI's form; other paths there are unknown."""
    made = create(client, max_output_tokens=1)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel,
                lambda id: client.responses.retrieve(id, stream=True), lambda id: list(client.responses.input_items.list(id))):
        with pytest.raises(openai.NotFoundError) as raised:
            ask(made.id)
        error = raised.value.body
        assert error["param"] == "response_id" and error["code"] == "not_found" and made.id in error["message"]
        assert "responses are not stored" in error["message"] and "previous_response_id is not available" in error["message"]
    with pytest.raises(openai.BadRequestError, match="not kept"):
        create(client, previous_response_id=made.id)
    for method, path in (("POST", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/other"), ("POST", "/v1/responses//cancel")):
        connection, answer = bundled.raw(method, path, {})
        assert answer.status in (404, 405) and b"not stored" not in answer.read()
        connection.close()
    assert client.responses.input_tokens.count(model="quire-tiny", input=WHO).input_tokens > 0


def test_unknown_members_are_reported(bundled):
    body = {"input": WHO, "max_output_tokens": 5, "text": {"fromat": {}}, "reasoning": {"efort": "low"}, "tools": [{**TOOL, "strickt": True}], "foo": 1}
    connection, answer = bundled.raw("POST", "/v1/responses", body)
    assert answer.status == 200
    for name in ("text.fromat", "reasoning.efort", "tools.strickt", "foo"):
        assert name in answer.headers["X-Quire-Warning"]
    connection.close()


def test_without_effect(client):
    """What needs a store, or is OpenAI's own, and means nothing here."""
    answer = create(client, store=True, metadata={"a": "b"}, background=False, service_tier="auto", prompt_cache_key="k", max_tool_calls=3,
                    truncation="disabled", safety_identifier="s", include=["reasoning.encrypted_content"], extra_body={"previous_response_id": None})
    assert answer.status == "completed" and answer.metadata == {"a": "b"} and answer.model_extra["store"] is False


@pytest.mark.parametrize("streams", [False, True])
def test_aborted(start, streams):
    """By an administrator's pause: a response that failed, with what there was."""
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=HANG_S)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream if streams else create, client, max_output_tokens=1900, extra_body={"ignore_eos": True})
        while server.metric("quire:engine_generation_tokens_total") < 1:
            assert not asked.done()
        assert server.post("/pause?mode=abort", {})[0] == 200
        answer = valid(asked.result(HANG_S))
    assert answer.status == "failed" and answer.error.code == "server_error" and "aborted" in answer.error.message
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens < 1900
