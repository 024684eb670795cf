/* SPDX-License-Identifier: Apache-2.0 */
/* fake_hosts - names of hosts with several addresses, for tests that are linked with
 * --wrap=getaddrinfo,--wrap=freeaddrinfo. Other names are resolved by the system. Threads: any. */
#ifndef QUIRE_TESTS_UNIT_FAKE_HOSTS_H
#define QUIRE_TESTS_UNIT_FAKE_HOSTS_H
#include "check.h"
#include <netdb.h>

#define FAKE_ADDRESSES_MAX 3u

/* 192.0.2.1 and 198.51.100.1 (RFC 5737) are no addresses of this machine. */
static const struct {
    const char *name, *addresses[FAKE_ADDRESSES_MAX + 1]; /* NULL ends */
} fake_hosts[] = {
    {"both", {"127.0.0.1", "::1"}},
    {"all", {"0.0.0.0", "::"}},
    {"several", {"127.0.0.1", "127.0.0.2", "::1"}},
    {"repeated", {"127.0.0.1", "127.0.0.2", "127.0.0.1"}},
    {"partly", {"192.0.2.1", "127.0.0.3"}},
    {"absent", {"192.0.2.1", "198.51.100.1"}},
};

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out);
void __wrap_freeaddrinfo(struct addrinfo *all);
int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out);
void __real_freeaddrinfo(struct addrinfo *all);

void __wrap_freeaddrinfo(struct addrinfo *all)
{
    while (all) { /* each came by itself */
        struct addrinfo *next = all->ai_next;
        all->ai_next = NULL;
        __real_freeaddrinfo(all);
        all = next;
    }
}

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out)
{
    struct addrinfo **at = out;
    for (size_t i = 0; i < sizeof fake_hosts / sizeof *fake_hosts; i++)
        for (size_t k = 0; !strcmp(name, fake_hosts[i].name) && fake_hosts[i].addresses[k]; k++) {
            assert_int_equal(__real_getaddrinfo(fake_hosts[i].addresses[k], service, hints, at), 0);
            assert_null((*at)->ai_next);
            at = &(*at)->ai_next;
        }
    return at == out ? __real_getaddrinfo(name, service, hints, out) : 0;
}

#endif
