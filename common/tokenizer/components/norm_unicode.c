/* SPDX-License-Identifier: Apache-2.0 */
/* NFC, NFD, NFKC, NFKD and Lowercase, with utf8proc's tables.
 *
 * A text is divided at characters that no normalization changes or combines, so that ordinary text
 * is copied and only the other segments are decomposed. Canonical ordering is a stable sort of
 * each run of combining marks; utf8proc's own is quadratic in the length of the run, which can be
 * a million in a hostile text. */
#include <string.h>
#include <utf8proc.h>
#include "common/mem.h"
#include "common/tokenizer/components/norm.h"
#include "common/tokenizer/steps.h"
#include "common/utf8.h"

#define DECOMPOSED_MAX 32 /* code points one code point becomes; Unicode's longest is 18 */
#define POINTS_MAX     ((size_t)1 << 28)

struct norm_form {
    bool compose, compat;
};

enum q_code norm_form_new(struct norm_form **out, bool compose, bool compat, struct q_err *e)
{
    struct norm_form *f = q_calloc(1, sizeof *f);
    if (!f)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a tokenizer");
    f->compose = compose;
    f->compat = compat;
    *out = f;
    return Q_OK;
}

static enum q_code form_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct tok_str type;
    enum q_code rc = tok_json_str(spec, "type", at, &type, e);
    struct norm_form *f = NULL;
    if (!rc)
        rc = norm_form_new(&f, type.s[type.n - 1] == 'C', type.n == 4, e); /* NFKx */
    *self = f;
    return rc;
}

/* Whether cp is in every form itself (given that no combining mark follows) and composes with
 * nothing before it. Only large common blocks; a character left out costs time, not correctness. */
static bool is_inert(const struct norm_form *f, uint32_t cp)
{
    if (cp < 0x80)
        return true;
    if (cp >= 0x4e00 && cp <= 0x9fff) /* CJK ideographs */
        return true;
    if (!f->compose || f->compat)
        return false;
    return cp < 0x300 || (cp >= 0x391 && cp <= 0x3c9) ||
           (cp >= 0x400 && cp <= 0x481) || /* Greek, Cyrillic */
           (cp >= 0x2010 && cp <= 0x2027) || (cp >= 0x3001 && cp <= 0x3029) ||
           (cp >= 0x3041 && cp <= 0x3094) || (cp >= 0x30a1 && cp <= 0x30fa) ||
           (cp >= 0xac00 && cp <= 0xd7a3) || (cp >= 0xff01 && cp <= 0xff60) ||
           (cp >= 0x1f300 && cp <= 0x1faff);
}

struct points {           /* code points of one segment */
    utf8proc_int32_t *cp; /* [n] */
    size_t n, cap;
    utf8proc_int32_t *sorted; /* room for the longest run of marks */
    size_t sorted_cap;
};

static int ccc(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Stable counting sort of cp[0..n) by combining class. */
static enum q_code sort_marks(struct points *p, utf8proc_int32_t *cp, size_t n, struct q_err *e)
{
    size_t start[256] = {0};
    TOK_STEPS(n + 256);
    enum q_code rc = q_grow(&p->sorted, &p->sorted_cap, n, sizeof *p->sorted, POINTS_MAX, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        start[ccc(cp[i])]++;
    for (size_t c = 0, sum = 0; c < 256; c++) {
        size_t count = start[c];
        start[c] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        p->sorted[start[ccc(cp[i])]++] = cp[i];
    memcpy(cp, p->sorted, n * sizeof *cp);
    return Q_OK;
}

static enum q_code order_marks(struct points *p, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < p->n && !rc;) {
        size_t end = i;
        bool sorted = true;
        while (end < p->n && ccc(p->cp[end]) != 0) {
            sorted = sorted && (end == i || ccc(p->cp[end - 1]) <= ccc(p->cp[end]));
            end++;
        }
        if (!sorted)
            rc = sort_marks(p, p->cp + i, end - i, e);
        i = end == i ? i + 1 : end;
    }
    return rc;
}

/* Normalize s[0..n) into out. */
static enum q_code segment(const struct norm_form *f, struct points *p, const char *s, size_t n,
                           struct buf *out, struct q_err *e)
{
    utf8proc_option_t options =
        f->compat ? UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE : UTF8PROC_DECOMPOSE;
    enum q_code rc;
    p->n = 0;
    TOK_STEPS(n);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int boundary = 0;
        if ((rc = q_grow(&p->cp, &p->cap, p->n + DECOMPOSED_MAX, sizeof *p->cp, POINTS_MAX, e)))
            return rc;
        i += utf8_decode(s + i, n - i, &cp);
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, p->cp + p->n,
                                                     DECOMPOSED_MAX, options, &boundary);
        if (k < 0 || k > DECOMPOSED_MAX)
            return q_fail(e, Q_INTERNAL, "U+%04X has no decomposition", cp);
        p->n += (size_t)k;
    }
    if ((rc = order_marks(p, e)))
        return rc;
    if (f->compose && p->n) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(p->cp, (utf8proc_ssize_t)p->n,
                                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        p->n = k < 0 ? 0 : (size_t)k;
    }
    for (size_t i = 0; i < p->n; i++)
        buf_add_utf8(out, (uint32_t)p->cp[i]);
    return Q_OK;
}

/* Bytes at the start of s that are copied: inert characters, but for the last one if something else
 * follows it. */
static size_t inert_prefix(const struct norm_form *f, const char *s, size_t n)
{
    size_t last = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = (unsigned char)s[i];
        size_t step = cp < 0x80 ? 1 : utf8_decode(s + i, n - i, &cp);
        if (!is_inert(f, cp))
            return last;
        last = i;
        i += step;
    }
    return n;
}

/* Bytes at the start of s up to the second inert character that has another one before it, or to a
 * character that the reference's tables do not know: it stays, and nothing reaches across it. */
static size_t segment_length(const struct norm_form *f, const char *s, size_t n)
{
    size_t i = 0;
    for (bool first = true; i < n; first = false) {
        uint32_t cp;
        size_t step = utf8_decode(s + i, n - i, &cp);
        if ((!first && is_inert(f, cp)) || tok_is_newer(cp))
            return i;
        i += step;
    }
    return n;
}

static size_t newer_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        size_t step = utf8_decode(s + i, n - i, &cp);
        if (!tok_is_newer(cp))
            break;
        i += step;
    }
    return i;
}

enum q_code norm_form_run(const struct norm_form *f, struct tok_work *w, struct q_err *e)
{
    size_t at = inert_prefix(f, w->text, w->n);
    if (at == w->n)
        return Q_OK;
    enum q_code rc = Q_OK;
    struct points p = {0};
    struct buf *out = tok_rewrite(w);
    buf_add(out, w->text, at);
    while (at < w->n && !rc) {
        size_t n = segment_length(f, w->text + at, w->n - at);
        rc = segment(f, &p, w->text + at, n, out, e);
        at += n;
        n = newer_prefix(w->text + at, w->n - at);
        buf_add(out, w->text + at, n);
        at += n;
        n = inert_prefix(f, w->text + at, w->n - at);
        buf_add(out, w->text + at, n);
        at += n;
    }
    q_free(p.cp);
    q_free(p.sorted);
    return rc ? rc : tok_rewrite_done(w, e);
}

static enum q_code form_run(const void *self, struct tok_work *w, struct q_err *e)
{
    return norm_form_run(self, w, e);
}

const struct norm_ops norm_unicode = {{form_load, q_free}, form_run};

/* Character by character as Rust's char::to_lowercase, the one mapping to two characters included.
 */
static enum q_code lowercase_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    struct buf *out = tok_rewrite(w);
    size_t done = 0; /* copied so far */
    for (size_t i = 0; i < w->n;) {
        uint32_t cp = (unsigned char)w->text[i];
        size_t step = cp < 0x80 ? 1 : utf8_decode(w->text + i, w->n - i, &cp);
        uint32_t to = tok_lower(cp);
        if (to != cp) {
            buf_add(out, w->text + done, i - done);
            buf_add_utf8(out, to);
            if (cp == 0x130)
                buf_add_str(out, "\xcc\x87"); /* the dot above, after i */
            done = i + step;
        }
        i += step;
    }
    if (done == 0)
        return Q_OK;
    buf_add(out, w->text + done, w->n - done);
    return tok_rewrite_done(w, e);
}

const struct norm_ops norm_lowercase = {{NULL, NULL}, lowercase_run};
