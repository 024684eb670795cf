/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers, copies and products of cuda_emu_hopper.h. Like the scheduler, not instrumented: its own
 * memory is nobody's race.
 *
 * Source: PTX ISA, sections on mbarrier, cp.async.bulk.tensor, and "Asynchronous Warpgroup Level Matrix
 * Multiply-Accumulate Instructions": register fragments of m64nNk16, strides, matrix descriptor format. */
#include "cuda_emu_hopper.h"
#include <deque>
#include <map>
#include "cuda_emu_watch.h"
#if defined(__SANITIZE_THREAD__) || defined(EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#define HAPPENS_BEFORE(tag) __tsan_release((void *)(tag))
#define HAPPENS_AFTER(tag)  __tsan_acquire((void *)(tag))
#else
#define HAPPENS_BEFORE(tag) ((void)(tag))
#define HAPPENS_AFTER(tag)  ((void)(tag))
#endif

#define THREADS_MAX 1024u
#define GROUP       128u  /* threads of a warpgroup */
#define SYSTEM      1024u /* bytes of shared memory that are the system's */
#define SHARED_BITS 18    /* of an address in a descriptor */

struct barrier {
    unsigned n_arrival, left; /* of the phase */
    int64_t bytes;            /* that it waits for; copies may come before they are announced */
    unsigned phase;
    std::vector<unsigned> waiters; /* threads */
};
struct copy {
    char *to;
    emu_tensor_map map;
    int at[2];
    uint64_t *bar;
    const char *clock; /* a name for what the thread knew that asked for it */
};
struct product {
    float *d;
    const uint32_t *a;
    std::vector<float> was; /* accumulators before; empty: not kept */
    unsigned n, group;
    uint64_t b;
    bool trans_b;
};
struct asked { /* a product as the first thread of a warpgroup asked for it */
    uint64_t b;
    unsigned n;
    bool trans_b;
};

static char *shared;
static std::map<const uint64_t *, barrier> barriers;
static std::deque<copy> copies;
static char clock_names[4096];
static unsigned n_clock;
static std::deque<product> products[THREADS_MAX];
static unsigned group_of[THREADS_MAX]; /* committed so far */
static unsigned n_asked[THREADS_MAX];  /* products, of all groups */
static bool fenced[THREADS_MAX];
static std::vector<asked> sequence[THREADS_MAX / GROUP];
struct operand {   /* B of the product that a warp is at, for its 32 lanes */
    unsigned turn; /* 0: none */
    float b[256][16];
};
static struct operand operands[THREADS_MAX / 32];
static unsigned n_computed[THREADS_MAX];
static uint64_t rng;

uint32_t emu_shared_address(const void *p)
{
    return (uint32_t)((const char *)p - shared) + SYSTEM;
}

static char *shared_at(uint32_t address)
{
    return shared + ((int64_t)address - SYSTEM);
}

/* A 128-byte swizzle: bits 4 … 6 of an address are turned by bits 7 … 9. */
static uint32_t swizzled(uint32_t address, unsigned bits)
{
    return address ^ (address >> 7 & ((1u << bits) - 1)) << 4;
}

/* ---- barriers ---- */
static barrier &barrier_of(const uint64_t *bar)
{
    const auto b = barriers.find(bar);
    if (b == barriers.end())
        emu_fail("mbarrier at %u: nobody initialised it", emu_shared_address(bar));
    return b->second;
}

void emu_barrier_init(uint64_t *bar, unsigned n_arrival)
{
    if (n_arrival == 0 || n_arrival >= 1u << 20 || emu_shared_address(bar) % 8)
        emu_fail("mbarrier.init of %u arrivals at %u", n_arrival, emu_shared_address(bar));
    watch_access(bar, 8, WATCH_WRITE);
    barriers[bar] = {n_arrival, n_arrival, 0, 0, {}};
}

/* Two names of a barrier's knowledge: of the phase that is, and of those that are over. */
static const void *of_phase(const uint64_t *bar)
{
    return bar;
}
static const void *of_past(const uint64_t *bar)
{
    return (const char *)bar + 1;
}

static void look(barrier &b, uint64_t *bar)
{
    if (b.left || b.bytes)
        return;
    watch_pass(of_phase(bar), of_past(bar));
    b.phase++;
    b.left = b.n_arrival;
    for (unsigned thread : b.waiters)
        emu_resume(thread);
    b.waiters.clear();
}

void emu_barrier_arrive(uint64_t *bar, unsigned bytes)
{
    watch_access(bar, 8, WATCH_READ); /* it is initialised, and the thread knows */
    barrier &b = barrier_of(bar);
    if (b.left == 0 || bytes >= 1u << 20)
        emu_fail("mbarrier at %u: an arrival more than it was initialised for",
                 emu_shared_address(bar));
    HAPPENS_BEFORE(bar);
    watch_release(of_phase(bar));
    b.left--;
    b.bytes += bytes;
    look(b, bar);
}

void emu_barrier_wait(uint64_t *bar, unsigned parity, emu_site site)
{
    watch_access(bar, 8, WATCH_READ);
    barrier &b = barrier_of(bar);
    while (b.phase % 2 == parity) {
        b.waiters.push_back(emu_index());
        emu_pause(site);
    }
    HAPPENS_AFTER(bar);
    watch_acquire(of_past(bar));
}

void emu_fence_async()
{
    watch_fence();
}

/* ---- tensor copies ---- */
bool emu_tensor_map_encode(emu_tensor_map *map, const void *array, unsigned rank,
                           const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                           const uint32_t *step)
{
    bool fits = rank == 2 && (uintptr_t)array % 16 == 0 && stride[0] % 16 == 0 &&
                stride[0] < (uint64_t)1 << 40 && stride[0] >= dim[0] * 2 && box[0] * 2 <= 128 &&
                box[0] * 2 % 16 == 0;
    for (unsigned i = 0; i < 2; i++)
        fits &= dim[i] > 0 && dim[i] <= (uint64_t)1 << 32 && box[i] > 0 && box[i] <= 256 &&
                step[i] == 1;
    if (!fits)
        return false;
    *map = {(const char *)array, rank, {dim[0], dim[1]}, {stride[0]}, {box[0], box[1]}};
    return true;
}

void emu_tensor_copy(void *to, const emu_tensor_map *map, int c0, int c1, uint64_t *bar)
{
    const unsigned row = map->box[0] * 2, bytes = row * map->box[1];
    if (emu_shared_address(to) % 128)
        emu_fail("cp.async.bulk.tensor to %u: not aligned to 128", emu_shared_address(to));
    barrier_of(bar);
    watch_access(bar, 8, WATCH_ASYNC_READ);
    watch_access(to, bytes, WATCH_ASYNC_WRITE);
    for (unsigned i = 0; i < bytes; i++)
        ((char *)to)[i] = (char)0xff;
    const char *clock = &clock_names[n_clock++ % sizeof clock_names];
    watch_release(clock);
    HAPPENS_BEFORE(bar);
    HAPPENS_BEFORE(clock);
    copies.push_back({(char *)to, *map, {c0, c1}, bar, clock});
}

bool emu_hopper_step(unsigned one_in)
{
    if (copies.empty())
        return false;
    rng ^= rng << 13; /* xorshift64 */
    rng ^= rng >> 7;
    rng ^= rng << 17;
    if ((rng >> 40) % one_in)
        return false;
    const size_t i = (size_t)(rng % copies.size());
    const copy c = copies[i];
    copies.erase(copies.begin() + (ptrdiff_t)i);
    HAPPENS_AFTER(c.clock);
    const unsigned row = c.map.box[0] * 2;
    for (unsigned y = 0; y < c.map.box[1]; y++)
        for (unsigned x = 0; x < row; x++) {
            const int64_t col = c.at[0] + (int64_t)(x / 2), line = c.at[1] + (int64_t)y;
            const bool inside = col >= 0 && (uint64_t)col < c.map.dim[0] && line >= 0 &&
                                (uint64_t)line < c.map.dim[1];
            const uint32_t to = emu_shared_address(c.to) + y * row + x;
            *shared_at(swizzled(to, 3)) =
                inside ? c.map.array[(uint64_t)line * c.map.stride[0] + (uint64_t)col * 2 + x % 2]
                       : 0;
        }
    barrier &b = barrier_of(c.bar);
    watch_pass(c.clock, of_phase(c.bar));
    HAPPENS_BEFORE(c.bar);
    b.bytes -= row * c.map.box[1];
    look(b, c.bar);
    return true;
}

/* ---- products ---- */
/* Where elements of B lie, in the manual's terms: units of 16 bytes, W of them as wide as the swizzle. */
struct matrix {
    uint32_t start, leading, stride; /* bytes */
    unsigned bits, w;
};

static matrix matrix_of(uint64_t descriptor, emu_site site)
{
    static const unsigned bits[4] = {0, 3, 2, 1};
    const uint32_t mask = (1u << (SHARED_BITS - 4)) - 1;
    matrix m;
    m.start = ((uint32_t)descriptor & mask) << 4;
    m.leading = ((uint32_t)(descriptor >> 16) & mask) << 4;
    m.stride = ((uint32_t)(descriptor >> 32) & mask) << 4;
    m.bits = bits[descriptor >> 62];
    m.w = 1u << m.bits;
    if (descriptor >> 49 & 7 || descriptor >> 14 & 3 || descriptor >> 30 & 3 ||
        descriptor >> 46 & 7 || descriptor >> 52 & 0x3ff)
        emu_fail("%s:%d: wgmma with descriptor %016llx: base offset or reserved bits", site.file,
                 site.line, (unsigned long long)descriptor);
    return m;
}

static uint32_t address_of(const matrix &m, bool mn_major, unsigned mn, unsigned k)
{
    uint32_t at;
    if (mn_major) {
        const unsigned unit = mn / 8;
        at = m.bits ? unit % m.w * 16 + unit / m.w * m.leading + k % 8 * m.w * 16 + k / 8 * m.stride
                    : unit * m.stride + k % 8 * 16 + k / 8 * m.leading;
        at += mn % 8 * 2;
    } else {
        at = m.bits ? mn % 8 * m.w * 16 + mn / 8 * m.stride + k / 8 * 16
                    : mn % 8 * 16 + mn / 8 * m.stride + k / 8 * m.leading;
        at += k % 8 * 2;
    }
    return swizzled(m.start + at, m.bits);
}

/* The 16-byte units of B as the running thread's access. */
static void watch_b(const product &p, emu_site site)
{
    const matrix m = matrix_of(p.b, site);
    for (unsigned i = 0; i < 2 * p.n; i++) {
        const unsigned mn = p.trans_b ? i / 16 * 8 : i / 2, k = p.trans_b ? i % 16 : i % 2 * 8;
        watch_access(shared_at(address_of(m, p.trans_b, mn, k) & ~15u), 16, WATCH_ASYNC_READ);
    }
}

/* All warps of the warpgroup ask for the same. */
static void compare_warps(const product &p, emu_site site)
{
    const unsigned index = emu_index(), turn = n_asked[index]++;
    std::vector<asked> &s = sequence[index / GROUP];
    if (turn == s.size())
        s.push_back({p.b, p.n, p.trans_b});
    if (s[turn].b != p.b || s[turn].n != p.n || s[turn].trans_b != p.trans_b)
        emu_fail("%s:%d: the warps of a warpgroup ask for different products: descriptors %016llx "
                 "and %016llx",
                 site.file, site.line, (unsigned long long)s[turn].b, (unsigned long long)p.b);
}

void emu_wgmma(float *d, unsigned n, const uint32_t *a, uint64_t b, bool keep, bool trans_b,
               emu_site site)
{
    const unsigned index = emu_index();
    if (!fenced[index])
        emu_fail("%s:%d: wgmma without a wgmma.fence since registers were free to be written",
                 site.file, site.line);
    product p = {d, a, {}, n, group_of[index], b, trans_b};
    bool chained = false;
    for (const product &q : products[index])
        chained |= q.d == d;
    if (keep && !chained)
        p.was.assign(d, d + n / 2);
    else if (keep)
        p.was.assign(1, 0); /* what the one before leaves */
    for (unsigned i = 0; i < n / 2; i++)
        d[i] = NAN;
    compare_warps(p, site);
    if (index % 32 == 0)
        watch_b(p, site);
    products[index].push_back(p);
}

void emu_wgmma_fence()
{
    fenced[emu_index()] = true;
}

void emu_wgmma_commit()
{
    group_of[emu_index()]++;
}

static float bf16_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return __uint_as_float((uint32_t)h << 16);
}

/* B of a product for all lanes of a warp: the first that comes reads it. */
static float (*operand_of(const product &p, emu_site site))[16]
{
    const unsigned index = emu_index(), turn = ++n_computed[index];
    operand &o = operands[index / 32];
    if (o.turn == turn)
        return o.b;
    const matrix m = matrix_of(p.b, site);
    watch_b(p, site);
    for (unsigned n = 0; n < p.n; n++)
        for (unsigned k = 0; k < 16; k++)
            o.b[n][k] = bf16_at(shared_at(address_of(m, p.trans_b, n, k)));
    o.turn = turn;
    return o.b;
}

static void compute(const product &p, emu_site site)
{
    const unsigned lane = emu_lane();
    uint32_t all[32 * 4];
    emu_gather(~0u, p.a, all, 4, site);
    float(*b)[16] = operand_of(p, site);
    if (p.was.size() > 1)
        memcpy(p.d, p.was.data(), p.n / 2 * sizeof(float));
    else if (p.was.empty())
        memset(p.d, 0, p.n / 2 * sizeof(float));
    for (unsigned i = 0; i < p.n / 2; i++) {
        const unsigned row = lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            /* a's word: rows g and g + 8 in 0 and 1, columns 8 … 15 in 2 and 3 */
            const uint32_t word = all[(row % 8 * 4 + k % 8 / 2) * 4 + row / 8 + k / 8 * 2];
            const float x = __uint_as_float(k % 2 ? word & 0xffff0000u : word << 16);
            p.d[i] += x * b[col][k];
        }
    }
}

void emu_wgmma_wait(unsigned n_pending, emu_site site)
{
    const unsigned index = emu_index();
    const unsigned done = group_of[index] > n_pending ? group_of[index] - n_pending : 0;
    while (!products[index].empty() && products[index].front().group < done) {
        compute(products[index].front(), site);
        products[index].pop_front();
    }
    fenced[index] = false;
}

/* ---- a block ---- */
void emu_hopper_block(char *memory)
{
    shared = memory;
    rng = (emu_seed + emu_n_launch) * 0x9e3779b97f4a7c15u | 1;
    barriers.clear();
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        group_of[i] = n_asked[i] = n_computed[i] = 0;
        fenced[i] = false;
        operands[i / 32].turn = 0;
        sequence[i / GROUP].clear();
    }
}

void emu_hopper_end(unsigned thread)
{
    if (!products[thread].empty())
        emu_fail("a thread ended with %zu products of wgmma under way", products[thread].size());
}

void emu_hopper_done()
{
    if (!copies.empty())
        emu_fail("a block ended with %zu copies of cp.async.bulk under way", copies.size());
}
