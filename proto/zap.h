/* SPDX-License-Identifier: Apache-2.0 */
/* zap - who may connect: the answer to ZeroMQ's authentication requests (RFC 27/ZAP).
 *
 * ZeroMQ asks over one inproc endpoint per process for every CURVE connection; the answer is yes
 * for one public key. The sockets that listen with keys share that endpoint, so it is counted here,
 * and whichever of their owners looks first answers. czmq's zauth does the same in a thread of its
 * own, but asserts when the endpoint is taken. Threads: one; all listening sockets with keys have
 * the same owner. */
#ifndef QUIRE_PROTO_ZAP_H
#define QUIRE_PROTO_ZAP_H
#include <stdint.h>
#include "common/err.h"

/* Count one more user. Errors: Q_INVALID (an earlier user allowed another key), Q_CORRUPT (the
 * key), Q_NO_MEMORY. */
FALLIBLE zap_ref(const char *allowed_key, struct q_err *e);
void zap_unref(void);
void zap_answer(void); /* all requests that wait; does nothing without a user */
int zap_fd(void);      /* readable when there may be some; needs a user */
uint64_t zap_n_refused(void);

#endif
