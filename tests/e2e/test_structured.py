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
    ({"guided_json": {"const": {"a": [1, None]}}}, r'\{\s*"a"\s*:\s*\[\s*1(\.0+)?\s*,\s*null\s*\]\s*\}'),
    ({"structured_outputs": {"json": json.dumps({"type": "boolean"}), "disable_any_whitespace": True}}, "true|false"),
    ({"guided_json": {"const": [True, "b"]}, "guided_whitespace_pattern": "\n?"}, r'\[\n?true\n?,\n?"b"\n?\]'),
    ({"structured_outputs": {"json": {"const": [True, "b"]}, "whitespace_pattern": " "}}, r'\[ true , "b" \]|\[ true, "b" \]'),
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
    assert "no token is allowed next" in error.value.message and "allowed_token_ids" in error.value.message, error.value.message
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
    """A call that max_tokens cuts is none: "length" and what came of it as content. A stream that has begun it by then says no
    more of it, neither as a call nor as content."""
    more = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = ask(client, **more).choices[0].message.tool_calls[0].function
    n_cut = 0
    for n in (4, 12, 20, 28):
        content, calls, reason = parts(client, False, HELLO, max_tokens=n, **more)
        streamed, begun, last = parts(client, True, HELLO, max_tokens=n, **more)
        if reason != "length" or calls: # whole by then, but for its closing tag
            assert reason != "length" or calls == begun == [(whole.name, whole.arguments)]
            break
        n_cut += bool(begun)
        assert last == "length" and streamed == ("" if begun else content) and not calls and content.startswith("<tool_call>"[:len(content)])
        assert all(name == whole.name and whole.arguments.startswith(args) for name, args in begun)
    assert n_cut


def written(text):
    """What the model has to write, so that the parser sees it."""
    return {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": text}}}


BEGIN = '<tool_call>\n{"name": "play", "arguments": '


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [BEGIN + '{"song": "Hey', BEGIN + '{"song": "Hey"\n"n": 1}}\n</tool_call>\nThere.',
                                  BEGIN + '{"song": Hey}}\n</tool_call>', "Well. " + BEGIN + '{"n": 1, '])
def test_a_broken_call_is_content(client, text, stream):
    content, calls, reason = parts(client, stream, HELLO, tools=TOOLS, extra_body=written(text))
    assert reason == "stop"
    if calls:  # its name was out, and no more: the call is not content as well
        assert stream and calls[0][0] == "play" and content == text.split("<tool_call>")[0] + text.partition("</tool_call>")[2]
    else:
        assert content == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text, arguments", [
    (BEGIN + '{"song": "Hey"}', {"song": "Hey"}), (BEGIN + '{"song": "Hey", "n": 1', {"song": "Hey", "n": 1}),
    (BEGIN + '{"song": "Hey"}\n</tool_call>', {"song": "Hey"}), (BEGIN + '{"song": ["Hey"\n</tool_call>', {"song": ["Hey"]})])
def test_missing_brackets_are_added(client, text, arguments, stream):
    content, calls, reason = parts(client, stream, HELLO, tools=TOOLS, extra_body=written(text))
    assert not content and reason == "tool_calls" and [(n, json.loads(a)) for n, a in calls] == [("play", arguments)]


def test_a_broken_call_beside_a_good_one(client):
    text = BEGIN + '{"n": 1}}\n</tool_call>\n' + BEGIN + '{"n": x}}\n</tool_call>'
    for stream in (False, True):
        content, calls, reason = parts(client, stream, HELLO, tools=TOOLS, extra_body=written(text))
        assert calls[0] == ("play", '{"n": 1}') and reason == "tool_calls" and content.strip() == BEGIN + '{"n": x}}\n</tool_call>'
        assert len(calls) == 1 or stream
    text = BEGIN + '{"n": x}}\n</tool_call>\n' + BEGIN + '{"n": 1}}\n</tool_call>'
    content, calls, reason = parts(client, False, HELLO, tools=TOOLS, parallel_tool_calls=False, extra_body=written(text))
    assert calls == [("play", '{"n": 1}')] and reason == "tool_calls" and '{"n": x}' in content


def test_one_call_without_a_grammar(client):
    """parallel_tool_calls: false shows the first call only, whatever the model writes."""
    text = '<tool_call>{"name": "play", "arguments": {}}</tool_call>' * 2
    tags = {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": text}}}
    both = ask(client, tools=TOOLS, extra_body=tags).choices[0].message
    assert len(both.tool_calls) == 2
    one = ask(client, tools=TOOLS, extra_body=tags, parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1 and not one.message.content and one.finish_reason == "tool_calls"
    deltas = [c.choices[0].delta for c in ask(client, tools=TOOLS, extra_body=tags, parallel_tool_calls=False, stream=True) if c.choices]
    assert {t.index for d in deltas for t in d.tool_calls or []} == {0}


WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]


def parts(client, stream, messages, **more):
    """(content, calls as (name, arguments), finish_reason) of an answer, streamed or not."""
    answer = ask(client, messages, stream=stream, **more)
    if not stream:
        message = answer.choices[0].message
        return (message.content or "", [(c.function.name, c.function.arguments) for c in message.tool_calls or []],
                answer.choices[0].finish_reason)
    content, calls, reason = "", [], None
    for chunk in answer:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    calls.append(["", ""])
                calls[call.index][0] += call.function.name or ""
                calls[call.index][1] += call.function.arguments or ""
    return content, [tuple(c) for c in calls], reason


ANSWERS = {"json_schema": {"response_format": format_of(PERSON)}, "json_object": {"response_format": {"type": "json_object"}},
           "guided_json": {"extra_body": {"guided_json": PERSON, "guided_whitespace_pattern": " ?"}},
           "regex": {"extra_body": {"guided_regex": "[0-9]{4}"}}, "choice": {"extra_body": {"guided_choice": ["yes", "no"]}},
           "grammar": {"extra_body": {"guided_grammar": 'root ::= "<" [0-9]{2,4} ">"'}},
           "compact": {"extra_body": {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}}}


def fits(kind, text):
    if kind == "json_object":
        return isinstance(json.loads(text), dict)
    if kind in ("regex", "choice", "grammar"):
        return re.fullmatch({"regex": "[0-9]{4}", "choice": "yes|no", "grammar": "<[0-9]{2,4}>"}[kind], text)
    jsonschema.validate(json.loads(text), PERSON)
    return True


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("strict", [False, True])
def test_tools_beside_an_answers_form(client, kind, strict, stream):
    """What the model would call it calls, and what it answers has the form: never anything else."""
    tools = [{**t, "function": {**t["function"], "strict": strict}} for t in TOOLS]
    content, calls, reason = parts(client, stream, WEATHER, tools=tools, temperature=0, **ANSWERS[kind])
    assert not content and calls and calls[0][0] == "get_weather" and reason == "tool_calls", (content, calls, reason)
    assert "Oslo" in json.loads(calls[0][1]).values()
    if strict:
        jsonschema.validate(json.loads(calls[0][1]), TOOLS[0]["function"]["parameters"])
    for seed in range(3): # a hot model does either
        content, calls, reason = parts(client, stream, HELLO, tools=tools, temperature=2, seed=seed, **ANSWERS[kind])
        if reason != "length":
            assert bool(content) != bool(calls)
            assert reason == ("tool_calls" if calls else "stop") and (calls or fits(kind, content)), (content, calls)
    content, calls, reason = parts(client, stream, WEATHER, tools=tools, tool_choice="none", temperature=1, **ANSWERS[kind])
    assert content and not calls and (reason == "length" or fits(kind, content))


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_required_call_goes_before_an_answers_form(client, kind):
    for choice in ("required", {"type": "function", "function": {"name": "play"}}):
        content, calls, reason = parts(client, False, HELLO, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, **ANSWERS[kind])
        assert not content and len(calls) == 1 and reason == "tool_calls"
        tool = next(t for t in TOOLS if t["function"]["name"] == calls[0][0])
        jsonschema.validate(json.loads(calls[0][1]), tool["function"]["parameters"])


def test_tools_beside_an_answers_form_in_a_loop(client, bundled):
    """The call, its result, then the answer in its form: with the tools offered all the way. The bundled model, which never saw
    a schema, would rather call once more than write JSON: a bias against the call's first token makes it answer."""
    begin = bundled.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"][0]
    messages = list(WEATHER)
    form = format_of({"type": "object", "properties": {"report": {"type": "string", "maxLength": 60}}, "required": ["report"],
                      "additionalProperties": False})
    weather = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}}
    first = ask(client, messages, tools=[weather], response_format=form, temperature=0).choices[0]
    assert first.finish_reason == "tool_calls" and json.loads(first.message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    messages += [first.message.model_dump(exclude_none=True), {
        "role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": '{"condition": "sunny", "temperature": 21}'}]
    last = ask(client, messages, tools=[weather], response_format=form, temperature=0, logit_bias={str(begin): -30}).choices[0]
    assert last.finish_reason == "stop" and list(json.loads(last.message.content)) == ["report"]


@pytest.mark.parametrize("bad", [{"guided_json": "{"}, {"guided_choice": [1]}])
def test_what_cannot_stand_beside_tools_is_a_400(client, bad):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=TOOLS, extra_body=bad)
    assert "JSON" in str(caught.value) or "string" in str(caught.value)


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
