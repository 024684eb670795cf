# SPDX-License-Identifier: Apache-2.0
"""Small GGUF models whose matrices are of one type, the same bytes on every machine: numbers come from a generator of this file, and
blocks of the types that the `gguf` package cannot make are random with scales that make weights of the usual size. Their answers by
llama.cpp are in tests/data/gguf/llama_cpp_blocks.json (llama_cpp.py there makes it)."""
import hashlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import gguf_files as files

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 320, 256, 512, 2, 4, 2, 64
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
GRIDS = ("NVFP4", "Q1_0", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
# llama.cpp's files of one name hold several types: what is said of Q4_K_M here is q, k of Q4_K and v, down of Q6_K.
CASES = [("llama", kind) for kind in (*KINDS, "Q4_K_M")] + [("qwen2", kind) for kind in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q4_K_M")] + [
    ("llama", kind) for kind in GRIDS]
PROMPTS = [[5], [7, 301], [5, 9, 20, 33, 7, 60, 41], [3, 200, 77, 310, 19, 254, 101, 8, 66, 140, 2, 91, 311, 17, 230, 48, 5, 29, 180, 262]]
SPREAD = 0.06  # of a weight, about
# Size of a scale that gives weights of that spread, and where in a block it lies; then, of types with a minimum, where that lies and
# how many scales it is.
SCALES = {"Q4_0": (0.013, 0), "Q4_1": (0.013, 0, 2, -7.5), "Q5_0": (0.0065, 0), "Q5_1": (0.0065, 0, 2, -15.5), "Q8_0": (0.0008, 0),
          "Q2_K": (0.006, 80, 82, 1.5), "Q3_K": (0.0014, 108), "Q4_K": (0.00035, 0, 2, 7.5), "Q5_K": (0.00018, 0, 2, 15.5),
          "Q6_K": (0.000044, 208), "IQ4_NL": (0.0009, 0), "IQ4_XS": (0.000048, 0), "Q1_0": (0.06, 0), "TQ1_0": (0.07, 52),
          "TQ2_0": (0.06, 64), "IQ1_S": (0.009, 0), "IQ1_M": (0.009, 48), "IQ2_XXS": (0.0011, 0), "IQ2_XS": (0.0011, 0), "IQ2_S": (0.0011, 0),
          "IQ3_XXS": (0.00042, 0), "IQ3_S": (0.00042, 0)}


class Numbers:
    """splitmix64 of a counter. Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014."""

    def __init__(self, seed):
        self.at = seed << 40

    def words(self, n):
        with np.errstate(over="ignore"):
            x = (np.arange(self.at + 1, self.at + n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        self.at += n
        return x ^ (x >> np.uint64(31))

    def bytes(self, *shape):
        return self.words((int(np.prod(shape)) + 7) // 8).view(np.uint8)[:int(np.prod(shape))].reshape(shape)

    def floats(self, *shape):
        """Even from -1 to 1: 24 bits each, so that f32 has them."""
        return ((self.words(int(np.prod(shape))) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - 1).reshape(shape)


def six_bits(scales):
    """[…, 8] numbers of 6 bits as scale and as minimum: the 12 bytes of Q4_K and Q5_K."""
    low, high = scales[..., :4], scales[..., 4:]
    both = low | (high >> 4) << 6
    return np.concatenate([both, both, (high & 15) * 17], axis=-1).astype(np.uint8)


def blocks(numbers, shape, kind):
    """(bytes, type): random codes; minima are the mean of the codes, so that weights are about 0."""
    of = Type[kind]
    block, size = gguf.GGML_QUANT_SIZES[of]
    raw = numbers.bytes(*shape[:-1], shape[-1] // block, size).copy()
    many = raw.shape[:-1]
    if kind == "MXFP4":
        raw[..., 0] = 120 + raw[..., 0] % 3
        return raw.reshape(*shape[:-1], -1), of
    if kind == "NVFP4":
        raw[..., :4] = 8 + raw[..., :4] % 12
        return raw.reshape(*shape[:-1], -1), of
    scale, at, *minimum = SCALES[kind]
    scale = (np.float32(scale) * (1 + numbers.floats(*many) / 2)).astype(np.float16)
    halves = scale[..., None].view(np.uint8)
    if kind == "IQ1_M":  # 4 bits of it in each of 4 u16
        four = np.stack([halves[..., 0] & 15, halves[..., 0] >> 4, halves[..., 1] & 15, halves[..., 1] >> 4], axis=-1)
        raw[..., at + 1:at + 8:2] = raw[..., at + 1:at + 8:2] & 15 | four << 4
    else:
        raw[..., at:at + 2] = halves
    if minimum:
        raw[..., minimum[0]:minimum[0] + 2] = (scale * np.float16(minimum[1]))[..., None].view(np.uint8)
    if kind == "Q2_K":
        raw[..., :16] = (raw[..., :16] & 15) * 17
    elif kind == "TQ2_0":  # of two bits not both
        raw[..., :64] &= ~((raw[..., :64] & raw[..., :64] >> 1 & 0x55) << 1)
    elif kind in ("Q4_K", "Q5_K"):
        raw[..., 4:16] = six_bits(raw[..., 4:12] & 63)
    return raw.reshape(*shape[:-1], -1), of


def kind_of(name, kind):
    if kind != "Q4_K_M":
        return kind
    return "Q6_K" if name.startswith(("output.", "token_embd")) or "attn_v" in name or "ffn_down" in name else "Q4_K"


def shapes(arch):
    """{name in the file: shape} of the model."""
    kv = KV_HEADS * HEAD
    out = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        p = f"blk.{i}."
        out |= {p + "attn_norm.weight": (HIDDEN,), p + "ffn_norm.weight": (HIDDEN,), p + "attn_q.weight": (HEADS * HEAD, HIDDEN),
                p + "attn_k.weight": (kv, HIDDEN), p + "attn_v.weight": (kv, HIDDEN), p + "attn_output.weight": (HIDDEN, HEADS * HEAD),
                p + "ffn_gate.weight": (INNER, HIDDEN), p + "ffn_up.weight": (INNER, HIDDEN), p + "ffn_down.weight": (HIDDEN, INNER)}
        if arch == "qwen2":
            out |= {p + "attn_q.bias": (HEADS * HEAD,), p + "attn_k.bias": (kv,), p + "attn_v.bias": (kv,)}
    return out


def config_of(arch):
    return {"model_type": arch, "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2}


def add_tokens(w):
    """A tokenizer that llama.cpp accepts; no test reads its texts."""
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>", *(f"▁t{i}" for i in range(3, VOCAB))])
    w.add_token_scores([0.0] * VOCAB)
    w.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))


def make(path, arch, kind):
    """The model as a file. Returns {name: (floats that it stands for, type)}."""
    numbers, out = Numbers(1 + CASES.index((arch, kind))), {}
    w = files.writer_of(path, files.FAMILIES[arch], config_of(arch))
    add_tokens(w)
    for name, shape in shapes(arch).items():
        of = kind_of(name, kind) if len(shape) == 2 else "F32"
        if of in SCALES or of in ("MXFP4", "NVFP4"):
            raw, of = blocks(numbers, shape, of)
            floats = files.dequantized(raw, of)
        else:
            values = numbers.floats(*shape) * np.float32(SPREAD * 3 ** 0.5 if len(shape) == 2 else 0.1)
            raw, of = files.packed(values + np.float32(name.endswith("norm.weight")), of)
            floats = raw.astype(np.float32) if of != Type.BF16 else gguf.dequantize(raw, of)
        out[name] = floats, of
        w.add_tensor(name, raw, raw_dtype=of)
    files.finish(w)
    return out


def sum_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
