# SPDX-License-Identifier: Apache-2.0
"""The training loop: batches without end from the grammar, Muon and AdamW, a budget in minutes.

Two cores are used as two processes that share the parameters, each with one thread and a batch of
its own, meeting once per step. Two threads inside every operation are slower, and far slower when
other work takes one of the cores: then each operation waits for the thread that got no time.

The learning rate follows the clock and not the step count: the run ends on time on a busy machine,
with the rate at zero. Matrices are trained with Muon (momentum made orthogonal; Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/), which here needs about half the steps of AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from dialogues import CATEGORIES, Case, Grammar
from model import Llama
from samples import IGNORE, Mixture, Relabel, draw, encode
from tokens import render

LEG_MINUTES = 10                        # then a new process: one grows by some 0.3 GB a minute


@dataclass
class Plan:
    """Everything that a run is decided by, besides the clock."""

    seed: int = 1
    minutes: float = 90.0
    batch_tokens: int = 12288           # of one step, all processes together
    n_process: int = 2                  # 1 on a GPU
    warm_until: float = 0.10            # share of the time in which half of the dialogues only copy
    drill_until: float = 0.70           # share of the time in which many are bare tool calls
    matrix_rate: float = 0.02           # Muon's, the singular values of one update
    other_rate: float = 0.003           # AdamW's, for the embedding and the norms
    full_until: float = 0.45            # share of the time at the full rate; then down to zero
    device: str = "cpu"
    compiled: bool = True               # layers through torch.compile: a third faster on a CPU, needs g++


def pad(rows: list[tuple[list[int], list[int]]], device: str) -> tuple[Tensor, Tensor]:
    """Inputs and next-token labels, both [row, token], padded to a multiple of 8."""
    n = max(len(ids) for ids, _ in rows) - 1
    n = (n + 7) // 8 * 8
    x = torch.zeros(len(rows), n, dtype=torch.long)
    y = torch.full((len(rows), n), IGNORE, dtype=torch.long)
    for i, (ids, labels) in enumerate(rows):
        x[i, :len(ids) - 1] = torch.tensor(ids[:-1])
        y[i, :len(ids) - 1] = torch.tensor(labels[1:])
    return x.to(device), y.to(device)


def batches(tok: Tokenizer, grammar: Grammar, plan: Plan, done: Callable[[], float]) -> Iterator[tuple[Tensor, Tensor]]:
    """Dialogues of like length share a batch, so that little is padding; their order is random."""
    relabel = Relabel(tok)
    while True:
        size = plan.batch_tokens // plan.n_process
        mix = Mixture(warm_up=0.5 if done() < plan.warm_until else 0.0, drill=0.5 if done() < plan.drill_until else 0.1)
        rows = draw(tok, grammar, mix, relabel)
        rows.sort(key=lambda r: len(r[0]))
        groups: list[list] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0]) > size:
                groups.append([])
            groups[-1].append(row)
        grammar.rng.shuffle(groups)
        for group in groups:
            yield pad(group, plan.device)


def orthogonal(g: Tensor) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrix, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315   # Jordan's quintic: steep at 0, singular values end in 0.7..1.2
    x = g.bfloat16()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return (x if wide else x.T).float()


class Muon:
    """Momentum SGD whose update is made orthogonal; with a little decay of the weights."""

    def __init__(self, params: list[Tensor], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.params, self.momentum, self.decay = params, momentum, decay
        self.velocity = [torch.zeros_like(p).share_memory_() for p in params]

    @torch.no_grad()
    def step(self, rate: float, first: int, stride: int) -> None:
        """Update every `stride`-th matrix from `first` on."""
        for p, v in list(zip(self.params, self.velocity, strict=True))[first::stride]:
            v.lerp_(p.grad, 1 - self.momentum)
            update = orthogonal(p.grad.lerp(v, self.momentum))
            p.mul_(1 - rate * self.decay)
            p.add_(update, alpha=-rate * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def loss_of(model: Llama, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of the target tokens; only their rows meet the vocabulary."""
    hidden = model(x)
    rows = y != IGNORE
    return F.cross_entropy(model.logits(hidden[rows]).float(), y[rows])


class Trainer:
    """A run that can be stopped and taken up again from its last checkpoint."""

    def __init__(self, model: Llama, tok: Tokenizer, plan: Plan, checkpoint: Path | None) -> None:
        self.model, self.tok, self.plan, self.checkpoint = model.to(plan.device), tok, plan, checkpoint
        if plan.n_process > 1:
            model.share_memory()
        self.params = list(model.parameters())
        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("embed")]
        self.rest = [p for p in self.params if not any(p is m for m in matrices)]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(self.rest, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0)
        # One set of gradients per process, in shared memory; each process has its own in p.grad.
        self.grads = [[torch.zeros_like(p).share_memory_() for p in self.params] for _ in range(plan.n_process)]
        self.losses = torch.zeros(plan.n_process).share_memory_()
        self.counts = torch.zeros(plan.n_process).share_memory_()
        self.step, self.tokens, self.spent = 0, 0, 0.0
        if checkpoint and checkpoint.exists():
            self._load(torch.load(checkpoint, weights_only=True))

    def _load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        for v, saved in zip(self.muon.velocity, state["muon"], strict=True):
            v.copy_(saved)
        self.step, self.tokens, self.spent = state["step"], state["tokens"], state["spent"]

    def _save(self) -> None:
        if self.checkpoint:
            part = self.checkpoint.with_suffix(".part")
            torch.save({"model": self.model.state_dict(), "adam": self.adam.state_dict(), "muon": self.muon.velocity,
                        "step": self.step, "tokens": self.tokens, "spent": self.spent}, part)
            part.replace(self.checkpoint)

    def done(self) -> float:
        """The share of the time that is spent."""
        return min(1.0, self.spent / (self.plan.minutes * 60))

    def rate(self) -> float:
        """The share of the full learning rate now: warm-up, plateau, a square to zero at the deadline.

        The steps are small, so their noise is large: copying becomes exact only below a tenth of the full rate,
        and a third of the time is spent there.
        """
        down = (1 - self.done()) / (1 - self.plan.full_until)
        return min(1.0, (self.step + 1) / 40, down ** 2)

    def run(self) -> None:
        context = torch.multiprocessing.get_context("spawn")    # torch's threads do not survive a fork
        barrier = context.Barrier(self.plan.n_process)
        clock = context.Value("d", self.spent)
        others = [context.Process(target=self._work, args=(i, barrier, clock), daemon=True)
                  for i in range(1, self.plan.n_process)]
        for p in others:
            p.start()
        self._work(0, barrier, clock)   # one leg; the caller begins the next from the checkpoint
        for p in others:
            p.join()
        self._save()

    def _work(self, rank: int, barrier, clock) -> None:  # noqa: ANN001 - multiprocessing's own types
        """One process of the run; one that fails ends the others' waiting."""
        try:
            self._leg(rank, barrier, clock)
        except BaseException:
            barrier.abort()
            raise

    def _leg(self, rank: int, barrier, clock) -> None:  # noqa: ANN001
        """All processes take the same steps; the clock is that of the first."""
        plan, mine, total, n_step = self.plan, self.grads[rank], 0.0, 0
        torch.set_num_threads(1)
        if plan.compiled:
            for layer in self.model.layers:
                layer.compile(dynamic=True)
        for p, g in zip(self.params, mine, strict=True):
            p.grad = g
        source = batches(self.tok, Grammar(plan.seed * 1_000_000 + self.step * 10 + rank), plan, self.done)
        begin = time.monotonic() - self.spent
        leg_end = self.spent + LEG_MINUTES * 60
        while self.done() < 1 and self.spent < leg_end:
            for g in mine:
                g.zero_()
            x, y = next(source)
            with torch.autocast(plan.device, torch.bfloat16):
                loss = loss_of(self.model, x, y)
            loss.backward()
            self.losses[rank], self.counts[rank] = loss.item(), x.numel()
            if rank == 0:
                clock.value = time.monotonic() - begin
            barrier.wait()
            self.spent = clock.value
            self._update(rank)
            self.step, self.tokens = self.step + 1, self.tokens + int(self.counts.sum())
            total, n_step = total + float(self.losses.mean()), n_step + 1
            barrier.wait()
            if self.step % 50 == 0 and rank == 0:
                print(f"step {self.step} loss {total / n_step:.4f} rate {self.rate():.3f} "
                      f"tokens {self.tokens / 1e6:.2f}M minutes {self.spent / 60:.1f}", flush=True)
            if self.step % 50 == 0:
                total, n_step = 0.0, 0
            if self.step % 200 == 0 and rank == 0:
                self._save()
                print("  " + format_scores(forced_scores(self.model, self.tok, 40)), flush=True)

    @torch.no_grad()
    def _update(self, rank: int) -> None:
        """Average the gradients and update this process's share of the parameters."""
        n, rate = self.plan.n_process, self.rate()
        shares = [self.muon.params[rank::n]] + ([self.rest] if rank == 0 else [])
        own = {id(p) for share in shares for p in share}
        for i, p in enumerate(self.params):
            if id(p) in own:
                p.grad = sum(g[i] for g in self.grads) / n
        self.muon.step(self.plan.matrix_rate * rate, rank, n)
        if rank == 0:
            self.adam.param_groups[0]["lr"] = self.plan.other_rate * rate
            self.adam.step()
        for p, g in zip(self.params, self.grads[rank], strict=True):
            p.grad = g


@torch.no_grad()
def forced_scores(model: Llama, tok: Tokenizer, n: int, seed: int = 0) -> dict[str, float]:
    """Share of held-out answers of which every token is the model's first choice.

    That is when greedy decoding gives the reference answer, at the price of one forward pass; the
    score is strict where other words would be right too.
    """
    scores = {}
    for category in CATEGORIES:
        grammar = Grammar(10_000_019 + seed, held_out=True)
        cases: list[Case] = [grammar.case(category) for _ in range(n)]
        rows = encode(tok, [render(c.messages, c.tools) + render([c.answer], []) for c in cases])
        good = 0
        for i in range(0, n, 20):
            part = []
            for (ids, labels), case in zip(rows[i:i + 20], cases[i:i + 20], strict=True):
                last = len(ids) - len(encode(tok, [render([case.answer], [])])[0][0])
                part.append((ids, [IGNORE] * last + labels[last:]))
            x, y = pad(part, next(model.parameters()).device.type)
            with torch.autocast(x.device.type, torch.bfloat16):
                best = model.logits(model(x)).argmax(-1)
            good += int(((best == y) | (y == IGNORE)).all(1).sum())
        scores[category] = good / n
    return scores


def format_scores(scores: dict[str, float]) -> str:
    return "  ".join(f"{k} {v:.0%}" for k, v in scores.items())
