# SPDX-License-Identifier: Apache-2.0
"""Transformers' side of terra.py: makes the model and the inputs, and measures generate(). Run by terra.py in a virtual
environment of its own; a line of JSON on standard input is a command, a line on standard output its answer.

    {"do": "make", "folder": …}                            config.json, model.safetensors, context.npy, actions.npy
    {"do": "load", "folder": …, "dtype": "bfloat16"}
    {"do": "generate", "context": FILE, "actions": FILE, "frames": N, "tokens": N}   → {"times": [s, …], "tokens": [[…], …]}

generate() makes all frames in one call: the model's forward puts the actions of each complete frame behind it (tests/data/terra,
terra.py). times are seconds from the call to each token.
"""
import json
import os
import pathlib
import sys
import time

import numpy
import torch
from safetensors.torch import load_file, save_file
from transformers import StoppingCriteria, StoppingCriteriaList

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data/terra"))
from terra import hf_classes  # noqa: E402


class Clock(StoppingCriteria):
    """Ends nothing; notes when each token is there, also in a batch, for which generate() has no streamer."""

    def __init__(self):
        self.start = time.perf_counter()
        self.times = []

    def __call__(self, input_ids, scores, **kwargs):
        self.times.append(time.perf_counter() - self.start)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def make(command):
    """Random weights of the seed, in bfloat16. The embeddings are made larger, so that tokens differ."""
    folder, shape = pathlib.Path(command["folder"]), command["shape"]
    torch.manual_seed(command["seed"])
    config_class, model_class = hf_classes()
    model = model_class(config_class(**shape, bos_token_id=None, eos_token_id=None)).to(torch.bfloat16)
    with torch.no_grad():
        for weight in (model.model.embed_tokens.weight, model.pos_embedding_spatio_temporal.spatio_embeddings.weight):
            weight.mul_(25)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in model.state_dict().items()}, folder / "model.safetensors")
    draw = numpy.random.default_rng(command["seed"])
    n = command["rollouts"], command["frames"]
    numpy.save(folder / "context.npy", draw.integers(0, shape["vocab_size"], (*n, shape["num_image_patches"]), dtype=numpy.int32))
    numpy.save(folder / "actions.npy",
               draw.standard_normal((*n, shape["num_action_tokens"], shape["action_dim"]), dtype=numpy.float32))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaActionForCausalLM"], "model_type": "llama_action", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "tie_word_embeddings": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": None,
        **shape}, indent=1))
    return {"parameters": sum(weight.numel() for weight in model.parameters())}


def load(command):
    folder = pathlib.Path(command["folder"])
    config_class, model_class = hf_classes()
    model = model_class(config_class.from_pretrained(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    load.model = model.to(getattr(torch, command["dtype"])).eval()
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}


def generate(command):
    ids, actions = numpy.load(command["context"]), numpy.load(command["actions"])
    ids = ids.reshape(ids.shape[0], -1)
    given = int((ids[0] != -1).sum())
    actions = torch.from_numpy(actions).reshape(actions.shape[0], -1, actions.shape[-1])
    clock = Clock()
    out = load.model.generate(
        torch.from_numpy(ids[:, :given]).long(), actions=actions, max_new_tokens=command["tokens"], do_sample=False,
        eos_token_id=None, bos_token_id=None, pad_token_id=None, use_cache=True, stopping_criteria=StoppingCriteriaList([clock]))
    return {"times": clock.times, "tokens": out[:, given:].tolist()}


def main():
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count())))
    for line in sys.stdin:
        command = json.loads(line)
        with torch.no_grad():
            answer = {"make": make, "load": load, "generate": generate}[command["do"]](command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
