/* SPDX-License-Identifier: Apache-2.0 */
/* engine: the real quire-engine over the wire: greeting and refusals, golden tokens for two
 * frontends at once, aborts, silence, bad frames, kill -9 of its worker, draining, exit codes. */
#include "engine_goldens.h"
#include "fault_worker.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "common/hub/hub.h"
#include "common/mem.h"
#include "proto/proto.h"
#include "proto/socket.h"

/* Nothing here takes long; a machine that is busy with other things may. */
#define WAIT_MS      120000
#define AFTER_END_MS 2000 /* for frames under way when the engine ended */
#define HEARTBEAT_MS 100
#define FRONTS_MAX   2

static char address[128], program[PATH_MAX];
static pid_t engine_pid; /* 0 = none */

static void start_engine(const char *model, const char *const *more)
{
    char *argv[24] = {program,          (char *)(uintptr_t)model,
                      "--listen",       address,
                      "--dtype",        "float32",
                      "--threads",      "2",
                      "--heartbeat-ms", "100",
                      "--log-level",    "error"};
    size_t n = 12;
    for (; more && *more; more++)
        argv[n++] = (char *)(uintptr_t)*more;
    engine_pid = fork();
    if (engine_pid == 0) { /* it does not outlive this program and keep its output open */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(program, argv);
        _exit(127);
    }
    assert_true(engine_pid > 0);
}

static int wait_engine(void)
{
    int status = 0;
    assert_int_equal(waitpid(engine_pid, &status, 0), engine_pid);
    engine_pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int stop_engine(void)
{
    kill(engine_pid, SIGTERM);
    return wait_engine();
}

/* frontends; those that are open keep their heartbeat while the test listens to any of them */

struct front {
    struct socket *socket;
    struct arena arena;
    struct buf frame;
    uint64_t instance;
    const void *got; /* the last frame */
    size_t n_got;
    int64_t beat_ms;
    bool silent;
    uint32_t tokens[64][256], n_token[64]; /* by req_id */
    uint32_t finish[64];
    uint32_t n_finished, n_output;
    struct msg_heartbeat heartbeat;
};

static struct front *fronts[FRONTS_MAX]; /* open ones; NULL = none */

static void front_open(struct front *f, uint64_t instance)
{
    size_t i = 0;
    struct q_err e = Q_ERR_INIT;
    const struct socket_config c = {.address = address};
    memset(f, 0, sizeof *f);
    f->instance = instance;
    f->arena = (struct arena)ARENA_INIT(1 << 24);
    assert_ok(socket_connect(&f->socket, &c, &e), &e);
    for (; fronts[i]; i++)
        assert_true(i + 1 < FRONTS_MAX);
    fronts[i] = f;
}

static void front_close(struct front *f)
{
    for (size_t i = 0; i < FRONTS_MAX; i++)
        if (fronts[i] == f)
            fronts[i] = NULL;
    socket_free(f->socket);
    arena_release(&f->arena);
    buf_release(&f->frame);
}

static bool front_send(struct front *f)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = socket_send(f->socket, NULL, f->frame.data, f->frame.len, &e);
    buf_reset(&f->frame);
    return rc == Q_OK;
}

#define send_msg(f, name, ...)                                      \
    do {                                                            \
        struct q_err e_ = Q_ERR_INIT;                               \
        const struct msg_##name m_ = {__VA_ARGS__};                 \
        assert_ok(msg_##name##_encode(&m_, &(f)->frame, &e_), &e_); \
        front_send(f);                                              \
    } while (0)

static void beat(void)
{
    for (size_t i = 0; i < FRONTS_MAX; i++) {
        struct front *f = fronts[i];
        if (!f || f->silent || clock_ms() - f->beat_ms < HEARTBEAT_MS / 2)
            continue;
        f->beat_ms = clock_ms();
        send_msg(f, heartbeat, .step = 0);
    }
}

static bool engine_has_ended(void)
{
    siginfo_t info = {0}; /* WNOWAIT: wait_engine gets the exit status */
    return engine_pid && waitid(P_PID, (id_t)engine_pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == engine_pid;
}

/* The next frame's tag; MSG_NONE after timeout_ms, and behind a dead engine's last frame. */
static uint32_t front_receive(struct front *f, int timeout_ms)
{
    int64_t until = clock_ms() + timeout_ms;
    bool has_ended = false;
    arena_reset(&f->arena);
    do {
        beat();
        if (socket_recv(f->socket, NULL, &f->got, &f->n_got))
            return proto_peek(f->got, f->n_got);
        struct pollfd p = {.fd = socket_fd(f->socket), .events = POLLIN};
        poll(&p, 1, 20);
        if (!has_ended && engine_has_ended()) {
            has_ended = true;
            until = clock_ms() + AFTER_END_MS < until ? clock_ms() + AFTER_END_MS : until;
        }
    } while (clock_ms() < until);
    return MSG_NONE;
}

static void hello(struct front *f, const unsigned char digest[32], uint32_t wire)
{
    send_msg(f, hello, .wire_min = wire, .wire_max = wire, .version = {"test", 4},
             .digest = {digest, 32}, .instance = f->instance);
}

static struct msg_error expect_error(struct front *f)
{
    struct q_err e = Q_ERR_INIT;
    struct msg_error m;
    uint32_t tag;
    while ((tag = front_receive(f, WAIT_MS)) != MSG_error)
        assert_true(tag != MSG_NONE);
    assert_ok(msg_error_decode(&m, f->got, f->n_got, &f->arena, &e), &e);
    return m;
}

static bool str_is(struct proto_str s, const char *want)
{
    return s.n == strlen(want) && !memcmp(s.data, want, s.n);
}

static bool str_has(struct proto_str s, const char *part)
{
    return memmem(s.data, s.n, part, strlen(part)) != NULL;
}

/* Greet until the engine is there and ready. */
static struct msg_hello greet(struct front *f, const char *model)
{
    unsigned char digest[32];
    struct q_err e = Q_ERR_INIT;
    struct msg_hello m = {0};
    assert_ok(hub_digest(digest, model, &e), &e);
    for (int64_t until = clock_ms() + WAIT_MS; clock_ms() < until;) {
        hello(f, digest, PROTO_WIRE_MAX);
        uint32_t tag = front_receive(f, 200);
        if (engine_has_ended())
            fail_msg("the engine has ended before its hello");
        if (tag != MSG_hello)
            continue; /* not there yet, or loading */
        assert_ok(msg_hello_decode(&m, f->got, f->n_got, &f->arena, &e), &e);
        return m;
    }
    fail_msg("no hello");
    return m;
}

static void submit(struct front *f, uint64_t req_id, const struct golden_prompt *p,
                   uint32_t max_tokens)
{
    send_msg(f, submit, .req_id = req_id, .prompt = {p->ids, p->n}, .top_p = 1,
             .repetition_penalty = 1, .max_tokens = max_tokens, .ignore_eos = true);
}

static void take_output(struct front *f)
{
    struct q_err e = Q_ERR_INIT;
    struct msg_output m;
    assert_ok(msg_output_decode(&m, f->got, f->n_got, &f->arena, &e), &e);
    assert_true(m.seq.n == m.req_ids.n && m.n_token.n == m.req_ids.n && m.finish.n == m.req_ids.n);
    size_t at = 0;
    f->n_output++;
    for (size_t i = 0; i < m.req_ids.n; i++) {
        uint64_t id = m.req_ids.data[i];
        assert_true(id < 64 && !f->finish[id] && f->n_token[id] + m.n_token.data[i] <= 256);
        assert_int_equal(m.seq.data[i], f->n_token[id]);
        for (uint32_t j = 0; j < m.n_token.data[i]; j++)
            f->tokens[id][f->n_token[id]++] = m.tokens.data[at++];
        f->finish[id] = m.finish.data[i];
        f->n_finished += m.finish.data[i] != FINISH_NONE;
    }
}

/* One frame of any kind; false when none came in time. */
static bool pump(struct front *f, int timeout_ms)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t tag = front_receive(f, timeout_ms);
    if (tag == MSG_output)
        take_output(f);
    if (tag == MSG_heartbeat)
        assert_ok(msg_heartbeat_decode(&f->heartbeat, f->got, f->n_got, &f->arena, &e), &e);
    if (tag == MSG_error) {
        struct msg_error m;
        assert_ok(msg_error_decode(&m, f->got, f->n_got, &f->arena, &e), &e);
        fail_msg("error: %.*s", (int)m.message.n, m.message.data);
    }
    return tag != MSG_NONE;
}

static void assert_answer(const struct front *f, uint64_t id, const struct golden_prompt *p)
{
    assert_int_equal(f->finish[id], FINISH_LENGTH);
    assert_int_equal(f->n_token[id], p->n_greedy);
    assert_memory_equal(f->tokens[id], p->greedy, p->n_greedy * sizeof(uint32_t));
}

/* The engine's next one; false when none came. */
static bool next_heartbeat(struct front *f)
{
    f->heartbeat.kv_blocks_total = 0;
    while (!f->heartbeat.kv_blocks_total)
        if (!pump(f, WAIT_MS))
            return false;
    return true;
}

/* What the engine's next heartbeats say, until `used` blocks are used. */
static bool blocks_become(struct front *f, uint32_t used)
{
    for (int64_t until = clock_ms() + WAIT_MS; clock_ms() < until && next_heartbeat(f);)
        if (f->heartbeat.kv_blocks_used == used &&
            f->heartbeat.n_running + f->heartbeat.n_waiting == (used > 0))
            return true;
    return false;
}

/* tests */

static struct golden g;

static void greetings_are_checked(void **state)
{
    (void)state;
    struct front f;
    golden_get(&g, "llama");
    unsigned char digest[32] = {1};
    start_engine(g.dir, NULL);
    front_open(&f, 1);
    struct msg_error m = {0};
    do { /* a stranger's digest */
        hello(&f, digest, PROTO_WIRE_MAX);
    } while (front_receive(&f, 200) != MSG_error);
    hello(&f, digest, PROTO_WIRE_MAX);
    m = expect_error(&f);
    assert_true(str_is(m.code, "MISMATCH") && str_has(m.message, "model folder differs"));
    struct q_err e = Q_ERR_INIT;
    assert_ok(hub_digest(digest, g.dir, &e), &e);
    hello(&f, digest, 77);
    do
        m = expect_error(&f);
    while (!str_has(m.message, "wire versions 77 to 77"));
    assert_true(str_is(m.code, "MISMATCH") && m.req_id == 0);
    submit(&f, 5, &g.prompts[0], 3); /* before a good hello */
    m = expect_error(&f);
    assert_true(str_is(m.code, "UNAVAILABLE") && m.req_id == 5);
    struct msg_hello h = greet(&f, g.dir);
    assert_int_equal(h.vocab_size, 512);
    assert_false(h.known);
    assert_true(greet(&f, g.dir).known); /* as one does whose heartbeats are late */
    assert_true(h.instance != 0 && h.credit > 0 && h.heartbeat_ms == HEARTBEAT_MS &&
                h.fingerprint.n == 19);
    assert_int_equal(stop_engine(), 0);
    front_close(&f);
}

static void two_frontends_get_their_own_tokens(void **state)
{
    (void)state;
    struct front a, b;
    golden_get(&g, "qwen3");
    start_engine(g.dir, NULL);
    front_open(&a, 1);
    front_open(&b, 2);
    greet(&a, g.dir);
    greet(&b, g.dir);
    for (uint32_t i = 0; i < 20; i++) {
        submit(&a, i, &g.prompts[i % g.n], 24);
        submit(&b, i, &g.prompts[(i + 1) % g.n], 24);
    }
    while (a.n_finished < 20 || b.n_finished < 20) {
        assert_true(a.n_finished == 20 || pump(&a, WAIT_MS));
        assert_true(b.n_finished == 20 || pump(&b, WAIT_MS));
    }
    for (uint32_t i = 0; i < 20; i++) {
        assert_answer(&a, i, &g.prompts[i % g.n]);
        assert_answer(&b, i, &g.prompts[(i + 1) % g.n]);
    }
    assert_true(a.n_output < 100); /* one message per step, not per token: 480 tokens */
    assert_true(blocks_become(&a, 0));
    assert_int_equal(stop_engine(), 0);
    front_close(&a);
    front_close(&b);
}

static void gone_frontends_leave_no_blocks(void **state)
{
    (void)state;
    struct front a, b;
    golden_get(&g, "llama");
    static const char *const more[] = {"--max-model-len", "256", NULL};
    start_engine(g.dir, more);
    front_open(&a, 1);
    front_open(&b, 2);
    greet(&a, g.dir);
    greet(&b, g.dir);
    submit(&b, 1, &g.prompts[1], 200);
    const uint64_t ids[] = {1, 99};
    send_msg(&b, abort, .req_ids = {ids, 2});
    while (a.heartbeat.n_aborted == 0)
        assert_true(next_heartbeat(&a));
    assert_true(blocks_become(&a, 0));
    assert_int_equal(a.heartbeat.n_aborted, 1);
    submit(&b, 2, &g.prompts[1], 250); /* 250 steps; b closes its socket at the first token */
    while (!b.n_token[2])
        assert_true(pump(&b, WAIT_MS));
    front_close(&b);
    assert_true(blocks_become(&a, 0));
    front_open(&b, 3);
    greet(&b, g.dir);
    submit(&b, 3, &g.prompts[1], 250);
    b.silent = true; /* connected but hanging */
    assert_true(blocks_become(&a, 0));
    submit(&a, 4, &g.prompts[4], 24);
    while (!a.n_finished)
        assert_true(pump(&a, WAIT_MS));
    assert_answer(&a, 4, &g.prompts[4]);
    front_close(&b);
    assert_int_equal(stop_engine(), 0);
    front_close(&a);
}

static void bad_frames_are_dropped_and_counted(void **state)
{
    (void)state;
    struct front f;
    golden_get(&g, "llama");
    start_engine(g.dir, NULL);
    front_open(&f, 1);
    greet(&f, g.dir);
    srand(1);
    for (int i = 0; i < 200; i++) {
        unsigned char junk[64];
        for (size_t j = 0; j < sizeof junk; j++)
            junk[j] = (unsigned char)rand();
        if (i % 2) { /* begins as a submit */
            junk[0] = 0x92;
            junk[1] = MSG_submit;
        }
        buf_add(&f.frame, junk, (size_t)(i % 64) + 1);
        front_send(&f);
    }
    const uint32_t beyond[] = {512};
    send_msg(&f, submit, .req_id = 9, .prompt = {beyond, 1}, .top_p = 1, .repetition_penalty = 1,
             .max_tokens = 3);
    struct msg_error m = expect_error(&f);
    assert_true(str_is(m.code, "INVALID") && m.req_id == 9);
    submit(&f, 1, &g.prompts[2], 24);
    while (!f.n_finished)
        assert_true(pump(&f, WAIT_MS));
    assert_answer(&f, 1, &g.prompts[2]);
    assert_true(blocks_become(&f, 0));
    assert_true(f.heartbeat.n_bad_frame > 50);
    assert_int_equal(stop_engine(), 0);
    front_close(&f);
}

static pid_t child_of(pid_t parent)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &child) != 1)
            child = 0;
        fclose(file);
    }
    return child;
}

static void a_killed_worker_is_not_noticed_by_frontends(void **state)
{
    (void)state;
    struct front f;
    golden_get(&g, "llama");
    start_engine(g.dir, NULL);
    front_open(&f, 1);
    greet(&f, g.dir);
    for (uint32_t i = 0; i < 15; i++)
        submit(&f, i, &g.prompts[i % g.n], 24);
    while (!f.n_output)
        assert_true(pump(&f, WAIT_MS));
    pid_t worker = child_of(engine_pid);
    assert_true(worker > 0);
    assert_int_equal(kill(worker, SIGKILL), 0);
    while (f.n_finished < 15)
        assert_true(pump(&f, WAIT_MS));
    for (uint32_t i = 0; i < 15; i++)
        assert_answer(&f, i, &g.prompts[i % g.n]);
    assert_true(child_of(engine_pid) > 0 && child_of(engine_pid) != worker);
    worker = child_of(engine_pid);
    kill(engine_pid, SIGKILL); /* and a killed engine leaves no worker behind */
    assert_int_equal(wait_engine(), 1000 + SIGKILL);
    for (int64_t until = clock_ms() + WAIT_MS; kill(worker, 0) == 0; usleep(10000)) {
        char path[64], line[256] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", (int)worker);
        FILE *file = fopen(path, "r");
        bool zombie = !file || !fgets(line, sizeof line, file) || strstr(line, ") Z ");
        if (file)
            fclose(file);
        if (zombie)
            break;
        assert_true(clock_ms() < until);
    }
    front_close(&f);
}

/* quire-engine with fault_worker beside it: hard links, since it looks beside what it really is. */
static void make_faulty(char dir[PATH_MAX])
{
    char from[PATH_MAX + 32], to[PATH_MAX + 32];
    snprintf(dir, PATH_MAX, "%.*s", (int)(strrchr(program, '/') - program), program);
    snprintf(strrchr(dir, '/'), 64, "/tests/faulty-%d", (int)getpid());
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(to, sizeof to, "%s/quire-engine", dir);
    assert_int_equal(link(program, to), 0);
    snprintf(from, sizeof from, "%.*s/fault_worker", (int)(strrchr(dir, '/') - dir), dir);
    snprintf(to, sizeof to, "%s/quire-worker", dir);
    assert_int_equal(link(from, to), 0);
}

static void end_faulty(const char *dir)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/quire-engine", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/quire-worker", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

/* The request that always kills the worker gets an error message, the others their tokens. */
static void a_culprit_is_told_so(void **state)
{
    (void)state;
    static const struct golden_prompt faulty = {.ids = {11, FAULT_POISON, FAULT_AT_ONCE}, .n = 3};
    char dir[PATH_MAX];
    struct front f;
    golden_get(&g, "qwen2");
    make_faulty(dir);
    snprintf(program, sizeof program, "%.*s/quire-engine", PATH_MAX - 16, dir);
    start_engine(g.dir, NULL);
    front_open(&f, 1);
    greet(&f, g.dir);
    submit(&f, 1, &g.prompts[0], 24);
    submit(&f, 2, &faulty, 24);
    submit(&f, 3, &g.prompts[1], 24);
    for (bool told = false; !told || f.n_finished < 2;) {
        uint32_t tag = front_receive(&f, WAIT_MS);
        assert_true(tag != MSG_NONE);
        if (tag == MSG_output)
            take_output(&f);
        if (tag != MSG_error)
            continue;
        struct q_err e = Q_ERR_INIT;
        struct msg_error m;
        assert_ok(msg_error_decode(&m, f.got, f.n_got, &f.arena, &e), &e);
        assert_true(!told && m.req_id == 2 && str_is(m.code, "INTERNAL"));
        assert_true(str_has(m.message, "killed by signal 4 (Illegal instruction)"));
        told = true;
    }
    assert_answer(&f, 1, &g.prompts[0]);
    assert_answer(&f, 3, &g.prompts[1]);
    assert_int_equal(stop_engine(), 0);
    front_close(&f);
    end_faulty(dir);
}

static void sigterm_finishes_what_is_open(void **state)
{
    (void)state;
    struct front f;
    golden_get(&g, "llama");
    start_engine(g.dir, NULL);
    front_open(&f, 1);
    greet(&f, g.dir);
    submit(&f, 1, &g.prompts[1], 200);
    while (!f.n_output)
        assert_true(pump(&f, WAIT_MS));
    kill(engine_pid, SIGTERM);
    uint32_t tag;
    while ((tag = front_receive(&f, WAIT_MS)) != MSG_drain && tag != MSG_NONE)
        if (tag == MSG_output)
            take_output(&f);
    bool finished_before = f.n_finished > 0; /* it may have been faster than the signal */
    while (!f.n_finished)
        assert_true(pump(&f, WAIT_MS));
    assert_true(finished_before || tag == MSG_drain);
    assert_int_equal(f.finish[1], FINISH_LENGTH);
    assert_int_equal(wait_engine(), 0);
    front_close(&f);
}

/* A replay may come when its time is over already: it is answered, and nothing stays counted. */
static void requests_that_come_too_late_are_told(void **state)
{
    (void)state;
    struct front f;
    golden_get(&g, "llama");
    const struct golden_prompt *p = &g.prompts[1];
    const char *const more[] = {"--request-timeout", "30", "--max-frontend-reqs", "1", NULL};
    start_engine(g.dir, more);
    front_open(&f, 1);
    greet(&f, g.dir);
    send_msg(&f, submit, .req_id = 1, .prompt = {p->ids, p->n}, .top_p = 1, .repetition_penalty = 1,
             .max_tokens = 5, .age_ms = 60000);
    struct msg_error m = expect_error(&f);
    assert_true(m.req_id == 1 && str_is(m.code, "TIMEOUT") && str_has(m.message, "30 seconds"));
    send_msg(&f, submit, .req_id = 2, .prompt = {p->ids, p->n}, .emitted = {p->greedy, 2},
             .top_p = 1, .repetition_penalty = 1, .max_tokens = 5, .age_ms = UINT64_MAX);
    f.n_token[2] = 2;
    while (!f.finish[2])
        assert_true(pump(&f, WAIT_MS));
    assert_int_equal(f.finish[2], FINISH_ABORT);
    submit(&f, 3, p, p->n_greedy); /* both have given their credit back */
    while (!f.finish[3])
        assert_true(pump(&f, WAIT_MS));
    assert_answer(&f, 3, p);
    assert_true(blocks_become(&f, 0));
    assert_int_equal(f.heartbeat.n_timeout, 2);
    assert_int_equal(stop_engine(), 0);
    front_close(&f);
}

static void exit_codes_tell_the_cause(void **state)
{
    (void)state;
    golden_get(&g, "llama");
    static const char *const bad_option[] = {"--max-num-seqs", "x", NULL},
                             *const too_few[] = {"--num-gpu-blocks-override", "1", NULL},
                             *const bad_address[] = {"--listen", "ipc:///nowhere/at/all", NULL};
    static const struct {
        const char *const *more;
        int code;
    } cases[] = {{bad_option, 2}, {too_few, 3}, {bad_address, 5}};
    int quiet = open("/dev/null", O_WRONLY), saved = dup(2);
    for (size_t i = 0; i < 3; i++) {
        dup2(quiet, 2);
        start_engine(g.dir, cases[i].more);
        int code = wait_engine();
        dup2(saved, 2);
        assert_int_equal(code, cases[i].code);
    }
    dup2(quiet, 2);
    start_engine("/nowhere/model", NULL);
    int code = wait_engine();
    dup2(saved, 2);
    assert_int_equal(code, 3);
    close(quiet);
    close(saved);
}

static void find_program(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(n > 0);
    program[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(program, '/') = '\0';
    strncat(program, "/bin/quire-engine", sizeof program - strlen(program) - 1);
}

static int setup(void **state)
{
    (void)state;
    find_program();
    snprintf(address, sizeof address, "ipc:///tmp/quire-test-%d.sock", (int)getpid());
    return access(program, X_OK);
}

static int teardown(void **state)
{
    (void)state;
    unlink(address + strlen("ipc://"));
    return 0;
}

/* What a failed test leaves behind would be in the next one's way. */
static int end_test(void **state)
{
    (void)state;
    memset(fronts, 0, sizeof fronts);
    find_program();
    if (engine_pid) {
        kill(engine_pid, SIGKILL);
        wait_engine();
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(greetings_are_checked, end_test),
        cmocka_unit_test_teardown(two_frontends_get_their_own_tokens, end_test),
        cmocka_unit_test_teardown(gone_frontends_leave_no_blocks, end_test),
        cmocka_unit_test_teardown(bad_frames_are_dropped_and_counted, end_test),
        cmocka_unit_test_teardown(a_killed_worker_is_not_noticed_by_frontends, end_test),
        cmocka_unit_test_teardown(a_culprit_is_told_so, end_test),
        cmocka_unit_test_teardown(sigterm_finishes_what_is_open, end_test),
        cmocka_unit_test_teardown(requests_that_come_too_late_are_told, end_test),
        cmocka_unit_test_teardown(exit_codes_tell_the_cause, end_test),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
