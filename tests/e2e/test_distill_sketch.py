# SPDX-License-Identifier: Apache-2.0
"""The sketches by which goldens of quire distill are compared find what the tensors themselves would show, and nothing else."""
import numpy
import pytest
from safetensors.numpy import load_file

from distill_runs import GOLDENS, check_gradient, expected, sketch

TOLERANCES = expected("fkl_T1")["tolerances"]
TENSORS = {name: x for name, x in load_file(GOLDENS / "pairA/student/model.safetensors").items() if x.ndim == 2}


def stored(name, x):
    """The sketch as it is read back from a file."""
    return sketch.sketch(name, x).astype(numpy.float32).astype(numpy.float64)


def exchanged(x):
    y = x.copy()
    y[[1, 4]] = y[[4, 1]]
    return y


def with_element(x):
    y = x.copy()
    y[3, 5] += 20 * TOLERANCES["grad_l2_rel"] * numpy.linalg.norm(x)
    return y


def with_row(x):
    y = x.copy()
    y[2] *= 1 + 1e-3
    return y


CHANGES = {
    "two rows exchanged": exchanged, "rows in reverse": lambda x: x[::-1], "columns in reverse": lambda x: x[:, ::-1],
    "transposed in memory": lambda x: x.T.reshape(x.shape), "shifted": lambda x: numpy.roll(x, 1, 0), "another sign": lambda x: -x,
    "zeros": numpy.zeros_like, "one element": with_element, "one row, by a thousandth": with_row,
    "all, by a ten-thousandth": lambda x: x * (1 + 1e-4),
    "noise": lambda x: x + 1e-4 * numpy.linalg.norm(x) * numpy.random.default_rng(1).standard_normal(x.shape) / x.size ** 0.5,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_tensor_is_found(change):
    for name, x in TENSORS.items():
        with pytest.raises(AssertionError, match=name):
            check_gradient(name, CHANGES[change](x), stored(name, x), TOLERANCES)


def test_rounding_is_not():
    rng = numpy.random.default_rng(2)
    for name, x in TENSORS.items():
        got = x + 1e-6 * numpy.abs(x).max() * rng.uniform(-1, 1, x.shape)
        check_gradient(name, got.astype(numpy.float32), stored(name, x), TOLERANCES)


def test_sketches_are_small():
    assert all(sketch.sketch(name, x).size < x.size / 4 for name, x in TENSORS.items() if x.size > 2048)
