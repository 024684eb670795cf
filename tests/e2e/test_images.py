# SPDX-License-Identifier: Apache-2.0
"""Images in requests: the forms of OpenAI's and Anthropic's APIs with their own clients, places in the prompt, files, limits, errors,
offline. The model is the bundled one with an image token and a template that takes parts; the plugin is tests/plugins/pictures.c,
whose rows are made of the pixels."""
import base64
import json
import struct
import subprocess
import zlib

import anthropic
import openai
import pytest

from servers import BIN, BUNDLED, ROOT, Server

IMAGE = 2559  # the id of <image>
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
            "{% if p.type == 'image' %}[<image>]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MORE = {"max_tokens": 8, "temperature": 0}
OURS = {"ignore_eos": True, "return_token_ids": True}
RED, GREEN, BLUE, PINK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 0, 255)


def png(colour, width=8, height=8):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(colour) * width) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def b64(data):
    return base64.b64encode(data).decode()


def url(*image, kind="image/png", **more):
    return f"data:{kind};base64,{b64(png(*image, **more))}"


def image(*colour, **more):
    return {"type": "image_url", "image_url": {"url": url(*colour, **more)}}


def text(t):
    return {"type": "text", "text": t}


def user(*parts, **more):
    return {"messages": [{"role": "user", "content": list(parts)}], **MORE, **OURS, **more}


def chat(server, ask):
    status, answer = server.post("/v1/chat/completions", ask)
    assert status == 200, answer
    return answer


def ids_of(server, ask):
    return chat(server, ask)["choices"][0]["token_ids"]


def runs(ids):
    """Lengths of the runs of image rows."""
    return [len(run) for run in "".join("i" if i == IMAGE else " " for i in ids).split()]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "pictures.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", ROOT, "-o", path, ROOT / "tests/plugins/pictures.c"],
                   check=True)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The last merge of the vocabulary is replaced by <image>."""
    folder = tmp_path_factory.mktemp("vision-model")
    for file in BUNDLED.iterdir():
        if file.name not in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((BUNDLED / "config.json").read_text()) | {"architectures": ["PicturesForCausalLM"]}
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    settings = json.loads((BUNDLED / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    vocabulary = tokenizer["model"]["vocab"]
    last = next(t for t, i in vocabulary.items() if i == IMAGE)
    del vocabulary[last]
    merges = tokenizer["model"]["merges"]
    assert "".join(merges[-1] if isinstance(merges[-1], list) else merges[-1].split(" ")) == last
    merges.pop()
    token = {"content": "<image>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": IMAGE, **token})
    settings["added_tokens_decoder"][str(IMAGE)] = token
    for name, data in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


@pytest.fixture(scope="module")
def server(plugin, model, tmp_path_factory):
    server = Server(model, "--plugin", plugin, "--max-model-len", "600", "--limit-mm-per-prompt", '{"image": 3}')
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_an_image_is_at_its_place(server):
    """Between the template's own brackets, with a row for each patch; the answer is that of these ids with these pixels."""
    answer = chat(server, user(text("Look: "), image(RED), text(" and "), image(BLUE, 24, 16), text("?")))
    prompt = answer["prompt_token_ids"]
    assert runs(prompt) == [1, 6] and answer["usage"]["prompt_tokens"] == len(prompt)
    status, said = server.post("/detokenize", {"tokens": [i for i in prompt if i != IMAGE]})
    assert status == 200 and said["prompt"].split("\n")[1] == "Look: [] and []?<|im_end|>"
    pixels = [{"data": b64(bytes(c) * n), "dtype": "uint8", "shape": [h, w, 3]}
              for c, n, h, w in ((RED, 64, 8, 8), (BLUE, 384, 16, 24))]
    shrunk = [i for at, i in enumerate(prompt) if i != IMAGE or prompt[at - 1] != IMAGE]
    for items in (pixels, [{"url": url(RED)}, {"url": url(BLUE, 24, 16)}], [pixels[0], {"url": url(BLUE, 24, 16), "detail": "low"}]):
        status, plain = server.post("/v1/completions", {"prompt": shrunk, "multi_modal_data": {"image": items}, **MORE, **OURS})
        assert status == 200 and plain["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"], plain
    status, plain = server.post("/v1/completions", {"prompt": [5, IMAGE, 6], "multi_modal_data": {"image": {"url": url(RED)}}, **MORE})
    assert status == 200 and plain["usage"]["prompt_tokens"] == 3


def test_pixels_and_order_matter(server):
    asks = [user(*(image(c, 16, 16) for c in colours), text("Which?"), max_tokens=24) for colours in ((RED, BLUE), (BLUE, RED), (RED, RED))]
    answers = [ids_of(server, ask) for ask in asks]
    assert len({tuple(a) for a in answers}) > 1
    assert [ids_of(server, ask) for ask in asks] == answers
    several = chat(server, {**asks[0], "n": 3})
    assert [c["token_ids"] for c in several["choices"]] == [answers[0]] * 3


def test_forms_of_an_image_agree(server):
    want = chat(server, user(image(RED), text("hi")))
    raw = b64(png(RED))
    for part in ({"type": "image_url", "image_url": url(RED)},
                 {"type": "image_url", "image_url": {"url": url(RED, kind="text/plain"), "detail": "low"}, "uuid": "red"},
                 {"type": "image_url", "image_url": {"url": f"data:;base64,{raw}", "detail": "original"}},
                 {"type": "input_image", "image_url": url(RED), "detail": "auto", "file_id": None},
                 {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": raw}, "cache_control": None},
                 {"type": "image_url", "image_url": {"data": b64(bytes(RED) * 64), "dtype": "uint8", "shape": [8, 8, 3]}}):
        got = chat(server, user(part, text("hi")))
        assert got["choices"][0]["token_ids"] == want["choices"][0]["token_ids"], part
        assert got["prompt_token_ids"] == want["prompt_token_ids"]


def test_a_text_that_spells_the_token_is_text(server):
    answer = chat(server, user(text("<image>"), image(GREEN), text("<image><image>")))
    assert runs(answer["prompt_token_ids"]) == [1]
    assert runs(chat(server, user(text("<image>")))["prompt_token_ids"]) == []
    first = chat(server, {"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "<image>"},
                                       {"role": "user", "content": [image(GREEN, 16, 8)]}], **MORE, **OURS})
    assert runs(first["prompt_token_ids"]) == [2]


def test_the_openai_client(client, server):
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url(RED), "detail": "high"}},
               {"type": "image_url", "image_url": {"url": url(BLUE, 16, 8)}}]
    ask = {"model": client.models.list().data[0].id, "messages": [{"role": "user", "content": content}], **MORE}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.content
    bare = client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": content[:1]}]})
    brackets = 2 * server.post("/tokenize", {"prompt": "[]", "add_special_tokens": False})[1]["count"]
    assert 3 <= whole.usage.prompt_tokens - bare.usage.prompt_tokens <= 3 + 2 * brackets
    streamed = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    events = list(streamed)
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == whole.choices[0].message.content
    assert events[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    again = client.chat.completions.create(**ask)
    assert again.choices[0].message.content == whole.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="quire does not fetch URLs; send the image as a data: URL"):
        client.chat.completions.create(**ask | {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]})


def test_responses(client, server):
    want = chat(server, user(text("What?"), image(RED), max_tokens=8))
    content = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url(RED), "detail": "auto"}]
    ask = {"model": client.models.list().data[0].id, "input": [{"role": "user", "content": content}], "max_output_tokens": 8,
           "temperature": 0, "extra_body": {"ignore_eos": True}}
    answer = client.responses.create(**ask)
    assert answer.output_text == want["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == want["usage"]["prompt_tokens"]
    events = list(client.responses.create(**ask, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
    assert client.responses.input_tokens.count(model=ask["model"], input=ask["input"]).input_tokens == answer.usage.input_tokens
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url(BLUE, 16, 16)}]}
    seen = client.responses.create(**ask | {"input": [*ask["input"], call, result]})
    assert seen.usage.input_tokens >= answer.usage.input_tokens + 4
    for part, says in (({"type": "input_image", "file_id": "file-1", "detail": "auto"}, "file_id: files are not kept"),
                       ({"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"}, "does not fetch URLs")):
        with pytest.raises(openai.BadRequestError, match=says) as raised:
            client.responses.create(**ask | {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]})
        assert "input" in str(raised.value)


def test_messages(claude, server):
    want = chat(server, user(text("What?"), image(RED), max_tokens=8))
    source = {"type": "base64", "media_type": "image/png", "data": b64(png(RED))}
    ask = {"model": json.loads(server.get("/v1/models")[1])["data"][0]["id"], "max_tokens": 8,
           "extra_body": {"ignore_eos": True, "temperature": 0},
           "messages": [{"role": "user", "content": [text("What?"), {"type": "image", "source": source,
                                                                    "cache_control": {"type": "ephemeral"}}]}]}
    answer = claude.messages.create(**ask)
    assert "".join(b.text for b in answer.content) == want["choices"][0]["message"]["content"]
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == want["usage"]["prompt_tokens"]
    by_url = [{"role": "user", "content": [text("What?"), {"type": "image", "source": {"type": "url", "url": url(RED)}}]}]
    assert claude.messages.create(**ask | {"messages": by_url}).content == answer.content
    with claude.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == want["choices"][0]["message"]["content"]
    counted = claude.messages.count_tokens(model=ask["model"], messages=ask["messages"]).input_tokens
    assert counted == want["usage"]["prompt_tokens"]
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("seen"), {"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": b64(png(BLUE, 16, 16))}}]}
    seen = [*ask["messages"], {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert claude.messages.count_tokens(model=ask["model"], messages=seen).input_tokens >= counted + 4
    assert claude.messages.create(**ask | {"messages": seen}).content
    for wrong, says in (({"type": "url", "url": "https://x/a.png"}, "does not fetch URLs"),
                        ({"type": "file", "file_id": "f"}, "file_id: files are not kept"),
                        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "messages: entry 1: content part 0: image")):
        with pytest.raises(anthropic.BadRequestError, match=says):
            claude.messages.create(**ask | {"messages": [
                {"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image", "source": wrong}]}]})


def part(value, **more):
    return {"type": "image_url", "image_url": value, **more}


MISUSES = [
    (part({"url": "https://x/a.png"}), "messages: entry 0: content part 1: image[0]: url: quire does not fetch URLs; send the image as a data: URL"),
    (part("ftp://x/a.png"), 'image[0]: url: "ftp://x/a.png" is no URL of an image; accepted are data:'),
    (part("data:image/png,%89PNG"), "percent-encoded data, which is not accepted"),
    (part("data:image/png;base64"), "has a comma before its data"),
    (part("data:image/png;base64,***"), "url: expected base64 text"),
    (part("data:image/png;base64,****"), "url: not base64"),
    (part("data:image/png;base64,"), "the image has no bytes"),
    (part("data:image/png;base64," + b64(b"hello world!")), "PNG, JPEG, WebP"),
    (part("data:image/png;base64," + b64(png(RED)[:40])), "content part 1: image[0]: "),
    (part("file:///etc/passwd"), "image[0]: url: this server reads no files"),
    (part({"url": 5}), "url: expected a string, got an integer"),
    (part(7), "image[0]: shape [] is not"),
    (part(True), 'expected {"url": "data:image/png;base64,…"}, got'),
    (part(None), 'it has no "image_url"'),
    (part(None, uuid="a"), "images are not kept by name"),
    (part({"url": url(RED), "detail": "best"}), 'detail: "best", expected "auto", "low", "high" or "original"'),
    (part({"url": url(RED), "width": 8}), 'unexpected member "width" of an image'),
    (part(url(RED), width=8), 'unknown member "width"; expected type, "image_url" and detail'),
    (part(url(RED, 129, 8)), "image[0]: shape [8, 129, 3] is not [1…128, 1…128, 3]"),
    (part(url(PINK)), "image[0]: plugin pictures 1.0: no picture is pink"),
    ({"type": "video_url", "video_url": {"url": "x"}}, 'content of type "video_url" is not supported; accepted are text, image_url'),
]


def test_misuse_is_refused_and_the_server_goes_on(server):
    ask = user(text("hi"), image(RED))
    want = ids_of(server, ask)
    for wrong, says in MISUSES:
        for stream in (False, True):
            status, answer = server.post("/v1/chat/completions", user(text("hi"), wrong, stream=stream))
            assert status == 400 and says in answer["error"]["message"], (wrong, answer)
    status, answer = server.post("/v1/chat/completions", user(*[image(RED)] * 4))
    assert status == 400 and "more than 3 items, expected at most 3 in a request (--limit-mm-per-prompt)" in answer["error"]["message"]
    status, answer = server.post("/v1/chat/completions", {**ask, "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [image(RED)]}, {"role": "user", "content": "b"}]})
    assert status == 400 and 'role "assistant" takes no "image_url"' in answer["error"]["message"]
    for item in ({"url": "https://x"}, {"url": "data:,x"}, {"url": url(RED), "size": 1}):
        status, answer = server.post("/v1/completions", {"prompt": [IMAGE], "multi_modal_data": {"image": [item]}, **MORE})
        assert status == 400 and answer["error"]["message"].startswith("multi_modal_data: image[0]: "), answer
    status, answer = server.post("/v1/chat/completions", user(image(RED, 128, 128), image(RED, 128, 128), image(RED, 128, 128)))
    assert status == 400 and "more than 600 tokens" in answer["error"]["message"]
    assert ids_of(server, ask) == want


def test_the_prefix_cache(server):
    ask = user(text("once " * 20), image((1, 2, 3), 64, 64), text("?"))
    usages = [chat(server, a)["usage"] for a in (ask, ask, user(text("once " * 20), image((3, 2, 1), 64, 64), text("?")))]
    cached = [u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]
    assert cached[0] == 0 and cached[1] > cached[2] + 48 and cached[2] > 0


def test_10_mb_by_default(server):
    """A body that is as large as clients' photographs: pixels that no codec makes smaller are 128 x 128 here, so the rest is a comment."""
    data = png(RED)
    at = len(data) - 12  # before IEND
    filler = b"tEXt" + b"Comment\0" + b"x" * (10 << 20)
    big = data[:at] + struct.pack(">I", len(filler) - 4) + filler + struct.pack(">I", zlib.crc32(filler)) + data[at:]
    want = ids_of(server, user(text("hi"), image(RED)))
    assert ids_of(server, user(text("hi"), part(f"data:image/png;base64,{b64(big)}"))) == want


def test_files(plugin, model, tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "a b.png").write_bytes(png(RED))
    (inside / "text.png").write_text("text")
    (tmp_path / "out.png").write_bytes(png(RED))
    (inside / "link.png").symlink_to(tmp_path / "out.png")
    server = Server(model, "--plugin", plugin, "--max-model-len", "512", "--allowed-local-media-path", inside)
    want = ids_of(server, user(text("hi"), image(RED)))
    for path in (f"file://{inside}/a%20b.png", f"file://localhost{inside}/a b.png"):
        assert ids_of(server, user(text("hi"), part(path))) == want
    for name, says in (("in/link.png", "is no file in the folder"), ("out.png", "is no file in the folder"),
                       ("in/../out.png", "is no file in the folder"), ("in/none.png", "is no file in the folder"), ("in/text.png", "PNG")):
        status, answer = server.post("/v1/chat/completions", user(part(f"file://{tmp_path}/{name}")))
        assert status == 400 and says in answer["error"]["message"], answer
    status, answer = server.post("/v1/chat/completions", user(part("https://x/a.png")))
    assert status == 400 and "send the image as a data: URL (data:image/png;base64,…), or as file:///PATH" in answer["error"]["message"]
    assert server.stop() == 0


def test_templates_of_strings(plugin, model, tmp_path):
    """The placeholder stays where the part is, on a line of its own."""
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    other = tmp_path / "lost.jinja"
    other.write_text("{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}")
    server = Server(model, "--plugin", plugin, "--max-model-len", "512", "--chat-template", template, "--trust-request-chat-template")
    prompt = chat(server, user(text("a"), image(RED), text("b"), text("c")))["prompt_token_ids"]
    assert runs(prompt) == [1]
    at = prompt.index(IMAGE)
    said = [server.post("/detokenize", {"tokens": ids})[1]["prompt"] for ids in (prompt[:at], prompt[at + 1:])]
    assert said == ["<a\n", "\nb\nc>"]
    status, answer = server.post("/v1/chat/completions", user(text("a"), image(RED), chat_template=other.read_text()))
    assert status == 400 and 'writes the model\'s token "<image>" 0 times for 1 images (image)' in answer["error"]["message"], answer
    lists = chat(server, user(text("a"), image(RED), text("b"), chat_template=TEMPLATE))["prompt_token_ids"]
    assert runs(lists) == [1]
    assert server.stop() == 0


def test_offline_agrees(server, plugin, model, tmp_path):
    (tmp_path / "red.png").write_bytes(png(RED))
    ask, by_file = user(text("hi"), image(RED)), user(text("hi"), part(f"file://{tmp_path}/red.png"))
    bad = user(text("hi"), part("https://x/a.png"))
    want = ids_of(server, ask)
    lines = [{k: v for k, v in x.items() if k != "return_token_ids"} for x in (ask, by_file, bad)]
    done = subprocess.run([BIN / "quire", "generate", model, "--plugin", plugin, "--max-model-len", "512", "-i", "-"],
                          capture_output=True, text=True, input="".join(json.dumps(line) + "\n" for line in lines))
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda a: a["prompt"])
    assert [a.get("token_ids") for a in answers] == [want, want, None], done.stderr
    assert "does not fetch URLs" in answers[2]["error"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({
        "custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {**x, "model": "x"}}) + "\n"
        for i, x in enumerate((ask, by_file, bad))))
    done = subprocess.run([BIN / "quire", "run-batch", model, "--plugin", plugin, "--max-model-len", "512", "--served-model-name", "x",
                           "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl"], capture_output=True, text=True)
    out = {x["custom_id"]: x["response"] for x in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert [out[i]["body"]["choices"][0]["token_ids"] for i in "01"] == [want, want], done.stderr
    assert out["2"]["status_code"] == 400 and "does not fetch URLs" in json.dumps(out["2"])


def test_images_in_quire_chat(server, tmp_path):
    (tmp_path / "red.png").write_bytes(png(RED))
    lines = (f"/image {tmp_path}/none.png\n/image {tmp_path}/red.png\nWhat?\n/save {tmp_path}/talk.json\n"
             f"/image {tmp_path}/red.png\n/image off\nWhy?\n")
    done = subprocess.run([BIN / "quire", "chat", "--url", server.url, "--temperature", "0", "--max-tokens", "8"], input=lines,
                          capture_output=True, text=True, timeout=60)
    assert f"{tmp_path}/none.png" in done.stderr and "(images with the next message: 1)" in done.stderr, done.stderr
    said = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert said[0]["content"] == [{"type": "image_url", "image_url": {"url": url(RED)}}, text("What?")]
    want = chat(server, {"messages": said[:1], **MORE})["choices"][0]["message"]["content"]
    assert said[1]["content"] == want and want in done.stdout


def test_a_model_without_images(start):
    server = start(BUNDLED)
    for content, says in (([image(RED)], '"image_url"'), ([{"type": "image", "source": {"type": "url", "url": url(RED)}}], '"image"')):
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **MORE})
        assert status == 400 and f"content of type {says} is not supported; accepted is text" in answer["error"]["message"]
