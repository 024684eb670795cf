# SPDX-License-Identifier: Apache-2.0
"""Machine code of the CUDA kernels, read from objects that nvcc made, against a committed table of bounds.

  python3 tests/gpu/sass.py --build build/cuda [--only attention,mla] [--show] [--planted]

Without a card and without a disassembler: an instruction of sm_80 to sm_90 is 16 bytes, and the few that the table asks about
are told from their numbers (OPCODES). tests/gpu/sass.txt has a line a bound: kernel, target, figure, relation, number.
--show prints every figure of the kernels that the table names. --planted compiles sass_planted.cu, kernels with one fault each,
and demands that each fault is found: a bound that no code can break is no bound.
"""
import argparse
import ctypes
import ctypes.util
import fnmatch
import operator
import os
import struct
import subprocess
import sys
import tempfile

import resources

TABLE = os.path.join(resources.TREE, "tests", "gpu", "sass.txt")
PLANTED = os.path.join(resources.TREE, "tests", "gpu", "sass_planted.cu")
FATBIN = struct.pack("<I", 0xBA55ED50)
ELF, ZSTD = b"\x7fELF", b"\x28\xb5\x2f\xfd"
CUBIN = 2  # kind of an entry of a fat binary; 1 is PTX
WORD = 16  # bytes of an instruction
OPCODES = {0x9F0: "HGMMA", 0xDF0: "HGMMA", 0x9F1: "IGMMA", 0xDF1: "IGMMA", 0x9F3: "QGMMA", 0xDF3: "QGMMA", 0x23C: "HMMA",
           0x237: "IMMA", 0x27A: "QMMA", 0x9C8: "USETMAXREG", 0x82E: "ACQBULK", 0x981: "LDG", 0xFAE: "LDGSTS", 0x5B4: "UTMALDG",
           0x984: "LDS", 0x388: "STS",
           0x947: "BRA", 0x94D: "EXIT", 0x944: "CALL", 0x949: "BRX", 0x958: "BRXU"}
WGMMA = ("HGMMA", "IGMMA", "QGMMA")
WARPGROUP, DEPBAR = 0x9C5, 0x8000  # WARPGROUP: bits 73 on say which: .ARRIVE or .DEPBAR
LOAD_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 8, 6: 16}  # by bits 73 to 75 of LDG and LDGSTS
RELEASES = 1 << 72  # USETMAXREG: .DEALLOC
NO_REGISTER = 255  # RZ
# PLOP3 R2UR S2UR SYNCS SYNCS UTMALDG ELECT FENCE NOP DEPBAR BSYNC BSSY BRA EXIT NANOSLEEP MEMBAR SYNCS LDGDEPBAR ULDC ULDC
NO_REGISTERS = {0x81C, 0x2CA, 0x9C3, 0x9A7, 0x5A7, 0x5B2, 0x5B4, 0x82F, 0x3C6, 0x918, 0x91A, 0x941, 0x945, 0x947, 0x94D, 0x95D,
                0x992, 0x9C8, 0x9AF, 0xAB9, 0xABB}
RELATIONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


# ---- what nvcc wrote: objects, fat binaries, cubins ----
def decompress(body, n_byte):
    """zstd, by which nvcc packs large entries. quire is built with the library, so it is there."""
    library = ctypes.util.find_library("zstd")
    if not library:
        sys.exit("sass: libzstd not found: install it (deploy/deps.sh)")
    unpack = ctypes.CDLL(library).ZSTD_decompress
    unpack.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(n_byte)
    made = unpack(out, ctypes.c_size_t(n_byte), body, ctypes.c_size_t(len(body)))
    if made != n_byte:
        sys.exit(f"sass: an entry of {n_byte} bytes cannot be unpacked")
    return out.raw


def entries(data):
    """The cubins of an object: (compute capability, ELF file)"""
    at = data.find(FATBIN)
    while at >= 0:
        size, total = struct.unpack_from("<HQ", data, at + 6)
        entry = at + size
        while entry < at + size + total:
            kind, header, n_byte = struct.unpack_from("<H2xIQ", data, entry)
            capability, = struct.unpack_from("<I", data, entry + 28)
            body = data[entry + header:entry + header + n_byte]
            if kind == CUBIN:
                if body[:4] == ZSTD:
                    packed, = struct.unpack_from("<I", data, entry + 16)
                    body = decompress(body[:packed], struct.unpack_from("<Q", data, entry + 56)[0])
                if body[:4] != ELF:
                    sys.exit(f"sass: an entry for {capability} is neither ELF nor zstd: another version of nvcc?")
                yield capability, body
            entry += header + n_byte
        at = data.find(FATBIN, at + size + total)


def kernels(elf):
    """The kernels of a cubin: (symbol, instructions as integers of 128 bits)"""
    table, = struct.unpack_from("<Q", elf, 40)
    each, count, names = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * each) for i in range(count)]
    strings = sections[names][4]
    for name, kind, _, _, offset, size in sections:
        title = elf[strings + name:elf.index(b"\0", strings + name)].decode()
        if kind == 1 and title.startswith(".text._Z"):
            yield title[6:], [int.from_bytes(elf[i:i + WORD], "little") for i in range(offset, offset + size, WORD)]


# ---- figures of a kernel ----
def opcode(word):
    return OPCODES.get(word & 0xFFF, "")


def is_wait(word):
    return word & 0xFFF == WARPGROUP and bool(word & DEPBAR << 32)


def target(i, word):
    """The place a BRA goes to."""
    far = word >> 34 & (1 << 48) - 1
    far -= far >> 47 << 48
    return i + 1 + (far << 8 | word >> 16 & 0xFF) * 4 // WORD


def always(word):
    """Under no predicate: that before the instruction and that of a BRA are the true one, 7."""
    return word >> 12 & 0xF == 7 and word >> 87 & 0xF == 7


def load_bytes(code):
    return sum(LOAD_BYTES[word >> 73 & 7] for word in code if opcode(word) in ("LDG", "LDGSTS"))


def count(name):
    return lambda code: sum(opcode(word) == name for word in code)


def wgmma_per_wait(code):
    waits = sum(map(is_wait, code))
    return sum(opcode(word) in WGMMA for word in code) / waits if waits else 0


def waits_open(code):
    """Waits that leave a group of products in flight: their count of groups, bits 72 to 74, is not 0."""
    return sum(is_wait(word) and bool(word >> 72 & 7) for word in code)


def loads_early(code):
    """Loads of 16 bytes before the kernel waits for the previous one's writes (griddepcontrol.wait)."""
    wait = next((i for i, word in enumerate(code) if opcode(word) == "ACQBULK"), 0)
    return sum(opcode(word) == "LDG" and word >> 73 & 7 == 6 for word in code[:wait])


def loop_16(code):
    """Instructions of a lane for 16 bytes that it loads, in the innermost loop that loads most."""
    best = (0, 0)
    for i, word in enumerate(code):
        if opcode(word) == "BRA" and (start := target(i, word)) <= i and (n_byte := load_bytes(code[start:i + 1])):
            best = max(best, (n_byte, start - i - 1))  # of those with as many bytes the shortest
    return -16 * best[1] / best[0] if best[0] else 0


def widen_16(code):
    """Instructions of a lane for 16 bytes that it reads from shared memory and writes there as 32, in the shortest such loop."""
    best = float("inf")
    for i, word in enumerate(code):
        if opcode(word) == "BRA" and (start := target(i, word)) <= i:
            whole = [opcode(w) for w in code[start:i + 1] if w >> 73 & 7 == 6]  # accesses of 16 bytes
            if whole.count("LDS") and whole.count("STS") == 2 * whole.count("LDS"):
                best = min(best, (i + 1 - start) / whole.count("LDS"))
    return best


def names_registers(word):
    """Not of control, synchronization, or the uniform unit, whose fields are other numbers."""
    number = word & 0xFFF
    uniform = number >> 8 in (0x2, 0x8, 0xC) and 0x80 <= number & 0xFF < 0xB0
    return not uniform and number not in NO_REGISTERS


def registers_left(code):
    """Registers that the producer's branch keeps (setmaxnreg.dec), less those that it names."""
    todo = [i for i, word in enumerate(code) if opcode(word) == "USETMAXREG" and word & RELEASES]
    if not todo:
        return -1
    kept, most, seen = code[todo[0]] >> 32 & 0xFF, 0, set()
    while todo:
        i = todo.pop()
        while i < len(code) and i not in seen:
            seen.add(i)
            word, name = code[i], opcode(code[i])
            if names_registers(word):
                most = max([most] + [n + 1 for n in (word >> 16 & 0xFF, word >> 24 & 0xFF) if n != NO_REGISTER])
            if name in ("CALL", "BRX", "BRXU"):
                return -1  # goes to a place that is not followed
            if name == "BRA":
                todo.append(target(i, word))
            if name in ("BRA", "EXIT") and always(word):
                break
            i += 1
    return kept - most


FIGURES = {"hgmma": count("HGMMA"), "igmma": count("IGMMA"), "qgmma": count("QGMMA"), "hmma": count("HMMA"), "imma": count("IMMA"),
           "setmaxnreg": count("USETMAXREG"), "registers_left": registers_left, "wgmma_per_wait": wgmma_per_wait,
           "waits_open": waits_open, "loads_early": loads_early, "loop_16": loop_16, "widen_16": widen_16}


# ---- the table ----
def read_table():
    rows = []
    for i, line in enumerate(open(TABLE, encoding="utf-8"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kernel, arch, figure, relation, bound = line.split()
        if figure not in FIGURES or relation not in RELATIONS:
            sys.exit(f"{TABLE}:{i}: {figure} {relation}: figures are {', '.join(FIGURES)}, relations {', '.join(RELATIONS)}")
        rows.append((kernel, arch, figure, relation, float(bound)))
    return rows


def finding(row, name, code):
    _, arch, figure, relation, bound = row
    value = FIGURES[figure](code)
    if RELATIONS[relation](value, bound):
        return None
    return f"{name} for sm_{arch}: {figure} is {value:.4g}, the table has {relation} {bound:g}"


def read_object(path):
    """{(target, kernel): instructions}"""
    with open(path, "rb") as file:
        data = file.read()
    return {(str(capability) + ("a" if capability == 90 else ""), resources.plain(symbol)): code
            for capability, elf in entries(data) for symbol, code in kernels(elf)}


def read_build(options):
    found = {}
    for source in resources.sources(options):
        found.update(read_object(os.path.join(options.build, "kernels", "cuda", os.path.basename(source)[:-3] + ".o")))
    return found


def compare(rows, found, partial):
    archs, wrong = {arch for arch, _ in found}, []
    for row in rows:
        those = {k: code for k, code in found.items() if k[0] == row[1] and fnmatch.fnmatchcase(k[1], row[0])}
        if not those and row[1] in archs and not partial:
            wrong.append(f"{row[0]} for sm_{row[1]} is in the table, and no such kernel was built")
        wrong += filter(None, (finding(row, name, code) for (_, name), code in sorted(those.items())))
    return wrong


def show(rows, found):
    for (arch, name), code in sorted(found.items()):
        if any(fnmatch.fnmatchcase(name, row[0]) and row[1] == arch for row in rows):
            print(name, arch, len(code), *(f"{figure} {f(code):.4g}" for figure, f in FIGURES.items()))


def check_planted(rows, compiler):
    """Every row of the table must find the planted kernel that has the fault of its figure: planted_<figure>."""
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "planted.o")
        subprocess.run([compiler, "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-c", PLANTED, "-o", made], check=True)
        planted = {name: code for (_, name), code in read_object(made).items()}
    wrong = [f"no kernel planted_{figure} in {PLANTED}" for figure in sorted({row[2] for row in rows} - {name[8:] for name in planted})]
    if not wrong:
        wrong = [f"{' '.join(map(str, row))} accepts planted_{row[2]}" for row in rows
                 if not finding(row, "planted", planted["planted_" + row[2]])]
    print(f"sass: {len(planted)} planted faults, {len(rows)} rows, {len(wrong)} of them accept one")
    return wrong


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", default="build/cuda")
    options.add_argument("--only", default="", help="sources by name")
    options.add_argument("--show", action="store_true")
    options.add_argument("--planted", action="store_true")
    options = options.parse_args()
    rows = read_table()
    if options.planted:
        wrong = check_planted(rows, resources.nvcc(options))
    else:
        found = read_build(options)
        if options.show:
            show(rows, found)
        wrong = compare(rows, found, options.only)
        print(f"sass: {len(rows)} rows, {len(found)} kernels, {len(wrong)} findings")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
