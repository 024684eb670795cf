# SPDX-License-Identifier: Apache-2.0
"""Texts per second of a BERT-base shape with random weights: `/v1/embeddings` of quire beside sentence-transformers and ONNX Runtime.

    python3 tests/bench/embeddings.py [--texts 256] [--rounds 5] [--threads 2] [--engines quire,quire-int8,st,ort,ort-int8] [--layers 12]
                                      [--work build/embeddings] [--python PYTHON] [--json FILE]

All get the same texts of 4 to 250 words, a token each, and give normalized means; tokenizers are part of it. sentence-transformers
sorts by length and pads within batches of 32; ONNX Runtime gets the same batches, of the model that its optimizer makes for BERT (what
it fuses is printed when the model is made), and of that one quantized to int8. quire gets requests of 32 texts, four at once, over
HTTP. The engines alternate, each in a fresh process that loads, encodes all texts once and then measures a second time. The peers are
installed from PyPI into a virtual environment in --work on first use; --python names one that has them. Prints a table in Markdown:
medians of the rounds, their spread, the ratio to the best peer of the same precision within each round, and the smallest cosine of a
vector with sentence-transformers'."""
import argparse
import base64
import http.client
import json
import os
import pathlib
import platform
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
PACKAGES = ["torch", "sentence-transformers", "onnxruntime", "onnx"]
VOCAB, HIDDEN, BATCH, AT_ONCE, SEED = 30522, 768, 32, 4, 11
READY_S, ANSWER_S = 300, 1800
ENGINES = {"quire": "float32", "quire-int8": "int8", "st": "float32", "ort": "float32", "ort-int8": "int8"}
OPTIONS = {"float32": ("--dtype", "float32"), "int8": ("--quantization", "int8")}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def texts_of(n):
    """Words that are tokens; lengths as of sentences, paragraphs and a few long ones."""
    r = random.Random(SEED)
    return [" ".join(f"w{r.randrange(VOCAB - len(SPECIAL))}" for _ in range(int(4 * (250 / 4) ** r.random()))) for _ in range(n)]


# ---- in the virtual environment ----

def make_model(folder, layers):
    import torch
    from transformers import BertConfig, BertModel
    folder.mkdir(parents=True)
    torch.manual_seed(SEED)
    model = BertModel(BertConfig(vocab_size=VOCAB, num_hidden_layers=layers), add_pooling_layer=False)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + [f"w{i}" for i in range(VOCAB - len(SPECIAL))]) + "\n")
    from transformers import BertTokenizerFast
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}))
    (folder / "2_Normalize").mkdir()
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512, "do_lower_case": False}))


def make_onnx(folder):
    """Of a model with its padding masked by addition, which is in the graph whatever the example's mask is."""
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import BertModel

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            mask = (1 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
            return self.model(input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids).last_hidden_state

    names, axes = ["input_ids", "attention_mask", "token_type_ids"], {0: "batch", 1: "tokens"}
    torch.onnx.export(Masked(), (torch.ones(2, 16, dtype=torch.int64),) * 3, folder / "plain.onnx", input_names=names,
                      output_names=["last_hidden_state"], dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], axes), dynamo=False)
    made = optimizer.optimize_model(str(folder / "plain.onnx"), model_type="bert", num_heads=12, hidden_size=HIDDEN)
    print(f"ONNX Runtime fused {made.get_fused_operator_statistics()}", file=sys.stderr)
    made.save_model_to_file(str(folder / "ort.onnx"))
    # The fused operators are not of ONNX's own domain: its shape inference finds no type behind them.
    quantize_dynamic(folder / "ort.onnx", folder / "ort-int8.onnx", weight_type=QuantType.QInt8,
                     extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


def sorted_batches(texts):
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    return [order[i:i + BATCH] for i in range(0, len(order), BATCH)]


def run_st(folder, texts, threads):
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda: model.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)


def run_ort(folder, texts, threads, name):
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()

    def encode():
        out = np.empty((len(texts), HIDDEN), np.float32)
        for at in sorted_batches(texts):
            coded = tokenizer.encode_batch([texts[i] for i in at])
            mask = np.array([c.attention_mask for c in coded], np.int64)
            ids = np.array([c.ids for c in coded], np.int64)
            [x, *_] = session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
            mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            out[at] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return out
    return encode


def child(what, folder, n, threads, layers):
    import numpy as np
    if what == "make":
        if not folder.exists():
            make_model(folder, layers)
        make_onnx(folder)
        return
    texts = texts_of(n)
    encode = run_st(folder, texts, threads) if what == "st" else run_ort(folder, texts, threads, what)
    encode()
    start = time.perf_counter()
    out = encode()
    took = time.perf_counter() - start
    np.save(folder / f"{what}.npy", out)
    print(json.dumps({"seconds": took}))


# ---- ours ----

class Server:
    """quire serve of the folder, until the end of a with block."""

    def __init__(self, folder, threads, precision):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log, self.folder = folder / "quire.log", str(folder)
        self.command = [BIN / "quire", "serve", folder, "--port", str(self.port), "--threads", str(threads),
                        "--max-num-batched-tokens", "4096", *OPTIONS[precision]]

    def __enter__(self):
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.call("GET", "/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"embeddings.py: quire serve is not ready; see {self.log}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def encode(self, texts):
        """Requests of BATCH texts, AT_ONCE open at a time; base64 vectors in the order of the texts."""
        starts, vectors, failed, lock = list(range(0, len(texts), BATCH)), {}, [], threading.Lock()

        def work():
            while True:
                with lock:
                    if not starts or failed:
                        return
                    at = starts.pop(0)
                status, body = self.call("POST", "/v1/embeddings", {"model": self.folder, "input": texts[at:at + BATCH],
                                                                    "encoding_format": "base64"})
                if status != 200:
                    failed.append(body)
                    return
                vectors[at] = [d["embedding"] for d in json.loads(body)["data"]]

        workers = [threading.Thread(target=work) for _ in range(AT_ONCE)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        if failed:
            raise SystemExit(f"embeddings.py: {failed[0]}")
        return [v for at in sorted(vectors) for v in vectors[at]]


def run_quire(folder, texts, threads, precision):
    """Seconds, vectors."""
    with Server(folder, threads, precision) as server:
        server.encode(texts)
        start = time.perf_counter()
        vectors = server.encode(texts)
        took = time.perf_counter() - start
    return took, [struct.unpack(f"<{HIDDEN}f", base64.b64decode(v)) for v in vectors]


def smallest_cosine(vectors, path, python):
    """Of ours with a peer's, which numpy saved."""
    code = "import json, sys, numpy as np; print((np.array(json.load(sys.stdin)) * np.load(sys.argv[1])).sum(1).min())"
    done = subprocess.run([python, "-c", code, path], input=json.dumps(vectors), text=True, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


# ---- the run ----

def environment(args):
    """The Python that has the peers."""
    if args.python:
        return args.python
    python = args.work / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", args.work / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return str(python)


def measure(args, python, folder, texts):
    """Seconds of each engine by round, and cosines of ours."""
    env = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}

    def peer(what):
        done = subprocess.run([python, __file__, "--child", what, folder, str(args.texts), str(args.threads), str(args.layers)], env=env,
                              stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["seconds"] if what != "make" else None

    files = ["config.json", *(f"{name}.onnx" for name in args.engines if name.startswith("ort"))]
    if not all((folder / name).exists() for name in files):
        peer("make")
    seconds, cosines, vectors = {name: [] for name in args.engines}, {}, {}
    for i in range(args.rounds):
        for name in args.engines if i % 2 == 0 else reversed(args.engines):
            if name.startswith("quire"):
                took, vectors[name] = run_quire(folder, texts, args.threads, ENGINES[name])
            else:
                took = peer(name)
            seconds[name].append(took)
            print(f"round {i + 1}: {name} {took:.2f} s", file=sys.stderr, flush=True)
    if "st" in seconds:
        cosines = {name: smallest_cosine(v, folder / "st.npy", python) for name, v in vectors.items()}
    return seconds, cosines


def ratios(seconds, name):
    """Of the best peer's time of the same precision to ours, round by round."""
    peers = [n for n in seconds if not n.startswith("quire") and ENGINES[n] == ENGINES[name]]
    return [min(seconds[p][i] for p in peers) / s for i, s in enumerate(seconds[name])] if peers and name.startswith("quire") else []


def show(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})" if values else ""


def report(args, seconds, cosines, n_token):
    print(f"{args.texts} texts, {n_token} tokens, {args.layers} layers, {args.threads} threads, {args.rounds} rounds\n")
    print("| engine | precision | texts/s | tokens/s | ÷ the best peer | cosine |\n|---|---|---|---|---|---|")
    for name, s in seconds.items():
        speeds = [[n / x for x in s] for n in (args.texts, n_token)]
        cosine = f"{cosines[name]:.6f}" if name in cosines else ""
        print(f"| {name} | {ENGINES[name]} | {show(speeds[0])} | {show(speeds[1], 0)} | {show(ratios(seconds, name), 2)} | {cosine} |")
    if args.json:
        result = dict(texts=args.texts, tokens=n_token, layers=args.layers, threads=args.threads, machine=platform.processor(),
                      load=os.getloadavg(), seconds=seconds, cosines=cosines, ratios={n: ratios(seconds, n) for n in seconds})
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        what, folder, n, threads, layers = sys.argv[2:]
        return child(what, pathlib.Path(folder), int(n), int(threads), int(layers))
    p = argparse.ArgumentParser()
    p.add_argument("--texts", type=int, default=256)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--work", type=pathlib.Path, default=ROOT / "build/embeddings")
    p.add_argument("--engines", type=lambda names: names.split(","), default=list(ENGINES))
    p.add_argument("--python")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    if unknown := [name for name in args.engines if name not in ENGINES]:
        p.error(f"--engines: {unknown[0]} is none of {', '.join(ENGINES)}")
    args.work.mkdir(parents=True, exist_ok=True)
    texts = texts_of(args.texts)
    folder = (args.work / f"bert-{args.layers}").resolve()
    seconds, cosines = measure(args, environment(args), folder, texts)
    report(args, seconds, cosines, sum(len(t.split()) + 2 for t in texts))
    return None


if __name__ == "__main__":
    main()
