# SPDX-License-Identifier: Apache-2.0
"""Fields beyond OpenAI's, through the openai client's extra_body: what they do, and what a wrong value gets."""
import json
import math
import threading

import openai
import pytest

from servers import MODELS

PROMPT = "quire is"


def text(client, prompt=PROMPT, **extra):
    fields = {"max_tokens": 8, "temperature": 0}
    fields.update({k: extra.pop(k) for k in list(extra) if k in ("max_tokens", "temperature", "seed", "echo", "logprobs")})
    return client.completions.create(model="quire-tiny", prompt=prompt, extra_body=extra, **fields).choices[0].text


def test_allowed_token_ids(client, bundled):
    few = bundled.post("/tokenize", {"prompt": "one two", "add_special_tokens": False})[1]["tokens"]
    answer = client.completions.create(model="quire-tiny", prompt=PROMPT, max_tokens=8, temperature=1.5, seed=1,
                                       extra_body={"allowed_token_ids": few, "return_token_ids": True, "ignore_eos": True})
    assert set(answer.choices[0].token_ids) <= set(few) and len(answer.choices[0].token_ids) == 8


def test_bad_words(client):
    plain = text(client, max_tokens=16)
    word = max(plain.split(), key=len)
    assert word in plain
    assert word not in text(client, bad_words=[word], max_tokens=16)
    assert text(client, bad_words=[], max_tokens=16) == plain


def test_logits_processors(wide):
    def ids(**more):
        return wide.complete([5, 6, 7, 8], max_tokens=40, temperature=0, ignore_eos=True, **more)["choices"][0]["token_ids"]

    def pairs(tokens):
        both = [5, 6, 7, 8] + tokens
        return list(zip(both, both[1:]))
    loop = ids(logit_bias={"77": 30, "78": 28})  # keeps saying the same
    assert len(set(pairs(loop))) < len(pairs(loop))
    for body in [{"no_repeat_ngram_size": 2}, {"logits_processors": [{"qualname": "no_repeat_ngram", "args": [2]}]}]:
        fresh = ids(logit_bias={"77": 30, "78": 28}, **body)
        assert len(set(pairs(fresh))) == len(pairs(fresh))
    first = ids()[0]
    assert first not in ids(logits_processors=[{"qualname": "suppress_tokens", "kwargs": {"token_ids": [first]}}])
    hot = {"temperature": 2, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    greedy = wide.complete([5, 6, 7], **{**hot, "temperature": 0})["choices"][0]["token_ids"]
    assert wide.complete([5, 6, 7], **hot)["choices"][0]["token_ids"] != greedy
    assert wide.complete([5, 6, 7], **hot, top_n_sigma=1e-4)["choices"][0]["token_ids"] == greedy


def test_truncate_prompt_tokens(client, wide):
    whole, tail = [9, 8, 7, 6, 5, 4, 3], [5, 4, 3]
    body = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def ask(prompt, **more):
        answer = wide.complete(prompt, **body, **more)
        return answer["choices"][0]["token_ids"], answer["choices"][0]["prompt_token_ids"]
    assert ask(whole, truncate_prompt_tokens=3) == ask(tail)
    assert ask(whole, truncate_prompt_tokens=3, truncation_side="right") == ask(whole[:3])
    assert ask(whole, truncate_prompt_tokens=100) == ask(whole) == ask(whole, truncate_prompt_tokens=-1)
    limit = wide.get("/v1/models")[1]
    limit = int(limit.split('"max_model_len":')[1].split(",")[0])
    long = [1 + i % 90 for i in range(limit + 50)]
    assert ask(long, truncate_prompt_tokens=-1)[1] == long[-(limit - 6):]
    status, answer = wide.post("/v1/completions", {"prompt": [1], "truncate_prompt_tokens": limit + 1})
    assert status == 400 and answer["error"]["param"] == "truncate_prompt_tokens" and str(limit) in answer["error"]["message"]
    # an echo shows what the model was given, and with it the logprobs fit
    echo = client.completions.create(model="quire-tiny", prompt="one two three four", max_tokens=1, echo=True, logprobs=0,
                                     extra_body={"truncate_prompt_tokens": 2}).choices[0]
    assert "".join(echo.logprobs.tokens) == echo.text and "one" not in echo.text


def test_who_asks_changes_nothing(client):
    plain = text(client)
    for extra in [{"priority": -5}, {"priority": 7}, {"cache_salt": "mine"}, {"enable_prefix_caching": False}, {"user": "u"},
                  {"request_id": "r"}, {"stream_interval": 10}]:
        assert text(client, **extra) == plain


@pytest.mark.parametrize("extra, param, words", [
    ({"allowed_token_ids": []}, "allowed_token_ids", ["0 entries"]),
    ({"allowed_token_ids": [10**9]}, "allowed_token_ids", ["entry 0"]),
    ({"bad_words": [""]}, "bad_words", ["entry 0", "empty"]),
    ({"bad_words": "x"}, "bad_words", ["array"]),
    ({"logits_processors": ["my.module.f"]}, "logits_processors", ["my.module.f", "top_n_sigma(n)", "no_repeat_ngram("]),
    ({"no_repeat_ngram_size": 65}, "no_repeat_ngram_size", ["0 to 64"]),
    ({"thinking_token_budget": -1}, "thinking_token_budget", ["-1", "0 to 16777216"]),
    ({"thinking_token_budget": 0}, "thinking_token_budget", ["reasoning parser", "--reasoning-parser"]),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", ["1 or more", "-1"]),
    ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side", ["left", "right"]),
    ({"priority": 2**31}, "priority", ["2147483647"]),
    ({"cache_salt": ""}, "cache_salt", ["1 to 1024"]),
    ({"cache_salt": "x" * 1025}, "cache_salt", ["1025"]),
    ({"enable_prefix_caching": "no"}, "enable_prefix_caching", ["true or false"]),
    ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params", ["not supported", "between engines"]),
])
def test_wrong_values_are_refused_by_name(client, extra, param, words):
    with pytest.raises(openai.BadRequestError) as refused:
        text(client, **extra)
    assert refused.value.param == param
    for word in words:
        assert word in refused.value.message


def test_nothing_left_to_say_fails_one_request(client, bundled):
    """What allowed ids and bad words leave may be nothing."""
    one = bundled.post("/tokenize", {"prompt": "x", "add_special_tokens": False})[1]["tokens"][:1]
    with pytest.raises(openai.BadRequestError, match="no token is allowed next"):
        text(client, allowed_token_ids=one, logits_processors=[{"qualname": "suppress_tokens", "args": [one]}])
    assert text(client)


def test_reset_prefix_cache(bundled):
    """As training loops call it: no body, no content type; but not from a page of another origin."""
    connection, answer = bundled.raw("POST", "/reset_prefix_cache")
    assert answer.status == 200 and answer.read() == b""
    connection.close()
    connection, answer = bundled.raw("POST", "/reset_prefix_cache", headers={"Origin": "http://elsewhere"})
    assert answer.status == 415
    connection.close()
    assert bundled.get("/reset_prefix_cache")[0] == 405


def test_all_logprobs(start):
    """--max-logprobs -1: the whole vocabulary for every token, with neighbours that want some of it, or none."""
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--max-logprobs", "-1")
    n_vocab = json.loads((MODELS / "llama" / "config.json").read_text())["vocab_size"]
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    some = server.complete([5, 6, 7], logprobs=3, **body)["choices"][0]
    answers = []

    def ask(n):
        answers.append(server.complete([5, 6, 7], logprobs=n, prompt_logprobs=n, **body)["choices"][0])
    threads = [threading.Thread(target=ask, args=(n,)) for n in (-1, 2, -1, None, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = [a for a in answers if a["logprobs"] and len(a["logprobs"]["top_logprobs"][0]) == n_vocab]
    assert len(whole) == 3
    for answer in answers:
        assert answer["token_ids"] == some["token_ids"]
    for answer in whole:
        assert answer["logprobs"]["token_logprobs"] == some["logprobs"]["token_logprobs"]
        for row, few in zip(answer["logprobs"]["top_logprobs"], some["logprobs"]["top_logprobs"]):
            assert len(row) == n_vocab and few.items() <= row.items()
            assert abs(sum(math.exp(v) for v in row.values()) - 1) < 1e-4
        assert [len(row) for row in answer["prompt_logprobs"][1:]] == [n_vocab] * 2
        ranks = sorted(entry["rank"] for entry in answer["prompt_logprobs"][1].values())
        assert ranks == list(range(1, n_vocab + 1))
    assert server.post("/v1/completions", {"prompt": [1], "logprobs": 10**6, **body})[0] == 200  # all there are
    status, answer = server.post("/v1/completions", {"prompt": [1], "logprobs": -2, **body})
    assert status == 400 and answer["error"]["param"] == "logprobs"


def test_all_logprobs_are_off_by_default(client, wide):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="quire-tiny", prompt=PROMPT, logprobs=-1)
    assert refused.value.param == "logprobs" and "--max-logprobs" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="quire-tiny", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=-1)
    assert refused.value.param == "top_logprobs" and "20" in refused.value.message
    status, answer = wide.post("/v1/completions", {"prompt": [1], "prompt_logprobs": -1})
    assert status == 400 and answer["error"]["param"] == "prompt_logprobs"


def warned(server, path, body, **more):
    connection, answer = server.raw("POST", path, body, **more)
    text = answer.read()
    connection.close()
    return answer.status, answer.headers["x-quire-warning"], text


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@pytest.mark.parametrize("extra, want", [
    ({"temperatur": 0}, "temperatur (did you mean temperature?)"), ({"topP": 1}, "topP (did you mean top_p?)"),
    ({"max-tokens": 1}, "max-tokens (did you mean max_tokens?)"), ({"maxtoken": 1}, "maxtoken (did you mean max_tokens?)"),
    ({"something_else": 1}, "something_else"), ({"x": 1}, "x"),
    ({"a b": 1, "c\r\nSet-Cookie: d": 2, "\u00e9\u4e16,": 3}, "a%20b, c%0D%0ASet-Cookie:%20d, %C3%A9%E4%B8%96%2C"),
    ({"response_format": {"type": "text", "jsonschema": 1}}, "response_format.jsonschema (did you mean json_schema?)"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string"}, "strictt": True}}},
     "response_format.json_schema.strictt (did you mean strict?)"),
    ({"tools": [{"type": "function", "function": {"name": "f", "paramters": {}, "returns": {}}}], "tool_choice": "auto"},
     "tools[0].function.paramters (did you mean parameters?)"),
    ({"nothing": None}, None), ({"temperature": 0, "seed": 1}, None),
])
def test_unknown_fields_are_told(bundled, extra, want):
    status, warning, text = warned(bundled, "/v1/chat/completions", {**CHAT, **extra})
    assert status == 200, text
    assert warning == (want and "ignored unknown fields: " + want)


def test_unknown_fields_elsewhere(bundled):
    """In streams, in errors, beside known fields that are refused; and a list of them stays short."""
    assert "temperatur " in warned(bundled, "/v1/completions", {"prompt": "a", "max_tokens": 1, "temperatur": 0})[1]
    assert "add_special_token " in warned(bundled, "/tokenize", {"prompt": "a", "add_special_token": True})[1]
    stream = {"stream": True, "stream_options": {"include_usge": True}}
    status, warning, text = warned(bundled, "/v1/chat/completions", {**CHAT, **stream, "temperatur": 0})
    assert status == 200 and "temperatur " in warning and "stream_options.include_usge (did you mean include_usage?)" in warning
    status, warning, text = warned(bundled, "/v1/chat/completions", {**CHAT, "temperatur": 0, "top_p": 2})
    assert status == 400 and "temperatur " in warning and json.loads(text)["error"]["param"] == "top_p"
    status, warning, text = warned(bundled, "/v1/chat/completions", {**CHAT, **{"\u00e9" * 300 + str(i): i for i in range(500)}})
    assert status == 200 and len(warning) < 1024 and warning.endswith(" and %d more" % (500 - 1 - warning.count(", ")))


def test_fields_of_a_chat_elsewhere(bundled):
    """/tokenize takes the body of a chat: what changes the prompt does so, the others have no effect and are told."""
    _, warning, text = warned(bundled, "/tokenize", {**CHAT, "temperature": 0, "tool_choice": "none", "unknwn": 1, "logprobs": True, "audio": {}})
    assert warning.startswith("ignored unknown fields: unknwn; fields without effect: ")
    assert set(warning.partition("effect: ")[2].split(", ")) == {"temperature", "logprobs", "audio"} | set(CHAT) - {"model", "messages"}
    plain = bundled.post("/tokenize", {"messages": CHAT["messages"]})[1]["tokens"]
    assert json.loads(text)["tokens"] == plain
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("one", "two")]
    ask = {"messages": CHAT["messages"], "tools": tools}
    both = bundled.post("/tokenize", ask)[1]["tokens"]
    one = bundled.post("/tokenize", {**ask, "tools": tools[:1]})[1]["tokens"]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "one"}}]}}
    assert len(both) > len(one) > len(plain)
    assert bundled.post("/tokenize", {**ask, "tool_choice": "none"})[1]["tokens"] == plain
    assert bundled.post("/tokenize", {**ask, "tool_choice": allowed})[1]["tokens"] == one
    for effort in (None, "none", "high"):
        body = {**CHAT, "max_tokens": 1, "reasoning_effort": effort}
        assert bundled.post("/tokenize", body)[1]["count"] == bundled.post("/v1/chat/completions", body)[1]["usage"]["prompt_tokens"]
    status, warning, _ = warned(bundled, "/detokenize", {"tokens": both, "temperature": 1, "messages": []})
    assert status == 200 and warning == "fields without effect: temperature, messages"


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": ["a"]}, "prompt"), ("/tokenize", {"messages": [1]}, "messages"),
    ("/tokenize", {"messages": [{"role": "usr", "content": "x"}]}, "messages"), ("/tokenize", {**CHAT, "tools": [1]}, "tools"),
    ("/tokenize", {**CHAT, "reasoning_effort": "bogus"}, "reasoning_effort"), ("/tokenize", {**CHAT, "chat_template": "{{ 1 }}"}, "chat_template"),
    ("/tokenize", {"prompt": "a", "model": "none"}, "model"), ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": ["x"]}, "tokens"),
    ("/detokenize", {"tokens": [10**9]}, "tokens"), ("/detokenize", {"tokens": [1, None]}, "tokens")])
def test_param_of_tokenize(bundled, path, body, param):
    status, answer = bundled.post(path, body)
    assert status == (404 if param == "model" else 400) and answer["error"]["param"] == param, answer


def test_efforts_and_verbosity(bundled):
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        assert bundled.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "reasoning_effort": effort})[0] == 200
    for effort in ("bogus", "", "High"):
        status, answer = bundled.post("/v1/chat/completions", {**CHAT, "reasoning_effort": effort})
        assert status == 400 and answer["error"]["param"] == "reasoning_effort"
        assert "none, minimal, low, medium, high, xhigh, max" in answer["error"]["message"]
    for value, want in [("medium", None), ("low", "fields without effect: verbosity"), ("high", "fields without effect: verbosity")]:
        assert warned(bundled, "/v1/chat/completions", {**CHAT, "max_tokens": 1, "verbosity": value})[:2] == (200, want)
    status, answer = bundled.post("/v1/chat/completions", {**CHAT, "verbosity": "loud"})
    assert status == 400 and answer["error"]["param"] == "verbosity" and "medium low high" in answer["error"]["message"]


def test_many_unknown_fields_and_the_model(bundled):
    """16 names are listed; of a model that is not there nothing else is told."""
    many = {f"k{i}": i for i in range(3000)}
    status, warning, _ = warned(bundled, "/v1/chat/completions", {**many, **CHAT, "max_tokens": 1})
    assert status == 200 and warning.endswith("k15 and 2984 more")
    status, warning, text = warned(bundled, "/v1/chat/completions", {**many, **CHAT, "model": "none"})
    assert status == 404 and warning is None and json.loads(text)["error"]["param"] == "model"


def test_strict_fields(start):
    from servers import BUNDLED
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--strict-fields")
    assert warned(server, "/v1/chat/completions", CHAT)[:2] == (200, None)
    for path, extra, param, words in [("/v1/chat/completions", {"temperatur": 0}, "temperatur", ["did you mean temperature?", "--strict-fields"]),
                                      ("/v1/chat/completions", {"response_format": {"type": "text", "x": 1}}, "response_format.x", ["unknown field"]),
                                      ("/tokenize", {"mesages": []}, "mesages", ["messages"])]:
        status, warning, text = warned(server, path, {**CHAT, **extra} if "chat" in path else {"prompt": "a", **extra})
        error = json.loads(text)["error"]
        assert status == 400 and error["param"] == param, error
        for word in words:
            assert word in error["message"]


@pytest.mark.parametrize("role, status", [
    ("system", 200), ("developer", 200), ("user", 200), ("assistant", 200), ("tool", 200), ("function", 200),
    ("usr", 400), ("User", 400), ("critic", 400), ("content", 400), ("role", 400)])
def test_roles(bundled, role, status):
    body = {**CHAT, "messages": [{"role": role, "content": "Hi"}, {"role": "user", "content": "Hi"}]}
    got, answer = bundled.post("/v1/chat/completions", body)
    assert got == status or "template" in answer["error"]["message"], answer  # which may have rules of its own
    if status == 400:
        assert got == 400 and answer["error"]["param"] == "messages" and "entry 0" in answer["error"]["message"]
        assert "developer" in answer["error"]["message"]
    assert bundled.post("/tokenize", {"messages": body["messages"]})[0] == got
    if role == "usr":
        assert 'did you mean "user"?' in answer["error"]["message"]


def test_a_role_of_the_template(start, tmp_path):
    from servers import BUNDLED
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{% if m['role'] in ['critic', \"ipython\"] %}<{{ m.role }}>{% endif %}{{ m['content'] }}{% endfor %}")
    server = start(BUNDLED, "--chat-template", template)
    for role, status in [("critic", 200), ("ipython", 200), ("content", 400), ("observer", 400)]:
        assert server.post("/v1/chat/completions", {**CHAT, "messages": [{"role": role, "content": "Hi"}]})[0] == status


def test_histories_in_the_older_form(bundled):
    """function_call, role "function" and refusal give the prompt that their newer forms give."""
    ask = {"role": "user", "content": "Weather in Oslo?"}
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    older = [ask, {"role": "assistant", "content": None, "function_call": call}, {"role": "function", "name": "get_weather", "content": "4"},
             {"role": "assistant", "content": None, "refusal": "I will not say."}, ask]
    newer = [ask, {"role": "assistant", "content": None, "tool_calls": [{"id": "call00001", "type": "function", "function": call}]},
             {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "4"},
             {"role": "assistant", "content": "I will not say."}, ask]
    prompts = [bundled.post("/tokenize", {"messages": m})[1]["tokens"] for m in (older, newer, [ask, ask])]
    assert prompts[0] == prompts[1] and len(prompts[0]) > len(prompts[2]) + 20
