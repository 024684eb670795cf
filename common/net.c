/* SPDX-License-Identifier: Apache-2.0 */
#include "common/net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include "common/log.h"

#define LOOPBACK_FIRST 127 /* 127.0.0.0/8 */

bool net_is_open(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 != LOOPBACK_FIRST;
    }
    if (a->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 v6;
    memcpy(&v6, a, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        return v6.sin6_addr.s6_addr[12] != LOOPBACK_FIRST;
    return !IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool net_host_is_open(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    if (strcmp(host, "*") == 0 || getaddrinfo(host, "0", &hints, &found) != 0)
        return true; /* "*" is every address; of a name that has none, nothing safe is known */
    const bool open = net_is_open(found->ai_addr); /* the first is the one that is bound */
    freeaddrinfo(found);
    return open;
}

void net_warn_open(const char *host, unsigned port)
{
    if (net_host_is_open(host))
        log_warning("no API key is asked for, and other machines may reach %s port %u: any of them "
                    "can use the model; give --api-key or --api-key-file, or --host 127.0.0.1",
                    host, port);
}

const char *net_hint(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "; another process listens there: end it, or name another port with --port";
    case EACCES:
        return "; ports below 1024 are the system's: name one above with --port, or give the "
               "process CAP_NET_BIND_SERVICE";
    case EADDRNOTAVAIL:
        return "; this machine has no such address: --host 0.0.0.0 is all it has, 127.0.0.1 itself "
               "alone";
    default:
        return "";
    }
}
