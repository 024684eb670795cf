# SPDX-License-Identifier: Apache-2.0
"""Reasoning in chat answers, and the verbs that try a parser or a template without a server."""
import json
import subprocess

import pytest

from servers import BIN, BUNDLED

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "<|im_start|>assistant\n{% if think %}<think>\n{% endif %}")
WHO = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    """A client of a server whose template can leave reasoning open, which shows the format."""
    import openai
    from servers import Server
    path = tmp_path_factory.mktemp("template") / "think.jinja"
    path.write_text(TEMPLATE)
    server = Server(BUNDLED, "--chat-template", path, "--num-gpu-blocks-override", "256",
                    "--trust-request-chat-template")
    server.process.wait_line("reasoning parser: qwen3")
    yield openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    assert server.stop() == 0


def ask(client, think, **more):
    body = {"chat_template_kwargs": {"think": think}, **more.pop("extra_body", {})}
    return client.chat.completions.create(model="", messages=WHO, max_tokens=12, temperature=0, extra_body=body, **more)


def test_reasoning(thinking):
    message = ask(thinking, True).choices[0].message
    assert message.content is None
    assert message.model_extra["reasoning"] and message.model_extra["reasoning"] == message.model_extra["reasoning_content"]
    plain = ask(thinking, False).choices[0].message
    assert plain.content and plain.model_extra["reasoning"] is None
    hidden = ask(thinking, True, extra_body={"include_reasoning": False}).choices[0].message
    assert not hidden.content and hidden.model_extra["reasoning"] is None


def test_reasoning_streams(thinking):
    whole = ask(thinking, True).choices[0].message.model_extra["reasoning"]
    pieces = []
    for chunk in ask(thinking, True, stream=True):
        delta = chunk.choices[0].delta
        if delta.model_extra.get("reasoning"):
            assert not delta.content
            pieces.append(delta.model_extra["reasoning"])
    assert "".join(pieces) == whole and len(pieces) > 1


def test_reasoning_tokens(thinking):
    answer = ask(thinking, True)
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens
    plain = ask(thinking, False)
    assert plain.usage.completion_tokens_details.reasoning_tokens == 0
    last = list(ask(thinking, True, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.usage.completion_tokens_details.reasoning_tokens == last.usage.completion_tokens


def test_a_grammar_waits_for_the_end_of_reasoning(thinking):
    """It holds behind </think>: before it the model is free, and a prompt that has it already is bound at once."""
    digits = {"guided_regex": "[0-9]{4}"}
    message = ask(thinking, True, extra_body=digits).choices[0].message
    assert message.content is None and message.model_extra["reasoning"]
    closed = {"chat_template": TEMPLATE + "<think>\n\n</think>\n\n", **digits}
    assert ask(thinking, False, extra_body=closed).choices[0].message.content.isdigit()


PLAY = [{"type": "function", "function": {"name": "play", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
    "additionalProperties": False}}}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_holds_at_once_without_reasoning(thinking, stream):
    """The prompt opens no reasoning and the answer has none: grammars and forced calls hold from the first token."""
    def parts(**more):
        answer = ask(thinking, False, stream=stream, **more)
        choices = [c.choices[0] for c in answer if c.choices] if stream else [answer.choices[0]]
        deltas = [c.delta if stream else c.message for c in choices]
        calls = [t.function for d in deltas for t in d.tool_calls or []]
        return ("".join(d.content or "" for d in deltas), "".join(f.name or "" for f in calls),
                "".join(f.arguments or "" for f in calls), choices[-1].finish_reason)
    content, _, _, reason = parts(extra_body={"guided_regex": "[0-9]{4}"})
    assert content.isdigit() and len(content) == 4 and reason == "stop"
    content, name, arguments, reason = parts(tools=PLAY, tool_choice="required", parallel_tool_calls=False,
                                             extra_body={"max_completion_tokens": 100})
    assert (content, name, reason) == ("", "play", "tool_calls") and 0 <= json.loads(arguments)["n"] <= 99


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1", "deepseek_v3", "mistral", "granite", "kimi_k3", "hy_v3", "gemma4",
                                    "openai_gptoss", "muse_glimmer", "minimax_m2_append_think"])
def test_every_kind_of_reasoning_lets_a_grammar_begin(start, parser):
    server = start(BUNDLED, "--reasoning-parser", parser, "--num-gpu-blocks-override", "128")
    body = {"messages": WHO, "max_tokens": 40, "temperature": 0, "guided_regex": "[a-f]{3}-[0-9]{2}"}
    choice = server.post("/v1/chat/completions", body)[1]["choices"][0]
    assert choice["finish_reason"] == "stop" and len(choice["message"]["content"]) == 6, choice


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """A client of the bundled model with two tokens of its vocabulary renamed to the tags of reasoning."""
    import openai
    from servers import Server
    folder = tmp_path_factory.mktemp("tagged")
    for file in BUNDLED.iterdir():
        if file.name not in ("tokenizer.json", "README.md"):
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    # the last merges make room: two ids become added tokens
    dropped = sorted(vocab, key=vocab.get)[-2:]
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"]
                                    if "".join(m if isinstance(m, list) else m.split(" ")) not in dropped]
    for tag, old in zip(("<think>", "</think>"), dropped):
        tokenizer["added_tokens"].append({"id": vocab.pop(old), "content": tag, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    server = Server(folder, "--reasoning-parser", "qwen3", "--num-gpu-blocks-override", "256")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    client.ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    yield client
    assert server.stop() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_may_begin_with_reasoning_before_a_grammar(tagged, stream):
    """The same request: thinking first, when the model likes to, or the grammar at once; and never when it was told not to."""
    def parts(bias, **body):
        answer = tagged.chat.completions.create(
            model="", messages=WHO, max_tokens=60, temperature=0, stream=stream, logit_bias={str(i): b for i, b in bias.items()},
            extra_body={"guided_regex": "[0-9]{4}", **body})
        choices = [c.choices[0] for c in answer if c.choices] if stream else [answer.choices[0]]
        deltas = [c.delta if stream else c.message for c in choices]
        return ("".join(d.content or "" for d in deltas), "".join(d.model_extra.get("reasoning") or "" for d in deltas),
                choices[-1].finish_reason)
    begin, end = tagged.ids["<think>"], tagged.ids["</think>"]
    content, reasoning, reason = parts({begin: 100, end: -100})
    assert reason == "length" and reasoning and not content # the model's own words, to the end
    content, reasoning, reason = parts({begin: 90, end: 100})
    assert reason == "stop" and content.isdigit() and len(content) == 4 and not reasoning
    content, reasoning, reason = parts({begin: -100})
    assert reason == "stop" and content.isdigit() and len(content) == 4 and not reasoning
    for off in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": {"type": "disabled"}},
                {"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}, "reasoning_effort": "high"}):
        content, reasoning, reason = parts({begin: 100}, **off)
        assert reason == "stop" and content.isdigit() and not reasoning, off


def test_a_schema_holds_behind_the_reasoning(thinking):
    """The whole way: reasoning is free, and what follows its end is what the schema says and nothing else; the same beside
    other requests and as a stream. The few tokens that may come let the model find the end by chance."""
    tokenize = subprocess.run([BIN / "quire-tokenize", BUNDLED], capture_output=True, text=True, check=True, input="".join(
        json.dumps({"text": text, "add_special_tokens": False}) + "\n" for text in ("</think>", *'{"a:7}')))
    end, *text = [json.loads(line)["ids"] for line in tokenize.stdout.split("\n")[:-1]]
    ids = {*end, *(i for one in text for i in one)}
    eos = json.loads((BUNDLED / "generation_config.json").read_text())["eos_token_id"]
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    body = {"messages": WHO, "max_tokens": 100, "temperature": 1.5, "frequency_penalty": 2, "seed": 1, "n": 6, "extra_body": {
        "chat_template_kwargs": {"think": True}, "allowed_token_ids": sorted(ids | set(eos if isinstance(eos, list) else [eos]))},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "logit_bias": {str(i): -9 for i in ids - set(end)}} # what the schema asks for comes all the same
    whole = thinking.chat.completions.create(model="", **body).choices
    done = [c for c in whole if c.finish_reason == "stop"]
    assert len(done) > 1 and any(c.message.model_extra.get("reasoning") for c in done)
    for choice in whole:
        assert "</think>" not in (choice.message.content or "") + (choice.message.model_extra["reasoning"] or "")
        if choice.finish_reason == "stop":
            assert json.loads(choice.message.content) == {"a": 7}
    texts = [""] * 6
    for chunk in thinking.chat.completions.create(model="", stream=True, **body):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content or "" for c in whole]


def test_chat_shows_reasoning_apart(start, tmp_path):
    template = tmp_path / "think.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}\n<think>\n")
    server = start(BUNDLED, "--chat-template", template, "--num-gpu-blocks-override", "256")
    out = subprocess.run([BIN / "quire-chat", "--url", server.url, "--max-tokens", "8", "--temperature", "0"], input="Hi\n",
                         capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert out.stderr.startswith("(thinking)\n") and "(answer)" in out.stderr and not out.stdout.strip()


def test_template_of_a_request(thinking, client):
    import openai
    with pytest.raises(openai.BadRequestError, match="trust-request-chat-template") as refused:
        ask(client, False, extra_body={"chat_template": TEMPLATE})
    assert refused.value.param == "chat_template"
    own = {"chat_template": "<|im_start|>assistant\n<think>\n"}
    message = ask(thinking, False, extra_body=own).choices[0].message
    assert message.content is None and message.model_extra["reasoning"]


def verb(*args, lines=()):
    out = subprocess.run([BIN / "quire", *args], input="".join(json.dumps(line) + "\n" for line in lines),
                         capture_output=True, text=True, timeout=60)
    return out.returncode, [json.loads(line) for line in out.stdout.splitlines()], out.stderr


def test_parse():
    lines = [{"deltas": ["<thi", "nk>Hm.</think>\n\nOk <tool", "_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ", "1}}</tool_call>"]},
             {"text": "plain", "prompt": "<|im_start|>assistant\n"}, {"deltas": [1]}, {}, {"text": "é", "tools": 3}]
    code, out, _ = verb("parse", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", lines=lines)
    assert code == 0
    assert out[0]["content"] == "Ok " and out[0]["reasoning"] == "Hm."
    assert out[0]["tool_calls"] == [{"name": "f", "arguments": "{\"a\": 1}", "complete": True}]
    kinds = [e["type"] for e in out[0]["events"]]
    assert kinds[0] == "reasoning" and kinds[-1] == "tool_call_end" and "tool_call" in kinds
    assert out[1]["content"] == "plain" and out[1]["tool_calls"] == []
    assert "deltas" in out[2]["error"] and "deltas" in out[3]["error"] and "tools" in out[4]["error"]


def test_parse_of_a_model_and_wrong_names():
    code, out, _ = verb("parse", BUNDLED, lines=[{"text": "<tool_call>{\"name\": \"f\"}</tool_call>"}])
    assert code == 0 and out[0]["tool_calls"][0]["name"] == "f"
    code, _, said = verb("parse", "--tool-call-parser", "nope")
    assert code == 2 and "nope" in said and "hermes" in said


def test_render(tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    code, out, _ = verb("render", tmp_path / "t.jinja", lines=[
        {"messages": WHO, "variables": {"think": True}}, {"messages": 1}])
    assert code == 0
    assert out[0]["text"] == "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert "messages" in out[1]["error"]
    code, out, _ = verb("render", "-", lines=[
        {"template": "{{ a }}\n{{ strftime_now('%Y') }}", "variables": {"a": "x"}, "now": "2031-02-03T04:05:06"},
        {"template": "ok\n{{ raise_exception('no') }}", "messages": WHO}, {"template": "{% if %}"}, {"messages": WHO}])
    assert out[0] == {"text": "x\n2031"}
    assert out[1]["error"].endswith("no") and out[1]["type"] == "TemplateError"
    assert out[2]["line"] == 1 and out[2]["column"] > 0 and "type" in out[2]
    assert "template" in out[3]["error"]
    code, out, _ = verb("render", BUNDLED, lines=[{"messages": WHO, "add_generation_prompt": True}])
    assert "Who are you?" in out[0]["text"]
