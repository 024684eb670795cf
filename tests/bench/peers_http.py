# SPDX-License-Identifier: Apache-2.0
"""The row of peers.py over HTTP: quire serve beside llama-server, 32 clients at once, driven by `quire bench serve`.

llama-server is in no package; the source package of llama-cpp-python has its source, so it is the same version as in the other
rows. It is compiled for this machine, without its web page.
"""
import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request

from peers_child import byte_alphabet

CLIENTS, N_IN, N_OUT, N_REQUEST = 32, 127, 64, 64
TOKENS = f"HTTP, {CLIENTS} clients, {N_IN} in, {N_OUT} out: output tok/s"
TTFT = f"HTTP, {CLIENTS} clients, {N_IN} in, {N_OUT} out: TTFT p50, ms"
VOCAB = 2048        # prompts are drawn from below this, which all shapes have
READY_S = 300
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
           "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"]


def build_server(python, work, threads, options):
    """The path of llama-server; compiled on first use with the source that the pip of `python` finds and more options of CMake."""
    program = work / "llama-server"
    if program.exists():
        return program
    source = work / "llama-source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "-d", source, "llama-cpp-python"],
                   check=True, stdout=subprocess.DEVNULL)
    package = next(source.glob("*.tar.gz"))
    with tarfile.open(package) as tar:
        tar.extractall(source, filter="data")
    tree = next(source.glob("*/vendor/llama.cpp"))
    log = open(source / "build.log", "w", encoding="utf-8")
    for command in (["cmake", "-S", tree, "-B", source / "build", *OPTIONS, *options],
                    ["cmake", "--build", source / "build", "-j", str(threads), "--target", "llama-server"]):
        if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
            raise SystemExit(f"peers.py: llama-server does not build; see {log.name}")
    shutil.copy2(source / "build/bin/llama-server", program)
    return program


def write_tokenizer(folder, vocab_size):
    """A byte-level tokenizer whose further tokens stand for themselves, as the peers' models have it."""
    tokens = byte_alphabet() + [f"<{i}>" for i in range(256, vocab_size)]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text("{}")


def quire_command(binary, folder, port, threads, variant):
    """quire serve for a folder that has a config.json and no weights."""
    config = json.loads((folder / "config.json").read_text())
    write_tokenizer(folder, config["vocab_size"])
    return [binary / "quire", "serve", folder, "--host", "127.0.0.1", "--port", port, "--load-format", "dummy", "--dtype", "bfloat16",
            "--quantization", variant, "--threads", threads, "--max-model-len", 256, "--max-num-seqs", CLIENTS, "--no-enable-prefix-caching"]


def llama_command(program, model, port, threads):
    return [program, "-m", model, "--host", "127.0.0.1", "--port", port, "-t", threads, "-tb", threads, "-np", CLIENTS, "-c", CLIENTS * 256,
            "--no-cache-prompt", "--no-webui"]


@contextlib.contextmanager
def served(command, port, path, log, limits):
    """The server for as long as the block lasts, from when `path` answers 200. limits: more for subprocess."""
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out, **limits)
    try:
        for _ in range(READY_S * 10):
            if process.poll() is not None:
                raise SystemExit(f"peers.py: {command[0]} ended with {process.returncode}; see {log}")
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"peers.py: {command[0]} was not ready within {READY_S} s; see {log}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def measure(command_for, path, binary, log, limits):
    """{row: value} of one server; command_for(port) starts it, `path` is where it says that it is ready."""
    port, out = free_port(), pathlib.Path(log).with_suffix(".json")
    with served(command_for(port), port, path, log, limits):
        subprocess.run([str(c) for c in (
            binary / "quire-bench", "serve", "--port", port, "--num-prompts", N_REQUEST, "--max-concurrency", CLIENTS, "--input-len", N_IN,
            "--output-len", N_OUT, "--vocab-size", VOCAB, "--num-warmups", 2, "--no-progress", "--json", out)],
            check=True, stdout=subprocess.DEVNULL)
    result = json.loads(out.read_text())["results"][0]
    return {TOKENS: result["output_throughput"], TTFT: result["p50_ttft_ms"]}
