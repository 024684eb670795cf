# SPDX-License-Identifier: Apache-2.0
"""tests/include_cycles.py: modules that include each other are found, parts of one module are none."""
import importlib.util

import pytest

from servers import ROOT


@pytest.fixture
def cycles(tmp_path, monkeypatch):
    """cycles({path: names that it includes}) in a tree of these files."""
    spec = importlib.util.spec_from_file_location("include_cycles", ROOT / "tests/include_cycles.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)

    def check(tree):
        for path, names in tree.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("/* first */\n" + "".join(f'#include "{name}"\n' for name in names))
        return module.cycles(list(tree))
    return check


def test_two_headers_that_include_each_other(cycles):
    found = cycles({"a/x.h": ["a/y.h"], "a/y.h": ["a/x.h"]})
    assert found == [("a/x.h", "2 modules include each other: a/x.h includes a/y.h; a/y.h includes a/x.h")]


def test_a_source_file_closes_a_cycle(cycles):
    """The header of y is below x, its source is above."""
    found = cycles({"a/x.h": ["a/y.h"], "a/x.c": ["a/x.h"], "a/y.h": [], "a/y.c": ["a/y.h", "a/x.h"]})
    assert len(found) == 1 and "a/y.c includes a/x.h" in found[0][1] and "a/x.h includes a/y.h" in found[0][1]


def test_a_cycle_of_three_through_folders_and_names_without_a_folder(cycles):
    found = cycles({"a/x.h": ["y.h"], "a/y.h": ["b/z.h"], "b/z.h": [], "b/z.cu": ["b/z.h", "a/x.h"]})
    assert len(found) == 1 and found[0][1].startswith("3 modules include each other")


def test_two_cycles_are_two_findings(cycles):
    found = cycles({"a/x.h": ["a/y.h"], "a/y.h": ["a/x.h"], "b/p.h": ["b/q.h", "a/x.h"], "b/q.h": ["b/p.h"]})
    assert [path for path, _ in found] == ["a/x.h", "b/p.h"]


def test_layers_and_own_headers_are_no_cycle(cycles):
    assert cycles({"a/x.h": [], "a/x.c": ["a/x.h", "a/y.h", "b/x.h"], "a/y.h": ["b/x.h"], "a/y.c": ["a/y.h"],
                   "b/x.h": ["of_no_tree.h"]}) == []


def test_the_files_of_a_private_header_are_one_module(cycles):
    tree = {"a/x.h": [], "a/x_internal.h": ["a/x.h", "a/part.h"], "a/x.c": ["a/x_internal.h"], "a/part.h": [],
            "a/part.c": ["a/x_internal.h"], "a/below/more.h": [], "a/below/more.c": ["a/below/more.h", "a/x_internal.h"]}
    tree["a/x.c"].append("a/below/more.h")
    assert cycles(tree) == []


def test_one_module_is_no_excuse_for_another(cycles):
    """b uses the private header of a: it is no part of a, so the cycle stands."""
    found = cycles({"a/x.h": [], "a/x_internal.h": ["a/x.h"], "a/x.c": ["a/x_internal.h", "b/y.h"], "b/y.h": [],
                    "b/y.c": ["b/y.h", "a/x_internal.h"]})
    assert len(found) == 1 and "b/y.c includes a/x_internal.h" in found[0][1]
