/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that are no attention: each function writes the operations of one kind of mixer, from the
 * norm of the stream to the input of its last product. */
#include "engine/model/forward/program_compiler.h"
#include <math.h>

static void conv_silu(struct compiler *t, struct program_ref from, struct program_ref to)
{
    const struct program_ref conv = ref_of(PROGRAM_B_MIX_CONV, DT_F32, from.n_col);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_CONV,
                      .in = {from},
                      .out = conv,
                      .weight = PROGRAM_W_CONV,
                      .bias = if_there(t, PROGRAM_W_CONV_BIAS),
                      .conv = {.width = t->c->mixer.conv_width},
                  });
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ACTIVATE,
                      .in = {conv},
                      .out = to,
                      .act = {ARCH_SILU, false, 0},
                  });
}

/* By the mixer's own eps, where it has one. */
static void norm_of_mixer(struct compiler *t, enum program_weight weight, struct program_ref x,
                          uint32_t unit)
{
    const uint32_t at = t->p->n_op;
    compile_norm(t, &(struct compiled_norm){weight, PROGRAM_W_NONE, x, x, unit, false});
    if (!t->rc && t->c->mixer.norm_eps != 0)
        t->p->ops[at].norm.eps = (float)t->c->mixer.norm_eps;
}

static void first_product(struct compiler *t, struct program_ref to)
{
    compile_matmul(t, compile_branch_input(t, PROGRAM_W_ATTN_NORM, PROGRAM_W_MIX_IN), to,
                   PROGRAM_W_MIX_IN, PROGRAM_W_MIX_IN_BIAS);
}

/* LFM2: C * conv(B * x), of the three parts B, C, x of the first product. */
static struct program_ref short_conv(struct compiler *t)
{
    const struct mixer_config *m = &t->c->mixer;
    const uint32_t n = arch_dim_size(t->c, D_CONV);
    const struct program_ref mix = ref_of(PROGRAM_B_MIX, DT_F32, arch_dim_size(t->c, D_MIX_IN));
    const struct program_ref a = ref_of(PROGRAM_B_A, DT_F32, n);
    first_product(t, mix);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_CONV,
                      .in = {mix},
                      .out = a,
                      .weight = PROGRAM_W_CONV,
                      .bias = if_there(t, PROGRAM_W_CONV_BIAS),
                      .conv = {.width = m->conv_width, .gated = true},
                  });
    return a;
}

/* silu(z) * norm(delta(silu(conv(q, k, v)))): z, then the output, lie behind one another. */
static struct program_ref delta_net(struct compiler *t)
{
    const struct mixer_config *m = &t->c->mixer;
    const uint32_t n_conv = arch_dim_size(t->c, D_CONV), n_gate = arch_dim_size(t->c, D_MIX_BA);
    const uint32_t n_value = arch_dim_size(t->c, D_MIX_OUT), n_in = n_conv + n_gate + n_value;
    const struct program_ref mix = ref_of(PROGRAM_B_MIX, DT_F32, n_in + n_value);
    const struct program_ref made = part_of(mix, n_in, n_value);
    const struct program_ref act = ref_of(PROGRAM_B_MIX_ACT, DT_F32, n_conv);
    const struct program_ref a = ref_of(PROGRAM_B_A, made_for(t, PROGRAM_W_MIX_OUT), n_value);
    first_product(t, part_of(mix, 0, n_in));
    conv_silu(t, part_of(mix, 0, n_conv), act);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_DELTA,
                      .in = {act, part_of(mix, n_conv, n_gate)},
                      .out = made,
                      .weight = PROGRAM_W_MIX_RATE,
                      .bias = PROGRAM_W_MIX_RATE_BIAS,
                      .delta = {0, m->n_key_head, m->n_value_head, m->key_dim, m->value_dim,
                                m->negative ? 2 : 1},
                  });
    norm_of_mixer(t, PROGRAM_W_MIX_NORM, made, m->value_dim);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ACTIVATE,
                      .in = {part_of(mix, n_conv + n_gate, 2 * n_value)},
                      .out = a,
                      .act = {ARCH_SILU, true, 0},
                  });
    return a;
}

/* ---- Mamba ---- */

static void gate_silu(struct compiler *t, struct program_ref x, struct program_ref by,
                      struct program_ref to)
{
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_GATE,
                      .in = {x, by},
                      .out = to,
                      .in_place = x.buffer == to.buffer,
                      .gate = KERN_GATE_SILU,
                  });
}

/* A norm of each group of heads, and the gate, in one order or the other. */
static struct program_ref gated_norm(struct compiler *t, struct program_ref made,
                                     struct program_ref gate)
{
    const struct mixer_config *m = &t->c->mixer;
    const bool apart = m->n_key_head > 1, gate_last = m->no_norm || m->norm_first;
    const enum dtype dtype = gate_last || apart ? DT_F32 : made_for(t, PROGRAM_W_MIX_OUT);
    const struct program_ref a = ref_of(PROGRAM_B_A, dtype, made.n_col);
    const struct compiled_norm norm = {
        PROGRAM_W_MIX_NORM,         PROGRAM_W_NONE, made, gate_last ? made : a,
        made.n_col / m->n_key_head, apart};
    if (!m->no_norm && gate_last)
        compile_norm(t, &norm);
    gate_silu(t, made, gate, gate_last ? a : made);
    if (!gate_last)
        compile_norm(t, &norm);
    return a;
}

/* Mamba 2: gate, x, B, C and steps are parts of the first product; the output lies behind them. */
static struct program_ref ssd(struct compiler *t)
{
    const struct mixer_config *m = &t->c->mixer;
    const uint32_t n_y = arch_dim_size(t->c, D_MIX_OUT), n_conv = arch_dim_size(t->c, D_CONV);
    const uint32_t n_b = m->n_key_head * m->key_dim, n_in = arch_dim_size(t->c, D_MIX_IN);
    const uint32_t parts[CONFIG_SSD_PARTS] = {n_y, n_y, n_b, n_b, m->n_value_head};
    const struct program_ref mix = ref_of(PROGRAM_B_MIX, DT_F32, n_in + n_y);
    const struct program_ref made = part_of(mix, n_in, n_y);
    const struct program_ref act = ref_of(PROGRAM_B_MIX_ACT, DT_F32, n_conv);
    first_product(t, part_of(mix, 0, n_in));
    for (uint32_t i = 0, at = 0; i < CONFIG_SSD_PARTS; at += parts[i++])
        compile_scale(t, part_of(mix, at, parts[i]), m->multipliers[i]);
    conv_silu(t, part_of(mix, n_y, n_conv), act);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_SCAN,
                      .in = {act, part_of(mix, n_y + n_conv, m->n_value_head)},
                      .out = made,
                      .weight = PROGRAM_W_MIX_RATE,
                      .bias = PROGRAM_W_MIX_RATE_BIAS,
                      .scan =
                          {
                              .n_head = m->n_value_head,
                              .head_dim = m->value_dim,
                              .n_group = m->n_key_head,
                              .n_state = m->key_dim,
                              .first = n_y,
                              .step_min = (float)m->step_min,
                              .step_max = (float)m->step_max,
                          },
                  });
    return gated_norm(t, made, part_of(mix, 0, n_y));
}

static void norm_part(struct compiler *t, struct program_ref part, enum program_weight weight)
{
    if (if_there(t, weight))
        norm_of_mixer(t, weight, part, part.n_col);
}

/* Mamba: x and the gate are parts of the first product, steps lie behind them, then the output.
 * What steps are made of, B and C are made of x, and lie behind it. */
static struct program_ref selective_scan(struct compiler *t)
{
    const struct mixer_config *m = &t->c->mixer;
    const uint32_t n_y = arch_dim_size(t->c, D_MIX_OUT), n_made = arch_dim_size(t->c, D_MIX_X);
    const struct program_ref mix = ref_of(PROGRAM_B_MIX, DT_F32, 4 * n_y);
    const struct program_ref steps = part_of(mix, 2 * n_y, n_y), y = part_of(mix, 3 * n_y, n_y);
    const struct program_ref act = ref_of(PROGRAM_B_MIX_ACT, DT_F32, n_y + n_made);
    const struct program_ref x = part_of(act, 0, n_y), low = part_of(act, n_y, m->step_rank);
    const struct program_ref b = part_of(act, n_y + m->step_rank, m->key_dim);
    const struct program_ref a = ref_of(PROGRAM_B_A, DT_F32, n_y);
    first_product(t, part_of(mix, 0, 2 * n_y));
    conv_silu(t, part_of(mix, 0, n_y), x);
    compile_matmul(t, compile_input(t, x, PROGRAM_B_MIX_Q, PROGRAM_W_MIX_X),
                   part_of(act, n_y, n_made), PROGRAM_W_MIX_X, PROGRAM_W_NONE);
    norm_part(t, low, PROGRAM_W_STEP_NORM);
    norm_part(t, b, PROGRAM_W_B_NORM);
    norm_part(t, part_of(b, m->key_dim, m->key_dim), PROGRAM_W_C_NORM);
    compile_matmul(t, compile_input(t, low, PROGRAM_B_MIX_Q, PROGRAM_W_MIX_STEP), steps,
                   PROGRAM_W_MIX_STEP, PROGRAM_W_NONE);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_SCAN,
                      .in = {act, steps},
                      .out = y,
                      .weight = PROGRAM_W_MIX_RATE,
                      .bias = PROGRAM_W_MIX_RATE_BIAS,
                      .scan =
                          {
                              .n_head = n_y,
                              .head_dim = 1,
                              .n_group = 1,
                              .n_state = m->key_dim,
                              .first = n_y + m->step_rank,
                              .step_max = INFINITY,
                              .by_state = true,
                          },
                  });
    gate_silu(t, y, part_of(mix, n_y, n_y), a);
    return a;
}

/* ---- lightning attention ---- */

/* sigmoid(gate) * norm(scan(silu(v, k, q))): v, k, q and the gate are parts of the first product,
 * the output lies behind them. Limits of 1 make every step 1, whatever it is made of. */
static struct program_ref lightning(struct compiler *t)
{
    const struct mixer_config *m = &t->c->mixer;
    const uint32_t n = arch_dim_size(t->c, D_MIX_OUT);
    const struct program_ref mix = ref_of(PROGRAM_B_MIX, DT_F32, 5 * n);
    const struct program_ref made = part_of(mix, 4 * n, n);
    const struct program_ref act = ref_of(PROGRAM_B_MIX_ACT, DT_F32, 3 * n);
    const struct program_ref a = ref_of(PROGRAM_B_A, DT_F32, n);
    first_product(t, part_of(mix, 0, 4 * n));
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ACTIVATE,
                      .in = {part_of(mix, 0, 3 * n)},
                      .out = act,
                      .act = {t->act, false, 0},
                  });
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_SCAN,
                      .in = {act, part_of(mix, 0, m->n_value_head)},
                      .out = made,
                      .weight = PROGRAM_W_MIX_RATE,
                      .bias = PROGRAM_W_MIX_RATE_BIAS,
                      .scan =
                          {
                              .n_head = m->n_value_head,
                              .head_dim = m->value_dim,
                              .n_group = m->n_key_head,
                              .n_state = m->key_dim,
                              .first = n,
                              .step_min = 1,
                              .step_max = 1,
                          },
                  });
    norm_of_mixer(t, PROGRAM_W_MIX_NORM, made, n);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_GATE,
                      .in = {made, part_of(mix, 3 * n, n)},
                      .out = a,
                      .gate = KERN_GATE_SIGMOID,
                  });
    return a;
}

void compile_mixer(struct compiler *t, uint16_t to)
{
    static struct program_ref (*const kinds[])(struct compiler *) = {
        [MIXER_CONV] = short_conv,     [MIXER_DELTA] = delta_net,     [MIXER_SSD] = ssd,
        [MIXER_SCAN] = selective_scan, [MIXER_LIGHTNING] = lightning,
    };
    const struct program_ref a = kinds[t->c->mixer.layers[t->layer]](t);
    compile_matmul(t, compile_input(t, a, PROGRAM_B_A_Q, PROGRAM_W_MIX_OUT),
                   ref_of(to, DT_F32, t->c->hidden_size), PROGRAM_W_MIX_OUT,
                   PROGRAM_W_MIX_OUT_BIAS);
}
