#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goldens of models that take images: tiny folders with drawn weights, and what transformers computes with them in float32.

    python3 tests/data/vision/make.py [--draw build/dev/tests/draw_weights] [NAME …]      # writes tests/data/vision/NAME

A golden has for some images, which test and script make by one formula, the ids of a prompt with the image as transformers' processor
writes them, the rows that stand for the image, 16 greedy tokens, and the normalized last state of the prompt without an answer's begin. Needs torch, torchvision, transformers 5.24, safetensors, pillow 12.2 (later ones resize columns first where that is cheaper)."""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
N_GREEDY, GAP, SEEDS, IMAGE = 16, 2e-3, 200, 300
TEXT = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
CLIP = dict(model_type="clip_vision_model", hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, image_size=28,
            patch_size=7, projection_dim=16)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=3,
              image_size=30, patch_size=7)
TILES = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8)
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
HALVES = [0.5, 0.5, 0.5]
FOLDERS = {
    # the last layer but one, without the class's row; the shortest edge, then the middle
    "llava": dict(
        config=dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", image_token_index=300, projector_hidden_act="gelu",
                    vision_feature_layer=-2, vision_feature_select_strategy="default", text_config=dict(TEXT, model_type="llama"),
                    vision_config=CLIP),
        processor=dict(image_processor_type="CLIPImageProcessor", do_resize=True, size={"shortest_edge": 28}, resample=3,
                       do_center_crop=True, crop_size={"height": 28, "width": 28}, do_rescale=True, rescale_factor=1 / 255,
                       do_normalize=True, image_mean=CLIP_MEAN, image_std=CLIP_STD, do_convert_rgb=True),
        images=[(28, 28), (61, 40), (33, 97)]),
    # all layers and rows of a tower without a class, patches that leave a margin; any ratio becomes the square
    "llava-siglip": dict(
        config=dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", image_token_index=300,
                    projector_hidden_act="gelu_pytorch_tanh", multimodal_projector_bias=False, vision_feature_layer=-1,
                    vision_feature_select_strategy="full", text_config=dict(TEXT, model_type="llama"), vision_config=SIGLIP),
        processor=dict(image_processor_type="SiglipImageProcessor", do_resize=True, size={"height": 30, "width": 30}, resample=2,
                       do_rescale=True, rescale_factor=1 / 255, do_normalize=True, image_mean=HALVES, image_std=[0.4, 0.5, 0.6]),
        images=[(30, 30), (64, 20)]),
    # tiles, four patches a row; a wide, a high and a square image
    "smolvlm": dict(
        config=dict(architectures=["SmolVLMForConditionalGeneration"], model_type="smolvlm", image_token_id=300, scale_factor=2,
                    text_config=dict(TEXT, model_type="llama"), vision_config=dict(TILES, model_type="smolvlm_vision")),
        processor=dict(image_processor_type="SmolVLMImageProcessor", do_resize=True, size={"longest_edge": 96},
                       max_image_size={"longest_edge": 32}, resample=1, do_image_splitting=True, do_rescale=True,
                       rescale_factor=1 / 255, do_normalize=True, image_mean=HALVES, image_std=HALVES, do_convert_rgb=True, do_pad=True),
        images=[(96, 64), (50, 120), (40, 40), (90, 20)]),
    # one square, whatever the image
    "idefics3": dict(
        config=dict(architectures=["Idefics3ForConditionalGeneration"], model_type="idefics3", image_token_id=300, scale_factor=4,
                    text_config=dict(TEXT, model_type="llama"), vision_config=dict(TILES, model_type="idefics3_vision")),
        processor=dict(image_processor_type="Idefics3ImageProcessor", do_resize=True, size={"longest_edge": 64},
                       max_image_size={"longest_edge": 32}, resample=1, do_image_splitting=False, do_rescale=True,
                       rescale_factor=1 / 255, do_normalize=True, image_mean=HALVES, image_std=HALVES, do_convert_rgb=True, do_pad=True),
        images=[(32, 32), (70, 45)]),
    # the nearest grid of tiles, scales of the layers' outputs, a norm of four patches
    "internvl": dict(
        config=dict(architectures=["InternVLForConditionalGeneration"], model_type="internvl", image_token_id=300, image_seq_length=4,
                    downsample_ratio=0.5, projector_hidden_act="gelu", vision_feature_layer=-1, vision_feature_select_strategy="default",
                    text_config=dict(TEXT, model_type="qwen2"),
                    vision_config=dict(TILES, model_type="internvl_vision", image_size=[32, 32], patch_size=[8, 8], attention_bias=True,
                                       layer_scale_init_value=0.1, hidden_act="gelu", use_mean_pooling=True)),
        processor=dict(image_processor_type="GotOcr2ImageProcessor", do_resize=True, size={"height": 32, "width": 32}, resample=3,
                       crop_to_patches=False, min_patches=1, max_patches=6, do_rescale=True, rescale_factor=1 / 255, do_normalize=True,
                       image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], do_convert_rgb=True),
        images=[(32, 32), (96, 64), (30, 100), (64, 64)]),
}
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
            "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def redraw():
    spec = importlib.util.spec_from_file_location("redraw", HERE.parent / "redraw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture(width, height):
    """The formula of test_vision.c and test_vision.py."""
    x, y = numpy.meshgrid(numpy.arange(width), numpy.arange(height))
    channels = [(5 * x + 3 * y) % 256, (x * x + 7 * y) % 251, (x * y // 3 + 11 * (x // 8 + y // 8) % 2 * 90) % 256]
    return numpy.stack(channels, -1).astype(numpy.uint8)


def write_tokenizer(folder, kind):
    """Byte-level, without merges: a token a byte, 256 of them from id 3 on."""
    tiles = kind in ("idefics3", "smolvlm")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {c: 3 + i for i, c in enumerate(alphabet)}
    t = Tokenizer(models.BPE(vocab, []))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    names = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>"] if tiles else []
    names += [f"<row_{i}_col_{j}>" for i in (1, 2, 3) for j in (1, 2, 3)] if tiles else []
    names += ["<img>", "</img>"] if kind == "internvl" else []
    t.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in ("<pad>", "<s>", "</s>")])
    fill = [f"<unused_{i}>" for i in range(300 - 259 - len(names))]
    t.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names + fill + ["<image>"]])
    assert t.token_to_id("<image>") == 300
    t.save(str(folder / "tokenizer.json"))
    more = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": TEMPLATE, "model_max_length": 512, "image_token": "<image>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(more, indent=1) + "\n")


class InternVL:
    """transformers' processor of InternVL, without its videos."""

    def __init__(self, images, tokenizer, n_row):
        self.images, self.tokenizer, self.n_row = images, tokenizer, n_row

    def __call__(self, text, images, return_tensors):
        made = self.images(images=images, crop_to_patches=True, return_tensors=return_tensors)
        made.pop("num_patches", None)
        text = text.replace("<image>", "<img>" + "<image>" * self.n_row * len(made["pixel_values"]) + "</img>")
        return dict(made) | dict(self.tokenizer(text, return_tensors=return_tensors))


def processor_of(folder, spec):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    settings = dict(spec["processor"])
    name = settings.pop("image_processor_type").replace("SmolVLM", "Idefics3")  # the same without videos
    cls = getattr(transformers, name + "Pil", None) or getattr(transformers, name)
    images = cls(**settings)
    config = spec["config"]
    vision = config["vision_config"]
    if config["model_type"] == "llava":
        return transformers.LlavaProcessor(images, tokenizer, patch_size=vision["patch_size"], image_token="<image>",
                                           vision_feature_select_strategy=config["vision_feature_select_strategy"],
                                           num_additional_image_tokens=int("clip" in vision["model_type"]))
    if config["model_type"] == "internvl":
        return InternVL(images, tokenizer, config["image_seq_length"])
    seq = (vision["image_size"] // vision["patch_size"] // config["scale_factor"]) ** 2
    return transformers.Idefics3Processor(images, tokenizer, image_seq_len=seq)


def features(model, inputs):
    """Rows of images, in their order."""
    more = {k: inputs[k] for k in ("pixel_attention_mask",) if k in inputs}
    out = model.model.get_image_features(pixel_values=inputs["pixel_values"], **more)
    out = getattr(out, "pooler_output", out)
    if isinstance(out, (list, tuple)):
        out = torch.cat(list(out))
    return out.reshape(-1, out.shape[-1])


def greedy(model, inputs, n):
    """Tokens, and the smallest difference of the best two logits."""
    ids, gap = inputs["input_ids"], 1e9
    more = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask")}
    tokens = []
    for _ in range(n):
        logits = model(input_ids=ids, use_cache=False, **more).logits[0, -1].double()
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        if tokens[-1] == IMAGE:  # which would want an image
            return tokens, 0
        ids = torch.cat([ids, best.indices[:1].reshape(1, 1)], 1)
    return tokens, gap


def answer(model, processor, size):
    image = Image.fromarray(picture(*size))
    text = "<user>What is <image>here?\n<assistant>"
    inputs = processor(text=text, images=[image], return_tensors="pt")
    inputs.pop("rows", None), inputs.pop("cols", None)
    whole = inputs["input_ids"][0].tolist()
    with torch.no_grad():
        rows = features(model, inputs)
        tokens, gap = greedy(model, inputs, N_GREEDY)
        inputs = processor(text=text.removesuffix("<assistant>"), images=[image], return_tensors="pt")
        inputs.pop("rows", None), inputs.pop("cols", None)
        vector = torch.nn.functional.normalize(model.model(**inputs).last_hidden_state[0, -1], dim=0)
    vector = [round(float(x), 6) for x in vector]
    return {"width": size[0], "height": size[1], "text": text, "ids": whole, "greedy": tokens, "vector": vector}, rows, gap


def published(line):
    """The names of files that older versions of transformers wrote."""
    return re.sub(r" vision_tower\.", " vision_tower.vision_model.", line)


def make(name, draw_program):
    spec, folder, tools = FOLDERS[name], HERE / name, redraw()
    folder.mkdir(exist_ok=True)
    config = dict(spec["config"], torch_dtype="float32", bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(spec["processor"], indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}) + "\n")
    write_tokenizer(folder, config["model_type"])
    cls = getattr(transformers, config["architectures"][0])
    if not (folder / "weights.txt").exists():
        torch.manual_seed(1)
        model = cls(cls.config_class(**{k: v for k, v in config.items() if k != "architectures"})).eval()
        with torch.no_grad():
            for n, p in model.named_parameters():
                norm = (("norm" in n or "layrnorm" in n) and n.endswith("weight")) or "lambda" in n
                p.copy_(torch.randn(p.shape) * (0.1 if norm or n.endswith("bias") else 0.35) + (1.0 if norm else 0.0))
        model.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        lines = [published(x) for x in tools.describe(folder)] if name == "llava" else tools.describe(folder)
        for path in folder.glob("model*.safetensors*"):
            path.unlink()
    else:
        lines = [x for x in (folder / "weights.txt").read_text().splitlines() if not x.startswith(("#", "seed "))]
    for seed in range(1, SEEDS):
        tools.draw(folder, lines, seed, draw_program)
        with tempfile.TemporaryDirectory() as there:
            there = pathlib.Path(there)
            for path in folder.iterdir():
                (there / path.name).symlink_to(path.resolve())
            model, info = cls.from_pretrained(there, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"], info
        model.eval()
        processor = processor_of(folder, spec)
        answers = [answer(model, processor, size) for size in spec["images"]]
        if min(gap for _, _, gap in answers) > GAP:
            break
    else:
        sys.exit(f"{name}: no seed")
    (folder / "golden.json").write_text(json.dumps({"transformers": transformers.__version__, "answers": [a for a, _, _ in answers]}) + "\n")
    save_file({f"rows.{i}": rows.float().contiguous() for i, (_, rows, _) in enumerate(answers)}, folder / "golden.safetensors")
    print(name, "seed", seed, [(a["width"], a["height"], len(a["ids"]), a["greedy"][:4]) for a, _, _ in answers])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--draw", default="build/dev/tests/draw_weights")
    p.add_argument("names", nargs="*", default=list(FOLDERS))
    a = p.parse_args()
    for name in a.names:
        make(name, a.draw)


if __name__ == "__main__":
    main()
