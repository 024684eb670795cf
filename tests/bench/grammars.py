#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Grammars of quire, llguidance and xgrammar over the same real schemas, one after the other in one run.

    grammars.py TOKENIZER_FOLDER SCHEMAS.jsonl [--every N] [--quire build/release/bin/quire-schema]

A line of SCHEMAS.jsonl is {"schema": ..., "tests": [{"data": ..., "valid": ...}]}. Each schema is compiled, and each
instance (written as json.dumps does) is followed token by token: the mask, then whether the token is in it. Times are
CPU time of the one thread that works, so that other load counts less. What is compared is in the table; a library that
is not installed is left out. Needs what grammars.txt beside this file lists.
"""
import argparse
import json
import os
import statistics
import subprocess
import time


class Result:
    def __init__(self):
        self.compile_ms, self.first_us, self.mask_us = [], [], []
        self.compiled = self.valid = self.valid_ok = self.invalid = self.invalid_ok = 0

    def judge(self, valid, accepted):
        if valid:
            self.valid += 1
            self.valid_ok += accepted
        else:
            self.invalid += 1
            self.invalid_ok += accepted


def quire(cases, args, _):
    r = Result()
    lines = "".join(json.dumps({"json_schema": c["schema"], "texts": [json.dumps(t["data"]) for t in c["tests"]], "raw": True}) + "\n"
                    for c in cases)
    run = subprocess.run([args.quire, args.tokenizer], input=lines, capture_output=True, text=True, check=True)
    for case, line in zip(cases, run.stdout.split("\n")[:-1]):
        answer = json.loads(line)
        if "error" in answer:
            continue
        r.compiled += 1
        r.compile_ms.append(answer["compile_ms"])
        r.first_us += [answer["first_mask_us"]] if "first_mask_us" in answer else []
        r.mask_us += answer.get("mask_us", [])
        for test, accepted in zip(case["tests"], answer["accepted"]):
            r.judge(test["valid"], accepted)
    return r


def follow(r, case, ids_of, start, mask, take, at_end):
    """The loop that the two libraries share."""
    first = True
    for test in case["tests"]:
        matcher, ok = start(), True
        for token in ids_of(json.dumps(test["data"])):
            begin = time.thread_time_ns()
            bits = mask(matcher)
            took = (time.thread_time_ns() - begin) / 1000
            r.mask_us.append(took)
            if first:
                r.first_us.append(took)
            first = False
            if not int(bits[token // 32]) >> (token % 32) & 1 or not take(matcher, token):
                ok = False
                break
        r.judge(test["valid"], ok and at_end(matcher))


def llguidance(cases, args, tokenizer):
    import llguidance as llg
    import numpy as np
    r = Result()
    vocabulary = llg.LLTokenizer(os.path.join(args.tokenizer, "tokenizer.json"))
    words = np.zeros((vocabulary.vocab_size + 31) // 32, dtype=np.uint32)

    def mask(m):
        m.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return words

    for case in cases:
        begin = time.thread_time_ns()
        try:
            grammar = llg.LLMatcher.grammar_from_json_schema(json.dumps(case["schema"]))
            matcher = llg.LLMatcher(vocabulary, grammar, log_level=0)
            failed = matcher.is_error()
        except Exception:
            failed = True
        took = (time.thread_time_ns() - begin) / 1e6
        if failed:
            continue
        r.compiled += 1
        r.compile_ms.append(took)
        follow(r, case, tokenizer, matcher.deep_copy, mask,
               lambda m, t: m.consume_token(t), lambda m: m.is_accepting())
    return r


def xgrammar(cases, args, tokenizer):
    import numpy as np
    import tokenizers
    import xgrammar as xgr
    r = Result()
    vocab = tokenizers.Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json")).get_vocab(with_added_tokens=True)
    size = max(vocab.values()) + 1
    texts = [""] * size
    for text, i in vocab.items():
        texts[i] = text
    info = xgr.TokenizerInfo(texts, xgr.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[vocab.get("<|eot_id|>", size - 1)])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bits = xgr.allocate_token_bitmask(1, size)
    words = bits.numpy().view(np.uint32)[0]

    def mask(m):
        m.fill_next_token_bitmask(bits)
        return words

    for case in cases:
        begin = time.thread_time_ns()
        try:
            compiled = compiler.compile_json_schema(json.dumps(case["schema"]), any_whitespace=True, strict_mode=False)
        except Exception:
            continue
        took = (time.thread_time_ns() - begin) / 1e6
        r.compiled += 1
        r.compile_ms.append(took)
        follow(r, case, tokenizer, lambda: xgr.GrammarMatcher(compiled), mask, lambda m, t: m.accept_token(t),
               lambda m: m.accept_token(info.stop_token_ids[0]))
    return r


def part(values, at):
    return sorted(values)[min(len(values) - 1, int(len(values) * at))] if values else float("nan")


def show(name, r, n):
    mean = statistics.fmean(r.mask_us) if r.mask_us else float("nan")
    print(f"| {name} | {r.compiled}/{n} | {r.valid_ok}/{r.valid} | {r.invalid_ok}/{r.invalid} | {part(r.compile_ms, .5):.2f} | "
          f"{part(r.compile_ms, .99):.1f} | {part(r.first_us, .5):.0f} | {part(r.mask_us, .5):.1f} | {mean:.1f} | {part(r.mask_us, .99):.0f} | "
          f"{part(r.mask_us, .9999):.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("schemas")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--quire", default="build/release/bin/quire-schema")
    args = parser.parse_args()
    import tokenizers
    encoder = tokenizers.Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json"))
    with open(args.schemas, encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines][::args.every]
    print(f"{len(cases)} schemas, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("| | compiled | valid accepted | invalid accepted | compile ms median | p99 | first mask us median | mask us median | mean | p99 | "
          "p99.99 |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for name, run in (("quire", quire), ("llguidance", llguidance), ("xgrammar", xgrammar)):
        try:
            show(name, run(cases, args, lambda text: encoder.encode(text, add_special_tokens=False).ids), len(cases))
        except ImportError as missing:
            print(f"| {name} | not installed: {missing} |")


if __name__ == "__main__":
    main()
