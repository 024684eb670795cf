/* SPDX-License-Identifier: Apache-2.0 */
/* address - listening addresses of an engine: ipc:///path/to/file or tcp://host:port.
 *
 * Only these two forms are accepted and checked before they are passed to ZeroMQ, which also
 * accepts wildcards, abstract sockets and interface names and might listen on unintended addresses.
 * Threads: values. */
#ifndef QUIRE_PROTO_ADDRESS_H
#define QUIRE_PROTO_ADDRESS_H
#include <stdint.h>
#include "common/err.h"

#define ADDRESS_PATH_MAX 107 /* bytes of a Unix socket's path (sockaddr_un) */
#define ADDRESS_HOST_MAX 255 /* bytes of a host name (RFC 1035) */

enum address_kind { ADDRESS_IPC, ADDRESS_TCP };
struct address {
    enum address_kind kind;
    char path[ADDRESS_PATH_MAX + 1]; /* ipc; absolute */
    char host[ADDRESS_HOST_MAX +
              1];  /* tcp; a name, IPv4, IPv6 without its brackets, or "*" (listen on all) */
    uint16_t port; /* tcp; 0 = a free port (listen only) */
};

/* Errors: Q_INVALID; the message has `text` and the accepted forms. */
FALLIBLE address_parse(struct address *out, const char *text, struct q_err *e);

#define ADDRESS_TEXT_MAX (ADDRESS_HOST_MAX + 16)
/* The address in ZeroMQ's format. */
void address_print(const struct address *a, char out[ADDRESS_TEXT_MAX]);

#endif
