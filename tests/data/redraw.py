#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of models whose weights draw_weights.c draws: the seed in weights.txt, and what transformers computes with these weights.

    python3 tests/data/redraw.py [--draw build/dev/tests/draw_weights] [--seed 1] FOLDER ...

FOLDER is one of tests/data/models or tests/data/pooling: config.json (and config_v5.json, the spelling of transformers 5), weights.txt
and golden.json, whose prompts and texts stay. Without weights.txt the folder's safetensors are described in one first: each tensor's
dtype, shape, mean and spread, so a new family begins as a folder that transformers has saved. golden.json and golden.safetensors are
written anew, in float32: logits, the TOP best tokens of every position, hidden states of the prompt of 5 tokens, greedy tokens; of
models that pool, vectors or scores.

Seeds are tried from --seed on. One is rejected where two tokens of a greedy path are closer than rounding allows, where answers repeat
a few tokens (after SEEDS_STRICT seeds they may), and where a router is near a tie: there weights that differ by 1e-6 of themselves give
other experts. Needs torch, transformers, safetensors."""
import argparse
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

for key, value in (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_VERBOSITY", "error"), ("TQDM_DISABLE", "1"),
                   ("HF_HUB_DISABLE_PROGRESS_BARS", "1")):
    os.environ.setdefault(key, value)
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
N_GREEDY, TOP, DIGITS, SEEDS, SEEDS_STRICT = 24, 4, 6, 80, 8
GAP, EXACT_PART, MOVED = 1e-3, 0.1, 2e-3  # of logits: between the best two; rounding beside it; by weights a little off
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


# ---- weights ----

def rounded(x, digits):
    return float(f"{x:.{digits - 1}e}")


def line_of(name, tensor):
    """A mean that sampling explains as 0 or 1 is that."""
    shape, x = ",".join(map(str, tensor.shape)) or "-", tensor.double()
    if tensor.dtype == torch.uint8:
        low, high = int(tensor.min()), int(tensor.max())
    elif tensor.numel() == 1:
        low, high = float(tensor), 0.0
    else:
        low, high = float(x.mean()), rounded(float(x.std()), 2)
        near = [c for c in (0.0, 1.0) if abs(low - c) <= 5 * high / math.sqrt(x.numel())]
        low = near[0] if near else rounded(low, 3)
    return f"{NAMES[tensor.dtype]} {shape} {low:g} {high:g} {name}"


def describe(folder):
    """A line for each tensor, in the order of the files."""
    lines = []
    for path in sorted(folder.glob("model*.safetensors")):
        lines.append(f"file {path.name}")
        with safe_open(path, "pt") as f:
            lines += [line_of(name, f.get_tensor(name)) for name in f.offset_keys()]
    return lines


def draw(folder, lines, seed, program):
    text = "# What draw_weights.c draws: dtype, shape, centre, spread, name. Written by redraw.py.\n"
    (folder / "weights.txt").write_text(text + f"seed {seed}\n" + "\n".join(lines) + "\n")
    subprocess.run([program, folder / "weights.txt"], check=True)


# ---- answers ----

def model_of(folder):
    """Of a copy with the config in the spelling of transformers 5; every tensor must be found."""
    config = folder / "config_v5.json"
    config = json.loads((config if config.exists() else folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as there:
        there = pathlib.Path(there)
        (there / "config.json").write_text(json.dumps(config))
        for path in folder.glob("model*"):
            (there / path.name).symlink_to(path.resolve())
        cls = getattr(transformers, config["architectures"][0])
        model, info = cls.from_pretrained(there, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    made = {name for name, _ in model.named_buffers()}  # which a model may make itself
    if set(info["missing_keys"]) - made or info["mismatched_keys"]:
        raise SystemExit(f"{folder.name}: {info}")
    try:
        model.set_experts_implementation("eager")
    except (AttributeError, ValueError):
        pass  # a model without experts
    return model.eval()


def reset_rope(model):
    """Ropes that depend on the length keep what they had for the sequence before."""
    for m in model.modules():
        if hasattr(m, "original_inv_freq") and hasattr(m, "inv_freq"):
            m.inv_freq = m.original_inv_freq.clone()
            if hasattr(m, "original_max_seq_len"):
                m.max_seq_len_cached = m.original_max_seq_len


def run(model, ids, **more):
    """Layers of Gemma 3n that have the K and V of others find them in the cache alone."""
    reset_rope(model)
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=model.config.model_type == "gemma3n_text", **more)


def last_of(model, ids):
    return run(model, ids).logits[0, -1].double()


def greedy(model, ids):
    """Each token by the whole sequence: tokens, logprobs, the smallest difference of the best two logits."""
    known, logprobs, gap = list(ids), [], math.inf
    for _ in range(N_GREEDY):
        row = last_of(model, known)
        best, at = torch.topk(row, 2)
        gap = min(gap, float(best[0] - best[1]))
        logprobs.append(float(torch.log_softmax(row, -1)[at[0]]))
        known.append(int(at[0]))
    return known[len(ids):], logprobs, gap


def greedy_cached(model, ids):
    reset_rope(model)
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                             max_new_tokens=N_GREEDY, min_new_tokens=N_GREEDY, eos_token_id=None, pad_token_id=0)
    return out[0, len(ids):].tolist()


def states_of(model, ids, out):
    """The stream before each layer, of several the first, and what the last norm makes of it. Mamba's classes leave out the
    embedding."""
    states = list(out.hidden_states or [])
    if states and states[-1].dim() == 4:
        last = run(model.base_model, ids).last_hidden_state
        states = [s[0] if s.dim() == 4 else s for s in states[:-1]] + [last]
    if states and model.config.model_type in ("mamba", "mamba2", "falcon_mamba"):
        states = [model.get_input_embeddings()(torch.tensor([ids])).detach()] + states[:-2] + states[-1:]
    if states and states[-1].shape != states[0].shape:  # OPT's through project_out: the last layer's, which has no norm behind it
        kept = []
        hook = model.model.decoder.layers[-1].register_forward_hook(lambda module, given, made: kept.append(made))
        run(model, ids)
        hook.remove()
        states[-1] = kept[0][0] if isinstance(kept[0], tuple) else kept[0]
    return states


def answers(model, prompts):
    arrays, records = {}, []
    for k, ids in enumerate(prompts):
        out = run(model, ids, output_hidden_states=len(ids) == 5)
        logprobs = torch.log_softmax(out.logits[0].double(), -1)
        best, at = torch.topk(logprobs, TOP, -1)
        arrays[f"p{k}.logits_last"] = out.logits[0, -1].float()
        arrays[f"p{k}.top_ids"], arrays[f"p{k}.top_logprobs"] = at.to(torch.int32), best.float()
        for i, state in enumerate(states_of(model, ids, out) if len(ids) == 5 else ()):
            arrays[f"p{k}.hidden.{i}"] = state[0].float()
        tokens, of_tokens, gap = greedy(model, ids)
        records.append(dict(len=len(ids), ids=ids, prompt_logprobs=[None] + [round(float(logprobs[i - 1, ids[i]]), DIGITS)
                                                                             for i in range(1, len(ids))],
                            greedy=tokens, greedy_logprobs=[round(x, DIGITS) for x in of_tokens], greedy_min_gap=rounded(gap, 3)))
    return {name: x.clone().contiguous() for name, x in arrays.items()}, records


def shift(model, other, prompts):
    return max(float((last_of(model, ids) - last_of(other, ids)).abs().max()) for ids in prompts)


def why_not(model, prompts, records, strict):
    """Why a seed gives no golden, or None."""
    gap = min(r["greedy_min_gap"] for r in records)
    if gap < GAP:
        return f"a gap of {gap:.1e}"
    if strict and min(len(set(r["greedy"])) for r in records) < 5:
        return "answers repeat a few tokens"
    rounding = shift(model, copy.deepcopy(model).double(), prompts)
    if rounding > gap * EXACT_PART:
        return f"rounding of {rounding:.1e} beside a gap of {gap:.1e}"
    moved, generator = copy.deepcopy(model), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1 + 1e-6 * torch.randn(p.shape, generator=generator))
    off = shift(model, moved, prompts)
    return f"near a tie: {off:.1e}" if off > MOVED else None


# ---- models that pool ----

def pooled_one(model, golden, ids, types=None):
    """The pooled row, and what is made of it: the vector of length 1, or probabilities."""
    more = dict(token_type_ids=torch.tensor([types])) if types else {}
    with torch.no_grad():
        if golden["kind"] != "embed":
            logits = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **more).logits[0]
            return logits, torch.sigmoid(logits) if logits.numel() == 1 else torch.softmax(logits, -1)
        rows = model.base_model(input_ids=torch.tensor([ids]), **more).last_hidden_state[0]
    row = dict(mean=rows.mean(0), last=rows[-1], cls=rows[0])[golden["pooling"]]
    return row, row / row.norm()


def pooled_answers(model, golden):
    """Arrays; texts get their answers."""
    names, arrays = ("pooled", "pooled_normalized") if golden["kind"] == "embed" else ("logits", "probs"), {}
    for k, prompt in enumerate(golden["prompts"]):
        for name, x in zip(names, pooled_one(model, golden, prompt["ids"], prompt.get("token_type_ids")), strict=True):
            arrays[f"p{k}.{name}"] = x.float().clone()
    for text in golden.get("text", []):
        raw, made = pooled_one(model, golden, text["ids"])
        key, x = ("embedding_normalized", made) if golden["kind"] == "embed" else ("logits", raw)
        text[key] = [round(float(v), 7) for v in x]
    return arrays


# ---- folders ----

def write(folder, golden, arrays, seed):
    keys = ("name", "kind", "arch", "model_type", "vocab_size", "storage_dtype", "quantization", "pooling", "prompts", "text")
    about = {k: golden[k] for k in keys if golden.get(k) is not None}
    about.update(compute_dtype="float32", seed=seed, versions=dict(transformers=transformers.__version__, torch=torch.__version__))
    (folder / "golden.json").write_text(json.dumps(about, separators=(",", ":")) + "\n")
    save_file(arrays, folder / "golden.safetensors")
    print(f"{folder.name}: seed {seed}", flush=True)


def redraw(folder, program, first):
    golden = json.loads((folder / "golden.json").read_text())
    weights = folder / "weights.txt"
    lines = [x for x in weights.read_text().splitlines() if x[:1] != "#" and x[:5] != "seed "] if weights.exists() else describe(folder)
    if golden["kind"] != "causal":
        draw(folder, lines, first, program)
        write(folder, golden, pooled_answers(model_of(folder), golden), first)
        return
    golden.pop("text", None)
    prompts = [p["ids"] for p in golden["prompts"]]
    for seed in range(first, first + SEEDS):
        draw(folder, lines, seed, program)
        model = model_of(folder)
        arrays, records = answers(model, prompts)
        why = why_not(model, prompts, records, seed < first + SEEDS_STRICT)
        if not why:
            break
        print(f"{folder.name}: seed {seed} rejected: {why}", flush=True)
    else:
        raise SystemExit(f"{folder.name}: no seed of {SEEDS} gives a golden")
    for record, before in zip(records, golden["prompts"], strict=True):
        if "greedy_kv_cached" in before:  # of a rope whose frequencies follow the length: with a cache they are others
            record["greedy_kv_cached"] = greedy_cached(model, record["ids"])
    golden["prompts"] = records
    write(folder, golden, arrays, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", default=ROOT / "build/dev/tests/draw_weights", type=pathlib.Path)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in args.folders:
        redraw(folder, args.draw, args.seed)


if __name__ == "__main__":
    sys.exit(main())
