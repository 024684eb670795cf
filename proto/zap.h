/* SPDX-License-Identifier: Apache-2.0 */
/* zap - authentication of connections by ZeroMQ's ZAP requests (RFC 27/ZAP).
 *
 * ZeroMQ sends a request for every CURVE connection to one inproc endpoint per process; one public
 * key is accepted. Sockets that listen with keys share this endpoint with a reference count, and
 * the first owner to read a request answers it. czmq's zauth does the same on a thread, but asserts
 * if the endpoint is in use. Threads: one; all listening sockets with keys have the same owner. */
#ifndef QUIRE_PROTO_ZAP_H
#define QUIRE_PROTO_ZAP_H
#include <stdint.h>
#include "common/err.h"

/* Count one more user. Errors: Q_INVALID (an earlier user allowed another key), Q_CORRUPT (the
 * key), Q_NO_MEMORY. */
FALLIBLE zap_ref(const char *allowed_key, struct q_err *e);
void zap_unref(void);
void zap_answer(void); /* answer all waiting requests; no effect without a user */
int zap_fd(void);      /* readable if requests may wait; requires a user */
uint64_t zap_n_refused(void);

#endif
