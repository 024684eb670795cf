/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/trace.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>
#include "common/file.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/parse.h"

#define FILE_MAX   ((size_t)4 << 30)
#define CELL_MAX   48 /* bytes of a number or a time */
#define COLUMN_MAX 16

/* files */

static FALLIBLE unpack(struct buf *out, const struct mapping *m, struct q_err *e)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    ZSTD_inBuffer in = {m->data, m->size, 0};
    ZSTD_outBuffer o;
    static const size_t part = (size_t)1 << 17;
    struct buf piece = BUF_INIT;
    enum q_code rc = Q_OK;
    size_t left = 1;
    buf_printf(&piece, "%*s", (int)part, "");
    if (!z || buf_check(&piece, "zstd", e)) {
        rc = q_fail(e, Q_NO_MEMORY, "out of memory to unpack");
        goto out;
    }
    do { /* until all of the input is read and all that it gave is written */
        o = (ZSTD_outBuffer){piece.data, part, 0};
        left = ZSTD_decompressStream(z, &o, &in);
        if (ZSTD_isError(left)) {
            rc = q_fail(e, Q_CORRUPT, "zstd: %s", ZSTD_getErrorName(left));
            break;
        }
        buf_add(out, piece.data, o.pos);
        rc = buf_check(out, "the unpacked file", e);
    } while (!rc && (in.pos < in.size || (left && o.pos == part)));
    if (!rc && left)
        rc = q_fail(e, Q_CORRUPT, "zstd: the file is truncated");
out:
    ZSTD_freeDStream(z);
    buf_release(&piece);
    return rc;
}

enum q_code trace_read(struct buf *out, const char *path, struct q_err *e)
{
    static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    struct mapping m = MAPPING_INIT;
    enum q_code rc = mapping_open(&m, path, e);
    if (rc)
        return rc;
    if (m.size >= sizeof magic && !memcmp(m.data, magic, sizeof magic)) {
        rc = unpack(out, &m, e);
        if (rc)
            rc = q_wrap(e, "%.150s", path);
    } else {
        buf_add(out, m.data, m.size);
        rc = buf_check(out, path, e);
    }
    mapping_release(&m);
    return rc;
}

/* lines */

struct line {
    const char *text;
    size_t n;
    unsigned long long number;
};

/* False: there is no further line. */
static bool next_line(struct line *l, const char *data, size_t n, size_t *at)
{
    if (*at >= n)
        return false;
    const char *newline = memchr(data + *at, '\n', n - *at);
    l->text = data + *at;
    l->n = newline ? (size_t)(newline - l->text) : n - *at;
    *at += l->n + 1;
    l->number++;
    while (l->n && (l->text[l->n - 1] == '\r' || l->text[l->n - 1] == ' '))
        l->n--;
    return true;
}

/* The cells of a line; n of them, at most COLUMN_MAX. Quoted cells are not known here. */
struct cells {
    const char *at[COLUMN_MAX];
    size_t len[COLUMN_MAX];
    uint32_t n;
};

static void cut_cells(struct cells *c, const struct line *l)
{
    const char *p = l->text, *end = l->text + l->n;
    c->n = 0;
    while (c->n < COLUMN_MAX) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        c->at[c->n] = p;
        c->len[c->n++] = (size_t)((comma ? comma : end) - p);
        if (!comma)
            return;
        p = comma + 1;
    }
}

/* A number that is wrong in a file makes the file wrong, not the command line. */
static enum q_code in_file(struct q_err *e)
{
    e->code = Q_CORRUPT;
    return Q_CORRUPT;
}

static FALLIBLE cell_text(char out[CELL_MAX], const struct cells *c, uint32_t i, const char *what,
                          struct q_err *e)
{
    if (i >= c->n || !c->len[i])
        return q_fail(e, Q_CORRUPT, "%s is missing", what);
    if (c->len[i] >= CELL_MAX)
        return q_fail(e, Q_CORRUPT, "%s has %zu characters", what, c->len[i]);
    memcpy(out, c->at[i], c->len[i]);
    out[c->len[i]] = '\0';
    return Q_OK;
}

static FALLIBLE cell_tokens(uint32_t *out, const struct cells *c, uint32_t i, const char *what,
                            struct q_err *e)
{
    char text[CELL_MAX];
    int64_t value = 0;
    if (cell_text(text, c, i, what, e) || parse_i64(&value, text, 0, WORKLOAD_TOKENS_MAX, what, e))
        return in_file(e);
    *out = (uint32_t)value;
    return Q_OK;
}

/* "2023-11-16 18:17:03.9799600" in seconds, as if UTC: only differences matter. */
static FALLIBLE parse_stamp(double *out, const char *text, struct q_err *e)
{
    struct tm t = {0};
    const char *rest = strptime(text, "%Y-%m-%d", &t);
    double fraction = 0;
    if (rest && (*rest == ' ' || *rest == 'T'))
        rest = strptime(rest + 1, "%H:%M:%S", &t);
    else
        rest = NULL;
    if (rest && *rest == '.' && rest[1] >= '0' && rest[1] <= '9') {
        char digits[CELL_MAX];
        size_t n = 1 + strspn(rest + 1, "0123456789");
        snprintf(digits, sizeof digits, "0%.*s", (int)n, rest);
        if (parse_f64(&fraction, digits, 0, 1, "TIMESTAMP", e))
            return in_file(e);
        rest += n;
    }
    if (!rest || (*rest && *rest != '+' && *rest != 'Z'))
        return q_fail(e, Q_CORRUPT,
                      "TIMESTAMP is \"%.40s\", expected a time such as 2023-11-16 18:17:03.98",
                      text);
    *out = (double)timegm(&t) + fraction;
    return Q_OK;
}

/* A request without an answer (BurstGPT has failed ones) or without a prompt is none. */
static FALLIBLE add_request(struct workload *w, const struct work *item, struct q_err *e)
{
    return item->input_len && item->output_len ? workload_add(w, item, e) : Q_OK;
}

static FALLIBLE azure_line(struct workload *w, const struct line *l, struct q_err *e)
{
    struct cells c;
    struct work item = {0};
    char stamp[CELL_MAX];
    enum q_code rc;
    cut_cells(&c, l);
    if ((rc = cell_text(stamp, &c, 0, "TIMESTAMP", e)) ||
        (rc = parse_stamp(&item.at_s, stamp, e)) ||
        (rc = cell_tokens(&item.input_len, &c, 1, "ContextTokens", e)) ||
        (rc = cell_tokens(&item.output_len, &c, 2, "GeneratedTokens", e)))
        return rc;
    return add_request(w, &item, e);
}

static FALLIBLE burst_line(struct workload *w, const struct line *l, struct q_err *e)
{
    struct cells c;
    struct work item = {0};
    char stamp[CELL_MAX];
    enum q_code rc;
    cut_cells(&c, l);
    if ((rc = cell_text(stamp, &c, 0, "Timestamp", e)) ||
        (rc = cell_tokens(&item.input_len, &c, 2, "Request tokens", e)) ||
        (rc = cell_tokens(&item.output_len, &c, 3, "Response tokens", e)))
        return rc;
    if (parse_f64(&item.at_s, stamp, 0, 1e15, "Timestamp", e))
        return in_file(e);
    return add_request(w, &item, e);
}

static FALLIBLE whole(uint64_t *out, const json_t *v, const char *what, double max, struct q_err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (double)json_integer_value(v) > max)
        return q_fail(e, Q_CORRUPT, "%s is not a whole number from 0 to %.0f", what, max);
    *out = (uint64_t)json_integer_value(v);
    return Q_OK;
}

static int add_json(const char *text, size_t n, void *ctx)
{
    buf_add(ctx, text, n);
    return 0;
}

/* Parameters of a request, as --record-requests has them: sent as they are. */
static FALLIBLE read_request(const char **out, const json_t *o, struct q_err *e)
{
    const json_t *request = json_object_get(o, "request");
    const char *key;
    const json_t *v;
    if (!request)
        return Q_OK;
    if (!json_is_object(request))
        return q_fail(e, Q_CORRUPT, "request is not an object");
    json_object_foreach ((json_t *)(uintptr_t)request, key, v)
        if (!json_is_number(v) && !json_is_boolean(v))
            return q_fail(e, Q_CORRUPT, "request.%.40s is neither a number nor a boolean", key);
    struct buf text = BUF_INIT;
    json_dump_callback(request, add_json, &text, JSON_COMPACT);
    const enum q_code rc = buf_check(&text, "a request", e);
    if (rc)
        buf_release(&text);
    *out = text.data;
    return rc;
}

static FALLIBLE mooncake_object(struct workload *w, const json_t *o, struct q_err *e)
{
    struct work item = {.hash_start = w->n_hash};
    const json_t *stamp = json_object_get(o, "timestamp"), *hashes = json_object_get(o, "hash_ids");
    uint64_t input = 0, output = 0, hash = 0;
    enum q_code rc;
    if (!json_is_number(stamp) || !(json_number_value(stamp) >= 0))
        return q_fail(e, Q_CORRUPT, "timestamp is not a number of milliseconds");
    if (hashes && !json_is_array(hashes))
        return q_fail(e, Q_CORRUPT, "hash_ids is not a list");
    if ((rc = whole(&input, json_object_get(o, "input_length"), "input_length", WORKLOAD_TOKENS_MAX,
                    e)) ||
        (rc = whole(&output, json_object_get(o, "output_length"), "output_length",
                    WORKLOAD_TOKENS_MAX, e)))
        return rc;
    item.at_s = json_number_value(stamp) / 1000;
    item.input_len = (uint32_t)input;
    item.output_len = (uint32_t)output;
    item.n_hash = json_array_size(hashes);
    for (size_t i = 0; i < item.n_hash; i++)
        if ((rc = whole(&hash, json_array_get(hashes, i), "hash_ids", 9e15, e)) ||
            (rc = workload_add_hash(w, hash, e)))
            return rc;
    if (!input || !output)
        return Q_OK;
    if (!(rc = read_request(&item.request, o, e)) && (rc = workload_add(w, &item, e)))
        q_free((void *)(uintptr_t)item.request);
    return rc;
}

static FALLIBLE mooncake_line(struct workload *w, const struct line *l, struct q_err *e)
{
    json_error_t why;
    json_t *o = json_read_bytes(l->text, l->n, JSON_REJECT_DUPLICATES, &why);
    enum q_code rc = json_is_object(o) ? mooncake_object(w, o, e)
                                       : q_fail(e, Q_CORRUPT, "not a JSON object%s%.100s",
                                                o ? "" : ": ", o ? "" : why.text);
    json_decref(o);
    return rc;
}

typedef enum q_code line_reader(struct workload *w, const struct line *l, struct q_err *e);
static const struct {
    const char *name, *starts; /* of the first line */
    bool heading;              /* which is then no request */
    line_reader *read;
} formats[] = {
    {"Azure", "TIMESTAMP,ContextTokens,GeneratedTokens", true, azure_line},
    {"BurstGPT", "Timestamp,Model,Request tokens,Response tokens", true, burst_line},
    {"Mooncake", "{", false, mooncake_line},
};

static int by_time(const void *p, const void *q)
{
    const struct work *a = p, *b = q;
    if (a->at_s != b->at_s)
        return a->at_s < b->at_s ? -1 : 1;
    return (a->hash_start > b->hash_start) - (a->hash_start < b->hash_start);
}

static void count_from_first(struct workload *w)
{
    if (!w->n)
        return;
    qsort(w->items, w->n, sizeof *w->items, by_time);
    const double first = w->items[0].at_s;
    for (size_t i = 0; i < w->n; i++)
        w->items[i].at_s -= first;
    w->timed = true;
}

enum q_code trace_parse(struct workload *w, const char *data, size_t n, struct q_err *e)
{
    struct line l = {0};
    size_t at = n >= 3 && !memcmp(data, "\xef\xbb\xbf", 3) ? 3 : 0, i = 0; /* a byte order mark */
    const size_t n_format = sizeof formats / sizeof *formats;
    enum q_code rc = Q_OK;
    while (i < n_format && (n - at < strlen(formats[i].starts) ||
                            memcmp(data + at, formats[i].starts, strlen(formats[i].starts)) != 0))
        i++;
    if (i == n_format)
        return q_fail(e, Q_CORRUPT,
                      "unknown trace format: the file starts with \"%.*s\", expected the header of "
                      "Azure's or BurstGPT's CSV, or a JSON object",
                      n - at < 30 ? (int)(n - at) : 30, n > at ? data + at : "");
    while (!rc && next_line(&l, data, n, &at))
        if (l.n && !(l.number == 1 && formats[i].heading) && (rc = formats[i].read(w, &l, e)))
            rc = q_wrap(e, "%s trace, line %llu", formats[i].name, l.number);
    if (!rc)
        count_from_first(w);
    return rc;
}
