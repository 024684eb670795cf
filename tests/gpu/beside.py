# SPDX-License-Identifier: Apache-2.0
"""What torch and transformers do on the same card, each in a process of its own that tests/gpu/run.py starts.

  python3 beside.py ceilings                               a copy and products, the card's ceilings
  python3 beside.py kernels                                SDPA and products at the shapes of cuda_bench
  python3 beside.py generate FOLDER IN OUT BATCHES HOW     transformers' generate; HOW: sdpa, or compiled (static cache, graphs)
  python3 beside.py --small …                              toy sizes, without a card on the CPU, to try this program

Prints a JSON object a line, each when it is known."""
import json
import sys
import time

import torch


def say(**row):
    print(json.dumps(row), flush=True)


small = sys.argv[1:2] == ["--small"]
device = "cpu" if small and not torch.cuda.is_available() else "cuda"


def settle():
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work, budget=0.2):
    """The median of runs of a millisecond and more, by the card's clock."""
    if device == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
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
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def ceilings():
    x = torch.randint(0, 255, (1 << (20 if small else 30),), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    say(what="copy", bytes_s=2 * x.numel() / seconds(lambda: y.copy_(x)))
    del y
    n = 64 if small else 8192
    a, b = bf16(n, n), bf16(n, n)
    out = torch.empty_like(a)
    say(what="bf16 product of 8192", flop_s=2 * n ** 3 / seconds(lambda: torch.matmul(a, b, out=out)))
    if device == "cpu":
        return
    pinned = torch.empty(x.numel() // 4, dtype=torch.uint8, pin_memory=True)
    say(what="from pinned memory", bytes_s=pinned.numel() / seconds(lambda: x[:pinned.numel()].copy_(pinned, non_blocking=True)))
    if torch.cuda.get_device_capability() >= (8, 9):
        f8 = torch.float8_e4m3fn
        one = torch.ones((), device=device)
        p, q = a.to(f8), b.to(f8).t()
        say(what="e4m3 product of 8192",
            flop_s=2 * n ** 3 / seconds(lambda: torch._scaled_mm(p, q, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)))


ATTENTION = ((64, 4096, 64, 8, 1), (64, 4096, 32, 8, 1), (1, 32768, 32, 8, 1), (1, 8192, 32, 8, 8192), (4, 2048, 32, 8, 2048))
PRODUCTS = ((1, 28672, 4096), (16, 28672, 4096), (64, 28672, 4096), (256, 28672, 4096), (8192, 8192, 8192))


def kernels():
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for n_seq, context, heads, kv, new in ((2, 20, 2, 1, 1), (1, 20, 2, 1, 20)) if small else ATTENTION:
        q, k, v = bf16(n_seq, heads, new, 128), bf16(n_seq, kv, context, 128), bf16(n_seq, kv, context, 128)
        s = seconds(lambda: sdpa(q, k, v, is_causal=new > 1, enable_gqa=True))
        say(op="attention", shape=f"BF16 {n_seq} x {context}, {new} of them new, heads {heads}/{kv} of 128", how="torch SDPA, contiguous",
            median_ms=s * 1e3)
        del q, k, v
    for m, n, k in ((2, 128, 64),) if small else PRODUCTS:
        x, w = bf16(m, k), bf16(n, k)
        s = seconds(lambda: torch.nn.functional.linear(x, w))
        say(op="linear", shape=f"bf16 {m} x [{n}, {k}]", how="torch linear (cuBLAS)", median_ms=s * 1e3)
        del x, w


def generate(folder, n_in, n_out, batches, how):
    """compiled: transformers compiles decoding by itself where the cache is static, and keeps both while the batch is the same."""
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa").eval()
    cache = {"cache_implementation": "static"} if how == "compiled" else {}
    for batch in batches:
        ids = torch.randint(5, 500, (batch, n_in), device=device)

        def take(n):
            settle()
            start = time.perf_counter()
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n, do_sample=False,
                                 pad_token_id=0, **cache)
            settle()
            assert out.shape == (batch, n_in + n), out.shape
            return time.perf_counter() - start

        take(n_out)  # the longest first: it makes the cache
        take(n_out)
        whole, first = min(take(n_out) for _ in range(2)), min(take(1) for _ in range(2))
        say(how=f"transformers generate, {how}", batch_size=batch, input_len=n_in, output_len=n_out, ttft_ms=first * 1e3,
            decode_tok_s=batch * (n_out - 1) / max(whole - first, 1e-9))


if __name__ == "__main__":
    args = sys.argv[1 + small:]
    if args[0] == "generate":
        generate(args[1], int(args[2]), int(args[3]), [int(b) for b in args[4].split(",")], args[5])
    else:
        {"ceilings": ceilings, "kernels": kernels}[args[0]]()
