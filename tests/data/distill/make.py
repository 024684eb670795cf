#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets of goldens like those of this folder, of other seeds, families and sizes, drawn at random: pairA/, data/, cases/ in OUT.

    python3 tests/data/distill/make.py OUT --seed 7          # torch, numpy, safetensors
    QUIRE_DISTILL_GOLDENS=OUT pytest tests/e2e/test_distill.py -k test_golden

The committed folders were made by a separately written program; this one is another definition of the same numbers (reference.py). attention/:
--seed 1720 --vocab 40 --heads 4 --cases attention --teacher mistral --student mistral --widths 40 32 --windows 20 7; then sketch.py."""
import argparse
import json
import pathlib
import random

import numpy
import torch
from reference import GEMMAS, PROJECTION, Model, train
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
                 "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
CASES = {
    "fkl_T1": {}, "fkl_T2_ce05": {"temperature": 2.0, "w_ce": 0.5}, "fkl_T2_no_t2": {"temperature": 2.0, "t2": False},
    "rkl_T1": {"kind": "rkl"}, "jsd_skew_T15": {"kind": "jsd", "beta": 0.3, "temperature": 1.5},
    "topk20": {"top_k": 20, "top_k_student": "full"}, "topk20_both": {"top_k": 20, "top_k_student": "renorm"},
    "hidden_mse": {"hidden": "mse", "w_hidden": 0.7, "w_ce": 0.3}, "hidden_cosine": {"hidden": "cosine", "w_hidden": 2.0},
    "attention": {"attention": "minilm", "w_attention": 0.7, "w_value": 1.3, "w_ce": 0.3},
}
CASE = {"pair": "A", "kind": "fkl", "temperature": 1.0, "t2": True, "beta": 0.5, "w_kd": 1.0, "w_ce": 0.0, "top_k": 0, "top_k_student": "full"}
STEPS, MICRO_BATCHES = 10, 8
GAP, TOP_K = 1e-4, 20  # between the logits of the last token in and the first one out


# ---- models ----

def draw_config(r, family, layers, vocab, heads):
    groups, repeat, dim = r.choice([1, 2, 3]), r.choice([1, 2, 4]), r.choice([8, 12, 20])
    groups = groups if not heads or heads % groups == 0 else heads
    heads = heads or groups * repeat
    c = {"architectures": [ARCHITECTURES[family]], "model_type": family, "vocab_size": vocab, "hidden_size": heads * dim,
         "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": dim,
         "intermediate_size": r.choice([42, 56, 90]), "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
         "tie_word_embeddings": family in GEMMAS or r.random() < 0.5, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0, "dtype": "float32", "attention_dropout": 0.0}
    if family in ("qwen3", *GEMMAS):
        c["hidden_size"] = r.choice([24, 36, 52])
    if family == "mistral":
        c["sliding_window"] = r.choice([None, 7])
    if family in GEMMAS:
        c |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if family in ("gemma2", "gemma3_text"):
        c |= {"query_pre_attn_scalar": r.choice([8, 16]), "sliding_window": r.choice([5, 16])}
    if family == "gemma2":
        c |= {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    if family == "gemma3_text":
        c |= {"sliding_window_pattern": 2, "rope_local_base_freq": 500.0, "rope_theta": 50000.0}
    return c


def draw_weights(rng, c):
    family, h, inner = c["model_type"], c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    w = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    if not c["tie_word_embeddings"]:
        w["lm_head.weight"] = (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        w |= {f"{at}self_attn.q_proj.weight": (q, h), f"{at}self_attn.k_proj.weight": (kv, h), f"{at}self_attn.v_proj.weight": (kv, h),
              f"{at}self_attn.o_proj.weight": (h, q), f"{at}mlp.gate_proj.weight": (inner, h), f"{at}mlp.up_proj.weight": (inner, h),
              f"{at}mlp.down_proj.weight": (h, inner), f"{at}input_layernorm.weight": (h,), f"{at}post_attention_layernorm.weight": (h,)}
        if family == "qwen2":
            w |= {f"{at}self_attn.{of}_proj.bias": (n,) for of, n in (("q", q), ("k", kv), ("v", kv))}
        if family in ("qwen3", "gemma3_text"):
            w |= {f"{at}self_attn.{of}_norm.weight": (c["head_dim"],) for of in "qk"}
        if family in ("gemma2", "gemma3_text"):
            w |= {f"{at}{of}_feedforward_layernorm.weight": (h,) for of in ("pre", "post")}

    def draw(name, shape):
        x = rng.standard_normal(shape)
        if "norm" in name:
            return 0.1 * x + (family not in GEMMAS)
        return x * (0.1 if name.endswith("bias") else 0.5 if "embed" in name and family not in GEMMAS else 1.2 * shape[1] ** -0.5)
    return {name: draw(name, shape).astype(numpy.float32) for name, shape in w.items()}


def draw_model(r, rng, folder, spec, width, window):
    c = draw_config(r, *spec)
    c["hidden_size"] = width or c["hidden_size"]
    if window:
        c["sliding_window"] = window
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1))
    save_file(draw_weights(rng, c), folder / "model.safetensors")


def read_model(folder):
    w = {name: torch.from_numpy(x).double() for name, x in load_file(folder / "model.safetensors").items()}
    return Model(json.loads((folder / "config.json").read_text()), w)


# ---- data ----

def draw_sequence(r, vocab, length_max):
    n = r.choice([1, 2, r.randint(3, length_max), length_max])
    ids = [r.randrange(vocab) for _ in range(n)]
    masked = r.choice([0, 0, n, r.randint(0, n)])
    return ids, [-100] * masked + ids[masked:]


def mask_ties(teacher, ids, labels):
    """Positions where rounding may change the top k do not count."""
    with torch.no_grad():
        top = teacher.logits(teacher.hidden(torch.tensor(ids))).topk(TOP_K + 1, -1).values
    return labels[:1] + [-100 if top[t, TOP_K - 1] - top[t, TOP_K] < GAP else label for t, label in enumerate(labels[1:])]


def draw_data(r, vocab, teacher):
    """[step][micro batch][sequence] of (ids, labels): some sequences of one token, some micro batches without a counted position."""
    size, length = r.choice([1, 2, 3]), r.choice([17, 33, 50])
    data = [[[draw_sequence(r, vocab, length) for _ in range(size)] for _ in range(MICRO_BATCHES)] for _ in range(STEPS)]
    data[1][3] = [(ids, [-100] * len(ids)) for ids, _ in data[1][3]]
    for step in data:
        step[0][0] = ([r.randrange(vocab) for _ in range(length)],) * 2  # each step has positions that count
    return [[[(ids, mask_ties(teacher, ids, labels)) for ids, labels in batch] for batch in step] for step in data]


def write_data(path, data):
    n = max(len(ids) for step in data for batch in step for ids, _ in batch)

    def padded(of):
        return [[[of(*pair) for pair in batch] for batch in step] for step in data]
    path.write_text(json.dumps({
        "input_ids": padded(lambda ids, _: ids + [0] * (n - len(ids))), "labels": padded(lambda _, labels: labels + [-100] * (n - len(labels))),
        "attention_mask": padded(lambda ids, _: [1] * len(ids) + [0] * (n - len(ids)))}))


# ---- cases ----

def floats(tensors):
    return {name: x.detach().float().numpy() for name, x in tensors.items()}


def make_case(out, name, optimizer, tolerances, data):
    case, folder, lines = {**CASE, "data": "ragged", **CASES[name]}, out / "cases" / name, []
    folder.mkdir(parents=True)
    teacher, student = read_model(out / "pairA/teacher"), read_model(out / "pairA/student")
    rows, cols = teacher.c["hidden_size"], student.c["hidden_size"]
    if case.get("hidden") and rows != cols:
        student.w[PROJECTION] = torch.eye(cols, dtype=torch.float64).repeat(-(-rows // cols), 1)[:rows]
    for line, gradients in train(case, optimizer, teacher, student, data):
        lines.append(line)
        if line["step"] == 1:
            save_file(floats(gradients), folder / "grads_step1.safetensors")
        if line["step"] in (1, 2, 10):
            save_file(floats({name: w for name, w in student.w.items() if name != PROJECTION}),
                      folder / f"weights_step{line['step']}.safetensors")
    expected = {"case": case, "optimizer": optimizer, "tolerances": tolerances, "sequences": len(data[0][0]) * MICRO_BATCHES, "steps": lines}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--student", choices=ARCHITECTURES)
    parser.add_argument("--teacher", choices=ARCHITECTURES)
    parser.add_argument("--widths", type=int, nargs=2, default=(None, None), help="hidden_size of teacher and student")
    parser.add_argument("--windows", type=int, nargs=2, default=(None, None), help="of teacher and student, of mistral; drawn")
    parser.add_argument("--heads", type=int, help="of both; drawn for each where no case compares attention")
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    a = parser.parse_args()
    torch.set_num_threads(1)
    r, rng = random.Random(a.seed), numpy.random.default_rng(a.seed)
    heads = a.heads or (4 if "attention" in a.cases else None)
    vocab, families = a.vocab or r.choice([64, 101, 256]), list(ARCHITECTURES)
    for i, (which, family, layers, more) in enumerate((("teacher", a.teacher, r.randint(3, 6), r.choice([0, 0, 11, -7])),
                                                       ("student", a.student, r.randint(3, 4), 0))):
        draw_model(r, rng, a.out / "pairA" / which, (family or r.choice(families), layers, vocab + more, heads), a.widths[i],
                   a.windows[i])
    old = json.loads((HERE / "cases/fkl_T1/expected.json").read_text())
    teacher = read_model(a.out / "pairA/teacher")
    data = draw_data(r, min(vocab, teacher.c["vocab_size"]), teacher)
    (a.out / "data").mkdir()
    write_data(a.out / "data/ragged.json", data)
    for name in a.cases:
        make_case(a.out, name, old["optimizer"], old["tolerances"], data)


if __name__ == "__main__":
    main()
