/* SPDX-License-Identifier: Apache-2.0 */
/* address - where an engine listens: ipc:///path/to/file or tcp://host:port.
 *
 * Only these two forms, checked before ZeroMQ sees them: it also knows wildcards, abstract sockets
 * and interface names, which would listen where nobody meant to. Threads: values. */
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
    uint16_t port; /* tcp; 0 = any free one (listen only) */
};

/* Errors: Q_INVALID; the message quotes `text` and says what is accepted. */
FALLIBLE address_parse(struct address *out, const char *text, struct q_err *e);

#define ADDRESS_TEXT_MAX (ADDRESS_HOST_MAX + 16)
/* The address as ZeroMQ wants it. */
void address_print(const struct address *a, char out[ADDRESS_TEXT_MAX]);

#endif
