/* SPDX-License-Identifier: Apache-2.0 */
/* net - what is to be said of an address that is listened on. Threads: reentrant. */
#ifndef QUIRE_COMMON_NET_H
#define QUIRE_COMMON_NET_H
#include <stdbool.h>
#include <sys/socket.h>

/* May other machines reach a socket bound to this address, as far as the address shows? */
bool net_is_open(const struct sockaddr *a);
/* The same of a --host; true also for what cannot be resolved. */
bool net_host_is_open(const char *host);
/* For a server that asks for no key: a warning to the log if other machines may reach it. */
void net_warn_open(const char *host, unsigned port);
/* A way out for an errno of bind(2) or listen(2), from "; " on; "" when there is none to name. */
const char *net_hint(int error);

#endif
