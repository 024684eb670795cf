/* SPDX-License-Identifier: Apache-2.0 */
/* The table is filled from the lines of kernels.def in their order; each line whose instruction
 * sets the machine has replaces the previous variant, so the last one remains. No code here is
 * specific to an operation. */
#include "kernels/kern.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#endif
#include "kernels/ops/codes_layout.h"
#include "kernels/tiling/attention_split.h"
#include "kernels/tiling/codes_scratch.h"
#include "kernels/tiling/dot_scratch.h"
#include "kernels/ops/int4_layout.h"
#include "kernels/tiling/int4_scratch.h"
#include "kernels/ops/kv_layout.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/reading.h"
#include "kernels/tiling/slice.h"
#include "kernels/tiling/split.h"
#include "kernels/tiling/top_k.h"
#include "kernels/tiling/train_tiles.h"
#include "kernels/variants.h"

#define LEVEL_AVX2_VNNI   (CAP_AVX2 | CAP_AVX_VNNI)
#define LEVEL_AVX512      (LEVEL_AVX2_VNNI | CAP_AVX512)
#define LEVEL_AVX512_VNNI (LEVEL_AVX512 | CAP_AVX512_VNNI)
#define LEVEL_AVX512_BF16 (LEVEL_AVX512_VNNI | CAP_AVX512_BF16)

static const struct {
    const char *name;
    uint32_t caps; /* each includes the bits of the weaker ones, so that a mask means "at most" */
} levels[] = {
    {"amx", ~0u},
    {"avx512_bf16", LEVEL_AVX512_BF16},
    {"avx512_vnni", LEVEL_AVX512_VNNI},
    {"avx512", LEVEL_AVX512},
    {"avx2_vnni", LEVEL_AVX2_VNNI},
    {"avx2", CAP_AVX2},
    {"none", CAP_NONE},
};

#ifdef __x86_64__
enum reg { REG_A, REG_B, REG_C, REG_D };

/* Bit `bit` of one CPUID register. Used for features that clang 14's __builtin_cpu_supports has no
 * name for. Source: Intel SDM volume 2, CPUID. */
static bool cpuid_has(unsigned leaf, unsigned part, enum reg reg, int bit)
{
    unsigned r[4];
    return __get_cpuid_count(leaf, part, &r[REG_A], &r[REG_B], &r[REG_C], &r[REG_D]) &&
           (r[reg] >> bit & 1);
}

#define ARCH_REQ_XCOMP_PERM 0x1023 /* Linux uapi, asm/prctl.h */
#define XFEATURE_XTILEDATA  18     /* the 8 KiB of the tile registers; Intel SDM volume 1, 13.1 */

/* The system saves tile registers only for a process that has requested it (for existing threads
 * too); a kernel without support rejects the request. */
static bool may_use_tiles(void)
{
    return cpuid_has(7, 0, REG_D, 24) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* The builtins also check by xgetbv that the operating system saves the wide registers; results of
 * cpuid_has are used only if a builtin has confirmed registers of the same width. */
static uint32_t caps_x86(void)
{
    uint32_t caps = CAP_NONE;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !cpuid_has(1, 0, REG_C, 29)) /* F16C */
        return caps;
    caps |= CAP_AVX2;
    if (cpuid_has(7, 1, REG_A, 4))
        caps |= CAP_AVX_VNNI;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return caps;
    caps |= CAP_AVX512;
    if (cpuid_has(7, 1, REG_A, 5))
        caps |= CAP_AVX512_BF16;
    if (__builtin_cpu_supports("avx512vnni"))
        caps |= CAP_AVX512_VNNI;
    if (!may_use_tiles())
        return caps;
    if ((caps & CAP_AVX512_VNNI) && cpuid_has(7, 0, REG_D, 25))
        caps |= CAP_AMX_INT8;
    if ((caps & CAP_AVX512_BF16) && cpuid_has(7, 0, REG_D, 22))
        caps |= CAP_AMX_BF16;
    return caps;
}
#endif

uint32_t kern_caps_machine(void)
{
#ifdef __x86_64__
    return caps_x86();
#else
    return CAP_NONE;
#endif
}

enum q_code kern_caps_parse(uint32_t *caps, const char *text, struct q_err *e)
{
    uint32_t machine = kern_caps_machine();
    if (strcmp(text, "auto") == 0) {
        *caps = machine;
        return Q_OK;
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(text, levels[i].name) == 0) {
            *caps = levels[i].caps & machine;
            return Q_OK;
        }
    return q_fail(e, Q_INVALID,
                  "kernels: unknown instruction set \"%s\"; accepted are auto, amx, avx512_bf16, "
                  "avx512_vnni, avx512, avx2_vnni, avx2, none",
                  text);
}

_Atomic uint32_t kern_slice_bytes = KERN_SLICE_SMALL, kern_slice_far_bytes;

/* The first-level cache, where the system says its size. */
static void measure_caches(void)
{
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (sysconf(_SC_LEVEL1_DCACHE_SIZE) >= KERN_L1_LARGE)
        atomic_store_explicit(&kern_slice_bytes, KERN_SLICE_LARGE, memory_order_relaxed);
#endif
}

/* Once: a choice by measurement stays when another table is made. */
static void choose_reading(void)
{
    static atomic_flag is_chosen = ATOMIC_FLAG_INIT;
    struct kern_processor p;
    if (atomic_flag_test_and_set(&is_chosen))
        return;
    struct kern_readings r;
    kern_processor(&p);
    (void)kern_readings_known(&r, &p);
    kern_read_by(&r);
}

void kern_table_cpu(struct kern_table *t, uint32_t caps)
{
    memset(t, 0, sizeof *t);
    measure_caches();
    choose_reading();
    t->caps = caps & kern_caps_machine();
#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) PICK_##table(op, variant, needs)
#define PICK_CPU(op, variant, needs)    \
    if ((t->caps & (needs)) == (needs)) \
        t->op = op##_##variant;
#include "kernels/kernels.def"
}

const char *kern_variant_name(const char *op_name, uint32_t caps)
{
    const char *name = "none";
    caps &= kern_caps_machine();
#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) NAME_##table(op, variant, needs)
#define NAME_CPU(op, variant, needs)                              \
    if (strcmp(op_name, #op) == 0 && (caps & (needs)) == (needs)) \
        name = #variant;
#include "kernels/kernels.def"
    return name;
}

size_t packed_bytes(enum dtype dtype, uint32_t n_out, uint32_t n_in)
{
    size_t n_panel = ((size_t)n_out + KERN_PANEL - 1) / KERN_PANEL;
    size_t n_k = dtype == DT_BF16 ? ((size_t)n_in + 1) / 2 * 2 : n_in;
    return n_panel * n_k * KERN_PANEL * (dtype_bits(dtype) / 8);
}

size_t packed_int8_bytes(uint32_t n_out, uint32_t n_in)
{
    return ((size_t)n_out + KERN_PANEL - 1) / KERN_PANEL * int8_panel_bytes(n_in);
}

size_t packed_fp8_block_bytes(uint32_t n_out, uint32_t n_in)
{
    return ((size_t)n_out + KERN_PANEL - 1) / KERN_PANEL * fp8_block_panel_bytes(n_in);
}

size_t packed_int4_bytes(uint32_t n_out, uint32_t n_in, uint32_t group)
{
    return ((size_t)n_out + KERN_PANEL - 1) / KERN_PANEL * int4_panel_bytes(n_in, group);
}

size_t packed_codes_bytes(const struct packed_codes *c, uint32_t n_out, uint32_t n_in)
{
    return ((size_t)n_out + KERN_PANEL - 1) / KERN_PANEL * codes_panel_bytes(c, n_in);
}

struct packed kern_panels(const struct packed *w, uint32_t begin, uint32_t end)
{
    struct packed part = *w;
    const size_t panel = w->group            ? packed_int4_bytes(KERN_PANEL, w->n_in, w->group)
                         : w->codes.kind     ? packed_codes_bytes(&w->codes, KERN_PANEL, w->n_in)
                         : w->blocks         ? packed_fp8_block_bytes(KERN_PANEL, w->n_in)
                         : w->dtype == DT_I8 ? packed_int8_bytes(KERN_PANEL, w->n_in)
                                             : packed_bytes(w->dtype, KERN_PANEL, w->n_in);
    const uint32_t to = end * KERN_PANEL < w->n_out ? end * KERN_PANEL : w->n_out;
    part.data = (const char *)w->data + begin * panel;
    part.n_out = to - begin * KERN_PANEL;
    return part;
}

uint32_t kern_int4_group(uint32_t n_in)
{
    for (uint32_t group = INT4_GROUP_MAX; group >= KERN_INT4_GROUP_MIN; group /= 2)
        if (n_in % group == 0)
            return group;
    return 0;
}

void kern_int4_set(const struct packed *w, uint32_t o, const struct int4_output *from)
{
    uint8_t *at =
        (uint8_t *)(uintptr_t)w->data + o / KERN_PANEL * int4_panel_bytes(w->n_in, w->group);
    for (uint32_t g = 0; g < w->n_in / w->group; g++, at += int4_group_bytes(w->group))
        int4_put(
            at, o % KERN_PANEL, w->group,
            &(struct int4_group){from->q + (size_t)g * w->group, from->scales[g], from->zeros[g]});
}

void kern_int8_set(const struct packed *w, uint32_t o, const int8_t *q, float scale)
{
    uint8_t *panel = (uint8_t *)(uintptr_t)w->data + o / KERN_PANEL * int8_panel_bytes(w->n_in);
    for (uint32_t k = 0; k < int8_k(w->n_in); k++)
        panel[int8_index(o, k)] = (uint8_t)((k < w->n_in ? q[k] : 0) + INT8_ZERO);
    memcpy(panel + int8_panel_scales_at(w->n_in) + o % KERN_PANEL * sizeof scale, &scale,
           sizeof scale);
}

float kern_codes_value(enum kern_codes kind, uint8_t code)
{
    return codes_value(kind, code);
}

void kern_codes_set(const struct packed *w, uint32_t o, const struct codes_output *from)
{
    uint8_t *panel =
        (uint8_t *)(uintptr_t)w->data + o / KERN_PANEL * codes_panel_bytes(&w->codes, w->n_in);
    for (uint32_t g = 0; g < w->n_in / w->codes.group; g++)
        codes_put(panel, &w->codes, o % KERN_PANEL, g, from);
}

size_t kern_mla_scratch_bytes(uint32_t context_max, uint32_t n_value)
{
    const size_t scores = KERN_MLA_HEADS * (((size_t)context_max + 15) / 16 * 16) * sizeof(float);
    const size_t row = n_value * sizeof(float);
    return scores > row ? scores : row;
}

size_t kern_scratch_bytes(uint32_t context_max, uint32_t n_head, uint32_t head_dim)
{
    (void)n_head; /* rows are taken KERN_ATTENTION_ROWS at a time however many heads there are */
    /* the other matrix products keep less */
    size_t linear = sizeof(struct int4_tiles_scratch) > sizeof(struct int4_scratch)
                        ? sizeof(struct int4_tiles_scratch)
                        : sizeof(struct int4_scratch);
    linear = sizeof(struct codes_scratch) > linear ? sizeof(struct codes_scratch) : linear;
    linear =
        sizeof(struct codes_ints_scratch) > linear ? sizeof(struct codes_ints_scratch) : linear;
    size_t head = ((size_t)head_dim + 15) / 16 * 16;
    size_t context = context_max < ATTENTION_SPLIT ? context_max : ATTENTION_SPLIT;
    context = (context + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    size_t attention =
        KERN_ATTENTION_ROWS * (context + head + 2 * partial_stride(head_dim)) * sizeof(float);
    const size_t most = linear > attention ? linear : attention, dot = dot_scratch_bytes(head_dim);
    return most > dot ? most : dot;
}

size_t kern_train_scratch_bytes(uint32_t head_dim)
{
    const size_t attention =
        TRAIN_TILES_MAX * KERN_TRAIN_TILE * train_pair_dim(head_dim) + TRAIN_SCORES;
    const size_t most = sizeof(struct top_k_scratch);
    return attention * sizeof(float) > most ? attention * sizeof(float) : most;
}

bool kern_attention_splits(const struct attention_args *a, uint32_t nth)
{
    struct split_plan p = split_plan_make(a, nth);
    for (uint32_t i = 0; i < a->n_seq && p.nth; i++) {
        const struct seq_shape q = seq_shape(a, &a->seqs[i]);
        if (split_plan_has(&p, a, &q))
            return true;
    }
    return false;
}

size_t kern_attention_parts(uint32_t context_max, uint32_t n_head, uint32_t head_dim, uint32_t nth)
{
    const size_t n_split = ((size_t)context_max + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT;
    return nth > 1 && n_split > 1 ? SPLIT_SEQS * n_split * n_head * partial_stride(head_dim) : 0;
}

size_t kern_kv_block_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim)
{
    return n_kv_head * kv_head_bytes(kv_dtype, head_dim);
}
