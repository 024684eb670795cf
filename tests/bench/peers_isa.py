# SPDX-License-Identifier: Apache-2.0
"""A machine without newer instructions made of one that has them, for every engine of peers.py alike.

quire and oneDNN (OpenVINO) are limited by their settings, llama.cpp by how it is compiled (LLAMA: its options of CMake; that build
has an environment of its own). Tiles (AMX) the system refuses.

The system lends tile registers only to a process that asks (arch_prctl ARCH_REQ_XCOMP_PERM). Here the asking is refused, by a
seccomp filter that what is started inherits and cannot take off. Programs that ask first, as they must, then go without; one that
does not ask is ended by its first tile instruction (SIGILL). So what runs to its end has used no tiles, whatever its settings say.
"""
import ctypes
import os
import platform
import struct

ONEDNN = {"avx512_bf16": "AVX512_CORE_BF16", "avx2": "AVX2"}  # what quire's --cpu-isa calls a limit: oneDNN's name
LLAMA = {"avx2": "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF"}

ARCH_PRCTL, REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18                         # Linux uapi: x86-64, asm/prctl.h
SET_SECCOMP, MODE_FILTER, SET_NO_NEW_PRIVS = 22, 2, 38                          # linux/prctl.h, linux/seccomp.h
ARCH_X86_64, ALLOW, REFUSE = 0xC000003E, 0x7FFF0000, 0x00050000 | 1             # linux/audit.h, linux/seccomp.h; EPERM
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06                                       # linux/filter.h
NR_AT, ARCH_AT, ARG0_AT = 0, 4, 16                                              # struct seccomp_data
FILTER = [(LOAD, 0, 0, ARCH_AT), (IF_EQUAL, 0, 4, ARCH_X86_64),                 # code, skip if so, skip if not, operand
          (LOAD, 0, 0, NR_AT), (IF_EQUAL, 0, 2, ARCH_PRCTL),
          (LOAD, 0, 0, ARG0_AT), (IF_EQUAL, 1, 0, REQ_XCOMP_PERM),
          (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]


class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def forbid_tiles():
    """For this process and all it starts, for good. Ends in an error when the system lends them all the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    lines = b"".join(struct.pack("HBBI", *line) for line in FILTER)
    program = Program(len(FILTER), lines)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls can be set")
    if libc.syscall(ARCH_PRCTL, REQ_XCOMP_PERM, TILE_DATA) == 0:
        raise OSError(0, "the system still lends tiles")


def limits(cpu_isa):
    """What subprocess takes, so that the child is limited; nothing for "auto"."""
    if cpu_isa == "auto":
        return {}
    more = {"preexec_fn": forbid_tiles} if platform.machine() == "x86_64" else {}
    return {**more, "env": {**os.environ, "ONEDNN_MAX_CPU_ISA": ONEDNN[cpu_isa]}}


def llama_build(cpu_isa):
    """Variables for pip when it compiles llama.cpp; nothing where the machine's own instructions are the limit."""
    return {"CMAKE_ARGS": LLAMA[cpu_isa]} if cpu_isa in LLAMA else {}


def said(cpu_isa):
    """For the heading of a table."""
    if cpu_isa == "auto":
        return ""
    llama = f"llama.cpp compiled with `{LLAMA[cpu_isa]}`, " if cpu_isa in LLAMA else ""
    return (f" **Limited to {cpu_isa}**: quire by `--cpu-isa`, oneDNN by ONEDNN_MAX_CPU_ISA={ONEDNN[cpu_isa]}, {llama}and the system refused "
            "tiles (AMX) to every engine, so that none used them; the ceilings are those without tiles.")
