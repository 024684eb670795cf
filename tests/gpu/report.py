# SPDX-License-Identifier: Apache-2.0
"""The page of a run of tests/gpu/run.py: the bars first, then every part's rows, each figure with its fraction of the ceilings
that the same run measured."""
TITLES = {
    "machine": "The machine", "ceilings": "What the card does at best", "kernels": "Kernels against the reference, and their speed",
    "goldens": "Goldens, same bits, and what the CPU says", "sanitizer": "compute-sanitizer", "bench": "The engine",
    "torch": "torch and transformers on the same card", "profile": "The hardware's counters",
}


def ceilings(store):
    """{"bytes_s", "bf16 …"}: the best that anything reached in this run."""
    found = {}
    for row in store.rows("ceilings"):
        if row.get("what") == "copy":
            found["bytes_s"] = max(found.get("bytes_s", 0), row["bytes_s"])
        elif row.get("what", "").startswith("bf16"):
            found["flop_s"] = row["flop_s"]
        elif row.get("what", "").startswith("e4m3"):
            found["e4m3_flop_s"] = row["flop_s"]
    return found


def part(value, limit):
    return round(value / limit, 3) if value and limit else None


def kernel_figures(row, limit):
    """A row of cuda_bench, or of torch, whose bytes and flop are those of the same shape."""
    s = row["median_ms"] / 1e3
    if s <= 0 or not (row.get("bytes") or row.get("flop")):
        return {}
    figures = {"TB/s": round(row["bytes"] / s / 1e12, 3), "of bandwidth": part(row["bytes"] / s, limit.get("bytes_s"))}
    if row.get("flop"):
        figures |= {"TFLOP/s": round(row["flop"] / s / 1e12, 1), "of bf16 peak": part(row["flop"] / s, limit.get("flop_s"))}
    return {k: v for k, v in figures.items() if v is not None}


def latency_figures(row, limit):
    """A row of quire bench latency: what a step reads, what a prompt multiplies."""
    out = {}
    if row.get("decode_tok_s") and row.get("step_bytes"):
        out["decode of bandwidth"] = part(row["step_bytes"] * row["decode_tok_s"] / row["batch_size"], limit.get("bytes_s"))
    if row.get("ttft_ms") and row.get("prefill_ops"):
        out["prefill of peak"] = part(row["prefill_ops"] / (row["ttft_ms"] / 1e3), limit.get("flop_s"))
    return {k: v for k, v in out.items() if v is not None}


def figures(row, limit):
    if "median_ms" in row:
        return kernel_figures(row, limit)
    return latency_figures(row, limit) if "step_bytes" in row else {}


# ---- the bars ----
def find(rows, **want):
    return next((r for r in rows if all(r.get(k) == v for k, v in want.items())), None)


def attention_bar(store, limit, shape, figure):
    row = find(store.rows("kernels"), kind="speed", op="attention", shape=shape)
    beside = find(store.rows("torch"), op="attention", shape=shape)
    mine = kernel_figures(row, limit).get(figure) if row else None
    other = kernel_figures({**row, "median_ms": beside["median_ms"]}, limit).get(figure) if row and beside else None
    return mine, other


def decode_attention(store, limit):
    return attention_bar(store, limit, "BF16 64 x 4096, 1 of them new, heads 64/8 of 128", "of bandwidth")


def prefill_attention(store, limit):
    return attention_bar(store, limit, "BF16 1 x 8192, 8192 of them new, heads 32/8 of 128", "TFLOP/s")


def one_sequence(store, limit):
    row = find(store.rows("bench"), kind="latency", model="Llama-3-8B", batch_size=1)
    others = [r["decode_tok_s"] for r in store.rows("torch") if r.get("model") == "Llama-3-8B" and r.get("batch_size") == 1]
    mine = latency_figures(row, limit).get("decode of bandwidth") if row else None
    scale = mine / row["decode_tok_s"] if mine else 0
    return mine, round(max(others) * scale, 3) if others and scale else None


def online(store, limit):
    http, alone = (find(store.rows("bench"), kind=kind, model="Llama-3-8B") for kind in ("http", "throughput"))
    if not http or not alone:
        return None, None
    return part(http["output_throughput"], alone["output_tokens_per_second"]), None


def fp8(store, limit):
    best = max((r["output_tokens_per_second"] for r in store.rows("bench") if r.get("kind") == "fp8"), default=None)
    return round(best) if best else None, None


def not_hidden(store, limit):
    row = find(store.rows("bench"), kind="latency", model="Llama-3-8B", batch_size=1)
    return row.get("step_gap_us") if row else None, None


def start_to_ready(store, limit):
    row = find(store.rows("bench"), kind="http", model="Llama-3-8B")
    return row.get("start_to_ready_s") if row else None, None


BARS = (  # what, how it is found, unit, bar, goal
    ("decode attention, 64 sequences x 4 k, GQA 8, bf16 KV", decode_attention, "of bandwidth", 0.80, 0.92),
    ("prefill attention, 8 k causal, head 128, bf16", prefill_attention, "TFLOP/s", 450, 650),
    ("Llama-3-8B bf16, 1 sequence", one_sequence, "of bandwidth", 0.80, 0.93),
    ("Llama-3-8B bf16, 256 x 1 k in, 128 out, by HTTP", online, "of the offline figure", 0.85, 0.97),
    ("Llama-3-8B FP8, 1000 in, 1000 out, at load", fp8, "output tokens/s", 12000, 20000),
    ("engine time per step not hidden behind the GPU", not_hidden, "us", 100, 0),
    ("start to ready, 8 B from a warm page cache, graphs captured", start_to_ready, "s", 20, 6),
)


def verdict(value, bar, goal):
    if value is None:
        return "not measured"
    sign = 1 if goal > bar else -1
    return "goal" if sign * value >= sign * goal else "bar" if sign * value >= sign * bar else "below the bar"


def bars(store):
    limit = ceilings(store)
    lines = ["| figure | this run | torch | bar | goal | |", "| --- | --- | --- | --- | --- | --- |"]
    for what, found, unit, bar, goal in BARS:
        mine, other = found(store, limit)
        lines.append(f"| {what} | {'-' if mine is None else mine} {unit} | {'-' if other is None else other} | {bar} | {goal} | "
                     f"{verdict(mine, bar, goal)} |")
    return lines


# ---- the page ----
def show(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows, limit):
    """Rows of the same kind as one table."""
    rows = [{**row, **figures(row, limit)} for row in rows]
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if value is not None))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return lines + ["| " + " | ".join(show(row.get(c, "")) for c in columns) + " |" for row in rows]


def page(store, parts):
    limit, jobs = ceilings(store), store.data["jobs"]
    lines = [f"# quire on {store.data['card']}", "", f"Driver {', '.join(store.data['drivers']) or '-'}. Programs {store.programs}. Bars are those "
             "of one H200; fractions are of this card's ceilings, measured in this run.", "", *bars(store), ""]
    for name in parts:
        mine = {k.split("/", 1)[1]: v for k, v in jobs.items() if k.split("/")[0] == name}
        if not mine:
            continue
        lines += [f"## {TITLES[name]}", ""]
        lines += [f"- {job['status']} {k} ({job['seconds']:.1f} s){': ' + job['why'] if job.get('why') else ''}"
                  for k, job in mine.items() if job["status"] != "ok"]
        kinds = {}
        for job in mine.values():
            for row in job["rows"]:
                kinds.setdefault(row.get("kind") or row.get("op") or row.get("what") and "what" or "", []).append(row)
        for rows in kinds.values():
            lines += ["", *table(rows, limit)]
        lines.append("")
    return "\n".join(lines)
