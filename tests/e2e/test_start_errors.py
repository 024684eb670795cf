# SPDX-License-Identifier: Apache-2.0
"""What a person sees whose first command is wrong: one line with the cause and a way out, the documented exit code, and no
"listening" before arguments, folder and port are valid."""
import ctypes
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys

import pytest

from servers import BIN, BUNDLED, MODELS, Http, Process, Server

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 123\n"
IDS = ("--skip-tokenizer-init", "--load-format", "dummy")
USAGE, MODEL, ADDRESS = 2, 3, 5


def start(*args, env=None, cwd=None, seconds=60, preexec=None):
    """(exit code, lines of both streams) of a quire that ends by itself."""
    out = subprocess.run([str(BIN / "quire"), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=cwd,
                         stderr=subprocess.STDOUT, text=True, errors="replace", env={**os.environ, **(env or {})}, timeout=seconds, preexec_fn=preexec)
    return out.returncode, out.stdout.splitlines()


def refused(code, words, *args, **more):
    """The one line of a command that ends with `code`."""
    got, lines = start(*args, **more)
    text = "\n".join(lines)
    assert got == code, f"{args}: {got}\n{text}"
    assert len(lines) == 1, f"{args}:\n{text}"
    for word in words:
        assert word in text, f"{args}: no {word!r} in\n{text}"
    return lines[0]


def offline(cache):
    return {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}


def verbs(model, folder):
    """Every program that takes a model, with all else right."""
    request = folder / "in.jsonl"
    request.write_text("")
    return {
        "serve": ("serve", model, "--port", "0"),
        "engine": ("engine", model, "--listen", f"ipc://{folder}/engine"),
        "frontend": ("frontend", model, "--engine", f"ipc://{folder}/engine", "--port", "0"),
        "generate": ("generate", model, "x"),
        "run-batch": ("run-batch", model, "-i", request, "-o", folder / "out.jsonl"),
        "bench": ("bench", "latency", model),
        "tokenize": ("tokenize", model),
        "render": ("render", model),
    }


@pytest.fixture
def model(tmp_path):
    """A copy of the bundled model, to be spoiled."""
    if not (BUNDLED / "model.safetensors").exists():
        pytest.skip(f"the bundled model is not there: {BUNDLED}")
    return shutil.copytree(BUNDLED, tmp_path / "model")


def edit_config(folder, remove=(), **change):
    config = json.loads((folder / "config.json").read_text())
    for key in remove:
        del config[key]
    (folder / "config.json").write_text(json.dumps({**config, **change}))


@pytest.mark.parametrize("verb", ["serve", "engine", "frontend", "generate", "run-batch", "bench", "tokenize", "render"])
def test_one_line_for_a_wrong_path(verb, tmp_path):
    gone = tmp_path / "gone"
    refused(MODEL, [f"{gone}: no such folder"], *verbs(gone, tmp_path)[verb])
    refused(MODEL, ["org/nope", "`quire download org/nope`"], *verbs("org/nope", tmp_path)[verb], env=offline(tmp_path))


def test_how_to_download(tmp_path):
    """The command that is shown puts the model where quire looks for it."""
    cache = offline(tmp_path)
    refused(MODEL, [f"({tmp_path}/d/models--x--y)", f"`quire download x/y --download-dir {tmp_path}/d`"], "serve", "x/y", "--port", "0",
            "--download-dir", tmp_path / "d", env=cache)
    refused(MODEL, ["`quire download x/y --revision v1`"], "serve", "x/y", "--port", "0", "--revision", "v1", env=cache)
    (tmp_path / "a b/models--x--y/snapshots").mkdir(parents=True)
    refused(MODEL, [f"`quire download x/y --revision v1 --download-dir '{tmp_path}/a b'`"], "generate", "x/y", "a", "--revision", "v1",
            "--download-dir", tmp_path / "a b", env=cache)
    refused(MODEL, ['has no revision "main"', f"`quire download x/y --download-dir '{tmp_path}/a b'`"], "tokenize", "x/y",
            "--download-dir", tmp_path / "a b", env=cache)


@pytest.mark.parametrize("verb", ["serve", "engine", "frontend", "generate", "run-batch", "bench"])
def test_one_line_for_a_wrong_folder(verb, tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "x.Q4_K_M.gguf").write_bytes(b"GGUF\3")
    for given in (folder, folder / "x.Q4_K_M.gguf"):
        refused(MODEL, ["x.Q4_K_M.gguf: byte 4: the version does not fit the file"], *verbs(given, tmp_path)[verb])
    (folder / "x.Q4_K_M.gguf").unlink()
    config = {"architectures": ["Zamba2ForCausalLM"], "d_model": 768}
    (folder / "config.json").write_text(json.dumps(config))  # and no tokenizer
    refused(MODEL, ["architecture Zamba2ForCausalLM is not supported; supported are those of the model types afmoe, apertus, "], *verbs(folder, tmp_path)[verb])


@pytest.mark.parametrize("files, words", [
    ({}, ["is an empty folder"]),
    ({"adapter_config.json": '{"base_model_name_or_path": "org/base"}'}, ["LoRA adapter", "its base model is org/base"]),
    ({"pytorch_model.bin": "x", "config.json": None}, ["pytorch_model.bin: not a file that torch.save wrote"]),
    ({"model.gguf": "GGUF", "config.json": None}, ["model.gguf: byte 4: the version does not fit"]),
    ({"model.onnx": "x", "config.json": None}, ["an ONNX model"]),
    ({"model_index.json": "{}"}, ["diffusers"]),
    ({"one/config.json": "{}", "two/config.json": "{}"}, ["use one of its model folders", "one, two"]),
    ({"config.json": None}, ["no weights"]),
    ({"config.json": None, "model.safetensors": LFS}, ["model.safetensors is a Git LFS pointer", "`git lfs pull`"]),
    ({"config.json": LFS}, ["config.json is a Git LFS pointer"]),
    ({"config.json": "<!DOCTYPE html><title>404</title>"}, ["config.json is an HTML page"]),
    ({"config.json": ""}, ["config.json is empty"]),
    ({"config.json": "{\n  1}"}, ["config.json: not valid JSON at line 2"]),
    ({"config.json": '{"model_type": "llama"}'}, ["hidden_size", "is missing", "LlamaForCausalLM requires"]),
    ({"config.json": '{"model_type": "zamba2"}'}, ["architectures is missing", "that of one of the model types"]),
    ({"config.json": '{"architectures": ["LlamaForCausalLM"], "vocab_size": 5}'},
     ["hidden_size is missing, expected a whole number from 1 to", "LlamaForCausalLM requires vocab_size, hidden_size"]),
])
def test_folders_that_are_no_model(tmp_path, files, words):
    folder = tmp_path / "x"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((BUNDLED / name).read_text() if text is None else text)
    line = refused(MODEL, [str(folder), *words], "serve", folder, "--port", "0")
    assert "ERROR" in line and "listening" not in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize("verb", ["serve", "generate", "run-batch"])
def test_git_lfs_pointers(model, tmp_path, name, verb):
    (model / name).write_text(LFS)
    refused(MODEL, [f"{model / name} is a Git LFS pointer, not the file itself: run `git lfs pull` in {model}"],
            *verbs(model, tmp_path)[verb])


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json", "chat_template.json", "chat_template.jinja"])
@pytest.mark.parametrize("verb", ["serve", "frontend", "generate"])
def test_git_lfs_pointers_beside_the_tokenizer(model, tmp_path, name, verb):
    """An error wherever the file is read; a server without chat is no answer to an incomplete download."""
    (model / name).unlink(missing_ok=True)
    (model / name).write_text(LFS)
    refused(MODEL, [f"{model / name} is a Git LFS pointer, not the file itself: run `git lfs pull` in {model}"],
            *verbs(model, tmp_path)[verb])


def test_files_that_are_not_read_may_be_pointers(model):
    """With --skip-tokenizer-init no file of the tokenizer is read."""
    for name in ("special_tokens_map.json", "added_tokens.json", "chat_template.json", "tokenizer_config.json"):
        (model / name).unlink(missing_ok=True)
        (model / name).write_text(LFS)
    (model / "model.safetensors").unlink()  # so that the program ends: the weights are checked last
    line = refused(MODEL, ["model.safetensors"], "serve", model, "--port", "0", "--skip-tokenizer-init")
    assert "pointer" not in line


def test_a_template_that_replaces_a_pointer(model, tmp_path):
    """With --chat-template the template files of the folder are not read."""
    for name in ("chat_template.jinja", "chat_template.json"):
        (model / name).unlink(missing_ok=True)
        (model / name).write_text(LFS)
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    (model / "model.safetensors").unlink()
    line = refused(MODEL, ["model.safetensors"], "serve", model, "--port", "0", "--chat-template", tmp_path / "t.jinja")
    assert "pointer" not in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize("verb", ["serve", "generate", "run-batch"])
def test_git_annex_links(model, tmp_path, name, verb):
    """Of a clone before `git annex get`."""
    (model / name).unlink()
    (model / name).symlink_to(f".git/annex/objects/1x/2y/SHA256E-s9--00.json/{name}")
    refused(MODEL, [f"{model / name} is a git-annex link without the file's content: run `git annex get {name}` in {model}"],
            *verbs(model, tmp_path)[verb])


def test_a_chat_template_that_was_not_fetched(model):
    (model / "chat_template.jinja").symlink_to(".git/annex/objects/1x/2y/SHA256E-s9--00/SHA256E-s9--00")
    refused(MODEL, ["chat_template.jinja is a git-annex link", "`git annex get chat_template.jinja`"], "render", model)


def test_what_is_wrong_first(model):
    """The architecture before the tokenizer, and the model before the device."""
    (model / "tokenizer.json").unlink()
    edit_config(model, architectures=["Qwen3VForCausalLM"])
    refused(MODEL, ["Qwen3VForCausalLM is not supported, the most similar is Qwen3ForCausalLM"], "serve", model, "--port", "0", "--device", "cuda")
    edit_config(model, architectures=["LlamaForCausalLM"])
    refused(MODEL, ["no tokenizer", "--tokenizer"], "serve", model, "--port", "0")


@pytest.mark.skipif((BIN / "libquire-cuda.so").exists() or (BIN.parent / "lib/libquire-cuda.so").exists(), reason="the library is there")
def test_cuda_without_its_library(model, tmp_path):
    for command in (("serve", model, "--port", "0"), ("generate", model, "x", "--max-tokens", "1")):
        refused(MODEL, ["cannot find libquire-cuda.so", "deploy/up.sh", "cmake --preset cuda"], *command, "--device", "cuda")
    refused(MODEL, ["/nowhere/x.so"], "serve", model, "--port", "0", "--device", "cuda", "--cuda-library", "/nowhere/x.so")
    os.mkfifo(tmp_path / "x.so")  # opening it would wait for its writer
    refused(MODEL, ["x.so: not a regular file"], "serve", model, "--port", "0", "--device", "cuda", "--cuda-library", tmp_path / "x.so")


@pytest.mark.parametrize("options, code, words", [
    (("--dtype", "int3"), USAGE, ["--dtype", "int3", "bfloat16"]),
    (("--load-format", "gguf"), USAGE, ["--load-format gguf", "has no GGUF file", "safetensors"]),
    (("--kv-cache-dtype", "int3"), USAGE, ["--kv-cache-dtype", "int3"]),
    (("--device", "tpu"), USAGE, ["--device", "tpu", "cuda"]),
    (("--max-model-len", "1000000"), USAGE, ["1000000", "2048"]),
    (("--max-model-len", "many"), USAGE, ["--max-model-len", "many"]),
    (("--tool-call-parser", "hermees"), USAGE, ["hermees", "hermes", "openai"]),
    (("--reasoning-parser", "x"), USAGE, ["--reasoning-parser"]),
    (("--chat-template", "/nowhere"), USAGE, ["--chat-template", "/nowhere"]),
    (("--api-key-file", "/nowhere"), USAGE, ["--api-key-file", "/nowhere"]),
    (("--chat-template", "{{ messages }"), USAGE, ["--chat-template", "column 13"]),
    (("--trace", "/nonexistent/x"), USAGE, ["--trace /nonexistent/x", "/nonexistent is not writable"]),
    (("--trace", "/tmp"), USAGE, ["--trace /tmp", "a folder"]),
    (("--trace", "PIPE"), USAGE, ["--trace PIPE", "is a pipe or a device"]),
    (("--record", "PIPE"), USAGE, ["--record PIPE", "is a pipe or a device"]),
    (("--record", "LINK"), USAGE, ["--record LINK", "is a link"]),
    (("--chat-template", "PIPE"), USAGE, ["--chat-template: PIPE", "is a pipe or a device", "each frontend"]),
    (("--api-key-file", "/dev/stdin"), USAGE, ["--api-key-file: /dev/stdin", "is a pipe or a device", "each frontend"]),
    (("--prefix-cache-shared", "PIPE"), USAGE, ["--prefix-cache-shared: PIPE", "is a pipe or a device"]),
    (("--prefix-cache-shared", "/nonexistent"), USAGE, ["--prefix-cache-shared", "/nonexistent"]),
    (("--served-model-name", ""), USAGE, ["--served-model-name is empty"]),
    (("--max-body-bytes", "0"), USAGE, ["--max-body-bytes is 0", "at least 1 byte"]),
    (("--log-level", "1"), USAGE, ["--log-level", '"1"', "debug, info, warning or error"]),
    (("--load-format", "tensorizer"), USAGE, ["--load-format", "expected auto, safetensors, pt "]),
    (("--kv-cache-dtype", "fp8_e5m2"), USAGE, ["--kv-cache-dtype", "int8 or fp8"]),
    (("--max-model-len", "1"), USAGE, ["--max-model-len", "expected 2 or more"]),
    (("--port", "70000"), USAGE, ["--port", "65535"]),
    (("--no-such-option",), USAGE, ["--no-such-option"]),
    (("--host", "192.0.2.1"), ADDRESS, ["cannot listen on 192.0.2.1", "does not have this address"]),
    (("--tokenizer", "/nowhere"), MODEL, ["/nowhere"]),
    (("--tokenizer", "GGUF"), MODEL, ["is a GGUF file", ".gguf"]),
])
def test_options_of_serve(options, code, words, tmp_path):
    (tmp_path / "GGUF").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "LINK").symlink_to("GGUF")
    os.mkfifo(tmp_path / "PIPE")
    refused(code, words, "serve", BUNDLED, "--port", "0", *options, cwd=tmp_path)
    assert (tmp_path / "PIPE").is_fifo() and (tmp_path / "LINK").is_symlink()  # neither renamed nor replaced


def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command in (("serve", BUNDLED), ("frontend", BUNDLED, "--engine", f"ipc://{tmp_path}/engine")):
            refused(ADDRESS, [f"127.0.0.1 port {port}", "in use", "--port"], *command, "--port", port)


BIND_SERVICE, PR_CAPBSET_DROP = 10, 24  # linux/capability.h, linux/prctl.h


def drop_bind_service():
    """Of the process about to run: ports below 1024 are not its own, even as root."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, BIND_SERVICE, 0, 0, 0) and os.geteuid() == 0:
        raise OSError(ctypes.get_errno(), "prctl")


def low_port():
    """A port that the process may not have, or a visible skip."""
    if int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 81:
        pytest.skip("here every user may listen on ports below 1024")
    probe = "import socket; socket.socket().bind(('127.0.0.1', 81))"
    try:
        out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, preexec_fn=drop_bind_service)
    except subprocess.SubprocessError:
        pytest.skip("CAP_NET_BIND_SERVICE cannot be dropped here")
    if "PermissionError" not in out.stderr:
        pytest.skip(f"a process without CAP_NET_BIND_SERVICE may listen on port 81 here: {out.stderr}")
    return 81


@pytest.mark.parametrize("verb", ["serve", "frontend"])
def test_a_port_without_permission(verb, tmp_path):
    more = () if verb == "serve" else ("--engine", f"ipc://{tmp_path}/engine")
    refused(ADDRESS, ["127.0.0.1 port 81: ", "ermission denied", "below 1024", "--port", "CAP_NET_BIND_SERVICE"], verb, BUNDLED, *more, "--port", low_port(),
            preexec=drop_bind_service)


def test_addresses_are_no_models(tmp_path):
    for given, words in (("s3://bucket/x", ["s3://bucket/x is a URL", "org/name"]), ("https://x.y/z", ["https://x.y/z is a URL"]),
                         ("hf://org/name", ["hf://org/name is a URL; use the model id: org/name"]),
                         ("https://huggingface.co/org/name/tree/main", ["use the model id: org/name"])):
        refused(USAGE, words, "serve", given, "--port", "0")


def test_an_address_in_brackets():
    server = Server(MODELS / "llama", *IDS, "--num-gpu-blocks-override", "64", "--host", "[::1]")
    assert "listening on http://[::1]:" in server.process.log()
    server.stop()


def test_every_address_of_a_name(tmp_path):
    """Each frontend answers at all of them."""
    (tmp_path / "hosts").write_text("127.0.0.1 two.test\n127.0.0.2 two.test\n")
    private = ["unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/hosts /etc/hosts && exec "$@"', "sh"]
    if subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces: not root")
    process = Process(*private, BIN / "quire-serve", MODELS / "llama", *IDS, "--num-gpu-blocks-override", "64", "--host", "two.test",
                      "--port", "0", "--frontends", "2")
    port = process.wait_line(r"listening on http://two\.test:(\d+)")[1]
    process.wait_line("ready")
    for address in ("127.0.0.1", "127.0.0.2"):
        for _ in range(4):
            assert Http(f"http://{address}:{port}").raw("GET", "/health")[1].status == 200
    assert process.stop() == 0


def test_parsers_are_listed_once():
    code, lines = start("parse", "--tool-call-parser", "nosuch")
    assert code == USAGE and len(lines) == 1 and lines[0].count("hermes") == 1 and lines[0].endswith("none"), lines


def test_programs_that_stand_alone(tmp_path):
    refused(USAGE, ['"foo"', "ipc://", "tcp://"], "engine", BUNDLED, "--listen", "foo")
    refused(USAGE, ["tcp requires keys", "--insecure-tcp"], "engine", BUNDLED, "--listen", "tcp://127.0.0.1:0")
    refused(USAGE, ["--listen", "ipc://"], "engine", BUNDLED)
    refused(ADDRESS, ["nowhere"], "engine", BUNDLED, "--listen", f"ipc://{tmp_path}/nowhere/engine")
    refused(USAGE, ["--engine", "ipc://"], "frontend", BUNDLED, "--port", "0")
    refused(USAGE, ["--engine", '"nowhere"'], "frontend", BUNDLED, "--port", "0", "--engine", "nowhere")
    refused(6, ["nowhere"], "run-batch", BUNDLED, "-i", tmp_path / "nowhere", "-o", tmp_path / "out")
    refused(USAGE, ["--dtype"], "run-batch", BUNDLED, "-i", "/dev/null", "-o", tmp_path / "out", "--dtype", "int3")
    refused(USAGE, ["--dtype"], "generate", BUNDLED, "x", "--dtype", "int3")


def test_weights_that_the_check_refuses(model):
    """Headers are read before anything is said to be served."""
    data = (model / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header["other.weight"] = header.pop("model.layers.0.mlp.down_proj.weight")
    text = json.dumps(header).encode()
    for spoiled, word in [
        (struct.pack("<Q", len(text)) + text + data[8 + n:], "tensor model.layers.0.mlp.down_proj.weight is missing"),
        (data[:len(data) // 2], "the file is truncated"),
        (data[:100], "the file is truncated"),
        (b"PK\3\4\0\0\x08\x08" + bytes(100), "model.safetensors is a zip archive"),
        (b"/annex/objects/SHA256E-s123--4d7a.safetensors\n", "model.safetensors is a git-annex pointer"),
    ]:
        (model / "model.safetensors").write_bytes(spoiled)
        refused(MODEL, [word], "serve", model, "--port", "0")
    (model / "model.safetensors").write_bytes(data)
    config = json.loads((model / "config.json").read_text())
    edit_config(model, intermediate_size=config["intermediate_size"] * 2)
    refused(MODEL, ["mlp.", "has shape [", "expected ["], "serve", model, "--port", "0")


def test_tokenizers_that_the_check_refuses(model):
    text = (model / "tokenizer.json").read_text()
    for spoiled in (text[:len(text) // 2], '{"model":1}', '[]'):
        (model / "tokenizer.json").write_text(spoiled)
        refused(MODEL, ["tokenizer.json"], "serve", model, "--port", "0", "--frontends", "3")


def test_memory(model, tmp_path):
    code, lines = start("serve", model, "--port", "0", "--kv-cache-memory-bytes", "100k")
    loud = [line for line in lines if " INFO " not in line]
    assert code == MODEL and len(loud) == 1 and "--max-model-len 32" in loud[0] and "--kv-cache-memory-bytes" in loud[0], lines
    huge = tmp_path / "huge"
    huge.mkdir()
    shutil.copy(MODELS / "llama/config.json", huge)
    edit_config(huge, hidden_size=16384, intermediate_size=65536, num_hidden_layers=1000, num_attention_heads=128, head_dim=128,
                num_key_value_heads=128, torch_dtype="bfloat16", vocab_size=512)
    code, lines = start("serve", huge, "--port", "0", *IDS)
    loud = [line for line in lines if " INFO " not in line]
    assert code == MODEL and len(loud) == 1 and "TiB in BF16 do not fit the " in loud[0] and "smaller model" in loud[0], lines


def test_a_packed_cache_that_cannot_be_written(tmp_path):
    """Nothing to end for: one warning."""
    server = Server(MODELS / "llama", "--skip-tokenizer-init", "--num-gpu-blocks-override", "64", "--packed-cache", "/proc/nowhere")
    server.stop()
    loud = [line for line in server.process.log().splitlines() if "WARNING worker: packed cache" in line]
    assert len(loud) == 1 and "cannot make the folder /proc/nowhere" in loud[0] and "runs without it" in loud[0], loud


def test_a_program_that_is_missing(tmp_path):
    for name in ("quire", "quire-serve"):
        shutil.copy(BIN / name, tmp_path)
    out = subprocess.run([tmp_path / "quire", "serve", BUNDLED, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert out.returncode == 127 and len(out.stderr.splitlines()) == 1 and f"{tmp_path}/quire-engine: No such file" in out.stderr


def test_ctrl_c_is_no_failure():
    for number in (2, 15):
        server = Server(MODELS / "llama", *IDS, "--num-gpu-blocks-override", "64")
        server.process.process.send_signal(number)
        assert server.process.exit_code() == 0
        assert not any(word in server.process.log() for word in ("killed", "ended with", "ERROR"))


def test_causes_in_json_logs(tmp_path):
    line = refused(MODEL, [], "serve", tmp_path / "gone", "--port", "0", "--log-json")
    entry = json.loads(line)
    assert entry["level"] == "ERROR" and entry["message"] == f"{tmp_path}/gone: no such folder"


def test_long_messages_are_whole(model, start, tmp_path):
    """More than the 248 bytes that messages once had: from a check, from the worker, and over HTTP."""
    deep = tmp_path.joinpath(*[str(i) * 60 for i in range(8)])
    deep.parent.mkdir(parents=True)
    refused(MODEL, [f": {deep}: no such folder"], "serve", deep, "--port", "0")
    model.rename(deep)
    log = start(deep, *IDS, "--num-gpu-blocks-override", "128").process.log()
    assert f"model {deep}, " in log, log
    (deep / "model.safetensors").write_bytes(b"\xff" * 64)
    line = refused(MODEL, [f"{deep}/model.safetensors: the header has"], "serve", deep, "--port", "0")
    assert line.endswith("expected at most 104857600")
    longer = deep.joinpath(*[str(i) * 200 for i in range(10)])
    line = refused(MODEL, ["…", "9" * 50 + ": no such folder", str(tmp_path)[:20]], "serve", longer, "--port", "0")
    assert len(line.encode()) < 1200


def test_a_warning_beyond_loopback(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    options = (*IDS, "--num-gpu-blocks-override", "64")
    for more, warned in [(("--host", "0.0.0.0"), True), ((), False), (("--host", "127.0.0.2"), False),
                         (("--host", "0.0.0.0", "--api-key", "k"), False), (("--host", "0.0.0.0", "--api-key-file", keys), False)]:
        log = start(MODELS / "llama", *options, *more).process.log()
        assert ("no API key is set" in log) == warned, (more, log)


def names(server):
    return [m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]]


def ask(server, name):
    return server.post("/v1/completions", {"model": name, "prompt": [1, 2], "max_tokens": 1})[0]


def test_names_of_a_folder(start, tmp_path):
    folder = tmp_path / "my-llama"
    shutil.copytree(MODELS / "llama", folder)
    server = start(f"{folder}/", *IDS, "--num-gpu-blocks-override", "64")
    assert names(server) == ["my-llama"]
    assert json.loads(server.get("/v1/models")[1])["data"][0]["root"] == f"{folder}/"
    assert [ask(server, n) for n in ("my-llama", f"{folder}/", str(folder), "")] == [200] * 4
    assert [ask(server, n) for n in ("llama", "my", str(tmp_path), "gpt-4" * 200)] == [404] * 4
    answer = server.post("/v1/completions", {"model": "gpt-4" * 100, "prompt": [1]})[1]
    assert answer["error"]["message"] == f"The model `{'gpt-4' * 100}` does not exist; this server serves `my-llama`."
    assert server.get("/v1/models/my-llama")[0] == 200


def test_names_of_a_cached_model(start, tmp_path):
    snapshot = tmp_path / "hub/models--org--tiny/snapshots/0123abcd"
    shutil.copytree(MODELS / "llama", snapshot)
    (tmp_path / "hub/models--org--tiny/refs").mkdir()
    (tmp_path / "hub/models--org--tiny/refs/main").write_text("0123abcd")
    for given in ("org/tiny", snapshot):
        server = start(given, *IDS, "--num-gpu-blocks-override", "64", env={"HF_HOME": str(tmp_path)})
        assert names(server) == ["org/tiny"]
        assert [ask(server, n) for n in ("org/tiny", str(snapshot))] == [200, 200]
        assert [ask(server, n) for n in ("tiny", "0123abcd")] == [404, 404]


def test_names_that_were_given(start):
    server = start(MODELS / "llama", *IDS, "--num-gpu-blocks-override", "64", "--served-model-name", "a", "--served-model-name", "b")
    assert names(server) == ["a", "b"]
    assert [ask(server, n) for n in ("a", "b", "llama", str(MODELS / "llama"))] == [200, 200, 404, 404]


def test_names_in_a_batch(tmp_path):
    folder = tmp_path / "tiny"
    shutil.copytree(BUNDLED, folder)
    asked = ["tiny", str(folder), "other"]
    (tmp_path / "in.jsonl").write_text("".join(
        json.dumps({"custom_id": n, "method": "POST", "url": "/v1/completions", "body": {"model": n, "prompt": "x", "max_tokens": 1}}) + "\n"
        for n in asked))
    code, _ = start("run-batch", folder, "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    got = {a["custom_id"]: a["response"]["status_code"] for a in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert code == 1 and [got[n] for n in asked] == [200, 200, 404]
