# SPDX-License-Identifier: Apache-2.0
"""Make shapes/: small models of other shapes than model/, with what terra.py's TerraEngine gives for them in float64.

    python3 make_shapes.py        # torch, safetensors; the same files each time

Every switch of TerraEngine that breaks it has to change the tokens of each shape, or the shape is too easy and an error.
"""
import json
import math
import pathlib

import torch
from safetensors.torch import save_file

from terra import PLACEHOLDER, TerraEngine, hf_to_mistral, read_config

HERE = pathlib.Path(__file__).parent / "shapes"
COMMON = {"architectures": ["LlamaActionForCausalLM"], "model_type": "llama_action", "hidden_act": "silu"}
BREAKS = ("reverse_actions", "no_actions", "no_action_bias", "no_spatio", "no_temporal", "no_rope")
SHAPES = {
    # grouped heads, tied embeddings, actions of five numbers
    "tied": {"seed": 2, "frames": [(1, 4), (3, 2)], "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
             "num_key_value_heads": 1, "intermediate_size": 48, "vocab_size": 70, "num_image_patches": 8, "num_action_tokens": 2,
             "num_spatio_embeddings": 10, "num_temporal_embeddings": 5, "action_dim": 5, "tie_word_embeddings": True,
             "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    # heads wider than hidden_size / heads, a single action of one number, Mistral's names; defaults of the class left out
    "mistral": {"seed": 3, "frames": [(1, 3), (2, 2)], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 40, "vocab_size": 50, "num_image_patches": 16,
                "num_action_embeddings": 1, "num_spatio_embeddings": 17, "num_temporal_embeddings": 4, "action_dim": 1,
                "tie_word_embeddings": False, "rope_theta": 10000.0},
    # as many actions as patches, one layer, a frame that is one block of 16 positions
    "even": {"seed": 4, "frames": [(2, 5), (6, 1)], "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 4, "intermediate_size": 64, "vocab_size": 129, "num_image_patches": 8, "num_action_tokens": 8,
             "num_spatio_embeddings": 16, "num_temporal_embeddings": 7, "action_dim": 8, "tie_word_embeddings": False,
             "rope_theta": 20000.0, "rms_norm_eps": 1e-5},
}


def weights(c, generator):
    """Under the names of Hugging Face; numbers that bf16 has."""
    def normal(*shape, std):
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * std).bfloat16()

    def linear(rows, cols, gain=1.5):
        return normal(rows, cols, std=gain / math.sqrt(cols))
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    out = {"model.embed_tokens.weight": normal(c["vocab_size"], hidden, std=1),
           "model.norm.weight": 1 + normal(hidden, std=0.1),
           "action_projection.weight": linear(hidden, c["action_dim"]), "action_projection.bias": normal(hidden, std=0.5),
           "pos_embedding_spatio_temporal.spatio_embeddings.weight": normal(c["num_spatio_embeddings"], hidden, std=1),
           "pos_embedding_spatio_temporal.temporal_embeddings.weight": normal(c["num_temporal_embeddings"], hidden, std=1)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = linear(c["vocab_size"], hidden, 8)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows, cols in (("self_attn.q_proj", heads, hidden), ("self_attn.k_proj", kv, hidden), ("self_attn.v_proj", kv, hidden),
                                 ("self_attn.o_proj", hidden, heads), ("mlp.gate_proj", c["intermediate_size"], hidden),
                                 ("mlp.up_proj", c["intermediate_size"], hidden), ("mlp.down_proj", hidden, c["intermediate_size"])):
            out[p + name + ".weight"] = linear(rows, cols, 2)
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[p + name + ".weight"] = 1 + normal(hidden, std=0.1)
    return out


def case(engine, n_context, n_frame, generator):
    """A rollout from whole frames, with actions for all frames but the last."""
    c = engine.cfg
    ids, n_action = [], (n_context + n_frame - 1) * engine.A
    for _ in range(n_context):
        ids += torch.randint(0, c["vocab_size"], (engine.P,), generator=generator).tolist() + [PLACEHOLDER] * engine.A
    ids[1] = 0
    actions = torch.randn(n_action, c["action_dim"], generator=generator).bfloat16().tolist()
    frames = engine.rollout(ids, actions, n_frame)
    return {"prompt_token_ids": ids, "actions": actions, "min_margin": min(f["margin"] for f in frames),
            "frames": [{"prompt_len": f["prompt_len"], "n_actions": f["n_actions"], "tokens": f["tokens"],
                        "logits": [round(x, 6) for x in f["logits"].tolist()]} for f in frames]}


def make(name, shape):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    config = COMMON | {k: v for k, v in shape.items() if k not in ("seed", "frames")}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generator = torch.Generator().manual_seed(shape["seed"])
    c = read_config(folder)
    tensors = weights(c, generator)
    is_mistral = name == "mistral"
    save_file({k: v.contiguous() for k, v in (hf_to_mistral(tensors, c) if is_mistral else tensors).items()},
              folder / ("consolidated.safetensors" if is_mistral else "model.safetensors"))
    engine = TerraEngine(folder)
    cases = [case(engine, *frames, generator) for frames in shape["frames"]]
    assert min(found["min_margin"] for found in cases) > 0.02, (name, [found["min_margin"] for found in cases])
    for switch in BREAKS:
        broken = TerraEngine(folder, mutate=[switch])
        tokens = [f["tokens"] for f in broken.rollout(cases[0]["prompt_token_ids"], cases[0]["actions"], shape["frames"][0][1])]
        assert tokens != [f["tokens"] for f in cases[0]["frames"]], f"{name} does not notice {switch}"
    (folder / "golden.json").write_text(json.dumps({"seed": shape["seed"], "cases": cases}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each, what in SHAPES.items():
        make(each, what)
