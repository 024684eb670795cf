/* SPDX-License-Identifier: Apache-2.0 */
/* What a description of layers can say beyond the families that goldens are there for: each of some
 * made-up families gives the logits of a plain computation in double precision (family.h), on the
 * CPU in every instruction set, with and without fusions, by any number of threads and however a
 * prompt is cut; and the CPU's bits on a device whose kernels are the reference's. */
#include "common/log.h"
#include "engine/model/forward/executor_device.h"
#include "engine/model/model_state.h"
#include "fake_device.h"
#include "family.h"
#include "golden.h"

#define N_TOKEN 40u
#define LAYER_NORMS \
    .norm = ARCH_NORM_LAYER, .mlp = ARCH_MLP_PLAIN, .activations = ARCH_ACTS_GELU | 1u << ARCH_RELU

static struct q_err e = Q_ERR_INIT;

static const struct family families[] = {
    {.name = "Llama's", .act = "silu"},
    {
        .name = "learned positions",
        .layer = {LAYER_NORMS, .positions = ARCH_LEARNED},
        .has = FAMILY_NORM_BIAS | FAMILY_BIASES,
        .act = "gelu_new",
    },
    {
        .name = "learned positions behind two rows, with norms of heads",
        .layer =
            {
                .mlp = ARCH_MLP_PLAIN,
                .activations = 1u << ARCH_RELU,
                .positions = ARCH_LEARNED,
                .first_position = 2,
                .qk_norm = ARCH_QK_NORM_HEADS,
            },
        .has = FAMILY_POSITIONS_2 | FAMILY_LM_HEAD | FAMILY_Q_NORM,
        .act = "relu",
    },
    {
        .name = "no positions",
        .layer = {.positions = ARCH_NO_POSITIONS},
        .act = "silu",
    },
    {
        .name = "one norm of both branches, a bias of the logits",
        .layer = {LAYER_NORMS, .residual = ARCH_RESIDUAL_SHARED_NORM},
        .has = FAMILY_LM_HEAD | FAMILY_LM_HEAD_BIAS | FAMILY_NORM_BIAS | FAMILY_BIASES,
        .act = "gelu_new",
    },
    {
        .name = "interleaved rope, a tied table with a bias of the logits",
        .layer = {.positions = ARCH_ROPE_INTERLEAVED, .residual = ARCH_RESIDUAL_PARALLEL},
        .has = FAMILY_LM_HEAD_BIAS,
        .act = "silu",
    },
    {
        .name = "sinks, and a window of the second layer",
        .layer = {.sinks = true, .windows = true},
        .window = 7,
        .act = "silu",
    },
    {
        .name = "multipliers",
        .layer = {.scales = true, .embedding = ARCH_EMBEDDING_CONFIG},
        .forward =
            {
                .attention_multiplier = 0.3,
                .embedding_multiplier = 2.5,
                .residual_multiplier = 0.4,
                .logit_multiplier = 0.7,
            },
        .act = "silu",
    },
    {
        .name = "experts with a router's bias, softmax of the best",
        .layer = {.sinks = true, .route = ARCH_ROUTE_TOP_SOFTMAX},
        .has = FAMILY_EXPERTS | FAMILY_ROUTER_BIAS,
        .act = "silu",
    },
    {
        .name = "experts with a router's bias, softmax of all",
        .has = FAMILY_EXPERTS | FAMILY_ROUTER_BIAS | FAMILY_LM_HEAD,
        .act = "silu",
    },
    {
        .name = "ALiBi, a norm of the embedding",
        .layer = {LAYER_NORMS, .positions = ARCH_ALIBI},
        .has = FAMILY_NORM_BIAS | FAMILY_BIASES | FAMILY_EMBED_NORM,
        .act = "gelu_new",
    },
    {
        .name = "scaled ALiBi of six heads by config, with a window and sinks",
        .layer =
            {
                .positions = ARCH_ROPE_OR_ALIBI,
                .alibi_scaled = true,
                .sinks = true,
                .windows = true,
            },
        .forward = {.alibi = true},
        .n_head = 6,
        .window = 9,
        .act = "silu",
    },
    {
        .name = "attention both ways",
        .layer = {.bidirectional = true},
        .act = "silu",
    },
    {
        .name = "attention both ways in windows, with slopes",
        .layer = {.bidirectional = true, .windows = true, .positions = ARCH_ALIBI},
        .window = 5,
        .act = "silu",
    },
    {
        .name = "experts with gelu",
        .layer = {.activations = ARCH_ACTS_GELU},
        .has = FAMILY_EXPERTS,
        .act = "gelu_new",
    },
    {
        .name = "GeGLU, a limit of q, k and v",
        .layer = {.activations = ARCH_ACTS_GELU, .clips = true},
        .forward = {.clip = 0.7},
        .act = "gelu_new",
    },
    {
        .name = "LayerNorm of heads by weights of their own, layers without rope",
        .layer =
            {
                LAYER_NORMS,
                .qk_norm = ARCH_QK_NORM_APART,
                .no_rope = true,
            },
        .has = FAMILY_HEAD_NORMS,
        .forward = {.qk_norm = true},
        .no_rope = true,
        .act = "gelu_new",
    },
    {
        .name = "RMS norms of heads by weights of their own, a rope of windows",
        .layer = {.qk_norm = ARCH_QK_NORM_APART, .windows = true, .local_rope = true},
        .has = FAMILY_HEAD_NORMS,
        .forward = {.qk_norm = true},
        .window = 11,
        .act = "silu",
    },
    {
        .name = "norms of heads behind the rope",
        .layer = {.qk_norm = ARCH_QK_NORM_HEADS, .qk_norm_behind_rope = true},
        .has = FAMILY_Q_NORM,
        .act = "silu",
    },
    {
        .name = "a gate of attention's output, attention in chunks",
        .layer = {.gated = true, .windows = true},
        .forward = {.chunks = true},
        .window = 7,
        .act = "silu",
    },
    {
        .name = "experts whose input is weighed",
        .layer = {.weighs_input = true},
        .has = FAMILY_EXPERTS | FAMILY_LM_HEAD,
        .act = "silu",
    },
    {
        .name = "q that grows with the position, xIELU",
        .layer =
            {
                .query_growth = ARCH_QUERY_GROWTH_ALL,
                .mlp = ARCH_MLP_PLAIN,
                .activations = 1u << ARCH_XIELU,
            },
        .has = FAMILY_XIELU,
        .forward = {.query_growth = 0.4, .query_length = 7, .query_first = 2},
        .act = "xielu",
    },
};
#define N_FAMILY (sizeof families / sizeof *families)

static uint32_t ids[N_TOKEN];
static double want[N_TOKEN * FAMILY_VOCAB];
static float got[N_TOKEN * FAMILY_VOCAB], other[N_TOKEN * FAMILY_VOCAB];

static void compare(const struct family_model *m, const char *how)
{
    double most = 0, off = 0;
    for (size_t i = 0; i < N_TOKEN * FAMILY_VOCAB; i++) {
        most = fmax(most, fabs(want[i]));
        off = fmax(off, isnan(got[i]) ? INFINITY : fabs((double)got[i] - want[i]));
    }
    if (!(off <= 2e-5 * most))
        fail_msg("%s, %s: logits differ by %g of %g", m->f->name, how, off, most);
}

/* ---- on the CPU ---- */

struct way {
    const char *caps;
    uint32_t n_thread, chunk;
    bool no_fusion;
};

static void run_way(const struct family_model *m, const struct way *way)
{
    struct runner r = {.n_thread = way->n_thread};
    uint32_t caps;
    assert_ok(kern_caps_parse(&caps, way->caps, &e), &e);
    kern_table_cpu(&r.kern, caps);
    if (way->n_thread > 1)
        assert_ok(team_new(&r.team, way->n_thread, false, &e), &e);
    const struct model_family f = {&m->arch, &m->config};
    const struct model_options o = {
        .dir = m->folder.path,
        .dtype = DT_F32,
        .no_fusion = way->no_fusion,
        .kern = &r.kern,
        .team = r.team,
    };
    assert_ok(model_load_family(&r.model, &f, &o, &e), &e);
    assert_ok(kv_cache_init(&r.kv, r.model, RUN_BLOCKS, &e), &e);
    assert_ok(model_scratch_new(&r.scratch, r.model, RUN_BATCH_MAX, r.n_thread, &e), &e);
    run_prompt(&r, ids, N_TOKEN, way->chunk, got);
    runner_close(&r);
}

static void the_cpu_gives_the_logits_of_the_description(void **state)
{
    static const struct way ways[] = {
        {"none", 1, N_TOKEN, false},   {"none", 3, 7, true},    {"avx2", 2, N_TOKEN, false},
        {"avx512", 1, N_TOKEN, false}, {"avx512", 3, 1, false}, {"avx512", 2, 9, true},
    };
    (void)state;
    for (size_t i = 0; i < N_FAMILY; i++) {
        struct family_model m;
        family_init(&m, &families[i]);
        family_logits(want, &m, ids, N_TOKEN);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            if (families[i].layer.bidirectional && ways[k].chunk < N_TOKEN)
                continue;
            run_way(&m, &ways[k]);
            compare(&m, ways[k].caps);
            if (k == 3)
                memcpy(other, got, sizeof got);
            else if (k > 3)
                assert_memory_equal(got, other, sizeof got);
        }
        family_release(&m);
    }
}

/* ---- on a device ---- */

struct on_device {
    struct device_link link;
    struct model *model;
    struct executor_device *executor;
    struct kv_cache kv;
    struct device_limits limits;
    void *host, *arrays; /* [ARRAYS] the same on both sides */
    float *logits;
};

/* Where the arrays of a step are, in bytes. */
enum {
    AT_IDS = 0,
    AT_POSITIONS = 1024,
    AT_SLOTS = 2048,
    AT_ROWS = 3072,
    AT_BLOCKS = 4096,
    AT_SEQ = 5120,
    AT_PLAN = 6144,
    ARRAYS = 1 << 16
};

static void device_open(struct on_device *d, const struct family_model *m)
{
    const struct device_options none = {0};
    const struct model_family f = {&m->arch, &m->config};
    const size_t n_logit = sizeof got;
    void *p;
    *d = (struct on_device){.link = {.t = fake_device_table()}};
    const struct device_table *t = d->link.t;
    assert_ok(t->open(&d->link.d, &none, &e), &e);
    assert_ok(t->stream_new(d->link.d, &d->link.s, &e), &e);
    const struct model_options o = {.dir = m->folder.path, .dtype = DT_F32, .link = &d->link};
    assert_ok(model_load_family(&d->model, &f, &o, &e), &e);
    assert_ok(kv_cache_init(&d->kv, d->model, N_TOKEN, &e), &e);
    d->limits = (struct device_limits){
        .n_row_max = N_TOKEN,
        .n_seq_max = 1,
        .n_logit_max = N_TOKEN,
    };
    executor_device_limits(&d->limits, d->model);
    assert_ok(executor_device_new(&d->executor, d->model, &d->limits, &e), &e);
    assert_true(AT_PLAN + t->plan_bytes(d->link.d, &d->limits) <= ARRAYS);
    assert_ok(t->host_alloc(d->link.d, &d->host, ARRAYS + n_logit, "test", &e), &e);
    assert_ok(t->alloc(d->link.d, &d->arrays, ARRAYS, "test", &e), &e);
    assert_ok(t->alloc(d->link.d, &p, n_logit, "test", &e), &e);
    d->logits = p;
}

static void device_close(struct on_device *d)
{
    const struct device_table *t = d->link.t;
    executor_device_free(d->executor);
    kv_cache_release(&d->kv);
    model_free(d->model);
    t->release(d->link.d, d->logits);
    t->release(d->link.d, d->arrays);
    t->host_free(d->link.d, d->host);
    t->stream_free(d->link.s);
    t->close(d->link.d);
}

static uint32_t *words_at(void *base, size_t at)
{
    return (uint32_t *)(void *)((char *)base + at);
}

/* n tokens from `done` on; their logits to `to`. */
static void device_step(struct on_device *d, uint32_t done, uint32_t n, float *to)
{
    const struct device_table *t = d->link.t;
    struct attention_seq q = {
        .blocks = words_at(d->host, AT_BLOCKS),
        .n_query = n,
        .start = done,
    };
    for (uint32_t i = 0; i < n; i++) {
        words_at(d->host, AT_IDS)[i] = ids[done + i];
        words_at(d->host, AT_POSITIONS)[i] = done + i;
        words_at(d->host, AT_SLOTS)[i] = done + i;
        words_at(d->host, AT_ROWS)[i] = i;
    }
    for (uint32_t i = 0; i < N_TOKEN; i++)
        words_at(d->host, AT_BLOCKS)[i] = i;
    (void)t->plan(d->link.d, (char *)d->host + AT_PLAN, &d->limits, &q, 1);
    q.blocks = words_at(d->arrays, AT_BLOCKS);
    memcpy((char *)d->host + AT_SEQ, &q, sizeof q);
    t->copy(d->link.s, d->arrays, d->host, ARRAYS);
    const struct batch b = {
        .token_ids = words_at(d->arrays, AT_IDS),
        .positions = words_at(d->arrays, AT_POSITIONS),
        .slot_mapping = words_at(d->arrays, AT_SLOTS),
        .logit_rows = words_at(d->arrays, AT_ROWS),
        .seqs = (const struct attention_seq *)(void *)((char *)d->arrays + AT_SEQ),
        .n_token = n,
        .n_seq = 1,
        .n_logit = n,
        .context_max = done + n,
    };
    const struct device_step s = {
        .batch = &b,
        .plan = (char *)d->arrays + AT_PLAN,
        .kv = &d->kv,
        .logits = d->logits,
    };
    assert_ok(executor_device_run(d->executor, &s, &e), &e);
    const size_t bytes = (size_t)n * FAMILY_VOCAB * sizeof *to;
    t->copy(d->link.s, (char *)d->host + ARRAYS, d->logits, bytes);
    assert_ok(t->sync(d->link.s, &e), &e);
    assert_ok(t->check(d->link.d, &e), &e);
    memcpy(to, (char *)d->host + ARRAYS, bytes);
}

static void a_device_gives_the_bits_of_the_cpu(void **state)
{
    static const struct way way = {"none", 1, N_TOKEN, false};
    (void)state;
    for (size_t i = 0; i < N_FAMILY; i++) {
        struct family_model m;
        struct on_device d;
        family_init(&m, &families[i]);
        run_way(&m, &way);
        device_open(&d, &m);
        for (uint32_t done = 0, n; done < N_TOKEN; done += n) {
            n = families[i].layer.bidirectional ? N_TOKEN : done == 0 ? 21 : done < 30 ? 9 : 1;
            device_step(&d, done, n, other + (size_t)done * FAMILY_VOCAB);
        }
        device_close(&d);
        print_message("%s\n", families[i].name);
        assert_memory_equal(got, other, sizeof got);
        family_release(&m);
    }
}

/* ---- what an engine cannot give a prompt to as a whole ---- */

static void an_engine_refuses_attention_both_ways(void **state)
{
    (void)state;
    struct family both = families[0];
    struct family_model m;
    struct model *model = NULL;
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    both.layer.bidirectional = true;
    family_init(&m, &both);
    const struct model_family f = {&m.arch, &m.config};
    struct model_options o = {.dir = m.folder.path, .dtype = DT_F32, .kern = &kern};
    o.generates = true;
    assert_fails(model_load_family(&model, &f, &o, &e), Q_UNSUPPORTED,
                 "Llama's: its layers attend both ways, which needs a prompt in one step", &e);
    m.arch.layer.bidirectional = false;
    assert_ok(model_load_family(&model, &f, &o, &e), &e);
    model_free(model);
    family_release(&m);
}

/* ---- lengths ---- */

/* A table of positions limits the length, with any scaling of rope in the config. */
static void a_table_of_positions_bounds_the_length(void **state)
{
    (void)state;
    struct family_model m;
    struct model *model = NULL;
    struct kern_table kern;
    kern_table_cpu(&kern, CAP_NONE);
    family_init(&m, &families[1]);
    m.config.rope = (struct rope_config){.kind = ROPE_DYNAMIC, .theta = 10000, .factor = 4};
    const struct model_family f = {&m.arch, &m.config};
    struct model_options o = {.dir = m.folder.path, .dtype = DT_F32, .kern = &kern};
    assert_ok(model_load_family(&model, &f, &o, &e), &e);
    assert_int_equal(model_shape(model)->max_model_len, FAMILY_TOKENS_MAX);
    model_free(model);
    o.max_model_len = FAMILY_TOKENS_MAX + 1;
    assert_fails(model_load_family(&model, &f, &o, &e), Q_INVALID,
                 "max_model_len 49 is more than the 48 tokens the model can take", &e);
    m.arch.layer.first_position = 8;
    o.max_model_len = FAMILY_TOKENS_MAX - 7;
    assert_fails(model_load_family(&model, &f, &o, &e), Q_INVALID, "than the 40 tokens", &e);
    family_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_gives_the_logits_of_the_description),
        cmocka_unit_test(a_device_gives_the_bits_of_the_cpu),
        cmocka_unit_test(an_engine_refuses_attention_both_ways),
        cmocka_unit_test(a_table_of_positions_bounds_the_length),
    };
    uint64_t random = 9;
    log_setup("test", LOG_ERROR, false);
    for (uint32_t i = 0; i < N_TOKEN; i++)
        ids[i] = (uint32_t)(run_random(&random) % FAMILY_VOCAB);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
