/* SPDX-License-Identifier: Apache-2.0 */
/* fault - the error of an answer of the hub that is no success: what is wrong, and what to do.
 * Threads: pure. */
#ifndef QUIRE_COMMON_HUB_REMOTE_FAULT_H
#define QUIRE_COMMON_HUB_REMOTE_FAULT_H
#include "common/hub/remote/endpoint.h"
#include "common/hub/remote/head.h"

struct fault_at {
    const struct endpoint *endpoint;
    const char *id, *revision;
    const char *file; /* NULL: the list of files */
    const char *url;  /* that answered; NULL: one of the endpoint */
};
/* Errors: Q_NOT_FOUND, Q_UNAUTHORIZED, Q_FORBIDDEN, Q_UNAVAILABLE; never Q_OK. */
FALLIBLE fault(const struct fault_at *at, const struct head *h, struct q_err *e);

#endif
