/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/tensorboard.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"

#define CRC_POLYNOMIAL 0x82f63b78u /* Castagnoli's, bits reversed */
#define CRC_MASK       0xa282ead8u /* of TFRecord, added behind a rotation by 15 */
#define NAMES_TRIED    100

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

struct tensorboard {
    int fd;
    char path[PATH_MAX];
    uint32_t crc[256];
};

/* ---- protobuf ---- */

static void put_varint(struct buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        buf_add_char(b, (char)(v | 0x80));
    buf_add_char(b, (char)v);
}

static void put_key(struct buf *b, uint32_t field, enum wire wire)
{
    put_varint(b, field << 3 | wire);
}

static void put_double(struct buf *b, uint32_t field, double v)
{
    put_key(b, field, WIRE_FIXED64);
    buf_add(b, &v, sizeof v);
}

static void put_bytes(struct buf *b, uint32_t field, const char *data, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    buf_add(b, data, n);
}

static void put_message(struct buf *b, uint32_t field, const struct buf *message)
{
    put_bytes(b, field, buf_str(message), message->len);
}

static void put_value(struct buf *b, const struct tensorboard_value *v)
{
    struct buf message = BUF_INIT;
    const float simple = (float)v->value;
    put_bytes(&message, VALUE_TAG, v->tag, strlen(v->tag));
    put_key(&message, VALUE_SIMPLE, WIRE_FIXED32);
    buf_add(&message, &simple, sizeof simple);
    put_message(b, SUMMARY_VALUE, &message);
    if (message.failed)
        b->failed = message.failed;
    buf_release(&message);
}

static void begin_event(struct buf *b, uint64_t step)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    put_double(b, EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_usec / 1e6);
    put_key(b, EVENT_STEP, WIRE_VARINT);
    put_varint(b, step);
}

/* ---- records ---- */

static uint32_t masked_crc(const struct tensorboard *t, const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = ~0u;
    while (n--)
        crc = t->crc[(crc ^ *p++) & 0xff] ^ crc >> 8;
    crc = ~crc;
    return (crc >> 15 | crc << 17) + CRC_MASK;
}

static FALLIBLE write_record(struct tensorboard *t, const struct buf *data, struct q_err *e)
{
    struct buf record = BUF_INIT;
    const uint64_t length = data->len;
    const uint32_t of_length = masked_crc(t, &length, sizeof length);
    const uint32_t of_data = masked_crc(t, buf_str(data), data->len);
    buf_add(&record, &length, sizeof length);
    buf_add(&record, &of_length, sizeof of_length);
    buf_add(&record, buf_str(data), data->len);
    buf_add(&record, &of_data, sizeof of_data);
    enum q_code rc = buf_check(data, "an event", e);
    if (!rc)
        rc = buf_check(&record, "an event", e);
    if (!rc && write(t->fd, record.data, record.len) != (ssize_t)record.len)
        rc = q_fail(e, Q_IO, "%s: cannot write: %s", t->path, strerror(errno));
    buf_release(&record);
    return rc;
}

static FALLIBLE write_head(struct tensorboard *t, uint64_t first_step, struct q_err *e)
{
    static const char version[] = "brain.Event:2";
    struct buf event = BUF_INIT, session = BUF_INIT;
    begin_event(&event, 0);
    put_bytes(&event, EVENT_VERSION, version, sizeof version - 1);
    enum q_code rc = write_record(t, &event, e);
    buf_reset(&event);
    put_key(&session, SESSION_STATUS, WIRE_VARINT);
    put_varint(&session, SESSION_START);
    begin_event(&event, first_step);
    put_message(&event, EVENT_SESSION, &session);
    if (!rc && first_step > 1)
        rc = write_record(t, &event, e);
    buf_release(&session);
    buf_release(&event);
    return rc;
}

/* ---- life ---- */

static void make_table(struct tensorboard *t)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        t->crc[i] = crc;
    }
}

/* A name that no file has: viewers tell runs apart by it, and sort by it. */
static FALLIBLE create_file(struct tensorboard *t, const char *dir, struct q_err *e)
{
    char host[64] = "localhost";
    struct timeval now;
    gettimeofday(&now, NULL);
    if (gethostname(host, sizeof host - 1))
        snprintf(host, sizeof host, "localhost");
    for (int i = 0; i < NAMES_TRIED; i++) {
        snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%010lld.%s.%d.%d", dir,
                 (long long)now.tv_sec, host, (int)getpid(), i);
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (t->fd >= 0)
            return Q_OK;
        if (errno != EEXIST)
            break;
    }
    return q_fail(e, Q_IO, "--tensorboard: cannot create %s: %s", t->path, strerror(errno));
}

FALLIBLE tensorboard_open(struct tensorboard **out, const char *dir, uint64_t first_step,
                          struct q_err *e)
{
    struct tensorboard *t = q_calloc(1, sizeof *t);
    enum q_code rc;
    *out = NULL;
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "no memory for event files");
    t->fd = -1;
    make_table(t);
    if (mkdir(dir, 0777) && errno != EEXIST)
        rc = q_fail(e, Q_IO, "--tensorboard: cannot make %s: %s", dir, strerror(errno));
    else if (!(rc = create_file(t, dir, e)))
        rc = write_head(t, first_step, e);
    if (rc)
        tensorboard_close(t);
    else
        *out = t;
    return rc;
}

void tensorboard_close(struct tensorboard *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    q_free(t);
}

FALLIBLE tensorboard_add(struct tensorboard *t, uint64_t step, const struct tensorboard_value *v,
                         uint32_t n, struct q_err *e)
{
    struct buf event = BUF_INIT, summary = BUF_INIT;
    for (uint32_t i = 0; i < n; i++)
        if (v[i].tag)
            put_value(&summary, &v[i]);
    begin_event(&event, step);
    put_message(&event, EVENT_SUMMARY, &summary);
    if (summary.failed)
        event.failed = summary.failed;
    enum q_code rc = write_record(t, &event, e);
    buf_release(&summary);
    buf_release(&event);
    return rc;
}
