/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include "common/file.h"
#include "common/mem.h"
#include "common/parse.h"

static bool digest_of(unsigned char out[32], const char *data, size_t n)
{
    unsigned int size = 32;
    return EVP_Digest(data, n, out, &size, EVP_sha256(), NULL) == 1;
}

/* A hash as it stands in a file; Q_INVALID: it is not one. */
static FALLIBLE read_hash(unsigned char out[32], const char *hex, size_t n, struct q_err *e)
{
    bool good = n == 64;
    for (size_t i = 0; good && i < n; i++) {
        const char c = (char)(hex[i] | 0x20);
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        good = digit >= 0;
        if (good)
            out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return good ? Q_OK
                : q_fail(e, Q_INVALID,
                         "expected 64 hex digits after " API_KEY_HASH ", got %zu characters", n);
}

static FALLIBLE add_digest(struct api_keys *k, const unsigned char digest[32], struct q_err *e)
{
    enum q_code rc = q_grow(&k->items, &k->cap, k->n + 1, sizeof *k->items, API_KEYS_MAX, e);
    if (rc != Q_OK)
        return rc;
    struct api_key *key = &k->items[k->n++];
    *key = (struct api_key){.weight = 1};
    memcpy(key->digest, digest, sizeof key->digest);
    snprintf(key->name, sizeof key->name, "key %02x%02x%02x%02x", digest[0], digest[1], digest[2],
             digest[3]);
    return Q_OK;
}

static FALLIBLE add(struct api_keys *k, const char *key, size_t n, struct q_err *e)
{
    unsigned char digest[32];
    if (!digest_of(digest, key, n))
        return q_fail(e, Q_INTERNAL, "api keys: SHA-256 is not available");
    return add_digest(k, digest, e);
}

/* The first word of a line: a key, or its hash. */
static FALLIBLE add_word(struct api_keys *k, const char *word, size_t n, struct q_err *e)
{
    static const char hash[] = API_KEY_HASH;
    const size_t n_hash = sizeof hash - 1;
    unsigned char digest[32] = {0};
    if (n < n_hash || memcmp(word, hash, n_hash) != 0)
        return add(k, word, n, e);
    enum q_code rc = read_hash(digest, word + n_hash, n - n_hash, e);
    return rc == Q_OK ? add_digest(k, digest, e) : rc;
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

/* The value of the attribute "NAME=…"; NULL: another one. */
static const char *value_of(const char *word, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(word, name, n) == 0 ? word + n : NULL;
}

static FALLIBLE read_name(struct api_key *key, const char *name, struct q_err *e)
{
    const size_t n = strlen(name);
    bool good = n >= 1 && n <= API_KEY_NAME_MAX;
    for (size_t i = 0; i < n; i++)
        good = good && name[i] > 0x20 && name[i] < 0x7f;
    if (!good)
        return q_fail(e, Q_INVALID, "name= needs 1 to %d printable ASCII characters",
                      API_KEY_NAME_MAX);
    memcpy(key->name, name, n + 1);
    return Q_OK;
}

static FALLIBLE read_models(struct api_key *key, const char *models, struct q_err *e)
{
    const size_t n = strlen(models);
    if (!n || *models == ',' || models[n - 1] == ',' || strstr(models, ",,"))
        return q_fail(e, Q_INVALID, "models= needs names separated by commas");
    if (key->models)
        return q_fail(e, Q_INVALID, "models= is given twice");
    if (!(key->models = q_strndup(models, n)))
        return q_fail(e, Q_NO_MEMORY, "api keys: out of memory for a list of models");
    return Q_OK;
}

/* What stands behind a key. */
static FALLIBLE read_word(struct api_keys *k, const char *word, struct q_err *e)
{
    struct api_key *key = &k->items[k->n - 1];
    const char *text;
    int64_t value;
    if (!strcmp(word, "admin")) {
        key->admin = k->has_admin = true;
        return Q_OK;
    }
    if ((text = value_of(word, "name=")))
        return read_name(key, text, e);
    if ((text = value_of(word, "models=")))
        return read_models(key, text, e);
    if (!(text = value_of(word, "weight=")))
        return q_fail(e, Q_INVALID,
                      "unknown attribute \"%.60s\" after a key, expected name=NAME, weight=N, "
                      "models=NAME,NAME or admin",
                      word);
    enum q_code rc = parse_i64(&value, text, 1, API_KEY_WEIGHT_MAX, "weight", e);
    if (rc == Q_OK)
        key->weight = (uint32_t)value;
    return rc;
}

static FALLIBLE read_line(struct api_keys *k, const char *line, size_t n, struct q_err *e)
{
    char word[API_KEY_BYTES_MAX + 1] = "";
    size_t at = 0;
    enum q_code rc = Q_OK;
    for (bool first = true; rc == Q_OK && next_word(line, n, &at, e, word); first = false)
        if (e->code)
            rc = e->code;
        else
            rc = first ? add_word(k, word, strlen(word), e) : read_word(k, word, e);
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

/* A missing file is an error of file_read. */
static FALLIBLE check_access(const char *path, struct q_err *e)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || !(st.st_mode & (S_IROTH | S_IWOTH)))
        return Q_OK;
    return q_fail(e, Q_FORBIDDEN,
                  "%s: every user of this machine may %s it (mode %04o): chmod o-rwx it", path,
                  st.st_mode & S_IWOTH ? "change" : "read", (unsigned)st.st_mode & 07777);
}

FALLIBLE api_keys_add_file(struct api_keys *k, const char *path, struct q_err *e)
{
    struct buf text = BUF_INIT;
    size_t n_before = k->n;
    enum q_code rc = check_access(path, e);
    if (rc == Q_OK)
        rc = file_read(&text, path, API_KEY_FILE_BYTES_MAX, e);
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
    for (size_t i = 0; i < k->n; i++)
        q_free(k->items[i].models);
    q_free(k->items);
    *k = (struct api_keys)API_KEYS_INIT;
}

bool api_key_allows(const struct api_key *key, const char *model)
{
    const size_t n = strlen(model);
    if (key->models && (!n || strchr(model, ','))) /* it cannot be in the list */
        return false;
    for (const char *at = key->models; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, model, n) && (!at[n] || at[n] == ','))
            return true;
    return !key->models;
}

bool api_keys_digest(unsigned char out[32], const char *header, size_t n)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof scheme - 1;
    return n >= n_scheme && strncasecmp(header, scheme, n_scheme) == 0 &&
           digest_of(out, header + n_scheme, n - n_scheme);
}

/* The time is the same for every key, known or not. */
const struct api_key *api_keys_find_digest(const struct api_keys *k, const unsigned char digest[32])
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
    return api_keys_digest(digest, header, n) ? api_keys_find_digest(k, digest) : NULL;
}

const struct api_key *api_keys_find_plain(const struct api_keys *k, const char *key, size_t n)
{
    unsigned char digest[32];
    return n && digest_of(digest, key, n) ? api_keys_find_digest(k, digest) : NULL;
}
