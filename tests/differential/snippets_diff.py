# SPDX-License-Identifier: Apache-2.0
"""quire render against jinja2 on random templates: statements inside statements.

    python tests/differential/snippets_diff.py [-n TEMPLATES] [--seed S]

Every template is a few statements (if, for, set, with, block, macro, call, filter, self.block(), …) inside each other, with
small expressions over a few names; many are wrong.  The text must be jinja2's, or both must refuse.  Prints the differences,
shortest first; exits 1 when there are any.  tests/e2e/test_templates.py runs the same with few templates.
"""
import argparse
import json
import random
import re
import subprocess
import sys
import warnings

import templates_diff as td

NAMES = ["a", "b", "c", "l", "d", "s", "ns", "m1", "m2"]
VALUES = {"a": 1, "b": "x<y", "l": [3, 1, 2], "d": {"k": 1, "z": [1, 2]}, "s": " Ab c ", "q": None}
FILTERS = ["upper", "trim", "length", "list", "first", "join('-')", "default('D')", "string", "tojson", "reverse | list", "sort", "e", "safe",
           "nofilter", "int", "replace('b', 'B')", "map('string') | list", "select('odd') | list", "title", "sum", "unique | list", "d(a)"]
TESTS = ["defined", "undefined", "none", "string", "number", "odd", "iterable", "mapping", "sameas a", "in l", "notest", "callable", "eq 1", "divisibleby(2)"]


def name(r):
    return r.choice(NAMES)


def expression(r, depth=2):
    k = r.randrange(26)
    if depth == 0 or k < 6:
        return r.choice([name(r), name(r), str(r.randrange(4)), "'%s'" % r.choice(["", "x", "b c", "{0}|{k}"]), "none", "true", "q"])
    inner = lambda: expression(r, depth - 1)  # noqa: E731
    return [lambda: f"{inner()} | {r.choice(FILTERS)}", lambda: f"{inner()} is {r.choice(['', 'not '])}{r.choice(TESTS)}",
            lambda: f"({inner()} {r.choice(['+', '~', '*', '==', '!=', '<', 'and', 'or', 'in', 'not in', '-'])} {inner()})",
            lambda: f"({inner()} if {inner()} else {inner()})", lambda: f"({inner()} if {inner()})", lambda: f"[{inner()}, {inner()}]",
            lambda: "{'k': %s}" % inner(), lambda: f"{name(r)}.{r.choice(['k', 'z', 'a', 'upper', 'items', 'name', 'nope'])}", lambda: f"{inner()}[{r.choice(['0', '-1', '1:', '::-1', repr('k')])}]",
            lambda: f"m1({inner()})", lambda: f"m2({inner()}, c={inner()})", lambda: f"self.{r.choice(['x', 'y', 'nope'])}()", lambda: f"loop.{r.choice(['index', 'first', 'last', 'length', 'depth'])}",
            lambda: f"not {inner()}", lambda: f"'{{k}}-{{z[0]}}'.format_map({inner()})", lambda: f"'{{}}'.format({inner()})", lambda: f"d.items() | list", lambda: f"ns.{name(r)}",
            lambda: f"({inner()},)", lambda: f"caller({r.choice(['', inner()])})"][k - 6]()


def body(r, depth):
    return "".join(statement(r, depth) for _ in range(r.randint(1, 3)))


def statement(r, depth):
    k = r.randrange(22)
    e = lambda: expression(r)  # noqa: E731
    dash = lambda: r.choice(["", "", "", "-", "+"])  # noqa: E731
    if depth == 0 or k < 8:
        return r.choice([f"{{{{ {e()} }}}}", f"{{{{ {e()} }}}}", f"{{{{ {name(r)} }}}}", "t ", "\n", " <u>\n", f"{{% set {name(r)} = {e()} %}}", f"{{%{dash()} set {name(r)} = {e()} {dash().replace('+', '')}%}}",
                         f"{{% set ns.{name(r)} = {e()} %}}", "{% break %}", "{% continue %}", "{# c #}"])
    inner = lambda: body(r, depth - 1)  # noqa: E731
    block = r.choice(["x", "y", "z", "w", "v", "u"])
    return [lambda: f"{{%{dash()} if {e()} %}}{inner()}{{% elif {e()} %}}{inner()}{{% else %}}{inner()}{{% endif {dash().replace('+', '')}%}}",
            lambda: f"{{% if {e()} %}}{inner()}{{% endif %}}", lambda: f"{{% for {name(r)} in {e()} %}}{inner()}{{% endfor %}}",
            lambda: f"{{% for {name(r)} in {r.choice(['l', 'd', '[1, 2]', 'd.z'])}{r.choice(['', ' if ' + e()])}{r.choice(['', '', ' recursive'])} %}}{inner()}{{% else %}}{inner()}{{% endfor %}}",
            lambda: f"{{% with {name(r)} = {e()} %}}{inner()}{{% endwith %}}", lambda: f"{{% with a = {e()}, b = a %}}{inner()}{{% endwith %}}",
            lambda: f"{{% block {block} %}}{inner()}{{% endblock %}}", lambda: f"{{% block {block} scoped %}}{inner()}{{% endblock {block} %}}",
            lambda: f"{{% macro m1(a{r.choice(['', '=' + e()])}) %}}{inner()}{{% endmacro %}}", lambda: f"{{% macro m2(a, c=2) %}}{inner()}{{% endmacro %}}",
            lambda: f"{{% call m1({e()}) %}}{inner()}{{% endcall %}}", lambda: f"{{% filter {r.choice(FILTERS)} %}}{inner()}{{% endfilter %}}",
            lambda: f"{{% set {name(r)} %}}{inner()}{{% endset %}}", lambda: f"{{% set {name(r)} | {r.choice(FILTERS)} %}}{inner()}{{% endset %}}"][k - 8]()


def template(r):
    head = r.choice(["", "{% set ns = namespace(a=1, b='n') %}", "{% macro m1(a) %}({{ a }}){% endmacro %}{% macro m2(a, c) %}{{ a }}{{ c }}{{ caller is defined }}{% endmacro %}"])
    return head + body(r, r.randint(1, 3))


def is_known(source, want):
    """What common/template/README.md names: slices of literals, names that an inner scope mentions before the outer one sets
    them; and a bug of jinja2's (a name in the filters of a set block)."""
    own = any(re.search(r"\b%s\b" % m[1], source[m.end():]) for m in re.finditer(r"{% set (\w+)[^=]*?%}", source))
    late = any(re.search(r"\b%s\b" % m[1], source[:m.start()]) for m in re.finditer(r"{%[-+]? (?:set|macro) (\w+)", source))
    return own or late or re.search(r"(\d|none|true|[]})'])\[\S*:", source) or "Tried to resolve a name to a reference" in str(want)


def compare(n, seed, show=5):
    """(templates, texts that both gave, differences)"""
    warnings.simplefilter("ignore", SyntaxWarning)  # Python's, of what jinja2 makes of some of them
    r, env, found, n_text = random.Random(seed), td.environment(), [], 0
    sources = [template(r) for _ in range(n)]
    lines = "".join(json.dumps({"template": t, "variables": VALUES}) + "\n" for t in sources)
    done = subprocess.run([td.BIN / "quire-render", "-"], input=lines, capture_output=True, text=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == n, done.stderr
    for source, got in zip(sources, answers):
        try:
            want = env.from_string(source).render(**VALUES)
        except Exception as error:  # whatever jinja2 and Python say
            want = error
        if is_known(source, want):
            continue
        if not isinstance(want, str):
            if "text" in got:
                found.append((source, want, got))
            continue
        n_text += 1
        want = re.sub(r" at 0x[0-9a-f]+", "", want)  # what objects say of themselves
        if got.get("text") != want:
            found.append((source, want, got))
    found.sort(key=lambda f: len(f[0]))
    for source, want, got in found[:show]:
        print(f"{source!r}\n  want {want!r}\n  got  {got}")
    return n, n_text, found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-n", type=int, default=20_000, help="templates")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    n, n_text, found = compare(a.n, a.seed)
    print(f"{n} templates, {n_text} rendered by jinja2, {len(found)} differ")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
