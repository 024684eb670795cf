# SPDX-License-Identifier: Apache-2.0
"""The events of streams of /v1/responses and /v1/messages, by their order and by what the official clients' stream helpers make of them:
an item that begins ends, also one that turns out to be no call, or that is cut."""
import anthropic
import openai
import pytest

import test_messages
import test_responses
from servers import BUNDLED, Server
from test_responses import WEATHER, WHO

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
LONG = CALL.replace("Oslo", "Oslo, Bergen, Trondheim, Stavanger, Drammen and Fredrikstad")  # a step has not all of it
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"]]]</tool_call> and more'
THOUGHT = "<think>\nThey greet.\n</think>\n\n"
# What the model writes, what else is asked for, the items with their status, and why the message ends.
CASES = {
    "text": ("Hello.", {}, ["message completed"], "end_turn"),
    "reasoning and text": (THOUGHT + "Hello.", {}, ["reasoning completed", "message completed"], "end_turn"),
    "reasoning that is cut": (THOUGHT + "Hello.", {"max_tokens": 12}, ["reasoning incomplete"], "max_tokens"),
    "a call": (CALL, {}, ["function_call completed"], "tool_use"),
    "several calls": (CALL + "\n" + CALL, {}, ["function_call completed"] * 2, "tool_use"),
    "all": (f"{THOUGHT}Hello. {CALL}\n{CALL} Bye.", {},
            ["reasoning completed", "message completed", "function_call completed", "function_call completed", "message completed"], "tool_use"),
    "a call that is none": (BROKEN, {}, ["function_call incomplete", "message completed"], "end_turn"),
    "a call behind one that is none": (BROKEN + CALL, {}, ["function_call incomplete", "message completed", "function_call completed"], "tool_use"),
    "a call that is none and was not announced": ("<tool_call>\nWhat?\n</tool_call> Hello", {}, ["message completed"], "end_turn"),
    "a call that the model does not close": (CALL[:-len("}}\n</tool_call>")], {}, ["function_call completed"], "tool_use"),
    "a call that is cut": (LONG, {"max_tokens": 30}, ["function_call incomplete"], "max_tokens"),
    "a second call that is cut": (CALL + "\n" + LONG, {"max_tokens": 56}, ["function_call completed", "function_call incomplete"], "max_tokens"),
    "a call that is cut before it is announced": (CALL, {"max_tokens": 18}, ["message incomplete"], "max_tokens"),
    "a stop string in a text": ("Hello. Bye.", {"stop": "By"}, ["message completed"], "stop_sequence"),
    "a stop string in a call": (CALL, {"stop": "Os"}, ["function_call incomplete"], "stop_sequence"),
    "a stop string behind a call": (CALL + " Well. Bye", {"stop": "By"}, ["function_call completed", "message completed"], "tool_use"),
}


@pytest.fixture(scope="module")
def server():
    server = Server(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--reasoning-parser", "qwen3")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def written(text):
    return {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": text}}}


def content(item):
    return item.arguments if item.type == "function_call" else item.content[0].text


@pytest.mark.parametrize("case", CASES)
def test_events_of_responses(client, case):
    text, asked, items, _ = CASES[case]
    more = {"tools": [test_responses.TOOL], "include": ["message.output_text.logprobs"],
            "extra_body": {**written(text), **({"stop": [asked["stop"]]} if "stop" in asked else {})}}
    if "max_tokens" in asked:
        more["max_output_tokens"] = asked["max_tokens"]
    last = test_responses.stream(client, WEATHER, **more)
    assert [f"{item.type} {item.status}" for item in last.output] == items
    assert last.status == ("incomplete" if "max_tokens" in asked else "completed")
    with client.responses.stream(model="quire-tiny", input=WEATHER, temperature=0, **more) as events:
        helped = list(events)
    assert helped[-1].type == f"response.{last.status}"
    assert [content(item) for item in helped[-1].response.output] == [content(item) for item in last.output]
    for answer in (last, test_responses.create(client, WEATHER, **more)):
        for item in answer.output:  # a text has the logprobs of its own tokens; the last text those of the end too
            if item.type == "message":
                spelt = "".join(p.token for p in item.content[0].logprobs)
                assert spelt.startswith(item.content[0].text) and (spelt == item.content[0].text or item is answer.output[-1])


@pytest.mark.parametrize("case", CASES)
def test_events_of_messages(server, case):
    text, asked, items, reason = CASES[case]
    more = {"tools": [test_messages.TOOL], "extra_body": written(text)}
    if "max_tokens" in asked:
        more["max_tokens"] = asked["max_tokens"]
    if "stop" in asked:
        more["stop_sequences"] = [asked["stop"]]
    answer = test_messages.stream(test_messages.client_of(server), WEATHER, **more)
    names = {"message": "text", "reasoning": "thinking", "function_call": "tool_use"}
    assert [block.type for block in answer.content] == [names[item.split()[0]] for item in items]
    assert answer.stop_reason == reason and answer.stop_sequence == (asked["stop"] if reason == "stop_sequence" else None)


@pytest.mark.parametrize("path, field, more", [("/v1/responses", "input", {}), ("/v1/messages", "messages", {"max_tokens": 1900})])
def test_a_client_that_leaves(server, path, field, more):
    body = {field: [{"role": "user", "content": WHO}], "stream": True, "ignore_eos": True, **more}
    before = server.metric("vllm:request_success_total", finished_reason="abort")
    connection, answer = server.raw("POST", path, body)
    while b"delta" not in answer.readline():
        pass
    assert server.metric("vllm:num_requests_running") == 1
    connection.close()
    answer.close()
    server.wait_metric("vllm:num_requests_running", 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == before + 1
