/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets over ipc and tcp, with keys, without, and with the wrong ones. */
#include "check.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/mem.h"
#include "fake_hosts.h"
#include "proto/address.h"
#include "proto/curve.h"
#include "proto/proto.h"
#include "proto/socket.h"

static char folder[64]; /* of this run, removed at the end */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/quire_socket_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_in(const char *format, const char *name)
{
    static char text[4][160];
    static int i;
    i = (i + 1) % 4;
    snprintf(text[i], sizeof text[i], format, folder, name);
    return text[i];
}

/* Wait until a frame is there; NULL after timeout_ms. */
static const void *wait_frame(struct socket *s, struct socket_peer *peer, size_t *n, int timeout_ms)
{
    const void *frame;
    int64_t until = clock_ms() + timeout_ms;
    while (!socket_recv(s, peer, &frame, n)) {
        int64_t left = until - clock_ms();
        struct pollfd p = {.fd = socket_fd(s), .events = POLLIN};
        if (left <= 0 || poll(&p, 1, (int)left) == 0)
            return NULL;
    }
    return frame;
}

/* Send as soon as there is a connection. `other` is looked at meanwhile, because it may have to let
 * us in. */
static void send_when_up(struct socket *s, struct socket *other, const char *text)
{
    struct q_err e = Q_ERR_INIT;
    int64_t until = clock_ms() + 5000;
    while (socket_send(s, NULL, text, strlen(text), &e) == Q_UNAVAILABLE && clock_ms() < until) {
        struct socket_peer peer;
        const void *frame;
        size_t n;
        assert_false(socket_recv(other, &peer, &frame, &n));
        usleep(1000);
    }
    assert_true(clock_ms() < until);
}

/* A frame there, a frame back. */
static void converse(struct socket *engine, struct socket *frontend)
{
    struct q_err e = Q_ERR_INIT;
    struct socket_peer peer;
    size_t n;
    send_when_up(frontend, engine, "ping");
    const void *frame = wait_frame(engine, &peer, &n, 5000);
    assert_non_null(frame);
    assert_int_equal(n, 4);
    assert_memory_equal(frame, "ping", 4);
    assert_ok(socket_send(engine, &peer, "pong!", 5, &e), &e);
    frame = wait_frame(frontend, NULL, &n, 5000);
    assert_non_null(frame);
    assert_int_equal(n, 5);
    assert_memory_equal(frame, "pong!", 5);
}

static void test_address(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct address a;
    char text[ADDRESS_TEXT_MAX];
    static const char *const good[] = {"ipc:///run/quire/engine", "tcp://127.0.0.1:5555",
                                       "tcp://[::1]:5555", "tcp://*:1",
                                       "tcp://node-1.example:65535"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(address_parse(&a, good[i], &e), &e);
        address_print(&a, text);
        assert_string_equal(text, good[i]);
    }
    static const char *const bad[] = {
        "",          "ipc://",         "ipc://relative",   "ipc://@abstract", "ipc://*",
        "ipc:///a/", "tcp://",         "tcp://host",       "tcp://host:",     "tcp://host:65536",
        "tcp://:1",  "tcp://host:-1",  "tcp://ho st:1",    "tcp://eth0;x:1",  "tcp://host:1x",
        "udp://a:1", "inproc://thing", "tcp://[fe80::1:1", "tcp://a:b:1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(address_parse(&a, bad[i], &e), Q_INVALID, "address", &e);
    char long_path[400];
    snprintf(long_path, sizeof long_path, "ipc:///%0300d", 1);
    assert_fails(address_parse(&a, long_path, &e), Q_INVALID, "at most 107", &e);
}

static void test_ipc(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend, *second;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "engine")};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    struct stat st;
    assert_int_equal(stat(path_in("%s/%s", "engine"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_fails(socket_listen(&second, &c, &e), Q_MISMATCH, "another process", &e);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    assert_ok(socket_connect(&second, &c, &e), &e);
    converse(engine, frontend);
    converse(engine, second);
    converse(engine, frontend);
    socket_free(frontend);
    socket_free(second);
    socket_free(engine);
    assert_int_equal(stat(path_in("%s/%s", "engine"), &st), -1); /* taken away with it */
}

static void *free_frame(void *frame)
{
    socket_frame_free(frame);
    return NULL;
}

/* A frame that is kept stays where it is, whatever comes behind it; another thread frees it. */
static void test_keep(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static char sent[N];
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "keeps")};
    struct socket_peer peer;
    pthread_t thread;
    size_t n;
    assert_ok(socket_listen(&engine, &c, &e), &e);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(engine, frontend);
    for (int i = 0; i < N; i++)
        sent[i] = (char)(i % 251);
    assert_ok(socket_send(frontend, NULL, sent, N, &e), &e);
    const void *frame = wait_frame(engine, &peer, &n, 5000);
    assert_int_equal(n, N);
    struct socket_frame *kept = socket_keep(engine);
    assert_non_null(kept);
    converse(engine, frontend);
    assert_memory_equal(frame, sent, N);
    assert_int_equal(pthread_create(&thread, NULL, free_frame, kept), 0);
    pthread_join(thread, NULL);
    converse(engine, frontend);
    socket_frame_free(NULL);
    socket_free(frontend);
    socket_free(engine);
}

static void test_ipc_files(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "thing")};
    assert_ok(file_write(path_in("%s/%s", "thing"), "precious", 8, 0600, &e), &e);
    assert_fails(socket_listen(&engine, &c, &e), Q_MISMATCH, "is not a socket", &e);
    assert_true(file_exists(path_in("%s/%s", "thing")));
    /* A socket file whose process is gone. */
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/stale", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    close(fd);
    c.address = path_in("ipc://%s/%s", "stale");
    assert_ok(socket_listen(&engine, &c, &e), &e);
    socket_free(engine);
    c.address = path_in("ipc://%s/%s", "no/such/folder");
    assert_fails(socket_listen(&engine, &c, &e), Q_IO, "cannot listen", &e);
}

static void test_tcp_needs_keys(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *s, *frontend;
    struct socket_config c = {.address = "tcp://127.0.0.1:0"};
    assert_fails(socket_listen(&s, &c, &e), Q_FORBIDDEN, "--insecure-tcp", &e);
    c.address = "tcp://127.0.0.1:9";
    assert_fails(socket_connect(&s, &c, &e), Q_FORBIDDEN, "--keys", &e);
    c = (struct socket_config){.address = "tcp://127.0.0.1:0", .insecure_tcp = true};
    assert_ok(socket_listen(&s, &c, &e), &e);
    c.address = socket_address(s);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(s, frontend);
    socket_free(frontend);
    socket_free(s);
}

static bool has_v6(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool yes = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return yes;
}

/* A frontend that connects to the engine's port at this address. */
static void converse_at(struct socket *engine, const char *host)
{
    struct q_err e = Q_ERR_INIT;
    struct socket *frontend;
    char text[ADDRESS_TEXT_MAX];
    snprintf(text, sizeof text, "tcp://%s%s", host, strrchr(socket_address(engine), ':'));
    struct socket_config c = {.address = text, .insecure_tcp = true};
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(engine, frontend);
    socket_free(frontend);
}

static void test_every_address_of_a_name(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *s, *other;
    struct socket_config c = {.address = "tcp://several:0", .insecure_tcp = true};
    assert_ok(socket_listen(&s, &c, &e), &e);
    assert_int_equal(strncmp(socket_address(s), "tcp://several:", 14), 0); /* and the port */
    converse_at(s, "127.0.0.1");
    converse_at(s, "127.0.0.2");
    if (has_v6())
        converse_at(s, "[::1]");
    c.address = socket_address(s);
    assert_fails(socket_listen(&other, &c, &e), Q_MISMATCH, "another process is listening", &e);
    char taken[ADDRESS_TEXT_MAX]; /* one address of a name is enough */
    snprintf(taken, sizeof taken, "tcp://127.0.0.2%s", strrchr(socket_address(s), ':'));
    c.address = taken;
    assert_fails(socket_listen(&other, &c, &e), Q_MISMATCH, "another process is listening", &e);
    socket_free(s);

    c.address = "tcp://partly:0";
    assert_ok(socket_listen(&s, &c, &e), &e);
    converse_at(s, "127.0.0.3");
    socket_free(s);
    c.address = "tcp://absent:0";
    assert_fails(socket_listen(&s, &c, &e), Q_IO, "tcp://absent:0: cannot listen: ", &e);
    c.address = "tcp://no.such.host.invalid:0";
    assert_fails(socket_listen(&s, &c, &e), Q_IO, "no.such.host.invalid:0: cannot listen: ", &e);
    c.address = "tcp://*:0";
    assert_ok(socket_listen(&s, &c, &e), &e);
    converse_at(s, "127.0.0.1");
    socket_free(s);
}

/* Wait until a socket tells of a connection that failed because of keys; `other` is read, too. */
static void expect_failure(struct socket *s, struct socket *other, const char *why)
{
    struct watch_failure f = {.why = NULL};
    const int64_t until = clock_ms() + 10000;
    do {
        struct socket_peer peer;
        const void *frame;
        size_t n;
        assert_false(socket_recv(other, &peer, &frame, &n));
        assert_false(socket_recv(s, &peer, &frame, &n));
        usleep(1000);
    } while (!socket_failure(s, &f) && clock_ms() < until);
    assert_non_null(f.why);
    if (!strstr(f.why, why))
        fail_msg("\"%s\" is not \"%s\"", f.why, why);
    assert_true(f.n > 0 && f.is_of_keys);
}

/* The keys of one side in folder `to` become those of `from`. */
static const char *copy_keys(const char *to, const char *from, const char *side)
{
    static const char *const kinds[] = {"key", "pub"};
    struct q_err e = Q_ERR_INIT;
    for (int i = 0; i < 2; i++) {
        struct buf text = BUF_INIT;
        char name[64], path[200];
        snprintf(name, sizeof name, "%s/%s.%s", from, side, kinds[i]);
        assert_ok(file_read(&text, path_in("%s/%s", name), 100, &e), &e);
        snprintf(path, sizeof path, "%s/%s/%s.%s", folder, to, side, kinds[i]);
        assert_ok(file_write(path, text.data, text.len, 0600, &e), &e);
        buf_release(&text);
    }
    return path_in("%s/%s", to);
}

static void test_curve(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *second_engine, *frontend, *stranger;
    const char *keys = path_in("%s/%s", "keys"), *other = path_in("%s/%s", "other");
    assert_ok(curve_generate(keys, &e), &e);
    assert_ok(curve_generate(other, &e), &e);
    assert_fails(curve_generate(keys, &e), Q_MISMATCH, "exists already", &e);
    struct socket_config c = {.address = "tcp://127.0.0.1:0", .keys_dir = keys};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    assert_ok(socket_listen(&second_engine, &c, &e), &e);
    c.address = socket_address(engine);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(engine, frontend);
    socket_free(second_engine);

    /* A client has the engine's public key, but its own key is not among the engine's. */
    char path[200], pub[64];
    struct buf text = BUF_INIT;
    assert_ok(file_read(&text, path_in("%s/%s", "keys/engine.pub"), 100, &e), &e);
    snprintf(path, sizeof path, "%s/engine.pub", other);
    snprintf(pub, sizeof pub, "%s", buf_str(&text));
    assert_ok(file_write(path, pub, strlen(pub), 0600, &e), &e);
    buf_release(&text);
    c.keys_dir = other;
    uint64_t before = socket_n_refused();
    assert_ok(socket_connect(&stranger, &c, &e), &e);
    for (int i = 0; i < 500 && socket_n_refused() == before; i++) {
        struct socket_peer peer;
        const void *frame;
        size_t n;
        assert_int_equal(socket_send(stranger, NULL, "x", 1, &e), Q_UNAVAILABLE);
        assert_false(socket_recv(engine, &peer, &frame, &n));
        usleep(2000);
    }
    assert_true(socket_n_refused() > before);
    expect_failure(engine, engine, "a frontend's key is not the frontend.pub of --keys");
    expect_failure(stranger, engine, "the engine does not accept the frontend.key of --keys");
    socket_free(stranger);

    /* The other way round: its own key is known, and it takes another engine for this one. */
    assert_ok(curve_generate(path_in("%s/%s", "third"), &e), &e);
    c.keys_dir = copy_keys("third", "keys", "frontend");
    assert_ok(socket_connect(&stranger, &c, &e), &e);
    expect_failure(engine, engine, "a frontend has the public key of another engine");
    expect_failure(stranger, engine, "engine.pub in --keys may be of another engine");
    socket_free(stranger);

    c = (struct socket_config){.address = c.address, .insecure_tcp = true}; /* no keys at all */
    assert_ok(socket_connect(&stranger, &c, &e), &e);
    expect_failure(engine, engine, "a peer without keys (--keys) tried to connect");
    expect_failure(stranger, engine, "the engine requires keys (--keys)");
    assert_int_equal(socket_send(stranger, NULL, "x", 1, &e), Q_UNAVAILABLE);
    socket_free(stranger);
    converse(engine, frontend);
    socket_free(frontend);
    socket_free(engine);
}

static void test_key_files(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct curve_keys k, f;
    const char *dir = path_in("%s/%s", "files");
    assert_ok(curve_generate(dir, &e), &e);
    static const char *const names[] = {"engine.key", "engine.pub", "frontend.key", "frontend.pub"};
    char path[200];
    for (int i = 0; i < 4; i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    assert_ok(curve_load(&k, dir, CURVE_ENGINE, &e), &e);
    assert_ok(curve_load(&f, dir, CURVE_FRONTEND, &e), &e);
    assert_string_equal(k.public_key, f.peer_key);
    assert_string_equal(f.public_key, k.peer_key);
    assert_string_not_equal(k.secret_key, f.secret_key);
    snprintf(path, sizeof path, "%s/engine.key", dir);
    chmod(path, 0644);
    assert_fails(curve_load(&k, dir, CURVE_ENGINE, &e), Q_FORBIDDEN, "readable by all", &e);
    static const char *const bad[] = {"", "short", "0123456789012345678901234567890123456789extra",
                                      "\x01\x02 345678901234567890123456789012345678"};
    for (int i = 0; i < 4; i++) {
        assert_ok(file_write(path, bad[i], strlen(bad[i]), 0600, &e), &e);
        assert_fails(curve_load(&k, dir, CURVE_ENGINE, &e), Q_CORRUPT, "Z85", &e);
    }
    unlink(path);
    assert_fails(curve_load(&k, dir, CURVE_ENGINE, &e), Q_NOT_FOUND, "engine.key", &e);
}

/* A raw ZeroMQ client that sends several parts, and an empty message. */
static void test_odd_messages(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine;
    struct socket_peer peer;
    size_t n;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "odd")};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    void *ctx = zmq_ctx_new(), *raw = zmq_socket(ctx, ZMQ_DEALER),
         *named = zmq_socket(ctx, ZMQ_DEALER);
    char name[200];
    memset(name, 'n', sizeof name);
    zmq_setsockopt(named, ZMQ_ROUTING_ID, name, sizeof name);
    assert_int_equal(zmq_connect(named, c.address), 0);
    assert_int_equal(zmq_connect(raw, c.address), 0);
    zmq_send(named, "long name", 9, 0);
    zmq_send(raw, "a", 1, ZMQ_SNDMORE);
    zmq_send(raw, "b", 1, ZMQ_SNDMORE);
    zmq_send(raw, "c", 1, 0);
    zmq_send(raw, "", 0, 0);
    zmq_send(raw, "good", 4, 0);
    const void *frame = wait_frame(engine, &peer, &n, 5000);
    assert_non_null(frame);
    assert_int_equal(n, 0); /* an empty frame is a frame; the codec refuses it */
    frame = wait_frame(engine, &peer, &n, 5000);
    assert_non_null(frame);
    assert_memory_equal(frame, "good", 4);
    for (int i = 0; i < 1000 && socket_n_bad(engine) < 2; i++)
        assert_null(wait_frame(engine, &peer, &n, 5));
    assert_int_equal(socket_n_bad(engine), 2);
    int zero = 0;
    zmq_setsockopt(raw, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(named, ZMQ_LINGER, &zero, sizeof zero);
    zmq_close(raw);
    zmq_close(named);
    zmq_ctx_term(ctx);
    /* The peer is gone: sending fails soon. */
    enum q_code rc = Q_OK;
    for (int i = 0; i < 1000 && rc != Q_UNAVAILABLE; i++) {
        rc = socket_send(engine, &peer, "x", 1, &e);
        usleep(1000);
    }
    assert_int_equal(rc, Q_UNAVAILABLE);
    socket_free(engine);
}

/* ---- a peer that writes ZMTP by itself: libzmq sends no part before the last one is there ---- */

static void write_all(int fd, const void *data, size_t n)
{
    assert_int_equal(send(fd, data, n, MSG_NOSIGNAL), n);
}

static void read_all(int fd, void *data, size_t n)
{
    assert_int_equal(recv(fd, data, n, MSG_WAITALL), n);
}

/* Connected, and past the handshake of ZMTP 3.0 with the mechanism NULL. Source: RFC 23/ZMTP. */
static int raw_connect(struct socket *engine)
{
    static const char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                "DEALER";
    unsigned char greeting[64] = {0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, theirs[64], head[2];
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(strrchr(socket_address(engine), ':') + 1, NULL, 10)),
        .sin_addr = {htonl(INADDR_LOOPBACK)},
    };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    write_all(fd, greeting, sizeof greeting);
    read_all(fd, theirs, sizeof theirs);
    assert_memory_equal(theirs + 12, "NULL", 4);
    write_all(fd, ready, sizeof ready - 1);
    read_all(fd, head, sizeof head);
    assert_int_equal(head[0], 4);
    read_all(fd, theirs, head[1]);
    return fd;
}

/* Send parts of 32 KiB, n bytes in all, of which none is the last; the engine reads meanwhile.
 * False: the connection was closed. */
static bool send_parts(int fd, struct socket *engine, size_t n)
{
    static char part[9 + 32768] = {3, 0, 0, 0, 0, 0, 0, (char)0x80, 0};
    struct socket_peer peer;
    const void *frame;
    size_t n_frame;
    const int64_t until = clock_ms() + 60000;
    for (size_t done = 0, at = 0; done < n; at %= sizeof part) {
        assert_true(clock_ms() < until);
        const ssize_t one = send(fd, part + at, sizeof part - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (one < 0 && errno != EAGAIN)
            return false;
        done += one > 0 ? (size_t)one : 0;
        at += one > 0 ? (size_t)one : 0;
        assert_false(socket_recv(engine, &peer, &frame, &n_frame));
    }
    return true;
}

static bool is_closed(int fd, struct socket *engine, int timeout_ms)
{
    const int64_t until = clock_ms() + timeout_ms;
    char byte;
    struct socket_peer peer;
    while (clock_ms() < until) {
        size_t n;
        assert_null(wait_frame(engine, &peer, &n, 10));
        const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

/* A message without end is cut off: before hello after few bytes, behind it after those of the
 * largest frame; others go on, and a large frame is none. */
static void test_endless_messages(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend;
    struct socket_peer peer;
    struct watch_failure f;
    size_t n;
    struct socket_config c = {.address = "tcp://127.0.0.1:0", .insecure_tcp = true};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    c.address = socket_address(engine);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(engine, frontend);
    socket_admit(engine);

    int fd = raw_connect(engine);
    (void)send_parts(fd, engine, 2 * WATCH_FIRST_BYTES);
    assert_true(is_closed(fd, engine, 5000));
    assert_true(socket_failure(engine, &f));
    assert_string_equal(f.why, "a peer sent too many bytes before its hello");
    close(fd);

    fd = raw_connect(engine);
    write_all(fd, "\0\x05hello", 7);
    usleep(100000); /* it is there before the engine has looked at the connection */
    assert_memory_equal(wait_frame(engine, &peer, &n, 5000), "hello", 5);
    socket_admit(engine);
    unsigned char head[9] = {2};
    for (int i = 0; i < 8; i++)
        head[1 + i] = (unsigned char)((uint64_t)PROTO_FRAME_MAX >> (56 - 8 * i));
    static char zeros[1 << 16];
    write_all(fd, head, sizeof head);
    for (size_t done = 0; done < PROTO_FRAME_MAX; done += sizeof zeros)
        write_all(fd, zeros, sizeof zeros);
    assert_non_null(wait_frame(engine, &peer, &n, 20000));
    assert_int_equal(n, PROTO_FRAME_MAX);
    assert_false(is_closed(fd, engine, 3 * WATCH_EVERY_MS)); /* bytes are counted from here on */
    assert_true(send_parts(fd, engine, PROTO_FRAME_MAX / 2));
    assert_false(is_closed(fd, engine, 200));
    (void)send_parts(fd, engine, PROTO_FRAME_MAX);
    assert_true(is_closed(fd, engine, 5000));
    assert_true(socket_failure(engine, &f));
    assert_string_equal(f.why, "a frontend sent too many bytes without the end of a message");
    close(fd);
    converse(engine, frontend);
    socket_free(frontend);
    socket_free(engine);
}

/* The fd stays readable while a frame waits, with any reads and sends in between. */
static void test_level_triggered(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend;
    struct socket_peer peer;
    const void *frame;
    size_t n;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "level")};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    converse(engine, frontend);
    for (int i = 0; i < 3; i++)
        assert_ok(socket_send(frontend, NULL, "abc", 3, &e), &e);
    frame = wait_frame(engine, &peer, &n, 5000);
    assert_non_null(frame);
    usleep(20000);
    assert_ok(socket_send(engine, &peer, "answer", 6, &e), &e); /* swallows ZeroMQ's own signal */
    struct pollfd p = {.fd = socket_fd(engine), .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(poll(&p, 1, 1000), 1);
        assert_int_equal(poll(&p, 1, 1000), 1);
        assert_true(socket_recv(engine, &peer, &frame, &n));
    }
    assert_false(socket_recv(engine, &peer, &frame, &n));
    assert_int_equal(poll(&p, 1, 20), 0);
    socket_free(frontend);
    socket_free(engine);
}

/* A frontend that does not read: bounded, and reported. */
static void test_stalled_peer(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend;
    struct socket_peer peer;
    size_t n;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "stall")};
    assert_ok(socket_listen(&engine, &c, &e), &e);
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    send_when_up(frontend, engine, "hello");
    assert_non_null(wait_frame(engine, &peer, &n, 5000));
    static const char block[8192];
    enum q_code rc = Q_OK;
    int n_sent = 0;
    while (!rc && n_sent < 100000) {
        rc = socket_send(engine, &peer, block, sizeof block, &e);
        n_sent++;
    }
    assert_int_equal(rc, Q_NO_SPACE);
    assert_true(n_sent >= SOCKET_HWM_LISTEN);
    socket_free(frontend);
    socket_free(engine);
}

/* An engine that goes and comes back: the frontend finds it, nothing is queued in between. */
static void test_reconnect(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine, *frontend;
    struct socket_config c = {.address = path_in("ipc://%s/%s", "again")};
    assert_ok(socket_connect(&frontend, &c, &e), &e);
    assert_int_equal(socket_send(frontend, NULL, "lost?", 5, &e), Q_UNAVAILABLE);
    for (int i = 0; i < 2; i++) {
        assert_ok(socket_listen(&engine, &c, &e), &e);
        converse(engine, frontend);
        socket_free(engine);
        for (int j = 0; j < 1000 && !socket_send(frontend, NULL, "into the void", 13, &e); j++)
            usleep(1000);
        assert_int_equal(socket_send(frontend, NULL, "?", 1, &e), Q_UNAVAILABLE);
    }
    socket_free(frontend);
}

/* Every allocation fails once while listening with keys; nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct socket *engine = NULL;
    const char *keys = path_in("%s/%s", "memory");
    assert_ok(curve_generate(keys, &e), &e);
    struct socket_config c = {.address = "tcp://127.0.0.1:0", .keys_dir = keys};
    enum q_code rc = Q_NO_MEMORY;
    int n = 0;
    for (; rc; n++) {
        mem_fail_after(n);
        rc = socket_listen(&engine, &c, &e);
        mem_fail_after(-1);
        if (rc && rc != Q_NO_MEMORY)
            fail_msg("allocation %d: %s", n, e.message);
        assert_true(n < 100);
    }
    assert_true(n > 2);
    socket_free(engine);
}

static void test_signals_untouched(void **state)
{
    (void)state;
    struct sigaction now;
    assert_int_equal(sigaction(SIGINT, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL);
    assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
    assert_true(now.sa_handler == SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address),
        cmocka_unit_test(test_ipc),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_ipc_files),
        cmocka_unit_test(test_tcp_needs_keys),
        cmocka_unit_test(test_every_address_of_a_name),
        cmocka_unit_test(test_curve),
        cmocka_unit_test(test_key_files),
        cmocka_unit_test(test_odd_messages),
        cmocka_unit_test(test_endless_messages),
        cmocka_unit_test(test_level_triggered),
        cmocka_unit_test(test_stalled_peer),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_signals_untouched),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
