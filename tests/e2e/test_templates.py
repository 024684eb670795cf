# SPDX-License-Identifier: Apache-2.0
"""Chat templates against jinja2, with random conversations: a few of them; tests/differential/templates_diff.py has more."""
import sys

from servers import BIN, ROOT

sys.path.insert(0, str(ROOT / "tests/differential"))


def test_random_conversations(monkeypatch):
    import templates_diff
    monkeypatch.setattr(templates_diff, "BIN", BIN)
    assert templates_diff.compare(6, seed=7, only="tests/data/templates") == 0


def test_random_templates(monkeypatch):
    import snippets_diff
    monkeypatch.setattr(snippets_diff.td, "BIN", BIN)
    n, n_text, found = snippets_diff.compare(2000, seed=1)
    assert n_text > 200 and not found
