# SPDX-License-Identifier: Apache-2.0
"""Makes blocks.gguf, blocks of every type that is read with random bytes, and blocks.safetensors, the floats that the `gguf` package
makes of them; the corpus of the fuzz target gguf; and common/gguf/grids.c. Run from here: python make.py (needs tests/requirements.txt
and clang-format-14)."""
import pathlib
import struct
import subprocess
import sys

import gguf
import gguf.quants
import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
import gguf_files as files  # noqa: E402
import test_gguf  # noqa: E402

CORPUS = HERE.parents[1] / "fuzz/corpus/gguf"
TOKENIZER = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}


def make_blocks():
    rng = np.random.default_rng(19)
    w = gguf.GGUFWriter(str(HERE / "blocks.gguf"), "llama")
    floats = {}
    for kind in test_gguf.BLOCKS:
        raw, of = files.random_blocks(rng, (2, 512), kind)
        w.add_tensor(kind, raw, raw_dtype=of)
        floats[kind] = files.dequantized(raw, of).astype(np.float32)
    files.finish(w)
    save_file(floats, HERE / "blocks.safetensors")


def tiny(path, kind, tokens):
    w = gguf.GGUFWriter(str(path), "llama")
    c = {"model_type": "llama", "max_position_embeddings": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
         "num_attention_heads": 2, "rms_norm_eps": 1e-5}
    files.add_sizes(w, c)
    files.add_rope(w, c)
    tokens(w)
    rng = np.random.default_rng(1)
    for name, shape in (("token_embd.weight", (4, 32)), ("blk.0.attn_q.weight", (32, 32)), ("output_norm.weight", (32,))):
        raw, of = files.packed(rng.standard_normal(shape).astype(np.float32), kind)
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)


def byte_level(w):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(list(TOKENIZER["vocab"]) + ["<|im_end|>"])
    w.add_token_types([1, 1, 1, 1, 3])
    w.add_token_merges(TOKENIZER["merges"])
    w.add_eos_token_id(4)
    w.add_add_eos_token(True)
    w.add_chat_template("{{ messages }}")


def pieces(w):
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "▁a"]
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -0.5])
    w.add_token_types([2, 3, 3, 6, 1, 1, 1])
    w.add_bos_token_id(1)


def make_corpus():
    CORPUS.mkdir(exist_ok=True)
    for kind, tokens in (("F32", byte_level), ("Q8_0", pieces), ("Q4_0", byte_level)):
        tiny(CORPUS / f"{kind}-{tokens.__name__}", kind, tokens)
    (CORPUS / "blocks").write_bytes((HERE / "blocks.gguf").read_bytes())
    (CORPUS / "empty").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    (CORPUS / "big-endian").write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


GRIDS = {"iq1": ("IQ1_S", 2, "-1, 0, 1"), "iq2_xxs": ("IQ2_XXS", 2, "8, 25, 43"), "iq2_xs": ("IQ2_XS", 2, "8, 25, 43"),
         "iq2_s": ("IQ2_S", 2, "8, 25, 43"), "iq3_xxs": ("IQ3_XXS", 3, "4, 12, 20, 28, 36, 44, 52, 62"),
         "iq3_s": ("IQ3_S", 3, "1, 3, 5, 7, 9, 11, 13, 15")}
GRIDS_HEAD = """/* SPDX-License-Identifier: Apache-2.0 */
/* Grids, as rows_internal.h says. Above each one the numbers that its places stand for. Written by
 * tests/data/gguf/make.py. Source: ggml (ggml-common.h). */
#include "common/gguf/rows_internal.h"
"""


def make_grids():
    out = [GRIDS_HEAD]
    for name, (kind, bits, numbers) in GRIDS.items():
        of = getattr(gguf.quants, kind)
        of.init_grid()
        rows = np.searchsorted(of.grid_map, of.grid.reshape(of.grid_shape)) << np.arange(of.grid_shape[1]) * bits
        assert str(list(of.grid_map))[1:-1] == numbers
        words = ", ".join(f"0x{row:04x}" for row in rows.sum(1))
        out.append(f"/* {numbers} */\nconst uint16_t gguf_grid_{name}[{len(rows)}] = {{{words}}};\n")
    path = HERE.parents[2] / "common/gguf/grids.c"
    path.write_text("\n".join(out))
    subprocess.run(["clang-format-14", "-i", path], check=True)


if __name__ == "__main__":
    make_blocks()
    make_corpus()
    make_grids()
