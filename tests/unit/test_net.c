/* SPDX-License-Identifier: Apache-2.0 */
/* net: a name is listened on at every address that it has. Names are given their addresses here. */
#include "check.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/net.h"
#include "fake_hosts.h"

#define N_ADDRESS 3

static bool has_v6(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool yes = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return yes;
}

static bool answers(const char *address, uint16_t port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    assert_int_equal(__real_getaddrinfo(address, service, &hints, &found), 0);
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    bool yes = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0;
    close(fd);
    __real_freeaddrinfo(found);
    return yes;
}

static void every_address_is_listened_on(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n, n_v6; /* sockets; of them on IPv6 */
        const char *at[N_ADDRESS];
    } cases[] = {
        {"both", 2, 1, {"127.0.0.1", "::1"}},
        {"all", 2, 1, {"127.0.0.1", "::1"}},
        {"repeated", 2, 0, {"127.0.0.1", "127.0.0.2"}},
        {"partly", 1, 0, {"127.0.0.3"}},
        {"127.0.0.4", 1, 0, {"127.0.0.4"}},
    };
    bool v6 = has_v6();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct q_err e = Q_ERR_INIT;
        struct net_sockets s, again;
        assert_ok(net_listen(&s, cases[i].name, 0, &e), &e);
        assert_int_equal(s.n, cases[i].n - (v6 ? 0 : cases[i].n_v6));
        assert_true(s.port > 0);
        for (size_t k = 0; k < N_ADDRESS && cases[i].at[k]; k++)
            assert_true(answers(cases[i].at[k], s.port) || (!v6 && strchr(cases[i].at[k], ':')));
        assert_fails(net_listen(&again, cases[i].name, s.port, &e), Q_IO,
                     "another process uses this port", &e);
        assert_int_equal(again.n, 0);
        net_sockets_close(&s);
    }
}

static void one_address_that_is_taken_fails_them_all(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct net_sockets taken, s;
    assert_ok(net_listen(&taken, "127.0.0.2", 0, &e), &e);
    assert_fails(net_listen(&s, "repeated", taken.port, &e), Q_IO, "another process uses this port",
                 &e);
    assert_false(answers("127.0.0.1", taken.port));
    net_sockets_close(&taken);
}

static void names_without_an_address_of_ours(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct net_sockets s;
    assert_fails(net_listen(&s, "absent", 0, &e), Q_IO, "does not have this address", &e);
    assert_fails(net_listen(&s, "no.such.host.invalid", 0, &e), Q_IO, "no.such.host.invalid", &e);
    assert_int_equal(s.n, 0);
}

static void any_address_may_be_open(void **state)
{
    (void)state;
    assert_false(net_host_is_open("both") || net_host_is_open("repeated"));
    assert_true(net_host_is_open("all") && net_host_is_open("partly"));
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void a_path_is_listened_on(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct net_sockets s, again;
    struct net_path at, other;
    char dir[] = "/tmp/test_net-XXXXXX", path[64], copy[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(copy, sizeof copy, "%s/t", dir);
    assert_ok(net_listen_path(&s, &at, path, &e), &e);
    assert_true(s.n == 1 && s.port == 0 && is_there(path));
    assert_fails(net_listen_path(&again, &other, path, &e), Q_IO, "another process listens", &e);
    assert_true(again.n == 0 && is_there(path));
    net_path_remove(&other); /* is of nothing */
    assert_true(is_there(path));
    net_sockets_close(&s); /* as a process that is killed */
    assert_true(is_there(path));
    assert_ok(net_listen_path(&again, &other, path, &e), &e);
    assert_int_equal(rename(path, copy), 0);
    assert_ok(net_listen_path(&s, &at, path, &e), &e);
    net_path_remove(&other); /* another one is there by now */
    assert_true(is_there(path));
    net_path_remove(&at);
    assert_false(is_there(path));
    net_sockets_close(&s);
    net_sockets_close(&again);
    unlink(copy);
    rmdir(dir);
}

static void paths_that_cannot_be_listened_on(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct net_sockets s;
    struct net_path at;
    char dir[] = "/tmp/test_net-XXXXXX", path[64], file[256];
    assert_non_null(mkdtemp(dir));
    assert_fails(net_listen_path(&s, &at, dir, &e), Q_IO, "is no socket", &e);
    snprintf(path, sizeof path, "%s/no/s", dir);
    assert_fails(net_listen_path(&s, &at, path, &e), Q_IO, "No such file", &e);
    memset(file, 'x', sizeof file);
    file[108] = 0;
    assert_fails(net_listen_path(&s, &at, file, &e), Q_IO, "108 bytes, expected at most 107", &e);
    assert_true(s.n == 0 && !at.text[0]);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_is_listened_on),
        cmocka_unit_test(paths_that_cannot_be_listened_on),
        cmocka_unit_test(every_address_is_listened_on),
        cmocka_unit_test(one_address_that_is_taken_fails_them_all),
        cmocka_unit_test(names_without_an_address_of_ours),
        cmocka_unit_test(any_address_may_be_open),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
