/* SPDX-License-Identifier: Apache-2.0 */
/* quire.h: golden tokens through the library, text and stop strings, logprobs, many threads, full
 * queues, aborts, misuse. */
#include "checkpoint.h"
#include "engine_goldens.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "engine/quire.h"
#include "folder.h"

static struct quire_engine *engine;

static struct quire_options options_of(const char *dir)
{
    struct quire_options o;
    quire_options_init(&o, sizeof o);
    o.model = dir;
    o.dtype = "float32";
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    o.threads = 2;
    o.pin_threads = false;
    o.skip_tokenizer = true;
    return o;
}

static void open_engine(const struct quire_options *o)
{
    struct quire_error e = {0};
    if (quire_engine_open(&engine, o, &e) != QUIRE_OK)
        fail_msg("%s", e.message);
}

static struct quire_params greedy_params(const struct golden_prompt *g)
{
    struct quire_params p;
    quire_params_init(&p, sizeof p);
    p.ids = g->ids;
    p.n_ids = g->n;
    p.temperature = 0;
    p.max_tokens = g->n_greedy;
    p.ignore_eos = true;
    return p;
}

static struct quire_request *submit(const struct quire_params *p)
{
    struct quire_request *r = NULL;
    struct quire_error e = {0};
    if (quire_submit(&r, engine, p, &e) != QUIRE_OK)
        fail_msg("%s", e.message);
    return r;
}

struct taken {
    uint32_t tokens[GOLDEN_TOKENS], n_token, n_prompt;
    char text[4096];
    struct quire_event last;
};

static struct taken take(struct quire_request *r)
{
    struct taken t = {.n_token = 0};
    struct quire_error e = {0};
    struct quire_event ev;
    do {
        if (quire_next(r, &ev, 60000, &e) != QUIRE_OK)
            fail_msg("%s", e.message);
        assert_true(strlen(t.text) + ev.n_text < sizeof t.text);
        strncat(t.text, ev.text, ev.n_text);
        if (ev.kind == QUIRE_TOKEN) {
            assert_true(t.n_token < GOLDEN_TOKENS);
            t.tokens[t.n_token++] = ev.token;
        }
        t.n_prompt += ev.kind == QUIRE_PROMPT;
    } while (ev.kind != QUIRE_FINISH);
    t.last = ev;
    return t;
}

static void assert_greedy(const struct taken *t, const struct golden_prompt *g, const char *what)
{
    assert_int_equal(t->last.finish, QUIRE_FINISH_LENGTH);
    assert_int_equal(t->n_token, g->n_greedy);
    for (uint32_t i = 0; i < t->n_token; i++)
        if (t->tokens[i] != g->greedy[i])
            fail_msg("%s: token %u is %u, expected %u", what, i, t->tokens[i], g->greedy[i]);
}

static void every_golden_model_gives_its_greedy_tokens(void **state)
{
    (void)state;
    for (size_t m = 0; m < N_GOLDEN_MODEL; m++) {
        struct golden g;
        struct quire_request *requests[GOLDEN_PROMPTS];
        golden_get(&g, golden_models[m]);
        struct quire_options o = options_of(g.dir);
        open_engine(&o);
        for (uint32_t i = 0; i < g.n; i++) {
            struct quire_params p = greedy_params(&g.prompts[i]);
            requests[i] = submit(&p);
            assert_int_equal(quire_request_n_prompt(requests[i]), g.prompts[i].n);
        }
        for (uint32_t i = 0; i < g.n; i++) {
            struct taken t = take(requests[i]);
            assert_greedy(&t, &g.prompts[i], golden_models[m]);
            quire_request_free(requests[i]);
        }
        quire_engine_close(engine);
    }
}

/* The golden's own texts: prompt to ids to greedy ids to text. The models of the tree have no
 * tokenizers; this one's lies apart. */
static void text_goes_in_and_out(void **state)
{
    (void)state;
    static const char *const of_model[] = {"config.json", "generation_config.json",
                                           "model.safetensors"};
    static const char *const of_text[] = {"tokenizer.json", "tokenizer_config.json",
                                          "special_tokens_map.json"};
    json_error_t je;
    struct folder f;
    folder_init(&f);
    for (size_t i = 0; i < 3; i++) {
        folder_copy(&f, "tests/data/models/llama", of_model[i]);
        folder_copy(&f, "tests/data/text/llama", of_text[i]);
    }
    json_t *root = json_load_file("tests/data/models/llama/golden.json", 0, &je);
    assert_non_null(root);
    struct quire_options o = options_of(f.path);
    o.skip_tokenizer = false;
    open_engine(&o);
    const json_t *texts = json_object_get(root, "text");
    uint32_t n_checked = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        const char *text = json_string_value(json_object_get(t, "text"));
        const char *want = json_string_value(json_object_get(t, "greedy_text"));
        if (!text || !want || strlen(want) != json_string_length(json_object_get(t, "greedy_text")))
            continue;
        struct quire_params p;
        quire_params_init(&p, sizeof p);
        p.text = text;
        p.temperature = 0;
        p.max_tokens = 24;
        p.ignore_eos = true;
        struct quire_request *r = submit(&p);
        struct taken got = take(r);
        assert_string_equal(got.text, want);
        quire_request_free(r);
        n_checked++;
    }
    assert_true(n_checked > 0);
    json_decref(root);
    quire_engine_close(engine);
    folder_release(&f);
}

#define BUNDLED "deploy/model/quire-tiny"

static struct quire_params text_params(const char *text)
{
    struct quire_params p;
    quire_params_init(&p, sizeof p);
    p.text = text;
    p.temperature = 2; /* for a long answer */
    p.seed = 3;
    p.max_tokens = 60;
    p.ignore_eos = true;
    return p;
}

/* Cut the text by each of its inner words: a stop string may lie across tokens. */
static void stop_strings_end_the_text(void **state)
{
    (void)state;
    struct quire_options o = options_of(BUNDLED);
    o.skip_tokenizer = false;
    open_engine(&o);
    struct quire_params p = text_params("The weather");
    struct quire_request *r = submit(&p);
    struct taken whole = take(r);
    quire_request_free(r);
    size_t n = strlen(whole.text);
    assert_true(n > 12);
    for (size_t at = 1; at + 3 < n; at += 3) {
        char stop[4] = {0};
        memcpy(stop, whole.text + at, 3);
        const char *const stops[] = {"never there", stop};
        struct quire_error e = {0};
        p.stops = stops;
        p.n_stop = 2;
        p.include_stop = at % 2;
        struct quire_request *stopped = NULL;
        if (quire_submit(&stopped, engine, &p, &e) != QUIRE_OK)
            continue; /* the three bytes are no UTF-8 */
        size_t found = (size_t)(strstr(whole.text, stop) - whole.text);
        struct taken t = take(stopped);
        assert_int_equal(strlen(t.text), found + (p.include_stop ? 3 : 0));
        assert_memory_equal(t.text, whole.text, strlen(t.text));
        assert_int_equal(t.last.finish, QUIRE_FINISH_STOP);
        assert_int_equal(t.last.i_stop, 1);
        struct quire_event again;
        assert_int_equal(quire_next(stopped, &again, 0, &e), QUIRE_OK);
        assert_int_equal(again.kind, QUIRE_FINISH);
        assert_int_equal(again.n_text, 0);
        quire_request_free(stopped);
    }
    quire_engine_close(engine);
}

static void stop_ids_end_the_answer(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    open_engine(&o);
    const uint32_t stop_ids[] = {g.prompts[2].greedy[4]};
    struct quire_params p = greedy_params(&g.prompts[2]);
    p.stop_ids = stop_ids;
    p.n_stop_id = 1;
    struct quire_request *r = submit(&p);
    struct taken t = take(r);
    assert_true(t.n_token <= 5);
    assert_int_equal(t.last.finish, QUIRE_FINISH_STOP);
    assert_int_equal(t.last.stop_id, g.prompts[2].greedy[4]);
    quire_request_free(r);
    quire_engine_close(engine);
}

static void only_allowed_ids_are_sampled(void **state)
{
    (void)state;
    static const uint32_t allowed[] = {7, 9, 300};
    struct golden g;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    open_engine(&o);
    struct quire_params p = greedy_params(&g.prompts[1]);
    p.allowed_ids = allowed;
    p.n_allowed = 3;
    p.cache_salt = "mine";
    p.priority = -3;
    struct quire_request *r = submit(&p);
    struct taken t = take(r);
    assert_int_equal(t.n_token, p.max_tokens);
    for (uint32_t i = 0; i < t.n_token; i++)
        assert_true(t.tokens[i] == 7 || t.tokens[i] == 9 || t.tokens[i] == 300);
    quire_request_free(r);
    quire_engine_close(engine);
}

static void logprobs_are_the_reference_ones(void **state)
{
    (void)state;
    struct golden g;
    json_error_t je;
    golden_get(&g, "qwen3");
    json_t *root = json_load_file(GOLDENS_DIR "/qwen3/golden.json", 0, &je);
    struct quire_options o = options_of(g.dir);
    open_engine(&o);
    for (uint32_t i = 0; i < g.n; i++) {
        const json_t *prompt = json_array_get(json_object_get(root, "prompts"), i);
        const json_t *greedy = json_object_get(prompt, "greedy_logprobs");
        const json_t *known = json_object_get(prompt, "prompt_logprobs");
        struct quire_params p = greedy_params(&g.prompts[i]);
        p.logprobs = 3;
        p.prompt_logprobs = 1;
        struct quire_request *r = submit(&p);
        struct quire_event ev;
        struct quire_error e = {0};
        size_t n_prompt = 1, n_token = 0;
        while (quire_next(r, &ev, 60000, &e) == QUIRE_OK && ev.kind != QUIRE_FINISH) {
            const json_t *want = ev.kind == QUIRE_PROMPT ? json_array_get(known, n_prompt)
                                                         : json_array_get(greedy, n_token);
            assert_true(fabs((double)ev.logprob - json_number_value(want)) < 1e-3);
            if (ev.kind == QUIRE_PROMPT) {
                assert_int_equal(ev.position, n_prompt);
                assert_int_equal(ev.token, g.prompts[i].ids[n_prompt++]);
                assert_int_equal(ev.n_top, 1);
                assert_true(ev.rank == 1 ? ev.top[0].token == ev.token
                                         : ev.top[0].logprob >= ev.logprob);
            } else {
                n_token++;
                assert_int_equal(ev.rank, 1);
                assert_int_equal(ev.n_top, 3);
                assert_int_equal(ev.top[0].token, ev.token);
                assert_true(ev.top[0].logprob >= ev.top[1].logprob &&
                            ev.top[1].logprob >= ev.top[2].logprob);
            }
        }
        assert_int_equal(n_prompt, g.prompts[i].n);
        assert_int_equal(n_token, g.prompts[i].n_greedy);
        quire_request_free(r);
    }
    json_decref(root);
    quire_engine_close(engine);
}

/* The crowd's KV cache, when it is not as computed. */
static char int8_name[] = "int8";

/* Sampled answers are a function of the seed: alone, among others, and after a preemption. */
static void seeds_decide_alone_and_in_a_crowd(void **state)
{
    struct golden g;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    o.max_model_len = 144;
    o.kv_cache_dtype = *state ? *state : "auto";
    struct taken alone[12];
    for (int crowd = 0; crowd < 2; crowd++) {
        struct quire_request *requests[12];
        o.num_blocks = crowd ? 9 : 0;
        o.max_num_batched_tokens = crowd ? 7 : 64;
        open_engine(&o);
        for (uint32_t i = 0; i < 12; i++) {
            struct quire_params p = greedy_params(&g.prompts[i % g.n]);
            p.temperature = 0.9f;
            p.top_p = i % 2 ? 0.9f : 1.0f;
            p.top_k = i % 3 ? 0 : 20;
            p.repetition_penalty = 1.1f;
            p.presence_penalty = 0.2f;
            p.seed = 1000 + i;
            requests[i] = submit(&p);
            if (!crowd) {
                alone[i] = take(requests[i]);
                quire_request_free(requests[i]);
            }
        }
        for (uint32_t i = 0; crowd && i < 12; i++) {
            struct taken t = take(requests[i]);
            assert_int_equal(t.n_token, alone[i].n_token);
            assert_memory_equal(t.tokens, alone[i].tokens, t.n_token * sizeof *t.tokens);
            quire_request_free(requests[i]);
        }
        quire_engine_close(engine);
    }
    assert_memory_not_equal(alone[0].tokens, alone[5].tokens, 24 * sizeof(uint32_t));
}

static struct golden shared;

static void *one_thread(void *arg)
{
    uintptr_t i_thread = (uintptr_t)arg;
    for (uint32_t round = 0; round < 6; round++) {
        const struct golden_prompt *g = &shared.prompts[(i_thread + round) % shared.n];
        struct quire_params p = greedy_params(g);
        struct quire_request *r = NULL;
        struct quire_event ev;
        if (quire_submit(&r, engine, &p, NULL) != QUIRE_OK)
            return "submit";
        uint32_t n = 0;
        while (quire_next(r, &ev, 60000, NULL) == QUIRE_OK && ev.kind != QUIRE_FINISH) {
            if (ev.token != g->greedy[n++])
                return "token";
            if (round == i_thread && n == 3)
                break; /* and free it while it runs */
        }
        quire_request_free(r);
    }
    return NULL;
}

static void many_threads_share_an_engine(void **state)
{
    (void)state;
    pthread_t threads[4];
    golden_get(&shared, "qwen2");
    struct quire_options o = options_of(shared.dir);
    open_engine(&o);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_thread, (void *)i), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        if (failed)
            fail_msg("%s", (const char *)failed);
    }
    struct quire_stats stats = {.size = sizeof stats};
    quire_engine_stats(engine, &stats);
    assert_int_equal(stats.running + stats.waiting + stats.blocks_used, 0);
    assert_true(stats.finished >= 20 && stats.generation_tokens > 300 && stats.steps > 0);
    quire_engine_close(engine);
}

static void a_full_queue_is_busy_and_recovers(void **state)
{
    (void)state;
    struct golden g;
    struct quire_request *requests[64];
    uint32_t n = 0;
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    o.max_num_seqs = 1;
    o.max_num_queued_reqs = 2;
    open_engine(&o);
    struct quire_params p = greedy_params(&g.prompts[1]);
    struct quire_error e = {0};
    while (n < 64 && quire_submit(&requests[n], engine, &p, &e) == QUIRE_OK)
        n++;
    assert_true(n >= 2 && n < 64);
    assert_int_equal(e.code, QUIRE_BUSY);
    for (uint32_t i = 0; i < n; i++) {
        struct taken t = take(requests[i]);
        assert_greedy(&t, &g.prompts[1], "queued");
        quire_request_free(requests[i]);
    }
    requests[0] = submit(&p);
    quire_request_free(requests[0]); /* at once */
    quire_engine_close(engine);
}

/* Other weights while requests run: ended, finished first, or refused; and the way back. */
static void weights_are_reloaded_in_place(void **state)
{
    (void)state;
    struct golden g;
    struct folder folder;
    struct quire_error e = {0};
    struct quire_info first = {.size = sizeof first}, other = first, again = first;
    golden_get(&g, "llama");
    folder_init(&folder);
    checkpoint_write(&folder, &(struct checkpoint){.from = g.dir, .factor = 1.3f, .name = ""});
    struct quire_options o = options_of(g.dir);
    o.max_num_seqs = 2;
    open_engine(&o);
    quire_engine_info(engine, &first);
    struct quire_params p = greedy_params(&g.prompts[1]);
    struct quire_request *r = submit(&p);
    assert_int_equal(quire_engine_reload(engine, "/nowhere", QUIRE_ABORT, &e), QUIRE_NOT_FOUND);
    char far[600] = "/nowhere"; /* no part of a message is cut off */
    for (size_t i = 8; i < sizeof far - 1; i++)
        far[i] = i % 100 == 8 ? '/' : 'x';
    assert_int_equal(quire_engine_reload(engine, far, QUIRE_ABORT, &e), QUIRE_NOT_FOUND);
    assert_non_null(strstr(e.message, far));
    assert_non_null(strstr(e.message, ": no such folder"));
    assert_int_equal(quire_engine_reload(engine, NULL, (enum quire_in_flight)9, &e), QUIRE_INVALID);
    struct taken t = take(r); /* not aborted */
    assert_greedy(&t, &g.prompts[1], "beside a reload that was refused");
    quire_request_free(r);
    struct quire_request *many[6];
    for (int i = 0; i < 6; i++)
        many[i] = submit(&p);
    assert_int_equal(quire_engine_reload(engine, folder.path, QUIRE_ABORT, &e), QUIRE_OK);
    for (int i = 0; i < 6; i++) {
        t = take(many[i]);
        assert_true(t.last.finish == QUIRE_FINISH_ABORT || t.last.finish == QUIRE_FINISH_LENGTH);
        assert_memory_equal(t.tokens, g.prompts[1].greedy, t.n_token * sizeof *t.tokens);
        quire_request_free(many[i]);
    }
    quire_engine_info(engine, &other);
    assert_string_not_equal(first.fingerprint, other.fingerprint);
    assert_int_equal(quire_engine_reload(engine, NULL, QUIRE_KEEP, &e), QUIRE_OK); /* as it is */
    assert_int_equal(quire_engine_reload(engine, g.dir, QUIRE_WAIT, &e), QUIRE_OK);
    quire_engine_info(engine, &again);
    assert_string_equal(first.fingerprint, again.fingerprint);
    r = submit(&p);
    t = take(r);
    assert_greedy(&t, &g.prompts[1], "with the first weights again");
    quire_request_free(r);
    quire_engine_close(engine);
    folder_release(&folder);
}

static void misuse_is_told(void **state)
{
    (void)state;
    struct golden g;
    struct quire_error e = {0};
    struct quire_request *r = NULL;
    golden_get(&g, "llama");
    struct quire_options o = options_of("/nowhere/model");
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_NOT_FOUND);
    o = options_of(NULL);
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_INVALID);
    o = options_of(g.dir);
    o.dtype = "int3";
    assert_int_equal(quire_engine_open(&engine, &o, NULL), QUIRE_INVALID);
    o = options_of(g.dir);
    o.size = 3;
    assert_int_equal(quire_engine_open(&engine, &o, NULL), QUIRE_INVALID);
    o = options_of(g.dir);
    o.num_blocks = 1;
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_NO_MEMORY);
    assert_non_null(strstr(e.message, "--max-model-len 16, --num-gpu-blocks-override"));
    o = options_of(g.dir);
    o.kv_cache_dtype = "int4";
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_INVALID);
    o = options_of(g.dir);
    o.gpu_memory_utilization = 1.5;
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_INVALID);
    o = options_of(g.dir);
    open_engine(&o);
    struct quire_params p = greedy_params(&g.prompts[0]);
    p.text = "text";
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_UNSUPPORTED);
    p = greedy_params(&g.prompts[0]);
    p.n_ids = 0;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    p = greedy_params(&g.prompts[0]);
    p.top_p = 7;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "top_p"));
    p = greedy_params(&g.prompts[0]);
    p.logprobs = 513; /* more than the vocabulary */
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    const uint32_t beyond[] = {1, 512};
    p = greedy_params(&g.prompts[0]);
    p.ids = beyond;
    p.n_ids = 2;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    assert_null(r);
    struct quire_info info = {.size = sizeof info};
    quire_engine_info(engine, &info);
    assert_int_equal(info.vocab_size, 512);
    assert_string_equal(info.dtype, "F32");
    assert_true(info.row_ops > 0 && info.logit_ops > 0 && info.logit_ops % (2 * 512) == 0);
    assert_true((info.row_ops + info.logit_ops) / 2 < info.n_param);     /* norms, embedding too */
    assert_true(info.step_bytes >= 2 * (info.row_ops + info.logit_ops)); /* F32, padded */
    assert_true(info.context_ops > 0 && info.kv_token_bytes > 0);
    quire_engine_close(engine);
    quire_engine_close(NULL);
    quire_request_free(NULL);
}

static void an_array_that_is_null_is_told(void **state)
{
    (void)state;
    struct golden g;
    struct quire_error e = {0};
    struct quire_request *r = NULL;
    const uint32_t bias_id[] = {1};
    golden_get(&g, "llama");
    struct quire_options o = options_of(g.dir);
    open_engine(&o);
    struct quire_params p;
    static const struct {
        const char *array;
        size_t offset;
    } counts[] = {
        {"stops: NULL", offsetof(struct quire_params, n_stop)},
        {"stop_ids: NULL", offsetof(struct quire_params, n_stop_id)},
        {"bias_ids: NULL", offsetof(struct quire_params, n_bias)},
        {"allowed_ids: NULL", offsetof(struct quire_params, n_allowed)},
        {"inputs: NULL", offsetof(struct quire_params, n_input)},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        p = greedy_params(&g.prompts[0]);
        memcpy((char *)&p + counts[i].offset, &(size_t){2}, sizeof(size_t));
        assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
        assert_non_null(strstr(e.message, counts[i].array));
    }
    p = greedy_params(&g.prompts[0]);
    p.ids = NULL;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "ids: NULL"));
    p = greedy_params(&g.prompts[0]);
    p.bias_ids = bias_id;
    p.n_bias = 1;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "bias: NULL with n_bias = 1"));
    p = greedy_params(&g.prompts[0]);
    p.stops = (const char *const[]){NULL};
    p.n_stop = 1;
    assert_int_equal(quire_submit(&r, engine, &p, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "stops[0]: NULL"));
    assert_null(r);
    quire_engine_close(engine);
}

static void quantization_is_the_checkpoints(void **state)
{
    static const char *const cases[][2] = {
        {"quantized/awq-4", "int4"},
        {"quantized/int8", "int8"},
        {"quantized/fp8", ""},
        {"models/qwen2", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[64];
        struct quire_info info = {.size = sizeof info};
        snprintf(dir, sizeof dir, "tests/data/%s", cases[i][0]);
        struct quire_options o = options_of(dir);
        open_engine(&o);
        quire_engine_info(engine, &info);
        assert_string_equal(info.quantization, cases[i][1]);
        quire_engine_close(engine);
    }
}

static void tokenize_and_back(void **state)
{
    (void)state;
    struct quire_options o = options_of(BUNDLED);
    o.skip_tokenizer = false;
    open_engine(&o);
    const struct quire_text hello = {"hello world", 11}, broken = {"\xff", 1};
    const struct quire_tokens none = {NULL, 0};
    struct quire_tokens tokens = none;
    struct quire_text text = {NULL, 0};
    assert_int_equal(quire_tokenize(engine, &tokens, &hello, false, NULL), QUIRE_OK);
    assert_int_equal(quire_detokenize(engine, &text, &tokens, true, NULL), QUIRE_OK);
    assert_string_equal(text.bytes, "hello world");
    quire_free(text.bytes);
    quire_free(tokens.ids);
    assert_int_equal(quire_detokenize(engine, &text, &none, true, NULL), QUIRE_OK);
    assert_string_equal(text.bytes, "");
    quire_free(text.bytes);
    assert_int_equal(quire_tokenize(engine, &tokens, &broken, false, NULL), QUIRE_INVALID);
    const struct quire_text no_bytes = {NULL, 2};
    const struct quire_tokens no_ids = {NULL, 2};
    struct quire_text nothing;
    assert_int_equal(quire_tokenize(engine, &tokens, &no_bytes, false, NULL), QUIRE_INVALID);
    assert_int_equal(quire_detokenize(engine, &nothing, &no_ids, false, NULL), QUIRE_INVALID);
    quire_engine_close(engine);
}

/* Whatever the model would have said; behind a marker when there is one. */
static void grammars_hold(void **state)
{
    (void)state;
    struct quire_options o = options_of(BUNDLED);
    o.skip_tokenizer = false;
    open_engine(&o);
    struct quire_params p = text_params("My pet is a");
    p.ignore_eos = false;
    p.grammar_kind = QUIRE_GRAMMAR_JSON_SCHEMA | QUIRE_GRAMMAR_COMPACT;
    p.grammar = "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"cat\"]}},"
                "\"required\":[\"kind\"],\"additionalProperties\":false}";
    struct quire_request *r = submit(&p);
    struct taken t = take(r);
    assert_string_equal(t.text, "{\"kind\":\"cat\"}");
    assert_int_equal(t.last.finish, QUIRE_FINISH_STOP);
    quire_request_free(r);
    p.grammar_kind = QUIRE_GRAMMAR_CHOICE;
    p.grammar = "[\"<yes>\",\"<no>\"]";
    p.grammar_after = "e"; /* soon there in any text */
    r = submit(&p);
    t = take(r);
    const char *end = strchr(t.text, 'e');
    assert_true(t.last.finish == QUIRE_FINISH_LENGTH || (end && end[1] == '<'));
    quire_request_free(r);
    p.grammar_kind = QUIRE_GRAMMAR_REGEX;
    p.grammar = "(";
    r = submit(&p);
    struct quire_event ev;
    struct quire_error e = {0};
    assert_int_equal(quire_next(r, &ev, 60000, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "not closed"));
    quire_request_free(r);
    quire_engine_close(engine);
}

#define TOOLS                                                                        \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":" \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},"          \
    "\"required\":[\"city\"]}}}]"
#define MESSAGES "[{\"role\":\"user\",\"content\":\"What is the weather in Oslo?\"}]"

static struct quire_params chat_params(const char *messages)
{
    struct quire_params p;
    quire_params_init(&p, sizeof p);
    p.messages_json = messages;
    p.max_tokens = 48;
    return p;
}

static void open_bundled(void)
{
    struct quire_options o = options_of(BUNDLED);
    o.skip_tokenizer = false;
    o.max_num_batched_tokens = 256;
    open_engine(&o);
}

struct said { /* the events of a conversation, by kind */
    char content[2048], reasoning[2048], calls[2048], message[4096];
    uint32_t n_token;
    enum quire_finish finish;
};

static struct said converse(const struct quire_params *p)
{
    struct quire_request *r = submit(p);
    struct said s = {.n_token = 0};
    struct quire_error e = {0};
    struct quire_event ev;
    do {
        if (quire_next(r, &ev, 60000, &e) != QUIRE_OK)
            fail_msg("%s", e.message);
        char *to = ev.kind == QUIRE_REASONING   ? s.reasoning
                   : ev.kind == QUIRE_TOOL_CALL ? s.calls
                                                : s.content;
        assert_true(strlen(to) + ev.n_text < sizeof s.content);
        strncat(to, ev.text, ev.n_text);
        s.n_token += ev.kind == QUIRE_TOKEN;
    } while (ev.kind != QUIRE_FINISH);
    s.finish = ev.finish;
    snprintf(s.message, sizeof s.message, "%s", quire_request_message(r));
    assert_int_equal(quire_next(r, &ev, 0, &e), QUIRE_OK); /* again, without text */
    assert_true(ev.kind == QUIRE_FINISH && ev.finish == s.finish && ev.n_text == 0);
    quire_request_free(r);
    return s;
}

/* The text of a member of the message, "" when it is null or absent. */
static void assert_member(const struct said *s, const char *name, const char *want)
{
    json_t *m = json_loads(s->message, 0, NULL);
    const char *text = json_string_value(json_object_get(m, name));
    assert_non_null(m);
    assert_string_equal(text ? text : "", want);
    json_decref(m);
}

static void conversations_go_through_the_template(void **state)
{
    (void)state;
    open_bundled();
    struct quire_info info = {.size = sizeof info};
    quire_engine_info(engine, &info);
    assert_true(info.has_chat_template && !info.chat_template_error);
    struct quire_params p = chat_params(NULL);
    p.user = "What is the capital of \"France\"?";
    p.system = "Answer with one word.";
    struct said s = converse(&p);
    assert_true(s.finish == QUIRE_FINISH_STOP && *s.content && !*s.calls && !*s.reasoning);
    assert_member(&s, "content", s.content);
    struct quire_params same = chat_params(
        "[{\"role\":\"system\",\"content\":\"Answer with one word.\"},{\"role\":\"user\","
        "\"content\":\"What is the capital of \\\"France\\\"?\"}]");
    struct said t = converse(&same);
    assert_string_equal(s.message, t.message);
    assert_int_equal(s.n_token, t.n_token);
    p.max_tokens = 1;
    assert_int_equal(converse(&p).finish, QUIRE_FINISH_LENGTH);
    struct quire_request *r = submit(&(struct quire_params){
        .size = sizeof p,
        .text = "Once",
        .n_text = SIZE_MAX,
        .max_tokens = 1,
        .top_p = 1,
        .repetition_penalty = 1,
    });
    assert_string_equal(quire_request_message(r), ""); /* it is no conversation */
    quire_request_free(r);
    quire_engine_close(engine);
}

static void tool_calls_are_events(void **state)
{
    (void)state;
    open_bundled();
    struct quire_params p = chat_params(MESSAGES);
    p.tools_json = TOOLS;
    p.tool_choice_json = "required";
    struct said s = converse(&p);
    json_t *call = json_loads(s.calls, 0, NULL), *m = json_loads(s.message, 0, NULL);
    json_t *function = json_object_get(call, "function");
    assert_int_equal(s.finish, QUIRE_FINISH_TOOL_CALLS);
    assert_string_equal(json_string_value(json_object_get(function, "name")), "get_weather");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                        "{\"city\": \"Oslo\"}");
    assert_true(json_equal(json_array_get(json_object_get(m, "tool_calls"), 0), call));
    assert_true(json_is_null(json_object_get(m, "content")) && !*s.content);
    json_decref(call);
    json_decref(m);
    p.tool_choice_json = "\"none\""; /* as JSON; the tools are hidden */
    s = converse(&p);
    assert_true(s.finish != QUIRE_FINISH_TOOL_CALLS && !*s.calls);
    p.tool_choice_json = "required";
    p.max_tokens = 12; /* a call that is cut short is no event */
    s = converse(&p);
    assert_true(s.finish == QUIRE_FINISH_LENGTH && !*s.calls);
    quire_engine_close(engine);
}

static void reasoning_is_told_apart(void **state)
{
    (void)state;
    struct quire_options o = options_of(BUNDLED);
    char path[] = "/tmp/quire-think-XXXXXX";
    const char *text =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n{{ start | default('<think>') }}";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    o.skip_tokenizer = false;
    assert_int_equal(quire_options_set(&o, "chat_template", path, NULL), QUIRE_OK);
    assert_int_equal(quire_options_set(&o, "reasoning-parser", "qwen3", NULL), QUIRE_OK);
    open_engine(&o);
    quire_options_release(&o);
    unlink(path);
    struct quire_params p = chat_params(MESSAGES);
    struct said s = converse(&p);
    assert_true(*s.reasoning && !*s.content);
    assert_member(&s, "reasoning", s.reasoning);
    p.chat_template_kwargs_json = "{\"start\": \"\"}";
    s = converse(&p);
    assert_true(!*s.reasoning && *s.content);
    p.grammar_kind =
        QUIRE_GRAMMAR_REGEX; /* it holds behind reasoning, which the prompt has ended */
    p.grammar = "[0-9]{4}";
    p.chat_template_kwargs_json = "{\"start\": \"<think>\\n\\n</think>\\n\\n\"}";
    s = converse(&p);
    assert_int_equal(strspn(s.content, "0123456789"), 4);
    quire_engine_close(engine);
}

static void assert_refused(const struct quire_params *p, enum quire_code code, const char *says)
{
    struct quire_error e = {QUIRE_OK, ""};
    struct quire_request *r = NULL;
    enum quire_code rc = quire_submit(&r, engine, p, &e);
    if (rc != code || r || !strstr(e.message, says))
        fail_msg("%d \"%s\", wanted %d \"%s\"", (int)rc, e.message, (int)code, says);
}

/* A model with a template that does not parse: completions work, a conversation gets the cause. */
static void a_broken_template_is_told(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    struct folder f;
    folder_init(&f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        folder_copy(&f, BUNDLED, names[i]);
    folder_text(&f, "chat_template.jinja", "{% for m in messages %}");
    struct quire_options o = options_of(f.path);
    o.skip_tokenizer = false;
    open_engine(&o);
    struct quire_info info = {.size = sizeof info};
    quire_engine_info(engine, &info);
    assert_false(info.has_chat_template);
    assert_non_null(info.chat_template_error);
    struct quire_params p = chat_params(MESSAGES);
    assert_refused(&p, QUIRE_UNSUPPORTED, "this model's chat template cannot be used");
    assert_refused(&p, QUIRE_UNSUPPORTED, info.chat_template_error);
    p.messages_json = NULL;
    p.text = "Once";
    p.n_text = SIZE_MAX;
    quire_request_free(submit(&p));
    quire_engine_close(engine);
    folder_release(&f);
}

static void conversations_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *choice, *kwargs, *says;
    } cases[] = {
        {"[", NULL, NULL, NULL, "messages: the text is not valid JSON: line 1"},
        {"{}", NULL, NULL, NULL, "messages: expected an array, got an object"},
        {"[]", NULL, NULL, NULL, "messages: 0 entries, expected 1 to"},
        {"[{\"role\":\"user\"}]", NULL, NULL, NULL, "messages: entry 0: role \"user\" requires"},
        {MESSAGES, "7", NULL, NULL, "tools: expected an array, got an integer"},
        {MESSAGES, "[{}]", NULL, NULL, "tools: entry 0: function.name must be a string"},
        {MESSAGES, NULL, "required", NULL, "tool_choice: requires \"tools\""},
        {MESSAGES, TOOLS, "always", NULL, "tool_choice: unknown value \"always\""},
        {MESSAGES, TOOLS, "{", NULL, "tool_choice: the text is not valid JSON"},
        {MESSAGES, TOOLS, "{\"function\":{\"name\":\"f\"}}", NULL, "no function \"f\""},
        {MESSAGES, NULL, NULL, "[]", "chat_template_kwargs: expected an object, got an array"},
    };
    struct quire_params p;
    open_bundled();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p = chat_params(cases[i].messages);
        p.tools_json = cases[i].tools;
        p.tool_choice_json = cases[i].choice;
        p.chat_template_kwargs_json = cases[i].kwargs;
        assert_refused(&p, QUIRE_INVALID, cases[i].says);
    }
    p = chat_params(MESSAGES);
    p.user = "twice";
    assert_refused(&p, QUIRE_INVALID, "messages: given both as user and as messages_json");
    p = chat_params(NULL);
    p.user = "\xff";
    assert_refused(&p, QUIRE_INVALID, "messages: the user's text is not UTF-8");
    p = chat_params(MESSAGES);
    p.text = "and a text";
    assert_refused(&p, QUIRE_INVALID, "expected one prompt");
    p = text_params("Once");
    p.tools_json = TOOLS;
    assert_refused(&p, QUIRE_INVALID, "tools: only accepted with a conversation");
    quire_engine_close(engine);
    struct quire_options o = options_of(BUNDLED);
    open_engine(&o); /* without tokenizer */
    p = chat_params(MESSAGES);
    assert_refused(&p, QUIRE_UNSUPPORTED, "messages: the engine was opened with skip_tokenizer");
    quire_engine_close(engine);
    o = options_of(BUNDLED);
    o.skip_tokenizer = false;
    assert_int_equal(quire_options_set(&o, "tool_call_parser", "nothing", NULL), QUIRE_OK);
    struct quire_error e = {QUIRE_OK, ""};
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_NOT_FOUND);
    assert_non_null(strstr(e.message, "--tool-call-parser"));
    quire_options_release(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_model_gives_its_greedy_tokens),
        cmocka_unit_test(text_goes_in_and_out),
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(stop_ids_end_the_answer),
        cmocka_unit_test(only_allowed_ids_are_sampled),
        cmocka_unit_test(grammars_hold),
        cmocka_unit_test(logprobs_are_the_reference_ones),
        cmocka_unit_test(seeds_decide_alone_and_in_a_crowd),
        cmocka_unit_test_prestate(seeds_decide_alone_and_in_a_crowd, int8_name),
        cmocka_unit_test(many_threads_share_an_engine),
        cmocka_unit_test(a_full_queue_is_busy_and_recovers),
        cmocka_unit_test(weights_are_reloaded_in_place),
        cmocka_unit_test(misuse_is_told),
        cmocka_unit_test(an_array_that_is_null_is_told),
        cmocka_unit_test(quantization_is_the_checkpoints),
        cmocka_unit_test(tokenize_and_back),
        cmocka_unit_test(conversations_go_through_the_template),
        cmocka_unit_test(a_broken_template_is_told),
        cmocka_unit_test(tool_calls_are_events),
        cmocka_unit_test(reasoning_is_told_apart),
        cmocka_unit_test(conversations_are_checked),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
