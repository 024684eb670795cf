# SPDX-License-Identifier: Apache-2.0
"""A training step of `quire distill` in float64 by torch: dense decoders, the losses, AdamW. One sequence after another, whole logits, no
division into anything: the definition that the goldens are made by. Families: llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text.
Formulas of models: transformers' modeling files; of losses and optimiser: ops_distill.h and optimizer.h."""
import math

import torch
import torch.nn.functional as F

GEMMAS = ("gemma", "gemma2", "gemma3_text")
PLUS_ONE = GEMMAS  # norms are stored less 1


class Model:
    """A decoder over {name: float64 tensor} by the names of its checkpoint."""

    def __init__(self, config, weights):
        self.c, self.w = config, weights
        self.type = config["model_type"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.tied = config.get("tie_word_embeddings", self.type in GEMMAS)

    def norm(self, x, name):
        w = self.w[name + ".weight"]
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return y * (1 + w if self.type in PLUS_ONE else w)

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def is_sliding(self, layer):
        if self.type == "gemma2":
            return layer % 2 == 0
        if self.type == "gemma3_text":
            return (layer + 1) % self.c["sliding_window_pattern"] != 0
        return self.type == "mistral" and self.c.get("sliding_window") is not None

    def rotate(self, x, layer):
        local = self.type == "gemma3_text" and self.is_sliding(layer)
        theta, d = self.c["rope_local_base_freq" if local else "rope_theta"], self.head_dim
        angle = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), theta ** (-torch.arange(0, d, 2, dtype=x.dtype) / d))
        a, b = x.split(d // 2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def attention(self, h, layer):
        at, n = f"model.layers.{layer}.self_attn.", h.shape[0]
        heads, groups = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        q, k, v = (self.linear(h, f"{at}{of}_proj").view(n, -1, self.head_dim).transpose(0, 1) for of in "qkv")
        if f"{at}q_norm.weight" in self.w:
            q, k = self.norm(q, at + "q_norm"), self.norm(k, at + "k_norm")
        q, k = self.rotate(q, layer), self.rotate(k, layer)
        values = v
        k, v = (x.repeat_interleave(heads // groups, 0) for x in (k, v))
        scale = self.c["query_pre_attn_scalar"] if self.type in ("gemma2", "gemma3_text") else self.head_dim
        scores = q @ k.transpose(1, 2) / math.sqrt(scale)
        if self.type == "gemma2":
            scores = self.c["attn_logit_softcapping"] * torch.tanh(scores / self.c["attn_logit_softcapping"])
        seen = torch.ones(n, n, dtype=torch.bool).tril()
        if self.is_sliding(layer):
            seen &= torch.ones(n, n, dtype=torch.bool).triu(1 - self.c["sliding_window"])
        self.attended = scores, values, seen  # of the last layer in the end
        out = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
        return self.linear(out.transpose(0, 1).reshape(n, -1), at + "o_proj")

    def mlp(self, h, layer):
        at = f"model.layers.{layer}.mlp."
        gate = self.linear(h, at + "gate_proj")
        gate = F.gelu(gate, approximate="tanh") if self.type in GEMMAS else F.silu(gate)
        return self.linear(gate * self.linear(h, at + "up_proj"), at + "down_proj")

    def hidden(self, ids):
        """[n, hidden_size] behind the final norm."""
        x = self.w["model.embed_tokens.weight"][ids]
        if self.type in GEMMAS:
            x = x * torch.tensor(math.sqrt(self.c["hidden_size"]), dtype=torch.float32).double()
        for i in range(self.c["num_hidden_layers"]):
            at, four = f"model.layers.{i}.", self.type in ("gemma2", "gemma3_text")
            y = self.attention(self.norm(x, at + "input_layernorm"), i)
            x = x + (self.norm(y, at + "post_attention_layernorm") if four else y)
            y = self.mlp(self.norm(x, at + ("pre_feedforward_layernorm" if four else "post_attention_layernorm")), i)
            x = x + (self.norm(y, at + "post_feedforward_layernorm") if four else y)
        return self.norm(x, "model.norm")

    def logits(self, hidden):
        z = hidden @ self.w["model.embed_tokens.weight" if self.tied else "lm_head.weight"].T
        cap = self.c.get("final_logit_softcapping")
        return cap * torch.tanh(z / cap) if cap else z


# ---- losses ----

def divergence(zt, zs, case):
    """Of each row, with T^2 where the case has it."""
    n = min(zt.shape[-1], zs.shape[-1])
    zt, zs = zt[:, :n] / case["temperature"], zs[:, :n] / case["temperature"]
    if case["top_k"]:
        zt, ids = zt.topk(case["top_k"], -1)
        log_q = zs.log_softmax(-1).gather(-1, ids) if case["top_k_student"] == "full" else zs.gather(-1, ids).log_softmax(-1)
    else:
        log_q = zs.log_softmax(-1)
    log_p = zt.log_softmax(-1)
    if case["kind"] == "fkl":
        d = (log_p.exp() * (log_p - log_q)).sum(-1)
    elif case["kind"] == "rkl":
        d = (log_q.exp() * (log_q - log_p)).sum(-1)
    else:
        beta = case["beta"]
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
        d = beta * (log_p.exp() * (log_p - log_m)).sum(-1) + (1 - beta) * (log_q.exp() * (log_q - log_m)).sum(-1)
    return d * (case["temperature"] ** 2 if case["t2"] else 1)


PROJECTION = "hidden_projection.weight"  # among the student's weights, where the widths differ


def hidden_difference(ht, hs, student, case):
    """Of each row of last hidden states."""
    if PROJECTION in student.w:
        hs = hs @ student.w[PROJECTION].T
    if case["hidden"] == "mse":
        return ((hs - ht) ** 2).mean(-1)
    return 1 - F.cosine_similarity(hs, ht, dim=-1)


def masked_kl(zt, zs, seen, counted):
    """KL of softmaxes over the columns that are seen: [relation, row, column] -> the mean over relations, of each counted row."""
    log_p, log_q = (z.masked_fill(~seen, -math.inf).log_softmax(-1) for z in (zt, zs))
    return torch.where(seen, log_p.exp() * (log_p - log_q), 0).sum(-1).mean(0)[counted]


def value_scores(values, relations):
    """Of [head, row, column] with themselves, neighbouring heads joined until there are so many relations."""
    v = values.transpose(0, 1).reshape(values.shape[1], relations, -1).transpose(0, 1)
    return v @ v.transpose(1, 2) / math.sqrt(v.shape[-1])


def attention_differences(teacher, student, counted):
    """Of the distributions of heads and of the relations of values in the last layers, of each counted row."""
    (zt, vt, seen_t), (zs, vs, seen_s) = teacher.attended, student.attended
    seen, relations = seen_t & seen_s, math.gcd(len(vt), len(vs))
    return masked_kl(zt, zs, seen, counted), masked_kl(value_scores(vt, relations), value_scores(vs, relations), seen, counted)


SUMS = ("kd_sum", "ce_sum", "hidden_sum", "attention_sum", "value_sum")


def row_sums(case, teacher, student, ids, labels):
    """SUMS and their number of rows, of one sequence; position t counts when labels[t + 1] is not -100."""
    next_labels = torch.tensor(labels[1:] + [-100])
    counted = (next_labels != -100).nonzero()[:, 0]
    if not len(counted):
        return torch.zeros(len(SUMS), dtype=torch.float64), 0
    with torch.no_grad():
        ht = teacher.hidden(torch.tensor(ids))[counted]
        zt = teacher.logits(ht)
    hs = student.hidden(torch.tensor(ids))[counted]
    zs = student.logits(hs)
    ce = F.cross_entropy(zs, next_labels[counted], reduction="none")
    none = torch.zeros(1, dtype=torch.float64)
    hidden = hidden_difference(ht, hs, student, case) if case.get("hidden") else none
    attention, values = attention_differences(teacher, student, counted) if case.get("attention") else (none, none)
    return torch.stack([x.sum() for x in (divergence(zt, zs, case), ce, hidden, attention, values)]), len(counted)


# ---- the optimiser ----

def learning_rate(o, step):
    if step <= o["warmup"]:
        return o["lr_max"] * step / o["warmup"]
    at = (step - o["warmup"]) / (o["total"] - o["warmup"])
    return o["lr_min"] + (o["lr_max"] - o["lr_min"]) / 2 * (1 + math.cos(math.pi * at))


class AdamW:
    def __init__(self, weights, o):
        self.w, self.o = weights, o
        self.m, self.v = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in "mv")

    def step(self, step, gradients):
        """Returns the norm before clipping."""
        o, lr = self.o, learning_rate(self.o, step)
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
        clip = min(1, o["clip"] / (norm + 1e-6))
        for name, w in self.w.items():
            g, m, v = gradients[name] * clip, self.m[name], self.v[name]
            if w.dim() == 2:
                w.data *= 1 - lr * o["weight_decay"]
            m.mul_(o["beta1"]).add_((1 - o["beta1"]) * g)
            v.mul_(o["beta2"]).add_((1 - o["beta2"]) * g * g)
            w.data -= lr / (1 - o["beta1"] ** step) * m / ((v / (1 - o["beta2"] ** step)).sqrt() + o["eps"])
        return norm


def train(case, optimizer, teacher, student, data):
    """Steps over data: [step][micro batch] of (ids, labels). Yields what expected.json has of a step, and its gradients; the student's
    weights are those behind the step."""
    adam = AdamW(student.w, optimizer)
    for w in student.w.values():
        w.requires_grad_(True)
    for i, batches in enumerate(data):
        n = sum(sum(label != -100 for label in labels[1:]) for batch in batches for _, labels in batch)
        line = {"step": i + 1, "n_tokens": n, "lr": learning_rate(optimizer, i + 1), "loss": 0.0, "micro_batches": []}
        for batch in batches:
            sums, counted = torch.zeros(len(SUMS), dtype=torch.float64), 0
            for ids, labels in batch:
                more, rows = row_sums(case, teacher, student, ids, labels)
                sums, counted = sums + more, counted + rows
            weights = [case.get(f"w_{of.removesuffix('_sum')}", 0) for of in SUMS]
            loss = sum(w * x for w, x in zip(weights, sums, strict=True)) / n
            if counted:
                loss.backward()
            line["micro_batches"].append(dict(zip(SUMS, sums.tolist(), strict=True)) | {"n_tokens": counted})
            line["loss"] += loss.item()
        gradients = {name: w.grad if w.grad is not None else torch.zeros_like(w) for name, w in student.w.items()}
        line["grad_norm"] = adam.step(i + 1, gradients)
        yield line, {name: g.clone() for name, g in gradients.items()}
        for w in student.w.values():
            w.grad = None
