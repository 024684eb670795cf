#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantized model folders in the layouts found on the hub, and what they mean: NAME/ as the checkpoint has it, and NAME/plain.json, of
the same model with every tensor as numpy's float32 (not of SIZES' cases): its config, shapes and the SHA-256 of each tensor's bytes. A
test that needs the floats makes the model of them itself (tests/unit/plain_twin.h). Regenerate (numpy only, seeded):

    python3 tests/data/quantized/make.py [--plain]      with --plain also NAME/plain/, the model, to look at a difference

Layouts and their sources are pictured in engine/model/load/weight_quant.h. tests/unit/test_weights_quant.c compares."""
import hashlib
import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
VOCAB, LAYERS = 96, 1


class Sizes:
    def __init__(self, hidden=64, inter=96, heads=4, kv=2, experts=6, used=2):
        self.hidden, self.inter, self.heads, self.kv, self.experts, self.used = hidden, inter, heads, kv, experts, used
        self.head = hidden // heads

    def projections(self, has_experts):
        h, kv = self.hidden, self.kv * self.head
        proj = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, h)}
        mlps = [f"mlp.experts.{e}" for e in range(self.experts)] if has_experts else ["mlp"]
        for mlp in mlps:
            proj.update({f"{mlp}.gate_proj": (self.inter, h), f"{mlp}.up_proj": (self.inter, h), f"{mlp}.down_proj": (h, self.inter)})
        return proj


LEFT = ("self_attn.o_proj", "self_attn.k_proj", "mlp.down_proj")  # floats in fp8-some
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
NAMES = {np.dtype("float32"): "F32", np.dtype("float16"): "F16", np.dtype("int32"): "I32", np.dtype("int8"): "I8",
         np.dtype("int64"): "I64", np.dtype("uint16"): "BF16", np.dtype("uint8"): "F8_E4M3"}  # these two as their bits
U8 = np.dtype([("bits", "u1")])  # bytes that are bytes
E8M0 = np.dtype([("power", "u1")])
NAMES.update({U8: "U8", E8M0: "F8_E8M0"})


def save(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name])
        header[name] = {"dtype": NAMES[a.dtype], "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def pack(x, bits, axis):
    """Unsigned integers along `axis` into int32, lowest bits first."""
    x = np.moveaxis(x.astype(np.uint32), axis, -1)
    out = np.zeros((*x.shape[:-1], x.shape[-1] * bits // 32), np.uint32)
    for i in range(x.shape[-1]):  # a number of 3 bits may begin in one int32 and end in the next
        at, shift = divmod(bits * i, 32)
        out[..., at] |= x[..., i] << np.uint32(shift)
        if shift + bits > 32:
            out[..., at + 1] |= x[..., i] >> np.uint32(32 - shift)
    return np.ascontiguousarray(np.moveaxis(out, -1, axis)).view(np.int32)


def pack_older(x, bits, axis):
    """As many whole integers as an int32 has room for."""
    x, n = np.moveaxis(x, axis, -1), 32 // bits
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % n)])
    return np.ascontiguousarray(np.moveaxis(pack(np.pad(x.reshape(*x.shape[:-1], -1, n), [(0, 0)] * x.ndim + [(0, 32 - n)]), bits, -1)[..., 0],
                                            -1, axis))


def bf16(x):
    """To the nearest bf16, as float32."""
    u = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    u = (u + 0x7FFF + (u >> 16 & 1)) >> 16 << 16
    return u.astype(np.uint32).view(np.float32)


def fit(w, groups, bits, symmetric, rounded):
    """w [out, in], groups [in] -> q [out, in], scale and zero [out, n_group]; `rounded`: the scales' type."""
    n = groups.max() + 1
    most = 2 ** bits - 1
    scale, zero = np.zeros((len(w), n), np.float32), np.zeros((len(w), n), np.int64)
    for g in range(n):
        part = w[:, groups == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scale[:, g] = rounded(np.abs(part).max(1) / (2 ** (bits - 1) - 0.5))
            zero[:, g] = 2 ** (bits - 1)
        else:
            scale[:, g] = rounded((high - low) / most)
            zero[:, g] = np.clip(np.round(-low / scale[:, g]), 0, most)
    q = np.clip(np.round(w / scale[:, groups]) + zero[:, groups], 0, most).astype(np.int64)
    return q, scale, zero


def half(x):
    return x.astype(np.float16).astype(np.float32)


def gptq(w, rng, bits=4, group=32, symmetric=True, act_order=False, less_one=1, orders=None):
    """orders: one for all matrices of that many inputs, kept here from call to call, as those have that see the same inputs."""
    groups = np.arange(w.shape[1]) // (group if group > 0 else w.shape[1])
    if act_order:
        groups = rng.permutation(groups) if orders is None else orders.setdefault(len(groups), rng.permutation(groups))
    q, scale, zero = fit(w, groups, bits, symmetric, half)
    if less_one:
        zero = np.maximum(zero, 1)  # what is stored is one less
    stored = pack((zero - less_one).T, bits, 1)
    return {"qweight": pack(q.T, bits, 0), "qzeros": stored, "scales": scale.T.astype(np.float16),
            "g_idx": groups.astype(np.int32)}, scale[:, groups] * (q - zero[:, groups]).astype(np.float32)


def awq(w, rng, group=32):
    groups = np.arange(w.shape[1]) // group
    q, scale, zero = fit(w, groups, 4, False, half)
    order = lambda x: x.reshape(len(x), -1, 8)[:, :, AWQ_ORDER].reshape(x.shape)
    return {"qweight": pack(order(q.T), 4, 1), "qzeros": pack(order(zero.T), 4, 1), "scales": scale.T.astype(np.float16)}, \
        scale[:, groups] * (q - zero[:, groups]).astype(np.float32)


def awq_rows(w, rng, group=32):
    """AutoAWQ's gemv: outputs are rows; its kernels read more groups than there are where these are small."""
    groups = np.arange(w.shape[1]) // group
    q, scale, zero = fit(w, groups, 4, False, half)
    n, more = -(-zero.shape[1] // 8), max(1, 128 // group)
    width = 8 * more * -(-n // more)
    wide = lambda x: np.pad(x, ((0, 0), (0, width - x.shape[1])))
    return {"qweight": pack(q, 4, 1), "qzeros": pack(wide(zero), 4, 1), "scales": wide(scale).astype(np.float16)}, \
        scale[:, groups] * (q - zero[:, groups]).astype(np.float32)


def packed(w, rng, bits=4, group=32, symmetric=True, pack=pack):
    groups = np.arange(w.shape[1]) // (group if group > 0 else w.shape[1])
    q, scale, zero = fit(w, groups, bits, symmetric, bf16)
    parts = {"weight_packed": pack(q, bits, 1), "weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16),
             "weight_shape": np.array(w.shape, np.int64)}
    if not symmetric:
        parts["weight_zero_point"] = pack(zero, bits, 0)
    return parts, scale[:, groups] * (q - zero[:, groups]).astype(np.float32)


def int8(w, rng):
    scale = bf16(np.abs(w).max(1) / 127.5)
    q = np.clip(np.round(w / scale[:, None]), -128, 127).astype(np.int8)
    return {"weight": q, "weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16)[:, None]}, \
        scale[:, None] * q.astype(np.float32)


def e4m3_values():
    """Of the 127 bytes from 0 on that are numbers and not negative."""
    b = np.arange(127)
    return np.where(b < 8, b * 2.0 ** -9, (1 + b % 8 / 8) * 2.0 ** (b // 8 - 7)).astype(np.float32)


def to_e4m3(x):
    values = e4m3_values()
    i = np.clip(np.searchsorted(values, np.abs(x)), 1, 126)
    i -= np.abs(x) - values[i - 1] < values[i] - np.abs(x)
    return (i | np.where(x < 0, 128, 0)).astype(np.uint8)


def fp8(w, rng, blocks=None, name="weight_scale"):
    """blocks: outputs and inputs that share a scale; None: one scale for all, without a dimension."""
    rows, cols = blocks or w.shape
    many = [-(-w.shape[0] // rows), -(-w.shape[1] // cols)]
    scale = np.zeros(many, np.float32)
    for i in range(many[0]):
        for j in range(many[1]):
            scale[i, j] = bf16(np.abs(w[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols]).max() / 440)
    each = np.repeat(np.repeat(scale, rows, 0), cols, 1)[:w.shape[0], :w.shape[1]]
    q = to_e4m3(w / each)
    parts = {"weight": q, name: scale if blocks else scale.reshape(())}
    if blocks is None:
        parts["input_scale"] = np.array(0.02, np.float32)
    return parts, each * np.where(q < 128, 1, -1).astype(np.float32) * e4m3_values()[q & 127]


def fp8_powers(w, rng, stored=E8M0, blocks=(32, 48)):
    """Scales of blocks that are powers of two, as bytes."""
    rows, cols = blocks
    power = np.array([[np.ceil(np.log2(np.abs(w[i:i + rows, j:j + cols]).max() / 440)) for j in range(0, w.shape[1], cols)]
                      for i in range(0, w.shape[0], rows)]).astype(np.int64)
    each = np.repeat(np.repeat(np.ldexp(np.float32(1), power), rows, 0), cols, 1)[:w.shape[0], :w.shape[1]]
    q = to_e4m3(w / each)
    return {"weight": q, "weight_scale_inv": (power + 127).astype(np.uint8).view(stored)}, \
        each * np.where(q < 128, 1, -1).astype(np.float32) * e4m3_values()[q & 127]


def fp8_channel(w, rng):
    parts, dequantized = fp8(w, rng, (1, w.shape[1]))
    parts["weight_scale"] = (parts["weight_scale"].view(np.uint32) >> 16).astype(np.uint16)
    return parts, dequantized


def auto_round(w, rng, **options):
    parts, dequantized = gptq(w, rng, symmetric=False, **options)
    del parts["g_idx"]
    return parts, dequantized


def int8_tensor(w, rng):
    """One scale for all outputs."""
    scale = bf16(np.abs(w).max() / 127.5)
    q = np.clip(np.round(w / scale), -128, 127).astype(np.int8)
    return {"weight": q, "weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16).reshape(1),
            "input_scale": np.array([0.02], np.float32)}, scale * q.astype(np.float32)


def packed_mixed(w, rng, kind="packed", **options):
    return {"packed": packed, "int8": int8, "int8_tensor": int8_tensor}[kind](w, rng, **options)


def int4_in_int8(w, rng, bits=4, group=32, symmetric=True):
    """Integers of few bits in int8, with zero points of that type: W4A8 of compressed-tensors."""
    parts, plain = torchao_intx(w, rng, bits, group if group > 0 else w.shape[1], symmetric)
    parts = {name.replace("_weight_qdata", "weight").replace("_weight", "weight"): x for name, x in parts.items()}
    if symmetric:
        del parts["weight_zero_point"]
    return parts, plain


def hqq(w, rng, bits=4, group=64):
    """As transformers saves it: rows of a group each, of which those in one byte are far apart; zero points are floats."""
    rows = w.reshape(-1, group)
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    scale = half((high - low) / (2 ** bits - 1))
    zero = half(-low / scale)
    q = np.clip(np.round(rows / scale + zero), 0, 2 ** bits - 1).astype(np.uint32)
    n, width = (10, 3) if bits == 3 else (8 // bits, bits)
    m = -(-len(q) // n)
    q10 = np.pad(q, ((0, m * n - len(q)), (0, 0)))
    words = sum(q10[i * m:(i + 1) * m] << np.uint32(width * (n - 1 - i)) for i in range(n))
    number = lambda x, kind: np.array(x, kind)
    flag = lambda x: np.array([x], np.uint8).view(U8).reshape(())
    text = lambda x: np.frombuffer(x.encode(), np.uint8).view(U8)
    middle = np.float32(2 ** (bits - 1))
    least = scale * (middle - zero)
    plain = (scale.astype(np.float64) * (q - np.float64(middle)) + least).astype(np.float32).reshape(w.shape)
    return {"W_q": words.view(np.int32) if bits == 3 else words.astype(np.uint8).view(U8), "scale": scale.astype(np.float16),
            "zero": zero.astype(np.float16), "nbits": number(bits, np.int32), "group_size": number(group, np.int32),
            "axis": number(1, np.int32), "shape": np.array(w.shape, np.int64), "channel_wise": flag(1), "optimize": flag(1),
            "round_zero": flag(0), "quant_scale": flag(0), "quant_zero": flag(0), "view_as_float": flag(0), "offload_meta": flag(0),
            "packing": text("3bit_32" if bits == 3 else f"{bits}bit_u8"), "encoded_state_dict": flag(1), "stores_quant_config": flag(1),
            "unpack_view_dtype": text("torch.int32" if bits == 3 else "torch.uint8")}, plain


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def torchao(w, rng, kind="int8"):
    """As its tensors of classes are flattened into safetensors (torchao 0.18)."""
    if kind == "fp8":
        parts, plain = fp8(w, rng, (1, w.shape[1]))
        return {"_weight_qdata": parts["weight"], "_weight_scale": parts["weight_scale"]}, plain
    scale = (np.abs(w).max(1) / 127.5).astype(np.float32)
    q = np.clip(np.round(w / scale[:, None]), -128, 127).astype(np.int8)
    return {"_weight_qdata": q, "_weight_scale": scale[:, None], "_weight_zero_point": np.zeros((len(w), 1), np.int8)}, \
        scale[:, None] * q.astype(np.float32)


def torchao_intx(w, rng, bits=4, group=32, symmetric=True):
    """IntxUnpackedToInt8Tensor: integers of few bits in int8, with zero points in int8."""
    groups = np.arange(w.shape[1]) // group
    q, scale, zero = fit(w, groups, bits, symmetric, bf16)
    half = 2 ** (bits - 1)
    return {"_weight_qdata": (q - half).astype(np.int8), "_weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16),
            "_weight_zero_point": (zero - half).astype(np.int8)}, scale[:, groups] * (q - zero[:, groups]).astype(np.float32)


def torchao_int4(w, rng, tiles=False, group=32):
    """Int4Tensor, or Int4TilePackedTo4dTensor: the zero point is a float that is added. In tiles of 8 outputs and 128 inputs, in the
    order in which the threads of a warp read them for m16n8k16: ATen's int4mm.cu."""
    wide = [-(-w.shape[0] // 8) * 8, -(-w.shape[1] // 1024) * 1024] if tiles else w.shape
    w, shape = np.pad(w, ((0, wide[0] - w.shape[0]), (0, wide[1] - w.shape[1]))), w.shape
    parts = w.reshape(len(w), -1, group)
    low = parts.min(2)
    scale = bf16(np.maximum(parts.max(2) - low, 1e-6) / 15)
    zero = bf16(low + 8 * scale)
    each = lambda x: np.repeat(x, group, 1).astype(np.float64)
    q = np.clip(np.round((w - np.repeat(low, group, 1)) / np.repeat(scale, group, 1)), 0, 15).astype(np.int64)
    plain = (each(scale) * (q - 8) + each(zero)).astype(np.float32)[:shape[0], :shape[1]]  # exact in float64, then one rounding
    bits = lambda x: (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)
    if not tiles:
        return {"_weight_qdata": halves(q ^ 8).view(np.int8), "_weight_scale": bits(scale.T), "_weight_zero_point": bits(zero.T)}, plain
    t = np.arange(32)[:, None]
    offsets = [0, 8, 16, 24, 1, 9, 17, 25]
    x = q.reshape(wide[0] // 8, 8, wide[1] // 128, 4, 32).transpose(0, 2, 1, 3, 4)  # tile, output, part of 32 inputs, input
    words = np.zeros((*x.shape[:2], 32, 4), np.uint32)
    for at, offset in enumerate(offsets):
        words |= x[:, :, t // 4, np.arange(4)[None], t % 4 * 2 + offset].astype(np.uint32) << np.uint32(4 * at)
    return {"_weight_qdata": words.view(np.int32), "_weight_scale_and_zero": bits(np.stack([scale.T, zero.T], 2))}, plain


def torchao_mixed(w, rng, kind="int4", **options):
    return {"int4": torchao_int4, "int8": torchao, "fp8": torchao, "intx": torchao_intx}[kind](
        w, rng, **({"kind": kind} if kind in ("int8", "fp8") else {}), **options)


def nearest(x, values):
    return np.abs(x[..., None] - values).argmin(-1)


def halves(q, low_first=True):
    """Two codes in a byte."""
    q = q.astype(np.uint8).reshape(*q.shape[:-1], -1, 2)
    a, b = (q[..., 0], q[..., 1]) if low_first else (q[..., 1], q[..., 0])
    return np.ascontiguousarray(a | b << 4)


def to_e2m1(w, scale):
    """w [out, in], scale [out, n_group] -> codes, and what they stand for."""
    each = np.repeat(scale, w.shape[1] // scale.shape[1], 1)
    q = nearest(np.abs(w / each), E2M1)
    return q | np.where(w < 0, 8, 0), each * np.where(w < 0, -1, 1).astype(np.float32) * E2M1[q] + np.float32(0)  # no zero below 0


def fp4(w, rng, kind="nvfp4"):
    """Of compressed-tensors: nvfp4 and mxfp4; of modelopt: nvfp4, mxfp8 and fp8."""
    group = 16 if "nvfp4" in kind else 32
    most = np.abs(w.reshape(len(w), -1, group)).max(2)
    one = lambda x: np.array([x], np.float32)
    if "nvfp4" in kind:
        whole = np.float32(448 * 6 / np.abs(w).max())
        scale = to_e4m3(most / 6 * whole)
        values = e4m3_values()[scale]
        if kind == "nvfp4":
            q, dequantized = to_e2m1(w, values / whole)
            return {"weight_packed": halves(q).view(U8), "weight_scale": scale, "weight_global_scale": one(whole),
                    "input_global_scale": one(3)}, dequantized
        whole = np.float32(1) / whole
        q, dequantized = to_e2m1(w, values * whole)
        return {"weight": halves(q).view(U8), "weight_scale": scale, "weight_scale_2": np.array(whole, np.float32),
                "input_scale": np.array(0.5, np.float32)}, dequantized
    if kind == "fp8":
        return fp8(w, rng)
    power = np.floor(np.log2(most)).astype(np.int64) - (2 if kind == "mxfp4" else 8)
    scale = np.ldexp(np.float32(1), power)
    stored = {"weight_scale": (power + 127).astype(np.uint8).view(U8)}
    if kind == "mxfp4":
        q, dequantized = to_e2m1(w, scale)
        return {"weight_packed": halves(q).view(U8), **stored}, dequantized
    each = np.repeat(scale, group, 1)
    q = to_e4m3(np.clip(w / each, -448, 448))
    return {"weight": q, **stored}, each * np.where(q < 128, 1, -1).astype(np.float32) * e4m3_values()[q & 127]


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([FP4, -FP4])


def bnb4(w, rng, kind="nf4", block=64, nested=False):
    codes = NF4 if kind == "nf4" else FP4
    flat = w.reshape(-1)
    of = np.arange(flat.size) // block
    absmax = np.maximum.reduceat(np.abs(flat), np.arange(0, flat.size, block))
    state = {"quant_type": kind, "blocksize": block, "dtype": "float16", "shape": list(w.shape)}
    parts = {"weight.absmax": absmax, "weight.quant_map": codes}
    if nested:
        offset = absmax.mean(dtype=np.float32)
        values = np.linspace(-1, 1, 256, dtype=np.float32) ** 3
        scale = np.maximum.reduceat(np.abs(absmax - offset), np.arange(0, absmax.size, 256))
        each = np.repeat(scale, 256)[:absmax.size]
        q = nearest((absmax - offset) / each, values)
        absmax = values[q] * each + offset
        parts.update({"weight.absmax": q.astype(np.uint8).view(U8), "weight.nested_absmax": scale, "weight.nested_quant_map": values})
        state.update({"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)})
    q = nearest(flat / absmax[of], codes)
    parts["weight"] = halves(q, low_first=False).view(U8).reshape(-1, 1)
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8).view(U8)
    return parts, (absmax[of] * codes[q]).reshape(w.shape)


def bnb8(w, rng):
    most = np.abs(w).max(1)
    q = np.round(w / most[:, None] * 127).astype(np.int8)
    return {"weight": q, "SCB": most, "weight_format": np.array(0, np.uint8).reshape(1).view(U8).reshape(())}, \
        (most * (np.float32(1) / np.float32(127)))[:, None] * q.astype(np.float32)


def compressed_float(strategy):
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"],
                                          "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy,
                                                      "dynamic": False},
                                          "input_activations": {"num_bits": 8, "type": "float", "symmetric": True,
                                                                "strategy": "token", "dynamic": True}}}}


def compressed(format, bits, group, symmetric, activations=None):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group > 0 else "channel",
               "group_size": group if group > 0 else None, "dynamic": False, "actorder": None}
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"], "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}}


def of_enum(kind, data):
    return {"_data": data, "_type": kind}


def of_config(kind, version=2, **data):
    return {"_data": data, "_type": kind, "_version": version}


def of_torchao(kind, **data):
    data = data or {"granularity": {"_data": {"dim": -1}, "_type": "PerRow", "_version": 1}}
    return {"quant_method": "torchao", "modules_to_not_convert": None, "include_input_output_embeddings": False,
            "quant_type": {"default": of_config(kind, 1 if kind == "FqnToConfig" else 2, **data)}}


def of_gptq(bits, group, sym, desc_act, form="gptq"):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": desc_act, "checkpoint_format": form}


CASES = {
    "gptq-4": (gptq, dict(), of_gptq(4, 32, True, False)),
    "gptq-4-asym": (gptq, dict(symmetric=False), of_gptq(4, 32, False, False)),
    "gptq-4-v2-row": (gptq, dict(symmetric=False, less_one=0, group=-1), of_gptq(4, -1, False, False, "gptq_v2")),
    "gptq-4-act": (gptq, dict(act_order=True), of_gptq(4, 32, True, True)),
    "gptq-8-act": (gptq, dict(bits=8, act_order=True), of_gptq(8, 32, True, True)),
    "awq-4": (awq, dict(), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "packed-4": (packed, dict(), compressed("pack-quantized", 4, 32, True)),
    "packed-4-asym": (packed, dict(symmetric=False), compressed("pack-quantized", 4, 32, False)),
    "packed-8-row": (packed, dict(bits=8, group=-1), compressed("pack-quantized", 8, -1, True)),
    "int8": (int8, dict(), compressed("int-quantized", 8, -1, True, {"num_bits": 8, "type": "int", "symmetric": True,
                                                                     "strategy": "token", "dynamic": True})),
    "gptq-4-act-one": (gptq, dict(act_order=True, symmetric=False, orders={}), of_gptq(4, 32, False, True)),
    "experts-gptq-4-act": (gptq, dict(act_order=True, orders={}), of_gptq(4, 32, True, True)),
    "experts-awq-4": (awq, dict(), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "fp8": (fp8, dict(), {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}),
    "fp8-channel": (fp8_channel, dict(), compressed_float("channel")),
    "fp8-block": (fp8, dict(blocks=(32, 48), name="weight_scale_inv"),
                  {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [32, 48]}),
    "fp8-some": (fp8, dict(), {"quant_method": "fp8", "activation_scheme": "static",
                               "ignored_layers": ["lm_head", *(f"model.layers.0.{p}" for p in LEFT)]}),
}
BLOCKS_128 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
BY_128 = (fp8, dict(blocks=(128, 128), name="weight_scale_inv"), BLOCKS_128)
CASES.update({"fp8-block-128": BY_128, "experts-fp8-block-128": BY_128})
ACT_ORDER = of_gptq(4, 32, True, True)


def compressed_groups(*groups):
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"],
            "config_groups": {f"group_{i}": {"targets": ["Linear"], "format": format, "weights": weights}
                              for i, (format, weights) in enumerate(groups)}}


INT = {"type": "int", "symmetric": True, "dynamic": False}
FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group"}
BNB = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["lm_head"]}
LATER = {
    "auto-round": (auto_round, dict(), {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int",
                                        "packing_format": "auto_round:auto_gptq",
                                        "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32}}}),
    "packed-mixed": (packed_mixed, dict(), compressed_groups(
        ("pack-quantized", {**INT, "num_bits": 4, "strategy": "group", "group_size": 32}),
        ("int-quantized", {**INT, "num_bits": 8, "strategy": "tensor"}))),
    "fp4-packed": (fp4, dict(), compressed_groups(("nvfp4-pack-quantized", {**FLOAT4, "group_size": 16}),
                                                  ("mxfp4-pack-quantized", {**FLOAT4, "group_size": 32}))),
    "fp4-modelopt": (fp4, dict(kind="modelopt nvfp4"), {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}),
    "bnb-nf4": (bnb4, dict(nested=True), {**BNB, "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}),
    "bnb-fp4": (bnb4, dict(kind="fp4"), {**BNB, "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "fp4"}),
    "bnb-int8": (bnb8, dict(), {**BNB, "load_in_4bit": False, "load_in_8bit": True}),
    "torchao-int8": (torchao, dict(), of_torchao("Int8WeightOnlyConfig")),
    "torchao-fp8": (torchao, dict(kind="fp8"), of_torchao("Float8WeightOnlyConfig")),
    "awq-gemv": (awq_rows, dict(), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemv"}),
    "torchao-intx": (torchao_intx, dict(), of_torchao("IntxWeightOnlyConfig", weight_dtype=of_enum("torch.dtype", "int4"),
                                                      granularity=of_enum("PerGroup", {"group_size": 32}))),
    "torchao-intx-asym": (torchao_intx, dict(symmetric=False), of_torchao(
        "Int8DynamicActivationIntxWeightConfig", weight_dtype=of_enum("torch.dtype", "int4"),
        weight_granularity=of_enum("PerGroup", {"group_size": 32}))),
    "torchao-mixed": (torchao_mixed, dict(), of_torchao("FqnToConfig", fqn_to_config={
        "_default": of_config("Int4WeightOnlyConfig", int4_packing_format=of_enum("Int4PackingFormat", "PLAIN")),
        "re:.*gate_proj": of_config("Int8WeightOnlyConfig"), "re:.*o_proj": of_config("Float8WeightOnlyConfig"), "lm_head": None})),
    "torchao-tiles": (torchao_int4, dict(tiles=True), of_torchao(
        "Int4WeightOnlyConfig", int4_packing_format=of_enum("Int4PackingFormat", "TILE_PACKED_TO_4D"), int4_tile_packed_ntile=8)),
}
# Options of single matrices, by the end of their names.
VARIED = {
    "auto-round": {"o_proj": dict(bits=3), "gate_proj": dict(bits=2), "up_proj": dict(bits=2), "down_proj": dict(bits=8)},
    "packed-mixed": {"o_proj": dict(group=64, symmetric=False), "gate_proj": dict(kind="int8"), "up_proj": dict(kind="int8"),
                     "down_proj": dict(kind="int8_tensor")},
    "torchao-mixed": {"gate_proj": dict(kind="int8"), "up_proj": dict(kind="int8"), "o_proj": dict(kind="fp8"),
                      "k_proj": dict(kind="int8"), "down_proj": dict(kind="int4", group=16)},
    "fp4-packed": {"gate_proj": dict(kind="mxfp4"), "up_proj": dict(kind="mxfp4"), "o_proj": dict(kind="mxfp4")},
    "fp4-modelopt": {"o_proj": dict(kind="fp8"), "down_proj": dict(kind="mxfp8")},
}
def of_hqq(**params):
    return {"weight_quant_params": {"channel_wise": True, "optimize": True, "round_zero": False, "axis": 1, "view_as_float": False, **params},
            "scale_quant_params": None, "zero_quant_params": None, "offload_meta": False}


HQQ = {"quant_method": "hqq", "skip_modules": ["lm_head"]}
LATEST = {
    "fp8-block-e8m0": (fp8_powers, dict(), {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                            "weight_block_size": [32, 48]}),
    "packed-bits": (packed, dict(bits=3), compressed_groups(
        ("pack-quantized", {**INT, "num_bits": 3, "strategy": "group", "group_size": 32}),
        ("pack-quantized", {**INT, "num_bits": 6, "strategy": "channel"}))),
    "packed-7": (packed, dict(bits=7), compressed("pack-quantized", 7, 32, True)),
    "packed-3-older": (packed, dict(bits=3, pack=pack_older), compressed("pack-quantized", 3, 32, True)),
    "packed-5-older": (packed, dict(bits=5, symmetric=False, pack=pack_older), compressed("pack-quantized", 5, 32, False)),
    "w4a8": (int4_in_int8, dict(), compressed("int-quantized", 4, 32, True, {"num_bits": 8, "type": "int", "symmetric": True,
                                                                           "strategy": "token", "dynamic": True})),
    "w4a8-asym": (int4_in_int8, dict(symmetric=False), compressed("int-quantized", 4, 32, False, {"num_bits": 8, "type": "int",
                                                                                                 "strategy": "token", "dynamic": True})),
    "hqq-4": (hqq, dict(group=32), {**HQQ, "quant_config": of_hqq(nbits=4, group_size=32)}),
    "hqq-mixed": (hqq, dict(), {**HQQ, "quant_config": {name: of_hqq(nbits=bits, group_size=group) for name, bits, group in (
        ("self_attn.q_proj", 4, 64), ("self_attn.k_proj", 4, 64), ("self_attn.v_proj", 4, 64), ("self_attn.o_proj", 3, 32),
        ("mlp.gate_proj", 2, 16), ("mlp.up_proj", 2, 16), ("mlp.down_proj", 8, 48))}}),
    "auto-round-ragged": (auto_round, dict(group=64), {"quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": False,
                                                       "data_type": "int", "packing_format": "auto_round:auto_gptq",
                                                       "extra_config": {"model.layers.0.self_attn.o_proj": {"bits": 8, "group_size": 32}}}),
    "packed-embed": (packed, dict(symmetric=False), compressed("pack-quantized", 4, 32, False)),
    "int8-tied": (int8, dict(), compressed("int-quantized", 8, -1, True)),
}
VARIED.update({
    "fp8-block-e8m0": {"o_proj": dict(stored=U8), "down_proj": dict(stored=U8)},
    "packed-bits": {"gate_proj": dict(bits=2), "up_proj": dict(bits=2), "o_proj": dict(bits=5, symmetric=False),
                    "down_proj": dict(bits=6, group=-1)},
    "w4a8": {"o_proj": dict(group=-1)},
    "auto-round-ragged": {"o_proj": dict(bits=8, group=32)},
    "hqq-mixed": {"o_proj": dict(bits=3, group=32), "gate_proj": dict(bits=2, group=16), "up_proj": dict(bits=2, group=16),
                  "down_proj": dict(bits=8, group=48)},
})
CASES.update({name: (gptq, dict(act_order=True, orders={}), ACT_ORDER) for name in ("experts-mixed", "experts-shared")})
CASES.update(LATER)
CASES.update(LATEST)  # behind the others: a case's place is its seed
# experts-mixed: the inputs of expert 0 are in order, and one matrix of expert 2 was left as floats.
MIXED_ORDER, MIXED_LEFT = "mlp.experts.0.", "mlp.experts.2.down_proj"
TABLES = {"packed-embed": False, "int8-tied": True}  # the embedding is quantized too; is lm_head tied?
SHARED = 64  # experts-shared: qwen2_moe, with an expert that all rows use, of this width
# More than a block of 128, and no multiple of it: parts of q,k,v end within one. Of the experts' k and v not even turns of 16
# are whole. All experts are used: no rounding tips a choice.
SIZES = {"fp8-block-128": Sizes(hidden=144, inter=272, heads=3, kv=1),
         "experts-fp8-block-128": Sizes(hidden=144, inter=144, heads=4, kv=1, experts=3, used=3)}
# Of those, inputs from 128 on are so many times larger behind the norms, and the weights smaller: with one scale for all of
# an output's weights, or of a row, nothing were left of one part of them.
SPREAD = np.float32(2 ** 15)
SPREAD_TO = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
# Cases named "experts-": every layer has experts, each with orders of inputs of its own.


def of_shared(config, common, numbers, sizes):
    """What else a model has with an expert that all rows use; returns that one's projections."""
    config.update({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "shared_expert_intermediate_size": SHARED})
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        common[base + "mlp.shared_expert_gate.weight"] = numbers(1, sizes.hidden) * 4
        for name, heads in (("q", sizes.heads), ("k", sizes.kv), ("v", sizes.kv)):
            common[base + f"self_attn.{name}_proj.bias"] = numbers(heads * sizes.head)
        for norm in ("q_norm", "k_norm"):
            del common[base + f"self_attn.{norm}.weight"]
    return {"mlp.shared_expert.gate_proj": (SHARED, sizes.hidden), "mlp.shared_expert.up_proj": (SHARED, sizes.hidden),
            "mlp.shared_expert.down_proj": (sizes.hidden, SHARED)}


def of_experts(config, common, numbers, sizes):
    """The rest of a model with experts."""
    config.update({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": sizes.head,
                   "num_experts": sizes.experts, "num_experts_per_tok": sizes.used, "moe_intermediate_size": sizes.inter, "norm_topk_prob": True})
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        common[base + "mlp.gate.weight"] = numbers(sizes.experts, sizes.hidden) * 4
        for norm in ("q_norm", "k_norm"):
            common[base + f"self_attn.{norm}.weight"] = 1 + numbers(sizes.head)


def main():
    for seed, (name, (method, options, quantization)) in enumerate(CASES.items()):
        rng = np.random.default_rng(seed)
        numbers = lambda *shape: rng.normal(0, 0.08, shape).astype(np.float32)
        sizes, spread, is_moe = SIZES.get(name, Sizes()), name in SIZES, name.startswith("experts")
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": sizes.hidden,
                  "intermediate_size": 96 if is_moe else sizes.inter, "num_hidden_layers": LAYERS,
                  "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv,
                  "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                  "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
        common = {"model.embed_tokens.weight": numbers(VOCAB, sizes.hidden) * 12, "lm_head.weight": numbers(VOCAB, sizes.hidden),
                  "model.norm.weight": 1 + numbers(sizes.hidden)}
        stored, plain = {}, {}
        if is_moe:
            of_experts(config, common, numbers, sizes)
        projections = sizes.projections(is_moe)
        if name == "experts-shared":
            projections.update(of_shared(config, common, numbers, sizes))
        for layer in range(LAYERS):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                common[f"model.layers.{layer}.{norm}.weight"] = 1 + numbers(sizes.hidden)
                if spread:
                    common[f"model.layers.{layer}.{norm}.weight"][128:] *= SPREAD
            if spread and is_moe:
                common[f"model.layers.{layer}.mlp.gate.weight"][:, 128:] /= SPREAD
            for proj, shape in projections.items():
                base = f"model.layers.{layer}.{proj}."
                if "experts" in proj and proj.endswith("gate_proj") and "orders" in options:
                    options["orders"] = {}  # of the next expert
                left = lambda w, rng, **options: ({"weight": w.astype(np.float16)}, w.astype(np.float16))
                is_left = proj in {"fp8-some": LEFT, "experts-mixed": (MIXED_LEFT,)}.get(name, ())
                in_order = {"act_order": False} if name == "experts-mixed" and proj.startswith(MIXED_ORDER) else {}
                in_order.update(VARIED.get(name, {}).get(proj.split(".")[-1], {}))
                weights = numbers(*shape) * 1.5
                if spread and proj.endswith(SPREAD_TO):
                    weights[:, 128:] /= SPREAD
                parts, dequantized = (left if is_left else method)(weights, rng, **{**options, **in_order})
                stored.update({base + k: v for k, v in parts.items()})
                plain[base + "weight"] = dequantized.astype(np.float32)
        if name in TABLES:
            parts, dequantized = method(common.pop("model.embed_tokens.weight"), rng, **options)
            stored.update({"model.embed_tokens." + k: v for k, v in parts.items()})
            plain["model.embed_tokens.weight"] = dequantized.astype(np.float32)
        if TABLES.get(name):
            config["tie_word_embeddings"] = True
            del common["lm_head.weight"]
        half_precision = {k: v.astype(np.float16) for k, v in common.items()}
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / "model.safetensors", {**stored, **half_precision})
        (folder / "config.json").write_text(
            json.dumps({**config, "torch_dtype": "float16", "quantization_config": quantization}, indent=1) + "\n")
        if not spread:
            plain = {**plain, **{k: v.astype(np.float32) for k, v in half_precision.items()}}
            save_plain(folder, plain, {**config, "torch_dtype": "float32"})


def save_plain(folder, tensors, config):
    sums = {name: {"shape": list(a.shape), "sha256": hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()}
            for name, a in sorted(tensors.items())}
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in sums.items())
    (folder / "plain.json").write_text(f'{{"config": {json.dumps(config)},\n"tensors": {{\n{lines}\n}}}}\n')
    if "--plain" in sys.argv:
        (folder / "plain").mkdir(exist_ok=True)
        save(folder / "plain" / "model.safetensors", tensors)
        (folder / "plain" / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
