# SPDX-License-Identifier: Apache-2.0
"""Makes llama_cpp.json: greedy tokens and their log-probabilities of llama.cpp for the GGUF files that tests/e2e/gguf_files.py makes of the
goldens; and llama_cpp_blocks.json: log-probabilities of the next token for the files of gguf_blocks.py there, one of each type, with the
difference that the rounding of llama.cpp's activations explains. Run from here: python llama_cpp.py [goldens] [blocks] (needs
tests/requirements.txt and xllamacpp, here 2026.10.11549)."""
import json
import pathlib
import sys
import tempfile

import numpy as np
import xllamacpp

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
import gguf_blocks  # noqa: E402
import gguf_files as files  # noqa: E402
import test_gguf  # noqa: E402

N_TOKEN = 8
N_BEST = 12  # alternatives that are kept
NAMES = [*test_gguf.SAME, *test_gguf.WINDOWS, *test_gguf.NEAR]
# It takes longrope's factors by the length of its cache, exaone4's windows and cohere's norms by the number of layers, and loads no
# olmoe of this size.
OTHERWISE = ("phi3-longrope", "exaone4", "cohere", "olmoe")


def server(path):
    p = xllamacpp.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_predict, p.n_parallel, p.cpuparams.n_threads = 256, N_TOKEN, 1, 1
    return xllamacpp.Server(p)


def completion(of, prompt=test_gguf.PROMPT, n_token=N_TOKEN, n_probs=5):
    body = {"prompt": prompt, "n_predict": n_token, "temperature": 0, "n_probs": n_probs, "ignore_eos": True, "cache_prompt": False}
    out = of.handle_completions(body)
    out = out if isinstance(out, dict) else json.loads(out)
    return out["choices"][0]["logprobs"]["content"]


def write(name, out):
    (HERE / name).write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")


def goldens():
    out = {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in NAMES:
            if name in OTHERWISE:
                continue
            path = pathlib.Path(tmp) / f"{name}.gguf"
            files.make_gguf(test_gguf.MODELS / name, path, "F32", test_gguf.add_plain_tokens)
            tokens = completion(server(path))
            out[name] = {"token_ids": [t["id"] for t in tokens], "logprobs": [round(t["logprob"], 5) for t in tokens]}
    write("llama_cpp.json", out)


# ---- blocks: the model in numpy, with llama.cpp's roundings of activations or without any ----

BY_32 = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")  # activations of 8 bits, an f16 scale for 32; others: f32, for 256


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def rounded(x, of, program):
    """Activations as ggml's product with weights of this type has them (type_traits_cpu: vec_dot_type), or ours."""
    if program == "quire":
        scale = np.abs(x).max(-1, keepdims=True) / 127
        return np.round(x / scale) * scale if of == "Q4_0" else x
    if of in ("F32", "F16", "BF16"):
        return {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16).astype(np.float32), "BF16": to_bf16}[of](x)
    parts = x.reshape(len(x), -1, 32 if of in BY_32 else 256)
    scale = np.abs(parts).max(-1, keepdims=True) / 127
    q = np.round(parts / np.where(scale == 0, 1, scale))
    return (q * (scale.astype(np.float16).astype(np.float32) if of in BY_32 else scale)).reshape(x.shape)


def rope(x, arch):
    """x: [token, head, HEAD]; llama's files have pairs as neighbours, qwen2's as halves."""
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, gguf_blocks.HEAD, 2) / gguf_blocks.HEAD)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    half = gguf_blocks.HEAD // 2
    a, b = (x[..., ::2], x[..., 1::2]) if arch == "llama" else (x[..., :half], x[..., half:])
    out = np.empty_like(x)
    first, second = (out[..., ::2], out[..., 1::2]) if arch == "llama" else (out[..., :half], out[..., half:])
    first[...], second[...] = a * c - b * s, a * s + b * c
    return out


def last_logprobs(tensors, arch, ids, program=None):
    """Log-probabilities of the token behind `ids`, with the roundings of a program ("llama.cpp", "quire") or without."""
    b = gguf_blocks
    norm = lambda x, name: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * tensors[name][0]  # noqa: E731
    half = lambda x: x.astype(np.float16).astype(np.float32) if program == "llama.cpp" else x  # noqa: E731

    def product(x, name):
        w, of = tensors[name + ".weight"]
        y = (rounded(x, of.name, program) if program else x) @ w.T.astype(np.float64)
        return y + tensors[name + ".bias"][0] if name + ".bias" in tensors else y

    x, n = tensors["token_embd.weight"][0][ids].astype(np.float64), len(ids)
    for i in range(b.LAYERS):
        p = f"blk.{i}."
        h = norm(x, p + "attn_norm.weight")
        q = rope(product(h, p + "attn_q").reshape(n, b.HEADS, b.HEAD), arch)
        k = half(rope(product(h, p + "attn_k").reshape(n, b.KV_HEADS, b.HEAD), arch)).repeat(b.HEADS // b.KV_HEADS, 1)
        v = half(product(h, p + "attn_v").reshape(n, b.KV_HEADS, b.HEAD)).repeat(b.HEADS // b.KV_HEADS, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / b.HEAD ** 0.5 + np.where(np.tri(n), 0, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        a = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        x = x + product(a.reshape(n, -1), p + "attn_output")
        h = norm(x, p + "ffn_norm.weight")
        gate = product(h, p + "ffn_gate")
        x = x + product(gate / (1 + np.exp(-gate)) * product(h, p + "ffn_up"), p + "ffn_down")
    logits = product(norm(x[-1:], "output_norm.weight"), "output")[0]
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def blocks():
    """Of each file: its sum; of each prompt the best ids with llama.cpp's log-probabilities; and the rms of what llama.cpp's roundings
    change of these, with what ours change where blocks of Q4_0 are multiplied as integers."""
    out = {}
    with tempfile.TemporaryDirectory() as tmp:
        for arch, kind in gguf_blocks.CASES:
            path = pathlib.Path(tmp) / f"{arch}-{kind}.gguf"
            tensors = gguf_blocks.make(path, arch, kind)
            of, prompts, explained, ours, by_numpy, exact = server(path), [], [], [], [], []
            for ids in gguf_blocks.PROMPTS:
                best = completion(of, ids, 1, N_BEST)[0]["top_logprobs"][:N_BEST]
                best = {"ids": [t["id"] for t in best], "logprobs": [round(t["logprob"], 4) for t in best]}
                prompts.append(best)
                at = best["ids"]
                same, mine, plain = (last_logprobs(tensors, arch, ids, program)[at] for program in ("llama.cpp", "quire", None))
                explained += list(same - plain)
                ours += list(mine - plain)
                by_numpy += list(same - best["logprobs"])
                exact += list(plain - best["logprobs"])
            rms = lambda x: float(np.sqrt(np.mean(np.square(x))))  # noqa: E731
            print(f"{arch} {kind}: llama.cpp differs by {rms(exact):.5f} from the exact model, by {rms(by_numpy):.5f} from the rounded one;"
                  f" these two by {rms(explained):.5f}", flush=True)
            out[f"{arch} {kind}"] = {"file": gguf_blocks.sum_of(path), "explained": round((rms(explained) ** 2 + rms(ours) ** 2) ** 0.5, 5), "prompts": prompts}
    write("llama_cpp_blocks.json", out)


if __name__ == "__main__":
    for part in sys.argv[1:] or ("goldens", "blocks"):
        {"goldens": goldens, "blocks": blocks}[part]()
