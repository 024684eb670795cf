#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A neighbour's stream while items of many MB go from its frontend to the engine over tcp:// with CURVE keys.

    QUIRE_BIN=build/release/bin python3 tests/bench/items_tcp.py [--mib 64] [--runs 3] [--insecure-tcp]

One client reads a stream of tokens and notes when each event comes. In the middle of it another sends a request whose items (files of
16 MiB) are --mib in all. Printed: the longest gap between two events of the stream without and with that request, and how long the
request took. The model is one of random weights with the plugin of the tests, which must fit the machine's pace: steps of a few ms, so
that a gap shows. Needs only Python's standard library and a C compiler.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from servers import BIN, ROOT, Http, Process  # noqa: E402

BLOB, BLOB_MIB = -9, 16


def make_model(folder):
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["GridsForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 768,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": False}))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", ROOT, "-o", folder / "grids.so",
                    ROOT / "tests/plugins/grids.c"], check=True)


def make_blob(path, first):
    n = BLOB_MIB << 20
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({n},), }}".encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", 118) + head + bytes([first]) * n)


class Neighbour(threading.Thread):
    def __init__(self, server):
        super().__init__()
        self.server, self.times, self.stop = server, [], False

    def run(self):
        body = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "detokenize": False}
        for _ in self.server.events("/v1/completions", body):
            self.times.append(time.monotonic())
            if self.stop:
                return

    def gaps(self, begin, end):
        """ms between events, of those that end from begin on until end."""
        return [(b - a) * 1e3 for a, b in zip(self.times, self.times[1:]) if b >= begin and a <= end]


def measure(server, files, run):
    stream = Neighbour(server)
    stream.start()
    while len(stream.times) < 20:
        time.sleep(0.01)
    quiet = time.monotonic()
    time.sleep(2)
    begin = time.monotonic()
    body = {"prompt": [4 + run] + [BLOB] * len(files), "multi_modal_data": {"blobs": [{"path": str(f)} for f in files]},
            "max_tokens": 1, "detokenize": False}
    status, answer = server.post("/v1/completions", body, timeout=600)
    end = time.monotonic()
    assert status == 200, answer
    stream.stop = True
    stream.join()
    before, during = stream.gaps(quiet, begin), stream.gaps(begin, end)
    print(f"run {run}: longest gap {max(before):.1f} ms before ({len(before)} events), {max(during):.1f} ms while {len(files) * BLOB_MIB} "
          f"MiB of items were read, sent and computed in {end - begin:.2f} s ({len(during)} events)", flush=True)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--mib", type=int, default=64, help="MiB of items, a multiple of 16, at most 128")
    ask.add_argument("--runs", type=int, default=3)
    ask.add_argument("--insecure-tcp", action="store_true", help="without keys")
    o = ask.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder)
        subprocess.run([BIN / "quire", "keygen", folder / "keys"], check=True, stdout=subprocess.DEVNULL)
        files = [folder / f"{i}.npy" for i in range(o.mib // BLOB_MIB)]
        for i, file in enumerate(files):
            make_blob(file, i + 1)
        keys = ("--insecure-tcp",) if o.insecure_tcp else ("--keys", folder / "keys")
        engine = Process(BIN / "quire-engine", folder, "--plugin", folder / "grids.so", "--load-format", "dummy", "--skip-tokenizer-init",
                         "--listen", "tcp://127.0.0.1:0", *keys, "--num-gpu-blocks-override", "600", "--threads", "1")
        frontend = None
        try:
            address = engine.wait_line(r"listening on (tcp://\S+)")[1]
            frontend = Process(BIN / "quire-frontend", folder, "--plugin", folder / "grids.so", "--engine", address, *keys, "--port", "0",
                               "--skip-tokenizer-init", "--allowed-local-media-path", folder)
            server = Http(frontend.wait_line(r"listening on (http://\S+)")[1])
            frontend.wait_line("link: connected")
            for run in range(o.runs):
                measure(server, files, run)
        finally:
            for process in (frontend, engine):
                if process:
                    process.stop()


if __name__ == "__main__":
    main()
