#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the bundled model: dialogues, tokenizer, training, and the Hugging Face folder.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make.py                     # writes quire-tiny/ beside this file

The tokenizer depends only on the seed. The weights depend on the seed and on how many steps fit
into --minutes, so two runs give models of the same quality but not the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import jinja2
import torch
from tokenizers import Tokenizer

from dialogues import CATEGORIES, Grammar
from model import CONFIG, Llama
from scoring import TOOL_CALL, parse_calls, right
from tokens import END_OF_TEXT, IM_END, IM_START, SPECIAL, TEMPLATE, render, train_tokenizer
from training import Plan, Trainer, forced_scores, format_scores

HERE = Path(__file__).parent
# Every step frees and takes again some hundred MB; giving them back to the kernel halves the speed.
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=16000000000"
N_TOKENIZER_DIALOGUES = 30_000


def make_tokenizer(seed: int, checkpoint: Path | None) -> Tokenizer:
    """The tokenizer of the seed; a run that goes on keeps its own, whatever became of the grammar."""
    kept = checkpoint and checkpoint.with_suffix(".tokenizer.json")
    if kept and kept.exists():
        return Tokenizer.from_file(str(kept))
    grammar = Grammar(seed)
    cases = [grammar.dialogue() for _ in range(N_TOKENIZER_DIALOGUES)]
    tok = train_tokenizer(["".join(text for text, _ in render(c.messages, c.tools)) for c in cases])
    if kept:
        tok.save(str(kept))
    return tok


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_folder(folder: Path, tok: Tokenizer, model: Llama) -> None:
    """Everything but README.md, which is written by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", model.config)
    write_json(folder / "generation_config.json", {
        "do_sample": False, "temperature": 0.0, "eos_token_id": [tok.token_to_id(IM_END), tok.token_to_id(END_OF_TEXT)],
        "pad_token_id": tok.token_to_id(END_OF_TEXT), "transformers_version": CONFIG["transformers_version"]})
    special = {"eos_token": IM_END, "pad_token": END_OF_TEXT, "additional_special_tokens": [IM_START, IM_END]}
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json", {
        "added_tokens_decoder": {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                          "single_word": False, "special": True} for i, t in enumerate(SPECIAL)},
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "unk_token": None,
        "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast", **special})
    model.save(folder)


def chat_template() -> jinja2.Template:
    """template.jinja as transformers would run it."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string(TEMPLATE)


def check_template(n: int = 300) -> None:
    """The template and its twin in tokens.py must agree, or the model would meet unseen prompts."""
    template, grammar = chat_template(), Grammar(77)
    for _ in range(n):
        case = grammar.dialogue()
        if template.render(messages=case.messages, tools=case.tools) != "".join(
                text for text, _ in render(case.messages, case.tools)):
            raise SystemExit(f"template.jinja and tokens.render() differ for {case.messages}")


def greedy_scores(folder: Path, n: int, show: bool = False) -> dict[str, float]:
    """Held-out scores of a written folder: its template, its tokenizer, its bf16 weights, greedy."""
    model, tok = Llama.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    template, stop = chat_template(), {tok.token_to_id(IM_END), tok.token_to_id(END_OF_TEXT)}
    scores = {}
    for category in CATEGORIES:
        grammar, good = Grammar(20_000_003, held_out=True), 0
        for _ in range(n):
            case = grammar.case(category)
            prompt = template.render(messages=case.messages, tools=case.tools, add_generation_prompt=True)
            ids = tok.encode(prompt, add_special_tokens=False).ids
            text = tok.decode(model.greedy(ids, stop, 128), skip_special_tokens=False)
            ok = right(case.expect, TOOL_CALL.sub("", text), parse_calls(text))
            good += ok
            if show and not ok:
                print(f"[{category}] {case.messages[-1]['content']!r}\n   wants {case.expect}\n   says {text!r}")
        scores[category] = good / n
    return scores


def start(a: argparse.Namespace) -> tuple[Llama, Tokenizer]:
    """What training begins with: a folder's weights and tokenizer, or the seed's tokenizer and nothing learned."""
    if a.start:
        return Llama.load(a.start).train(), Tokenizer.from_file(str(a.start / "tokenizer.json"))
    tok = make_tokenizer(a.seed, a.checkpoint)
    model = Llama(CONFIG | {"vocab_size": tok.get_vocab_size(), "eos_token_id": tok.token_to_id(IM_END),
                            "pad_token_id": tok.token_to_id(END_OF_TEXT)})
    model.initialize()
    return model, tok


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, default=HERE / "quire-tiny", help="folder to write")
    args.add_argument("--minutes", type=float, default=90.0, help="training time by the clock")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--processes", type=int, default=2, help="of one thread each; on a GPU there is one")
    args.add_argument("--no-compile", action="store_true", help="train without torch.compile (it needs g++)")
    args.add_argument("--checkpoint", type=Path, help="file to save to and to go on from")
    args.add_argument("--start", type=Path, help="folder of a model whose weights and tokenizer to begin with")
    args.add_argument("--rate", type=float, default=1.0, help="share of the plan's learning rates, e.g. 0.5 with --start")
    args.add_argument("--only-write", action="store_true", help="no training: write the folder from --checkpoint")
    args.add_argument("--only-score", action="store_true", help="score the folder --out and stop")
    args.add_argument("--show", action="store_true", help="with --only-score: print what went wrong")
    args.add_argument("--n", type=int, default=100, help="held-out dialogues per category")
    a = args.parse_args()
    if "GLIBC_TUNABLES" not in os.environ:              # read by the allocator before main
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": MALLOC})
    if not a.checkpoint:                                # training goes in legs (training.py)
        a.checkpoint = Path(tempfile.mkdtemp(prefix="quire-tiny-")) / "run.pt"
        sys.argv += ["--checkpoint", str(a.checkpoint)]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    check_template()
    if a.only_score:
        print(format_scores(greedy_scores(a.out, a.n, a.show)))
        return
    random.seed(a.seed)
    torch.manual_seed(a.seed)
    model, tok = start(a)
    cuda = torch.cuda.is_available()
    plan = Plan(seed=a.seed, minutes=a.minutes, device="cuda" if cuda else "cpu", n_process=1 if cuda else a.processes,
                compiled=not a.no_compile)
    plan.matrix_rate, plan.other_rate = plan.matrix_rate * a.rate, plan.other_rate * a.rate
    plan.warm_until = 0 if a.start else plan.warm_until
    trainer = Trainer(model, tok, plan, a.checkpoint)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {tok.get_vocab_size()} tokens", flush=True)
    if not a.only_write:
        trainer.run()
        if trainer.done() < 1:
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ)
    write_folder(a.out, tok, model.cpu())
    print(format_scores(forced_scores(model, tok, a.n)))
    print(format_scores(greedy_scores(a.out, a.n)))


if __name__ == "__main__":
    main()
