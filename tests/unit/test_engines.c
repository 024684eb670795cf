/* SPDX-License-Identifier: Apache-2.0 */
/* Several engines in memory behind one frontend: which one gets a request, what becomes of the
 * requests of one that is lost, drains or is full, and what all of them are told. */
#include "check.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/link/adapter_list.h"
#include "frontend/link/engines_internal.h"
#include "proto/item_types.h"
#include "proto/socket.h"

#define ENGINES 3
#define FLOWS   12
#define CREDIT  8
#define PROMPT  512

static int64_t now_ms = 1000000;

int64_t __wrap_clock_ms(void);
int64_t __wrap_clock_ms(void)
{
    return now_ms;
}

struct seen {
    struct generation generation; /* first */
    uint32_t tokens[64], n;
    enum finish_reason finish;
    enum q_code error;
    char message[2 * Q_MESSAGE_MAX];
};

struct fake { /* an engine's side of its link */
    struct link link;
    struct buf last_submit;
    uint32_t n_submit, n_abort;
    uint64_t aborted; /* the last one */
    bool is_gone;
};

static struct engines set;
static struct fake fakes[ENGINES];
static struct seen seen[FLOWS];
static struct link_request requests[FLOWS];
static uint32_t prompts[FLOWS][PROMPT];
static uint32_t n_change, n_beat;

static bool take_frame(void *ctx, const void *frame, size_t n)
{
    struct fake *f = ctx;
    struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    struct msg_abort m;
    if (f->is_gone)
        return false;
    if (proto_peek(frame, n) == MSG_submit) {
        buf_reset(&f->last_submit);
        buf_add(&f->last_submit, frame, n);
        f->n_submit++;
    } else if (proto_peek(frame, n) == MSG_abort) {
        assert_ok(msg_abort_decode(&m, frame, n, &a, &e), &e);
        f->n_abort += (uint32_t)m.req_ids.n;
        f->aborted = m.req_ids.data[m.req_ids.n - 1];
    }
    arena_release(&a);
    return true;
}

static void on_tokens(struct generation *f, const struct link_tokens *t)
{
    struct seen *s = (struct seen *)f;
    for (uint32_t i = 0; i < t->n; i++)
        s->tokens[s->n++] = t->ids[i];
    s->finish = t->finish;
}

static void on_error(struct generation *f, enum q_code code, const char *message,
                     uint32_t retry_after_ms)
{
    (void)retry_after_ms;
    struct seen *s = (struct seen *)f;
    s->error = code;
    snprintf(s->message, sizeof s->message, "%s", message);
}

static const struct generation_calls calls = {.on_tokens = on_tokens, .on_error = on_error};

static void on_change(void *ctx)
{
    (void)ctx;
    n_change++;
}

static void on_beat(void *ctx)
{
    (void)ctx;
    n_beat++;
}

#define GIVE(i, name, ...)                                  \
    do {                                                    \
        struct q_err e_ = Q_ERR_INIT;                       \
        struct buf b_ = BUF_INIT;                           \
        struct msg_##name m_ = __VA_ARGS__;                 \
        assert_ok(msg_##name##_encode(&m_, &b_, &e_), &e_); \
        link_receive(&fakes[i].link, b_.data, b_.len);      \
        buf_release(&b_);                                   \
    } while (0)

static void greet(int i, uint64_t instance, const char *fingerprint, const char *death)
{
    static const uint8_t digest[32];
    fakes[i].is_gone = false;
    GIVE(i, hello,
         {.wire_min = 1,
          .wire_max = 1,
          .digest = {digest, 32},
          .instance = instance,
          .credit = CREDIT,
          .max_model_len = 1000 + (uint32_t)i,
          .max_num_seqs = 4,
          .heartbeat_ms = 50,
          .fingerprint = {fingerprint, strlen(fingerprint)},
          .death = {death, strlen(death)}});
}

static void greet_all(void)
{
    for (int i = 0; i < ENGINES; i++)
        greet(i, 1 + (uint64_t)i, "fp", "other: it was stopped");
    engines_settle(&set);
}

static int setup(void **state)
{
    static const char *const addresses[] = {"ipc:///a", "ipc:///b", "ipc:///c"};
    const struct engines_config c = {
        .addresses = addresses,
        .n = ENGINES,
        .link = {.engine_timeout_ms = 1000},
        .on_change = on_change,
        .on_heartbeat = on_beat,
    };
    struct q_err e = Q_ERR_INIT;
    (void)state;
    memset(seen, 0, sizeof seen);
    memset(fakes, 0, sizeof fakes);
    memset(requests, 0, sizeof requests);
    n_change = n_beat = 0;
    assert_ok(engines_init(&set, &c, &e), &e);
    for (uint32_t i = 0; i < ENGINES; i++) {
        const struct link_config each = engines_link_config(&set, i);
        assert_ok(link_init(&fakes[i].link, &each, &e), &e);
        fakes[i].link.send = take_frame;
        fakes[i].link.send_ctx = &fakes[i];
        set.all[i].link = &fakes[i].link;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < FLOWS; i++)
        engines_close(&set, &seen[i].generation);
    for (uint32_t i = 0; i < ENGINES; i++) {
        assert_int_equal(fakes[i].link.n_prefill, 0); /* nothing is left in the sums */
        link_release(&fakes[i].link);
        buf_release(&fakes[i].last_submit);
    }
    engines_release(&set);
    return 0;
}

static void open_generation(int i, struct generation f)
{
    struct q_err e = Q_ERR_INIT;
    f.calls = &calls;
    f.prompt = f.prompt ? f.prompt : prompts[0];
    sample_params_default(&f.params);
    seen[i].generation = f;
    assert_ok(engines_open(&set, &seen[i].generation, &e), &e);
}

static int place_of(int i)
{
    for (int at = 0; at < ENGINES; at++)
        if (seen[i].generation.link == &fakes[at].link)
            return at;
    fail_msg("generation %d is at no engine", i);
    return 0;
}

/* Open generation i with a prompt of n_token, the first n_same of which are those of all others. */
static int open_with(int i, size_t n_token, size_t n_same)
{
    for (size_t t = 0; t < n_token; t++)
        prompts[i][t] = (uint32_t)(t < n_same ? t : t + 1000 * ((size_t)i + 1));
    requests[i] = (struct link_request){.n = 1};
    open_generation(i, (struct generation){
                           .prompt = prompts[i],
                           .n_prompt = n_token,
                           .request = &requests[i],
                       });
    return place_of(i);
}

static void give_tokens(int i, uint32_t token, uint32_t n, uint32_t finish)
{
    const struct generation *f = &seen[i].generation;
    const uint64_t id = f->wire_id;
    const uint32_t seq = (uint32_t)f->emitted.n, tokens[] = {token, token + 1, token + 2};
    const int at = (int)((struct fake *)((char *)f->link - offsetof(struct fake, link)) - fakes);
    GIVE(at, output,
         {.req_ids = {&id, 1},
          .seq = {&seq, 1},
          .n_token = {&n, 1},
          .tokens = {tokens, n},
          .finish = {&finish, 1}});
}

static struct msg_submit submit_of(int at)
{
    static struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    struct msg_submit m;
    const struct buf *b = &fakes[at].last_submit;
    assert_ok(msg_submit_decode(&m, b->data, b->len, &a, &e), &e);
    return m;
}

static void lose(int at)
{
    fakes[at].is_gone = true;
    now_ms += 300; /* its heartbeat is due and cannot be sent */
    link_tick(&fakes[at].link);
    assert_int_equal(fakes[at].link.state, LINK_CONNECTING);
    engines_settle(&set);
}

/* Requests that share nothing are spread evenly; a short prompt too. */
static void test_spreads(void **state)
{
    (void)state;
    uint32_t n[ENGINES] = {0};
    greet_all();
    for (int i = 0; i < 6; i++)
        n[open_with(i, 200, 0)]++;
    for (int i = 6; i < 12; i++)
        n[open_with(i, 3, 0)]++;
    for (int at = 0; at < ENGINES; at++)
        assert_int_equal(n[at], 4);
}

/* A conversation goes on where its prefix is, although others have as little to do; another one
 * of the same length does not. */
static void test_follows_the_prefix(void **state)
{
    (void)state;
    greet_all();
    const int first = open_with(0, 300, 256);
    give_tokens(0, 7, 1, FINISH_STOP);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(open_with(i, 400, 256), first);
        assert_int_equal(seen[i].generation.n_prefill, 400 - 256);
        give_tokens(i, 7, 1, FINISH_STOP);
    }
    open_with(4, 400, 0);
    assert_int_equal(seen[4].generation.n_prefill, 400);
}

/* Cached tokens weigh as much as tokens that have to be computed: an engine with more work than
 * the prefix saves is passed over, and then has the prefix too. */
static void test_load_outweighs_the_prefix(void **state)
{
    (void)state;
    greet_all();
    const int first = open_with(0, 300, 256);
    int at = first, n = 0;
    give_tokens(0, 7, 1, FINISH_NONE);
    for (int i = 1; i < 8 && at == first; i++, n++)
        at = open_with(i, 300, 256);
    assert_in_range(n, 2, 4); /* each has 128 tokens of output and 44 of prompt to come */
    assert_int_not_equal(at, first);
    give_tokens(n, 7, 1, FINISH_STOP);
    assert_int_equal(open_with(9, 300, 256), at);
    assert_int_equal(seen[9].generation.n_prefill, 300 - 256);
}

static struct affinity_keys keys_of(const struct generation *f)
{
    struct affinity_keys k;
    affinity_keys(&k, f);
    return k;
}

/* What names blocks of the prefix cache names chunks: tokens, salt, adapter; not what is behind. */
static void test_keys(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < PROMPT; t++)
        prompts[0][t] = t;
    struct generation f = {.prompt = prompts[0], .n_prompt = 3 * AFFINITY_CHUNK - 1}, g = f;
    const struct affinity_keys plain = keys_of(&f);
    assert_int_equal(plain.n, 2);
    g.n_prompt++;
    assert_int_equal(keys_of(&g).n, 3);
    assert_memory_equal(keys_of(&g).keys, plain.keys, 2 * sizeof *plain.keys);
    g = f;
    g.adapter = "other";
    assert_true(keys_of(&g).keys[0] != plain.keys[0]);
    g = f;
    g.n_cache_salt = 32;
    g.cache_salt[3] = 1;
    assert_true(keys_of(&g).keys[0] != plain.keys[0]);
    g.n_shared = AFFINITY_CHUNK; /* public: the salt is behind it */
    assert_true(keys_of(&g).keys[0] == plain.keys[0] && keys_of(&g).keys[1] != plain.keys[1]);
    g = f;
    g.no_prefix_cache = true;
    assert_int_equal(keys_of(&g).n, 0);
    prompts[0][AFFINITY_CHUNK]++;
    assert_true(keys_of(&f).keys[0] == plain.keys[0] && keys_of(&f).keys[1] != plain.keys[1]);
}

/* Items are part of the chunk that they are in. */
static void test_keys_of_items(void **state)
{
    (void)state;
    const uint8_t pixels[2][6] = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 7}};
    const uint32_t position = AFFINITY_CHUNK + 5;
    struct affinity_keys k[3];
    for (int i = 0; i < 3; i++) {
        const struct item_array item = {
            .modality = "image",
            .dtype = ITEM_U8,
            .n_dim = 2,
            .dims = {2, 3},
            .data = pixels[i % 2],
            .n_byte = 6,
        };
        struct item_wire w = ITEM_WIRE_INIT;
        struct q_err e = Q_ERR_INIT;
        assert_ok(item_wire_make(&w, &item, 1, &e), &e);
        struct generation f = {
            .prompt = prompts[0],
            .n_prompt = 2 * AFFINITY_CHUNK,
            .items = &w,
            .item_positions = &position,
            .n_item_position = 1,
        };
        affinity_keys(&k[i], &f);
        assert_int_equal(k[i].n, 2);
        f.item_positions = NULL; /* the engine finds their places */
        assert_int_equal(keys_of(&f).n, 0);
        item_wire_release(&w);
    }
    assert_true(k[0].keys[0] == k[1].keys[0] && k[0].keys[1] != k[1].keys[1]);
    assert_memory_equal(k[0].keys, k[2].keys, 2 * sizeof *k[0].keys);
}

/* The table keeps what was used last; an engine's restart empties its part. */
static void test_table(void **state)
{
    (void)state;
    struct affinity *a = NULL;
    struct affinity_keys k = {.n = 1};
    struct q_err e = Q_ERR_INIT;
    uint32_t n[AFFINITY_ENGINES];
    assert_ok(affinity_new(&a, &e), &e);
    for (uint64_t i = 0; i < 20; i++) { /* of one set, which has fewer entries */
        k.keys[0] = i << 40;
        affinity_add(a, &k, (uint32_t)i % 2);
    }
    k.keys[0] = 0;
    affinity_find(a, &k, n);
    assert_int_equal(n[0], 0);
    k.keys[0] = 19ull << 40;
    affinity_add(a, &k, 31);
    affinity_find(a, &k, n);
    assert_true(n[1] == AFFINITY_CHUNK && n[31] == AFFINITY_CHUNK && !n[0]);
    affinity_forget(a, 1);
    affinity_find(a, &k, n);
    assert_true(!n[1] && n[31] == AFFINITY_CHUNK);
    affinity_free(a);
}

/* An engine is lost: its generations go on elsewhere with the tokens that they have, and late
 * output of the lost one is not theirs. */
static void test_goes_on_elsewhere(void **state)
{
    (void)state;
    greet_all();
    const int at = open_with(0, 100, 0);
    const uint64_t old_id = seen[0].generation.wire_id;
    give_tokens(0, 7, 2, FINISH_NONE);
    lose(at);
    const int to = place_of(0);
    assert_int_not_equal(to, at);
    const struct msg_submit m = submit_of(to);
    assert_int_equal(m.emitted.n, 2);
    assert_int_equal(m.emitted.data[1], 8);
    give_tokens(0, 9, 1, FINISH_STOP);
    assert_int_equal(seen[0].n, 3);
    assert_int_equal(seen[0].finish, FINISH_STOP);
    greet(at, 1 + (uint64_t)at, "fp", ""); /* the same engine: it still has it, and is told */
    link_tick(&fakes[at].link);
    assert_int_equal(fakes[at].aborted, old_id);
    assert_int_equal(seen[0].error, Q_OK);
}

/* Without tokens it goes to an engine with other weights; with tokens it waits for its own. */
static void test_fingerprints(void **state)
{
    (void)state;
    greet(0, 1, "fp", "");
    open_with(0, 100, 0);
    open_with(1, 100, 0);
    give_tokens(1, 7, 1, FINISH_NONE);
    greet(1, 2, "other", "");
    lose(0);
    assert_int_equal(place_of(0), 1);
    assert_int_equal(place_of(1), 0);
    now_ms += 500;
    greet(0, 3, "fp", "other: it was stopped");
    assert_int_equal(submit_of(0).emitted.n, 1);
    give_tokens(1, 8, 1, FINISH_STOP);
    assert_int_equal(seen[1].n, 2);
}

/* What ends two engines does not get a third one: it waits for the second, whose link looks for
 * the cause. */
static void test_two_engines_are_enough(void **state)
{
    (void)state;
    greet_all();
    const int first = open_with(0, 100, 0);
    lose(first);
    const int second = place_of(0);
    assert_int_not_equal(second, first);
    lose(second);
    assert_int_equal(place_of(0), second);
    const uint32_t n_third = fakes[3 - first - second].n_submit;
    now_ms += 500;
    greet(second, 20, "fp", "crash: signal 11");
    engines_settle(&set);
    assert_int_equal(place_of(0), second);
    assert_int_equal(fakes[3 - first - second].n_submit, n_third);
    assert_int_equal(seen[0].generation.n_lost, 1);
}

/* All generations of a request stay together. */
static void test_a_request_moves_as_one(void **state)
{
    (void)state;
    greet_all();
    const int at = open_with(0, 100, 0);
    requests[0].n = 3;
    for (int i = 1; i < 3; i++) {
        open_generation(i, (struct generation){.n_prompt = 100, .request = &requests[0]});
        assert_int_equal(place_of(i), at);
    }
    lose(at);
    assert_int_not_equal(place_of(0), at);
    assert_int_equal(place_of(1), place_of(0));
    assert_int_equal(place_of(2), place_of(0));
    open_generation(3, (struct generation){.n_prompt = 100, .request = &requests[0]});
    assert_int_equal(place_of(3), place_of(0));
}

/* An engine without room passes a new request on, each to engines that have not refused it; when
 * all have, the client is told. */
static void test_full(void **state)
{
    (void)state;
    uint32_t been = 0;
    greet_all();
    open_with(0, 100, 0);
    for (int n = 0; n < ENGINES; n++) {
        const int at = place_of(0);
        assert_int_equal(seen[0].error, Q_OK);
        assert_false(been & 1u << at);
        been |= 1u << at;
        GIVE(at, error,
             {.req_id = seen[0].generation.wire_id,
              .code = {"NO_SPACE", 8},
              .message = {"the queue is full", 17}});
    }
    assert_int_equal(been, 7);
    assert_int_equal(seen[0].error, Q_NO_SPACE);
}

/* One that drains gets nothing new and keeps what it has; what waits for it goes elsewhere. */
static void test_draining(void **state)
{
    (void)state;
    greet(0, 1, "fp", "");
    for (int i = 0; i < CREDIT + 1; i++)
        open_with(i, 100, 0);
    assert_int_equal(fakes[0].link.waiting.n, 1);
    greet(1, 2, "fp", "");
    engines_settle(&set);
    assert_int_equal(place_of(CREDIT), 0); /* it waits for room, as with one engine */
    GIVE(0, drain, {.reason = {"", 0}});
    engines_settle(&set);
    assert_int_equal(place_of(CREDIT), 1);
    assert_int_equal(place_of(0), 0);
    assert_int_equal(open_with(CREDIT + 1, 100, 100), 1);
    assert_int_equal(engines_state(&set), LINK_UP);
}

/* A paused engine is used if no other is there. */
static void test_paused(void **state)
{
    (void)state;
    greet(0, 1, "fp", "");
    greet(1, 2, "fp", "");
    GIVE(0, heartbeat, {.step = 1, .paused = true});
    for (int i = 0; i < 4; i++)
        assert_int_equal(open_with(i, 100, 0), 1);
    assert_false(engines_info(&set)->pausing);
    GIVE(1, heartbeat, {.step = 1, .paused = true});
    assert_true(engines_info(&set)->pausing);
    assert_int_not_equal(open_with(4, 100, 0), 2);
}

/* Nothing is up: a request waits, for whichever engine comes first. */
static void test_waits_for_any(void **state)
{
    (void)state;
    open_with(0, 100, 0);
    open_with(1, 100, 0);
    greet(2, 1, "fp", "");
    engines_settle(&set);
    assert_true(place_of(0) == 2 && place_of(1) == 2);
    assert_true(seen[0].generation.wire_id && seen[1].generation.wire_id);
}

/* Requests of other frontends count: heartbeats say how many there are. */
static void test_other_frontends(void **state)
{
    (void)state;
    greet_all();
    GIVE(0, heartbeat, {.step = 1, .n_running = 10});
    GIVE(1, heartbeat, {.step = 1, .n_running = 2, .n_waiting = 8});
    for (int i = 0; i < 4; i++)
        assert_int_equal(open_with(i, 100, 0), 2);
}

static void add_adapter(struct buf *to, const char *name, const char *fingerprint)
{
    buf_add(to, name, strlen(name) + 1);
    buf_add(to, "/path", 6);
    buf_add(to, fingerprint, strlen(fingerprint) + 1);
}

/* An adapter that one engine has: its requests go there. */
static void test_adapters(void **state)
{
    (void)state;
    struct buf with = BUF_INIT;
    struct adapter_entry found;
    greet_all();
    add_adapter(&with, "sql", "f1");
    GIVE(1, heartbeat,
         {.step = 1, .has_adapters = true, .adapters = {(const uint8_t *)with.data, with.len}});
    assert_true(adapter_list_find(&engines_info(&set)->adapters, "sql", &found));
    for (int i = 0; i < 4; i++) {
        open_generation(i, (struct generation){.n_prompt = 10, .adapter = "sql"});
        assert_int_equal(place_of(i), 1);
    }
    lose(1); /* no other has it */
    assert_int_equal(place_of(0), 1);
    buf_release(&with);
}

/* What holds for all, and metrics that are sums. */
static void test_what_is_shown(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    assert_int_equal(engines_state(&set), LINK_CONNECTING);
    assert_true(*engines_reason(&set) && *engines_code(&set));
    assert_int_equal(engines_info(&set)->instance, 0);
    greet_all();
    assert_int_equal(engines_info(&set)->max_model_len, 1000);
    assert_ok(engines_need_all(&set, &e), &e);
    assert_int_equal(metric_value(METRIC_ENGINE_UP), 3);
    GIVE(0, heartbeat, {.step = 1, .n_running = 3, .kv_blocks_used = 10, .kv_blocks_total = 40});
    GIVE(1, heartbeat, {.step = 1, .n_running = 4, .kv_blocks_used = 20, .kv_blocks_total = 80});
    assert_int_equal(metric_value(METRIC_RUNNING), 7);
    assert_true(metric_value(METRIC_KV_USAGE) == 0.25);
    GIVE(0, heartbeat, {.step = 2, .n_running = 1, .kv_blocks_used = 10, .kv_blocks_total = 40});
    assert_int_equal(metric_value(METRIC_RUNNING), 5);
    lose(0);
    assert_int_equal(metric_value(METRIC_ENGINE_UP), 2);
    assert_int_equal(engines_info(&set)->max_model_len, 1001);
    assert_int_equal(engines_state(&set), LINK_UP);
    assert_string_equal(engines_reason(&set), "");
    assert_fails(engines_need_all(&set, &e), Q_UNAVAILABLE, "the engine at ipc:///a", &e);
    assert_true(n_change > 0);
}

/* Tokens that a generation begins with are tokens: they bind it to engines of their fingerprint. */
static void test_begun_tokens(void **state)
{
    (void)state;
    const uint32_t begun[] = {7, 8};
    greet(0, 1, "fp", "");
    requests[0].link = &fakes[0].link; /* which gave them */
    open_generation(0, (struct generation){
                           .n_prompt = 10,
                           .begun = begun,
                           .n_begun = 2,
                           .request = &requests[0],
                       });
    greet(1, 2, "other", "");
    lose(0);
    assert_int_equal(place_of(0), 0);
    requests[1].link = &fakes[0].link;
    open_generation(1, (struct generation){
                           .n_prompt = 10,
                           .begun = begun,
                           .n_begun = 2,
                           .request = &requests[1],
                       });
    assert_int_equal(place_of(1), 0);
    greet(2, 3, "fp", "");
    engines_settle(&set);
    assert_true(place_of(0) == 2 && place_of(1) == 2);
}

/* A submit that crosses with the drain comes back: it goes elsewhere, though nothing changes. */
static void test_crosses_with_the_drain(void **state)
{
    (void)state;
    greet(0, 1, "fp", "");
    open_with(0, 100, 0);
    greet(1, 2, "fp", "");
    GIVE(0, drain, {.reason = {"", 0}});
    engines_settle(&set);
    assert_int_equal(place_of(0), 0);
    GIVE(0, error,
         {.req_id = seen[0].generation.wire_id,
          .code = {"UNAVAILABLE", 11},
          .message = {"draining", 8}});
    now_ms += 200;
    engines_settle(&set);
    assert_int_equal(place_of(0), 1);
    assert_int_equal(seen[0].error, Q_OK);
}

/* An engine that drains and ends is no crash: a request outlives two of them. */
static void test_two_drains(void **state)
{
    (void)state;
    greet_all();
    const int first = open_with(0, 100, 0);
    give_tokens(0, 7, 1, FINISH_NONE);
    GIVE(first, drain, {.reason = {"", 0}});
    lose(first);
    const int second = place_of(0);
    assert_int_not_equal(second, first);
    give_tokens(0, 8, 1, FINISH_NONE);
    GIVE(second, drain, {.reason = {"", 0}});
    lose(second);
    assert_int_equal(place_of(0), 3 - first - second);
    assert_int_equal(submit_of(3 - first - second).emitted.n, 2);
}

/* It waited for room for long; its engine is lost now, and it has not waited for that. */
static void test_waited_for_room(void **state)
{
    (void)state;
    greet(0, 1, "fp", "");
    for (int i = 0; i <= CREDIT; i++)
        open_with(i, 100, 0);
    for (int i = 0; i < 40; i++) {
        now_ms += 50;
        GIVE(0, heartbeat, {.step = 1});
        link_tick(&fakes[0].link);
    }
    greet(1, 2, "fp", "");
    fakes[0].is_gone = true;
    now_ms += 300;
    link_tick(&fakes[0].link);
    assert_int_equal(seen[CREDIT].error, Q_OK);
    engines_settle(&set);
    assert_int_equal(place_of(CREDIT), 1);
}

/* An engine of another model gives what waits there to one that may still come; the last one says
 * why none serves. */
static void test_refused(void **state)
{
    (void)state;
    open_with(0, 100, 0);
    const int first = place_of(0);
    GIVE(first, error, {.code = {"MISMATCH", 8}, .message = {"another model", 13}});
    link_tick(&fakes[first].link);
    engines_settle(&set);
    assert_int_equal(seen[0].error, Q_OK);
    assert_int_not_equal(place_of(0), first);
    for (int at = 0; at < ENGINES; at++)
        GIVE(at, error, {.code = {"MISMATCH", 8}, .message = {"another model", 13}});
    link_tick(&fakes[place_of(0)].link);
    assert_int_equal(seen[0].error, Q_UNAVAILABLE);
    assert_non_null(strstr(seen[0].message, "another model"));
}

/* One that fails every request at once has none open, and gets few for it. */
static void test_failing(void **state)
{
    (void)state;
    uint32_t n_failed = 0;
    greet_all();
    for (int i = 0; i < FLOWS; i++) {
        if (open_with(i, 3, 0) != 0)
            continue;
        n_failed++;
        GIVE(0, error,
             {.req_id = seen[i].generation.wire_id,
              .code = {"INTERNAL", 8},
              .message = {"broken", 6}});
    }
    assert_in_range(n_failed, 1, 5);
    for (int i = 0; i < 400; i++)
        fakes[0].link.n_failing *= 0.95; /* what a tick does: it is forgotten */
    assert_true(fakes[0].link.n_failing < 0.001);
}

/* A longer prompt than an engine takes is not for it. */
static void test_lengths(void **state)
{
    (void)state;
    greet_all();
    open_generation(0, (struct generation){.n_prompt = 10});
    for (int i = 1; i < 4; i++) {
        struct q_err e = Q_ERR_INIT;
        seen[i].generation =
            (struct generation){.calls = &calls, .prompt = prompts[0], .n_prompt = 10};
        sample_params_default(&seen[i].generation.params);
        seen[i].generation.params.max_tokens = 1002 - 10; /* what the last one takes */
        assert_ok(engines_open(&set, &seen[i].generation, &e), &e);
        assert_int_equal(place_of(i), 2);
    }
}

/* Counters that begin again with a restart are added up; a lost engine's gauges are nothing. */
static void test_sums(void **state)
{
    (void)state;
    const uint64_t steps[16] = {5}, more[16] = {2};
    greet_all();
    GIVE(0, heartbeat,
         {.step = 1,
          .n_running = 3,
          .kv_blocks_total = 40,
          .prompt_tokens = 1000,
          .iteration_tokens = {steps, 16}});
    GIVE(1, heartbeat, {.step = 1, .prompt_tokens = 5000, .iteration_tokens = {steps, 16}});
    assert_int_equal(metric_value(METRIC_ENGINE_PROMPT), 6000);
    assert_int_equal(metric_value(METRIC_ITERATION), 10);
    lose(0);
    assert_int_equal(metric_value(METRIC_RUNNING), 0);
    assert_int_equal(metric_value(METRIC_KV_TOTAL), 0);
    assert_int_equal(metric_value(METRIC_ENGINE_PROMPT), 6000);
    greet(0, 9, "fp", "");
    GIVE(0, heartbeat, {.step = 1, .prompt_tokens = 10, .iteration_tokens = {more, 16}});
    assert_int_equal(metric_value(METRIC_ENGINE_PROMPT), 6010);
    assert_int_equal(metric_value(METRIC_ITERATION), 12);
}

/* on_heartbeat comes when each engine that was asked has answered. */
static void test_asking(void **state)
{
    (void)state;
    greet_all();
    lose(2);
    n_beat = 0;
    assert_true(engines_ask(&set));
    GIVE(1, heartbeat, {.step = 1});
    assert_int_equal(n_beat, 0);
    GIVE(1, heartbeat, {.step = 1});
    assert_int_equal(n_beat, 0);
    GIVE(0, heartbeat, {.step = 1});
    assert_int_equal(n_beat, 1);
}

static void test_addresses(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const char *const twice[] = {"ipc:///a", "tcp://h:1", "ipc:///a"}, *const bad[] = {"a:1"};
    const char *many[ENGINES_MAX + 1];
    for (size_t i = 0; i < ENGINES_MAX + 1; i++)
        many[i] = "ipc:///a";
    assert_fails(engines_check(twice, 3, &e), Q_INVALID, "ipc:///a is given twice", &e);
    assert_fails(engines_check(bad, 1, &e), Q_INVALID, "a:1", &e);
    assert_fails(engines_check(many, ENGINES_MAX + 1, &e), Q_INVALID, "at most 32", &e);
    assert_ok(engines_check(twice, 2, &e), &e);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_spreads),
        TEST(test_follows_the_prefix),
        TEST(test_load_outweighs_the_prefix),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_of_items),
        cmocka_unit_test(test_table),
        TEST(test_goes_on_elsewhere),
        TEST(test_fingerprints),
        TEST(test_two_engines_are_enough),
        TEST(test_a_request_moves_as_one),
        TEST(test_full),
        TEST(test_draining),
        TEST(test_paused),
        TEST(test_waits_for_any),
        TEST(test_other_frontends),
        TEST(test_adapters),
        TEST(test_what_is_shown),
        TEST(test_begun_tokens),
        TEST(test_crosses_with_the_drain),
        TEST(test_two_drains),
        TEST(test_waited_for_room),
        TEST(test_refused),
        TEST(test_failing),
        TEST(test_lengths),
        TEST(test_sums),
        TEST(test_asking),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
