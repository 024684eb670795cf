#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that torchao has quantized, as transformers saves them, and what they compute: tests/data/models/llama-torchao-*, each with the
golden of the model whose weights are torchao's dequantized ones in float32.

    python3 tests/data/quantized/make_torchao.py

int8-int4: integers of 4 bits in groups with zero points, embedding and logits in 8 bits, by transformers' own save. int4: torchao's
Int4Tensor, whose numbers are made here, because torchao makes them on a GPU alone; its tensors are flattened by torchao. The first seed
whose answers rounding cannot change is taken (redraw.py). Needs torch, transformers, torchao, safetensors."""
import copy
import json
import pathlib
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import redraw  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict  # noqa: E402
from torchao.quantization import (FqnToConfig, Int4Tensor, Int4WeightOnlyConfig, Int8DynamicActivationIntxWeightConfig,  # noqa: E402
                                  IntxWeightOnlyConfig, MappingType, PerAxis, PerGroup)

MODELS = pathlib.Path(__file__).resolve().parents[1] / "models"
GROUP, SEEDS = 32, 80


def base_of(seed, tied):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.1 * torch.randn_like(p))
            else:
                p.normal_(0, 0.25 if "embed" in name or "lm_head" in name else 0.15)
    return model.bfloat16()


def int8_int4(base, folder):
    rows = lambda: IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))  # noqa: E731
    grouped = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP),
                                                    weight_mapping_type=MappingType.ASYMMETRIC)
    config = FqnToConfig({"_default": grouped, "model.embed_tokens": rows(), "lm_head": rows()})
    with tempfile.TemporaryDirectory() as there:
        base.save_pretrained(there)
        model = transformers.LlamaForCausalLM.from_pretrained(
            there, dtype=torch.bfloat16,
            quantization_config=transformers.TorchAoConfig(quant_type=config, include_input_output_embeddings=True))
    model.save_pretrained(folder)
    return model.state_dict()


def int4_of(w):
    """As mslk's int4_row_quantize_zp and pack_int4 do it, in torchao's class."""
    parts = w.float().reshape(len(w), -1, GROUP)
    low = parts.amin(-1)
    scale = (parts.amax(-1) - low).clamp(min=1e-6) / 15
    q = ((parts - low[..., None]) / scale[..., None]).round().clamp(0, 15) - 8
    zero = low + 8 * scale
    q = q.to(torch.int8).reshape(w.shape)
    packed = q[:, ::2] & 15 | q[:, 1::2] << 4
    made = Int4Tensor(packed.contiguous(), scale.T.contiguous().bfloat16(), zero.T.contiguous().bfloat16(), [1, GROUP], w.shape)
    each = lambda x: x.T.float().repeat_interleave(GROUP, 1)  # noqa: E731
    return made, torch.addcmul(each(made.zero_point).double(), each(made.scale).double(), q.double()).float()


def int4(base, folder):
    stored, plain = {}, {}
    for name, w in base.state_dict().items():
        stored[name], plain[name] = int4_of(w) if "_proj" in name else (w.contiguous(), w)
    stored.pop("lm_head.weight")
    tensors, metadata = flatten_tensor_state_dict(stored)
    save_file(tensors, folder / "model.safetensors", metadata={**metadata, "format": "pt"})
    config = copy.deepcopy(base.config)
    config.quantization_config = transformers.TorchAoConfig(quant_type=Int4WeightOnlyConfig(group_size=GROUP)).to_dict()
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    return plain


def floats(w):
    """What a tensor of torchao's stands for, in float32 and not the dtype of its scales."""
    if not hasattr(w, "qdata"):
        return w.float()
    n = w.qdata.shape[1] // w.scale.shape[1]
    each = lambda x: x.float().repeat_interleave(n, 1)  # noqa: E731
    return each(w.scale) * (w.qdata.float() - each(w.zero_point))


def main():
    torch.set_num_threads(1)
    prompts = [p["ids"] for p in json.loads((MODELS / "llama-gptq" / "golden.json").read_text())["prompts"]]
    for name, make, tied in (("int8-int4", int8_int4, False), ("int4", int4, True)):
        folder = MODELS / f"llama-torchao-{name}"
        folder.mkdir(exist_ok=True)
        for seed in range(1, SEEDS):
            base = base_of(seed, tied)
            state = {k: floats(w) for k, w in make(base, folder).items()}
            model = base.float()
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # bfloat16() has rounded its frequencies
            model.set_attn_implementation("eager")
            model.load_state_dict(state, strict=not tied)
            arrays, records = redraw.answers(model.eval(), prompts)
            if not redraw.why_not(model, prompts, records, seed < redraw.SEEDS_STRICT):
                break
        else:
            raise SystemExit(f"{name}: no seed of {SEEDS} gives a golden")
        golden = dict(name=folder.name, kind="causal", arch="LlamaForCausalLM", model_type="llama", vocab_size=512,
                      storage_dtype="torchao", prompts=records)
        redraw.write(folder, golden, arrays, seed)
        for unused in ("generation_config.json",):
            (folder / unused).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
