/* SPDX-License-Identifier: Apache-2.0 */
/* A request has exactly eight parts; a malformed one is answered with "400". libzmq writes all
 * parts, but the key in them comes from the client. */
#include "proto/zap.h"
#include <string.h>
#include <czmq.h>
#include "proto/curve.h"

#define ENDPOINT  "inproc://zeromq.zap.01" /* fixed by the RFC */
#define PARTS_MAX 8 /* version, request id, domain, address, identity, mechanism, key, spare */

enum { PART_VERSION, PART_REQUEST_ID, PART_MECHANISM = 5, PART_KEY };

static struct { /* one per process, as ZeroMQ has one endpoint per process */
    zsock_t *handler;
    uint32_t refs;
    uint8_t allowed[CURVE_BYTES];
    uint64_t n_refused;
} zap;

enum q_code zap_ref(const char *allowed_key, struct q_err *e)
{
    uint8_t key[CURVE_BYTES];
    if (strlen(allowed_key) != CURVE_TEXT - 1 || !zmq_z85_decode(key, allowed_key))
        return q_fail(e, Q_CORRUPT, "zap: the frontend's key is not a Z85 key");
    if (zap.refs) {
        if (memcmp(key, zap.allowed, sizeof key) != 0)
            return q_fail(e, Q_INVALID, "zap: all addresses of a process must use the same keys");
        zap.refs++;
        return Q_OK;
    }
    zsock_t *handler = zsock_new(ZMQ_REP);
    if (!handler)
        return q_fail(e, Q_NO_MEMORY, "zap: cannot create a socket: %s", zmq_strerror(zmq_errno()));
    zsock_set_linger(handler, 0);
    if (zsock_bind(handler, "%s", ENDPOINT) < 0) {
        zsock_destroy(&handler);
        return q_fail(e, Q_INVALID, "zap: another ZAP handler exists in this process");
    }
    memcpy(zap.allowed, key, sizeof key);
    zap.handler = handler;
    zap.refs = 1;
    return Q_OK;
}

void zap_unref(void)
{
    if (--zap.refs == 0)
        zsock_destroy(&zap.handler);
}

int zap_fd(void)
{
    return (int)zsock_fd(zap.handler);
}

uint64_t zap_n_refused(void)
{
    return zap.n_refused;
}

/* Compare without an early exit, so that the time reveals nothing about the key. */
static bool same_key(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (size_t i = 0; i < CURVE_BYTES; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}

static void reply(void *handler, zmq_msg_t *request_id, bool yes)
{
    const char *parts[] = {yes ? "200" : "400", yes ? "OK" : "unknown key", "", ""};
    zmq_send(handler, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(handler, zmq_msg_data(request_id), zmq_msg_size(request_id),
             ZMQ_SNDMORE | ZMQ_DONTWAIT);
    for (int i = 0; i < 4; i++)
        zmq_send(handler, parts[i], strlen(parts[i]), ZMQ_DONTWAIT | (i < 3 ? ZMQ_SNDMORE : 0));
}

static bool part_is(zmq_msg_t *part, const char *text)
{
    size_t n = strlen(text);
    return zmq_msg_size(part) == n && memcmp(zmq_msg_data(part), text, n) == 0;
}

/* Take one request and answer it; false when there is none. */
static bool answer_one(void *handler)
{
    zmq_msg_t parts[PARTS_MAX];
    int n_part = 0;
    bool more = true;
    for (int i = 0; i < PARTS_MAX; i++)
        zmq_msg_init(&parts[i]);
    while (more) { /* further parts overwrite the last one */
        zmq_msg_t *part = &parts[n_part < PARTS_MAX ? n_part : PARTS_MAX - 1];
        if (zmq_msg_recv(part, handler, ZMQ_DONTWAIT) < 0)
            break;
        n_part++;
        more = zmq_msg_more(part);
    }
    if (!more) {
        bool yes = n_part == PART_KEY + 1 && part_is(&parts[PART_VERSION], "1.0") &&
                   part_is(&parts[PART_MECHANISM], "CURVE") &&
                   zmq_msg_size(&parts[PART_KEY]) == CURVE_BYTES &&
                   same_key(zmq_msg_data(&parts[PART_KEY]), zap.allowed);
        zap.n_refused += !yes;
        reply(handler, &parts[PART_REQUEST_ID], yes);
    }
    for (int i = 0; i < PARTS_MAX; i++)
        zmq_msg_close(&parts[i]);
    return n_part > 0;
}

void zap_answer(void)
{
    if (!zap.refs)
        return;
    while (answer_one(zsock_resolve(zap.handler)))
        continue;
}
