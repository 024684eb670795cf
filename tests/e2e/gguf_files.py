# SPDX-License-Identifier: Apache-2.0
"""GGUF files made of model folders for tests, with the names, keys and quantizers of the `gguf` package (ggml's own), and folders of
the floats that such a file stands for. What a converter changes in the tensors is in `Family`: rows of q and k that rope takes in pairs,
norms with the 1 that Gemma adds, experts in one tensor, matrices that GPT-2 has transposed."""
import json
import shutil
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

ARCHS = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def load_folder(folder):
    """Every tensor of a folder as float32, and its config."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file_f32(path))
    return tensors, json.loads((folder / "config.json").read_text())


def load_file_f32(path):
    """safetensors.numpy knows no bfloat16."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, spec in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + at for at in spec["data_offsets"])
        if spec["dtype"] == "BF16":
            values = (np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw[begin:end], {"F32": np.float32, "F16": np.float16}[spec["dtype"]]).astype(np.float32)
        out[name] = values.reshape(spec["shape"])
    return out


def in_pairs(rows, n_head):
    """Halves of a head's rows to pairs, as ggml's rope of llama wants them."""
    return rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class Family:
    """One architecture: how its tensors differ, and its metadata."""

    def __init__(self, name, arch, pairs=False, one=False, turned=()):
        self.name, self.arch, self.pairs, self.one, self.turned = name, arch, pairs, one, turned


FAMILIES = {f.name: f for f in (
    Family("cohere", "command-r"), Family("cohere2", "cohere2"), Family("exaone4", "exaone4"), Family("gemma", "gemma", one=True),
    Family("gemma2", "gemma2", one=True), Family("gemma3_text", "gemma3", one=True), Family("glm4", "glm4"),
    Family("gpt2", "gpt2", turned=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight")), Family("granite", "granite", pairs=True),
    Family("llama", "llama", pairs=True), Family("mistral", "llama", pairs=True), Family("mixtral", "llama", pairs=True),
    Family("olmo", "olmo", pairs=True), Family("olmo2", "olmo2"), Family("olmoe", "olmoe"), Family("phi", "phi2"), Family("phi3", "phi3"),
    Family("qwen2", "qwen2"), Family("qwen2_moe", "qwen2moe"), Family("qwen3", "qwen3"), Family("qwen3_moe", "qwen3moe"),
    Family("smollm3", "smollm3", pairs=True), Family("stablelm", "stablelm"), Family("starcoder2", "starcoder2"))}


def head_dim(c):
    return c.get("head_dim") or hidden(c) // heads(c)


def hidden(c):
    return c.get("hidden_size") or c["n_embd"]


def heads(c):
    return c.get("num_attention_heads") or c["n_head"]


def kv_heads(c):
    return c.get("num_key_value_heads") or heads(c)


def rope_of(c):
    """(kind, parameters) in the older or the newer spelling."""
    rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
    return rope.get("rope_type", rope.get("type")), rope


def layers(c):
    return c.get("num_hidden_layers") or c["n_layer"]


def stack_experts(tensors):
    """….experts.E.NAME of a layer as one tensor ….experts.NAME."""
    out, stacks = {}, {}
    for name, values in tensors.items():
        parts = name.split(".")
        if "experts" not in parts:
            out[name] = values
            continue
        at = parts.index("experts")
        stacks.setdefault(".".join(parts[:at + 1] + parts[at + 2:]), {})[int(parts[at + 1])] = values
    for name, rows in stacks.items():
        out[name] = np.stack([rows[i] for i in range(len(rows))])
    return out


def merge_head_norms(tensors):
    """StableLM's norm of each head as one tensor."""
    out, merged = {}, {}
    for name, values in tensors.items():
        begin, middle, end = name.partition("_layernorm.norms.")
        if middle:
            merged.setdefault(begin + "_layernorm.weight", {})[int(end.split(".")[0])] = values
        else:
            out[name] = values
    for name, rows in merged.items():
        out[name] = np.stack([rows[i] for i in range(len(rows))])
    return out


def fold_query_scalar(tensors, c):
    """Scores are divided by the square root of a number that GGUF files do not have, so q is made larger instead."""
    by = np.float32((head_dim(c) / c.get("query_pre_attn_scalar", head_dim(c))) ** 0.5)
    norms = any("q_norm" in name for name in tensors)
    for name in tensors:
        if name.endswith("self_attn.q_norm.weight"):
            tensors[name] = (tensors[name] + 1) * by - 1
        elif name.endswith("self_attn.q_proj.weight") and not norms:
            tensors[name] = tensors[name] * by
    return tensors


def converted(folder):
    """(family, config, {GGUF name: values})"""
    tensors, c = load_folder(folder)
    family = FAMILIES[c["model_type"]]
    names = gguf.get_tensor_name_map(ARCHS[family.arch], layers(c))
    if c["model_type"] in ("gemma2", "gemma3_text"):
        tensors = fold_query_scalar(tensors, c)
    out = {}
    for name, values in merge_head_norms(stack_experts(tensors)).items():
        if name.endswith((".attn.bias", ".masked_bias", "inv_freq")):
            continue
        if family.pairs and name.endswith(("q_proj.weight", "q_proj.bias")):
            values = in_pairs(values, heads(c))
        if family.pairs and name.endswith(("k_proj.weight", "k_proj.bias")):
            values = in_pairs(values, kv_heads(c))
        if family.one and name.endswith("norm.weight"):
            values = values + 1
        if name.endswith(family.turned):
            values = values.T
        if name.endswith("shared_expert_gate.weight"):
            values = values.reshape(-1)
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to, f"{family.arch} has no name for {name}"
        out[to] = np.ascontiguousarray(values, dtype=np.float32)
    out.update(rope_tensors(c))
    return family, c, out


def rope_tensors(c):
    """Factors of the frequencies: Llama 3's, made of its four numbers, and longrope's."""
    kind, rope = rope_of(c)
    if kind == "longrope":
        return {f"rope_factors_{k}.weight": np.array(rope[f"{k}_factor"], np.float32) for k in ("long", "short")}
    if kind != "llama3":
        return {}
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for j in range(0, head_dim(c), 2):
        wave = 2 * np.pi * c["rope_theta"] ** (j / head_dim(c))
        smooth = (original / wave - low) / (high - low)
        if wave < original / high:
            factors.append(1)
        elif wave > original / low:
            factors.append(rope["factor"])
        else:
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def add_sizes(w, c):
    w.add_context_length(c.get("max_position_embeddings") or c["n_positions"])
    w.add_embedding_length(hidden(c))
    w.add_block_count(layers(c))
    w.add_feed_forward_length(c.get("intermediate_size") or 4 * hidden(c))
    w.add_head_count(heads(c))
    w.add_head_count_kv(kv_heads(c))
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if key in c:
            w.add_layer_norm_eps(c[key])
    if c["model_type"] == "olmo":
        w.add_layer_norm_eps(1e-5)
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])


def add_rope(w, c):
    kind, rope = rope_of(c)
    if c["model_type"] == "gpt2":
        return
    w.add_rope_freq_base(c.get("rope_theta", rope.get("rope_theta", 10000.0)))
    w.add_rope_dimension_count(int(head_dim(c) * c.get("partial_rotary_factor", 1)))
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type({"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}[kind])
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn" and "original_max_position_embeddings" in rope:
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_float32(f"{w.arch}.rope.scaling.yarn_beta_fast", rope["beta_fast"])
    if kind == "longrope":
        original = c["original_max_position_embeddings"]
        scale = c["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(float((1 + np.log(scale) / np.log(original)) ** 0.5))


def add_settings(w, c):
    """Of few families."""
    for key, add in (("logit_scale", w.add_logit_scale), ("logits_scaling", w.add_logit_scale),
                     ("attention_multiplier", w.add_attention_scale), ("embedding_multiplier", w.add_embedding_scale),
                     ("residual_multiplier", w.add_residual_scale), ("clip_qkv", w.add_clamp_kqv),
                     ("attn_logit_softcapping", w.add_attn_logit_softcapping),
                     ("final_logit_softcapping", w.add_final_logit_softcapping),
                     ("num_experts_per_tok", w.add_expert_used_count), ("num_experts", w.add_expert_count),
                     ("num_local_experts", w.add_expert_count), ("moe_intermediate_size", w.add_expert_feed_forward_length),
                     ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length)):
        if c.get(key) is not None:
            add(c[key])
    if c["model_type"] == "stablelm":
        w.add_parallel_residual(c["use_parallel_residual"])
    if c.get("sliding_window") and c["model_type"] in ("cohere2", "exaone4", "gemma2", "gemma3_text", "phi3"):
        w.add_sliding_window(c["sliding_window"])
    if c.get("sliding_window_pattern"):
        w.add_uint32(f"{w.arch}.attention.sliding_window_pattern", c["sliding_window_pattern"])


def packed(values, kind):
    """(bytes, type) of a matrix; vectors, routers and rows that are no whole blocks stay F32, as ggml's tools have them."""
    of = Type[kind]
    block = gguf.GGML_QUANT_SIZES[of][0]
    if kind == "F32" or values.ndim < 2 or values.shape[-1] % block:
        return values.astype(np.float32), Type.F32
    if kind == "F16":
        return values.astype(np.float16), Type.F16
    return gguf.quantize(values, of), of


def dequantized(raw, of):
    """The floats that blocks stand for, by the `gguf` package, which does not have all types."""
    if of != Type.Q1_0:
        return gguf.dequantize(raw, of)
    blocks = raw.reshape(*raw.shape[:-1], -1, 18)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    return np.where(np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little"), scale, -scale).reshape(*raw.shape[:-1], -1)


# Scales of random blocks whose numbers are as large as weights are; 0.002 of the others.
ORDINARY = {"Q4_K": 1e-4, "Q5_K": 5e-5, "Q6_K": 4e-5, "IQ4_XS": 5e-5, "IQ1_S": 0.01, "IQ1_M": 0.01, "IQ2_XXS": 5e-4, "IQ2_XS": 5e-4,
            "IQ2_S": 5e-4, "IQ3_XXS": 2e-4, "IQ3_S": 3e-4, "TQ1_0": 0.03, "TQ2_0": 0.03, "Q1_0": 0.03}


def random_blocks(rng, shape, kind, scale=0.002):
    """Blocks of any type with small scales: what no quantizer of the package makes."""
    of = Type[kind]
    block, size = gguf.GGML_QUANT_SIZES[of]
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,), "IQ4_NL": (0,),
              "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q1_0": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
              "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,)}
    for at in halves.get(kind, ()):
        raw[..., at:at + 2] = scale
    if kind == "MXFP4":
        raw[..., 0] = rng.integers(118, 122, raw.shape[:-1])
    elif kind == "NVFP4":
        raw[..., :4] = rng.integers(0, 32, (*raw.shape[:-1], 4))
    elif kind == "IQ1_M":  # 4 bits of the scale in each of 4 u16
        raw[..., 49::2] = raw[..., 49::2] & 15 | np.array([scale[0] & 15, scale[0] >> 4, scale[1] & 15, scale[1] >> 4], np.uint8) << 4
    return raw.reshape(*shape[:-1], shape[-1] // block * size), of


def writer_of(path, family, c, **options):
    w = gguf.GGUFWriter(str(path), family.arch, **options)
    add_sizes(w, c)
    add_rope(w, c)
    add_settings(w, c)
    if c.get("bos_token_id") is not None:
        w.add_bos_token_id(c["bos_token_id"])
    if c.get("eos_token_id") is not None:
        w.add_eos_token_id(c["eos_token_id"])
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_gguf(folder, path, kind="F32", metadata=None, **options):
    """The folder's model as a GGUF file at `path`. kind: a type, or a function of a tensor's name and values. metadata: called with the
    writer. Returns the numbers that the file's tensors stand for, by their names in the file."""
    family, c, tensors = converted(folder)
    w = writer_of(path, family, c, **options)
    if metadata:
        metadata(w)
    stands = {}
    for name, values in tensors.items():
        of = kind(name, values) if callable(kind) else kind
        raw, of = packed(values, "F32" if "ffn_gate_inp" in name or "rope_f" in name else of)
        stands[name] = raw.astype(np.float32) if of in (Type.F32, Type.F16) else gguf.dequantize(raw, of)
        w.add_tensor(name, raw, raw_dtype=of)
    finish(w)
    return stands


def folder_of(tmp, source, stands):
    """A folder like `source` with the numbers of a GGUF file, in float32; of families that a converter does not change but for q and k."""
    family, c, tensors = converted(source)
    tensors, _ = load_folder(source)
    names = gguf.get_tensor_name_map(ARCHS[family.arch], layers(c))
    out = {}
    for name, values in tensors.items():
        made = stands[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        if family.pairs and ("q_proj" in name or "k_proj" in name):
            n = heads(c) if "q_proj" in name else kv_heads(c)
            made = made.reshape(n, made.shape[0] // n // 2, 2, *made.shape[1:]).swapaxes(1, 2).reshape(made.shape)
        assert made.shape == values.shape, name
        out[name] = np.ascontiguousarray(made)
    tmp.mkdir()
    save_file(out, tmp / "model.safetensors")
    (tmp / "config.json").write_text(json.dumps(dict(c, torch_dtype="float32")))
    return tmp


def random_folder(tmp, rng, hidden_size=256, tie=False):
    """A llama whose rows are whole blocks of every type."""
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": hidden_size,
         "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": tie,
         "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
    kv, inner, h = 128, 512, hidden_size
    shapes = {"model.embed_tokens.weight": (320, h), "model.norm.weight": (h,)}
    if not tie:
        shapes["lm_head.weight"] = (320, h)
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm.weight": (h,), at + "post_attention_layernorm.weight": (h,),
                   at + "self_attn.q_proj.weight": (256, h), at + "self_attn.k_proj.weight": (kv, h),
                   at + "self_attn.v_proj.weight": (kv, h), at + "self_attn.o_proj.weight": (h, 256),
                   at + "mlp.gate_proj.weight": (inner, h), at + "mlp.up_proj.weight": (inner, h), at + "mlp.down_proj.weight": (h, inner)}
    tensors = {name: (1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.05 * rng.standard_normal(shape)).astype(np.float32)
               for name, shape in shapes.items()}
    tmp.mkdir()
    save_file(tensors, tmp / "model.safetensors")
    (tmp / "config.json").write_text(json.dumps(c))
    return tmp


def make_blocks(folder, path, rng, kind, floats=()):
    """As make_gguf with random blocks of a type in all matrices but those whose names contain one of `floats`."""
    family, c, tensors = converted(folder)
    w = writer_of(path, family, c)
    stands = {}
    for name, values in tensors.items():
        raw, of = packed(values, "F32")
        if values.ndim == 2 and not any(part in name for part in floats):
            raw, of = random_blocks(rng, values.shape, kind, ORDINARY.get(kind, 0.002))
        stands[name] = raw if of == Type.F32 else dequantized(raw, of)
        w.add_tensor(name, raw, raw_dtype=of)
    finish(w)
    return stands


def copy_with(path, to, change):
    """The bytes of a file, changed."""
    shutil.copy(path, to)
    raw = bytearray(to.read_bytes())
    change(raw)
    to.write_bytes(raw)
    return to


def add_tokenizer(w, path, pre):
    """Byte-level BPE of a tokenizer.json."""
    t = json.loads(path.read_text())
    vocab = dict(t["model"]["vocab"])
    added = {a["id"]: a for a in t["added_tokens"]}
    vocab.update((a["content"], i) for i, a in added.items())
    tokens = [f"[PAD{i}]" for i in range(max(vocab.values()) + 1)]
    kinds = [gguf.TokenType.UNUSED] * len(tokens)
    for text, i in vocab.items():
        tokens[i] = text
        kinds[i] = gguf.TokenType.NORMAL
        if i in added:
            kinds[i] = gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    return tokens


def add_sentencepiece(w, path):
    import sentencepiece
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    kinds = {sp.is_unknown: gguf.TokenType.UNKNOWN, sp.is_control: gguf.TokenType.CONTROL, sp.is_unused: gguf.TokenType.UNUSED,
             sp.is_byte: gguf.TokenType.BYTE}
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([sp.id_to_piece(i) for i in range(len(sp))])
    w.add_token_scores([sp.get_score(i) for i in range(len(sp))])
    w.add_token_types([next((kind for test, kind in kinds.items() if test(i)), gguf.TokenType.NORMAL) for i in range(len(sp))])
    return sp


def metadata_file(path, add, arch="llama"):
    """A file without tensors."""
    w = gguf.GGUFWriter(str(path), arch)
    add(w)
    finish(w)
    return path
