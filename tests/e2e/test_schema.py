# SPDX-License-Identifier: Apache-2.0
"""quire schema: texts drawn at random from the masks are valid by the jsonschema package; and the two public collections
of schemas, where they are on this machine."""
import collections
import json
import subprocess

import jsonschema
import pytest
from jsonschema import validators

from servers import BIN, BUNDLED, ROOT

SHARED = ROOT.parent / "shared/data/schemas"

OWN = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "minProperties": 1,
     "additionalProperties": False},
    {"type": "object", "properties": {"x": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 7.25}}, "required": ["x", "y"],
     "additionalProperties": {"type": "boolean"}},
    {"type": "string", "pattern": "^(\\d{3}-)?[A-F\"]+$", "minLength": 3, "maxLength": 9},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "ipv6"}, {"type": "string", "format": "uuid"},
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"const": "x"}]}, "minItems": 2, "maxItems": 5},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "contains": {"const": 7}, "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
               {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "maxProperties": 3},
    {"type": "integer", "multipleOf": 15, "minimum": 40, "not": {"enum": [60, 75]}},
    {"type": "object", "patternProperties": {"^n": {"type": "integer"}, "s$": {"type": "number"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "unevaluatedProperties": {"type": "null"}},
    {"if": {"type": "object", "required": ["a"]}, "then": {"required": ["b"]}, "else": {"type": "string", "maxLength": 2}},
    {"$defs": {"tree": {"type": "object", "properties": {"l": {"$ref": "#/$defs/tree"}, "v": {"type": "integer"}},
                        "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/tree"},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "contains": {"minimum": 7}, "minContains": 1,
     "maxContains": 2, "minItems": 2, "maxItems": 5},
    {"type": "array", "prefixItems": [{"enum": ["a", 1]}, {"type": "boolean"}], "items": {"enum": [1, 2, "b"]}, "maxItems": 6,
     "allOf": [{"contains": {"type": "string"}, "minContains": 2}, {"contains": {"const": 1}, "maxContains": 1}]},
    {"type": "array", "items": {"enum": ["x", 1]}, "contains": {"const": "x"}, "minContains": 0, "maxContains": 1, "maxItems": 3},
    {"enum": [{"a": 1, "b": [1, 2]}, {"a": 1}, {"a": "x", "b": []}, [1, 1], [3, 4], [5], 7], "properties": {"a": {"type": "integer"}},
     "required": ["a"], "items": {"maximum": 4}, "uniqueItems": True, "minItems": 2, "patternProperties": {"^b": {"maxItems": 2}}},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}, "required": ["a"]}],
     "type": "object", "unevaluatedProperties": False},
    {"type": "object", "not": {"patternProperties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     "propertyNames": {"pattern": "^[a-c]{1,2}$"}, "additionalProperties": {"type": ["integer", "string"]}, "maxProperties": 3},
    {"type": "object", "allOf": [{"not": {"propertyNames": {"const": "x"}}}, {"not": {"patternProperties": {"y": False}}}],
     "patternProperties": {"^[xyz]$": {"type": "boolean"}}, "additionalProperties": False, "minProperties": 2},
    {"type": "number", "minimum": -50, "maximum": 400, "multipleOf": 0.5, "not": {"anyOf": [{"multipleOf": 3}, {"multipleOf": 2}]}},
    {"type": "array", "items": {"enum": list("abcdefghij")}, "uniqueItems": True, "minItems": 2, "maxItems": 4},
    {"$id": "http://q/root", "$ref": "list", "$defs": {"n": {"$dynamicAnchor": "t", "type": "boolean"}, "l": {
        "$id": "list", "type": "array", "items": {"$dynamicRef": "#t"}, "$defs": {"t": {"$dynamicAnchor": "t"}}}}},
]


def schema(lines, model=BUNDLED):
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    run = subprocess.run([BIN / "quire-schema", model], input=text, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0 and run.stderr == "", run.stderr[:2000]
    answers = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    assert len(answers) == len(lines)
    return answers


def check(schemas, answers):
    n = collections.Counter()
    for one, answer in zip(schemas, answers):
        validator = validators.validator_for(one, default=jsonschema.Draft202012Validator)(one)
        for text in answer.get("samples", []):
            n["drawn"] += 1
            if text is None:
                n["unfinished"] += 1
                continue
            error = next(validator.iter_errors(json.loads(text)), None)
            assert error is None, (one, text, error)
    return n


def test_random_texts_are_valid():
    answers = schema([{"json_schema": s, "sample": 12, "seed": i, "tokens": 30} for i, s in enumerate(OWN)])
    assert all(a["compiled"] and "error" not in a for a in answers), [a.get("error") for a in answers]
    n = check(OWN, answers)
    assert n["drawn"] == 12 * len(OWN) and n["unfinished"] < n["drawn"] / 2, n


def test_lines():
    answers = schema([{"regex": "a+", "texts": ["aa", "b"]}, {"choice": ["x"], "texts": ["x", "y"]}, {"grammar": "root ::= \"q\"?",
                     "texts": ["", "q"]}, {"nothing": 1}, {"json_schema": {"type": "x"}}], "-")
    assert [a.get("accepted") for a in answers[:3]] == [[True, False], [True, False], [True, True]]
    assert "none of" in answers[3]["error"] and "#/type" in answers[4]["error"]


def suite():
    for path in sorted((SHARED / "JSON-Schema-Test-Suite/tests/draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield path.stem, group


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data/schemas/JSON-Schema-Test-Suite")
def test_test_suite_accepts_nothing_invalid():
    groups = list(suite())
    answers = schema([{"json_schema": g["schema"], "texts": [json.dumps(t["data"]) for t in g["tests"]]} for _, g in groups], "-")
    n, wrong = collections.Counter(), []
    for (name, group), answer in zip(groups, answers):
        n["compiled" if "error" not in answer else "refused"] += 1
        for test, accepted in zip(group["tests"], answer.get("accepted", [])):
            n["valid" if test["valid"] else "invalid"] += 1
            n["valid accepted"] += test["valid"] and accepted
            if accepted and not test["valid"]:
                wrong.append((name, group["description"], test["description"]))
    print(dict(n))
    assert not wrong, wrong
    assert n["compiled"] > 200


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data/schemas")
def test_test_suite_formats():
    """No invalid text of an enforced format is accepted; "regex" is an annotation here."""
    n, wrong = collections.Counter(), []
    for path in sorted((SHARED / "JSON-Schema-Test-Suite/tests/draft2020-12/optional/format").glob("*.json")):
        if "regex" in path.stem:
            continue
        for group in json.loads(path.read_text()):
            tests = [t for t in group["tests"] if isinstance(t["data"], str)]
            answer = schema([{"json_schema": group["schema"], "texts": [json.dumps(t["data"]) for t in tests]}], "-")[0]
            for test, accepted in zip(tests, answer["accepted"]):
                n["valid" if test["valid"] else "invalid"] += 1
                n["valid accepted"] += test["valid"] and accepted
                if accepted and not test["valid"]:
                    wrong.append((path.stem, test["description"]))
    print(dict(n))
    assert not wrong, wrong
    assert n["invalid"] > 300 and n["valid accepted"] > 0.7 * n["valid"]


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data/schemas")
def test_real_schemas():
    packed = SHARED / "jsonschemabench/maskbench_slice.jsonl.zst"
    lines = subprocess.run(["zstd", "-dc", packed], capture_output=True, check=True).stdout.splitlines()
    cases = [json.loads(line) for line in lines][::12]
    answers = schema([{"json_schema": c["schema"], "texts": [json.dumps(t["data"]) for t in c["tests"]], "sample": 1, "seed": i,
                       "tokens": 20} for i, c in enumerate(cases)])
    n = check([c["schema"] for c in cases], answers)
    n["compiled"] = sum("error" not in a for a in answers)
    for case, answer in zip(cases, answers):
        for test, accepted in zip(case["tests"], answer.get("accepted", [])):
            assert test["valid"] or not accepted, case["description"]
    print(dict(n))
    assert n["compiled"] > len(cases) * 0.7
