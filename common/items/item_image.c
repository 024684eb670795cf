/* SPDX-License-Identifier: Apache-2.0 */
/* A server that fetched URLs would be a client of whatever its own clients name (SSRF), and wait
 * for it: so the bytes come with the request, or from a folder that the operator names.
 *
 * "base64" and "file:" are read as they are spelled here: by these words a frontend knows that a
 * small body takes long (frontend/api/task.c). */
#include "common/items/item_image.h"
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "common/file.h"
#include "common/items/items_internal.h"
#include "common/json_kind.h"
#include "common/mem.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define SHOWN        24 /* bytes of a wrong URL in a message */

/* What the decoder says of bytes is the request's mistake, but for memory. */
static FALLIBLE decode(struct image *out, const void *data, size_t n, struct q_err *e)
{
    if (!n)
        return q_fail(e, Q_INVALID, "the image has no bytes");
    enum q_code rc = image_decode(out, data, n, e);
    if (rc && rc != Q_NO_MEMORY && rc != Q_TOO_LARGE)
        rc = e->code = Q_INVALID;
    return rc;
}

static FALLIBLE of_base64(struct image *out, const struct item_text *text, struct q_err *e)
{
    unsigned char *data = NULL;
    size_t n = 0;
    enum q_code rc = item_base64(&data, &n, text, e);
    if (!rc)
        rc = decode(out, data, n, e);
    q_free(data);
    return rc;
}

/* data:[TYPE][;PARAMETER=VALUE…];base64,TEXT. Source: RFC 2397. */
static FALLIBLE of_data_url(struct image *out, const char *url, size_t n, struct q_err *e)
{
    static const char base64[] = ";base64";
    const size_t n_word = sizeof base64 - 1;
    const char *head = url + strlen("data:"), *comma = memchr(head, ',', n - strlen("data:"));
    if (!comma)
        return q_fail(e, Q_INVALID,
                      "url: a data: URL has a comma before its data (data:image/png;base64,…)");
    if ((size_t)(comma - head) < n_word || strncmp(comma - n_word, base64, n_word) != 0)
        return q_fail(e, Q_INVALID,
                      "url: a data: URL without \";base64\" before its comma has percent-encoded "
                      "data, which is not accepted; send data:image/png;base64,…");
    const struct item_text text = {"url", comma + 1, n - (size_t)(comma + 1 - url)};
    return of_base64(out, &text, e);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The path of file:///PATH or file://localhost/PATH, with its percent-escapes. */
static FALLIBLE path_of(char out[PATH_MAX], const char *url, size_t n, struct q_err *e)
{
    static const char host[] = "localhost/";
    const char *at = url + strlen("file:"), *end = url + n;
    size_t len = 0;
    if (strncmp(at, "//", 2) != 0)
        return q_fail(e, Q_INVALID, "url: expected file:///PATH");
    at += 2;
    if (!strncasecmp(at, host, sizeof host - 1))
        at += sizeof host - 2;
    if (*at != '/')
        return q_fail(e, Q_INVALID, "url: a file: URL has an absolute path: file:///PATH");
    while (at < end) {
        const int high = *at == '%' ? hex_digit(at[1]) : -1,
                  low = high >= 0 ? hex_digit(at[2]) : -1;
        const char c = low >= 0 ? (char)(high * 16 + low) : *at;
        if (!c)
            return q_fail(e, Q_INVALID, "url: has a NUL");
        if (len + 1 == PATH_MAX)
            return q_fail(e, Q_INVALID, "url: its path has more than %d bytes", PATH_MAX - 1);
        out[len++] = c;
        at += low >= 0 ? 3 : 1;
    }
    out[len] = '\0';
    return Q_OK;
}

static FALLIBLE read_whole(struct image *out, const char *path, struct q_err *e)
{
    struct file_open f = {.fd = -1, .path = path};
    unsigned char *data = NULL;
    uint64_t size = 0;
    enum q_code rc = file_open_regular(&f.fd, &size, path, e);
    if (!rc && size > ITEM_LIST_BYTES)
        rc = q_fail(e, Q_TOO_LARGE, "%.200s: %llu bytes, expected at most %zu", path,
                    (unsigned long long)size, ITEM_LIST_BYTES);
    if (!rc && !(data = q_alloc((size_t)size + 1)))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for %.200s", path);
    if (!rc && !(rc = file_read_at(&f, data, (size_t)size, 0, e)))
        rc = decode(out, data, (size_t)size, e);
    q_free(data);
    if (f.fd >= 0)
        close(f.fd);
    /* A file that cannot be read is the request's mistake. */
    if (rc == Q_NOT_FOUND || rc == Q_IO || rc == Q_CORRUPT)
        rc = e->code = Q_INVALID;
    return rc;
}

static FALLIBLE of_file_url(struct image *out, const char *url, size_t n,
                            const struct item_rules *rules, struct q_err *e)
{
    char path[PATH_MAX], real[PATH_MAX];
    enum q_code rc;
    if ((rc = path_of(path, url, n, e)) || (rc = item_path(real, rules, path, "url", e)))
        return rc;
    return read_whole(out, real, e);
}

static FALLIBLE of_url(struct image *out, const json_t *v, const struct item_rules *rules,
                       struct q_err *e)
{
    const char *url = json_string_value(v);
    const size_t n = json_string_length(v);
    if (!url)
        return q_fail(e, Q_INVALID, "url: expected a string, got %s", json_kind(v));
    if (!strncasecmp(url, "data:", 5))
        return of_data_url(out, url, n, e);
    if (!strncmp(url, "file:", 5))
        return of_file_url(out, url, n, rules, e);
    if (!strncasecmp(url, "http:", 5) || !strncasecmp(url, "https:", 6))
        return q_fail(e, Q_UNSUPPORTED,
                      "url: quire does not fetch URLs; send the image as a data: URL "
                      "(data:image/png;base64,…)%s",
                      rules->files ? ", or as file:///PATH" : "");
    return q_fail(e, Q_INVALID,
                  "url: \"%.*s%s\" is no URL of an image; accepted are data:image/png;base64,…%s",
                  SHOWN, url, n > SHOWN ? "…" : "",
                  rules->files ? " and file:///PATH"
                               : ", and file:///PATH on servers with --allowed-local-media-path");
}

FALLIBLE item_image_detail(const json_t *v, struct q_err *e)
{
    static const char *const words[] = {"auto", "low", "high", "original"};
    const char *word = json_string_value(v);
    for (size_t i = 0; word && i < COUNT(words); i++)
        if (!strcmp(word, words[i]))
            return Q_OK;
    if (!v || json_is_null(v))
        return Q_OK;
    return word ? q_fail(e, Q_INVALID,
                         "detail: \"%.40s\", expected \"auto\", \"low\", \"high\" or \"original\"",
                         word)
                : q_fail(e, Q_INVALID, "detail: expected a string, got %s", json_kind(v));
}

static FALLIBLE check_members(const json_t *v, const char *const *names, struct q_err *e)
{
    const char *key;
    json_t *member;
    json_object_foreach ((json_t *)(uintptr_t)v, key, member) {
        size_t i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i] && !json_is_null(member))
            return q_fail(e, Q_INVALID, "unexpected member \"%.64s\" of an image", key);
    }
    return Q_OK;
}

/* Anthropic's "source". */
static FALLIBLE of_source(struct image *out, const json_t *v, const struct item_rules *rules,
                          struct q_err *e)
{
    static const char *const base64[] = {"type", "media_type", "data", NULL};
    static const char *const url[] = {"type", "url", NULL};
    const json_t *type = json_object_get(v, "type"), *data = json_object_get(v, "data"),
                 *media = json_object_get(v, "media_type");
    const char *name = json_string_value(type);
    enum q_code rc;
    if (name && !strcmp(name, "url"))
        return (rc = check_members(v, url, e)) ? rc
                                               : of_url(out, json_object_get(v, "url"), rules, e);
    if (name && !strcmp(name, "file"))
        return q_fail(e, Q_UNSUPPORTED,
                      "file_id: files are not kept; send the image itself, with a source of type "
                      "\"base64\"");
    if (!name || strcmp(name, "base64") != 0)
        return q_fail(e, Q_INVALID, "type: expected \"base64\" or \"url\"");
    if ((rc = check_members(v, base64, e)))
        return rc;
    if (media && !json_is_null(media) && !json_is_string(media))
        return q_fail(e, Q_INVALID, "media_type: expected a string, got %s", json_kind(media));
    if (!json_is_string(data))
        return q_fail(e, Q_INVALID, "data: expected a string, got %s", json_kind(data));
    const struct item_text text = {"data", json_string_value(data), json_string_length(data)};
    return of_base64(out, &text, e);
}

bool item_image_is(const json_t *v)
{
    return json_is_string(v) || json_object_get(v, "url") || json_object_get(v, "type");
}

FALLIBLE item_image_read(struct image *out, const json_t *v, const struct item_rules *rules,
                         struct q_err *e)
{
    static const char *const members[] = {"url", "detail", NULL};
    enum q_code rc;
    if (json_is_string(v))
        return of_url(out, v, rules, e);
    if (json_object_get(v, "type"))
        return of_source(out, v, rules, e);
    if ((rc = check_members(v, members, e)) ||
        (rc = item_image_detail(json_object_get(v, "detail"), e)))
        return rc;
    return of_url(out, json_object_get(v, "url"), rules, e);
}
