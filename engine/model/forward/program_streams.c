/* SPDX-License-Identifier: Apache-2.0 */
/* Several residual streams (AltUp) and the low-rank branch beside attention (LAuReL): Gemma 3n.
 *
 * x is the first stream, which the branches of a layer read and change as in other models. Buffer
 * `streams` has n parts: part 0 what was predicted for x, part j stream j. In front of a layer's
 * branches all streams are predicted from all of them, behind these corrected by what the branches
 * have changed in x. Begin and end are operations of the first and the last layer, so that they go
 * through blocks of rows as these do.
 * Source: arXiv:2301.13310, arXiv:2411.07501; what is computed: transformers' gemma3n. */
#include <math.h>
#include "engine/model/forward/program_compiler.h"

static struct program_ref streams(const struct compiler *t)
{
    return ref_of(PROGRAM_B_STREAMS, DT_F32, t->c->streams.n * t->c->hidden_size);
}

static struct program_ref stream_at(const struct compiler *t, uint32_t j)
{
    return part_of(streams(t), j * t->c->hidden_size, t->c->hidden_size);
}

/* With the magnitude of x. */
static void match(struct compiler *t, struct program_ref s)
{
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_MATCH,
                      .in = {s, stream(t)},
                      .out = s,
                      .in_place = true,
                  });
}

void compile_streams_begin(struct compiler *t)
{
    const uint32_t hidden = t->c->hidden_size, n = t->c->streams.n;
    const struct program_ref others = part_of(streams(t), hidden, (n - 1) * hidden);
    const enum program_weight in = PROGRAM_W_STREAMS_IN;
    compile_matmul(t, compile_input(t, stream(t), PROGRAM_B_H_Q, in), others, in, PROGRAM_W_NONE);
    match(t, others);
}

/* The n numbers that the sums are weighed by. */
static struct program_ref scores(struct compiler *t)
{
    const enum program_weight router = PROGRAM_W_STREAM_ROUTER;
    const struct program_ref to = ref_of(PROGRAM_B_SCORES, DT_F32, t->c->streams.n);
    compile_norm_of_stream(t, PROGRAM_W_STREAM_NORM, router);
    compile_matmul(t, ref_of(PROGRAM_B_H, made_for(t, router), t->c->hidden_size), to, router,
                   PROGRAM_W_NONE);
    compile_scale(t, to, 1.0 / t->c->hidden_size);
    return to;
}

void compile_streams_predict(struct compiler *t)
{
    const struct program_ref by = scores(t);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_PREDICT,
                      .in = {stream(t), by},
                      .out = streams(t),
                      .weight = PROGRAM_W_STREAM_PREDICT,
                      .onto = true,
                  });
}

struct program_ref compile_streams_correct(struct compiler *t)
{
    const struct program_ref by = scores(t);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_CORRECT,
                      .in = {stream(t), by},
                      .out = streams(t),
                      .weight = PROGRAM_W_STREAM_CORRECT,
                      .bias = if_there(t, PROGRAM_W_STREAM_SCALE),
                      .onto = true,
                  });
    return stream_at(t, 0);
}

void compile_add_streams(struct compiler *t, uint16_t buffer, enum program_weight post_norm)
{
    const struct program_ref o = ref_of(buffer, DT_F32, t->c->hidden_size);
    compile_norm(t, &(struct compiled_norm){post_norm, PROGRAM_W_NONE, o, o, o.n_col, false});
    for (uint32_t j = 1; j < t->c->streams.n; j++)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_ADD,
                          .in = {o},
                          .out = stream_at(t, j),
                          .onto = true,
                          .scale = 1,
                      });
}

void compile_streams_end(struct compiler *t)
{
    const uint32_t hidden = t->c->hidden_size, n = t->c->streams.n;
    const struct program_ref all = ref_of(PROGRAM_B_STREAMS_OUT, DT_F32, (n - 1) * hidden);
    for (uint32_t j = 1; j < n; j++) {
        const enum program_weight out = (enum program_weight)(PROGRAM_W_STREAM_OUT_1 + (j - 1));
        compile_matmul(t, compile_input(t, stream_at(t, j), PROGRAM_B_H_Q, out),
                       part_of(all, (j - 1) * hidden, hidden), out, PROGRAM_W_NONE);
    }
    match(t, all);
    for (uint32_t j = 1; j < n; j++)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_ADD,
                          .in = {part_of(all, (j - 1) * hidden, hidden)},
                          .out = stream(t),
                          .onto = true,
                          .scale = 1,
                      });
    compile_scale(t, stream(t), 1.0 / n);
}

/* ---- the low-rank branch ---- */

void compile_low_rank(struct compiler *t)
{
    const uint32_t hidden = t->c->hidden_size;
    const struct program_ref h = ref_of(PROGRAM_B_LOW_RANK, DT_F32, hidden);
    const struct program_ref o = ref_of(PROGRAM_B_O, DT_F32, hidden);
    const struct program_ref ranks = ref_of(PROGRAM_B_RANKS, DT_F32, t->c->streams.rank);
    const enum program_weight in = PROGRAM_W_LOW_RANK_IN, out = PROGRAM_W_LOW_RANK_OUT;
    compile_norm(t, &(struct compiled_norm){PROGRAM_W_ATTN_NORM, PROGRAM_W_NONE, stream(t), h,
                                            hidden, false});
    compile_matmul(t, compile_input(t, h, PROGRAM_B_H_Q, in), ranks, in, PROGRAM_W_NONE);
    compile_matmul(t, compile_input(t, ranks, PROGRAM_B_ACT_Q, out), o, out, PROGRAM_W_NONE);
    compile_norm(
        t, &(struct compiled_norm){PROGRAM_W_LOW_RANK_NORM, PROGRAM_W_NONE, o, o, hidden, false});
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ADD,
                      .in = {o},
                      .out = h,
                      .onto = true,
                      .scale = 1,
                  });
}

void compile_add_low_rank(struct compiler *t)
{
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ADD,
                      .in = {ref_of(PROGRAM_B_LOW_RANK, DT_F32, t->c->hidden_size)},
                      .out = stream(t),
                      .onto = true,
                      .scale = 1,
                  });
    compile_scale(t, stream(t), sqrt(0.5));
}
