# SPDX-License-Identifier: Apache-2.0
"""thinking_token_budget: at most so many tokens of reasoning, then its end, then the answer, whatever else a request asks for."""
import json
import os
import subprocess

import pytest

from servers import BIN, BUNDLED, Server
from test_reasoning import PLAY, TEMPLATE, WHO

CHAT = "/v1/chat/completions"
OPTIONS = ("--num-gpu-blocks-override", "256", "--reasoning-parser", "qwen3")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "think.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def server(template):
    """The prompt opens reasoning; </think> is several tokens of the vocabulary."""
    one = Server(BUNDLED, "--chat-template", template, *OPTIONS)
    yield one
    assert one.stop() == 0


def renamed(folder):
    """The bundled model with two tokens of its vocabulary renamed to the tags of reasoning; their ids."""
    for file in BUNDLED.iterdir():
        if file.name not in ("tokenizer.json", "README.md"):
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    dropped = sorted(vocab, key=vocab.get)[-2:]  # the last merges make room
    tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"]
                                    if "".join(m if isinstance(m, list) else m.split(" ")) not in dropped]
    ids = [vocab.pop(old) for old in dropped]
    tokenizer["added_tokens"] += [{"id": i, "content": tag, "single_word": False, "lstrip": False, "rstrip": False,
                                   "normalized": False, "special": True} for i, tag in zip(ids, ("<think>", "</think>"))]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return ids


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """A server whose prompt opens nothing, and the ids of the tags: one token each."""
    folder = tmp_path_factory.mktemp("tagged")
    ids = renamed(folder)
    one = Server(folder, *OPTIONS)
    yield one, *ids
    assert one.stop() == 0


def body_of(budget, **more):
    return {"messages": WHO, "max_tokens": 60, "temperature": 1, "seed": 4, "ignore_eos": True, "return_token_ids": True,
            "chat_template_kwargs": {"think": True}, "thinking_token_budget": budget, **more}


def ask(server, budget, **more):
    status, answer = server.post(CHAT, body_of(budget, **more))
    assert status == 200, answer
    return answer


def streamed(server, budget, **more):
    """The same answer from a stream: reasoning, content, token ids of each choice."""
    found = {}
    for event in server.events(CHAT, body_of(budget, **more)):
        for choice in event["choices"]:
            reasoning, content, ids = found.get(choice["index"], ("", "", []))
            delta = choice["delta"]
            found[choice["index"]] = (reasoning + (delta.get("reasoning") or ""), content + (delta.get("content") or ""),
                                      ids + (choice.get("token_ids") or []))
    return [found[i] for i in sorted(found)]


def parts(answer):
    return [(c["message"]["reasoning"] or "", c["message"]["content"] or "", c["token_ids"]) for c in answer["choices"]]


def n_reasoning(answer):
    return answer["usage"]["completion_tokens_details"]["reasoning_tokens"]


def end_of(server):
    return server.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False})[1]["tokens"]


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 20])
def test_reasoning_is_as_long_as_allowed(server, budget):
    """The tokens before are those of the answer without a limit, then the end comes, then content."""
    free, end = parts(ask(server, None))[0], end_of(server)
    assert len(end) > 1 and not free[1]
    answer = ask(server, budget)
    reasoning, content, ids = parts(answer)[0]
    assert ids[:budget + len(end)] == free[2][:budget] + end
    assert content and "</think>" not in reasoning + content and len(ids) == 60
    assert free[0].startswith(reasoning) and (budget > 0) == bool(reasoning)
    assert n_reasoning(answer) >= budget - len(end) and answer["choices"][0]["finish_reason"] == "length"
    assert streamed(server, budget) == [(reasoning, content, ids)]


def test_no_limit(server):
    free = parts(ask(server, None))
    assert parts(ask(server, 10000)) == parts(ask(server, 60)) == free
    without = body_of(None)
    del without["thinking_token_budget"]
    assert parts(server.post(CHAT, without)[1]) == free


def test_every_choice_by_itself(server):
    whole = parts(ask(server, 5, n=4))
    assert len({tuple(ids) for _, _, ids in whole}) == 4
    assert all(ids[5:5 + len(end_of(server))] == end_of(server) and content for _, content, ids in whole)
    assert streamed(server, 5, n=4) == whole
    assert parts(ask(server, 5, n=1)) == whole[:1]


def test_the_limit_goes_before_all_other_masks(server):
    """Of what excludes tokens nothing holds for a forced one, and all of it again afterwards."""
    end = end_of(server)
    few = server.post("/tokenize", {"prompt": "one two", "add_special_tokens": False})[1]["tokens"]
    for more in ({"bad_words": ["</think>", "think", ">"]}, {"allowed_token_ids": few}, {"min_tokens": 60},
                 {"logit_bias": {str(i): -100 for i in end}}, {"no_repeat_ngram_size": 1}, {"stop_token_ids": end, "min_tokens": 40},
                 {"temperature": 0}, {"top_k": 1}, {"top_p": 0.1, "min_p": 0.5}, {"repetition_penalty": 2.0, "presence_penalty": 2},
                 {"temperature": 0, "frequency_penalty": 2}):
        _, content, ids = parts(ask(server, 3, **more))[0]
        assert ids[3:3 + len(end)] == end, more
        if "allowed_token_ids" in more:
            assert {*ids[:3], *ids[3 + len(end):]} <= {*few}
    first = parts(ask(server, 3))[0][1]
    stopped = ask(server, 3, stop=[first[4:8]])["choices"][0]
    assert stopped["finish_reason"] == "stop" and stopped["message"]["content"] == first[:first.index(first[4:8])]


def test_logprobs_are_the_model_s(server):
    end = end_of(server)
    answer = ask(server, 2, logprobs=True, top_logprobs=2)
    tokens = answer["choices"][0]["logprobs"]["content"]
    forced = tokens[2:2 + len(end)]
    assert "".join(t["token"] for t in forced) == "</think>"
    assert all(t["logprob"] < 0 and t["top_logprobs"][0]["logprob"] > t["logprob"] for t in forced[:1])


def test_a_grammar_holds_behind_it(server):
    _, content, ids = parts(ask(server, 4, guided_regex="[0-9]{4}", ignore_eos=False))[0]
    assert content.isdigit() and len(content) == 4 and ids[4:4 + len(end_of(server))] == end_of(server)
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for budget in (0, 1, 9):
        answer = ask(server, budget, response_format=form, ignore_eos=False, n=3)
        assert [json.loads(content) for _, content, _ in parts(answer)] == [{"a": 7}] * 3
        assert [s[:2] for s in streamed(server, budget, response_format=form, ignore_eos=False, n=3)] == [p[:2] for p in parts(answer)]
    call = ask(server, 6, tools=PLAY, tool_choice="required", temperature=0, ignore_eos=False, max_tokens=120)["choices"][0]
    assert call["finish_reason"] == "tool_calls" and call["message"]["tool_calls"][0]["function"]["name"] == "play"
    # no reasoning opened: the grammar holds at once and nothing is forced
    bound = ask(server, 0, guided_regex="[0-9]{4}", ignore_eos=False, chat_template_kwargs={"think": False})
    assert bound["choices"][0]["message"]["content"].isdigit()


def test_a_model_that_opens_reasoning(tagged):
    """The tags are one token each. What comes before the start is no reasoning, and content has no limit."""
    server, begin, end = tagged
    plain = parts(ask(server, None))[0]
    assert begin not in plain[2] and parts(ask(server, 0))[0] == plain  # it does not reason
    for budget in (0, 1, 6):
        for more in ({}, {"guided_regex": "[0-9]{4}", "ignore_eos": False}):
            # the bias makes it open reasoning whenever it may; afterwards a start is content
            answer = ask(server, budget, logit_bias={str(begin): 100, str(end): -100}, max_tokens=30, **more)
            reasoning, content, ids = parts(answer)[0]
            assert ids[0] == begin and ids[1 + budget] == end and ids.count(end) == 1, (more, ids)
            assert n_reasoning(answer) <= budget
            if more:
                assert content.isdigit() and len(content) == 4
    ended = parts(ask(server, 20, logit_bias={str(begin): 90, str(end): 100}, max_tokens=30))[0]
    assert ended[2][0] == end and not ended[0]


def test_completions(tagged, server):
    """A prompt of text or ids that ends in the start marker is inside reasoning; no other is."""
    one, begin, end = tagged
    ids = one.post("/tokenize", {"prompt": "Hi", "add_special_tokens": False})[1]["tokens"]
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "thinking_token_budget": 3}
    for prompt in ("Hi<think>", "Hi<think>\n", [*ids, begin]):
        assert one.complete(prompt, **body)["choices"][0]["token_ids"][3] == end
    for prompt in ("Hi", "<think>Hi", "Hi<think></think>"):
        free = {**body, "thinking_token_budget": None}
        assert one.complete(prompt, **body)["choices"][0]["token_ids"] == one.complete(prompt, **free)["choices"][0]["token_ids"]
    two = server.complete(["Hi<think>", "Hi"], **body)["choices"]
    assert two[0]["token_ids"][3:3 + len(end_of(server))] == end_of(server)
    assert two[1]["token_ids"] == server.complete("Hi", **{**body, "thinking_token_budget": None})["choices"][0]["token_ids"]


def test_in_a_batch_the_same(server):
    """Rows with a limit, with another one and without beside each other: each as alone."""
    import concurrent.futures
    asked = [(budget, seed) for budget in (None, 0, 3, 11) for seed in range(4)]
    alone = [parts(ask(server, budget, seed=seed)) for budget, seed in asked]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda a: parts(ask(server, a[0], seed=a[1])), asked)) == alone


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
DRAFT = {"model": str(BUNDLED), "num_speculative_tokens": 4}
QUESTIONS = [(budget, {"temperature": t, **more}) for budget in (0, 1, 6, 15) for t in (0, 1)
             for more in ({}, {"guided_regex": "(abc ){9}", "ignore_eos": False}, {"logprobs": True})]


def told(server):
    return [(parts(a), [c["logprobs"] for c in a["choices"]]) for a in (ask(server, budget, **more) for budget, more in QUESTIONS)]


@pytest.mark.parametrize("config", [NGRAM, DRAFT], ids=["ngram", "draft"])
def test_speculation(start, server, template, config):
    guessing = start(BUNDLED, "--chat-template", template, *OPTIONS, "--speculative-config", json.dumps(config))
    assert told(guessing) == told(server)
    guessing.wait_metric_above("vllm:spec_decode_num_accepted_tokens_total", 0)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preempted(start, server, template, mode):
    """Samples that need more blocks than there are: some of them lose theirs, inside reasoning or behind it."""
    more = {"n": 6, "max_tokens": 90}
    want = [parts(ask(server, budget, **more)) for budget in (40, 8)]
    tight = start(BUNDLED, "--chat-template", template, "--reasoning-parser", "qwen3", "--num-gpu-blocks-override", "18",
                  "--max-model-len", "256", "--preemption-mode", mode, "--swap-space", "0.1", "--no-enable-prefix-caching")
    assert [parts(ask(tight, budget, **more)) for budget in (40, 8)] == want
    tight.wait_metric_above("vllm:num_preemptions_total", 0)


@pytest.mark.parametrize("victim", ["quire-engine", "quire-worker"])
def test_crashed(start, template, victim):
    """The stream goes on with the tokens it would have had: killed inside reasoning, and behind it."""
    server = start(BUNDLED, "--chat-template", template, *OPTIONS)
    for budget, at in ((150, 40), (10, 60)):
        more = {"max_tokens": 400}
        want = parts(ask(server, budget, **more))
        ids, killed = [], False
        for event in server.events(CHAT, body_of(budget, **more)):
            if isinstance(event, str):
                continue
            ids += [i for c in event["choices"] for i in c.get("token_ids") or []]
            if len(ids) >= at and not killed:
                killed = True
                engine, = server.wait_children("quire-engine")
                os.kill(engine if victim == "quire-engine" else server.wait_children(victim, of=engine)[0], 9)
        assert killed and ids == want[0][2]


def test_batch_and_generate(server, template, tmp_path):
    want = parts(ask(server, 5))[0]
    lines = [{"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", **body_of(5)}}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--chat-template", template, *OPTIONS]
    subprocess.run([BIN / "quire-run-batch", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--model", BUNDLED,
                    "--served-model-name", "m", *options], check=True, capture_output=True, timeout=120)
    answer = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]
    assert parts(answer)[0] == want
    asked = {"messages": WHO, "max_tokens": 60, "temperature": 1, "seed": 4, "ignore_eos": True, "chat_template_kwargs": {"think": True}}
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({**asked, **more}) + "\n" for more in (
        {"thinking_token_budget": 5}, {"thinking_token_budget": -1}, {"thinking_token_budget": 1.5})))
    out = subprocess.run([BIN / "quire-generate", BUNDLED, "--input-file", tmp_path / "lines.jsonl", *options], capture_output=True,
                         text=True, timeout=120)
    given = sorted(map(json.loads, out.stdout.splitlines()), key=lambda line: line["prompt"])
    message = given[0]["message"]
    assert (message["reasoning"], message["content"]) == want[:2]
    assert out.returncode == 1 and all("thinking_token_budget: expected a whole number" in line["error"] for line in given[1:])
    (tmp_path / "lines.jsonl").write_text(json.dumps({**asked, "thinking_token_budget": 5}) + "\n")
    out = subprocess.run([BIN / "quire-generate", BUNDLED, "--input-file", tmp_path / "lines.jsonl", "--num-gpu-blocks-override", "256"],
                         capture_output=True, text=True, timeout=120)
    assert "--reasoning-parser" in json.loads(out.stdout)["error"]


def thinking_of(budget, **more):
    return {"max_tokens": 60, "messages": WHO, "ignore_eos": True, "thinking": {"type": "enabled", "budget_tokens": budget}, **more}


def test_messages(start, template, bundled):
    """Anthropic's budget is the same limit; it has no effect where no reasoning is known, and with thinking disabled."""
    opening = template.with_name("open.jinja")
    opening.write_text("{% set think = true %}" + TEMPLATE)
    server = start(BUNDLED, "--chat-template", opening, *OPTIONS)
    for budget in (0, 3, 1024, 10**12):
        status, answer = server.post("/v1/messages", thinking_of(budget))
        assert status == 200, answer
        kinds = [block["type"] for block in answer["content"]]
        assert kinds == {0: ["text"], 3: ["thinking", "text"]}.get(budget, ["thinking"])
    for thinking in ({"type": "disabled", "budget_tokens": 3}, {"type": "adaptive"}):
        assert server.post("/v1/messages", thinking_of(0, thinking=thinking))[0] == 200
    for wrong in (-1, "3", 1.5, True):
        status, answer = server.post("/v1/messages", thinking_of(wrong))
        assert status == 400 and "thinking.budget_tokens: expected an integer" in answer["error"]["message"], answer
    status, answer = server.post("/v1/messages", thinking_of(3, thinking_token_budget=3))
    assert status == 400 and "thinking.budget_tokens" in answer["error"]["message"]
    assert bundled.post("/v1/messages", thinking_of(3))[0] == 200
    connection, answer = server.raw("POST", "/v1/messages/count_tokens", {"messages": WHO, "thinking": thinking_of(3)["thinking"]})
    assert answer.status == 200 and json.loads(answer.read())["input_tokens"] > 0 and not answer.headers.get("X-Quire-Warning")
    connection.close()


def test_responses(start, template, bundled):
    """OpenAI's API has no such field; as other fields of chats it is accepted there, or refused like theirs."""
    opening = template.with_name("open.jinja")
    opening.write_text("{% set think = true %}" + TEMPLATE)
    server = start(BUNDLED, "--chat-template", opening, *OPTIONS)
    body = {"input": "Hi", "max_output_tokens": 20, "ignore_eos": True, "thinking_token_budget": 3}
    status, answer = server.post("/v1/responses", body)
    assert status == 200 and [item["type"] for item in answer["output"]][:2] == ["reasoning", "message"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    status, answer = bundled.post("/v1/responses", body)
    assert status == 400 and "--reasoning-parser" in answer["error"]["message"]


@pytest.mark.parametrize("budget, said", [(-1, "out of range, expected 0 to"), ("3", "expected an integer"), (1.5, "expected an integer"),
                                          (True, "expected an integer"), (2**40, "out of range")])
def test_wrong_values(server, budget, said):
    status, answer = server.post(CHAT, body_of(budget))
    assert status == 400 and answer["error"]["param"] == "thinking_token_budget" and said in answer["error"]["message"]


def test_refused(server, bundled, start):
    status, answer = server.post(CHAT, body_of(3, use_beam_search=True, n=2))
    assert status == 400 and "thinking_token_budget" in answer["error"]["message"] and "beam" in answer["error"]["message"]
    for path, body in ((CHAT, body_of(3)), ("/v1/completions", {"prompt": "Hi", "thinking_token_budget": 3})):
        status, answer = bundled.post(path, body)
        assert status == 400 and answer["error"]["param"] == "thinking_token_budget"
        assert "--reasoning-parser" in answer["error"]["message"]
    channels = start(BUNDLED, "--reasoning-parser", "openai_gptoss", "--num-gpu-blocks-override", "128")
    status, answer = channels.post(CHAT, body_of(3, chat_template_kwargs={}))
    assert status == 400 and "openai_gptoss" in answer["error"]["message"]
