# SPDX-License-Identifier: Apache-2.0
"""Tiny quantized models of odd sizes, packed by the tools' own packages where these pack on a CPU, with the logits of transformers for
the dequantized weights (pip install torch transformers safetensors compressed-tensors bitsandbytes).

    python tests/differential/quantized.py OUT [PART OF A NAME ...]

writes OUT/NAME with config.json and model.safetensors as published folders have them, and golden.json and golden.safetensors in the form
of families.py. `build/dev/tests/test_weights_quant OUT/* ...` compares: of formats that are multiplied as floats logits differ by
rounding alone, of integers by what 8-bit activations change. Names are SIZE-FORMAT; random numbers come from the name alone."""
import argparse
import copy
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import families  # noqa: E402

PROMPTS = (1, 5, 40)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def sizes(architecture, model_type, hidden, heads, head_dim, kv, inner, **more):
    return families.base(architecture, model_type, hidden_size=hidden, num_attention_heads=heads, head_dim=head_dim,
                         num_key_value_heads=kv, intermediate_size=inner, torch_dtype="float16", **more)


MODELS = {
    "llama96": sizes("LlamaForCausalLM", "llama", 96, 4, None, 2, 160),
    "llama96-bias": sizes("LlamaForCausalLM", "llama", 96, 4, None, 2, 160, attention_bias=True, mlp_bias=True),
    "qwen160-tied": sizes("Qwen2ForCausalLM", "qwen2", 160, 4, None, 1, 224, tie_word_embeddings=True),
    "qwen192": sizes("Qwen3ForCausalLM", "qwen3", 192, 3, 64, 3, 320),
    "qwen96-wide": sizes("Qwen3ForCausalLM", "qwen3", 96, 4, 40, 2, 160, tie_word_embeddings=True),
    "phi96": sizes("Phi3ForCausalLM", "phi3", 96, 4, None, 2, 160, pad_token_id=0),
}


# ---- integers in groups of inputs ----

def groups_of(n_in, group):
    return torch.arange(n_in) // (group if group > 0 else n_in)


def fit(weight, groups, bits, symmetric, least=0):
    """Integers [out, in] from 0 on, scales and zero points [out, group], and what they stand for."""
    most = 2 ** bits - 1
    parts = [weight[:, groups == g] for g in range(int(groups.max()) + 1)]
    low = torch.stack([p.amin(1) for p in parts], 1).clamp(max=0)
    high = torch.stack([p.amax(1) for p in parts], 1).clamp(min=0)
    if symmetric:
        scale = (2 * torch.maximum(-low, high) / most).half().float()
        zero = torch.full_like(scale, (most + 1) // 2)
    else:
        scale = ((high - low) / most).half().float()
        zero = torch.round(-low / scale).clamp(least, most)
    q = (torch.round(weight / scale[:, groups]) + zero[:, groups]).clamp(0, most)
    return q.long(), scale, zero.long(), scale[:, groups] * (q - zero[:, groups])


def pack(x, bits):
    """Along dimension 0 into int32, lowest bits first; a number may end in the next int32."""
    words = torch.zeros((x.shape[0] * bits + 31) // 32 + 1, x.shape[1], dtype=torch.int64)
    for i, row in enumerate(x):
        at, shift = divmod(i * bits, 32)
        words[at] |= (row << shift) & 0xFFFFFFFF
        words[at + 1] |= row >> (32 - shift)
    return ((words[:-1] + 2 ** 31) % 2 ** 32 - 2 ** 31).to(torch.int32)


def gptq(weight, bits=4, group=32, symmetric=True, act_order=False, version=1):
    groups = groups_of(weight.shape[1], group)
    if act_order:
        groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(len(groups)))]
    q, scale, zero, plain = fit(weight, groups, bits, symmetric, least=2 - version)
    return {"qweight": pack(q.t(), bits), "qzeros": pack(zero + version - 2, bits).t(), "scales": scale.t().half(),
            "g_idx": groups.to(torch.int32)}, plain


def awq(weight, group=32):
    q, scale, zero, plain = fit(weight, groups_of(weight.shape[1], group), 4, False)
    turned = [pack(x.t().reshape(x.shape[1], -1, 8)[:, :, AWQ_ORDER].reshape(x.shape[1], -1).t(), 4).t() for x in (q, zero)]
    return {"qweight": turned[0], "qzeros": turned[1], "scales": scale.t().half()}, plain


# ---- floats of 8 bits ----

def fp8(weight, block=128):
    rows, cols = weight.shape
    wide = torch.nn.functional.pad(weight, (0, -cols % block, 0, -rows % block))
    scale = wide.unflatten(0, (-1, block)).unflatten(2, (-1, block)).abs().amax((1, 3)) / 448
    each = scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :cols]
    q = (weight / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale_inv": scale}, q.float() * each


# ---- by packages ----

def compressed(weight, form, weights):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    args = QuantizationArgs(**weights)
    of_group = args.strategy in ("group", "tensor_group")
    whole = generate_gparam(weight.amin(), weight.amax()) if args.strategy == "tensor_group" else None
    parts = weight.reshape(len(weight), -1, args.group_size) if of_group else weight[:, None]
    low, high = (parts.amin(2), parts.amax(2)) if args.strategy != "tensor" else (weight.amin()[None], weight.amax()[None])
    scale, zero = calculate_qparams(low, high, args, global_scale=whole)
    small = form.startswith(("nvfp4", "mxfp4"))
    state = {"weight": weight.clone(), "weight_scale": scale if small else scale.bfloat16().float(), "weight_zero_point": zero}
    if whole is not None:
        state["weight_global_scale"] = whole
    compressor, scheme = BaseCompressor.get_value_from_registry(form), QuantizationScheme(targets=["Linear"], weights=args)
    stored = compressor.compress(state, scheme)
    plain = compressor.decompress(dict(stored), scheme)["weight"].float()
    if not small:
        stored["weight_scale"] = stored["weight_scale"].bfloat16()
    return stored, plain


def bitsandbytes4(weight, kind="nf4", nested=True):
    """The package's own dequantization on a CPU takes blocks by rows; its files have them one after the other."""
    import bitsandbytes.functional as bnb
    q, state = bnb.quantize_4bit(weight.half(), blocksize=64, compress_statistics=nested, quant_type=kind)
    scale = bnb.dequantize_blockwise(state.absmax, state.state2).float() + state.offset if nested else state.absmax.float()
    codes = torch.stack([q.flatten() >> 4, q.flatten() & 15], 1).flatten().long()[:weight.numel()]
    plain = (state.code.float()[codes] * scale.repeat_interleave(64)[:weight.numel()]).reshape(weight.shape)
    return {"weight": q} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}, plain


def of_gptq(bits=4, group=32, symmetric=True, act_order=False, version=1, **more):
    return dict(quant_method="gptq", bits=bits, group_size=group, sym=symmetric, desc_act=act_order,
                checkpoint_format="gptq" if version == 1 else "gptq_v2", **more)


def of_compressed(form, weights):
    return dict(quant_method="compressed-tensors", format=form, ignore=["lm_head"], quantization_status="compressed", config_groups=dict(
        group_0=dict(targets=["Linear"], weights={k: v for k, v in weights.items() if k != "scale_dtype"}, input_activations=None)))


INT, FLOAT = dict(type="int", symmetric=True), dict(type="float", symmetric=True)
GPTQ = {"gptq": {}, "gptq-row-asym": dict(group=-1, symmetric=False), "gptq-8-act": dict(bits=8, act_order=True),
        "gptq-64-ragged": dict(group=64), "gptq-v2-act": dict(symmetric=False, act_order=True, version=2)}
COMPRESSED = {
    "w4a16": ("pack-quantized", dict(INT, num_bits=4, strategy="group", group_size=32)),
    "w4a16-asym": ("pack-quantized", dict(INT, num_bits=4, strategy="group", group_size=32, symmetric=False)),
    "w8a16": ("pack-quantized", dict(INT, num_bits=8, strategy="channel")),
    "w8a8": ("int-quantized", dict(INT, num_bits=8, strategy="channel")),
    "fp8-channel": ("float-quantized", dict(FLOAT, num_bits=8, strategy="channel")),
    "nvfp4": ("nvfp4-pack-quantized", dict(FLOAT, num_bits=4, strategy="tensor_group", group_size=16)),
    "mxfp4": ("mxfp4-pack-quantized", dict(FLOAT, num_bits=4, strategy="group", group_size=32, scale_dtype=torch.uint8)),
}
BLOCKS = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"])
BNB = dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, llm_int8_skip_modules=["lm_head"])
# Of a name: a function of a module's name and weight, and the quantization_config.
FORMATS = {
    **{name: (lambda _, w, o=o: gptq(w, **o), of_gptq(**o)) for name, o in GPTQ.items()},
    "gptq-dynamic": (lambda n, w: None if "o_proj" in n else gptq(w, bits=8 if "down_proj" in n else 4, group=64),
                     of_gptq(group=64, dynamic={"-:.*o_proj": {}, "+:.*down_proj": {"bits": 8}})),
    "awq": (lambda _, w: awq(w), dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm")),
    "awq-row": (lambda _, w: awq(w, -1), dict(quant_method="awq", bits=4, group_size=-1, zero_point=True, version="gemm")),
    "fp8-blocks": (lambda _, w: fp8(w), BLOCKS),
    **{name: (lambda _, w, o=o: compressed(w, *o), of_compressed(*o)) for name, o in COMPRESSED.items()},
    "bnb-nf4": (lambda _, w: bitsandbytes4(w), dict(BNB, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)),
    "bnb-fp4": (lambda _, w: bitsandbytes4(w, "fp4", False), dict(BNB, bnb_4bit_quant_type="fp4")),
}


def make(out, name, config, form):
    quantize, quantization = form
    number = families.number_of(name)
    model = families.build(config, config, number)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())
    reference, parts = copy.deepcopy(model), {}
    for module, linear in model.named_modules():
        made = quantize(module, linear.weight.detach()) if isinstance(linear, torch.nn.Linear) and module != "lm_head" else None
        if made:
            parts.update({f"{module}.{k}": v.contiguous() for k, v in made[0].items()})
            reference.get_submodule(module).weight.data = made[1]
    replaced = {k.rsplit(".qweight", 1)[0].rsplit(".weight", 1)[0] + ".weight" for k in parts}
    left = {k: v.half().contiguous() for k, v in model.state_dict().items() if k not in replaced}
    if config["tie_word_embeddings"]:
        del left["lm_head.weight"]
    prompts = [torch.randint(3, families.VOCAB, (n,), generator=torch.Generator().manual_seed(number + n)).tolist() for n in PROMPTS]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(left | parts, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}, indent=1) + "\n")
    logits = {f"p{i}.logits_last": families.run(reference, ids).logits[0, -1].float().clone() for i, ids in enumerate(prompts)}
    save_file(logits, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps({"name": name, "prompts": [{"ids": ids} for ids in prompts]}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    o = parser.parse_args()
    failed = 0
    for size, config in MODELS.items():
        for form in FORMATS:
            name = f"{size}-{form}"
            if o.names and not any(part in name for part in o.names):
                continue
            try:
                make(o.out, name, copy.deepcopy(config), FORMATS[form])
                print(name, flush=True)
            except Exception as error:  # noqa: BLE001
                failed += 1
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
