# SPDX-License-Identifier: Apache-2.0
"""What torch and transformers do on the same card, each in a process of its own that tests/gpu/run.py starts.

  python3 beside.py ceilings                               a copy and products, the card's ceilings
  python3 beside.py kernels                                SDPA and products at the shapes of cuda_bench
  python3 beside.py generate FOLDER IN OUT BATCHES HOW     transformers' generate; HOW: sdpa, or compiled (static cache, graphs)

Prints a JSON object a line, each when it is known."""
import json
import sys
import time

import torch


def say(**row):
    print(json.dumps(row), flush=True)


def seconds(work, budget=0.2):
    """The median of runs of a millisecond and more, by the card's clock."""
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def span(n):
        a.record()
        for _ in range(n):
            work()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b) / 1e3 / n

    span(2)
    once = span(1)
    n = max(1, int(1e-3 / max(once, 1e-6)))
    times = sorted(span(n) for _ in range(max(3, min(30, int(budget / (n * once))))))
    return times[len(times) // 2]


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def ceilings():
    x = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    say(what="copy", bytes_s=2 * x.numel() / seconds(lambda: y.copy_(x)))
    del y
    n = 8192
    a, b = bf16(n, n), bf16(n, n)
    out = torch.empty_like(a)
    say(what="bf16 product of 8192", flop_s=2 * n ** 3 / seconds(lambda: torch.matmul(a, b, out=out)))
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    say(what="from pinned memory", bytes_s=pinned.numel() / seconds(lambda: x[:1 << 28].copy_(pinned, non_blocking=True)))
    if torch.cuda.get_device_capability() >= (8, 9):
        f8 = torch.float8_e4m3fn
        one = torch.ones((), device="cuda")
        p, q = a.to(f8), b.to(f8).t()
        say(what="e4m3 product of 8192",
            flop_s=2 * n ** 3 / seconds(lambda: torch._scaled_mm(p, q, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)))


def kernels():
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for n_seq, context, heads, kv, new in ((64, 4096, 64, 8, 1), (64, 4096, 32, 8, 1), (1, 32768, 32, 8, 1), (1, 8192, 32, 8, 8192),
                                           (4, 2048, 32, 8, 2048)):
        q, k, v = bf16(n_seq, heads, new, 128), bf16(n_seq, kv, context, 128), bf16(n_seq, kv, context, 128)
        s = seconds(lambda: sdpa(q, k, v, is_causal=new > 1, enable_gqa=True))
        say(op="attention", shape=f"BF16 {n_seq} x {context}, {new} of them new, heads {heads}/{kv} of 128", how="torch SDPA, contiguous",
            median_ms=s * 1e3)
        del q, k, v
    for m, n, k in ((1, 28672, 4096), (16, 28672, 4096), (64, 28672, 4096), (256, 28672, 4096), (8192, 8192, 8192)):
        x, w = bf16(m, k), bf16(n, k)
        s = seconds(lambda: torch.nn.functional.linear(x, w))
        say(op="linear", shape=f"bf16 {m} x [{n}, {k}]", how="torch linear (cuBLAS)", median_ms=s * 1e3)
        del x, w


def generate(folder, n_in, n_out, batches, how):
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa").eval()
    if how == "compiled":
        model.generation_config.cache_implementation = "static"
        model.forward = torch.compile(model.forward, mode="reduce-overhead")
    for batch in batches:
        ids = torch.randint(5, 500, (batch, n_in), device="cuda")

        def take(n):
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
            torch.cuda.synchronize()
            return time.perf_counter() - start

        with torch.inference_mode():
            take(1)
            take(n_out)
            first, whole = min(take(1) for _ in range(2)), min(take(n_out) for _ in range(2))
        say(how=f"transformers generate, {how}", batch_size=batch, input_len=n_in, output_len=n_out, ttft_ms=first * 1e3,
            decode_tok_s=batch * (n_out - 1) / max(whole - first, 1e-9))


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), [int(b) for b in sys.argv[5].split(",")], sys.argv[6])
    else:
        {"ceilings": ceilings, "kernels": kernels}[sys.argv[1]]()
