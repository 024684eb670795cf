# SPDX-License-Identifier: Apache-2.0
"""The goldens of tests/data/terra, and what its tests share."""
import json
import math
import struct

from servers import BIN, ROOT

DATA = ROOT / "tests/data/terra"
GOLDEN = json.loads((DATA / "golden.json").read_text())
FOLDERS = GOLDEN["models"]
CASES = {case["name"]: case for case in GOLDEN["cases"]}
ERRORS = GOLDEN["errors"]
TOLERANCE = GOLDEN["tolerance"]["f32_logits_abs"]
PLACEHOLDER = GOLDEN["placeholder"]
CONFIG = json.loads((DATA / "model/config.json").read_text())
PATCHES, ACTIONS, DIM = CONFIG["num_image_patches"], CONFIG["num_action_tokens"], CONFIG["action_dim"]
VOCABULARY = CONFIG["vocab_size"]

PLUGINS = BIN.parent / "plugins"
PLUGIN = PLUGINS / "terra.so"
ROLLOUT = PLUGINS / "terra-rollout"
ROLLOUT_PY = ROOT / "deploy/plugins/terra/rollout.py"
OPTIONS = ("--plugin", PLUGIN, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "512")


def frames_of(case):
    """(prompt, actions, golden frame) of each request of a case."""
    prompt = list(case["prompt_token_ids"])
    for frame in case["frames"]:
        assert frame["prompt_len"] == len(prompt) and prompt.count(PLACEHOLDER) == frame["n_actions"]
        yield list(prompt), case["actions"][:frame["n_actions"]], frame
        prompt += frame["tokens"] + [PLACEHOLDER] * ACTIONS


REQUESTS = [(name, *parts) for name, case in CASES.items() for parts in frames_of(case)]


def body_of(prompt, actions, max_tokens, **more):
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    return body if actions is None else {**body, "multi_modal_data": {"actions": actions}}


def logprobs_of(logits):
    most = max(logits)
    total = most + math.log(sum(math.exp(x - most) for x in logits))
    return [x - total for x in logits]


# ---- files of numpy, for the rollout programs ----

def shape_of(values):
    return (len(values), *shape_of(values[0])) if isinstance(values, list) else ()


def flat(values):
    return [x for value in values for x in flat(value)] if isinstance(values, list) else [values]


def write_npy(path, values, kind="f"):
    """Nested lists as <f4 or <i4."""
    header = f"{{'descr': '<{kind}4', 'fortran_order': False, 'shape': {shape_of(values)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    numbers = flat(values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(numbers)}{kind}", *numbers))
    return path


def read_npy(path):
    """(shape, numbers) of an array of <i4."""
    data = path.read_bytes()
    size, = struct.unpack_from("<H", data, 8)
    header = eval(data[10:10 + size])  # written by the program under test
    assert data[:8] == b"\x93NUMPY\x01\x00" and (10 + size) % 64 == 0 and header["descr"] == "<i4" and not header["fortran_order"]
    n = math.prod(header["shape"])
    assert len(data) == 10 + size + 4 * n
    return header["shape"], list(struct.unpack_from(f"<{n}i", data, 10 + size))


def arrays_of(case):
    """(frames of the context, the last filled with -1; actions by frame; tokens of the new frames)"""
    ids = [token for token in case["prompt_token_ids"] if token != PLACEHOLDER]
    start = ids[len(ids) - len(ids) % PATCHES:]
    ids += [-1] * (-len(ids) % PATCHES)
    context = [ids[i:i + PATCHES] for i in range(0, len(ids), PATCHES)]
    actions = [case["actions"][i:i + ACTIONS] for i in range(0, len(case["actions"]), ACTIONS)]
    return context, actions, start + [token for frame in case["frames"] for token in frame["tokens"]]


def prefill_of(case):
    """Prompt tokens that are computed: (of the first request, of each later one), when full blocks of 16 stay in the cache."""
    computed, held = [], 0
    for prompt, _, frame in frames_of(case):
        computed.append(len(prompt) - held)
        held = (len(prompt) + len(frame["tokens"]) - 1) // 16 * 16  # the last token's row is not computed
    return computed[0], computed[1:]
