# SPDX-License-Identifier: Apache-2.0
"""torch's side of distill.py: a process that reads a command a line and answers with a line, both JSON.

Teacher and student are Llamas written with torch's own functions (rms_norm, scaled_dot_product_attention); a step is micro batches of
teacher forward, student forward, log_softmax and kl_div, backward; then clipping and AdamW. bfloat16 is autocast, with float32 master
weights of the student and a teacher in bfloat16.
"""
import json
import os
import sys
import time

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

torch.set_num_threads(int(os.environ["THREADS"]))


def tensors_of(shape):
    """name → shape of a Llama, without grouped queries, untied."""
    h, inner, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    names = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,), "lm_head.weight": (vocab, h)}
    for i in range(shape["num_hidden_layers"]):
        p = f"model.layers.{i}."
        names |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
        names |= {p + f"self_attn.{x}_proj.weight": (h, h) for x in "qkvo"}
        names |= {p + "mlp.gate_proj.weight": (inner, h), p + "mlp.up_proj.weight": (inner, h), p + "mlp.down_proj.weight": (h, inner)}
    return names


def make(folder, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    os.makedirs(folder, exist_ok=True)
    weights = {name: torch.ones(size) if len(size) == 1 else 0.02 * torch.randn(size, generator=generator)
               for name, size in tensors_of(shape).items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "torch_dtype": "float32", "tie_word_embeddings": False, **shape}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out)
    return {"parameters": sum(w.numel() for w in weights.values())}


class Llama:
    def __init__(self, folder, dtype, trains):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as config:
            self.c = json.load(config)
        self.w = {name: torch.nn.Parameter(w.to(dtype), requires_grad=trains)
                  for name, w in load_file(os.path.join(folder, "model.safetensors")).items()}

    def rotate(self, x, table):
        a, b = x.chunk(2, -1)
        return x * table[0].to(x.dtype) + torch.cat((-b, a), -1) * table[1].to(x.dtype)

    def logits(self, ids):
        c, w = self.c, self.w
        batch, n = ids.shape
        heads, dim = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
        angles = torch.arange(n)[:, None] * c["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)[None]
        angles = torch.cat((angles, angles), -1)
        table = angles.cos(), angles.sin()
        x = F.embedding(ids, w["model.embed_tokens.weight"])
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            y = F.rms_norm(x, x.shape[-1:], w[p + "input_layernorm.weight"], c["rms_norm_eps"])
            q, k, v = (F.linear(y, w[p + f"self_attn.{name}_proj.weight"]).view(batch, n, heads, dim).transpose(1, 2) for name in "qkv")
            y = F.scaled_dot_product_attention(self.rotate(q, table), self.rotate(k, table), v, is_causal=True)
            x = x + F.linear(y.transpose(1, 2).reshape(batch, n, -1), w[p + "self_attn.o_proj.weight"])
            y = F.rms_norm(x, x.shape[-1:], w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
            y = F.silu(F.linear(y, w[p + "mlp.gate_proj.weight"])) * F.linear(y, w[p + "mlp.up_proj.weight"])
            x = x + F.linear(y, w[p + "mlp.down_proj.weight"])
        return F.linear(F.rms_norm(x, x.shape[-1:], w["model.norm.weight"], c["rms_norm_eps"]), w["lm_head.weight"])


class Side:
    """Models that are loaded, and the data of steps."""

    def load(self, teacher, student, data, dtype, micro_batch, micro_batches):
        bf16 = dtype == "bfloat16"
        self.teacher = Llama(teacher, torch.bfloat16 if bf16 else torch.float32, False)
        self.student = Llama(student, torch.float32, True)
        self.cast = torch.autocast("cpu", torch.bfloat16, enabled=bf16)
        with open(data, encoding="utf-8") as lines:
            self.ids = torch.tensor([json.loads(line)["input_ids"] for line in lines])
        self.micro_batch, self.n = micro_batch, micro_batches
        decays = [w for w in self.student.w.values() if w.dim() == 2]
        others = [w for w in self.student.w.values() if w.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                           lr=1e-4, betas=(0.9, 0.95), eps=1e-8)
        return {}

    def step(self, i):
        size = self.micro_batch * self.n
        at = i * size % (len(self.ids) - size + 1)
        ids = self.ids[at:at + size]
        counted = size * (ids.shape[1] - 1)
        total = 0.0
        self.optimizer.zero_grad()
        for part in ids.split(self.micro_batch):
            with self.cast:
                with torch.no_grad():
                    t = self.teacher.logits(part)[:, :-1]
                s = self.student.logits(part)[:, :-1]
            kd = F.kl_div(F.log_softmax(s.float(), -1), F.log_softmax(t.float(), -1), reduction="sum", log_target=True) / counted
            kd.backward()
            total += kd.item()
        torch.nn.utils.clip_grad_norm_(list(self.student.w.values()), 1.0)
        self.optimizer.step()
        return total

    def steps(self, n):
        """Tokens a second of each step but the first, and the first one's loss."""
        speeds, losses = [], []
        for i in range(n + 1):
            start = time.perf_counter()
            losses.append(self.step(i))
            speeds.append(self.micro_batch * self.n * self.ids.shape[1] / (time.perf_counter() - start))
        return {"tok_s": speeds[1:], "loss": losses[0]}


def main():
    side = Side()
    commands = {"make": make, "load": side.load, "steps": side.steps}
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(commands[words.pop("do")](**words)), flush=True)


main()
