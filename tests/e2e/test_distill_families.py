# SPDX-License-Identifier: Apache-2.0
"""quire distill with every family of the goldens. The losses are those of the logits that transformers has for the family and a Llama in
f64 for the other model; what is written has the student's own tensors, goes on with the same bits, and is served as it was trained."""
import json

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from distill_runs import GOLDENS, Run
from servers import MODELS

T, P, TT, TP = "tensor_parallel_size", "pipeline_parallel_size", "teacher_tensor_parallel_size", "teacher_pipeline_parallel_size"

STUDENTS = ["bloom", "cohere", "cohere2", "exaone4", "falcon", "gemma", "gemma2", "gemma3", "glm4", "gpt2", "gpt2-noprefix", "gpt_neox",
            "gpt_neox-seq", "gptj", "granite", "llama", "llama-bf16-sharded", "llama-bias-tied", "llama-bin", "llama-rope-linear",
            "llama-rope-llama3", "llama-rope-yarn", "mistral", "olmo", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2-sliding-bf16", "qwen3",
            "qwen3-v5cfg-f16", "smollm3", "stablelm", "stablelm-parallel", "starcoder2"]
MINIMUM = ["llama", "llama-bias-tied", "qwen2", "qwen2-sliding-bf16", "qwen3", "mistral", "gemma", "gemma2", "gemma3"]
TEACHERS = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "deepseek_v2", "deepseek_v2-group", "deepseek_v3", "gpt_oss",
            "gpt_oss-mxfp4", "gpt2", "opt", "opt-post", "bloom", "gpt_neox", "falcon", "olmo", "olmo2", "cohere", "llama-gptq", "llama-gptq-act8",
            "qwen2-awq", "lfm2", "lfm2-bias", "qwen3_next"]
VOCAB = 512


def prompts_of(model):
    return [prompt["ids"] for prompt in json.loads((MODELS / model / "golden.json").read_text())["prompts"]]


def write_prompts(path, model):
    """A sequence a prompt whose last token alone counts: the row before it is that of the golden's `logits_last`."""
    lines = [{"input_ids": ids + [7 * i + 3], "labels": [-100] * len(ids) + [7 * i + 3]} for i, ids in enumerate(prompts_of(model))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def log_softmax(z):
    return z - z.max(-1, keepdims=True) - numpy.log(numpy.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))


def logprobs_of(model, i):
    return log_softmax(load_file(MODELS / model / "golden.safetensors")[f"p{i}.logits_last"].astype(numpy.float64))


def llama(ids):
    """The golden Llama's distribution behind these tokens, in f64."""
    c, w = json.loads((MODELS / "llama/config.json").read_text()), load_file(MODELS / "llama/model.safetensors")
    w = {name.removeprefix("model."): x.astype(numpy.float64) for name, x in w.items()}
    heads, groups, n = c["num_attention_heads"], c["num_key_value_heads"], len(ids)
    x, dim = w["embed_tokens.weight"][ids], c["hidden_size"] // c["num_attention_heads"]
    angles = numpy.outer(numpy.arange(n), c["rope_theta"] ** (-numpy.arange(0, dim, 2) / dim))

    def norm(x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

    def rotate(x):
        a, b = numpy.split(x, 2, -1)
        cos, sin = numpy.cos(angles), numpy.sin(angles)
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}."
        h = norm(x, at + "input_layernorm.weight")
        q, k, v = ((h @ w[f"{at}self_attn.{of}_proj.weight"].T).reshape(n, -1, dim).swapaxes(0, 1) for of in "qkv")
        k, v = (numpy.repeat(part, heads // groups, 0) for part in (rotate(k), v))
        scores = rotate(q) @ k.swapaxes(1, 2) / numpy.sqrt(dim) + numpy.where(numpy.tri(n), 0, -numpy.inf)
        x = x + (numpy.exp(log_softmax(scores)) @ v).swapaxes(0, 1).reshape(n, -1) @ w[at + "self_attn.o_proj.weight"].T
        h = norm(x, at + "post_attention_layernorm.weight")
        gate = h @ w[at + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + numpy.exp(-gate)) * (h @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
    return log_softmax(norm(x[-1], "norm.weight") @ w["lm_head.weight"].T)


def reference(family, is_teacher):
    """Mean forward KL, over the ids that both models have, and cross-entropy of the last rows of the family's prompts; a Llama is the
    other model."""
    kd, ce = [], []
    for i, ids in enumerate(prompts_of(family)):
        p, q = llama(ids), logprobs_of(family, i)
        if is_teacher:
            p, q = q, p
        ce.append(-q[7 * i + 3])
        p, q = (log_softmax(of[:min(len(p), len(q))]) for of in (p, q))
        kd.append((numpy.exp(p) * (p - q)).sum())
    return numpy.mean(kd), numpy.mean(ce)


def test_the_llama_of_the_references():
    for i, ids in enumerate(prompts_of("llama")):
        assert numpy.abs(llama(ids) - logprobs_of("llama", i)).max() < 1e-4


def run_of(tmp_path, student, teacher="llama", name="out", prompts="llama"):
    run = Run(tmp_path, name=name)
    data = write_prompts(tmp_path / f"{prompts}.jsonl", prompts)
    n = len(prompts_of(prompts))
    run.options |= {"teacher": MODELS / teacher, "student": MODELS / student, "data": data, "teacher-dtype": "float32", "steps": 2,
                    "save-steps": "1,2", "save-gradients": None, "warmup-steps": 0, "lr": 1e-3, "kd-weight": 1, "ce-weight": 0.5,
                    "save-dtype": "float32", "global-batch-size": n, "micro-batch-size": 1, "allow-different-tokenizers": True}
    return run


def read_floats(path):
    """f32 arrays of a file of any floats; numpy has no bfloat16."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__" or t["dtype"] == "U8":  # a mask that GPT-2's folders may have
            continue
        at, end = (8 + n + offset for offset in t["data_offsets"])
        if t["dtype"] == "BF16":
            x = (numpy.frombuffer(data[at:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            x = numpy.frombuffer(data[at:end], {"F16": "<f2", "F32": "<f4"}[t["dtype"]]).astype("<f4")
        tensors[name] = x.reshape(t["shape"])
    return tensors


def tensors_of(folder):
    return {name: x for path in sorted(folder.glob("*.safetensors")) if path.name != "golden.safetensors"
            for name, x in read_floats(path).items()}


def stored(model):
    """Name -> shape of a golden's tensors, as a checkpoint of its family with a head names them."""
    prefix = "transformer." if model == "gpt2-noprefix" else ""
    return {prefix + name: x.shape for name, x in tensors_of(MODELS / model).items() if not name.endswith("masked_bias")}


@pytest.mark.parametrize("family", STUDENTS)
def test_a_family_learns(tmp_path, family):
    run = run_of(tmp_path, family, prompts=family)
    run.go()
    steps, (kd, ce) = run.lines(), reference(family, False)
    assert abs(steps[0]["kd_loss"] - kd) < 2e-4 * abs(kd) + 1e-6 and abs(steps[0]["ce_loss"] - ce) < 2e-4 * ce
    first, second = tensors_of(run.output / "step-1"), tensors_of(run.output / "step-2")
    if family != "llama-bin":  # whose tensors are pickled
        assert {name: x.shape for name, x in second.items()} == stored(family)
    assert all((first[name] != second[name]).any() for name in second)

    again = run_of(tmp_path, run.output / "step-1", "llama", "again", family)  # written f32 masters are all that there was
    again.go(steps=1, save_steps=None)
    assert [again.lines()[0][name] for name in ("kd_loss", "ce_loss")] == [steps[1][name] for name in ("kd_loss", "ce_loss")]

    itself = run_of(tmp_path, run.output / "step-2", run.output / "step-2", "itself", family)  # the teacher is the model as it is served
    itself.go(steps=1, save_steps=None, ce_weight=0)
    assert abs(itself.lines()[0]["kd_loss"]) < 1e-7


def update_of(run, start):
    """What the steps have changed of the weights, as one vector."""
    end = tensors_of(run.output / "step-2")
    assert sorted(end) == sorted(start)
    return numpy.concatenate([(end[name].astype(numpy.float64) - start[name].astype(numpy.float64)).ravel() for name in sorted(end)])


STAGES = [{P: 2}, {P: 3, TP: 2}, {"recompute": True, P: 2}]
TENSOR = [{T: 2}, {T: 2, P: 2, "recompute": True}]


def cosine(a, b):
    return a @ b / numpy.linalg.norm(a) / numpy.linalg.norm(b)


def check_stages(run, plain, start):
    """The same bits, but for a table that is the head too: on two ranks their gradients are summed apart first."""
    if "lm_head.weight" in start or "embed_out.weight" in start:
        assert run.weight_bytes(2) == plain.weight_bytes(2)
    assert cosine(update_of(run, start), update_of(plain, start)) > 0.99


def deeper(model, folder, n_layer=3):
    """The golden with more layers, which are copies of its last one."""
    config, weights = json.loads((MODELS / model / "config.json").read_text()), tensors_of(MODELS / model)
    last = config["num_hidden_layers"] - 1
    for name in [name for name in weights if f".layers.{last}." in name]:
        for i in range(last + 1, n_layer):
            weights[name.replace(f".layers.{last}.", f".layers.{i}.")] = weights[name]
    if "layer_types" in config:
        config["layer_types"] += [config["layer_types"][-1]] * (n_layer - last - 1)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": n_layer}))
    save_file({name: numpy.ascontiguousarray(x) for name, x in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", MINIMUM)
def test_divisions_of_the_minimum(tmp_path, family, dtype):
    """Stages and recomputation give the same bits, tensor ranks what is as near as sums in another order are."""
    student = deeper(family, tmp_path / "student")
    start = tensors_of(student)
    plain = run_of(tmp_path, student, "qwen3_moe", "plain")
    plain.go(dtype=dtype)
    update = update_of(plain, start)
    assert numpy.isfinite(update).all() and numpy.linalg.norm(update) > 0
    again = run_of(tmp_path, student, "qwen3_moe", "recomputed")
    again.go(dtype=dtype, recompute=True)
    assert again.weight_bytes(2) == plain.weight_bytes(2)
    for i, changes in enumerate(STAGES):
        run = run_of(tmp_path, student, "qwen3_moe", f"stages{i}")
        run.go(dtype=dtype, **changes)
        check_stages(run, plain, start)
    for i, changes in enumerate(TENSOR):
        run = run_of(tmp_path, student, "qwen3_moe", f"tensor{i}")
        run.go(dtype=dtype, **changes)
        bound = 2e-5 if dtype == "float32" else 2e-2
        assert abs(run.lines()[0]["loss"] - plain.lines()[0]["loss"]) < bound * plain.lines()[0]["loss"], changes
        assert cosine(update, update_of(run, start)) > (0.99 if dtype == "float32" else 0.8), changes


OTHERS = ["bloom", "cohere", "falcon", "gpt2", "gpt_neox", "olmo", "opt", "phi3", "stablelm-parallel"]


@pytest.mark.parametrize("family", OTHERS)
def test_divisions_of_other_layouts(tmp_path, family):
    """Tensors that hold q, k and v of each head, stored transposed, or one a head, are written whole by all ranks together."""
    start = tensors_of(MODELS / family)
    plain, stages = run_of(tmp_path, family, name="plain"), run_of(tmp_path, family, name="stages")
    plain.go()
    stages.go(**{P: 2}, recompute=True)
    check_stages(stages, plain, start)
    divided = run_of(tmp_path, family, name="divided")
    divided.go(**{T: 2, P: 2, TT: 2})
    assert abs(divided.lines()[0]["loss"] - plain.lines()[0]["loss"]) < 2e-5 * plain.lines()[0]["loss"]
    assert cosine(update_of(plain, start), update_of(divided, start)) > 0.98  # Adam's first steps are signs, also of what is 0 but for rounding


def write_falcon(folder, n_kv, seed=3):
    """A new decoder of Falcon: two norms, q of a group behind one another, then its k, its v."""
    hidden, heads, dim = 64, 8, 8
    config = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "vocab_size": VOCAB, "hidden_size": hidden,
              "num_hidden_layers": 2, "num_attention_heads": heads, "num_kv_heads": n_kv, "new_decoder_architecture": True,
              "multi_query": False, "parallel_attn": True, "bias": False, "alibi": False, "layer_norm_epsilon": 1e-5,
              "ffn_hidden_size": 256, "rope_theta": 10000.0, "max_position_embeddings": 256, "torch_dtype": "float32", "bos_token_id": 1,
              "eos_token_id": 2, "tie_word_embeddings": True}
    rng = numpy.random.default_rng(seed)
    shapes = {"transformer.word_embeddings.weight": (VOCAB, hidden), "transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    for i in range(2):
        at = f"transformer.h.{i}"
        shapes |= {f"{at}.ln_{of}.{part}": (hidden,) for of in ("attn", "mlp") for part in ("weight", "bias")}
        shapes |= {f"{at}.self_attention.query_key_value.weight": ((heads + 2 * n_kv) * dim, hidden),
                   f"{at}.self_attention.dense.weight": (hidden, hidden), f"{at}.mlp.dense_h_to_4h.weight": (256, hidden),
                   f"{at}.mlp.dense_4h_to_h.weight": (hidden, 256)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: (rng.standard_normal(shape) * 0.1 + ("ln_" in name and name.endswith("weight"))).astype(numpy.float32)
               for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("n_kv, ranks", [(2, 2), (2, 4), (4, 2)])
def test_falcon_with_several_heads_of_k_and_v(tmp_path, n_kv, ranks):
    """Groups of q heads between those of K and V; with more ranks than heads of K and V a rank has a part of a group."""
    student = write_falcon(tmp_path / "falcon", n_kv)
    start = tensors_of(student)
    plain, divided = run_of(tmp_path, student, name="plain"), run_of(tmp_path, student, name="divided")
    plain.go()
    divided.go(**{T: ranks})
    assert abs(divided.lines()[0]["loss"] - plain.lines()[0]["loss"]) < 2e-5 * plain.lines()[0]["loss"]
    assert cosine(update_of(plain, start), update_of(divided, start)) > 0.98
    itself = run_of(tmp_path, divided.output / "step-2", divided.output / "step-2", "itself")
    itself.go(steps=1, save_steps=None, ce_weight=0)
    assert abs(itself.lines()[0]["kd_loss"]) < 1e-7


# ---- teachers ----

@pytest.mark.parametrize("family", TEACHERS)
def test_a_teacher_of_any_family(tmp_path, family):
    """Its logits are those of transformers, and the same bits over any number of ranks, heads or not."""
    losses = []
    for changes in ({}, {TT: 2}, {TT: 3, TP: 2}):
        run = run_of(tmp_path, "llama", family, f"out{len(losses)}", family)
        run.go(steps=1, save_steps=None, **changes)
        losses.append(run.lines()[0]["kd_loss"])
    assert losses[0] > 0 and len(set(losses)) == 1, losses
    if family not in ("llama-gptq", "llama-gptq-act8", "qwen2-awq"):  # whose inputs are quantized too
        assert abs(losses[0] - reference(family, True)[0]) < 2e-4 * losses[0]


@pytest.mark.parametrize("changes", [{"teacher_quantization": "int8"}, {"teacher_quantization": "int4"}, {"teacher_dtype": "float16"},
                                     {"teacher_dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "gpt_oss-mxfp4"])
def test_a_divided_teacher_in_any_form(tmp_path, family, changes):
    losses = []
    for ranks in (1, 2):
        run = run_of(tmp_path, "mistral", family, f"ranks{ranks}")
        run.go(steps=1, save_steps=None, **changes, **{TT: ranks})
        losses.append(run.lines()[0]["kd_loss"])
    assert losses[0] > 0 and losses[0] == losses[1]


def test_the_goldens_of_a_pair_with_five_heads(tmp_path):
    """Three tensor ranks of a teacher whose heads no number of ranks but 5 divides."""
    run = Run(tmp_path, "tied_fkl_T2_ce05_ragged")
    assert json.loads((GOLDENS / "pairC/teacher/config.json").read_text())["num_attention_heads"] % 3
    losses = []
    for ranks in (1, 3):
        run = Run(tmp_path, name=f"ranks{ranks}")
        run.go(steps=2, save_steps=None, save_gradients=None, warmup_steps=0, teacher=GOLDENS / "pairC/teacher",
               allow_different_tokenizers=True, **{TT: ranks})
        losses.append([line["loss"] for line in run.lines()])
    assert losses[0] == losses[1]
