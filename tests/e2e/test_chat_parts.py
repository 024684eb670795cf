# SPDX-License-Identifier: Apache-2.0
"""Content parts of a plugin's own type in chat: over HTTP, in streams, offline, from files and through crashes; and what a modality
whose placeholders expand means for lengths, usage, echo and prompt_logprobs. The plugin is tests/plugins/grids.c over the bundled
model, which has a chat template."""
import json
import os
import signal
import subprocess

import pytest

from servers import BIN, BUNDLED, ROOT, Server
from test_multi_modal import npy, packed

GRID, STRIP, MARK = -7, -8, 7
ONE, TWO = [[1, 2, 3], [4, 5, 6]], [[3, 2, 1], [6, 5, 4]]
MORE = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "grids.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", ROOT, "-o", path, ROOT / "tests/plugins/grids.c"],
                   check=True)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat-model")
    for file in BUNDLED.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((BUNDLED / "config.json").read_text()) | {"architectures": ["GridsForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def server(plugin, model):
    server = Server(model, "--plugin", plugin, "--max-model-len", "512", "--limit-mm-per-prompt", '{"grids": 3}')
    yield server
    assert server.stop() == 0


def user(*parts, **more):
    return {"messages": [{"role": "user", "content": list(parts)}], **MORE, **more}


def text(t):
    return {"type": "text", "text": t}


def grid(*values):
    return {"type": "grid", "grid": values[0] if len(values) == 1 else list(values)}


def chat(server, ask):
    status, answer = server.post("/v1/chat/completions", ask)
    assert status == 200, answer
    return answer


def split_at(ids, placeholder):
    """(ids before each run of placeholders …, after the last), lengths of the runs"""
    runs, parts = [], [[]]
    for at, i in enumerate(ids):
        if i != placeholder:
            parts[-1].append(i)
        elif at and ids[at - 1] == placeholder:
            runs[-1] += 1
        else:
            runs.append(1)
            parts.append([])
    return parts, runs


def test_a_part_is_at_its_place(server):
    """The same ids as the text before and behind it has, and the same answer as from /v1/completions with these ids."""
    answer = chat(server, user(text("Look at this:"), grid(ONE), text(" and say hi"), grid(TWO)))
    prompt = answer["prompt_token_ids"]
    parts, runs = split_at(prompt, GRID)
    assert runs == [4, 4] and answer["usage"]["prompt_tokens"] == len(prompt)
    plain = chat(server, user(text("Look at this:")))["prompt_token_ids"]
    assert parts[0] == plain[:len(parts[0])] and len(parts[1]) > 1
    status, ids = server.post("/v1/completions", {"prompt": prompt, "multi_modal_data": {"grids": [ONE, TWO]}, **MORE})
    assert status == 200 and ids["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]
    swapped = chat(server, user(text("Look at this:"), grid(TWO), text(" and say hi"), grid(ONE)))
    assert swapped["prompt_token_ids"] == prompt
    assert chat(server, user(text("a"), text("b")))["prompt_token_ids"] == chat(server, user(text("a\nb")))["prompt_token_ids"]


@pytest.mark.parametrize("value", [
    [ONE], {"data": packed([1, 2, 3, 4, 5, 6]), "shape": [2, 3]}, {"data": packed([1, 2, 3, 4, 5, 6]), "shape": [1, 2, 3]},
    [{"data": packed([1, 2, 3, 4, 5, 6]), "shape": [2, 3]}]], ids=["list", "base64", "array of items", "list of base64"])
def test_forms_of_an_item(server, value):
    want = chat(server, user(text("hi"), grid(ONE)))
    for kind, key in (("grid", "grid"), ("grid", "grids"), ("grids", "grids")):
        got = chat(server, user(text("hi"), {"type": kind, key: value}))
        assert got["choices"][0]["token_ids"] == want["choices"][0]["token_ids"]
    both = chat(server, user(text("hi"), {"type": "grid", "grid": [ONE, TWO]}))
    assert both["choices"][0]["token_ids"] == chat(server, user(text("hi"), grid(ONE), grid(TWO)))["choices"][0]["token_ids"]


def test_streaming(server):
    ask = user(text("hi"), grid(ONE), {"type": "strips", "strips": [1, 2, 3]}, stream_options={"include_usage": True})
    want = chat(server, {k: v for k, v in ask.items() if k != "stream_options"})
    events = list(server.events("/v1/chat/completions", ask))
    assert events[0]["prompt_token_ids"] == want["prompt_token_ids"]
    assert [i for e in events for c in e["choices"] for i in c.get("token_ids") or []] == want["choices"][0]["token_ids"]
    assert events[-1]["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"] == len(want["prompt_token_ids"])


def test_items_in_several_messages_and_roles(server):
    messages = [{"role": "system", "content": [text("Be brief."), grid(ONE)]}, {"role": "user", "content": [grid(TWO), text("one")]},
                {"role": "assistant", "content": "fine"}, {"role": "user", "content": [text("two"), {"type": "mark", "mark": [5]}]}]
    prompt = chat(server, {"messages": messages, **MORE})["prompt_token_ids"]
    assert split_at(prompt, GRID)[1] == [4, 4] and prompt.count(MARK) >= 1
    got = chat(server, {"messages": messages, **MORE, "n": 3})
    assert len({tuple(c["token_ids"]) for c in got["choices"]}) == 1


def test_what_a_client_writes_is_no_placeholder(server):
    """Nothing in a text, not even the token that is the placeholder of `marks`, takes an item or counts as one."""
    status, answer = server.post("/detokenize", {"tokens": [MARK]})
    assert status == 200
    spelled = text(answer["prompt"] * 3 + " -7 <grid> [GRID]")
    plain = chat(server, user(spelled))["prompt_token_ids"]
    assert GRID not in plain
    parts, runs = split_at(chat(server, user(spelled, grid(ONE)))["prompt_token_ids"], GRID)
    assert runs == [4] and parts[0] == plain[:len(parts[0])]
    assert chat(server, user(spelled, {"type": "mark", "mark": [3]}))["usage"]["completion_tokens"] == 8


def entry(part, *more):
    return [{"role": "user", "content": [text("hi"), part, *more]}]


MISUSES = [
    (entry({"type": "actions", "actions": [1]}), 'messages: entry 0: content of type "actions" is not supported; accepted are text, '
     "grid, strips, mark"),
    (entry({"type": "blobs", "blobs": [[1]]}), "accepted are text, grid, strips, mark"), # it has no type of parts
    (entry(grid([1, 2, 3])), "messages: entry 0: content part 1: grids[0]: shape [3] is not [2, 3]"),
    (entry(grid(ONE), grid([[1, 2], [3, 4]])), "messages: entry 0: content part 2: grids[1]: shape [2, 2] is not [2, 3]"),
    (entry({"type": "grid", "grid": [ONE, [[1, 2, "x"], [4, 5, 6]]]}), "content part 1: grids[1]: number 2 is a string"),
    (entry({"type": "grid"}), 'content part 1: it has no "grid" (or "grids")'),
    (entry({"type": "grid", "grid": []}), "content part 1: grids"),
    (entry({"type": "grid", "grid": ONE, "detail": "low"}), 'content part 1: unknown member "detail"'),
    (entry({"type": "grid", "grid": ONE, "grids": ONE}), 'content part 1: both "grid" and "grids" are given'),
    (entry({"type": "grid", "grid": "x"}), "content part 1: grids[0]: expected numbers"),
    (entry({"type": "grid", "grid": {"path": "/etc/passwd"}}), "content part 1: grids[0]: path: this server reads no files"),
    (entry(grid(ONE, TWO, ONE, TWO)), "content part 1: grids: more than 3 items, expected at most 3 in a request"),
    (entry(grid(ONE, TWO), grid(ONE, TWO)), "content part 2: grids: more than 3 items"),
    (entry({"type": "strips", "strips": [1, 2, 3, 4, 5, 6]}), "content part 1: strips[0]: shape [6] is not [1…5]"),
    (entry({"type": "strips", "strips": [300]}), "strips[0]: number 0 is 300"),
    (entry({"type": "mark", "mark": [-1]}), "marks[0]: plugin grids 1.0: a mark is 0 or more"),
    ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [grid(ONE)]}, {"role": "user", "content": "ok"}],
     'messages: entry 1: content part 0: role "assistant" takes no "grid"'),
]


def test_misuse_is_refused_and_the_server_goes_on(server):
    ask = user(text("hi"), grid(ONE))
    want = chat(server, ask)["choices"]
    for messages, says in MISUSES:
        for stream in (False, True):
            status, answer = server.post("/v1/chat/completions", {"messages": messages, "stream": stream, **MORE})
            assert status == 400 and says in answer["error"]["message"], (messages, answer)
    assert chat(server, ask)["choices"] == want


def test_a_template_that_loses_an_item(plugin, model, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% if m.role == 'tool' %}"
                        "{{ m.content }}{{ m.content }}{% endif %}{% endfor %}")
    server = Server(model, "--plugin", plugin, "--max-model-len", "512", "--chat-template", template)
    for role, says in (("system", "grids[1]: the chat template leaves it out"), ("tool", "grids[1]: the chat template writes it twice")):
        messages = [{"role": "user", "content": [grid(ONE)]}, {"role": role, "content": [grid(TWO)]}]
        status, answer = server.post("/v1/chat/completions", {"messages": messages, **MORE})
        assert status == 400 and says in answer["error"]["message"], answer
    assert split_at(chat(server, user(grid(ONE)))["prompt_token_ids"], GRID)[1] == [4]
    assert server.stop() == 0


def test_a_crash_changes_no_token(plugin, model):
    server = Server(model, "--plugin", plugin, "--max-model-len", "512")
    ask = user(text("hi"), grid(ONE), {"type": "strips", "strips": [1, 2, 3]}, max_tokens=60)
    want = chat(server, ask)["choices"][0]["token_ids"]
    for name in ("quire-worker", "quire-engine"):
        ids = []
        for event in server.events("/v1/chat/completions", ask):
            if isinstance(event, dict):
                ids += [i for c in event["choices"] for i in c.get("token_ids") or []]
                if 0 < len(ids) < 5:
                    engines = server.children("quire-engine")
                    found = engines if name == "quire-engine" else [p for e in engines for p in server.children(name, e)]
                    for pid in found[:1]:
                        os.kill(pid, signal.SIGKILL)
        assert ids == want, name
    assert server.stop() == 0


def test_files_where_they_are_allowed(plugin, model, tmp_path):
    npy(tmp_path / "one.npy", [1, 2, 3, 4, 5, 6], (2, 3))
    npy(tmp_path / "two.npy", [1, 2, 3, 4, 5, 6, 3, 2, 1, 6, 5, 4], (2, 2, 3))
    server = Server(model, "--plugin", plugin, "--max-model-len", "512", "--allowed-local-media-path", tmp_path)
    want = [chat(server, user(text("hi"), grid(ONE))), chat(server, user(text("hi"), grid(ONE), grid(TWO)))]
    for file, answer in zip(("one", "two"), want, strict=True):
        got = chat(server, user(text("hi"), {"type": "grid", "grid": {"path": str(tmp_path / f"{file}.npy")}}))
        assert got["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]
    assert server.stop() == 0


def test_offline_agrees(server, plugin, model, tmp_path):
    ask = user(text("hi"), grid(ONE), {"type": "strips", "strips": [1, 2, 3]})
    answer = chat(server, ask)
    want, n_prompt = answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens"]
    npy(tmp_path / "one.npy", [1, 2, 3, 4, 5, 6], (2, 3))
    by_file = user(text("hi"), {"type": "grid", "grid": {"path": str(tmp_path / "one.npy")}}, {"type": "strips", "strips": [1, 2, 3]})
    bad = user(text("hi"), grid([1, 2]))
    lines = [{k: v for k, v in x.items() if k != "return_token_ids"} for x in (ask, by_file, bad)]
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--max-model-len", "512", "-i", "-"],
                          capture_output=True, text=True, input="".join(json.dumps(line) + "\n" for line in lines))
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda a: a["prompt"])
    assert [a.get("token_ids") for a in answers] == [want, want, None], done.stderr
    assert answers[0]["prompt_tokens"] == n_prompt and "grids[0]: shape [2] is not [2, 3]" in answers[2]["error"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({
        "custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {**x, "model": "x"}}) + "\n"
        for i, x in enumerate((ask, by_file, bad))))
    done = subprocess.run([BIN / "quire", "run-batch", model, "--plugin", plugin, "--max-model-len", "512", "--served-model-name", "x",
                           "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"], capture_output=True, text=True)
    out = {x["custom_id"]: x["response"] for x in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert [out[i]["body"]["choices"][0]["token_ids"] for i in "01"] == [want, want], done.stderr
    assert out["2"]["status_code"] == 400 and "grids[0]: shape [2] is not [2, 3]" in json.dumps(out["2"])


def usage_of(server, route, ask):
    status, answer = server.post(route, {**ask, "max_tokens": 1})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"]


def test_tokenize_counts_the_rows_of_items(server):
    ask = user(text("hi"), grid(ONE), grid(TWO))
    status, answer = server.post("/tokenize", {"messages": ask["messages"], "return_token_strs": True})
    assert status == 200, answer
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == usage_of(server, "/v1/chat/completions", ask)
    assert answer["tokens"] == chat(server, ask)["prompt_token_ids"] and answer["tokens"].count(GRID) == 8
    plain = server.post("/tokenize", {"messages": user(text("hi"))["messages"]})[1]
    assert plain["count"] == usage_of(server, "/v1/chat/completions", user(text("hi")))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tokenize_counts_what_the_plugin_counts(server, n):
    """A strip has as many rows as numbers, which only the plugin says; a mark is a token of the vocabulary as well."""
    ask = user(text("see"), {"type": "strips", "strips": [7] * n}, text("and"), {"type": "strips", "strips": [9]})
    answer = server.post("/tokenize", {"messages": ask["messages"]})[1]
    assert answer["tokens"] == chat(server, ask)["prompt_token_ids"] and answer["tokens"].count(STRIP) == n + 1
    mark = server.post("/detokenize", {"tokens": [MARK]})[1]["prompt"]
    ask = {"prompt": f"hi{mark} there{mark}", "multi_modal_data": {"marks": [[3], [5]]}}
    status, answer = server.post("/tokenize", ask)
    assert status == 200, answer
    assert answer["count"] == usage_of(server, "/v1/completions", ask) and answer["tokens"].count(MARK) >= 2


def test_tokenize_of_items_that_are_wrong(server):
    for part, message in (({"type": "grid", "grid": [[1, 2, 3]]}, "grids[0]: shape [1, 3] is not [2, 3]"),
                          (grid([[1, 2, 3], [4, 5, 1e39]]), "grids[0]"), ({"type": "grid", "grid": [ONE] * 4}, "at most 3")):
        status, answer = server.post("/tokenize", {"messages": user(text("hi"), part)["messages"]})
        want = server.post("/v1/chat/completions", user(text("hi"), part))[1]["error"]["message"]
        assert status == 400 and answer["error"]["message"] == want and message in want, answer
    for ask, message in (({"messages": user(text("hi"))["messages"], "multi_modal_data": {"grids": [ONE]}}, "items are content parts"),
                         ({"prompt": "", "multi_modal_data": {"grids": [ONE]}}, "no tokens"),
                         ({"prompt": "hi", "multi_modal_data": {"grids": [ONE]}}, "but the prompt has 0 placeholders"),
                         ({"prompt": "hi", "multi_modal_data": {"none": [ONE]}}, "no modality")):
        status, answer = server.post("/tokenize", ask)
        assert status == 400 and message in answer["error"]["message"], answer


def test_tokenize_of_a_prompt_that_items_make_too_long(server):
    """A count beyond the limit, where a request is refused."""
    def messages(n_word, *parts):
        return user(text("hi " * n_word), *parts)["messages"]

    def count(ask):
        return server.post("/tokenize", {"messages": ask})[1]["count"]
    few, more = count(messages(10)), count(messages(20))
    n_word = 10 + (505 - few) * 10 // (more - few)
    ask = messages(n_word, grid(ONE), grid(TWO), grid(ONE))
    assert count(messages(n_word)) < 512 < count(ask)
    status, refused = server.post("/v1/chat/completions", {"messages": ask, "max_tokens": 1})
    assert status == 400 and "with its items it has more than 512 tokens" in refused["error"]["message"], refused


# ---- placeholders that expand ----

STRIPS = {"strips": [[1, 2, 3], [9]]}
SENT = [5, STRIP, 6, 7, STRIP, 8]
SHOWN = [5, STRIP, STRIP, STRIP, 6, 7, STRIP, 8]


def completion(server, **more):
    return server.post("/v1/completions", {"prompt": SENT, "multi_modal_data": STRIPS, **MORE, **more})


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_of_the_expanded_prompt(server, stream):
    want = completion(server)[1]["choices"][0]
    assert want["prompt_token_ids"] == SHOWN
    if stream:
        events = list(server.events("/v1/completions", {
            "prompt": SENT, "multi_modal_data": STRIPS, **MORE, "echo": True, "logprobs": 1,
            "stream_options": {"include_usage": True}}))
        first, usage = events[0]["choices"][0], events[-1]["usage"]
    else:
        status, answer = completion(server, echo=True, logprobs=1, prompt_logprobs=1)
        first, usage = answer["choices"][0], answer["usage"]
        assert status == 200
        rows = first["prompt_logprobs"]
        assert [row is None for row in rows] == [True, True, True, True, False, False, True, False]
        assert [next(iter(row)) for row in rows if row] == ["6", "7", "8"]
    assert first["prompt_token_ids"] == SHOWN and usage["prompt_tokens"] == len(SHOWN)
    logprobs = first["logprobs"]
    n = len(SHOWN)
    assert logprobs["token_logprobs"][0] is None and len(logprobs["tokens"]) >= n
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])
    assert usage["total_tokens"] == n + 8


def test_several_answers_and_beams_of_an_expanded_prompt(server):
    status, answer = completion(server, n=3)
    assert status == 200 and answer["usage"]["prompt_tokens"] == len(SHOWN)
    assert all(c["prompt_token_ids"] == SHOWN for c in answer["choices"])
    beams = completion(server, n=2, use_beam_search=True)[1]
    assert beams["usage"]["prompt_tokens"] == len(SHOWN), beams


def test_lengths_are_of_the_expanded_prompt(server):
    long = [5] * 500 + [STRIP]
    items = {"strips": [[1, 2, 3, 4, 5]]}
    ask = {"prompt": long, "multi_modal_data": items, **MORE}
    status, answer = server.post("/v1/completions", {**ask, "max_tokens": 7})
    assert status == 200 and answer["usage"]["prompt_tokens"] == 505 and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 7
    status, answer = server.post("/v1/completions", {**ask, "max_tokens": 8})
    assert status == 400 and all(n in answer["error"]["message"] for n in ("512", "513", "505", "8")), answer
    status, answer = server.post("/v1/completions", {k: v for k, v in ask.items() if k != "max_tokens"})
    assert status == 200 and answer["usage"]["completion_tokens"] == 7 and answer["choices"][0]["finish_reason"] == "length"
    status, answer = server.post("/v1/completions", {**ask, "prompt": [5] * 507 + [STRIP]})
    assert status == 400 and "512" in answer["error"]["message"], answer


def test_an_answer_of_a_chat_has_what_fits(server):
    ask = user(text("hi " * 150), {"type": "strips", "strips": [1, 2, 3, 4, 5]}, grid(ONE))
    del ask["max_tokens"]
    answer = chat(server, ask)
    assert answer["usage"]["total_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"
    status, answer = server.post("/v1/chat/completions", {**ask, "max_tokens": 512 - answer["usage"]["prompt_tokens"] + 1})
    assert status == 400 and "513" in answer["error"]["message"], answer


# ---- items beside what constrains the answer ----

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}


@pytest.mark.parametrize("n", [1, 2])
def test_structured_output(server, n):
    """The first request compiles the grammar, items wait in the store meanwhile; the second finds it."""
    ask = user(text("hi"), grid(ONE), {"type": "strips", "strips": [1, 2, 3]}, max_tokens=60, ignore_eos=False, response_format={
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA | {"title": "items"}}})
    answer = chat(server, ask)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert set(value) == {"a", "b"} and value["b"] in "xy" and answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    bad = user(text("hi"), {"type": "strips", "strips": [300]}, response_format={"type": "json_schema", "json_schema": {
        "name": "s", "schema": SCHEMA | {"title": f"bad {n}"}}})
    status, answer = server.post("/v1/chat/completions", bad)
    assert status == 400 and "strips[0]: number 0 is 300" in answer["error"]["message"], answer
    wrong = user(text("hi"), grid(ONE), response_format={"type": "json_schema", "json_schema": {
        "name": "s", "schema": {"type": "object", "$ref": f"#/nowhere/{n}"}}})
    status, answer = server.post("/v1/chat/completions", wrong)
    assert status == 400, answer
    assert chat(server, ask)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_structured_output_with_speculation(server, plugin, model, method):
    ask = user(text("hi"), grid(ONE), max_tokens=60, ignore_eos=False, structured_outputs={"regex": "(red|green)( and (red|green)){3}"})
    want = chat(server, ask)["choices"][0]["token_ids"]
    config = {"method": method, "num_speculative_tokens": 3} | ({"model": str(BUNDLED)} if method == "draft_model" else {})
    other = Server(model, "--plugin", plugin, "--max-model-len", "512", "--speculative-config", json.dumps(config))
    assert chat(other, ask)["choices"][0]["token_ids"] == want
    assert other.stop() == 0


def test_tools_beside_items(server):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
        "at": {"enum": ["left", "right"]}}, "required": ["at"], "additionalProperties": False}}}]
    answer = chat(server, user(text("look"), grid(ONE), max_tokens=80, ignore_eos=False, tools=tools, tool_choice="required"))
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look" and json.loads(call["arguments"])["at"] in ("left", "right")


# ---- a plugin as the tutorial has it ----

PLUGIN = """
#include <quire/plugin.h>
static int embed(const struct quire_host *host, const struct quire_model *model, const struct quire_item *item,
                 const struct quire_rows *out, struct quire_plugin_error *error)
{
    const float *x = item->data;
    (void)host, (void)model, (void)error;
    for (uint32_t c = 0; c < out->n_col; c++)
        out->rows[c] = x[c % 3] * 0.01f;
    return 0;
}
static const struct quire_modality actions = {
    .size = sizeof actions, .name = "actions", .part_type = "action", .placeholder = -3, .dtype = QUIRE_F32,
    .dims = {"3"}, .n_dim = 1, .n_token = "1", .embed_item = embed};
static const struct quire_modality *const modalities[] = {&actions};
static const struct quire_architecture mine = {
    .size = sizeof mine, .name = "MineForCausalLM", .base = "LlamaForCausalLM", .modalities = modalities, .n_modality = 1};
static const struct quire_architecture *const all[] = {&mine};
static const struct quire_plugin plugin = {
    .size = sizeof plugin, .abi = QUIRE_PLUGIN_ABI, .name = "mine", .version = "1.0", .architectures = all, .n_architecture = 1};
const struct quire_plugin *quire_plugin_1(void)
{
    return &plugin;
}
"""


def test_a_plugin_of_an_installed_quire(model, tmp_path):
    prefix, mine = tmp_path / "prefix", tmp_path / "mine"
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", prefix], check=True, capture_output=True)
    mine.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (mine / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["MineForCausalLM"]}
    (mine / "config.json").write_text(json.dumps(config))
    (tmp_path / "my.c").write_text(PLUGIN)
    subprocess.run(["cc", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "my.so",
                    tmp_path / "my.c", "-I", prefix / "include"], check=True)
    ask = user(text("hi"), {"type": "action", "action": [0.1, 0.2, 0.3]}, {"type": "action", "action": [[1, 2, 3], [4, 5, 6]]})
    del ask["return_token_ids"]
    for where in (["--plugin", tmp_path / "my.so"], ["--plugin-path", tmp_path]):
        done = subprocess.run([prefix / "bin/quire", "generate", mine, *where, "-i", "-"], input=json.dumps(ask), capture_output=True,
                              text=True)
        assert len(json.loads(done.stdout)["token_ids"]) == 8, done.stderr
