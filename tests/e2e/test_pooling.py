# SPDX-License-Identifier: Apache-2.0
"""Embeddings, scores and classes through the HTTP API: the reference answers of transformers (tests/data/pooling/*/golden.json), the
OpenAI client, vLLM's routes, and what is refused. Tolerances: embeddings 1e-4, logits 2e-4 of the largest."""
import base64
import json
import math
import struct
import subprocess
import threading

import numpy as np
import openai
import pytest

from servers import BIN, MODELS, ROOT, Server

POOLING = ROOT / "tests/data/pooling"
NAMES = sorted(p.parent.name for p in POOLING.glob("*/golden.json"))
TEXT = ["Hello, world!", "The quick brown fox jumps over 13 lazy dogs."]


def arrays(name):
    """The float arrays of a golden.safetensors by name."""
    data = (POOLING / name / "golden.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    found = {}
    for key, value in json.loads(data[8:8 + n]).items():
        if key != "__metadata__" and value["dtype"] == "F32":
            begin, end = (8 + n + x for x in value["data_offsets"])
            found[key] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


def serve(name, *more):
    tokens = () if (POOLING / name / "tokenizer.json").exists() else ("--skip-tokenizer-init",)
    return Server(POOLING / name, "--dtype", "float32", *tokens, *more)


def near(got, want, most):
    assert len(got) == len(want)
    assert max(abs(a - b) for a, b in zip(got, want)) <= most


def vector(server, ids, **more):
    status, answer = server.post("/v1/embeddings", {"input": ids, **more})
    assert status == 200, answer
    return answer["data"][0]["embedding"]


@pytest.fixture(scope="module")
def bert():
    server = serve("bert")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def rerank():
    server = serve("bert-rerank")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(bert):
    return openai.OpenAI(base_url=bert.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_goldens(name):
    reference, expected = json.loads((POOLING / name / "golden.json").read_text()), arrays(name)
    server = serve(name)
    checked = 0
    for i, prompt in enumerate(reference["prompts"]):
        if "token_type_ids" in prompt:  # of the library's tests: requests have types by texts only
            continue
        for raw in (False, True):
            if reference["kind"] == "embed":
                near(vector(server, prompt["ids"], normalize=not raw), expected[f"p{i}.pooled" + ("" if raw else "_normalized")], 1e-4)
            else:
                status, answer = server.post("/pooling", {"input": prompt["ids"], "use_activation": not raw})
                assert status == 200, answer
                want = expected[f"p{i}.logits" if raw else f"p{i}.probs"]
                near(answer["data"][0]["data"], want, 2e-4 * max(map(abs, want)))
            checked += 1
    for text in reference.get("text", []):
        if "text_pair" in text:
            status, answer = server.post("/score", {"text_1": text["text"], "text_2": text["text_pair"], "use_activation": False})
            assert status == 200 and answer["usage"]["prompt_tokens"] == len(text["ids"]), answer
            near([answer["data"][0]["score"]], text["logits"], 2e-4 * max(map(abs, text["logits"])))
        else:
            near(vector(server, text["text"]), text["embedding_normalized"], 1e-4)
        checked += 1
    assert checked >= 5
    assert server.stop() == 0


def test_openai_client(client, bert):
    assert [m.id for m in client.models.list().data] == ["bert"]
    answer = client.embeddings.create(model="bert", input=TEXT)  # the client asks for base64
    assert answer.object == "list" and [d.index for d in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 10
    floats = client.embeddings.create(model="bert", input=TEXT, encoding_format="float")
    for a, b in zip(answer.data, floats.data):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-8)
        assert math.isclose(sum(x * x for x in a.embedding), 1, rel_tol=1e-5)
    single = client.embeddings.create(model="bert", input=TEXT[1], encoding_format="float")
    assert single.data[0].embedding == floats.data[1].embedding  # the same bits alone and in a batch
    ids = bert.post("/tokenize", {"prompt": TEXT[1]})[1]["tokens"]
    assert client.embeddings.create(model="bert", input=ids, encoding_format="float").data[0].embedding == single.data[0].embedding
    lists = client.embeddings.create(model="bert", input=[ids, ids[:3]], encoding_format="float")
    assert lists.data[0].embedding == single.data[0].embedding != lists.data[1].embedding
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.completions.create(model="bert", prompt="x")


def test_request_id(bert):
    assert bert.post("/v1/embeddings", {"input": TEXT, "request_id": "e1"})[1]["id"] == "embd-e1"
    status, answer = bert.post("/v1/embeddings", {"input": TEXT, "request_id": "e 1"})
    assert status == 400 and answer["error"]["param"] == "request_id"


def test_encodings(bert):
    raw = vector(bert, TEXT[0], encoding_format="base64")
    assert list(struct.unpack("<64f", base64.b64decode(raw))) == pytest.approx(vector(bert, TEXT[0]), abs=1e-9)


FORMATS = {"float32": "f", "float16": "e", "bfloat16": "H", "fp8_e4m3": "B", "fp8_e5m2": "B"}


def number(code, dtype):
    """The value of a code, by the definition of its format."""
    if dtype in ("float32", "float16"):
        return code
    bits, mantissa, bias = {"bfloat16": (16, 7, 127), "fp8_e4m3": (8, 3, 7), "fp8_e5m2": (8, 2, 15)}[dtype]
    sign, code = (-1 if code >> (bits - 1) else 1), code & ((1 << bits - 1) - 1)
    exponent, part = code >> mantissa, code & ((1 << mantissa) - 1)
    return sign * ((part + (1 << mantissa)) * 2.0 ** (exponent - bias - mantissa) if exponent else part * 2.0 ** (1 - bias - mantissa))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("path, member", [("/v1/embeddings", "embedding"), ("/pooling", "data")])
def test_embed_dtypes(bert, dtype, path, member):
    """The numbers of the float answer, rounded to the nearest of the format; big is little with the bytes of each number turned."""
    def data(**more):
        status, answer = bert.post(path, {"input": TEXT, "embed_dtype": dtype, **more})
        assert status == 200, answer
        return [d[member] for d in answer["data"]]
    exact = data(encoding_format="float")
    little, big, native = ([base64.b64decode(v) for v in data(encoding_format="base64", endianness=e)] for e in ("little", "big", "native"))
    assert native == (little if struct.pack("=H", 1) == b"\1\0" else big)
    width = struct.calcsize("<" + FORMATS[dtype])
    step = {"float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8, "fp8_e4m3": 2.0 ** -4, "fp8_e5m2": 2.0 ** -3}[dtype]
    smallest = {"fp8_e4m3": 2.0 ** -10, "fp8_e5m2": 2.0 ** -17, "float16": 2.0 ** -25}.get(dtype, 0)
    for values, small, large in zip(exact, little, big):
        assert len(small) == len(large) == 64 * width
        assert large == b"".join(small[i:i + width][::-1] for i in range(0, len(small), width))
        got = [number(c, dtype) for c in struct.unpack("<64" + FORMATS[dtype], small)]
        assert all(abs(g - v) <= max(abs(v) * step, smallest) * 1.0001 for g, v in zip(got, values)), dtype
        if dtype == "float16":
            assert small == struct.pack("<64e", *values)


def test_bytes(bert):
    """The body is the numbers of all vectors; vLLM's header says where each is."""
    exact = bert.post("/v1/embeddings", {"input": TEXT})[1]
    for form in ("bytes", "bytes_only"):
        for path, object_ in (("/v1/embeddings", "embedding"), ("/pooling", "pooling")):
            connection, answer = bert.raw("POST", path, {"input": TEXT, "encoding_format": form, "embed_dtype": "float16",
                                                         "endianness": "big"})
            body = answer.read()
            connection.close()
            assert answer.status == 200 and answer.getheader("Content-Type") == "application/octet-stream", (object_, body)
            for i, row in enumerate(exact["data"]):
                assert body[i * 128:(i + 1) * 128] == struct.pack(">64e", *row["embedding"])
            assert len(body) == 256
            if form == "bytes_only":
                assert answer.getheader("metadata") is None
                continue
            told = json.loads(answer.getheader("metadata"))
            assert told["model"] == "bert" and told["usage"] == {k: exact["usage"][k] for k in ("prompt_tokens", "total_tokens")}
            assert told["data"] == [{"index": i, "embed_dtype": "float16", "endianness": "big", "start": i * 128, "end": (i + 1) * 128,
                                     "shape": [64]} for i in range(2)]
    status, answer = bert.post("/v1/embeddings", {"input": ["x"] * 2000, "encoding_format": "bytes"})
    assert status == 400 and answer["error"]["param"] == "encoding_format" and "bytes_only" in answer["error"]["message"], answer


TEMPLATE = ("{% for m in messages %}[CLS] {{ m.role }} {{ m.content }}{% if not (loop.last and continue_final_message) %} [SEP]{% endif %}"
            "{% endfor %}{% if add_generation_prompt %} the answer{% endif %}{% if mood is defined %} {{ mood }}{% endif %}")


@pytest.fixture(scope="module")
def chatting():
    server = serve("bert", "--chat-template", TEMPLATE)
    yield server
    assert server.stop() == 0


def test_messages(chatting):
    """The conversation's prompt is that of the chat endpoint, which /tokenize shows; special tokens are the template's."""
    user = {"role": "user", "content": "the quick fox"}
    said = [user, {"role": "assistant", "content": "jumps over"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "the quick fox"}]}]
    cases = [
        ({"messages": [user]}, {}),
        ({"messages": parts}, {}),
        ({"messages": said}, {}),
        ({"messages": said, "add_generation_prompt": True}, {}),
        ({"messages": said, "continue_final_message": True}, {}),
        ({"messages": said, "chat_template_kwargs": {"mood": "lazy"}}, {}),
        ({"messages": said, "add_special_tokens": True}, {}),
        ({"messages": [{"role": "user", "content": "fox [SEP] [CLS] dogs"}]}, {}),
    ]
    seen = []
    for body, _ in cases:
        shown = chatting.post("/tokenize", {"add_generation_prompt": False, **body})[1]["tokens"]
        status, answer = chatting.post("/v1/embeddings", body)
        assert status == 200 and answer["usage"]["prompt_tokens"] == len(shown), answer
        assert answer["data"][0]["embedding"] == vector(chatting, shown), body
        status, pooled = chatting.post("/pooling", body)
        assert status == 200 and len(pooled["data"]) == 1 and pooled["data"][0]["data"] == answer["data"][0]["embedding"]
        seen.append(tuple(shown))
    assert seen[0] == seen[1] and len(set(seen)) == len(cases) - 1
    sep = chatting.post("/tokenize", {"prompt": ""})[1]["tokens"][-1]
    assert seen[2].count(sep) == 2 and seen[-1].count(sep) == 1  # the text of a message has no special tokens
    # Cut: its first or last tokens; special tokens that are added stay.
    long = {"messages": [{"role": "user", "content": "fox dogs " * 40}]}
    ids = chatting.post("/tokenize", {**long, "add_generation_prompt": False})[1]["tokens"]
    for side, part in (("right", ids[:7]), ("left", ids[-7:])):
        assert chatting.post("/v1/embeddings", {**long, "truncate_prompt_tokens": 7, "truncation_side": side})[1]["data"][0]["embedding"] \
            == vector(chatting, part)
    assert chatting.post("/v1/embeddings", {**long, "truncate_prompt_tokens": 7, "add_special_tokens": True})[1]["data"][0]["embedding"] \
        == vector(chatting, ids[:1] + ids[:5] + [sep])


@pytest.mark.parametrize("body, param, message", [
    ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "messages", "input"),
    ({"messages": []}, "messages", "0 entries"),
    ({"messages": "x"}, "messages", "expected an array, got a string"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages", "image_url"),
    ({"messages": [{"role": "user"}]}, "messages", "content"),
    ({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True, "continue_final_message": True},
     "continue_final_message", "add_generation_prompt"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}, "chat_template", "--trust-request-chat-template"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": []}, "chat_template_kwargs", "expected an object"),
    ({"messages": [{"role": "user", "content": "x"}], "prompt_name": "query"}, "prompt_name", "messages"),
    ({"messages": [{"role": "user", "content": "fox " * 300}]}, "messages", "maximum context length is 256"),
])
def test_refused_messages(chatting, body, param, message):
    for path in ("/v1/embeddings", "/pooling"):
        status, answer = chatting.post(path, body)
        assert status == 400 and answer["error"]["param"] == param and message in answer["error"]["message"], answer


def test_messages_without_a_template(bert):
    status, answer = bert.post("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}]})
    assert status == 400 and answer["error"]["param"] == "messages" and "has no chat template" in answer["error"]["message"], answer
    assert "input accepts plain text" in answer["error"]["message"], answer


def test_a_class_of_messages(start):
    server = start(POOLING / "bert-rerank", "--dtype", "float32", "--chat-template", TEMPLATE)
    body = {"messages": [{"role": "user", "content": "the quick fox"}]}
    ids = server.post("/tokenize", {**body, "add_generation_prompt": False})[1]["tokens"]
    status, answer = server.post("/classify", body)
    assert status == 200 and answer["data"] == server.post("/classify", {"input": ids})[1]["data"], answer


def test_thousands_of_texts(bert):
    """In one request, beside one that does not wait for all of them."""
    texts = [f"{TEXT[i % 2]} {i}" for i in range(3000)]
    answers = {}

    def ask():
        answers["many"] = bert.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
    thread = threading.Thread(target=ask)
    thread.start()
    small = [vector(bert, TEXT[0]) for _ in range(5)]
    thread.join()
    status, many = answers["many"]
    assert status == 200 and [d["index"] for d in many["data"]] == list(range(3000))
    assert all(v == small[0] for v in small)
    for i in (0, 1, 1499, 2999):
        assert many["data"][i]["embedding"] == vector(bert, texts[i], encoding_format="base64")
    status, answer = bert.post("/v1/embeddings", {"input": ["x"] * 20000})
    assert status == 413 or status == 400, answer


@pytest.mark.parametrize("body, param, message", [
    ({}, "input", "missing"),
    ({"input": []}, "input", "at least one"),
    ({"input": ""}, None, None),
    ({"input": 7}, "input", "expected a string"),
    ({"input": [[]]}, "input", "empty"),
    ({"input": [1, 512]}, "input", "vocabulary"),
    ({"input": ["a", 1]}, "input", "expected a string or an array"),
    ({"input": "x", "encoding_format": "int8"}, "encoding_format", "float base64 bytes bytes_only"),
    ({"input": "x", "encoding_format": 1}, "encoding_format", "expected a string"),
    ({"input": "x", "dimensions": 8}, "dimensions", "matryoshka"),
    ({"input": "x", "dimensions": 0}, "dimensions", "expected 1 to 64"),
    ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1 on"),
    ({"input": "x", "truncate_prompt_tokens": 1000}, "truncate_prompt_tokens", "maximum length"),
    ({"input": [5] * 300}, "input", "maximum context length is 256"),
    ({}, "input", "input or messages"),
    ({"input": "x", "embed_dtype": "int8"}, "embed_dtype", "fp8_e5m2"),
    ({"input": "x", "endianness": "middle"}, "endianness", "native big little"),
])
def test_refused_embeddings(bert, body, param, message):
    status, answer = bert.post("/v1/embeddings", body)
    if message is None:  # a text of special tokens alone
        assert status == 200, answer
        return
    assert status == 400, answer
    error = answer["error"]
    assert error["type"] == "invalid_request_error" and message in error["message"] and (param is None or error["param"] == param), error


def test_truncation(bert):
    ids = bert.post("/tokenize", {"prompt": TEXT[1]})[1]["tokens"]
    cut = vector(bert, TEXT[1], truncate_prompt_tokens=6)
    assert cut == vector(bert, ids[:5] + ids[-1:])  # special tokens stay
    assert vector(bert, TEXT[1], truncate_prompt_tokens=6, truncation_side="left") == vector(bert, ids[:1] + ids[-5:])
    assert vector(bert, [5] * 300, truncate_prompt_tokens=-1) == vector(bert, [5] * 256)


def test_older_names_of_norms(tmp_path, bert):
    """LayerNorm.gamma and .beta, as bert-base-uncased has them and as transformers 5 saves BERT."""
    for path in (POOLING / "bert").iterdir():
        if path.name != "model.safetensors":
            (tmp_path / path.name).symlink_to(path)
    data = (POOLING / "bert/model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + n].replace(b"LayerNorm.weight", b"LayerNorm.gamma").replace(b"LayerNorm.bias", b"LayerNorm.beta")
    assert header != data[8:8 + n]
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data[8 + n:])
    server = Server(tmp_path, "--dtype", "float32")
    assert vector(server, TEXT[1]) == vector(bert, TEXT[1])
    assert server.stop() == 0


def test_dimensions(tmp_path):
    for path in (POOLING / "bert").iterdir():
        if path.name not in ("config.json", "config_v5.json"):
            (tmp_path / path.name).symlink_to(path)
    config = json.loads((POOLING / "bert/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [16, 32]}))
    server = Server(tmp_path, "--dtype", "float32")
    whole, part = vector(server, TEXT[0], normalize=False), vector(server, TEXT[0], dimensions=16)
    length = math.sqrt(sum(x * x for x in whole[:16]))
    near(part, [x / length for x in whole[:16]], 1e-6)
    assert server.post("/v1/embeddings", {"input": "x", "dimensions": 24})[0] == 400
    assert server.stop() == 0


def test_prompts(tmp_path, bert):
    """Of sentence-transformers: before texts, by name or the folder's own."""
    for path in (POOLING / "bert").iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(
        {"prompts": {"query": "query: ", "plain": ""}, "default_prompt_name": "query"}))
    server = Server(tmp_path, "--dtype", "float32")
    assert vector(server, TEXT[0]) == vector(server, TEXT[0], prompt_name="query") == vector(bert, "query: " + TEXT[0])
    assert vector(server, TEXT[0], prompt_name="plain") == vector(bert, TEXT[0]) != vector(server, TEXT[0])
    assert vector(server, TEXT[1], truncate_prompt_tokens=5) == vector(bert, "query: " + TEXT[1], truncate_prompt_tokens=5)
    assert vector(server, [5, 9, 20]) == vector(bert, [5, 9, 20])
    for target, body, message in ((server, {"input": "x", "prompt_name": "document"}, "which are query, plain"),
                                  (bert, {"input": "x", "prompt_name": "query"}, "has no prompts")):
        status, answer = target.post("/v1/embeddings", body)
        assert status == 400 and answer["error"]["param"] == "prompt_name" and message in answer["error"]["message"], answer
    assert server.post("/v1/embeddings", {"input": [5], "prompt_name": "query"})[0] == 400
    assert server.stop() == 0


def test_a_prompt_that_is_not_pooled(tmp_path, bert):
    """include_prompt false: texts without a prompt have their vectors, a prompt is refused."""
    for path in (POOLING / "bert").iterdir():
        (tmp_path / path.name).symlink_to(path)
    pooling = json.loads((tmp_path / "1_Pooling/config.json").read_text())
    (tmp_path / "1_Pooling").unlink()
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({**pooling, "include_prompt": False}))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: ", "plain": ""}}))
    server = Server(tmp_path, "--dtype", "float32")
    assert vector(server, TEXT[0]) == vector(server, TEXT[0], prompt_name="plain") == vector(bert, TEXT[0])
    status, answer = server.post("/v1/embeddings", {"input": TEXT[0], "prompt_name": "query"})
    assert status == 400 and answer["error"]["param"] == "prompt_name" and "include_prompt" in answer["error"]["message"], answer
    assert server.stop() == 0


def test_score_and_rerank(rerank, bert):
    documents = [TEXT[1], "x = 1", TEXT[0]]
    status, scores = rerank.post("/score", {"text_1": TEXT[0], "text_2": documents})
    assert status == 200 and [d["object"] for d in scores["data"]] == ["score"] * 3
    values = [d["score"] for d in scores["data"]]
    assert all(0 < v < 1 for v in values)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        status, answer = rerank.post(path, {"query": TEXT[0], "documents": documents, "top_n": 2})
        assert status == 200 and len(answer["results"]) == 2, answer
        order = sorted(range(3), key=lambda i: -values[i])[:2]
        assert [r["index"] for r in answer["results"]] == order
        assert [r["document"]["text"] for r in answer["results"]] == [documents[i] for i in order]
        assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([values[i] for i in order])
    pairs = rerank.post("/v1/score", {"text_1": [TEXT[0], TEXT[1]], "text_2": [TEXT[1], TEXT[0]]})[1]
    assert pairs["data"][0]["score"] == pytest.approx(values[0])
    assert rerank.post("/v1/score", {"text_1": [TEXT[0]] * 2, "text_2": documents})[0] == 400
    assert rerank.post("/rerank", {"query": TEXT[0]})[1]["error"]["param"] == "documents"
    # Of an embedding model: the cosine.
    a, b = (vector(bert, text) for text in TEXT)
    status, answer = bert.post("/score", {"queries": TEXT[0], "documents": [TEXT[1], TEXT[0]]})
    near([d["score"] for d in answer["data"]], [sum(x * y for x, y in zip(a, b)), 1], 1e-5)
    assert bert.post("/rerank", {"query": TEXT[0], "documents": TEXT})[1]["results"][0]["index"] == 0


def test_documents_that_are_objects(rerank, bert):
    """{"text": …} of Jina and Cohere, and content parts as vLLM has them, in a list and alone."""
    def content(*texts):
        return {"content": [{"type": "text", "text": t} for t in texts]}
    for server in (rerank, bert):
        plain = server.post("/rerank", {"query": TEXT[0], "documents": [TEXT[1], "x = 1", "a\nb"]})[1]["results"]
        status, mixed = server.post("/rerank", {"query": content(TEXT[0]),
                                                "documents": [{"text": TEXT[1], "title": "t"}, content("x = 1"), content("a", "b")]})
        assert status == 200 and mixed["results"] == plain, mixed
        scores = server.post("/score", {"text_1": TEXT[0], "text_2": [TEXT[1], "x = 1"]})[1]["data"]
        for first, second in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
            status, answer = server.post("/score", {first: {"text": TEXT[0]}, second: [content(TEXT[1]), {"text": "x = 1"}]})
            assert status == 200 and answer["data"] == scores, (first, second, answer)
        assert server.post("/score", {"text_1": TEXT[0], "text_2": content(TEXT[1])})[1]["data"] == scores[:1]
    accepted = 'accepted are a string, {"text": …} and {"content": [{"type": "text", "text": …}]}'
    for document, message in (
            ({"image": "x"}, "has neither"), ({}, "has neither"), ({"text": 1}, "text is an integer"), (7, "got an integer"),
            ({"text": "x", "content": []}, "has both"), ({"content": "x"}, "content is a string"), ({"content": []}, "content is empty"),
            ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, '"image_url"'), ({"content": ["x"]}, "part 0"),
            ({"content": [{"type": "text", "text": "x"}, {"type": "text"}]}, "part 1"), ([TEXT[0]], "got an array")):
        for path, body, param in (("/rerank", {"query": "x", "documents": [TEXT[0], document]}, "documents"),
                                  ("/score", {"text_1": "x", "text_2": [TEXT[0], document]}, "text_2")):
            status, answer = bert.post(path, body)
            error = answer["error"]
            assert status == 400 and error["param"] == param and "entry 1" in error["message"], (document, answer)
            assert message in error["message"] and accepted in error["message"], (document, answer)
    status, answer = bert.post("/rerank", {"query": {"image": "x"}, "documents": ["x"]})
    assert status == 400 and answer["error"]["param"] == "query" and accepted in answer["error"]["message"], answer


def test_classify(rerank):
    server = serve("roberta-cls")
    status, answer = server.post("/classify", {"input": [[0, 5, 6, 2], [0, 7, 2]]})
    assert status == 200
    for i, row in enumerate(answer["data"]):
        assert row["index"] == i and row["num_classes"] == 3 and math.isclose(sum(row["probs"]), 1, rel_tol=1e-5)
        assert row["label"] == ["neg", "neu", "pos"][row["probs"].index(max(row["probs"]))]
    assert "does not support the Embeddings API" in server.post("/v1/embeddings", {"input": [0]})[1]["error"]["message"]
    assert "more than one class" in server.post("/score", {"text_1": "a", "text_2": "b"})[1]["error"]["message"]
    assert server.stop() == 0
    assert rerank.post("/classify", {"input": TEXT[0]})[1]["data"][0]["num_classes"] == 1


def test_a_model_that_generates(bundled):
    for path in ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"):
        status, answer = bundled.post(path, {"input": "x", "query": "x", "documents": ["x"]})
        assert status == 400 and "generates text" in answer["error"]["message"], answer


def test_a_causal_model_pools():
    """--runner pooling: prompts in chunks and from the prefix cache give the same bits."""
    options = ("--runner", "pooling", "--skip-tokenizer-init", "--dtype", "float32")
    prompt = [(7 * i) % 500 for i in range(200)]
    answers = []
    for more in ((), ("--max-num-batched-tokens", "16", "--max-num-seqs", "4"), ("--no-enable-prefix-caching",)):
        server = Server(MODELS / "llama", *options, *more)
        answers += [vector(server, prompt), vector(server, prompt[:100]), vector(server, prompt)]
        assert server.stop() == 0
    assert answers[0] == answers[2] == answers[3] == answers[5] == answers[6] == answers[8]
    assert answers[1] == answers[4] == answers[7] != answers[0]
    mean = Server(MODELS / "llama", *options, "--pooler-config", '{"pooling_type": "MEAN", "normalize": false}',
                  "--max-num-batched-tokens", "16")
    assert vector(mean, prompt) != answers[0] and vector(mean, prompt) == vector(mean, prompt)
    assert mean.stop() == 0


def pooling_folder(folder, source, **mode):
    """The model as sentence-transformers saves it, with this pooling."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name not in ("1_Pooling", "modules.json"):
            (folder / path.name).symlink_to(path)
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 64, **mode}))
    return folder


POOLED = {  # of the states x [n, width] of n tokens
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: (x * np.arange(1, len(x) + 1)[:, None]).sum(0) / np.arange(1, len(x) + 1).sum(),
}


def test_pooling_modes(start, tmp_path):
    """Of a causal model the state of each token is the last token's vector of the prompt that ends there."""
    options = ("--runner", "pooling", "--skip-tokenizer-init", "--dtype", "float32")
    prompts = [[(7 * i) % 500 for i in range(n)] for n in (1, 2, 19)]
    last = start(MODELS / "llama", *options, "--pooler-config", '{"pooling_type": "LAST", "normalize": false}')
    states = [np.array([vector(last, ids[:n + 1]) for n in range(len(ids))], np.float64) for ids in prompts]
    assert last.stop() == 0
    for name, formula in POOLED.items():
        key = f"pooling_mode_{name}" + ("" if name.endswith("tokens") else "_tokens")
        for more in ({"pooling_mode": name}, {key: True}):
            folder = pooling_folder(tmp_path / (name + key * ("pooling_mode" not in more)), MODELS / "llama", **more)
            server = start(folder, *options)
            answer = server.post("/v1/embeddings", {"input": prompts})[1]
            for ids, x, row in zip(prompts, states, answer["data"]):
                near(row["embedding"], formula(x), 2e-5 * np.abs(x).max() * len(ids) ** 0.5)
                assert vector(server, ids) == row["embedding"]  # the same bits alone
            assert server.stop() == 0


def test_metrics(bert):
    before, generated = bert.metric("vllm:prompt_tokens_total"), bert.metric("vllm:generation_tokens_total")
    vector(bert, TEXT[0])
    assert bert.metric("vllm:prompt_tokens_total") - before == 6
    assert bert.metric("vllm:generation_tokens_total") == generated


def test_run_batch(tmp_path):
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate([
        ("/v1/embeddings", {"input": TEXT}), ("/v1/score", {"text_1": TEXT[0], "text_2": TEXT}),
        ("/v1/rerank", {"query": TEXT[0], "documents": TEXT}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": TEXT, "encoding_format": "bytes"})])]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    done = subprocess.run([BIN / "quire", "run-batch", POOLING / "bert", "-i", tmp_path / "in", "-o", tmp_path / "out"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    rows = {r["custom_id"]: r["response"] for r in map(json.loads, (tmp_path / "out").read_text().splitlines())}
    assert [rows[str(i)]["status_code"] for i in range(5)] == [200, 200, 200, 400, 400]
    assert rows["4"]["body"]["error"]["param"] == "encoding_format" and "float base64" in rows["4"]["body"]["error"]["message"]
    assert len(rows["0"]["body"]["data"][1]["embedding"]) == 64 and len(rows["1"]["body"]["data"]) == 2
    assert rows["2"]["body"]["results"][0]["index"] == 0


def test_check_model():
    shown = subprocess.run([BIN / "quire", "check-model", POOLING / "modernbert", "--program"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "mean of the sequence" in shown.stdout and "both ways" in shown.stdout, shown
    refused = subprocess.run([BIN / "quire", "check-model", POOLING / "bert", "--runner", "generate"], capture_output=True, text=True,
                             timeout=60)
    assert refused.returncode != 0 and "--runner generate" in refused.stderr, refused
