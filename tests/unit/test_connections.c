/* SPDX-License-Identifier: Apache-2.0 */
/* The table of connections against a plain list, with few places so that addresses collide. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include "check.h"
#include "frontend/http/connections.h"

#define N_ADDRESS 24
#define N_EVENT   200000

static uint64_t address_of(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return connections_address((struct sockaddr *)&v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return connections_address((struct sockaddr *)&v6);
}

static void what_counts_as_one_address(void **state)
{
    const struct sockaddr local = {.sa_family = AF_UNIX};
    (void)state;
    assert_true(address_of("10.0.0.1") != address_of("10.0.0.2"));
    assert_true(address_of("10.0.0.1") == address_of("::ffff:10.0.0.1"));
    assert_true(address_of("2001:db8::1") == address_of("2001:db8::2:3"));
    assert_true(address_of("2001:db8::1") != address_of("2001:db8:0:1::1"));
    assert_true(connections_address(&local) == 0);
}

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

/* A connection is taken or given back; the table's answer is the list's. */
static void one_event(struct connections *c, uint32_t count[N_ADDRESS], uint32_t *n, uint64_t *x)
{
    const uint32_t i = next_random(x) % N_ADDRESS;
    if (next_random(x) % 2 && count[i]) {
        connections_give(c, i * 4096u);
        count[i]--;
        --*n;
        return;
    }
    const enum connection_refusal want = *n >= c->max                 ? CONNECTIONS_FULL
                                         : count[i] >= c->address_max ? CONNECTIONS_FULL_ADDRESS
                                                                      : CONNECTION_TAKEN;
    assert_int_equal(connections_take(c, i * 4096u), want);
    count[i] += want == CONNECTION_TAKEN;
    *n += want == CONNECTION_TAKEN;
}

static void counts_are_those_of_a_list(void **state)
{
    struct connections c;
    struct q_err e = Q_ERR_INIT;
    uint32_t count[N_ADDRESS] = {0}, n = 0;
    uint64_t x = 7;
    (void)state;
    assert_ok(connections_init(&c, 13, 4, &e), &e);
    for (int k = 0; k < N_EVENT; k++) {
        one_event(&c, count, &n, &x);
        assert_int_equal(c.n, n);
        for (uint32_t i = 0; i < N_ADDRESS; i++)
            assert_int_equal(connections_of(&c, i * 4096u), count[i]);
    }
    connections_release(&c);
}

static void limits_without_a_number_are_the_total(void **state)
{
    struct connections c;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    assert_ok(connections_init(&c, 1, 0, &e), &e);
    assert_int_equal(connections_take(&c, 5), CONNECTION_TAKEN);
    assert_int_equal(connections_take(&c, 5), CONNECTIONS_FULL);
    connections_give(&c, 5);
    assert_int_equal(connections_take(&c, 6), CONNECTION_TAKEN);
    connections_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_counts_as_one_address),
        cmocka_unit_test(counts_are_those_of_a_list),
        cmocka_unit_test(limits_without_a_number_are_the_total),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
