# SPDX-License-Identifier: Apache-2.0
"""Structured output through the real openai package: what comes back is valid, whatever the model would have said."""
import json
import re

import jsonschema
import openai
import pytest

from servers import BUNDLED, Server

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "kind": {"enum": ["cat", "dog"]}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 3}},
    "required": ["name", "age", "kind", "tags"], "additionalProperties": False}
HELLO = [{"role": "user", "content": "Tell me about your pet."}]
TOOLS = [{"type": "function", "function": {"name": name, "description": about, "parameters": {
    "type": "object", "properties": {key: {"type": "string", "maxLength": 10}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": [key, "n"], "additionalProperties": False}}}
    for name, about, key in (("get_weather", "The weather of a city", "city"), ("play", "Play a song", "song"))]


def ask(client, messages=None, **more):
    more.setdefault("temperature", 1)
    more.setdefault("max_tokens", 200)
    more.setdefault("seed", 5)
    return client.chat.completions.create(model="quire-tiny", messages=messages or HELLO, **more)


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def test_json_schema(client):
    answer = ask(client, response_format=format_of(PERSON), n=4)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        assert list(json.loads(choice.message.content)) == list(PERSON["properties"]) # in the schema's order
    assert len({c.message.content for c in answer.choices}) > 1


def test_stream_equals_whole_and_again(client):
    whole = ask(client, response_format=format_of(PERSON)).choices[0].message.content
    chunks = list(ask(client, response_format=format_of(PERSON), stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    jsonschema.validate(json.loads(whole), PERSON)


def test_cut_answers(client):
    """max_tokens anywhere in an answer: its beginning, and the reason says so, streamed or not."""
    whole = ask(client, response_format=format_of(PERSON)).choices[0].message.content
    for n in range(1, 26, 4):
        cut = ask(client, response_format=format_of(PERSON), max_tokens=n).choices[0]
        chunks = [c.choices[0] for c in ask(client, response_format=format_of(PERSON), max_tokens=n, stream=True) if c.choices]
        assert cut.finish_reason == chunks[-1].finish_reason == "length"
        assert whole.startswith(cut.message.content) and "".join(c.delta.content or "" for c in chunks) == cut.message.content


def test_json_object(client):
    answer = ask(client, response_format={"type": "json_object"}, temperature=0, max_tokens=100)
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("fields, pattern", [
    ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
    ({"structured_outputs": {"regex": "é+x?"}, "max_tokens": 3}, "é+x?"),
    ({"guided_choice": ["yes", "no", "perhaps"]}, "yes|no|perhaps"),
    ({"structured_outputs": {"choice": ["one two", "three"]}}, "one two|three"),
    ({"guided_grammar": 'root ::= "<" [0-9]{2,4} ">"'}, "<[0-9]{2,4}>"),
    ({"guided_grammar": 'start: A "-" A\nA: /[xyz]{2}/'}, "[xyz]{2}-[xyz]{2}"),
    ({"guided_json": {"const": {"a": [1, None]}}}, r'\{\s*"a"\s*:\s*\[\s*1\s*,\s*null\s*\]\s*\}'),
    ({"structured_outputs": {"json": json.dumps({"type": "boolean"}), "disable_any_whitespace": True}}, "true|false"),
    ({"guided_json": {"const": [1, 2]}, "guided_whitespace_pattern": "\n?"}, r"\[\n?1\n?,\n?2\n?\]"),
    ({"structured_outputs": {"json": {"const": [1, 2]}, "whitespace_pattern": " "}}, r"\[ 1 , 2 \]|\[ 1, 2 \]"),
    ({"regex": "a{5}"}, "aaaaa"),
])
def test_guided(client, fields, pattern):
    limit = {"max_tokens": fields["max_tokens"]} if "max_tokens" in fields else {}
    body = {k: v for k, v in fields.items() if k != "max_tokens"}
    for seed in (1, 2):
        choice = ask(client, seed=seed, extra_body=body, **limit).choices[0]
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.message.content), choice.message.content
        else:
            assert limit


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_may_come(client, stream):
    """A grammar and a list of tokens that have no token in common are the request's fault, and it is told so."""
    with pytest.raises(openai.APIError) as error:
        answer = ask(client, extra_body={"guided_choice": ["yes", "no"], "allowed_token_ids": [0]}, stream=stream)
        list(answer)
    assert "no token may come next" in error.value.message and "allowed_token_ids" in error.value.message, error.value.message
    assert "yes" in ask(client, extra_body={"guided_choice": ["yes"]}).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields, words", [
    ({"response_format": format_of({"properties": {"x": {"type": "array", "uniqueItems": True}}})}, ["#/properties/x/uniqueItems"]),
    ({"extra_body": {"guided_regex": r"(a)\1"}}, ["back references"]),
    ({"extra_body": {"guided_grammar": "root ::= missing"}}, ["missing"]),
    ({"extra_body": {"guided_json": "{"}}, ["not JSON"]),
    ({"extra_body": {"guided_json": "{}", "guided_whitespace_pattern": "[ a]*"}}, ["white space pattern"]),
])
def test_what_cannot_be_compiled_is_a_400(client, stream, fields, words):
    with pytest.raises(openai.BadRequestError) as caught:
        list(ask(client, stream=stream, **fields))
    for word in words:
        assert word in str(caught.value)


def test_ends_of_answers(client):
    """min_tokens and ignore_eos do not bring an answer beyond its grammar."""
    for more in ({"min_tokens": 20}, {"ignore_eos": True}):
        answer = ask(client, max_tokens=24, extra_body={"guided_choice": ["yes"], **more})
        assert answer.choices[0].message.content == "yes"


def test_many_at_once_and_again(client):
    """The same request gives the same text beside others with and without grammars."""
    from concurrent.futures import ThreadPoolExecutor
    alone = [ask(client, seed=s, response_format=format_of(PERSON)).choices[0].message.content for s in range(4)]
    with ThreadPoolExecutor(8) as pool:
        grammars = [pool.submit(ask, client, seed=s, response_format=format_of(PERSON)) for s in range(4)]
        others = [pool.submit(ask, client, seed=s, max_tokens=20) for s in range(2)]
        regexes = [pool.submit(ask, client, seed=s, extra_body={"guided_regex": "[0-9]{4}"}) for s in range(2)]
        assert [g.result().choices[0].message.content for g in grammars] == alone
        assert all(o.result().choices[0].message.content for o in others)
        assert all(re.fullmatch("[0-9]{4}", r.result().choices[0].message.content) for r in regexes)


@pytest.mark.parametrize("config", [
    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    {"method": "draft_model", "model": str(BUNDLED), "num_speculative_tokens": 3}], ids=["ngram", "draft"])
def test_speculation_changes_nothing(client, start, config):
    """Guesses by n-grams or a draft model, and text that the grammar forces, are one and the same answer."""
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--speculative-config",
                   json.dumps(config))
    guessing = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    for seed in range(3):
        one, other = (ask(c, seed=seed, response_format=format_of(PERSON)).choices[0].message.content
                      for c in (client, guessing))
        assert one == other


def test_grammars_with_another_folders_tokenizer(start, tmp_path):
    """--tokenizer counts for the masks too: the model's own folder has none here."""
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(BUNDLED / file)
    server = start(tmp_path, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--tokenizer", BUNDLED)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    jsonschema.validate(json.loads(ask(client, response_format=format_of(PERSON)).choices[0].message.content), PERSON)


def check_calls(choice, names):
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    for call in choice.message.tool_calls:
        tool = next(t for t in TOOLS if t["function"]["name"] == call.function.name)
        assert call.function.name in names
        jsonschema.validate(json.loads(call.function.arguments), tool["function"]["parameters"])


def test_tool_choice_required(client):
    for seed in range(3):
        answer = ask(client, tools=TOOLS, tool_choice="required", seed=seed, parallel_tool_calls=False)
        check_calls(answer.choices[0], ["get_weather", "play"])
        assert len(answer.choices[0].message.tool_calls) == 1


@pytest.mark.parametrize("parser", ["qwen3_coder", "pythonic"])
def test_calls_are_made_in_the_parsers_form(start, parser):
    """Required and strict calls are grammars of the form that the parser reads; what has none is refused by its name."""
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--tool-call-parser", parser)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    for seed in range(2):
        choice = ask(client, tools=TOOLS, tool_choice="required", seed=seed, parallel_tool_calls=False).choices[0]
        check_calls(choice, ["get_weather", "play"])
        assert len(choice.message.tool_calls) == 1 and not choice.message.content
    bad = {"type": "object", "properties": {"song": {"type": "string", "pattern": "x"}}, "not": {}}
    with pytest.raises(openai.BadRequestError, match=f"parser {parser}"):
        ask(client, tools=[{"type": "function", "function": {"name": "play", "strict": True, "parameters": bad}}])


def test_cut_calls(client):
    """A call that max_tokens cuts is no finished call: "length" and the arguments so far, streamed or not."""
    more = {"tools": TOOLS, "tool_choice": "required"}
    whole = ask(client, **more).choices[0].message.tool_calls[0].function
    for n in (4, 12, 20, 28):
        cut = ask(client, max_tokens=n, **more).choices[0]
        if cut.finish_reason != "length":
            break
        chunks = [c.choices[0] for c in ask(client, max_tokens=n, stream=True, **more) if c.choices]
        calls = [call for c in chunks for call in c.delta.tool_calls or []]
        assert chunks[-1].finish_reason == "length"
        streamed = "".join(call.function.arguments or "" for call in calls if call.index == 0)
        assert whole.arguments.startswith(streamed)
        assert streamed == (cut.message.tool_calls[0].function.arguments if cut.message.tool_calls else "")


def test_one_call_without_a_grammar(client):
    """parallel_tool_calls: false shows the first call only, whatever the model writes."""
    lark = {"guided_grammar": 'root ::= call call\ncall ::= "<tool_call>{\\"name\\": \\"play\\", \\"arguments\\": {}}</tool_call>"'}
    both = ask(client, tools=TOOLS, extra_body=lark).choices[0].message
    assert len(both.tool_calls) == 2
    one = ask(client, tools=TOOLS, extra_body=lark, parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1 and not one.message.content and one.finish_reason == "tool_calls"
    deltas = [c.choices[0].delta for c in ask(client, tools=TOOLS, extra_body=lark, parallel_tool_calls=False, stream=True) if c.choices]
    assert {t.index for d in deltas for t in d.tool_calls or []} == {0}


def test_tool_choice_named(client):
    choice = {"type": "function", "function": {"name": "play"}}
    answer = ask(client, tools=TOOLS, tool_choice=choice)
    check_calls(answer.choices[0], ["play"])
    name, text = "", ""
    for chunk in ask(client, tools=TOOLS, tool_choice=choice, stream=True):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name += call.function.name or ""
            text += call.function.arguments or ""
    assert name == "play" and text == answer.choices[0].message.tool_calls[0].function.arguments


def test_strict_tools(client):
    tools = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    answer = ask(client, [{"role": "user", "content": "What is the weather in Oslo?"}], tools=tools, temperature=0)
    if answer.choices[0].message.tool_calls:
        check_calls(answer.choices[0], ["get_weather", "play"])
    else:
        assert answer.choices[0].message.content
