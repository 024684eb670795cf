# SPDX-License-Identifier: Apache-2.0
"""Makes llama_cpp.json: greedy tokens and their log-probabilities of llama.cpp for the GGUF files that tests/e2e/gguf_files.py makes of the
goldens. Run from here: python llama_cpp.py (needs tests/requirements.txt and xllamacpp, here 2026.10.11549)."""
import json
import pathlib
import sys
import tempfile

import xllamacpp

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
import gguf_files as files  # noqa: E402
import test_gguf  # noqa: E402

N_TOKEN = 8
NAMES = [*test_gguf.SAME, *test_gguf.WINDOWS, *test_gguf.NEAR]
# It takes longrope's factors by the length of its cache, exaone4's windows and cohere's norms by the number of layers, and loads no
# olmoe of this size.
OTHERWISE = ("phi3-longrope", "exaone4", "cohere", "olmoe")


def completion(path):
    p = xllamacpp.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_predict, p.n_parallel, p.cpuparams.n_threads = 256, N_TOKEN, 1, 1
    body = {"prompt": test_gguf.PROMPT, "n_predict": N_TOKEN, "temperature": 0, "n_probs": 5, "ignore_eos": True, "cache_prompt": False}
    out = xllamacpp.Server(p).handle_completions(body)
    out = out if isinstance(out, dict) else json.loads(out)
    return out["choices"][0]["logprobs"]["content"]


def main():
    out = {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in NAMES:
            if name in OTHERWISE:
                continue
            path = pathlib.Path(tmp) / f"{name}.gguf"
            files.make_gguf(test_gguf.MODELS / name, path, "F32", test_gguf.add_plain_tokens)
            tokens = completion(path)
            out[name] = {"token_ids": [t["id"] for t in tokens], "logprobs": [round(t["logprob"], 5) for t in tokens]}
    (HERE / "llama_cpp.json").write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")


if __name__ == "__main__":
    main()
