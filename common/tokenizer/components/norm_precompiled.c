/* SPDX-License-Identifier: Apache-2.0 */
/* Precompiled: SentencePiece's replacement rules, in the form of its model files.
 *
 *   charsmap: base64 of | u32 n | trie: n / 4 units of u32 | replacements, each ended by a NUL |
 *
 * The trie is a double array (Darts-clone); a unit holds
 *   bit 31: a value       bits 0..30 the value: the start of the replacement
 *   else:                 bits 0..7 the label, bit 8 a value follows, bit 9 the offset is in
 *                         units of 256, bits 10..31 the offset
 *
 * Keys are looked up for each grapheme cluster shorter than 6 bytes, and for each character of
 * longer ones. The shortest key at the start of the cluster replaces the whole cluster.
 * SentencePiece itself takes the longest key at each position, but models are trained and served
 * with this rule. Source: the reference implementation. A tokenizer.model whose class transformers
 * does not convert is read as SentencePiece reads it: written.h's SPM_RULES. */
#include <openssl/evp.h>
#include <string.h>
#include <utf8proc.h>
#include "common/mem.h"
#include "common/tokenizer/components/norm.h"
#include "common/utf8.h"

#define CHARSMAP_MAX ((size_t)64 << 20) /* bytes of base64 */
#define CLUSTER_MAX  6                  /* bytes; longer clusters are looked at by character */

struct charsmap {
    unsigned char *data; /* [n_unit * 4 + n_text], owned */
    size_t n_unit;
    const char *text; /* [n_text] the replacements, in data */
    size_t n_text;
    struct tok_str ascii[128]; /* what each ASCII character becomes; s NULL: stays */
    bool longest;              /* SentencePiece's own reading */
};

static void charsmap_drop(void *self)
{
    struct charsmap *m = self;
    if (!m)
        return;
    q_free(m->data);
    q_free(m);
}

static uint32_t unit_at(const struct charsmap *m, size_t i)
{
    uint32_t u;
    memcpy(&u, m->data + 4 + i * 4, 4);
    return u; /* little-endian in the file, as on every machine quire runs on */
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement that starts at `at`; s NULL when there is none there. */
static struct tok_str replacement(const struct charsmap *m, size_t at)
{
    struct tok_str r = {NULL, 0};
    if (at > m->n_text || (at < m->n_text && ((unsigned char)m->text[at] & 0xc0) == 0x80))
        return r;
    r.s = m->text + at;
    r.n = strnlen(r.s, m->n_text - at);
    return r;
}

/* The replacement of the shortest (m->longest: longest) key that s[0..n) starts with, *n_key bytes
 * of it; s NULL when there is none. */
static struct tok_str look_up(const struct charsmap *m, const char *s, size_t n, size_t *n_key)
{
    struct tok_str found = {NULL, 0};
    if (m->n_unit == 0)
        return found;
    size_t at = offset_of(unit_at(m, 0));
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (unsigned char)s[i];
        if (at >= m->n_unit)
            return found;
        uint32_t unit = unit_at(m, at);
        if ((unit & (1u << 31 | 0xff)) != (unsigned char)s[i])
            return found;
        at ^= offset_of(unit);
        if ((unit & 1u << 8) == 0)
            continue;
        if (at < m->n_unit)
            found = replacement(m, unit_at(m, at) & 0x7fffffffu);
        *n_key = i + 1;
        if (!m->longest)
            break;
    }
    return found;
}

static enum q_code charsmap_decode(struct charsmap *m, struct tok_str b64, const char *at,
                                   struct q_err *e)
{
    m->data = q_alloc(b64.n / 4 * 3 + 4);
    if (!m->data)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    int n = b64.n % 4 ? -1 : EVP_DecodeBlock(m->data, (const unsigned char *)b64.s, (int)b64.n);
    for (size_t i = b64.n; n > 0 && i > 0 && i + 2 > b64.n && b64.s[i - 1] == '='; i--)
        n--;
    uint32_t n_trie = 0;
    if (n >= 4)
        memcpy(&n_trie, m->data, 4);
    if (b64.n && (n < 4 || n_trie > (uint32_t)n - 4 || n_trie % 4))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.precompiled_charsmap is corrupt", at);
    m->n_unit = n_trie / 4;
    m->text = (char *)m->data + 4 + n_trie;
    m->n_text = b64.n ? (size_t)n - 4 - n_trie : 0;
    if (!utf8_valid(m->text, m->n_text))
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.precompiled_charsmap is not UTF-8", at);
    return Q_OK;
}

static enum q_code charsmap_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct tok_str b64;
    enum q_code rc = tok_json_str(spec, "precompiled_charsmap", at, &b64, e);
    if (rc)
        return rc;
    if (b64.n > CHARSMAP_MAX)
        return q_fail(e, Q_TOO_LARGE, "tokenizer.json: %s.precompiled_charsmap: %zu bytes", at,
                      b64.n);
    struct charsmap *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = m;
    if ((rc = tok_json_bool(spec, SPM_RULES, at, &m->longest, e)) ||
        (rc = charsmap_decode(m, b64, at, e)))
        return rc;
    for (unsigned c = 1; c < 128; c++) {
        char text = (char)c;
        size_t n_key;
        m->ascii[c] = look_up(m, &text, 1, &n_key);
    }
    return Q_OK;
}

static bool is_ascii(const char *s, size_t n, size_t i)
{
    return i >= n || (unsigned char)s[i] < 0x80;
}

/* Newer than utf8proc 2.8: marks that go with what stands before them, and one that goes
 * with what follows. Source: the reference's answers (tests/differential, --characters). */
static bool joins(uint32_t cp, uint32_t next)
{
    static const uint32_t marks[][2] = {
        {0x897, 0x897},     {0x1acf, 0x1add},   {0x1ae0, 0x1aeb},   {0x10d69, 0x10d6d},
        {0x10efa, 0x10efc}, {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
        {0x113c7, 0x113ca}, {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2},
        {0x11b60, 0x11b67}, {0x11f5a, 0x11f5a}, {0x1611e, 0x1612f}, {0x1e5ee, 0x1e5ef},
        {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5},
    };
    bool joined = cp == 0x113d1 && next != '\r' && next != '\n';
    for (size_t i = 0; i < sizeof marks / sizeof *marks && next >= marks[0][0] && !joined; i++)
        joined = next >= marks[i][0] && next <= marks[i][1] && cp != '\r' && cp != '\n';
    return joined;
}

/* Bytes of the grapheme cluster that s starts with. */
static size_t cluster(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t cp, next;
    size_t i = utf8_decode(s, n, &cp);
    while (i < n) {
        size_t step = utf8_decode(s + i, n - i, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                             &state) &&
            !joins(cp, next))
            break;
        cp = next;
        i += step;
    }
    return i;
}

/* One cluster that is not a single ASCII character. */
static void replace_cluster(const struct charsmap *m, const char *s, size_t n, struct buf *out)
{
    struct tok_str r = {NULL, 0};
    size_t n_key;
    if (n < CLUSTER_MAX)
        r = look_up(m, s, n, &n_key);
    if (r.s) {
        buf_add(out, r.s, r.n);
        return;
    }
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t step = utf8_decode(s + i, n - i, &cp);
        r = look_up(m, s + i, step, &n_key);
        buf_add(out, r.s ? r.s : s + i, r.s ? r.n : step);
        i += step;
    }
}

/* The longest key at every place, whatever the characters. */
static enum q_code longest_run(const struct charsmap *m, struct tok_work *w, struct q_err *e)
{
    struct buf *out = tok_rewrite(w);
    for (size_t i = 0; i < w->n;) {
        uint32_t cp;
        size_t n_key = 0;
        struct tok_str r = look_up(m, w->text + i, w->n - i, &n_key);
        if (!r.s) {
            r = (struct tok_str){w->text + i, utf8_decode(w->text + i, w->n - i, &cp)};
            n_key = r.n;
        }
        buf_add(out, r.s, r.n);
        i += n_key;
    }
    return tok_rewrite_done(w, e);
}

static enum q_code charsmap_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct charsmap *m = self;
    if (m->longest)
        return longest_run(m, w, e);
    struct buf *out = tok_rewrite(w);
    const char *s = w->text;
    size_t done = 0; /* copied so far */
    for (size_t i = 0; i < w->n;) {
        bool single = (unsigned char)s[i] < 0x80 && is_ascii(s, w->n, i + 1) &&
                      !(s[i] == '\r' && i + 1 < w->n && s[i + 1] == '\n');
        const struct tok_str *r = &m->ascii[s[i] & 0x7f];
        if (single && !r->s) {
            i++;
            continue;
        }
        buf_add(out, s + done, i - done);
        if (single) {
            buf_add(out, r->s, r->n);
            done = ++i;
            continue;
        }
        size_t n = cluster(s + i, w->n - i);
        replace_cluster(m, s + i, n, out);
        done = i += n;
    }
    buf_add(out, s + done, w->n - done);
    return tok_rewrite_done(w, e);
}

const struct norm_ops norm_precompiled = {{charsmap_load, charsmap_drop}, charsmap_run};
