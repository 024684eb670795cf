/* SPDX-License-Identifier: Apache-2.0 */
#include "common/err.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    const char *text;
    int http;
} codes[Q_CODE_COUNT] = {
#define ERR(name, http, text) {#name, text, http},
#include "common/err.def"
};

/* Cut a UTF-8 sequence that truncation left incomplete: error messages quote user text and end up
 * in JSON. */
static void trim_partial_utf8(char *s)
{
    size_t n = strlen(s);
    size_t back = 0;
    while (back < n && back < 4 && ((unsigned char)s[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == n || back == 4)
        return;
    unsigned char lead = (unsigned char)s[n - 1 - back];
    size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (back < need)
        s[n - 1 - back] = '\0';
}

void q_fail_text(struct q_err *e, enum q_code code, const char *fmt, ...)
{
    Q_ASSERT(code != Q_OK && code < Q_CODE_COUNT);
    if (!e)
        return;
    char message[Q_MESSAGE_MAX]; /* the arguments may be parts of e->message */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    e->code = code;
    if (n >= (int)sizeof message)
        trim_partial_utf8(message);
    memcpy(e->message, message, strlen(message) + 1);
}

enum q_code q_wrap(struct q_err *e, const char *fmt, ...)
{
    Q_ASSERT(e && e->code != Q_OK);
    char prefix[Q_MESSAGE_MAX];
    char whole[2 * Q_MESSAGE_MAX + 4];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "%s: %s", prefix, e->message);
    size_t n = strlen(whole);
    size_t keep = n < sizeof e->message ? n : sizeof e->message - 1;
    memcpy(e->message, whole, keep);
    e->message[keep] = '\0';
    if (n > keep)
        trim_partial_utf8(e->message);
    return e->code;
}

void q_err_reset(struct q_err *e)
{
    e->code = Q_OK;
    e->message[0] = '\0';
}

const char *q_code_name(enum q_code code)
{
    return code < Q_CODE_COUNT ? codes[code].name : "?";
}

const char *q_code_text(enum q_code code)
{
    return code < Q_CODE_COUNT ? codes[code].text : "unknown error code";
}

int q_code_http(enum q_code code)
{
    return code < Q_CODE_COUNT ? codes[code].http : 500;
}

_Noreturn void q_assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "quire: assertion failed: %s (%s:%d); this is a bug in quire\n", cond, file,
            line);
    abort();
}
