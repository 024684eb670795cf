/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/card_file.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include "common/file.h"

#define SUM_BYTES (sizeof "sum 0123456789abcdef\n" - 1)

/* ---- files ---- */
FALLIBLE card_file_path(char out[PATH_MAX], const char *dir, const struct card *c,
                        const char *suffix, struct q_err *e)
{
    char name[CARD_NAME_MAX + 96], plain[CARD_NAME_MAX];
    size_t n = 0;
    for (const char *p = c->name; *p && n + 1 < sizeof plain; p++)
        plain[n++] = (char)(isalnum((unsigned char)*p) ? *p : '-');
    plain[n] = '\0';
    snprintf(name, sizeof name, "%s-%u.%u-driver%u%s", plain, c->major, c->minor, c->driver,
             suffix);
    return path_join(out, PATH_MAX, dir, name, e);
}

FALLIBLE card_file_make_dirs(const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return q_fail(e, Q_TOO_LARGE, "the path has more than %d bytes: %.100s", PATH_MAX, dir);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0777); /* an error shows at the last one */
            *p = '/';
        }
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return q_fail(e, Q_IO, "%.150s: cannot create the folder: %s", dir, strerror(errno));
    return Q_OK;
}

/* ---- text ---- */
void card_file_head(struct buf *out, const struct card *c)
{
    buf_printf(out, "card %s\ncapability %u.%u\ndriver %u\n", c->name, c->major, c->minor,
               c->driver);
}

static uint64_t sum_of(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

void card_file_sum(struct buf *out, size_t from)
{
    buf_printf(out, "sum %016" PRIx64 "\n",
               out->data ? sum_of(out->data + from, out->len - from) : 0);
}

static bool sum_matches(const char *text, size_t n)
{
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    (void)text;
    return n >= SUM_BYTES; /* or nothing else would be read */
#else
    char want[32];
    if (n < SUM_BYTES)
        return false;
    snprintf(want, sizeof want, "sum %016" PRIx64 "\n", sum_of(text, n - SUM_BYTES));
    return memcmp(text + n - SUM_BYTES, want, SUM_BYTES) == 0;
#endif
}

/* The first line of the head that the text does not have. */
static FALLIBLE mismatch(const struct buf *head, const char *text, size_t n, struct q_err *e)
{
    size_t i = 0;
    int n_found = 0;
    while (i < n && i < head->len && text[i] == head->data[i])
        i++;
    while (i > 0 && head->data[i - 1] != '\n')
        i--;
    while (i + (size_t)n_found < n && text[i + (size_t)n_found] != '\n' && n_found < 80)
        n_found++;
    return q_fail(e, Q_MISMATCH, "the file is for \"%.*s\", this machine has \"%.*s\"", n_found,
                  text + i, (int)strcspn(head->data + i, "\n"), head->data + i);
}

FALLIBLE card_file_check(size_t *begin, size_t *end, const struct buf *head, const char *text,
                         size_t n, struct q_err *e)
{
    const size_t first = strcspn(head->data, "\n") + 1;
    if (n < first || memcmp(text, head->data, first) != 0)
        return q_fail(e, Q_CORRUPT, "line 1 is not \"%.*s\"", (int)first - 1, head->data);
    if (!sum_matches(text, n))
        return q_fail(e, Q_CORRUPT, "the checksum does not match; the file is damaged");
    *begin = head->len;
    *end = n - SUM_BYTES;
    if (*end < head->len || memcmp(text, head->data, head->len) != 0)
        return mismatch(head, text, *end, e);
    return Q_OK;
}

FALLIBLE card_file_line(char *line, size_t room, size_t *at, const char *text, size_t n,
                        uint32_t number, struct q_err *e)
{
    const char *end = memchr(text + *at, '\n', n - *at);
    const size_t length = end ? (size_t)(end - text) - *at : 0;
    if (!end || length >= room || memchr(text + *at, '\0', length))
        return q_fail(e, Q_CORRUPT, "line %u is too long, contains a NUL byte or lacks a newline",
                      number);
    memcpy(line, text + *at, length);
    line[length] = '\0';
    *at += length + 1;
    return Q_OK;
}

/* ---- words ---- */
bool words_next(struct words *w, char *word, size_t room)
{
    size_t n = strcspn(w->at, " ");
    if (n == 0 || n >= room)
        return false;
    memcpy(word, w->at, n);
    word[n] = '\0';
    w->at += n;
    w->at += *w->at == ' ';
    return true;
}

bool words_number(struct words *w, uint64_t *out, unsigned base, uint64_t max)
{
    char word[24];
    uint64_t v = 0;
    if (!words_next(w, word, sizeof word) || strlen(word) > (base == 16 ? 16u : 19u))
        return false;
    for (const char *p = word; *p; p++) {
        const char *digits = "0123456789abcdef", *d = strchr(digits, *p);
        if (!d || (unsigned)(d - digits) >= base)
            return false;
        v = v * base + (uint64_t)(d - digits);
    }
    *out = v;
    return v <= max;
}
