/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>
#include "common/file.h"
#include "common/mem.h"
#include "common/parse.h"

static bool digest_of(unsigned char out[32], const char *data, size_t n)
{
    unsigned int size = 32;
    return EVP_Digest(data, n, out, &size, EVP_sha256(), NULL) == 1;
}

static FALLIBLE add(struct api_keys *k, const char *key, size_t n, struct q_err *e)
{
    enum q_code rc = q_grow(&k->items, &k->cap, k->n + 1, sizeof *k->items, API_KEYS_MAX, e);
    if (rc != Q_OK)
        return rc;
    k->items[k->n] = (struct api_key){.weight = 1};
    if (!digest_of(k->items[k->n].digest, key, n))
        return q_fail(e, Q_INTERNAL, "api keys: SHA-256 is not available");
    k->n++;
    return Q_OK;
}

FALLIBLE api_keys_add(struct api_keys *k, const char *const *api_keys, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < n && rc == Q_OK; i++) {
        if (!*api_keys[i])
            return q_fail(e, Q_INVALID, "--api-key: a key is empty");
        rc = add(k, api_keys[i], strlen(api_keys[i]), e);
    }
    return rc;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next word of a line; false: none. *at moves behind it. */
static bool next_word(const char *line, size_t n, size_t *at, struct q_err *e,
                      char word[API_KEY_BYTES_MAX + 1])
{
    size_t n_word = 0;
    while (*at < n && is_blank(line[*at]))
        ++*at;
    if (*at >= n || line[*at] == '#')
        return false;
    for (; *at < n && !is_blank(line[*at]); ++*at)
        if (n_word < API_KEY_BYTES_MAX)
            word[n_word++] = line[*at];
        else
            n_word = API_KEY_BYTES_MAX + 1;
    if (n_word > API_KEY_BYTES_MAX || memchr(word, 0, n_word)) {
        q_err_reset(e);
        (void)q_fail(e, Q_INVALID, "a word exceeds %d bytes or contains a NUL character",
                     API_KEY_BYTES_MAX);
        n_word = 0;
    }
    word[n_word] = '\0';
    return true;
}

/* What stands behind a key. */
static FALLIBLE read_word(struct api_keys *k, const char *word, struct q_err *e)
{
    static const char weight[] = "weight=";
    struct api_key *key = &k->items[k->n - 1];
    int64_t value;
    if (!strcmp(word, "admin")) {
        key->admin = k->has_admin = true;
        return Q_OK;
    }
    if (strncmp(word, weight, sizeof weight - 1) != 0)
        return q_fail(e, Q_INVALID,
                      "unknown attribute \"%.60s\" after a key, expected weight=N or admin", word);
    enum q_code rc =
        parse_i64(&value, word + sizeof weight - 1, 1, API_KEY_WEIGHT_MAX, "weight", e);
    if (rc == Q_OK)
        key->weight = (uint32_t)value;
    return rc;
}

static FALLIBLE read_line(struct api_keys *k, const char *line, size_t n, struct q_err *e)
{
    char word[API_KEY_BYTES_MAX + 1];
    size_t at = 0;
    enum q_code rc = Q_OK;
    for (bool first = true; rc == Q_OK && next_word(line, n, &at, e, word); first = false)
        if (e->code)
            rc = e->code;
        else
            rc = first ? add(k, word, strlen(word), e) : read_word(k, word, e);
    OPENSSL_cleanse(word, sizeof word);
    return rc;
}

FALLIBLE api_keys_add_text(struct api_keys *k, const char *text, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t n_line = 0;
    for (size_t at = 0; rc == Q_OK && at < n; n_line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t n_here = end ? (size_t)(end - text) - at : n - at;
        rc = read_line(k, text + at, n_here, e);
        at += n_here + 1;
    }
    return rc == Q_OK ? rc : q_wrap(e, "line %zu", n_line);
}

FALLIBLE api_keys_add_file(struct api_keys *k, const char *path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    size_t n_before = k->n;
    enum q_code rc = file_read(&text, path, API_KEY_FILE_BYTES_MAX, e);
    if (rc) { /* it names the path */
        buf_release(&text);
        return q_wrap(e, "--api-key-file");
    }
    rc = api_keys_add_text(k, buf_str(&text), text.len, e);
    if (rc == Q_OK && k->n == n_before)
        rc = q_fail(e, Q_INVALID, "the file contains no key");
    if (text.len)
        OPENSSL_cleanse(text.data, text.len);
    buf_release(&text);
    return rc == Q_OK ? rc : q_wrap(e, "--api-key-file %s", path);
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(((const struct api_key *)a)->digest, ((const struct api_key *)b)->digest, 32);
}

FALLIBLE api_keys_check(const struct api_keys *k, struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct api_key *sorted = q_calloc(k->n ? k->n : 1, sizeof *sorted);
    if (!sorted)
        return q_fail(e, Q_NO_MEMORY, "api keys: out of memory for %zu keys", k->n);
    if (k->n) {
        memcpy(sorted, k->items, k->n * sizeof *sorted);
        qsort(sorted, k->n, sizeof *sorted, by_digest);
    }
    for (size_t i = 1; rc == Q_OK && i < k->n; i++)
        if (by_digest(&sorted[i - 1], &sorted[i]) == 0)
            rc =
                q_fail(e, Q_INVALID, "an API key is given twice (in --api-key and --api-key-file)");
    q_free(sorted);
    return rc;
}

void api_keys_release(struct api_keys *k)
{
    q_free(k->items);
    *k = (struct api_keys)API_KEYS_INIT;
}

bool api_keys_digest(unsigned char out[32], const char *header, size_t n)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof scheme - 1;
    return n >= n_scheme && strncasecmp(header, scheme, n_scheme) == 0 &&
           digest_of(out, header + n_scheme, n - n_scheme);
}

/* The time is the same for every key, known or not. */
static const struct api_key *find_key(const struct api_keys *k, const unsigned char digest[32])
{
    const struct api_key *found = NULL;
    for (size_t i = 0; i < k->n; i++)
        if (CRYPTO_memcmp(digest, k->items[i].digest, 32) == 0)
            found = &k->items[i];
    return found;
}

const struct api_key *api_keys_find(const struct api_keys *k, const char *header, size_t n)
{
    unsigned char digest[32];
    return api_keys_digest(digest, header, n) ? find_key(k, digest) : NULL;
}

const struct api_key *api_keys_find_plain(const struct api_keys *k, const char *key, size_t n)
{
    unsigned char digest[32];
    return n && digest_of(digest, key, n) ? find_key(k, digest) : NULL;
}
