/* SPDX-License-Identifier: Apache-2.0 */
/* Models that make vectors, against the goldens: every folder of tests/data/pooling whose golden is
 * of kind embed or seqcls, by the pooling that the folder says, in float32 (embeddings 1e-4 and a
 * cosine above 0.99999, logits 2e-4 of the largest). And equal bits: alone or in a batch, with one
 * thread or two, and of a causal model however the prompt is cut. */
#include "golden.h"
#include <dirent.h>
#include "engine/model/pooler.h"

#define POOLING_DIR "tests/data/pooling"
#define N_FOLDER    9u /* those in the tree; a new one is found by its name */
#define WIDTH       64u

struct pooled {
    struct runner r;
    struct pooling pooling;
    struct model_config config;
    struct golden g;
    char dir[PATH_MAX];
};

static void open_model(struct pooled *p, const char *name, uint32_t n_thread, bool fused)
{
    struct q_err e = Q_ERR_INIT;
    *p = (struct pooled){.pooling = POOLING_INIT};
    snprintf(p->dir, sizeof p->dir, "%s/%s", POOLING_DIR, name);
    const struct pooling_options po = {.runner = "pooling"};
    kern_table_cpu(&p->r.kern, kern_caps_machine());
    p->r.n_thread = n_thread;
    if (n_thread > 1)
        assert_ok(team_new(&p->r.team, n_thread, false, &e), &e);
    assert_ok(golden_open(&p->g, p->dir, &e), &e);
    assert_ok(model_config_load(&p->config, NULL, p->dir, &e), &e);
    assert_ok(pooling_read(&p->pooling, &p->config, p->dir, &po, &e), &e);
    const struct model_options mo = {
        .dir = p->dir,
        .dtype = DT_F32,
        .generates = true,
        .pooling = &p->pooling,
        .no_fusion = !fused,
        .kern = &p->r.kern,
        .team = p->r.team,
    };
    assert_ok(model_load(&p->r.model, &mo, &e), &e);
    assert_ok(kv_cache_init(&p->r.kv, p->r.model, RUN_BLOCKS, &e), &e);
    assert_ok(model_scratch_new(&p->r.scratch, p->r.model, RUN_BATCH_MAX, n_thread, &e), &e);
}

static void close_model(struct pooled *p)
{
    runner_close(&p->r);
    golden_close(&p->g);
    pooling_release(&p->pooling);
}

struct text { /* a prompt, some of its tokens done */
    const uint32_t *ids, *types;
    uint32_t n_done, n_next, index;
};

/* One step; out[i]: the pooled row of text i, [WIDTH], of those that end. */
static void step(struct pooled *p, const struct text *texts, uint32_t n, float *out)
{
    static uint32_t ids[RUN_BATCH_MAX], pos[RUN_BATCH_MAX], slots[RUN_BATCH_MAX],
        types[RUN_BATCH_MAX], rows[RUN_SEQS_MAX], blocks[RUN_SEQS_MAX][RUN_SEQ_BLOCKS];
    struct attention_seq seqs[RUN_SEQS_MAX];
    struct run_call c = {.r = &p->r, .logits = out};
    uint32_t at = 0, longest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct text *t = &texts[i];
        const uint32_t end = t->n_done + t->n_next;
        seqs[i] = (struct attention_seq){blocks[i], at, t->n_next, t->n_done};
        rows[i] = p->pooling.kind == POOLING_CLS ? at : at + t->n_next - 1;
        for (uint32_t k = 0; k < (end + KERN_BLOCK - 1) / KERN_BLOCK; k++)
            blocks[i][k] = run_block(&p->r, t->index, k);
        for (uint32_t k = t->n_done; k < end; k++, at++) {
            ids[at] = t->ids[k];
            pos[at] = k;
            types[at] = t->types ? t->types[k] : 0;
            slots[at] = blocks[i][k / KERN_BLOCK] * KERN_BLOCK + k % KERN_BLOCK;
        }
        longest = end > longest ? end : longest;
    }
    c.batch = (struct batch){
        .token_ids = ids,
        .positions = pos,
        .token_types = p->config.n_type > 1 ? types : NULL,
        .slot_mapping = slots,
        .seqs = seqs,
        .logit_rows = rows,
        .n_token = at,
        .n_seq = n,
        .n_logit = n,
        .context_max = longest,
    };
    if (p->r.team)
        team_run(p->r.team, run_call_fn, &c);
    else
        run_call_fn(&c, 0, 1);
}

static uint32_t read_text(struct text *t, uint32_t ids[RUN_TOKENS_MAX],
                          uint32_t types[RUN_TOKENS_MAX], const json_t *prompt)
{
    const uint32_t n = golden_ids(ids, json_object_get(prompt, "ids"));
    const json_t *list = json_object_get(prompt, "token_type_ids");
    if (list)
        assert_int_equal(golden_ids(types, list), n);
    *t = (struct text){.ids = ids, .types = list ? types : NULL, .n_next = n};
    return n;
}

static void check_close(const struct pooled *p, uint32_t i, const char *what, const float *got)
{
    const struct tensor *want = golden_array(&p->g, i, what);
    const uint32_t n = pooler_n_out(model_pooler(p->r.model));
    assert_non_null(want);
    assert_int_equal(want->n_bytes, n * sizeof(float));
    const float *numbers = want->data;
    const double most = p->pooling.makes == ARCHS_EMBEDS ? 1e-4 : 2e-4 * abs_max(numbers, n);
    const double d = difference(got, numbers, n);
    if (d > most)
        fail_msg("%s: prompt %u: %s differs by %g, at most %g is accepted", p->dir, i, what, d,
                 most);
    double dot = 0, aa = 0, bb = 0;
    for (uint32_t k = 0; k < n; k++) {
        dot += (double)got[k] * numbers[k];
        aa += (double)got[k] * got[k];
        bb += (double)numbers[k] * numbers[k];
    }
    assert_true(dot / sqrt(aa * bb) > 0.99999);
}

static void check_golden(const char *name)
{
    static uint32_t ids[RUN_TOKENS_MAX], types[RUN_TOKENS_MAX];
    static float scratch[4 * WIDTH];
    struct pooled p;
    struct text t;
    float row[WIDTH], vector[WIDTH];
    open_model(&p, name, 1, true);
    const bool embeds = p.pooling.makes == ARCHS_EMBEDS;
    const json_t *prompts = json_object_get(p.g.root, "prompts");
    assert_int_equal(model_shape(p.r.model)->n_output, WIDTH);
    assert_true(json_array_size(prompts) >= 5);
    for (uint32_t i = 0; i < json_array_size(prompts); i++) {
        read_text(&t, ids, types, json_array_get(prompts, i));
        step(&p, &t, 1, row);
        const struct pooler *pooler = model_pooler(p.r.model);
        assert_true(pooler_n_scratch(pooler) <= sizeof scratch / sizeof *scratch);
        assert_true(pooler_run(pooler, row, (struct pooler_ask){.is_raw = true}, scratch, vector));
        check_close(&p, i, embeds ? "pooled" : "logits", vector);
        assert_true(pooler_run(pooler, row, (struct pooler_ask){0}, scratch, vector));
        check_close(&p, i, embeds ? "pooled_normalized" : "probs", vector);
    }
    close_model(&p);
}

static bool is_pooled(const char *name)
{
    char dir[PATH_MAX];
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    snprintf(dir, sizeof dir, "%s/%s", POOLING_DIR, name);
    if (*name == '.' || golden_open(&g, dir, &e))
        return false;
    const char *kind = json_string_value(json_object_get(g.root, "kind"));
    const bool is = kind && (!strcmp(kind, "embed") || !strcmp(kind, "seqcls"));
    golden_close(&g);
    return is;
}

static void goldens(void **state)
{
    DIR *d = opendir(POOLING_DIR);
    uint32_t n = 0;
    (void)state;
    assert_non_null(d);
    for (const struct dirent *entry; (entry = readdir(d));)
        if (is_pooled(entry->d_name)) {
            check_golden(entry->d_name);
            n++;
        }
    closedir(d);
    assert_true(n >= N_FOLDER);
}

/* The rows of all prompts of the golden, together in one step, and each alone. */
static void same_bits_in_a_batch(void **state)
{
    static const char *const names[] = {"bert",        "bert-rerank", "modernbert",
                                        "roberta-cls", "distilbert",  "qwen3-embed"};
    static uint32_t ids[RUN_SEQS_MAX][RUN_TOKENS_MAX], types[RUN_SEQS_MAX][RUN_TOKENS_MAX];
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (uint32_t way = 0; way < 3; way++) { /* two threads; without fusions */
            struct pooled p, alone;
            struct text texts[RUN_SEQS_MAX];
            float rows[RUN_SEQS_MAX * WIDTH], one[WIDTH];
            open_model(&p, names[k], way == 1 ? 2 : 1, way != 2);
            open_model(&alone, names[k], 1, true);
            const json_t *prompts = json_object_get(p.g.root, "prompts");
            for (uint32_t i = 0; i < 5; i++) {
                read_text(&texts[i], ids[i], types[i], json_array_get(prompts, i));
                texts[i].index = i;
            }
            step(&p, texts, 5, rows);
            for (uint32_t i = 0; i < 5; i++) {
                step(&alone, &texts[i], 1, one);
                assert_memory_equal(one, rows + i * WIDTH, sizeof one);
            }
            close_model(&p);
            close_model(&alone);
        }
}

static void same_bits_in_chunks(void **state)
{
    static uint32_t ids[RUN_TOKENS_MAX], types[RUN_TOKENS_MAX];
    struct pooled p;
    struct text t;
    float whole[WIDTH], chunked[WIDTH];
    (void)state;
    open_model(&p, "llama-cls", 1, true);
    const uint32_t n =
        read_text(&t, ids, types, json_array_get(json_object_get(p.g.root, "prompts"), 3));
    step(&p, &t, 1, whole);
    for (t.n_done = 0; t.n_done < n; t.n_done += t.n_next) {
        t.index = 1;
        t.n_next = n - t.n_done < 7 ? n - t.n_done : 7;
        step(&p, &t, 1, chunked);
    }
    assert_memory_equal(whole, chunked, sizeof whole);
    close_model(&p);
}

/* The first values alone are normalized by themselves. */
static void fewer_values(void **state)
{
    static float scratch[4 * WIDTH];
    struct pooled p;
    float row[WIDTH], all[WIDTH], some[WIDTH];
    double length = 0;
    (void)state;
    open_model(&p, "bert", 1, true);
    for (uint32_t i = 0; i < WIDTH; i++)
        row[i] = (float)i - 20;
    const struct pooler *pooler = model_pooler(p.r.model);
    assert_true(pooler_run(pooler, row, (struct pooler_ask){.is_raw = true}, scratch, all));
    assert_memory_equal(all, row, sizeof row);
    assert_true(pooler_run(pooler, row, (struct pooler_ask){.n = 8}, scratch, some));
    for (uint32_t i = 0; i < 8; i++)
        length += (double)some[i] * some[i];
    assert_true(fabs(length - 1) < 1e-6 && some[0] < some[7]);
    row[3] = NAN;
    assert_false(pooler_run(pooler, row, (struct pooler_ask){0}, scratch, all));
    close_model(&p);
}

/* A model that makes vectors generates nothing, and the other way round it has no pooler. */
static void refusals(void **state)
{
    struct q_err e = Q_ERR_INIT;
    struct model *m = NULL;
    struct kern_table kern;
    (void)state;
    kern_table_cpu(&kern, kern_caps_machine());
    const struct model_options o = {
        .dir = POOLING_DIR "/bert",
        .dtype = DT_F32,
        .generates = true,
        .kern = &kern,
    };
    assert_int_not_equal(model_load(&m, &o, &e), Q_OK);
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),
        cmocka_unit_test(same_bits_in_a_batch),
        cmocka_unit_test(same_bits_in_chunks),
        cmocka_unit_test(fewer_values),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
