/* SPDX-License-Identifier: Apache-2.0 */
/* The table is filled by the lines of kernels.def in their order, each taken when the machine has
 * what it needs, so the last one that fits stays. Nothing here is written per operation. */
#include "kernels/kern.h"
#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#include "kernels/kv_layout.h"
#include "kernels/split.h"
#include "kernels/variants.h"

static const struct {
    const char *name;
    uint32_t
        caps; /* each includes what the weaker ones have, so that a mask is a plain "at most" */
} levels[] = {
    {"avx512_bf16", CAP_AVX2 | CAP_AVX512 | CAP_AVX512_BF16},
    {"avx512", CAP_AVX2 | CAP_AVX512},
    {"avx2", CAP_AVX2},
    {"none", CAP_NONE},
};

#ifdef __x86_64__
/* Two features that clang 14's __builtin_cpu_supports has no name for.
 * Source: Intel SDM volume 2, CPUID. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static bool has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#endif

uint32_t kern_caps_machine(void)
{
    uint32_t caps = CAP_NONE;
#ifdef __x86_64__
    /* These builtins also ask the operating system (xgetbv) whether it saves the wide registers. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        caps |= CAP_AVX2;
    if (caps && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        caps |= CAP_AVX512;
    if ((caps & CAP_AVX512) && has_avx512_bf16())
        caps |= CAP_AVX512_BF16;
#endif
    return caps;
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
    return q_fail(e, Q_INVALID, "kernels: \"%s\" is none of auto, avx512_bf16, avx512, avx2, none",
                  text);
}

void kern_table_cpu(struct kern_table *t, uint32_t caps)
{
    memset(t, 0, sizeof *t);
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

size_t kern_scratch_bytes(uint32_t context_max, uint32_t n_head, uint32_t head_dim)
{
    (void)n_head; /* rows are taken KERN_ATTENTION_ROWS at a time however many heads there are */
    size_t linear = (size_t)KERN_LINEAR_ROWS * KERN_PANEL * sizeof(float);
    size_t head = ((size_t)head_dim + 15) / 16 * 16;
    size_t context = ((size_t)context_max + KERN_BLOCK - 1) / KERN_BLOCK * KERN_BLOCK;
    size_t attention = KERN_ATTENTION_ROWS * (context + 2 * head) * sizeof(float);
    return linear > attention ? linear : attention;
}

size_t kern_kv_block_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim)
{
    return n_kv_head * kv_head_bytes(kv_dtype, head_dim);
}
