# SPDX-License-Identifier: Apache-2.0
"""quire render against jinja2 in the environment that transformers uses.

    python tests/differential/templates_diff.py [-n CONVERSATIONS] [--seed S] [--only NAME]

Every template of tests/data/templates and, where it is there, ../shared/data is rendered with random conversations, tools,
documents and variables: the text must be the same, or both must fail, with the same message where the template itself
refuses. Prints a count a family and the differences; exits 1 when there are any. How often the line of an error is jinja2's
is printed too: its own is that of a statement, and often the next one's. tests/e2e/test_templates.py runs the same with few
conversations.
"""
import argparse
import collections
import copy
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import traceback

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
REAL = ROOT.parent / "shared/data"
if not REAL.exists():  # a worktree elsewhere
    REAL = pathlib.Path(os.environ.get("QUIRE_SHARED", "/work/shared")) / "data"
NOW = datetime.datetime(2026, 3, 7, 9, 5, 3)
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Generation(jinja2.ext.Extension):
    """{% generation %}: the text inside, as it is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    return env


def prepared(message):
    """What transformers does to a message before the template sees it."""
    kept = {k: v for k, v in message.items() if v is not None}
    reasoning = next((kept[k] for k in ("reasoning_content", "thinking", "reasoning") if k in kept), None)
    if reasoning is not None:
        kept = {"thinking": reasoning, **{k: v for k, v in kept.items() if k != "thinking"}}
        kept.setdefault("reasoning_content", reasoning)
    return kept


def reference(env, template, row):
    """(text, None), or (None, (kind, message, line))."""
    messages = [prepared(m) for m in copy.deepcopy(row["messages"])]
    variables = dict(row["variables"], messages=messages, tools=row.get("tools"), documents=row.get("documents"),
                     add_generation_prompt=row["add_generation_prompt"])
    last = None
    try:
        if row.get("continue_final_message"):
            last = messages[-1].get("content")
            if isinstance(last, list):
                part = next(p for p in reversed(last) if isinstance(p, dict) and "text" in p)
                last = part["text"]
                part["text"] += TAG
            else:
                messages[-1]["content"] = last + TAG
        text = env.from_string(template).render(variables)
        if last is not None:
            if last.strip() not in text or TAG.strip() not in text:
                raise ValueError("the final message is not there")
            at = text.rindex(TAG.strip())
            text = text[:at] if text[at:at + len(TAG)] == TAG else text[:at].rstrip()
        return text, None
    except Exception as error:  # whatever jinja2 and Python say
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<unknown>" or "<template>" in f.filename]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        return None, (type(error).__name__, str(error), line)


# ---- random conversations ----

TEXTS = ["Hello", "What is 2+2?", " blanks \n", "", "Zürich 😀 你好", "<tool_call>{\"a\": 1}</tool_call>", "a <b> & \"c\" 'd' \\ e", "<think>\nhm\n</think>\n\nyes",
         "line 1\nline 2\n\n", "{{ 1 }} {% if %}", "<|im_end|>[INST]", "\t", "x" * 300, "e\u0301", "</think>", "0"]
VALUES = [1, -7, 1.5, 1e30, True, False, None, "text", "ünï \"q\"", [], {}, [1, "a", None], {"k": [True, {"n": 0.1}]}, 12345678901]


def text(r):
    return r.choice(TEXTS)


def content(r):
    k = r.random()
    if k < 0.75:
        return text(r)
    if k < 0.95:
        return [{"type": "text", "text": text(r)} for _ in range(r.randint(0, 2))] + (
            [{"type": "image"}] if r.random() < 0.2 else [])
    return None


def call(r):
    arguments = {r.choice(["city", "n", "opts", "q"]): r.choice(VALUES) for _ in range(r.randint(0, 3))}
    one = {"type": "function", "function": {"name": r.choice(["get_weather", "f", "send.mail"]), "arguments": arguments}}
    if r.random() < 0.6:
        one["id"] = r.choice(["abcdefghi", "call_1", "functions.f:0"])
    return one


def message(r, role):
    m = {"role": role, "content": content(r)}
    if role == "assistant":
        if r.random() < 0.35:
            m["tool_calls"] = [call(r) for _ in range(r.randint(0, 2))]
        if r.random() < 0.2:
            m[r.choice(["reasoning_content", "thinking", "reasoning"])] = text(r)
    if role == "tool":
        m.update({k: v for k, v in (("tool_call_id", "abcdefghi"), ("name", "f")) if r.random() < 0.6})
    if r.random() < 0.02:
        m.pop("content")
    return m


def conversation(r):
    roles = ["system"] if r.random() < 0.4 else ["developer"] if r.random() < 0.1 else []
    for _ in range(r.randint(1, 3)):
        roles += ["user", "assistant"] + (["tool"] * r.randint(1, 2) + ["assistant"] if r.random() < 0.3 else [])
    if r.random() < 0.6:
        roles = roles[:-1]
    if r.random() < 0.15:
        r.shuffle(roles)
    if r.random() < 0.03:
        roles.append("strange")
    return [message(r, role) for role in roles] or [message(r, "user")]


def tool(r):
    properties = {k: r.choice([{"type": "string", "description": text(r)}, {"type": "integer"}, {"type": ["string", "null"]},
                               {"type": "array", "items": {"type": "number"}}, {"enum": ["a", 1]}, {"type": "object", "properties": {"x": {"type": "boolean"}}}])
                  for k in r.sample(["city", "n", "opts", "q"], r.randint(0, 3))}
    function = {"name": r.choice(["get_weather", "f", "send.mail"]), "description": text(r),
                "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}
    if r.random() < 0.1:
        function.pop(r.choice(["description", "parameters"]))
    return {"type": "function", "function": function}


def row(r, tokens):
    row = {"messages": conversation(r), "add_generation_prompt": r.random() < 0.6, "variables": dict(tokens)}
    if r.random() < 0.4:
        row["tools"] = [tool(r) for _ in range(r.randint(0 if r.random() < 0.1 else 1, 3))]
    if r.random() < 0.15:
        row["documents"] = [{"title": text(r), "text": text(r)} for _ in range(r.randint(1, 2))]
    for name, values in (("enable_thinking", [True, False]), ("thinking", [True, False]), ("reasoning_effort", ["low", "high"]),
                         ("builtin_tools", [["browser"], []]), ("custom_tools", [None])):
        if r.random() < 0.15:
            row["variables"][name] = r.choice(values)
    if row["messages"][-1]["role"] == "assistant" and isinstance(row["messages"][-1].get("content"), str) and r.random() < 0.4:
        row["add_generation_prompt"] = False
        row["continue_final_message"] = True
    return row


# ---- the comparison ----

def quire(path, rows):
    lines = "".join(json.dumps(dict(row, now=NOW.isoformat())) + "\n" for row in rows)
    done = subprocess.run([BIN / "quire-render", path], input=lines, capture_output=True, text=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return answers if len(answers) == len(rows) else [{"error": done.stderr, "type": "none"}] * len(rows)


def agree(want, failure, got):
    if failure is None:
        return got.get("text") == want
    if "text" in got:
        return False
    kind, message, _ = failure
    return kind != "TemplateError" or got["error"] == message or not message  # which the template itself raises


def templates(only):
    for path in sorted((ROOT / "tests/data/templates").glob("*.jinja")):
        tokens = json.loads((path.parent / f"tmpl-{path.stem}.json").read_text())["variables"] if (path.parent / f"tmpl-{path.stem}.json").exists() else {}
        if only in str(path):
            yield "own", path, {k: v for k, v in tokens.items() if isinstance(v, str)}
    for path in sorted(REAL.glob("templates/*/*.jinja")):
        if only in str(path):
            yield path.parent.name, path, {"bos_token": "<s>", "eos_token": "</s>"}


def compare(n, seed, only="", show=5):
    env, counts, bad, n_line, n_same = environment(), collections.defaultdict(lambda: [0, 0, 0, 0]), 0, 0, 0
    for family, path, tokens in templates(only):
        r = random.Random(f"{seed} {path.name}")
        source = path.read_text(encoding="utf-8")
        rows = [row(r, tokens) for _ in range(n)]
        answers = quire(path, rows)
        count = counts[family]
        count[0] += 1
        for one, got in zip(rows, answers):
            want, failure = reference(env, source, one)
            count[1] += 1
            count[3] += failure is not None
            if failure and failure[2] and got.get("line"):
                n_line += 1
                n_same += failure[2] == got["line"]
            if agree(want, failure, got):
                count[2] += 1
                continue
            bad += 1
            if bad <= show:
                print(f"{path}: {json.dumps(one, ensure_ascii=False)}\n  want {want!r} {failure}\n  got  {got}")
    for family, (n_template, n_row, n_good, n_fail) in sorted(counts.items()):
        print(f"{family}: {n_template} templates, {n_good} of {n_row} conversations agree, {n_fail} of them errors in both")
    print(f"the line of an error is jinja2's in {n_same} of {n_line} cases")
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-n", type=int, default=100, help="conversations a template")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="", help="templates whose path has this in it")
    a = p.parse_args()
    sys.exit(1 if compare(a.n, a.seed, a.only) else 0)


if __name__ == "__main__":
    main()
