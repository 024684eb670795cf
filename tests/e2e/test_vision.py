# SPDX-License-Identifier: Apache-2.0
"""Images of built-in models, from a chat to tokens: the greedy tokens of transformers (tests/data/vision), in any chunks and batch, from
the prefix cache, after a crash, replayed; what is refused."""
import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from servers import BIN, ROOT, Server

FOLDERS = ROOT / "tests/data/vision"
NAMES = ["llava", "llava-siglip", "smolvlm", "idefics3", "internvl"]
F32 = ("--dtype", "float32", "--max-model-len", "256")
ASK = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def pixels(width, height):
    """The formula of tests/data/vision/make.py."""
    return [bytes(v for x in range(width) for v in ((5 * x + 3 * y) % 256, (x * x + 7 * y) % 251,
                                                    (x * y // 3 + 11 * (x // 8 + y // 8) % 2 * 90) % 256)) for y in range(height)]


def png(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + row for row in pixels(width, height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def url(width, height):
    return "data:image/png;base64," + base64.b64encode(png(width, height)).decode()


def conversation(width, height, **more):
    content = [{"type": "text", "text": "What is "}, {"type": "image_url", "image_url": {"url": url(width, height)}},
               {"type": "text", "text": "here?"}]
    return {"messages": [{"role": "user", "content": content}], **ASK, **more}


def answers(name):
    return json.loads((FOLDERS / name / "golden.json").read_text())["answers"]


def check(server, golden, **more):
    status, answer = server.post("/v1/chat/completions", conversation(golden["width"], golden["height"], **more))
    assert status == 200, answer
    assert answer["choices"][0]["token_ids"] == golden["greedy"]
    assert answer["usage"]["prompt_tokens"] == len(golden["ids"])
    return answer


@pytest.fixture(scope="module", params=NAMES)
def server(request):
    """Chunks and steps that end in the middle of images."""
    server = Server(FOLDERS / request.param, *F32, "--max-num-batched-tokens", "24", "--max-num-seqs", "16")
    server.goldens = answers(request.param)
    yield server
    assert server.stop() == 0


def test_the_tokens_of_transformers(server):
    for golden in server.goldens:
        check(server, golden)


def test_in_one_batch_and_from_the_cache(server):
    asks = server.goldens * 4
    with ThreadPoolExecutor(len(asks)) as pool:
        list(pool.map(lambda golden: check(server, golden), asks))
    cached = check(server, server.goldens[0])["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < len(server.goldens[0]["ids"])


def test_whole_prompts_in_other_chunks():
    for name, options in (("smolvlm", ()), ("smolvlm", ("--max-num-batched-tokens", "7", "--max-num-seqs", "4")),
                          ("llava", ("--no-enable-prefix-caching", "--max-num-batched-tokens", "5", "--max-num-seqs", "2"))):
        server = Server(FOLDERS / name, *F32, *options)
        for golden in answers(name):
            check(server, golden)
        assert server.stop() == 0


def test_by_the_client_of_openai(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    golden = server.goldens[0]
    ask = conversation(golden["width"], golden["height"])
    stream = client.chat.completions.create(model="", messages=ask["messages"], max_tokens=16, temperature=0, stream=True,
                                            extra_body={"ignore_eos": True, "return_token_ids": True})
    ids = [i for event in stream for choice in event.choices for i in choice.model_extra.get("token_ids") or []]
    assert ids == golden["greedy"]


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_conversations_with_images(name):
    server = Server(FOLDERS / name, *F32, "--runner", "pooling", "--max-num-batched-tokens", "24", "--max-num-seqs", "4")
    for golden in answers(name):
        status, answer = server.post("/v1/embeddings", {"messages": conversation(golden["width"], golden["height"])["messages"]})
        assert status == 200, answer
        assert answer["data"][0]["embedding"] == pytest.approx(golden["vector"], abs=2e-5)
    assert server.stop() == 0


def test_two_images_keep_their_order():
    server = Server(FOLDERS / "llava", *F32)
    a, b = url(28, 28), url(33, 97)
    seen = set()
    for first, second in ((a, b), (b, a), (a, a)):
        content = [{"type": "image_url", "image_url": {"url": first}}, {"type": "text", "text": "x"},
                   {"type": "image_url", "image_url": {"url": second}}]
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **ASK})
        assert status == 200, answer
        seen.add(tuple(answer["choices"][0]["token_ids"]))
    assert len(seen) == 3
    assert server.stop() == 0


def test_a_worker_dies_while_an_answer_is_written():
    golden = answers("smolvlm")[2]
    server = Server(FOLDERS / "smolvlm", *F32, "--max-num-batched-tokens", "16", "--max-num-seqs", "4")
    events = server.events("/v1/chat/completions", conversation(golden["width"], golden["height"], stream=True))
    ids = []
    for event in events:
        for choice in event.get("choices", []):
            ids += choice.get("token_ids") or []
        if len(ids) == 1:
            os.kill(server.wait_children("quire-worker", of=server.children("quire-engine")[0])[0], signal.SIGKILL)
    assert ids == golden["greedy"]
    assert server.stop() == 0


def test_recorded_steps_are_replayed(tmp_path):
    record = tmp_path / "steps.rec"
    server = Server(FOLDERS / "smolvlm", *F32, "--record", record)
    for golden in answers("smolvlm")[:2]:
        check(server, golden)
    assert server.stop() == 0
    done = subprocess.run([BIN / "quire", "replay", record], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_weights_of_the_tower_are_reloaded(tmp_path):
    """Of a folder with another bias of the projector, and back; a folder without its tensor changes nothing of the tower."""
    folder, golden = FOLDERS / "llava", answers("llava")[0]
    data = bytearray((folder / "model.safetensors").read_bytes())
    head = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    name = "multi_modal_projector.linear_2.bias"
    start, end = (8 + int.from_bytes(data[:8], "little") + at for at in head[name]["data_offsets"])
    other, broken = tmp_path / "other", tmp_path / "broken"
    other.mkdir(), broken.mkdir()
    data[start:end] = struct.pack(f"<{(end - start) // 4}f", *[3.0] * ((end - start) // 4))
    (other / "model.safetensors").write_bytes(data)
    (broken / "model.safetensors").write_bytes(data.replace(name.encode(), name[:-1].encode() + b"z"))
    server = Server(folder, *F32, "--allowed-weights-path", tmp_path, "--allowed-weights-path", folder)
    first = check(server, golden)["choices"][0]["token_ids"]
    ask = conversation(golden["width"], golden["height"])
    assert server.post("/reload_weights", {"weights_path": str(other)})[0] == 200
    status, answer = server.post("/v1/chat/completions", ask)
    assert status == 200 and answer["choices"][0]["token_ids"] != first
    second = answer["choices"][0]["token_ids"]
    status, said = server.post("/reload_weights", {"weights_path": str(broken)})
    assert status != 200 and name in said["error"]["message"], said
    assert server.post("/v1/chat/completions", ask)[1]["choices"][0]["token_ids"] == second
    assert server.post("/reload_weights", {"weights_path": str(folder)})[0] == 200
    check(server, golden)
    assert server.stop() == 0


def test_the_text_model_alone():
    for options in (("--language-model-only",), ("--limit-mm-per-prompt", '{"image": 0}')):
        server = Server(FOLDERS / "llava", *F32, *options)
        status, answer = server.post("/v1/chat/completions", conversation(28, 28))
        assert status == 400 and "image_url" in answer["error"]["message"], answer
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **ASK})
        assert status == 200, answer
        assert "tower" not in server.process.log()
        assert server.stop() == 0


def test_settings_of_the_processor():
    """Fewer tiles; without files of a processor there are no images."""
    server = Server(FOLDERS / "smolvlm", *F32, "--mm-processor-kwargs", '{"size": {"longest_edge": 32}}')
    status, answer = server.post("/v1/chat/completions", conversation(40, 40))
    assert status == 200 and answer["usage"]["prompt_tokens"] == 31 + 4 + 3, answer
    assert server.stop() == 0


def test_a_folder_without_a_processor(tmp_path):
    folder = shutil.copytree(FOLDERS / "llava", tmp_path / "model")
    (folder / "preprocessor_config.json").unlink()
    server = Server(folder, *F32)
    server.process.wait_line("images are not served: .*preprocessor_config.json")
    status, answer = server.post("/v1/chat/completions", conversation(28, 28))
    assert status == 400, answer
    assert server.stop() == 0


def test_a_tokenizer_without_the_tokens_of_tiles(tmp_path):
    folder = shutil.copytree(FOLDERS / "smolvlm", tmp_path / "model")
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<row_2_col_3>", "<another>"))
    server = Server(folder, *F32)
    server.process.wait_line("images are not served: .*<row_2_col_3>")
    assert server.post("/v1/chat/completions", conversation(28, 28))[0] == 400
    assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **ASK})[0] == 200
    assert server.stop() == 0


def test_check_model():
    def says(*args):
        done = subprocess.run([BIN / "quire", "check-model", *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert "squares of 32 x 32 pixels, at most 10 of an image, rows of each 4" in says(FOLDERS / "smolvlm")
    told = json.loads(says(FOLDERS / "llava", "--json"))
    assert "clip_vision_model" in told["images"] and told["images_refused"] is None
    told = json.loads(says(ROOT / "tests/data/models/gemma3-vision", "--json"))
    assert told["images"] is None and "not supported" in told["images_refused"]


def test_bad_images():
    server = Server(FOLDERS / "llava", *F32)
    wide = "data:image/png;base64," + base64.b64encode(png(600, 2)).decode()
    for image, why in (("data:image/png;base64,AAAA", "image"), (wide, "200 times as long")):
        content = [{"type": "image_url", "image_url": {"url": image}}]
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **ASK})
        assert status == 400 and why in answer["error"]["message"], answer
    check(server, answers("llava")[0])
    assert server.stop() == 0
