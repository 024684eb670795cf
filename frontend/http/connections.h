/* SPDX-License-Identifier: Apache-2.0 */
/* connections - how many connections are open, in all and per client address.
 *
 * A table with open addressing counts the connections of each address; it has twice as many places
 * as there may be connections, so that it never fills. An IPv6 address counts by its first 64 bits,
 * which one client usually has to itself; an IPv4 address that is mapped into IPv6 is the IPv4
 * address. Threads: the loop's. Allocates only in connections_init. */
#ifndef QUIRE_FRONTEND_HTTP_CONNECTIONS_H
#define QUIRE_FRONTEND_HTTP_CONNECTIONS_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "common/err.h"

enum connection_refusal { CONNECTION_TAKEN, CONNECTIONS_FULL, CONNECTIONS_FULL_ADDRESS };

struct connection_count { /* n = 0: an empty place */
    uint64_t address;
    uint32_t n;
};
struct connections {
    struct connection_count *places; /* [n_place], a power of two */
    uint32_t n_place;
    uint32_t max, address_max;
    uint32_t n;    /* open */
    uint64_t seed; /* of the hash: clients must not choose the place of their address */
};
/* max: at least 1. address_max 0: max. Errors: Q_NO_MEMORY. */
FALLIBLE connections_init(struct connections *c, uint32_t max, uint32_t address_max,
                          struct q_err *e);
void connections_release(struct connections *c);
/* What counts as one address. A family without addresses counts as one. */
uint64_t connections_address(const struct sockaddr *from);
/* Count a connection of the address; each one that is taken is given back once. */
enum connection_refusal connections_take(struct connections *c, uint64_t address);
void connections_give(struct connections *c, uint64_t address);
/* Of this address, now. */
uint32_t connections_of(const struct connections *c, uint64_t address);

#endif
