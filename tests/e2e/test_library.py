# SPDX-License-Identifier: Apache-2.0
"""The C library (through quire generate, which uses nothing else) and the server: the same request gives the same prompt,
tokens, message and error, because both go through common/chat."""
import json
import subprocess

import pytest

from servers import BIN, BUNDLED, ROOT, Server

TEMPLATES = ROOT / "tests/data/templates"
ENGINE = ("--dtype", "float32", "--num-gpu-blocks-override", "512")
THINK = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
         "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}")


def function(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


WEATHER = function("get_weather", "Get the weather in a city.", city={"type": "string"})
CLOCK = function("get_time", "Get the time in a zone.", zone={"enum": ["UTC", "CET"]}, seconds={"type": "boolean"})
STRICT = {"type": "function", "function": {**CLOCK["function"], "strict": True}}
TOOLS = [WEATHER, CLOCK]
RESULT = [
    {"role": "user", "content": "What is the weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
    {"role": "tool", "tool_call_id": "call_0", "content": "{\"temperature\": 4, \"sky\": \"rain\"}"}]


def user(text):
    return [{"role": "user", "content": text}]


CASES = [
    {"messages": user("What can you do?")},
    {"messages": user([{"type": "text", "text": "What is"}, {"type": "text", "text": "quire?"}])},
    {"messages": [{"role": "system", "content": "Be brief."}, *user("Copy this: <b>\u00e9\u4e16</b> & more")]},
    {"messages": [{"role": "developer", "content": "Be brief."}, *user("Hi")]},
    {"messages": user("What is the weather in Oslo?"), "tools": TOOLS},
    {"messages": user("What is the weather in Oslo?"), "tools": TOOLS, "tool_choice": "none"},
    {"messages": user("Hello"), "tools": TOOLS, "tool_choice": "required"},
    {"messages": user("Hello"), "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {"messages": user("Hello"), "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
    {"messages": user("Hello"), "tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}},
    {"messages": user("What time is it in CET?"), "tools": [STRICT]},
    {"messages": RESULT, "tools": TOOLS},
    {"messages": [*user("Count to five."), {"role": "assistant", "content": "1, 2,"}], "continue_final_message": True},
    {"messages": user("Copy this: one, two, three"), "stop": ["two"]},
    {"messages": user("Copy this: one, two, three"), "stop": ", t"},
    {"messages": user("Tell me something."), "temperature": 0.9, "seed": 7, "top_p": 0.8, "presence_penalty": 0.5},
    {"messages": user("Tell me something."), "temperature": 1.0, "seed": 8, "top_k": 20, "tools": TOOLS},
    {"messages": user("What is quire?"), "max_tokens": 3},
    {"messages": user("Hi"), "reasoning_effort": "low", "chat_template_kwargs": {"style": "short"}, "documents": [{"text": "d"}]},
]
BAD = [
    {"messages": []},
    {"messages": {}},
    {"messages": [7]},
    {"messages": [{"content": "x"}]},
    {"messages": user(7)},
    {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
    {"messages": user("Hi"), "tools": [{"type": "function", "function": {}}]},
    {"messages": user("Hi"), "tools": [{"type": "retrieval"}]},
    {"messages": user("Hi"), "tools": {}},
    {"messages": user("Hi"), "tool_choice": "required"},
    {"messages": user("Hi"), "tools": TOOLS, "tool_choice": "always"},
    {"messages": user("Hi"), "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_tide"}}},
    {"messages": user("Hi"), "chat_template_kwargs": []},
    {"messages": user("Hi"), "documents": "none"},
    {"messages": user("word " * 3000), "max_tokens": None},
    {"messages": user("Hi"), "max_tokens": 2045},
]


def of_templates(name):
    """The conversations of a golden template, each as it is, and with a call that must come."""
    cases = []
    for case in json.loads((TEMPLATES / f"tmpl-{name}.json").read_text())["cases"]:
        fields = {"messages": case["messages"], "chat_template_kwargs": case.get("kwargs") or {}, "max_tokens": 24}
        if case.get("tools"):
            fields["tools"] = case["tools"]
            cases.append({**fields, "tool_choice": "required"})
        cases.append(fields)
    return cases


def plain(message):
    """Without what differs by design: the ids of calls, which are drawn, and a second name of reasoning."""
    calls = [(c["type"], c["function"]) for c in message.get("tool_calls") or []]
    return message["role"], message["content"], message.get("reasoning"), calls


def both(tmp_path, cases, *options):
    """What the server and the library say to each case: (message, finish_reason, token ids) or an error's text."""
    cases = [{"max_tokens": 48, **case} for case in cases]
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps(case) + "\n" for case in cases))
    out = subprocess.run([BIN / "quire-generate", BUNDLED, "-i", lines, *ENGINE, *options], capture_output=True, text=True, timeout=300)
    said = [json.loads(line) for line in out.stdout.splitlines()]
    said.sort(key=lambda a: a["prompt"])
    assert [a["prompt"] for a in said] == list(range(1, len(cases) + 1)), out.stderr
    library = [a["error"] if "error" in a else (plain(a["message"]), a["finish_reason"], a["token_ids"]) for a in said]
    server = Server(BUNDLED, *ENGINE, *options)
    served = []
    for case in cases:
        status, answer = server.post("/v1/chat/completions", {**case, "return_token_ids": True})
        if status != 200:
            served.append(answer["error"]["message"])
            continue
        choice = answer["choices"][0]
        served.append((plain(choice["message"]), choice["finish_reason"], choice["token_ids"]))
    assert server.stop() == 0
    return served, library


def test_the_bundled_model(tmp_path):
    served, library = both(tmp_path, CASES)
    assert library == served
    assert all(isinstance(a, tuple) for a in served)
    calls = [a for a in served if a[1] == "tool_calls"]
    assert len(calls) >= 4 and all(json.loads(c[1]["arguments"]) is not None for a in calls for c in a[0][3])


def test_errors(tmp_path):
    served, library = both(tmp_path, BAD)
    assert library == served
    assert all(isinstance(a, str) for a in served) and len(set(served)) >= 12


def test_reasoning(tmp_path):
    template = tmp_path / "think.jinja"
    template.write_text(THINK)
    cases = [*CASES, *({**c, "chat_template_kwargs": {"enable_thinking": False}} for c in CASES),
             {"messages": user("Copy this: so</think>\n\nhello"), "max_tokens": 60}]
    served, library = both(tmp_path, cases, "--chat-template", template)
    assert library == served
    thoughts = [a for a in served if isinstance(a, tuple) and a[0][2]]
    assert len(thoughts) >= 5 and any(a[0][1] for a in served if isinstance(a, tuple) and not a[0][2])


@pytest.mark.parametrize("name", ["tools_xml", "chatml_think", "llama31_tools", "harmony", "json_dump", "strict"])
def test_templates(tmp_path, name):
    cases = of_templates(name)
    served, library = both(tmp_path, cases, "--chat-template", TEMPLATES / f"{name}.jinja")
    assert library == served
    assert sum(isinstance(a, tuple) for a in served) >= 2


def test_parsers_by_option(tmp_path):
    cases = [c for c in CASES if "tools" in c and "temperature" not in c]
    for parser in ("mistral", "qwen3_coder", "pythonic"):
        served, library = both(tmp_path, cases, "--tool-call-parser", parser, "--reasoning-parser", "none")
        assert library == served and any(isinstance(a, tuple) for a in served)
