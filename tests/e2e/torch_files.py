# SPDX-License-Identifier: Apache-2.0
"""Files as torch.save writes them, without torch: Python's own pickler, with objects that reduce to torch's globals."""
import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

STORAGES = {"F64": ("DoubleStorage", 8), "F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "BF16": ("BFloat16Storage", 2),
            "I64": ("LongStorage", 8), "U8": ("ByteStorage", 1)}


def named(module, name):
    """A function that pickles as module.name, as torch's do."""
    def function(*args):
        raise AssertionError("called")
    function.__module__, function.__qualname__, function.__name__ = module, name, name
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:n]), types.ModuleType(module))
    setattr(sys.modules[module], name, function)
    return function


class Storage:
    """Elements in a row; tensors of one storage share it."""
    def __init__(self, data, dtype, key):
        self.data, self.dtype, self.key = data, dtype, str(key)
        self.n = len(data) // STORAGES[dtype][1]


class Tensor:
    """A view of a storage; sizes and strides in elements. parameter: an nn.Parameter around it."""
    def __init__(self, storage, shape, strides=None, offset=0, parameter=False):
        self.storage, self.shape, self.offset, self.parameter = storage, tuple(shape), offset, parameter
        self.strides = contiguous(self.shape) if strides is None else tuple(strides)

    def __reduce__(self):
        args = (self.storage, self.offset, self.shape, self.strides, False, collections.OrderedDict())
        if self.parameter:
            plain = Tensor(self.storage, self.shape, self.strides, self.offset)
            return named("torch._utils", "_rebuild_parameter"), (plain, True, collections.OrderedDict())
        return named("torch._utils", "_rebuild_tensor_v2"), args


def contiguous(shape):
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def pickled(value, protocol, legacy=False):
    """The pickle, and the storages that it names."""
    storages = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            storages[thing.key] = thing
            return ("storage", named("torch", STORAGES[thing.dtype][0]), thing.key, "cpu", thing.n) + ((None,) if legacy else ())
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue(), storages


def save(path, value, protocol=2, folder="archive", compress=False, byteorder=b"little"):
    """The zip format; entries begin at odd places unless torch's alignment is asked for, which readers may not rely on."""
    data, storages = pickled(value, protocol)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as z:
        def add(name, text):
            with z.open(zipfile.ZipInfo(folder + "/" + name), "w", force_zip64=True) as entry:
                entry.write(text)
        if compress:
            z.writestr(folder + "/data.pkl", data)
        else:
            add("data.pkl", data)
        if byteorder:
            add("byteorder", byteorder)
        for key, storage in storages.items():
            add("data/" + key, storage.data)
        add("version", b"3\n")


def save_legacy(path, value, protocol=2, little=True):
    """The format before torch 1.6."""
    data, storages = pickled(value, protocol, legacy=True)
    system = {"protocol_version": 1001, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    with open(path, "wb") as out:
        out.write(b"".join(pickle.dumps(x, protocol) for x in (0x1950a86a20f9469cfc6c, 1001, system)) + data)
        out.write(pickle.dumps(sorted(storages), protocol))
        for key in sorted(storages):
            out.write(struct.pack("<q", storages[key].n) + storages[key].data)


def tensors_of(folder):
    """{name: (dtype, shape, bytes)} of the safetensors files of a folder."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name == "golden.safetensors":
            continue
        with open(file, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            start = f.tell()
            for name, t in header.items():
                if name != "__metadata__":
                    f.seek(start + t["data_offsets"][0])
                    found[name] = (t["dtype"], tuple(t["shape"]), f.read(t["data_offsets"][1] - t["data_offsets"][0]))
    return found


def state_dict(tensors):
    """An OrderedDict of tensors, each with a storage of its own, with the attribute that nn.Module sets."""
    state = collections.OrderedDict((name, Tensor(Storage(data, dtype, i), shape))
                                    for i, (name, (dtype, shape, data)) in enumerate(tensors.items()))
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state
