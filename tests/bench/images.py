#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an image takes: the tower of SmolVLM-256M (12 layers of 768, squares of 512 x 512 pixels, 1024 patches) with dummy weights.

    python3 tests/bench/images.py [--bin build/release/bin] [--rounds 5] [--json] [QUIRE-OPTION …]

The first token of a prompt with an image of 3 x 3 squares and the whole one, less that of a prompt with an image of one square, is nine
squares; medians of alternated rounds. Multiplications of a square are counted from the shape; the peak is `quire bench roofline`'s."""
import argparse
import base64
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, INNER, LAYERS, ROWS, PATCH = 768, 3072, 12, 1024, 16
TEXT = dict(model_type="llama", vocab_size=49280, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0)


def operations():
    """Of a square: products of the layers, scores and sums of attention, patches; 2 for a multiplication and its addition."""
    layer = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER
    return 2.0 * ROWS * (LAYERS * (layer + 2 * ROWS * HIDDEN) + 3 * PATCH * PATCH * HIDDEN)


def write_folder(folder):
    source = ROOT / "tests/data/vision/smolvlm"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    config = json.loads((source / "config.json").read_text()) | {"scale_factor": 4, "torch_dtype": "bfloat16", "text_config": TEXT}
    config["vision_config"] = dict(model_type="smolvlm_vision", hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
                                   num_attention_heads=12, image_size=512, patch_size=PATCH)
    pixels = json.loads((source / "preprocessor_config.json").read_text())
    pixels |= {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 512}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))


class Engine:
    def __init__(self, programs, folder, edge, options):
        command = [programs / "quire", "serve", folder, "--port", "0", "--load-format", "dummy", "--max-model-len", "2048",
                   "--mm-processor-kwargs", json.dumps({"size": {"longest_edge": edge}}), *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if "listening on http" in line:
                self.url = line.split("listening on ")[1].strip()
            if "serve: ready" in line:
                break
        else:
            raise SystemExit("quire serve ended before it was ready")

    def seconds(self):
        """An image of new pixels, so that nothing is cached."""
        pixels = base64.b64encode(os.urandom(1024) * 768).decode()
        body = {"prompt": [30, 87, 300, 71], "max_tokens": 1, "temperature": 0, "ignore_eos": True,
                "multi_modal_data": {"image": [{"data": pixels, "dtype": "uint8", "shape": [512, 512, 3]}]}}
        ask = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        begin = time.monotonic()
        urllib.request.urlopen(ask).read()
        return time.monotonic() - begin

    def stop(self):
        self.process.terminate()
        self.process.communicate()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--json", action="store_true")
    a, options = p.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_folder(folder)
        one, ten = (Engine(a.bin, folder, edge, options) for edge in (512, 1536))
        times = [(one.seconds(), ten.seconds()) for _ in range(a.rounds + 1)][1:]
        one.stop(), ten.stop()
    squares = sorted((t - o) / 9 for o, t in times)
    square = statistics.median(squares)
    said = {"seconds_of_a_square": square, "spread": (squares[-1] - squares[0]) / 2 / square, 
            "first_token_of_one": statistics.median(o for o, _ in times),
            "first_token_of_ten": statistics.median(t for _, t in times), "gop_per_s": operations() / square / 1e9}
    print(json.dumps(said) if a.json else "\n".join(f"{key:20} {value:.3f}" for key, value in said.items()))


if __name__ == "__main__":
    main()
