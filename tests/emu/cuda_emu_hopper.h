/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_emu_hopper - sm_90a's mbarriers, tensor copies and wgmma on the emulation of cuda_emu.h, for
 * kernels/cuda/hopper.cuh.
 *
 * Operands are found as the hardware finds them: from the bits of a descriptor, the canonical
 * layouts of the PTX manual and the swizzle of addresses; nothing of kernels/cuda/hopper.h is used
 * here. What happens later on a card happens late here: a copy's bytes come at a random time, and
 * are NaN until then; a product reads its words of A, shared memory and accumulators when it is
 * waited for, and the accumulators are NaN until then. Found, each with a planted bug:
 *
 *     a slot filled or read too early       race: of cuda_emu_watch.h
 *     a barrier whose phase never ends      "is stuck"
 *     registers touched under way           wrong numbers
 *     no wgmma.fence after registers were   "wgmma without a wgmma.fence"
 *     free to be written
 *     warps of a warpgroup that differ      "the warps of a warpgroup"
 *     a box, a map or a descriptor that     the rule, by name
 *     breaks a rule of the manual
 *
 * Threads: one. */
#ifndef QUIRE_TESTS_EMU_CUDA_EMU_HOPPER_H
#define QUIRE_TESTS_EMU_CUDA_EMU_HOPPER_H
#include "cuda_emu.h"

#define __grid_constant__

/* As the card has it: the system keeps the first KiB. */
uint32_t emu_shared_address(const void *p);

void emu_barrier_init(uint64_t *bar, unsigned n_arrival);
/* bytes: that the phase waits for besides */
void emu_barrier_arrive(uint64_t *bar, unsigned bytes);
void emu_barrier_wait(uint64_t *bar, unsigned parity, emu_site site);
void emu_fence_async(); /* fence.proxy.async */

struct emu_tensor_map {
    const char *array;
    unsigned rank, element; /* bytes */
    uint64_t dim[3], stride[2];
    uint32_t box[3];
};
/* Of 2 or 3 dimensions, 128-byte swizzle, zeros outside. False: the driver would refuse it. */
bool emu_tensor_map_encode(emu_tensor_map *map, const void *array, unsigned rank, unsigned element,
                           const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                           const uint32_t *step);
/* c2: 0 of a map of 2 dimensions */
void emu_tensor_copy(void *to, const emu_tensor_map *map, int c0, int c1, int c2, uint64_t *bar);

/* m64nNk16 of bf16 with A in registers: d is f32 [n / 8][4] of this thread, b a descriptor. */
void emu_wgmma(float *d, unsigned n, const uint32_t *a, uint64_t b, bool keep, bool trans_b,
               emu_site site);
/* m64nNk16, or k32 of 8 bits, with both in shared memory, columns k: d is f32, of EMU_I8 s32. Sums
 * of EMU_E4M3 are cut to 14 bits after each instruction, as Hopper's are. */
enum emu_kind { EMU_BF16, EMU_F16, EMU_I8, EMU_E4M3 };
void emu_wgmma_tiles(void *d, unsigned n, uint64_t a, uint64_t b, bool keep, enum emu_kind kind,
                     emu_site site);
void emu_wgmma_fence();
void emu_wgmma_commit();
void emu_wgmma_wait(unsigned n_pending, emu_site site);

/* For the scheduler (cuda_emu.cc). */
void emu_hopper_block(char *shared);   /* a block begins */
void emu_hopper_end(unsigned thread);  /* this thread of it ends */
void emu_hopper_done();                /* all of it has ended */
bool emu_hopper_step(unsigned one_in); /* a copy's bytes come, once in so many calls; false: none */
/* Of the scheduler: the running thread, and waiting that somebody else ends. */
unsigned emu_index();
void emu_pause(emu_site site);
void emu_resume(unsigned thread);

#endif
