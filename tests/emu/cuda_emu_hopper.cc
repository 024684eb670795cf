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
extern "C" {
#include "common/dtype.h"
#include "kernels/ops/e4m3.h"
}
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
    int at[3];
    uint64_t *bar;
    const char *clock; /* a name for what the thread knew that asked for it */
};
struct product {
    void *d; /* f32 or s32 [n / 2] */
    bool of_tiles;
    const uint32_t *words;     /* A in registers */
    std::vector<uint32_t> was; /* accumulators before; empty: not kept */
    unsigned n, group;
    uint64_t a, b;
    bool trans_b;
    enum emu_kind kind;
};
struct asked { /* a product as the first thread of a warpgroup asked for it */
    uint64_t a, b;
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
struct operand {   /* of the product that a warp is at, for its 32 lanes; integers are exact */
    unsigned turn; /* 0: none */
    float a[16][32], b[256][32];
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
bool emu_tensor_map_encode(emu_tensor_map *map, const void *array, unsigned rank, unsigned element,
                           const uint64_t *dim, const uint64_t *stride, const uint32_t *box,
                           const uint32_t *step)
{
    bool fits = (rank == 2 || rank == 3) && (element == 1 || element == 2) &&
                (uintptr_t)array % 16 == 0 && stride[0] >= dim[0] * element &&
                box[0] * element <= 128 && box[0] * element % 16 == 0;
    for (unsigned i = 0; fits && i < rank; i++)
        fits = dim[i] > 0 && dim[i] <= (uint64_t)1 << 32 && box[i] > 0 && box[i] <= 256 &&
               step[i] == 1;
    for (unsigned i = 0; fits && i + 1 < rank; i++)
        fits = stride[i] % 16 == 0 && stride[i] > 0 && stride[i] < (uint64_t)1 << 40;
    if (!fits)
        return false;
    *map = {(const char *)array, rank, element, {1, 1, 1}, {0, 0}, {1, 1, 1}};
    for (unsigned i = 0; i < rank; i++) {
        map->dim[i] = dim[i];
        map->box[i] = box[i];
        if (i)
            map->stride[i - 1] = stride[i - 1];
    }
    return true;
}

void emu_tensor_copy(void *to, const emu_tensor_map *map, int c0, int c1, int c2, uint64_t *bar)
{
    const unsigned bytes = map->box[0] * map->element * map->box[1];
    if (emu_shared_address(to) % 128)
        emu_fail("cp.async.bulk.tensor to %u: not aligned to 128", emu_shared_address(to));
    if (map->box[2] != 1)
        emu_fail("cp.async.bulk.tensor: a box of more than one array is not emulated");
    barrier_of(bar);
    watch_access(bar, 8, WATCH_ASYNC_READ);
    watch_access(to, bytes, WATCH_ASYNC_WRITE);
    for (unsigned i = 0; i < bytes; i++)
        ((char *)to)[i] = (char)0xff;
    const char *clock = &clock_names[n_clock++ % sizeof clock_names];
    watch_release(clock);
    HAPPENS_BEFORE(bar);
    HAPPENS_BEFORE(clock);
    copies.push_back({(char *)to, *map, {c0, c1, c2}, bar, clock});
}

/* A row of a box, by units of 16 bytes. */
static void copy_row(const copy &c, unsigned y)
{
    const unsigned element = c.map.element, row = c.map.box[0] * element;
    const int64_t line = c.at[1] + (int64_t)y;
    const bool there = line >= 0 && (uint64_t)line < c.map.dim[1] && c.at[2] >= 0 &&
                       (uint64_t)c.at[2] < c.map.dim[2];
    const char *from = c.map.array;
    if (there)
        from += (uint64_t)line * c.map.stride[0] + (uint64_t)c.at[2] * c.map.stride[1];
    for (unsigned unit = 0; unit < row; unit += 16) {
        char *to = shared_at(swizzled(emu_shared_address(c.to) + y * row + unit, 3));
        for (unsigned x = 0; x < 16; x++) {
            const int64_t col = c.at[0] + (int64_t)((unit + x) / element);
            const bool inside = there && col >= 0 && (uint64_t)col < c.map.dim[0];
            to[x] = inside ? from[(uint64_t)col * element + x % element] : 0;
        }
    }
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
    for (unsigned y = 0; y < c.map.box[1]; y++)
        copy_row(c, y);
    barrier &b = barrier_of(c.bar);
    watch_pass(c.clock, of_phase(c.bar));
    HAPPENS_BEFORE(c.bar);
    b.bytes -= c.map.box[0] * c.map.element * c.map.box[1];
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

/* k: in numbers of 16 bits, or in pairs of bytes. */
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

/* The 16-byte units of what the running thread's warp reads as its access: of A in shared memory its
 * rows; of B all, or of products with both there, which are large, every fourth row: who fills a slot
 * too early fills all of it. */
static void watch_operands(const product &p, emu_site site)
{
    const matrix m = matrix_of(p.b, site);
    const unsigned from = p.of_tiles ? emu_index() % GROUP / 32 : 0, step = p.of_tiles ? 4 : 1;
    for (unsigned i = 0; i < 2 * p.n; i++) {
        const unsigned mn = p.trans_b ? i / 16 * 8 : i / 2, k = p.trans_b ? i % 16 : i % 2 * 8;
        if (mn % step == from)
            watch_access(shared_at(address_of(m, p.trans_b, mn, k) & ~15u), 16, WATCH_ASYNC_READ);
    }
    if (!p.of_tiles)
        return;
    const matrix a = matrix_of(p.a, site);
    for (unsigned i = 0; i < 32; i++) {
        const unsigned row = emu_index() % GROUP / 32 * 16 + i / 2;
        watch_access(shared_at(address_of(a, false, row, i % 2 * 8)), 16, WATCH_ASYNC_READ);
    }
}

/* All warps of the warpgroup ask for the same. */
static void compare_warps(const product &p, emu_site site)
{
    const unsigned index = emu_index(), turn = n_asked[index]++;
    std::vector<asked> &s = sequence[index / GROUP];
    if (turn == s.size())
        s.push_back({p.a, p.b, p.n, p.trans_b});
    if (s[turn].a != p.a || s[turn].b != p.b || s[turn].n != p.n || s[turn].trans_b != p.trans_b)
        emu_fail("%s:%d: the warps of a warpgroup ask for different products: descriptors %016llx "
                 "and %016llx",
                 site.file, site.line, (unsigned long long)s[turn].b, (unsigned long long)p.b);
}

/* Sums that a product under way goes on with are not to be seen. */
static void hide(const product &p)
{
    uint32_t *d = (uint32_t *)p.d;
    for (unsigned i = 0; i < p.n / 2; i++)
        d[i] = 0x7fc00000u; /* NaN */
}

static void ask(product &p, bool keep, emu_site site)
{
    const unsigned index = emu_index();
    uint32_t *d = (uint32_t *)p.d;
    if (!fenced[index])
        emu_fail("%s:%d: wgmma without a wgmma.fence since registers were free to be written",
                 site.file, site.line);
    bool chained = false;
    for (const product &q : products[index])
        chained |= q.d == p.d;
    if (keep && !chained)
        p.was.assign(d, d + p.n / 2);
    else if (keep)
        p.was.assign(1, 0); /* what the one before leaves */
    hide(p);
    compare_warps(p, site);
    if (index % 32 == 0)
        watch_operands(p, site);
    products[index].push_back(p);
}

void emu_wgmma(float *d, unsigned n, const uint32_t *a, uint64_t b, bool keep, bool trans_b,
               emu_site site)
{
    product p = {d, false, a, {}, n, group_of[emu_index()], 0, b, trans_b, EMU_BF16};
    ask(p, keep, site);
}

void emu_wgmma_tiles(void *d, unsigned n, uint64_t a, uint64_t b, bool keep, enum emu_kind kind,
                     emu_site site)
{
    product p = {d, true, nullptr, {}, n, group_of[emu_index()], a, b, false, kind};
    ask(p, keep, site);
}

void emu_wgmma_fence()
{
    fenced[emu_index()] = true;
}

void emu_wgmma_commit()
{
    group_of[emu_index()]++;
}

static float bf16_value_of(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* The numbers of 16 bits at p, one, or of 8 bits, two. */
static void numbers_at(float *to, const char *p, enum emu_kind kind)
{
    uint16_t h;
    memcpy(&h, p, 2);
    if (kind == EMU_BF16)
        to[0] = bf16_value_of(h);
    else if (kind == EMU_F16)
        to[0] = f16_to_f32(h);
    else
        for (unsigned i = 0; i < 2; i++)
            to[i] =
                kind == EMU_I8 ? (float)(int8_t)(h >> 8 * i) : e4m3_to_f32((uint8_t)(h >> 8 * i));
}

static bool is_bytes(const product &p)
{
    return p.kind == EMU_I8 || p.kind == EMU_E4M3;
}

/* Operands of a product for all lanes of a warp: the first that comes reads them. */
static const operand &operand_of(const product &p, emu_site site)
{
    const unsigned index = emu_index(), turn = ++n_computed[index], wide = is_bytes(p) ? 2 : 1;
    operand &o = operands[index / 32];
    if (o.turn == turn)
        return o;
    const matrix m = matrix_of(p.b, site);
    watch_operands(p, site);
    for (unsigned n = 0; n < p.n; n++)
        for (unsigned k = 0; k < 16; k++)
            numbers_at(&o.b[n][k * wide], shared_at(address_of(m, p.trans_b, n, k)), p.kind);
    for (unsigned i = 0; p.of_tiles && i < 16; i++)
        for (unsigned k = 0; k < 16; k++)
            numbers_at(
                &o.a[i][k * wide],
                shared_at(address_of(matrix_of(p.a, site), false, index % GROUP / 32 * 16 + i, k)),
                p.kind);
    o.turn = turn;
    return o;
}

/* A of an instruction whose A is in registers, for the rows of this warp. */
static void gather_a(float a[16][32], const product &p, emu_site site)
{
    uint32_t all[32 * 4];
    emu_gather(~0u, p.words, all, 4, site);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < 16; k++) {
            /* a's word: rows g and g + 8 in 0 and 1, columns 8 … 15 in 2 and 3 */
            const uint32_t word = all[(row % 8 * 4 + k % 8 / 2) * 4 + row / 8 + k / 8 * 2];
            a[row][k] = __uint_as_float(k % 2 ? word & 0xffff0000u : word << 16);
        }
}

/* Hopper's sum of e4m3: cut to 14 bits. */
static float cut(float f)
{
    return __uint_as_float(__float_as_uint(f) & ~0x3ffu);
}

static void compute(const product &p, emu_site site)
{
    const unsigned lane = emu_lane(), n_k = is_bytes(p) ? 32 : 16;
    float in_registers[16][32];
    uint32_t none[32];
    if (p.of_tiles) /* whole warps, product by product: they share what is read */
        emu_gather(~0u, &p.n, none, 1, site);
    else
        gather_a(in_registers, p, site);
    const operand &o = operand_of(p, site);
    const float(*a)[32] = p.of_tiles ? o.a : in_registers;
    if (p.was.size() > 1)
        memcpy(p.d, p.was.data(), p.n / 2 * sizeof(float));
    else if (p.was.empty())
        memset(p.d, 0, p.n / 2 * sizeof(float));
    for (unsigned i = 0; i < p.n / 2; i++) {
        const unsigned row = lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float *d = (float *)p.d + i;
        if (p.kind == EMU_I8) {
            int sum = 0;
            for (unsigned k = 0; k < n_k; k++)
                sum += (int)a[row][k] * (int)o.b[col][k];
            ((int *)p.d)[i] += sum;
            continue;
        }
        float sum = *d;
        for (unsigned k = 0; k < n_k; k++)
            sum += a[row][k] * o.b[col][k];
        *d = p.kind == EMU_E4M3 ? cut(sum) : sum;
    }
}

void emu_wgmma_wait(unsigned n_pending, emu_site site)
{
    const unsigned index = emu_index();
    const unsigned done = group_of[index] > n_pending ? group_of[index] - n_pending : 0;
    std::deque<product> &open = products[index];
    while (!open.empty() && open.front().group < done) {
        compute(open.front(), site);
        const void *d = open.front().d;
        open.pop_front();
        for (product &next : open)
            if (next.d == d) { /* of the same accumulators: chained, or it does not keep them */
                if (next.was.size() == 1)
                    next.was.assign((const uint32_t *)d, (const uint32_t *)d + next.n / 2);
                hide(next);
                break;
            }
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
