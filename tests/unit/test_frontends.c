/* SPDX-License-Identifier: Apache-2.0 */
/* Frontends that end: a goodbye message is no warning, whenever the connection is
 * seen to be closed; one that does not is. The other end of the wire is a socket of this test. */
#include "core_run.h"
#include <fcntl.h>
#include <unistd.h>
#include "common/clock.h"
#include "engine/server/frontends.h"

static char dir[] = "/tmp/quire-peers-XXXXXX";
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

/* A frontend that the engine has greeted. */
static struct socket *frontend(uint64_t instance)
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
    assert_true(frontends.n == 1 && frontends.frontends[0].greeted);
    return s;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frontend_that_says_drain_is_no_warning),
        cmocka_unit_test(a_frontend_that_ends_with_the_engine_is_no_warning),
        cmocka_unit_test(a_frontend_that_is_killed_is_a_warning),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
