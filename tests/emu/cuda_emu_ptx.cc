/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels/cuda/launch.cuh has in PTX, lane by lane: asynchronous copies and matrix fragments.
 *
 * The tensor cores' own rounding is not modelled: products are exact and summed in f32, k ascending.
 * What the emulation proves is that the right elements meet, not the last bit. Source of the
 * fragments' places: NVIDIA's PTX ISA manual, sections on mma.m16n8k16, mma.m16n8k32, ldmatrix. */
#include "cuda_emu.h"
#include <algorithm>
#include "cuda_emu_watch.h"
extern "C" {
#include "common/dtype.h"
#include "kernels/ops/e4m3.h"
}

bool emu_has_e4m3 = true;

static bool aligned(const void *p, unsigned n)
{
    return (uintptr_t)p % n == 0;
}

void emu_cp_async(void *to, const void *from, unsigned n_from)
{
    if (!aligned(to, 16) || (n_from && !aligned(from, 16)) || n_from > 16)
        emu_fail("cp.async of %u bytes from %p to %p: not aligned to 16", n_from, from, to);
    watch_access(to, 16, WATCH_WRITE);
    memset(to, 0xff, 16);
    emu_copies *c = emu_my_copies();
    c->open.push_back({(char *)to, (const char *)from, n_from, c->group});
}

void emu_cp_async_commit()
{
    emu_my_copies()->group++;
}

void emu_cp_async_wait(unsigned n_pending)
{
    emu_copies *c = emu_my_copies();
    /* copies of groups that are not the last n_pending committed; uncommitted ones stay open */
    const unsigned done = c->group > n_pending ? c->group - n_pending : 0;
    for (const emu_copies::copy &i : c->open)
        if (i.group < done) {
            watch_access(i.to, 16, WATCH_WRITE);
            memset(i.to, 0, 16);
            memcpy(i.to, i.from, i.n_from);
        }
    c->open.erase(std::remove_if(c->open.begin(), c->open.end(),
                                 [=](const emu_copies::copy &i) { return i.group < done; }),
                  c->open.end());
}

void emu_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed, emu_site site)
{
    const unsigned lane = emu_lane();
    uint32_t mine[2], all[64];
    memcpy(mine, &row, sizeof row);
    emu_gather(~0u, mine, all, 2, site);
    if (!aligned(row, 16))
        emu_fail("%s:%d: ldmatrix of a row that is not aligned to 16", site.file, site.line);
    watch_access(row, 16, WATCH_READ);
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *rows[8];
        memcpy(rows, all + 2 * 8 * i, sizeof rows);
        const unsigned major = lane / 4, minor = lane % 4 * 2;
        const uint16_t low = transposed ? rows[minor][major] : rows[major][minor];
        const uint16_t high = transposed ? rows[minor + 1][major] : rows[major][minor + 1];
        out[i] = low | (uint32_t)high << 16;
    }
}

static float bf16_half(uint32_t pair, unsigned half)
{
    return __uint_as_float(half ? pair & 0xffff0000u : pair << 16);
}

static float f16_half(uint32_t pair, unsigned half)
{
    return f16_to_f32((uint16_t)(half ? pair >> 16 : pair));
}

/* Word of lane `lane` of a, and of b, in what was gathered. */
static uint32_t word(const uint32_t *all, unsigned lane, unsigned i)
{
    return all[lane * 6 + i];
}

template <class V>
static void mma_k16(float c[4], const uint32_t a[4], const uint32_t b[2], V value, emu_site site)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    uint32_t all[32 * 6];
    emu_gather(~0u, mine, all, 6, site);
    const unsigned g = emu_lane() / 4, t = emu_lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row_high = i / 2, col = 2 * t + i % 2;
        for (unsigned k = 0; k < 16; k++) { /* lane of k: k % 8 / 2; register: k / 8; half: k % 2 */
            const uint32_t of_a = word(all, g * 4 + k % 8 / 2, row_high + 2 * (k / 8));
            const uint32_t of_b = word(all, col * 4 + k % 8 / 2, 4 + k / 8);
            c[i] += value(of_a, k % 2) * value(of_b, k % 2);
        }
    }
}

void emu_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site)
{
    mma_k16(c, a, b, bf16_half, site);
}

void emu_mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site)
{
    mma_k16(c, a, b, f16_half, site);
}

/* 8 bits: lane of k: k % 16 / 4; register: k / 16; byte: k % 4. */
template <class C, class V>
static void mma_k32(C c[4], const uint32_t a[4], const uint32_t b[2], V value, emu_site site)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    uint32_t all[32 * 6];
    emu_gather(~0u, mine, all, 6, site);
    const unsigned g = emu_lane() / 4, t = emu_lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row_high = i / 2, col = 2 * t + i % 2;
        for (unsigned k = 0; k < 32; k++) {
            const uint32_t of_a = word(all, g * 4 + k % 16 / 4, row_high + 2 * (k / 16));
            const uint32_t of_b = word(all, col * 4 + k % 16 / 4, 4 + k / 16);
            c[i] += value((uint8_t)(of_a >> 8 * (k % 4))) * value((uint8_t)(of_b >> 8 * (k % 4)));
        }
    }
}

void emu_mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2], emu_site site)
{
    mma_k32(
        c, a, b, [](uint8_t v) { return (int)(int8_t)v; }, site);
}

void emu_mma_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2], emu_site site)
{
    mma_k32(c, a, b, e4m3_to_f32, site);
}
