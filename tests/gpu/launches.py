# SPDX-License-Identifier: Apache-2.0
"""Launches a layer and a step, and the bytes that a step has to move, without a card.

  python3 tests/gpu/launches.py [--build build/dev] [--json | --check | --update]

The engine and the device layer are the real ones, on a CUDA runtime that records launches (tests/cuda/launches.c), for a card of
compute capability 9.0 with all its kernels and without cuBLASLt. Bytes are those of the operations' arguments, each once
(tests/cuda/launch_log.h). A model's numbers are those of two and of three layers, continued to all it has. tests/gpu/launches.txt
is this table: --check compares with it, --update writes it."""
import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import resources  # noqa: E402
import shapes  # noqa: E402

TABLE = HERE / "launches.txt"
MODELS = ("Llama-3-8B", "Qwen2.5-0.5B", "Qwen3-30B-A3B")
FORMATS = {"bf16": "none", "int8": "int8", "fp8": "fp8", "int4": "int4"}
BYTES_S = 4.8e12  # memory of an H200 by its data sheet
BYTES = ("weights", "kv_read", "kv_written", "read", "written")
HEAD = """\
Launches and bytes of a step on compute capability 9.0; tests/gpu/launches.py writes this and compares it. Contexts have 1024 tokens,
KV is bf16. MB: weights; K and V; activations, of which a decode step's stay in the L2. floor: weights, K and V at 4.8 TB/s (H200); a
prompt is bound by arithmetic, far above it. apart: activations beside weights, K and V, in bytes.
"""


def kernel_names(library):
    """{place in the library: name of the kernel}"""
    listed = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        words = line.split()
        if len(words) == 3 and re.match(r"_ZL?\d+\w+_kernel", words[2]) and not words[2].endswith(".cold"):
            found[int(words[0], 16)] = resources.plain(words[2]).split("<")[0].removesuffix("_kernel")
    return found


def steps_of(program, library, names, folder, quantization):
    """{step: [(operation, kernel, bytes…)]} in the order of launches"""
    done = subprocess.run([program, folder, quantization, library], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"launches: {folder.name} {quantization}: {done.stderr.strip()}")
    steps = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if words[0] == "step":
            steps[" ".join(words[1:])] = launches = []
        else:
            place = int(words[1], 16)
            if words[0] == "?" or place not in names:
                sys.exit(f"launches: {folder.name} {quantization}: launch_log.c does not know the operation of {names.get(place, line)}")
            launches.append((words[0], names[place], *map(int, words[2:])))
    return steps


def layer_of(two, three):
    """The launches of one layer: what three layers have more than two, from where it begins to repeat."""
    n = len(three) - len(two)
    for i in range(len(three) - 2 * n + 1):
        layer = three[i:i + n]
        if layer == three[i + n:i + 2 * n] and three[:i] + three[i + n:] == two:
            return layer
    sys.exit("launches: three layers are not two and one more")


def row_of(model, name, step, two, three):
    layer, n_layer = layer_of(two, three), shapes.SHAPES[model]["num_hidden_layers"]
    total = {what: sum(k[2 + i] for k in two) + (n_layer - 2) * sum(k[2 + i] for k in layer) for i, what in enumerate(BYTES)}
    moved = total["weights"] + total["kv_read"] + total["kv_written"]
    return {"model": model, "format": name, "step": step, "layers": n_layer, "launches_layer": len(layer),
            "launches_step": len(two) + (n_layer - 2) * len(layer), "layer": [list(k[:2]) for k in layer],
            **{f"{what}_bytes": n for what, n in total.items()}, "floor_us": round(moved / BYTES_S * 1e6, 1),
            "activations_share": round((total["read"] + total["written"]) / moved, 3)}


def rows_of(build):
    library, program = build / "tests/libquire-fake-cuda.so", build / "tests/cuda_launches"
    names, rows = kernel_names(library), []
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            folders = [shapes.folder(pathlib.Path(folder), model, n_layer=n) for n in (2, 3)]
            for name, quantization in FORMATS.items():
                two, three = (steps_of(program, library, names, f, quantization) for f in folders)
                rows += [row_of(model, name, step, two[step], three[step]) for step in two]
    return rows


def chain(layer):
    """A layer's launches: an operation with its kernels, where they have another name."""
    parts = []
    for op, kernel in layer:
        if parts and parts[-1][0] == op and kernel not in (op, parts[-1][1][0]):
            parts[-1][1].append(kernel)
        else:
            parts.append((op, [kernel]))
    return " · ".join(op if kernels == [op] else f"{op} ({', '.join(kernels)})" for op, kernels in parts)


def text_of(rows):
    out, before = [HEAD], None
    for r in rows:
        if before != (r["model"], r["format"]):
            before = r["model"], r["format"]
            out.append(f"\n{r['model']}, {r['layers']} layers, {r['format']}\n"
                       f"    {'step':13}{'a layer':>8}{'a step':>8}{'weights':>10}{'KV':>8}{'activations':>13}{'floor us':>10}{'apart':>8}\n")
        mb = [f"{sum(r[f'{k}_bytes'] for k in of) / 1e6:.1f}" for of in (("weights",), ("kv_read", "kv_written"), ("read", "written"))]
        out.append(f"    {r['step']:13}{r['launches_layer']:8}{r['launches_step']:8}{mb[0]:>10}{mb[1]:>8}{mb[2]:>13}{r['floor_us']:10.1f}"
                   f"{r['activations_share']:8.1%}\n"
                   + textwrap.fill(chain(r["layer"]), 134, initial_indent=" " * 6, subsequent_indent=" " * 6) + "\n")
    return "".join(out)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/dev"))
    options.add_argument("--json", action="store_true", help="every number")
    options.add_argument("--check", action="store_true")
    options.add_argument("--update", action="store_true")
    options = options.parse_args()
    rows = rows_of(options.build.resolve())
    text = text_of(rows)
    if options.update:
        TABLE.write_text(text)
    elif options.check:
        known = TABLE.read_text()
        if text != known:
            sys.stdout.writelines(difflib.unified_diff(known.splitlines(True), text.splitlines(True), "tests/gpu/launches.txt", "now"))
            sys.exit("launches: launches or bytes have changed; if that is meant, tests/gpu/launches.py --update writes the table")
        print(f"ok   launches: {len(rows)} steps as in tests/gpu/launches.txt")
    else:
        print(json.dumps(rows, indent=1) if options.json else text, end="\n" if options.json else "")


if __name__ == "__main__":
    main()
