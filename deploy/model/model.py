# SPDX-License-Identifier: Apache-2.0
"""A Llama decoder in torch, small enough to read: what config.json and model.safetensors mean.

Weights have the names and shapes of Hugging Face's LlamaForCausalLM, so saving is writing them out.
Projections may hold bf16 while training runs under autocast; the norms and the softmax are f32.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 0, "hidden_size": 256,
    "intermediate_size": 640, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "attention_dropout": 0.0, "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
}


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v, each [batch, head, token, head_dim]; k may be longer than q.

    Written out: for rows of some hundred tokens torch's fused kernel is slower on a CPU, by half in
    torch 2.5 and by a third in 2.15, most of it in its backward pass.
    """
    b, h, t, hd = q.shape
    n = k.shape[2]
    flat = [x.reshape(b * h, x.shape[2], hd) for x in (q * hd ** -0.5, k, v)]
    mask = torch.full((t, n), -1e9, dtype=q.dtype, device=q.device).triu(1 + n - t)
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.baddbmm(mask, flat[0], flat[1].transpose(1, 2))
        return torch.bmm(torch.softmax(scores, -1), flat[2]).view(b, h, t, hd)


class Attention(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        d, hd = c["hidden_size"], c["head_dim"]
        self.n_head, self.n_kv, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], hd
        self.q_proj = nn.Linear(d, self.n_head * hd, bias=False)
        self.k_proj = nn.Linear(d, self.n_kv * hd, bias=False)
        self.v_proj = nn.Linear(d, self.n_kv * hd, bias=False)
        self.o_proj = nn.Linear(self.n_head * hd, d, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: list | None) -> Tensor:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.n_head, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.n_kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.n_kv, self.head_dim).transpose(1, 2)
        q, k = rotate(q, rope).to(v.dtype), rotate(k, rope).to(v.dtype)
        if past is not None:                # one sequence, token by token: keep keys and values
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        group = self.n_head // self.n_kv
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = causal_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.eps = c["rms_norm_eps"]
        self.weight = nn.Parameter(torch.ones(c["hidden_size"]))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Layer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c), Norm(c)
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: list | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, past)
        return x + self.mlp(self.post_attention_layernorm(x))


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions in the half-split form of Hugging Face's Llama."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Llama(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(config)
        hd = config["head_dim"]
        freq = config["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)
        angle = torch.outer(torch.arange(config["max_position_embeddings"]).float(), freq)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def initialize(self) -> None:
        """Matrices that write to the residual stream start at zero: every layer starts as nothing."""
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.04 if name.startswith("embed") else p.shape[1] ** -0.5)

    def forward(self, ids: Tensor, past: list[list] | None = None, start: int = 0) -> Tensor:
        """Hidden states [batch, token, hidden] after the last norm; `past` is one list per layer."""
        x = self.embed_tokens(ids)
        end = start + ids.shape[1]
        rope = self.cos[start:end].to(x.dtype), self.sin[start:end].to(x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, None if past is None else past[i])
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)

    @torch.no_grad()
    def greedy(self, ids: list[int], stop: set[int], n_max: int) -> list[int]:
        """The greedy continuation of one prompt, without the stopping token."""
        past: list[list] = [[] for _ in self.layers]
        out: list[int] = []
        step, start = torch.tensor([ids]), 0
        while len(out) < n_max:
            hidden = self(step, past, start)
            start += step.shape[1]
            token = int(self.logits(hidden[0, -1]).argmax())
            if token in stop:
                break
            out.append(token)
            step = torch.tensor([[token]])
        return out

    def save(self, folder: Path) -> None:
        weights = {"model." + k: v.to(torch.bfloat16).contiguous() for k, v in self.state_dict().items()}
        path = folder / "model.safetensors"
        save_file(weights, path, metadata={"format": "pt"})
        path.chmod(0o644)                   # safetensors writes it for its owner only

    @staticmethod
    def load(folder: Path) -> Llama:
        """The model of a folder, computed in f32 from its stored weights."""
        model = Llama(json.loads((folder / "config.json").read_text()))
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({k.removeprefix("model."): v.float() for k, v in weights.items()})
        return model.eval()
