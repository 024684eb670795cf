# SPDX-License-Identifier: Apache-2.0
"""One peer, in its own environment: makes its models, or measures one. Started by peers.py.

    python peers_child.py llama|openvino '{"do": "make"|"measure", …}'     the last line printed is the answer, as JSON
"""
import ctypes
import json
import os
import pathlib
import resource
import sys
import time

SEED = 1


# ---- llama.cpp ----

def byte_alphabet():
    """The 256 characters that byte-level BPE writes bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]


def llama_write(config, path):
    """A bf16 GGUF of that shape: random matrices, norms of 1, tokens that are never looked at."""
    import gguf
    import numpy as np
    qwen = config["model_type"] == "qwen2"
    arch = "qwen2" if qwen else "llama"
    hidden, layers, vocab = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    heads, kv_heads, inner = config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]
    head = config.get("head_dim", hidden // heads)
    random = np.random.default_rng(SEED)
    w = gguf.GGUFWriter(str(path), arch)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(config["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_vocab_size(vocab)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    tokens = byte_alphabet() + [f"<{i}>" for i in range(256, vocab)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2" if qwen else "llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.NORMAL] * vocab)
    w.add_token_merges(["a b"])
    w.add_eos_token_id(vocab - 1)
    w.add_bos_token_id(vocab - 2)

    def matrix(name, rows, cols):
        values = random.standard_normal((rows, cols), dtype=np.float32) * np.float32(0.02)
        kind = gguf.GGMLQuantizationType.BF16
        w.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    def vector(name, n, value):
        w.add_tensor(name, np.full(n, value, np.float32))

    matrix("token_embd.weight", vocab, hidden)
    vector("output_norm.weight", hidden, 1)
    for i in range(layers):
        p = f"blk.{i}."
        for name, rows, cols in (("attn_q", heads * head, hidden), ("attn_k", kv_heads * head, hidden),
                                 ("attn_v", kv_heads * head, hidden), ("attn_output", hidden, heads * head),
                                 ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)):
            matrix(f"{p}{name}.weight", rows, cols)
        if qwen:
            for name, n in (("attn_q", heads * head), ("attn_k", kv_heads * head), ("attn_v", kv_heads * head)):
                vector(f"{p}{name}.bias", n, 0)
        vector(p + "attn_norm.weight", hidden, 1)
        vector(p + "ffn_norm.weight", hidden, 1)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_make(job):
    import llama_cpp as L
    folder = pathlib.Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "BF16"
    if not source.exists():
        llama_write(job["config"], folder / "part")
        os.replace(folder / "part", source)
    kinds = {"Q8_0": L.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": L.LLAMA_FTYPE_MOSTLY_Q4_0, "Q4_K_M": L.LLAMA_FTYPE_MOSTLY_Q4_K_M}
    for variant in job["variants"]:
        if variant not in kinds:
            continue
        params = L.llama_model_quantize_default_params()
        params.ftype, params.nthread = kinds[variant], job["threads"]
        part = folder / "part"
        if L.llama_model_quantize(str(source).encode(), str(part).encode(), ctypes.byref(params)):
            raise SystemExit(f"llama.cpp does not quantize to {variant}")
        os.replace(part, folder / variant)
    return {}


class Llama:
    def __init__(self, job):
        import llama_cpp as L
        import numpy as np
        L.llama_backend_init()
        self.L, self.random = L, np.random.default_rng(SEED)
        jobs = job["jobs"]
        self.cells = max(j["batch"] * (j["n_in"] + j["n_out"]) for j in jobs) + 64
        model = L.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(job["model"].encode(), model)
        if not self.model:
            raise SystemExit("llama.cpp does not load " + job["model"])
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        c = L.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch = self.cells, 2048, 512
        c.n_seq_max = max(j["batch"] for j in jobs)
        c.n_threads = c.n_threads_batch = job["threads"]
        if hasattr(c, "kv_unified"):
            c.kv_unified = True  # the cells are shared; by default each sequence gets n_ctx / n_seq_max
        self.context = L.llama_init_from_model(self.model, c)
        self.batch = L.llama_batch_init(2048, 0, 1)

    def decode(self, items):
        """items: (token, position, sequence, wants logits)"""
        b = self.batch
        b.n_tokens = len(items)
        for i, (token, position, sequence, logits) in enumerate(items):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, position, 1, sequence, logits
        if self.L.llama_decode(self.context, b):
            raise SystemExit("llama_decode failed")

    def prompt(self, n, sequence):
        ids = self.random.integers(0, self.vocab, n)
        for at in range(0, n, 2048):
            part = ids[at:at + 2048]
            self.decode([(int(t), at + i, sequence, at + i == n - 1) for i, t in enumerate(part)])

    def forget(self):
        self.L.llama_memory_clear(self.L.llama_get_memory(self.context), True)

    def speed(self, job):
        self.forget()
        if job["kind"] == "prefill":
            start = time.perf_counter()
            self.prompt(job["n_in"], 0)
            self.L.llama_synchronize(self.context)
            return job["n_in"] / (time.perf_counter() - start)
        for s in range(job["batch"]):
            self.prompt(job["n_in"], s)
        start, n = None, job["n_out"] - 1
        for step in range(n + 1):
            if step == 1:  # the first step of a size makes buffers
                start = time.perf_counter()
            ids = self.random.integers(0, self.vocab, job["batch"])
            self.decode([(int(t), job["n_in"] + step, s, True) for s, t in enumerate(ids)])
            self.L.llama_synchronize(self.context)
        return job["batch"] * n / (time.perf_counter() - start)


# ---- OpenVINO GenAI ----

def openvino_source(config, folder):
    """A Hugging Face folder with random weights and a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    torch.manual_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokens = byte_alphabet() + [f"<{i}>" for i in range(256, config["vocab_size"])]
    t = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=t, eos_token=tokens[-1], bos_token=tokens[-2]).save_pretrained(folder)


def openvino_make(job):
    import subprocess
    folder = pathlib.Path(job["folder"])
    source = folder / "source"
    if not (source / "tokenizer.json").exists():
        openvino_source(job["config"], source)
    options = {"fp16": [], "int8": ["--sym"], "int4": ["--sym", "--group-size", "128", "--ratio", "1.0"]}
    for variant in job["variants"]:
        subprocess.run([pathlib.Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "-m", source, "--task",
                        "text-generation-with-past", "--weight-format", variant, *options[variant], folder / ("part-" + variant)],
                       check=True, stdout=subprocess.DEVNULL)
        os.replace(folder / ("part-" + variant), folder / variant)
    return {}


class OpenVino:
    def __init__(self, job):
        import numpy as np
        import openvino
        import openvino_genai as og
        self.ov, self.og, self.random, self.n = openvino, og, np.random.default_rng(SEED), 0
        self.vocab = json.loads((pathlib.Path(job["model"]) / "config.json").read_text())["vocab_size"]
        s = og.SchedulerConfig()
        s.cache_size = 3  # GB
        s.max_num_batched_tokens, s.max_num_seqs = 2048, 64
        s.enable_prefix_caching, s.dynamic_split_fuse = False, True
        properties = {"INFERENCE_NUM_THREADS": job["threads"]}
        if pathlib.Path(job["model"]).name == "fp16":
            properties["INFERENCE_PRECISION_HINT"] = "bf16"
        self.pipe = og.ContinuousBatchingPipeline(job["model"], s, "CPU", properties)

    def add(self, n_in, n_out):
        import numpy as np
        g = self.og.GenerationConfig()
        g.max_new_tokens = g.min_new_tokens = n_out
        g.ignore_eos, g.do_sample = True, False
        ids = self.random.integers(0, self.vocab, (1, n_in)).astype(np.int64)
        self.n += 1
        return self.pipe.add_request(self.n, self.ov.Tensor(ids), g)

    def speed(self, job):
        handles = [self.add(job["n_in"], job["n_out"] + (job["kind"] == "decode")) for _ in range(job["batch"])]
        steps = []
        while self.pipe.has_non_finished_requests():
            start = time.perf_counter()
            self.pipe.step()
            steps.append(time.perf_counter() - start)
        del handles
        if job["kind"] == "prefill":
            return job["n_in"] / sum(steps)
        alone = steps[-(job["n_out"] - 1):]  # every sequence decodes in these
        return job["batch"] * len(alone) / sum(alone)


# ---- both ----

def measure(engine, job):
    jobs = job["jobs"]
    peer = {"llama": Llama, "openvino": OpenVino}[engine](job)
    peer.speed({"kind": "decode", "n_in": 16, "n_out": 4, "batch": 1})  # touches the weights
    speeds = {j["name"]: peer.speed(j) for j in jobs}
    return {"speeds": speeds, "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main():
    engine, job = sys.argv[1], json.loads(sys.argv[2])
    if job["do"] == "make":
        answer = {"llama": llama_make, "openvino": openvino_make}[engine](job)
    else:
        answer = measure(engine, job)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # some peers hang in their destructors


if __name__ == "__main__":
    main()
