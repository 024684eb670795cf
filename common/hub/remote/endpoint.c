/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/endpoint.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/file.h"
#include "common/hub/cache.h"
#include "common/parse.h"

#define DEFAULT_URL     "https://huggingface.co"
#define CONNECT_TIMEOUT "10" /* s, as in huggingface_hub */
#define STALL_TIMEOUT   "30" /* s without a byte */

static enum q_code read_url(struct endpoint *p, struct q_err *e)
{
    const char *url = getenv("HF_ENDPOINT");
    if (!url || !*url)
        url = DEFAULT_URL;
    size_t n = strlen(url);
    while (n && url[n - 1] == '/')
        n--;
    bool plain = n <= ENDPOINT_URL_MAX;
    for (size_t i = 0; i < n; i++)
        plain = plain && url[i] > ' ' && url[i] < 0x7f && !strchr("?#@\"<>\\", url[i]);
    const char *host =
        strncmp(url, "https://", 8) ? strncmp(url, "http://", 7) ? NULL : url + 7 : url + 8;
    if (!plain || !host || host >= url + n)
        return q_fail(e, Q_INVALID,
                      "HF_ENDPOINT is \"%.200s\", expected a URL such as https://huggingface.co",
                      url);
    snprintf(p->url, sizeof p->url, "%.*s", (int)n, url);
    return Q_OK;
}

/* Characters of a header value; blanks and newlines around it are removed. */
static enum q_code set_token(struct endpoint *p, const char *text, const char *source,
                             struct q_err *e)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    bool plain = n <= TOKEN_MAX;
    for (size_t i = 0; i < n; i++)
        plain = plain && text[i] > ' ' && text[i] < 0x7f;
    if (!plain)
        return q_fail(e, Q_INVALID, "%s: not a token (hf_…)", source);
    snprintf(p->token, sizeof p->token, "%.*s", (int)n, text);
    snprintf(p->token_source, sizeof p->token_source, "%s", source);
    if (n)
        snprintf(p->authorization, sizeof p->authorization, "Authorization: Bearer %s", p->token);
    return Q_OK;
}

static enum q_code read_token_file(struct endpoint *p, struct q_err *e)
{
    char home[PATH_MAX], path[PATH_MAX];
    struct buf text = BUF_INIT;
    const char *given = getenv("HF_TOKEN_PATH");
    enum q_code rc = Q_OK;
    if (given && *given)
        rc = cache_expand(path, "HF_TOKEN_PATH", given, e);
    else if (cache_home(home, NULL) || path_join(path, sizeof path, home, "token", NULL))
        return Q_OK;
    if (rc || !file_exists(path))
        return rc;
    if (!(rc = file_read(&text, path, TOKEN_MAX, e)))
        rc = set_token(p, buf_str(&text), path, e);
    buf_release(&text);
    return rc;
}

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0 &&
           strcasecmp(value, "no") != 0 && strcasecmp(value, "off") != 0;
}

static enum q_code read_token(struct endpoint *p, struct q_err *e)
{
    static const char *const variables[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return Q_OK;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            return set_token(p, value, variables[i], e);
    }
    return read_token_file(p, e);
}

static enum q_code seconds(long *out, const char *variable, const char *otherwise, struct q_err *e)
{
    int64_t s = 0;
    const char *value = getenv(variable);
    enum q_code rc = parse_i64(&s, value && *value ? value : otherwise, 1, 86400, variable, e);
    *out = (long)s;
    return rc;
}

enum q_code endpoint_init(struct endpoint *p, struct q_err *e)
{
    static const char *const ca[] = {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    enum q_code rc;
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < sizeof ca / sizeof *ca && !*p->ca_file; i++) {
        const char *value = getenv(ca[i]);
        if (value)
            snprintf(p->ca_file, sizeof p->ca_file, "%s", value);
    }
    if ((rc = seconds(&p->connect_timeout_s, "HF_HUB_ETAG_TIMEOUT", CONNECT_TIMEOUT, e)) ||
        (rc = seconds(&p->stall_timeout_s, "HF_HUB_DOWNLOAD_TIMEOUT", STALL_TIMEOUT, e)) ||
        (rc = read_url(p, e)))
        return rc;
    return read_token(p, e);
}

/* Scheme and authority of a URL; the port that the scheme implies is left out. */
static size_t origin_of(const char *url)
{
    const char *colons = strstr(url, "://");
    if (!colons)
        return 0;
    const size_t n = (size_t)(colons - url) + 3;
    const size_t end = n + strcspn(url + n, "/?#\\");
    const struct {
        const char *scheme, *port;
    } implied[] = {{"https://", ":443"}, {"http://", ":80"}};
    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++) {
        const size_t n_port = strlen(implied[i].port);
        if (!strncasecmp(url, implied[i].scheme, strlen(implied[i].scheme)) && end > n_port &&
            !strncmp(url + end - n_port, implied[i].port, n_port))
            return end - n_port;
    }
    return end;
}

bool endpoint_has(const struct endpoint *p, const char *url)
{
    const size_t n = origin_of(p->url);
    return n && n == origin_of(url) && !strncasecmp(p->url, url, n);
}

void endpoint_escape(struct buf *url, const char *text, bool keep_slashes)
{
    for (; *text; text++) {
        if (isalnum((unsigned char)*text) || strchr("-_.~", *text) ||
            (keep_slashes && *text == '/'))
            buf_add_char(url, *text);
        else
            buf_printf(url, "%%%02X", (unsigned)(unsigned char)*text);
    }
}
