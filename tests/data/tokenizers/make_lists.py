# SPDX-License-Identifier: Apache-2.0
"""Writes tekken/, word_list/ and merge_list/: small tokenizers in the files of Mistral (tekken.json), BERT (vocab.txt) and
GPT-2 (vocab.json and merges.txt), with what transformers 5.23.0 and mistral-common 1.13.1 make of them.  Usage: python make_lists.py

The words are those of the other small tokenizers; the texts are theirs too.
"""
import base64
import json
import os
import random
import re

import make_files
from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
from transformers import AutoTokenizer

HERE = make_files.HERE
PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
           r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "<pad>"]
N_SPECIAL = 20  # the last twelve have no name


def folder(name):
    path = os.path.join(HERE, name)
    os.makedirs(path, exist_ok=True)
    return path


def save(name, file, value):
    with open(os.path.join(folder(name), file), "w", encoding="utf-8", newline="") as f:
        f.write(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def golden(name, cases):
    save(name, "golden.json", '{"cases":[\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


def texts(seed):
    r = random.Random(seed)
    return make_files.samples(r, make_files.corpus(r)[1])


def ask(name, more):
    t = AutoTokenizer.from_pretrained(folder(name))
    cases = []
    for text in texts(name) + more:
        ids = t(text, add_special_tokens=False).input_ids
        cases.append({"text": text, "ids": ids, "ids_special": t(text).input_ids,
                      "decoded": t.decode(ids, clean_up_tokenization_spaces=False)})
    golden(name, cases)


def model(name):
    return json.load(open(os.path.join(HERE, name, "tokenizer.json"), encoding="utf-8"))["model"]


def word_list():
    vocab = model("wordpiece_cased")["vocab"]
    save("word_list", "vocab.txt", "".join(w + "\n" for w in sorted(vocab, key=vocab.get)))
    save("word_list", "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": True,
                                                "mask_token": "<hole>", "model_max_length": 512})
    ask("word_list", ["a [CLS] b [SEP]<hole>", "[MASK]", "Ünï Café"])


def merge_list():
    m = model("qwen2")
    merges = [x if isinstance(x, str) else " ".join(x) for x in m["merges"]]
    added = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<tool_call>": False}
    save("merge_list", "vocab.json", m["vocab"])
    save("merge_list", "merges.txt", "#version: 0.2\n" + "".join(x + "\n" for x in merges))
    save("merge_list", "tokenizer_config.json",
         {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
          "added_tokens_decoder": {str(len(m["vocab"]) + i): {"content": t, "special": s, "normalized": False, "lstrip": False, "rstrip": False,
                                                              "single_word": False} for i, (t, s) in enumerate(added.items())}})
    ask("merge_list", ["<|im_start|>user\na<|im_end|>", "x<tool_call> <|endoftext|>"])


def tekken():
    tokens = [base64.b64decode(line.split()[0]) for line in open(os.path.join(HERE, "tiktoken/tiktoken.model"), "rb")]
    tokens.insert(300, b"[INST]")  # written like a special token, and another one
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]
    n = len(vocab) - 40  # the file holds more than is used
    config = {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": n + N_SPECIAL, "default_num_special_tokens": N_SPECIAL, "version": "v11"}
    special = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(SPECIAL)]
    save("tekken", "tekken.json", {"config": config, "vocab": vocab, "special_tokens": special, "type": "Tekken", "version": 1})
    t = Tekkenizer.from_file(os.path.join(folder("tekken"), "tekken.json"))
    known = re.compile("(" + "|".join(re.escape(s) for s in [*SPECIAL, *(f"<SPECIAL_{i}>" for i in range(len(SPECIAL), N_SPECIAL))]) + ")")
    cases = []
    for text in texts("tekken") + ["<s>[INST]hi[/INST]", "[ARGS]<SPECIAL_9>  <SPECIAL_20>"]:
        ids = []  # special tokens in a text are the text's pieces between, and they themselves
        for part in known.split(text):
            ids += [t.get_control_token(part)] if known.fullmatch(part) else t.encode(part, bos=False, eos=False)
        cases.append({"text": text, "ids": ids, "ids_special": [t.bos_id, *ids], "decoded": t.decode(ids, SpecialTokenPolicy.KEEP)})
    alike = N_SPECIAL + 300  # not the special token
    cases.append({"ids": [alike, 3], "decoded": t.decode([alike, 3], SpecialTokenPolicy.KEEP)})
    golden("tekken", cases)


if __name__ == "__main__":
    word_list()
    merge_list()
    tekken()
