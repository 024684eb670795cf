# SPDX-License-Identifier: Apache-2.0
"""Loops that people write with the openai package itself, and its helpers: parse, the events of stream, tools of pydantic models."""
import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
RESULT = {"city": "Oslo", "temperature": 21, "condition": "sunny"}
SENTENCE = "The city is Oslo, the temperature is 21 and the condition is sunny."


class Place(pydantic.BaseModel):
    """The place that is asked for"""
    city: str


class Report(pydantic.BaseModel):
    temperature: Literal[21, 7]
    unit: Literal["C", "F"] | None
    places: list[Literal["Oslo", "Rome"]] = pydantic.Field(min_length=1, max_length=2)


def tool(name="get_weather", description="The weather of a city"):
    return openai.pydantic_function_tool(Place, name=name, description=description)


def call_text(*calls):
    return "\n".join('<tool_call>\n{"name": "%s", "arguments": {"city": "%s"}}\n</tool_call>' % call for call in calls)


def written(*calls):
    """The answer is these calls: no choice of the model's."""
    return {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": call_text(*calls)}}}


def asked(**more):
    return {"model": "quire-tiny", "messages": ASK, "max_tokens": 200, "temperature": 0, **more}


def run_tools(client, tools, functions, turns=4, first=None):
    """All messages of a loop that goes on until an answer has no call; `first`: more fields of its first request."""
    messages = list(ASK)
    for turn in range(turns):
        choice = client.chat.completions.create(**asked(messages=messages, tools=tools, **(first or {} if turn == 0 else {}))).choices[0]
        messages.append(choice.message) # the package's object, as it is
        assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)
        if not choice.message.tool_calls:
            return messages
        for call in choice.message.tool_calls:
            function = functions.get(call.function.name, lambda **_: {"error": f"there is no function {call.function.name}"})
            try:
                result = function(**json.loads(call.function.arguments))
            except OSError as e:
                result = {"error": str(e)}
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    raise AssertionError(messages)


def test_loop(client):
    messages = run_tools(client, [tool()], {"get_weather": lambda city: {**RESULT, "city": city}})
    assert len(messages) == 4 and messages[-1].content == SENTENCE


def test_loop_two_calls(client):
    seen = []
    messages = run_tools(client, [tool()], {"get_weather": lambda city: seen.append(city) or {**RESULT, "city": city}},
                         first={"extra_body": written(("get_weather", "Oslo"), ("get_weather", "Rome"))})
    assert seen[:2] == ["Oslo", "Rome"]
    assert messages[1].content is None and len({call.id for call in messages[1].tool_calls}) == 2


def test_loop_unknown_tool_and_failure(client):
    """Neither a name that the loop does not know nor a function that fails ends the conversation."""
    def broken(city):
        raise OSError("the sensor is broken")
    named = {"type": "function", "function": {"name": "get_time"}}
    for functions in ({}, {"get_time": broken}):
        messages = run_tools(client, [tool(), tool("get_time", "The time in a city")], {"get_weather": lambda city: RESULT, **functions},
                             first={"tool_choice": named})
        assert messages[1].tool_calls[0].function.name == "get_time" and "error" in messages[2]["content"]
        assert messages[-1].content


def test_loop_async_stream(bundled):
    async def run():
        messages = list(ASK)
        async with openai.AsyncOpenAI(base_url=bundled.url + "/v1", api_key="none", max_retries=0) as client:
            for _ in range(3):
                calls, text, reason = {}, "", None
                async for chunk in await client.chat.completions.create(**asked(messages=messages, tools=[tool()], stream=True)):
                    delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason or reason
                    text += delta.content or ""
                    for piece in delta.tool_calls or []:
                        call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                        call["id"] += piece.id or ""
                        call["function"]["name"] += piece.function.name or ""
                        call["function"]["arguments"] += piece.function.arguments or ""
                if not calls:
                    assert reason == "stop"
                    return text
                assert reason == "tool_calls" and json.loads(calls[0]["function"]["arguments"]) == {"city": "Oslo"}
                messages.append({"role": "assistant", "content": text, "tool_calls": list(calls.values())})
                messages += [{"role": "tool", "tool_call_id": c["id"], "content": json.dumps(RESULT)} for c in calls.values()]
        raise AssertionError(messages)
    assert asyncio.run(run()) == SENTENCE


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(client, mode):
    """Of the tools only those that are allowed can be called, and what goes into the prompt is theirs alone."""
    tools = [tool(), tool("get_time", "The time in a city")]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    answer = client.chat.completions.with_raw_response.create(**asked(tools=tools, tool_choice=allowed, parallel_tool_calls=False))
    assert "x-quire-warning" not in answer.headers
    answer, alone = answer.parse(), client.chat.completions.create(**asked(tools=tools[1:], parallel_tool_calls=False))
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert all(call.function.name == "get_time" for call in answer.choices[0].message.tool_calls or [])
    if mode == "required":
        assert len(answer.choices[0].message.tool_calls) == 1


def test_parse(client):
    choice = client.chat.completions.parse(**asked(response_format=Report)).choices[0]
    assert isinstance(choice.message.parsed, Report) and choice.finish_reason == "stop"
    assert json.loads(choice.message.content) == choice.message.parsed.model_dump()
    call = client.chat.completions.parse(**asked(tools=[tool()])).choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments == Place(city="Oslo")
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked(response_format=Report, max_tokens=2))


def test_stream_events_of_tools(client):
    whole = client.chat.completions.create(**asked(tools=[tool()])).choices[0].message
    with client.chat.completions.stream(**asked(tools=[tool()], stream_options={"include_usage": True}, logprobs=True)) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    done, = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert "".join(e.arguments_delta for e in deltas) == done.arguments == whole.tool_calls[0].function.arguments
    assert len(deltas) > 1 and done.name == "get_weather" and done.parsed_arguments == Place(city="Oslo")
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].function.parsed_arguments == Place(city="Oslo")
    assert len(choice.logprobs.content) == final.usage.completion_tokens


def test_stream_events_of_two_calls(client):
    """An argument's events come under its own call's index, one call after the other."""
    with client.chat.completions.stream(**asked(tools=[tool(), tool("get_time", "The time in a city")],
                                                extra_body=written(("get_weather", "Oslo"), ("get_time", "Rome")))) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [(e.index, e.name, e.parsed_arguments.city) for e in done] == [(0, "get_weather", "Oslo"), (1, "get_time", "Rome")]
    assert [c.function.name for c in final.message.tool_calls] == ["get_weather", "get_time"] and final.finish_reason == "tool_calls"


def test_stream_events_of_a_type(client):
    with client.chat.completions.stream(**asked(response_format=Report)) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0].message
    deltas = [e.delta for e in events if e.type == "content.delta"]
    done, = [e for e in events if e.type == "content.done"]
    assert "".join(deltas) == done.content and len(deltas) > 1 and isinstance(done.parsed, Report) and done.parsed == final.parsed
