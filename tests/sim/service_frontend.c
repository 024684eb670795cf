/* SPDX-License-Identifier: Apache-2.0 */
/* Frontends: a link each, with the timers of frontend/api/app.c; and the clients, which know the
 * answers that they have to get. */
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/hub/hub.h"
#include "common/mem.h"
#include "events.h"
#include "frontend/link/link_internal.h"
#include "service.h"

#define BOOT_US         30000 /* at most, from its start until its loop runs */
#define TICK_US         50000 /* of the link: TICK_MS */
#define GAUGE_US        2000000
#define ASK_US          100000 /* until a client asks again where no frontend runs */
#define ENGINE_HANGS    0xff   /* APP_ENGINE_HANGS */
#define STOP_IDS_MAX    2
#define LONG_TIMEOUT_MS 600000            /* engine_timeout_ms: no request may run into it */
#define HELD_MAX_US     INT64_C(30000000) /* that a request waits for the trials of suspects */

struct unread {
    void *frame;
    size_t n;
    struct unread *next;
};
static struct front {
    bool runs, is_stopped, is_announced;
    pid_t pid;
    struct link link;
    struct unread *first, **last;
} fronts[SERVICE_FRONTENDS_MAX];

struct client {
    struct generation generation; /* first */
    struct sample_params params;
    uint32_t *prompt;
    uint32_t n_prompt, stop_ids[STOP_IDS_MAX];
    uint32_t priority;
    uint64_t tenant;
    struct fake_answer want;
    uint32_t frontend, n_got, prompt_next;
    uint32_t i;
    bool is_open, is_over;
    int64_t held_us; /* it has waited for the trials of suspects, since its last token */
};
static struct client *clients; /* [service.n_client] */
static uint32_t n_over;

static void ask(uint64_t i, void *p);

static void *need(void *p)
{
    if (!p)
        sim_fail("no memory");
    return p;
}

enum poison poison_of(uint64_t seed)
{
    const uint64_t kind = seed % FAKE_KINDS;
    return kind <= POISON_ENGINE ? (enum poison)kind : POISON_NONE;
}

const unsigned char *service_digest(void)
{
    static unsigned char digest[32];
    static bool made;
    struct q_err e = Q_ERR_INIT;
    if (!made && hub_digest(digest, service.folder, &e))
        sim_fail("%s", e.message);
    made = true;
    return digest;
}

/* ---- frontends ---- */

static bool send_frame(void *ctx, const void *frame, size_t n)
{
    const struct front *f = ctx;
    return wire_send((uint32_t)(f - fronts), true, frame, n);
}

static bool is_front(uint64_t pid, uint64_t i)
{
    return fronts[i].runs && (uint64_t)fronts[i].pid == pid;
}

#define FRONT_KEY(pid, i) ((uint64_t)(pid) << 8 | (i))

/* Requests that the engine could have, if there were no suspects of crashes. */
static void watch_held(const struct front *f)
{
    const struct link *l = &f->link;
    if (link_state(l) != LINK_UP || !(l->suspecting || engine_tries()) ||
        (!l->suspecting && l->running.n >= l->engine.credit))
        return;
    for (uint32_t k = 0; k < service.n_client; k++) {
        struct client *c = &clients[k];
        if (!c->is_open || c->generation.list != &l->waiting)
            continue;
        c->held_us += TICK_US;
        if (c->held_us > service.report->held_us)
            service.report->held_us = c->held_us;
        if (c->held_us > HELD_MAX_US)
            sim_fail("request %u waits for suspects of crashes for more than %d s", c->i,
                     (int)(HELD_MAX_US / 1000000));
    }
}

static void tick(uint64_t key, void *p)
{
    struct front *f = &fronts[key & 0xff];
    (void)p;
    if (!is_front(key >> 8, key & 0xff))
        return;
    event_add(TICK_US, tick, key, NULL);
    if (f->is_stopped)
        return;
    link_tick(&f->link);
    link_flush(&f->link);
    watch_held(f);
    if (!f->is_announced && link_state(&f->link) == LINK_UP) {
        f->is_announced = true;
        service_hear((unsigned char)(key & 0xff));
    }
}

static void gauge(uint64_t key, void *p)
{
    const struct front *f = &fronts[key & 0xff];
    (void)p;
    if (!is_front(key >> 8, key & 0xff))
        return;
    event_add(GAUGE_US, gauge, key, NULL);
    if (f->is_stopped)
        return;
    if (link_hangs(&f->link))
        service_hear(ENGINE_HANGS);
    else if (f->is_announced)
        service_hear((unsigned char)(key & 0xff));
}

static void begin(uint64_t key, void *p)
{
    struct q_err e = Q_ERR_INIT;
    const uint32_t i = key & 0xff;
    struct front *f = &fronts[i];
    struct link_config c = {
        .address = "tcp://sim",
        .insecure_tcp = true,
        .engine_timeout_ms = service.engine_timeout_ms,
    };
    (void)p;
    if (f->runs || (uint64_t)f->pid != key >> 8)
        return;
    memcpy(c.digest, service_digest(), sizeof c.digest);
    if (link_init(&f->link, &c, &e))
        sim_fail("%s", e.message);
    f->link.send = send_frame;
    f->link.send_ctx = f;
    f->runs = true;
    f->is_stopped = f->is_announced = false;
    f->last = &f->first;
    wire_open(i);
    event_add(0, tick, key, NULL);
    event_add(GAUGE_US, gauge, key, NULL);
}

void frontend_boot(uint64_t pid, uint32_t i)
{
    fronts[i].pid = (pid_t)pid;
    event_add(events_pick(1000, BOOT_US), begin, FRONT_KEY(pid, i), NULL);
}

bool frontend_runs(uint32_t i)
{
    return fronts[i].runs;
}

static void end_frontend(uint32_t i)
{
    struct front *f = &fronts[i];
    if (!f->runs)
        return;
    for (uint32_t k = 0; k < service.n_client; k++) {
        struct client *c = &clients[k];
        if (!c->is_open || c->frontend != i)
            continue;
        link_close(&f->link, &c->generation);
        c->is_open = false;
        service.report->n_again++;
        event_add(events_pick(1, ASK_US), ask, c->i, NULL);
    }
    link_release(&f->link);
    while (f->first) {
        struct unread *u = f->first;
        f->first = u->next;
        q_free(u->frame);
        q_free(u);
    }
    f->runs = false;
}

void frontend_kill(uint32_t i, int status)
{
    if (!fronts[i].runs)
        return;
    end_frontend(i);
    wire_break(i);
    service.report->n_frontend_death++;
    service_died(fronts[i].pid, status);
}

static void read_frame(uint32_t i, void *frame, size_t n)
{
    struct front *f = &fronts[i];
    wire_read(i, false);
    link_receive(&f->link, frame, n);
    link_flush(&f->link);
    q_free(frame);
}

void frontend_receive(uint32_t i, void *frame, size_t n)
{
    struct front *f = &fronts[i];
    if (f->runs && !f->is_stopped) {
        read_frame(i, frame, n);
        return;
    }
    if (!f->runs) {
        q_free(frame);
        return;
    }
    struct unread *u = need(q_alloc(sizeof *u));
    *u = (struct unread){frame, n, NULL};
    *f->last = u;
    f->last = &u->next;
}

void frontend_pause(uint32_t i, bool stopped)
{
    struct front *f = &fronts[i];
    if (!f->runs)
        return;
    f->is_stopped = stopped;
    while (!stopped && f->first) {
        struct unread *u = f->first;
        f->first = u->next;
        read_frame(i, u->frame, u->n);
        q_free(u);
    }
    if (!stopped)
        f->last = &f->first;
}

void links_reset(void)
{
    for (uint32_t i = 0; i < SERVICE_FRONTENDS_MAX; i++) {
        end_frontend(i);
        fronts[i] = (struct front){.runs = false};
    }
}

void links_check_idle(void)
{
    for (uint32_t i = 0; i < service.n_frontend; i++) {
        const struct link *l = &fronts[i].link;
        if (!fronts[i].runs || link_state(l) != LINK_UP)
            sim_fail("frontend %u is not up at the end: %s", i,
                     fronts[i].runs ? link_reason(l) : "it does not run");
        if (link_n_open(l) || l->n_abort)
            sim_fail("frontend %u has %u requests and %zu aborts at the end", i, link_n_open(l),
                     l->n_abort);
        link_check(l);
    }
}

/* ---- clients ---- */

static void end_client(struct client *c)
{
    if (c->is_over)
        sim_fail("request %u ends twice", c->i);
    link_close(&fronts[c->frontend].link, &c->generation);
    c->is_open = false;
    c->is_over = true;
    n_over++;
}

static void check_prompt_rows(struct client *c, const struct logprob_rows *r)
{
    for (uint32_t k = 0; k < r->n_row; k++, c->prompt_next++)
        if (c->prompt_next >= c->n_prompt || r->ids[(size_t)k * r->n] != c->prompt[c->prompt_next])
            sim_fail("request %u: logprobs of token %u, wanted those of prompt position %u", c->i,
                     r->ids[(size_t)k * r->n], c->prompt_next);
}

static void on_tokens(struct generation *g, const struct link_tokens *t)
{
    struct client *c = (struct client *)g;
    if (!c->is_open)
        sim_fail("request %u gets tokens after its end", c->i);
    c->held_us = 0;
    check_prompt_rows(c, &t->prompt);
    if (t->logprobs.n_row && t->logprobs.n_row != t->n)
        sim_fail("request %u: %u tokens with %u rows of logprobs", c->i, t->n, t->logprobs.n_row);
    for (uint32_t k = 0; k < t->n; k++, c->n_got++) {
        if (c->n_got == c->want.n || t->ids[k] != c->want.ids[c->n_got])
            sim_fail("request %u: token %u is %u, wanted %u of %u", c->i, c->n_got, t->ids[k],
                     c->n_got < c->want.n ? c->want.ids[c->n_got] : 0, c->want.n);
        if (t->logprobs.n_row && t->logprobs.ids[(size_t)k * t->logprobs.n] != t->ids[k])
            sim_fail("request %u: logprobs of another token", c->i);
        service.report->n_token++;
    }
    if (!t->finish)
        return;
    if (t->finish != c->want.finish || t->stop_id != c->want.stop_id || c->n_got != c->want.n)
        sim_fail("request %u: finish %d with %u tokens, wanted %d with %u", c->i, t->finish,
                 c->n_got, c->want.finish, c->want.n);
    if (c->params.n_prompt_logprob != SAMPLE_NO_LOGPROBS && c->prompt_next != c->n_prompt)
        sim_fail("request %u: logprobs of %u prompt positions of %u", c->i, c->prompt_next,
                 c->n_prompt);
    service.report->n_answer++;
    end_client(c);
}

static void ask_again(struct client *c, int64_t after_us)
{
    link_close(&fronts[c->frontend].link, &c->generation);
    c->is_open = false;
    event_add(after_us, ask, c->i, NULL);
}

static void on_error(struct generation *g, enum q_code code, const char *message,
                     uint32_t retry_after_ms)
{
    struct client *c = (struct client *)g;
    if (!c->is_open)
        sim_fail("request %u gets an error after its end: %s", c->i, message);
    if (code == Q_NO_SPACE && !c->n_got) { /* 429 */
        service.report->n_refused++;
        ask_again(c, retry_after_ms ? retry_after_ms * INT64_C(1000) : ASK_US);
    } else if (code == Q_UNAVAILABLE && service.engine_timeout_ms < LONG_TIMEOUT_MS) { /* 503 */
        service.report->n_away++;
        if (c->n_got)
            end_client(c); /* its stream ended with the error */
        else
            ask_again(c, 500000);
    } else if (code == Q_INTERNAL && poison_of(c->params.seed) != POISON_NONE) {
        service.report->n_blamed++;
        end_client(c);
    } else {
        sim_fail("request %u after %u tokens: %s: %s", c->i, c->n_got, q_code_name(code), message);
    }
}

static const struct generation_calls calls = {.on_tokens = on_tokens, .on_error = on_error};

static uint32_t any_frontend(void)
{
    const uint32_t first = events_pick(0, service.n_frontend - 1);
    for (uint32_t k = 0; k < service.n_frontend; k++) {
        const uint32_t i = (first + k) % service.n_frontend;
        if (fronts[i].runs && !fronts[i].is_stopped)
            return i;
    }
    return SERVICE_FRONTENDS_MAX;
}

static void ask(uint64_t i, void *p)
{
    struct q_err e = Q_ERR_INIT;
    struct client *c = &clients[i];
    (void)p;
    if (c->is_over || c->is_open)
        return;
    c->frontend = any_frontend();
    if (c->frontend == SERVICE_FRONTENDS_MAX) {
        event_add(ASK_US, ask, i, NULL);
        return;
    }
    struct front *f = &fronts[c->frontend];
    c->n_got = 0;
    c->held_us = 0;
    c->prompt_next = 1;
    c->generation = (struct generation){
        .calls = &calls,
        .prompt = c->prompt,
        .n_prompt = c->n_prompt,
        .params = c->params,
        .priority = (int32_t)c->priority,
        .tenant = c->tenant,
        .arrived_ms = clock_ms(),
        .cache_salt = {(unsigned char)(c->params.seed % FAKE_SALTS)}, /* as the fake model has it */
        .n_cache_salt = c->params.seed % FAKE_SALTS ? 32 : 0,
    };
    c->is_open = true;
    const enum q_code rc = link_open(&f->link, &c->generation, &e);
    link_flush(&f->link);
    if (!rc)
        return;
    if (rc != Q_UNAVAILABLE || service.engine_timeout_ms >= LONG_TIMEOUT_MS)
        sim_fail("request %u: %s", c->i, e.message);
    service.report->n_away++;
    ask_again(c, 500000);
}

static void hang_up(uint64_t i, void *p)
{
    struct client *c = &clients[i];
    (void)p;
    if (!c->is_open || fronts[c->frontend].is_stopped)
        return;
    struct link *l = &fronts[c->frontend].link;
    end_client(c);
    link_flush(l);
    service.report->n_aborted++;
}

static void draw_params(struct client *c, enum poison poison)
{
    for (uint32_t k = 0; k < STOP_IDS_MAX; k++)
        c->stop_ids[k] = events_pick(3, service.model.vocab_size - 1);
    sample_params_default(&c->params);
    c->params.temperature = (float)events_pick(0, 2) / 2.0f;
    c->params.seed = (events_random() >> 8) * FAKE_KINDS + poison;
    c->params.max_tokens = events_pick(1, 48);
    c->params.min_tokens = events_chance(3000) ? events_pick(0, c->params.max_tokens) : 0;
    c->params.ignore_eos = events_chance(5000);
    c->params.n_logprob = events_chance(5000) ? SAMPLE_NO_LOGPROBS : events_pick(0, 2);
    c->params.n_prompt_logprob = events_chance(7500) ? SAMPLE_NO_LOGPROBS : events_pick(0, 2);
    c->params.stop_ids = c->stop_ids;
    c->params.n_stop_id = events_chance(3000) ? STOP_IDS_MAX : 0;
}

/* An answer that suspects of other frontends do not wait for. */
static void make_long(struct client *c)
{
    c->params.max_tokens = service.limits.max_model_len - c->n_prompt;
    c->params.min_tokens = c->params.max_tokens;
    c->params.n_logprob = c->params.n_prompt_logprob = SAMPLE_NO_LOGPROBS;
}

static void make_client(struct client *c, uint32_t i, enum poison poison)
{
    struct msg_submit m = {.req_id = 1};
    c->i = i;
    c->n_prompt = events_pick(1, service.has_long ? 48 : service.limits.max_model_len / 2);
    c->prompt = need(q_calloc(c->n_prompt, sizeof *c->prompt));
    const struct client *like = i && events_chance(4000) ? &clients[events_pick(0, i - 1)] : NULL;
    for (uint32_t k = 0; k < c->n_prompt; k++)
        c->prompt[k] = like && k < like->n_prompt ? like->prompt[k]
                                                  : events_pick(0, service.model.vocab_size - 1);
    draw_params(c, poison);
    if (service.has_long && i == 0)
        make_long(c);
    c->priority = events_pick(0, 2);
    c->tenant = events_pick(0, 2);
    c->want.ids = need(q_calloc(c->params.max_tokens, sizeof *c->want.ids));
    m.prompt = (struct proto_u32s){c->prompt, c->n_prompt};
    sample_params_to_submit(&m, &c->params);
    fake_model_answer(&service.model, &m, service.limits.max_model_len, &c->want);
}

void clients_make(void)
{
    int64_t at_us = 0;
    n_over = 0;
    clients = need(q_calloc(service.n_client, sizeof *clients));
    const uint32_t worker = events_chance(3000) ? events_pick(0, service.n_client - 1) : UINT32_MAX;
    const uint32_t engine = events_chance(service.has_long ? 7000 : 1500)
                                ? events_pick(0, service.n_client - 1)
                                : UINT32_MAX;
    service.n_crash = worker == UINT32_MAX ? 2 : 0;
    service.n_hang = engine == UINT32_MAX ? 2 : 0;
    for (uint32_t i = 0; i < service.n_client; i++) {
        make_client(&clients[i], i,
                    i == worker   ? POISON_WORKER
                    : i == engine ? POISON_ENGINE
                                  : POISON_NONE);
        at_us += events_pick(0, 300000);
        event_add(at_us, ask, i, NULL);
        if (events_chance(1000))
            event_add(at_us + events_pick(0, 2000000), hang_up, i, NULL);
    }
}

bool clients_over(void)
{
    return n_over == service.n_client;
}

void clients_free(void)
{
    for (uint32_t i = 0; i < service.n_client; i++) {
        q_free(clients[i].prompt);
        q_free(clients[i].want.ids);
    }
    q_free(clients);
    clients = NULL;
}
