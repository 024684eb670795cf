# SPDX-License-Identifier: Apache-2.0
"""Start to ready of quire-engine with a model of Llama-3.2-1B's shape (random bf16 weights) from a warm page cache.

Prints the median of wall seconds from exec to "ready" in the log, the processor seconds and the peak resident MiB of
its worker: packing at each start, then by --packed-cache; what copying the same bytes with as many threads takes; and
where the time went, as the worker's debug lines say. On a busy machine the processor seconds are what counts: divided by
the threads they are what a quiet one takes.
Usage:
    QUIRE_BIN=build/release/bin python3 tests/bench/load.py [--repeats 3] [--quantization int8] [--json]
"""
import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess
import tempfile
import threading
import time

BIN = pathlib.Path(os.environ.get("QUIRE_BIN", "build/release/bin"))
HIDDEN, INTER, VOCAB, LAYERS, Q, KV = 2048, 8192, 128256, 16, 2048, 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": VOCAB, "tie_word_embeddings": True, "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
}


def tensors():
    """Name and shape of every tensor, in the order of the file."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)
        for name, shape in (("q", (Q, HIDDEN)), ("k", (KV, HIDDEN)), ("v", (KV, HIDDEN)), ("o", (HIDDEN, Q))):
            yield f"{layer}self_attn.{name}_proj.weight", shape
        for name, shape in (("gate", (INTER, HIDDEN)), ("up", (INTER, HIDDEN)), ("down", (HIDDEN, INTER))):
            yield f"{layer}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (HIDDEN,)


def write_model(folder):
    """Small random numbers: a block of them over and over, rotated, since only their movement is measured."""
    block = bytearray(random.Random(1).randbytes(1 << 22))
    block[1::2] = bytes(b & 0x83 | 0x38 for b in block[1::2])  # exponents that keep the numbers small
    header, at = {}, 0
    for name, shape in tensors():
        n = 2
        for size in shape:
            n *= size
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        left = at
        while left:
            f.write(block[:left])
            left -= min(left, len(block))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return at


def status(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0


def start(folder, args, wait_for=None):
    """(seconds to ready, worker's processor seconds, worker's peak resident MiB, {phase: ms}); then until a line has
    `wait_for`."""
    begin = time.monotonic()
    command = [BIN / "quire-engine", folder, "--listen", f"ipc://{folder}/socket", "--skip-tokenizer-init", "--max-model-len",
               "4096", "--log-level", "debug", *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as engine:
        result, phases = None, {}
        for line in engine.stderr:
            if " start: " in line:
                phases.update((what, float(ms)) for what, ms in re.findall(r"(?:start: |, )([^,]+?) ([0-9.]+) ms", line))
            if " ready, " in line and result is None:
                seconds = time.monotonic() - begin
                worker = pathlib.Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()[0]
                times = pathlib.Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
                ticks = os.sysconf("SC_CLK_TCK")
                result = seconds, (int(times[11]) + int(times[12])) / ticks, status(worker, "VmHWM"), phases
            if result and (wait_for is None or wait_for in line):
                break
        engine.terminate()
        engine.stderr.read()
    if result is None:
        raise SystemExit("load.py: the engine did not get ready")
    return result


def copy_seconds(n, n_thread):
    """Copying n bytes between two mappings that are resident, by threads."""
    maps = [mmap.mmap(-1, n) for _ in range(2)]
    at = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in maps]
    for a in at:
        ctypes.memset(a, 1, n)
    part = n // n_thread
    threads = [threading.Thread(target=ctypes.memmove, args=(at[0] + i * part, at[1] + i * part, part)) for i in range(n_thread)]
    begin = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        n = write_model(folder)
        args = ["--quantization", a.quantization]
        cache = [*args, "--packed-cache", str(folder / "packed")]
        with open(folder / "model.safetensors", "rb") as f:
            while f.read(1 << 24):  # a warm page cache
                pass
        rows = {"packed at start": [start(folder, args) for _ in range(a.repeats)]}
        start(folder, cache, "packed cache: wrote")
        rows["packed cache"] = [start(folder, cache) for _ in range(a.repeats)]
    copy = statistics.median(copy_seconds(n, len(os.sched_getaffinity(0))) for _ in range(a.repeats))
    result = {"bytes": n, "copy_s": copy}
    for row, runs in rows.items():
        ready, cpu, peak = (statistics.median(values) for values in list(zip(*runs))[:3])
        phases = {what: statistics.median(run[3][what] for run in runs) for what in runs[0][3]}
        result[row] = {"ready_s": ready, "cpu_s": cpu, "peak_mib": peak, "phases_ms": phases}
    if a.json:
        print(json.dumps(result))
        return
    print(f"{n / 1e6:.0f} MB of weights; a copy of them takes {copy:.3f} s")
    for row in rows:
        r = result[row]
        print(f"{row:16} ready in {r['ready_s']:.3f} s = {r['ready_s'] / copy:.1f} copies; worker {r['cpu_s']:.2f} s of processor, "
              f"peak {r['peak_mib']:.0f} MiB")
        print("".join(f"    {ms:8.1f} ms  {what}\n" for what, ms in r["phases_ms"].items()), end="")


if __name__ == "__main__":
    main()
