#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sketches of the tensors of a set of goldens, an eighth of their size, by which a difference is found that the tensors would show.

    python3 tests/data/distill/sketch.py SET          # SET/cases/*/*_step*.safetensors become *.sketch.safetensors

Of a matrix X [rows, columns], in one vector: products with PROJECTIONS vectors of random signs from either side, every SAMPLE-th element,
the largest element and the norm. For signs s the mean of |D s|^2 is the squared norm of D, so a difference D of all elements, of a row, a
column or of one element shows with its size from one side at least; transposed or exchanged rows are differences as any others. Vectors
and small matrices are whole. Weights are sketched less those that the student began with, so that f32 holds their updates."""
import hashlib
import json
import pathlib
import sys

import numpy
from safetensors.numpy import load_file, save_file

PROJECTIONS, SAMPLE, WHOLE = 2, 64, 256  # WHOLE: elements up to which a tensor is not sketched
SUFFIX = ".sketch.safetensors"


def signs(name, n):
    """[PROJECTIONS, n] of 1 and -1, from the name alone."""
    stream = hashlib.shake_256(f"{name} {n}".encode()).digest(-(-PROJECTIONS * n // 8))
    return numpy.unpackbits(numpy.frombuffer(stream, "u1"))[:PROJECTIONS * n].reshape(PROJECTIONS, n) * 2.0 - 1


def parts(name, x):
    """From both sides, elements, extent."""
    return (signs(name, x.shape[1]) @ x.T, signs(name, x.shape[0]) @ x, x.ravel()[::SAMPLE],
            numpy.array([numpy.abs(x).max(), numpy.linalg.norm(x)]))


def sketch(name, x):
    """f64: a vector, or the tensor itself."""
    x = x.astype(numpy.float64)
    return numpy.concatenate([part.ravel() for part in parts(name, x)]) if x.ndim == 2 and x.size > WHOLE else x


class Difference:
    """Of a tensor from its golden, whole or a sketch: its squared norm and elements as far as they show, the golden's extent."""

    def __init__(self, name, got, want):
        if want.shape == got.shape:
            d = got - want
            self.squared, self.elements = (d ** 2).sum(), numpy.abs(d).ravel()
            self.most, self.norm = numpy.abs(want).max(), numpy.linalg.norm(want)
            return
        mine, at = [part.ravel() for part in parts(name, got)], 0
        assert want.shape == (sum(part.size for part in mine),), f"{name} has another shape"
        differences = []
        for part in mine[:-1]:
            differences.append(part - want[at:at + part.size])
            at += part.size
        self.squared = max((d ** 2).sum() / PROJECTIONS for d in differences[:2])
        self.elements = numpy.abs(differences[2])
        self.most, self.norm = want[at:]


def read(folder, name, start=None):
    """{tensor: f64} of a golden, sketched or not. start: what tensors are counted from."""
    path = folder / (name + SUFFIX)
    if path.exists():
        return {of: x.astype(numpy.float64) for of, x in load_file(path).items()}
    return {of: x.astype(numpy.float64) - (start[of] if start else 0) for of, x in load_file(folder / f"{name}.safetensors").items()}


def shrink(path, start):
    small = {name: sketch(name, x.astype(numpy.float64) - (start[name] if start else 0)).astype(numpy.float32)
             for name, x in load_file(path).items()}
    save_file(small, path.with_name(path.name.replace(".safetensors", SUFFIX)))
    path.unlink()


def main():
    folder = pathlib.Path(sys.argv[1])
    for path in sorted(folder.glob("cases/*/*_step*.safetensors")):
        if path.name.endswith(SUFFIX):
            continue
        pair = json.loads((path.parent / "expected.json").read_text())["case"]["pair"]
        start = load_file(folder / f"pair{pair}/student/model.safetensors")
        shrink(path, start if path.name.startswith("weights") else None)


if __name__ == "__main__":
    main()
