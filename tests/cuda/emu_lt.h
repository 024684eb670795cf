/* SPDX-License-Identifier: Apache-2.0 */
/* emu_lt - the products by cuBLASLt that the kernels on the host emulation find. Threads: one. */
#ifndef QUIRE_TESTS_CUDA_EMU_LT_H
#define QUIRE_TESTS_CUDA_EMU_LT_H
#include "kernels/cuda/lt.h"

extern struct lt *emu_lt; /* NULL: none */

#endif
