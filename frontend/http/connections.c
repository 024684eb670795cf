/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/connections.h"

#include <netinet/in.h>
#include <openssl/rand.h>
#include <string.h>
#include "common/mem.h"

#define CONNECTIONS_MAX (1u << 24)

FALLIBLE connections_init(struct connections *c, uint32_t max, uint32_t address_max,
                          struct q_err *e)
{
    Q_ASSERT(max >= 1 && max <= CONNECTIONS_MAX);
    *c = (struct connections){.max = max, .n_place = 2};
    c->address_max = address_max && address_max < max ? address_max : max;
    while (c->n_place < 2 * max)
        c->n_place *= 2;
    c->places = q_calloc(c->n_place, sizeof *c->places);
    if (!c->places)
        return q_fail(e, Q_NO_MEMORY, "http: out of memory for a table of %u connections", max);
    if (RAND_bytes((unsigned char *)&c->seed, sizeof c->seed) != 1)
        return q_fail(e, Q_INTERNAL, "http: no random numbers");
    return Q_OK;
}

void connections_release(struct connections *c)
{
    q_free(c->places);
    *c = (struct connections){.places = NULL};
}

uint64_t connections_address(const struct sockaddr *from)
{
    uint64_t address = 0;
    if (from->sa_family == AF_INET) {
        address = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
    } else if (from->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)from)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(a))
            memcpy(&address, &a->s6_addr[12], 4);
        else
            memcpy(&address, a->s6_addr, 8);
    }
    return address;
}

/* The finalizer of splitmix64. */
static uint32_t home_of(const struct connections *c, uint64_t address)
{
    uint64_t x = address ^ c->seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x ^ (x >> 31)) & (c->n_place - 1);
}

/* The place of the address, or the empty one where it would be. */
static uint32_t find_place(const struct connections *c, uint64_t address)
{
    uint32_t i = home_of(c, address);
    while (c->places[i].n && c->places[i].address != address)
        i = (i + 1) & (c->n_place - 1);
    return i;
}

enum connection_refusal connections_take(struct connections *c, uint64_t address)
{
    struct connection_count *p = &c->places[find_place(c, address)];
    if (c->n >= c->max)
        return CONNECTIONS_FULL;
    if (p->n >= c->address_max)
        return CONNECTIONS_FULL_ADDRESS;
    p->address = address;
    p->n++;
    c->n++;
    return CONNECTION_TAKEN;
}

/* Close the gap at i: an address behind it moves there unless its home lies behind the gap. */
static void close_gap(struct connections *c, uint32_t i)
{
    const uint32_t mask = c->n_place - 1;
    for (uint32_t j = (i + 1) & mask; c->places[j].n; j = (j + 1) & mask) {
        const uint32_t home = home_of(c, c->places[j].address);
        if (((j - home) & mask) < ((j - i) & mask))
            continue;
        c->places[i] = c->places[j];
        c->places[j].n = 0;
        i = j;
    }
}

void connections_give(struct connections *c, uint64_t address)
{
    const uint32_t i = find_place(c, address);
    Q_ASSERT(c->places[i].n && c->n);
    c->n--;
    if (--c->places[i].n == 0)
        close_gap(c, i);
}

uint32_t connections_of(const struct connections *c, uint64_t address)
{
    return c->places[find_place(c, address)].n;
}
