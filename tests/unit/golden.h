/* SPDX-License-Identifier: Apache-2.0 */
/* golden - runs a model in tests: prompts in any chunks, alone or together, through a small paged
 * pool whose blocks are assigned in a scattered order; and reads the reference answers. For tests
 * of engine/model. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_GOLDEN_H
#define QUIRE_TESTS_UNIT_GOLDEN_H
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include "check.h"
#include "common/file.h"
#include "common/hub/safetensors.h"
#include "engine/model/lora/lora.h"
#include "engine/model/model.h"

#define GOLDEN_DIR     "tests/data/models"
#define RUN_TOKENS_MAX 768u /* of one sequence */
#define RUN_SEQS_MAX   8u
#define RUN_SEQ_BLOCKS (RUN_TOKENS_MAX / KERN_BLOCK)
#define RUN_BLOCKS     (RUN_SEQS_MAX * RUN_SEQ_BLOCKS)
#define RUN_BATCH_MAX  1024u /* rows of one step */

struct runner {
    struct kern_table kern;
    struct team *team; /* NULL: one thread, no team */
    uint32_t n_thread;
    struct model *model;
    struct kv_cache kv;
    struct model_scratch *scratch;
    float *const *tap;
    uint32_t logits_step;        /* rows of logits computed at once; 0: all by model_forward */
    uint32_t placed[RUN_BLOCKS]; /* after runner_place: the i-th block */
    bool is_placed;
    const struct lora *adapter; /* of run_prompt and run_greedy; NULL: none */
};

struct runner_options {
    const char *dir;
    uint32_t n_thread, caps, max_model_len;
    bool dtype_auto;
    enum dtype dtype;
    bool kv_given;
    enum dtype kv_dtype;
    enum quantization quantization;
    const char *packed_cache;
    bool no_fusion;
    uint32_t lora_rank;
};

struct run_seq { /* one sequence being fed */
    const uint32_t *tokens;
    uint32_t n_done; /* tokens in the cache */
    uint32_t n_next; /* tokens of the next step */
    uint32_t n_prompt;
    uint32_t index; /* the sequence's part of the pool */
    float
        *logits; /* NULL, or where the rows' logits of this step go: [n_next - n_unasked, vocab] */
    uint32_t n_unasked;         /* first rows of this step whose logits nobody asks for */
    const struct lora *adapter; /* NULL: none */
    const float *const *items;  /* by position: the row in place of a token's, or NULL */
};

static inline enum q_code runner_open(struct runner *r, const struct runner_options *o,
                                      struct q_err *e)
{
    *r = (struct runner){.n_thread = o->n_thread};
    kern_table_cpu(&r->kern, o->caps);
    enum q_code rc = Q_OK;
    if (o->n_thread > 1 && (rc = team_new(&r->team, o->n_thread, false, e)))
        return rc;
    struct model_options mo = {
        .dir = o->dir,
        .dtype_auto = o->dtype_auto,
        .dtype = o->dtype,
        .kv_given = o->kv_given,
        .kv_dtype = o->kv_dtype,
        .quantization = o->quantization,
        .packed_cache = o->packed_cache,
        .max_model_len = o->max_model_len,
        .no_fusion = o->no_fusion,
        .lora_rank = o->lora_rank,
        .kern = &r->kern,
        .team = r->team,
    };
    if ((rc = model_load(&r->model, &mo, e)) ||
        (rc = kv_cache_init(&r->kv, r->model, RUN_BLOCKS, e)))
        return rc;
    if (model_shape(r->model)->state_bytes &&
        (rc = kv_cache_init_states(&r->kv, r->model, RUN_SEQS_MAX, e)))
        return rc;
    return model_scratch_new(&r->scratch, r->model, RUN_BATCH_MAX, o->n_thread, e);
}

static inline void runner_close(struct runner *r)
{
    model_scratch_free(r->scratch);
    kv_cache_release(&r->kv);
    model_free(r->model);
    team_free(r->team);
    *r = (struct runner){0};
}

struct run_call {
    struct runner *r;
    struct batch batch;
    float *logits;
};

static inline void run_call_fn(void *arg, uint32_t ith, uint32_t nth)
{
    struct run_call *c = arg;
    const struct runner *r = c->r;
    const uint32_t n = c->batch.n_logit, step = r->logits_step;
    const size_t vocab = model_shape(r->model)->vocab_size;
    struct model_logits l = {.n = step};
    model_forward(r->model, &c->batch, &r->kv, r->scratch, step ? NULL : c->logits, r->team, ith,
                  nth);
    for (; step && l.first < n; l.first += l.n) {
        l.rows = c->logits + l.first * vocab;
        l.n = n - l.first < step ? n - l.first : step;
        model_logits(r->model, &c->batch, r->scratch, &l, r->team, ith, nth);
    }
}

static inline uint64_t run_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    return *state >> 33;
}

/* Assign blocks in a random order from now on. */
static inline void runner_place(struct runner *r, uint64_t seed)
{
    for (uint32_t i = 0; i < RUN_BLOCKS; i++) {
        uint32_t j = (uint32_t)(run_random(&seed) % (i + 1));
        r->placed[i] = r->placed[j];
        r->placed[j] = i;
    }
    r->is_placed = true;
}

/* Block number of the i-th block of sequence `index`: consecutive blocks are far apart. */
static inline uint32_t run_block(const struct runner *r, uint32_t index, uint32_t i)
{
    uint32_t n = index * RUN_SEQ_BLOCKS + i;
    return r->is_placed ? r->placed[n] : n * 37u % RUN_BLOCKS;
}

/* One step with all sequences. */
static inline void run_step(struct runner *r, struct run_seq *seqs, uint32_t n_seq)
{
    static uint32_t ids[RUN_BATCH_MAX], pos[RUN_BATCH_MAX], slots[RUN_BATCH_MAX],
        rows[RUN_BATCH_MAX];
    static const float *items[RUN_BATCH_MAX];
    static uint32_t blocks[RUN_SEQS_MAX][RUN_SEQ_BLOCKS], n_prompts[RUN_SEQS_MAX];
    static uint32_t lora_rows[RUN_BATCH_MAX];
    static struct lora_batch lora;
    struct attention_seq parts[RUN_SEQS_MAX];
    struct lora_seq adapters[RUN_SEQS_MAX];
    struct state_part states[RUN_SEQS_MAX];
    struct run_call c = {.r = r};
    size_t vocab = model_shape(r->model)->vocab_size;
    uint32_t n = 0, n_logit = 0;
    for (uint32_t s = 0; s < n_seq; s++) {
        struct run_seq *q = &seqs[s];
        for (uint32_t i = 0; i < RUN_SEQ_BLOCKS; i++)
            blocks[s][i] = run_block(r, q->index, i);
        parts[s] = (struct attention_seq){blocks[s], n, q->n_next, q->n_done};
        n_prompts[s] = q->n_prompt;
        states[s] = (struct state_part){n, q->n_next, q->index,
                                        q->n_done ? q->index : KERN_STATE_ZERO, KERN_STATE_NONE};
        adapters[s] = (struct lora_seq){q->adapter, n, q->n_next};
        for (uint32_t i = 0; i < q->n_next; i++, n++) {
            uint32_t p = q->n_done + i;
            items[n] = q->items ? q->items[p] : NULL;
            ids[n] = items[n] ? 0 : q->tokens[p];
            c.batch.item_rows = items[n] ? items : c.batch.item_rows;
            pos[n] = p;
            slots[n] = blocks[s][p / KERN_BLOCK] * KERN_BLOCK + p % KERN_BLOCK;
            if (q->logits && i >= q->n_unasked)
                rows[n_logit++] = n;
        }
        if (q->n_done + q->n_next > c.batch.context_max)
            c.batch.context_max = q->n_done + q->n_next;
    }
    c.batch.token_ids = ids;
    c.batch.positions = pos;
    c.batch.slot_mapping = slots;
    c.batch.seqs = parts;
    c.batch.logit_rows = rows;
    c.batch.n_token = n;
    c.batch.n_seq = n_seq;
    c.batch.n_logit = n_logit;
    c.batch.n_prompts = n_prompts;
    c.batch.state_parts = states;
    c.batch.n_state_part = n_seq;
    assert_int_equal(lora_batch_make(&lora, lora_rows, adapters, n_seq, NULL), Q_OK);
    c.batch.lora = lora.n_group ? &lora : NULL;
    c.logits = malloc((n_logit ? n_logit : 1) * vocab * sizeof(float));
    model_scratch_tap(r->scratch, r->tap);
    if (r->team)
        team_run(r->team, run_call_fn, &c);
    else
        run_call_fn(&c, 0, 1);
    const float *at = c.logits;
    for (uint32_t s = 0; s < n_seq; s++) {
        struct run_seq *q = &seqs[s];
        if (q->logits) {
            memcpy(q->logits, at, (q->n_next - q->n_unasked) * vocab * sizeof(float));
            at += (q->n_next - q->n_unasked) * vocab;
        }
        q->n_done += q->n_next;
    }
    free(c.logits);
}

/* Feed tokens [0, n) in steps of `chunk` rows; logits: [n, vocab]. */
static inline void run_prompt(struct runner *r, const uint32_t *tokens, uint32_t n, uint32_t chunk,
                              float *logits)
{
    size_t vocab = model_shape(r->model)->vocab_size;
    struct run_seq q = {.tokens = tokens, .n_prompt = n, .adapter = r->adapter};
    while (q.n_done < n) {
        q.n_next = n - q.n_done < chunk ? n - q.n_done : chunk;
        q.logits = logits + q.n_done * vocab;
        run_step(r, &q, 1);
    }
}

static inline uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* tokens: [n_prompt + n_new], the prompt filled in. last: [vocab] logits at the prompt's end. */
static inline void run_greedy(struct runner *r, uint32_t *tokens, uint32_t n_prompt, uint32_t n_new,
                              const float *last)
{
    uint32_t vocab = model_shape(r->model)->vocab_size;
    float *logits = malloc(vocab * sizeof(float));
    struct run_seq q = {
        .tokens = tokens,
        .n_prompt = n_prompt,
        .n_done = n_prompt,
        .n_next = 1,
        .logits = logits,
        .adapter = r->adapter,
    };
    tokens[n_prompt] = argmax(last, vocab);
    for (uint32_t i = 1; i < n_new; i++) {
        run_step(r, &q, 1);
        tokens[n_prompt + i] = argmax(logits, vocab);
    }
    free(logits);
}

struct golden {
    json_t *root;
    struct tensor_set *arrays;
};

static inline enum q_code golden_open_files(struct golden *g, const char *text_path,
                                            const char *arrays_path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    *g = (struct golden){0};
    enum q_code rc = file_read(&text, text_path, 1u << 24, e);
    if (rc)
        return rc;
    g->root = json_loadb(text.data, text.len, 0, NULL);
    buf_release(&text);
    if (!g->root)
        return q_fail(e, Q_CORRUPT, "%s: not JSON", text_path);
    return tensor_set_open_file(&g->arrays, arrays_path, e);
}

static inline enum q_code golden_open(struct golden *g, const char *dir, struct q_err *e)
{
    char text[PATH_MAX], arrays[PATH_MAX];
    enum q_code rc;
    *g = (struct golden){0};
    if ((rc = path_join(text, sizeof text, dir, "golden.json", e)) ||
        (rc = path_join(arrays, sizeof arrays, dir, "golden.safetensors", e)))
        return rc;
    return golden_open_files(g, text, arrays, e);
}

static inline void golden_close(struct golden *g)
{
    json_decref(g->root);
    tensor_set_free(g->arrays);
}

static inline uint32_t golden_ids(uint32_t *out, const json_t *list)
{
    uint32_t n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return n;
}

/* "p3.logits_last"; NULL = no such array. */
static inline const struct tensor *golden_array(const struct golden *g, uint32_t prompt,
                                                const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "p%u.%s", prompt, what);
    return tensor_find(g->arrays, name);
}

static inline double abs_max(const float *x, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, fabs((double)x[i]));
    return m;
}

/* Largest |a - b|; NaN counts as infinite. */
static inline double difference(const float *a, const float *b, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        m = isnan(d) ? INFINITY : fmax(m, d);
    }
    return m;
}

#endif
