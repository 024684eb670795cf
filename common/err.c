/* SPDX-License-Identifier: Apache-2.0 */
#include "common/err.h"
#include <stdbool.h>
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

/* A message is written completely before it is shortened; it may contain two paths. */
#define WHOLE_MAX (3 * 4096 + Q_MESSAGE_MAX)
#define ELLIPSIS  "\xe2\x80\xa6" /* … */
#define N_MARK    (sizeof ELLIPSIS - 1)
#define WORD_KEPT 96 /* minimum number of bytes kept of a long word, at its beginning and end */

static bool is_inside(char c) /* of a UTF-8 sequence */
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Remove an incomplete UTF-8 sequence at the end. */
static void trim_partial_utf8(char *s)
{
    size_t n = strlen(s), at = n;
    while (at && n - at < 3 && is_inside(s[at - 1]))
        at--;
    if (!at)
        return;
    unsigned char lead = (unsigned char)s[at - 1];
    size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (n - at < need)
        s[at - 1] = '\0';
}

/* Remove at least n_less bytes from the middle of the n bytes at `part`; n > n_less + N_MARK. More
 * is kept of the end than of the beginning, because paths differ there. */
static void cut_middle(char *part, size_t n, size_t n_less)
{
    size_t kept = n - n_less - N_MARK;
    size_t begin = kept * 2 / 5, end = n - (kept - begin);
    while (begin && is_inside(part[begin]))
        begin--;
    while (end < n && is_inside(part[end]))
        end++;
    memcpy(part + begin, ELLIPSIS, N_MARK);
    memmove(part + begin + N_MARK, part + end, strlen(part + end) + 1);
}

/* The longest run of bytes without a space; its length in *n. */
static char *longest_word(char *text, size_t *n)
{
    char *longest = text;
    *n = 0;
    for (char *word = text; *word;) {
        size_t length = strcspn(word, " ");
        if (length > *n) {
            *n = length;
            longest = word;
        }
        word += length + strspn(word + length, " ");
    }
    return longest;
}

void q_shorten(char *text, size_t size)
{
    size_t n, n_word;
    trim_partial_utf8(text);
    while ((n = strlen(text)) >= size) {
        size_t less = n - (size - 1);
        char *word = longest_word(text, &n_word);
        if (n_word < WORD_KEPT + 2 * N_MARK) {
            cut_middle(text, n, less);
            return;
        }
        size_t most = n_word - WORD_KEPT - N_MARK;
        cut_middle(word, n_word, less < most ? less : most);
    }
}

void q_fail_text(struct q_err *e, enum q_code code, const char *fmt, ...)
{
    Q_ASSERT(code != Q_OK && code < Q_CODE_COUNT);
    if (!e)
        return;
    char message[WHOLE_MAX]; /* the arguments may be parts of e->message */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    e->code = code;
    q_shorten(message, sizeof e->message);
    memcpy(e->message, message, strlen(message) + 1);
}

enum q_code q_wrap(struct q_err *e, const char *fmt, ...)
{
    Q_ASSERT(e && e->code != Q_OK);
    char whole[WHOLE_MAX + Q_MESSAGE_MAX + 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(whole, WHOLE_MAX, fmt, ap);
    va_end(ap);
    trim_partial_utf8(whole);
    size_t n = strlen(whole);
    snprintf(whole + n, sizeof whole - n, ": %s", e->message);
    q_shorten(whole, sizeof e->message);
    memcpy(e->message, whole, strlen(whole) + 1);
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
