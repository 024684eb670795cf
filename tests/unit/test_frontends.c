/* SPDX-License-Identifier: Apache-2.0 */
/* Frontends that end: a goodbye message is no warning, whenever the connection is
 * seen to be closed; one that does not is. The other end of the wire is a socket of this test. */
#include "core_run.h"
#include <fcntl.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"
#include "engine/server/frontends.h"

static char dir[] = "/tmp/quire-peers-XXXXXX";
static char trial_file[sizeof dir + 8];
static struct server_config config;
static struct frontends frontends;
static struct socket *listener;
static int log_file;

static int open_engine(void **state)
{
    (void)state;
    char address[64];
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    config = (struct server_config){
        .core = config_of(g.dir),
        .model_name = "llama",
        .max_frontend_reqs = 8,
        .heartbeat_ms = 1000,
    };
    config.core.worker.log_level = LOG_WARNING;
    assert_non_null(mkdtemp(dir));
    snprintf(trial_file, sizeof trial_file, "%s/trial", dir);
    config.trial_file = trial_file;
    snprintf(address, sizeof address, "ipc://%s/engine", dir);
    const struct socket_config at = {.address = address};
    assert_ok(socket_listen(&listener, &at, &e), &e);
    assert_ok(frontends_init(&frontends, &config, &e), &e);
    assert_ok(core_new(&engine.core, &config.core, frontends_output, &frontends, &e), &e);
    frontends.core = engine.core;
    while (core_state(engine.core, NULL) == CORE_LOADING)
        bits_turn(&engine);
    assert_ok(frontends_ready(&frontends, &e), &e);
    log_setup("engine", LOG_WARNING, false);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    socket_free(listener);
    core_free(engine.core);
    frontends_release(&frontends);
    unlink(trial_file);
    return rmdir(dir);
}

/* Wait for a frame to the engine and hand it over. */
static void take_frame(void)
{
    struct frontend_address from = {.socket = listener};
    struct pollfd p = {.fd = socket_fd(listener), .events = POLLIN};
    const void *frame;
    size_t n;
    while (!socket_recv(listener, &from.name, &frame, &n))
        assert_true(poll(&p, 1, 60000) == 1);
    frontends_receive(&frontends, &from, frame, n);
}

/* A frontend that the engine has greeted, the last of n. */
static struct socket *frontend_of(uint64_t instance, uint32_t n)
{
    char address[64];
    struct socket *s;
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    snprintf(address, sizeof address, "ipc://%s/engine", dir);
    const struct socket_config at = {.address = address};
    const struct msg_hello hello = {
        .wire_min = PROTO_WIRE_MIN,
        .wire_max = PROTO_WIRE_MAX,
        .digest = {frontends.digest, sizeof frontends.digest},
        .instance = instance,
    };
    assert_ok(socket_connect(&s, &at, &e), &e);
    assert_ok(msg_hello_encode(&hello, &b, &e), &e);
    while (socket_send(s, NULL, b.data, b.len, &e) == Q_UNAVAILABLE) { /* not connected yet */
        q_err_reset(&e);
        usleep(1000);
    }
    assert_ok(e.code, &e);
    buf_release(&b);
    take_frame();
    assert_true(frontends.n == n && frontends.frontends[n - 1].greeted);
    return s;
}

static struct socket *frontend(uint64_t instance)
{
    return frontend_of(instance, 1);
}

static void say_drain(struct socket *s)
{
    const struct msg_drain m = {.reason = {"the frontend stops", 18}};
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(msg_drain_encode(&m, &b, &e), &e);
    assert_ok(socket_send(s, NULL, b.data, b.len, &e), &e);
    buf_release(&b);
}

/* Until the engine can send nothing to it; its earlier messages are still unread. */
static void close_frontend(struct socket *s)
{
    struct q_err e = Q_ERR_INIT;
    const struct frontend_address at = frontends.frontends[0].at;
    socket_free(s);
    while (socket_send(at.socket, &at.name, "x", 1, &e) == Q_OK)
        usleep(1000);
    assert_int_equal(e.code, Q_UNAVAILABLE);
}

/* What is logged from here on. */
static int catch_log(void)
{
    char path[64];
    int saved = dup(STDERR_FILENO);
    snprintf(path, sizeof path, "%s/log", dir);
    log_file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && log_file >= 0 && dup2(log_file, STDERR_FILENO) >= 0);
    unlink(path);
    return saved;
}

static void end_log(int saved, char *out, size_t size)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = pread(log_file, out, size - 1, 0);
    assert_true(n >= 0);
    out[n] = '\0';
    close(log_file);
}

/* What the engine logs when a frontend ends and a heartbeat is due before its frames are read. */
static void leave(bool says_drain, bool engine_drains, char *out, size_t size)
{
    static uint64_t instance;
    struct socket *s = frontend(++instance);
    int saved = catch_log();
    if (says_drain)
        say_drain(s);
    close_frontend(s);
    if (engine_drains)
        frontends_drain(&frontends, "the engine shuts down");
    frontends_beat(&frontends, clock_ms());
    frontends_sweep(&frontends);
    if (says_drain)
        take_frame();
    frontends_received(&frontends);
    frontends_sweep(&frontends);
    frontends.draining = false;
    end_log(saved, out, size);
    assert_int_equal(frontends.n, 0);
}

static void a_frontend_that_says_drain_is_no_warning(void **state)
{
    (void)state;
    char log[1024];
    leave(true, false, log, sizeof log);
    assert_string_equal(log, "");
    leave(true, true, log, sizeof log);
    assert_string_equal(log, "");
}

static void a_frontend_that_ends_with_the_engine_is_no_warning(void **state)
{
    (void)state;
    char log[1024];
    leave(false, true, log, sizeof log);
    assert_string_equal(log, "");
}

static void a_frontend_that_is_killed_is_a_warning(void **state)
{
    (void)state;
    char log[1024];
    leave(false, false, log, sizeof log);
    char *found = strstr(log, "WARNING");
    assert_non_null(found);
    assert_non_null(
        strstr(found, "dropped with its 0 requests: it closed its connection unexpectedly"));
    assert_null(strstr(found + 1, "WARNING"));
}

/* A frozen container: the engine did not listen, so its frontends were not silent. */
static void a_loop_that_did_not_run_drops_no_frontend(void **state)
{
    (void)state;
    struct socket *s = frontend(1000);
    const int64_t now_ms = clock_ms();
    frontends_beat(&frontends, now_ms);
    frontends_beat(&frontends, now_ms + 60000); /* with nothing in between */
    assert_false(frontends.frontends[0].removed);
    assert_true(frontends.frontends[0].heard_ms <= now_ms + 60000);
    for (int64_t ms = 60500; ms < 80000; ms += 500) /* now it listens */
        frontends_beat(&frontends, now_ms + ms);
    assert_true(frontends.frontends[0].removed);
    frontends_sweep(&frontends);
    frontends.beat_ms = 0; /* the clock goes back */
    socket_free(s);
}

static void submit_long(struct socket *s, uint64_t req_id, bool alone, uint32_t max_tokens)
{
    static const uint32_t prompt[] = {3, 4, 5};
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {prompt, 3},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .alone = alone,
    };
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(msg_submit_encode(&m, &b, &e), &e);
    assert_ok(socket_send(s, NULL, b.data, b.len, &e), &e);
    buf_release(&b);
    take_frame();
}

static void submit(struct socket *s, uint64_t req_id, bool alone)
{
    submit_long(s, req_id, alone, 2);
}

static uint32_t n_open(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < frontends.n; i++)
        n += frontends.frontends[i].n_open;
    return n;
}

static void finish(void)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_step(engine.core, &e), &e); /* plans what was submitted */
    while (core_busy(engine.core))
        bits_turn(&engine);
}

/* A request that may be what engines crash of waits until the engine has no other one, of any
 * frontend, and has none beside it. */
static void a_request_on_trial_is_alone(void **state)
{
    (void)state;
    struct socket *a = frontend_of(101, 1), *b = frontend_of(102, 2);
    frontends.frontends[0].n_open = frontends.frontends[1].n_open = 0;
    submit(a, 1, false);
    submit(b, 1, true); /* a's is there: it waits … */
    assert_int_equal(n_open(), 1);
    submit(a, 2, false); /* … and no other one overtakes it */
    assert_int_equal(n_open(), 1);
    finish();
    submit(b, 2, true); /* its turn: the next one is accepted */
    submit(a, 3, true);
    submit(a, 4, false);
    assert_int_equal(n_open(), 0);
    submit(b, 3, true);
    submit(a, 5, false);
    submit(a, 6, true);
    assert_int_equal(frontends.frontends[1].n_open, 1);
    assert_int_equal(n_open(), 1);
    finish();
    frontends.frontends[0].n_open = frontends.frontends[1].n_open = 0;
    frontends_sweep(&frontends);
    assert_true(frontends.after_trial_ms > clock_ms() - 1000);
    frontends.after_trial_ms = INT64_MAX; /* a crash may still come of it: the engine stays empty */
    submit(a, 10, false);
    submit(b, 11, true);
    submit(a, 12, true);
    assert_int_equal(n_open(), 0);
    frontends.after_trial_ms = 0;
    frontends.trial_until_ms = 0; /* a second later */
    submit(a, 7, false);
    submit(b, 4, false);
    assert_int_equal(n_open(), 2);
    finish();
    say_drain(a);
    take_frame();
    frontends_sweep(&frontends);
    say_drain(b);
    take_frame();
    frontends_sweep(&frontends);
    socket_free(a);
    socket_free(b);
}

/* The next error that a frontend is sent about a request. */
static void take_error(struct socket *s, uint64_t req_id, const char *code)
{
    struct pollfd p = {.fd = socket_fd(s), .events = POLLIN};
    struct arena a = ARENA_INIT(1 << 16);
    struct q_err e = Q_ERR_INIT;
    struct msg_error m;
    const void *frame;
    size_t n;
    do
        while (!socket_recv(s, NULL, &frame, &n))
            assert_true(poll(&p, 1, 60000) == 1);
    while (proto_peek(frame, n) != MSG_error);
    assert_ok(msg_error_decode(&m, frame, n, &a, &e), &e);
    assert_int_equal(m.req_id, req_id);
    assert_int_equal(m.code.n, strlen(code));
    assert_memory_equal(m.code.data, code, m.code.n);
    arena_release(&a);
}

/* The frontend whose request an engine that comes after a crash would know to be on trial. */
static uint64_t tried(void)
{
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    uint64_t instance;
    assert_ok(file_read(&b, trial_file, sizeof instance, &e), &e);
    assert_int_equal(b.len, sizeof instance);
    memcpy(&instance, b.data, sizeof instance);
    buf_release(&b);
    return instance;
}

/* It waits for long answers of others for a second, then their frontends have them back. */
static void a_trial_does_not_wait_for_long_answers(void **state)
{
    (void)state;
    struct socket *a = frontend_of(103, 1), *b = frontend_of(104, 2);
    frontends.frontends[0].n_open = frontends.frontends[1].n_open = 0;
    submit_long(a, 1, false, 100);
    submit(b, 1, true);
    submit(b, 2, true);
    assert_int_equal(frontends.frontends[0].n_open, 1);
    frontends.trial_asked_ms -= 1000;
    submit(b, 3, true);
    take_error(a, 1, "UNAVAILABLE");
    assert_int_equal(n_open(), 0);
    assert_false(core_busy(engine.core));
    submit(a, 2, false); /* it waits */
    take_error(a, 2, "UNAVAILABLE");
    submit(b, 4, true); /* its turn */
    assert_int_equal(tried(), 0);
    submit_long(b, 5, true, 100);
    assert_int_equal(tried(), 104);
    assert_int_equal(frontends.frontends[1].n_open, 1);
    submit(a, 3, true); /* what is on trial is not given back */
    frontends.trial_asked_ms -= 1000;
    submit(a, 4, true);
    assert_int_equal(frontends.frontends[1].n_open, 1);
    finish();
    frontends_sweep(&frontends);
    frontends.trial_until_ms = frontends.after_trial_ms = 0;
    submit(a, 5, false);
    assert_int_equal(tried(), 0);
    finish();
    say_drain(a);
    take_frame();
    frontends_sweep(&frontends);
    say_drain(b);
    take_frame();
    frontends_sweep(&frontends);
    socket_free(a);
    socket_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_on_trial_is_alone),
        cmocka_unit_test(a_trial_does_not_wait_for_long_answers),
        cmocka_unit_test(a_frontend_that_says_drain_is_no_warning),
        cmocka_unit_test(a_frontend_that_ends_with_the_engine_is_no_warning),
        cmocka_unit_test(a_frontend_that_is_killed_is_a_warning),
        cmocka_unit_test(a_loop_that_did_not_run_drops_no_frontend),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
