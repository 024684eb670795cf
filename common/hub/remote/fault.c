/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/fault.h"
#include <stdio.h>
#include <string.h>
#include "common/printable.h"

enum {
    LIST = 1, /* the request for the list of files */
    FILE_ = 2,
    WITHOUT = 4, /* a request without a token */
    WITH = 8,
    ELSEWHERE = 16, /* the answer of another host than the endpoint's: storage */
};

/* The first row that fits counts. status 0: any; code NULL: any. In the texts: %i id, %r revision,
 * %f file, %h host that answered, %e endpoint, %t source of the token, %m the server's words. */
static const struct row {
    unsigned status;
    const char *error_code;
    unsigned when; /* all bits of a kind: either */
    enum q_code code;
    const char *text;
} rows[] = {
    // clang-format off
    {0, NULL, ELSEWHERE, Q_UNAVAILABLE, "%f: %h, where the hub has it stored, answers with HTTP status %s; run the download again later, it goes on where it ended%m"},
    {0, "GatedRepo", WITHOUT, Q_UNAUTHORIZED, "%i is gated: accept its licence at %e/%i, make a token at %e/settings/tokens and set HF_TOKEN (or the token file of `hf auth login`)%m"},
    {0, "GatedRepo", WITH, Q_FORBIDDEN, "%i is gated, and the account of the token in %t has no access: accept its licence at %e/%i, or wait until the authors allow it%m"},
    {0, "RevisionNotFound", 0, Q_NOT_FOUND, "%i has no revision \"%r\" (branch, tag or commit); %e/%i/refs lists them"},
    {0, "EntryNotFound", 0, Q_NOT_FOUND, "%i has no file %f at revision \"%r\""},
    {0, "DisabledRepo", 0, Q_FORBIDDEN, "%i is disabled on the hub%m"},
    {401, NULL, WITH, Q_UNAUTHORIZED, "the hub does not accept the token in %t for %i: it is wrong or expired, or the model does not exist; make a token at %e/settings/tokens%m"},
    {401, NULL, WITHOUT, Q_UNAUTHORIZED, "%i does not exist on %e, or it is private or gated: check the id (org/name); for a private or gated model set HF_TOKEN and accept its licence at %e/%i%m"},
    {403, NULL, WITH, Q_FORBIDDEN, "the token in %t does not give access to %i: accept the licence at %e/%i, or use a token with read access to it%m"},
    {403, NULL, WITHOUT, Q_FORBIDDEN, "%e does not give access to %i without a token: accept the licence at %e/%i and set HF_TOKEN%m"},
    {0, "RepoNotFound", 0, Q_NOT_FOUND, "%i does not exist on %e, or it is private: check the id (org/name); for a private model set HF_TOKEN%m"},
    {404, NULL, FILE_, Q_NOT_FOUND, "%i has no file %f at revision \"%r\""},
    {404, NULL, LIST, Q_NOT_FOUND, "%e has no model %i, or it has no revision \"%r\"; a private model needs HF_TOKEN%m"},
    {429, NULL, WITHOUT, Q_UNAVAILABLE, "%e limits the rate of requests%w; with a token (HF_TOKEN) the limit is higher%m"},
    {429, NULL, WITH, Q_UNAVAILABLE, "%e limits the rate of requests%w; run the download again later%m"},
    {0, NULL, 0, Q_UNAVAILABLE, "%e answers with HTTP status %s for %i; run the download again later, it goes on where it ended%m"},
    // clang-format on
};

static bool fits(const struct row *row, const struct fault_at *at, const struct head *h)
{
    const unsigned kind = at->file ? FILE_ : LIST;
    const bool elsewhere = at->url && !endpoint_has(at->endpoint, at->url);
    const unsigned token = *at->endpoint->authorization ? WITH : WITHOUT;
    return (!row->status || row->status == h->status) &&
           (!row->error_code || !strcmp(row->error_code, h->error_code)) &&
           (!(row->when & (LIST | FILE_)) || (row->when & kind)) &&
           (!(row->when & (WITH | WITHOUT)) || (row->when & token)) &&
           (!(row->when & ELSEWHERE) || elsewhere);
}

static void add_words(struct buf *out, const char *words)
{
    if (!*words)
        return;
    buf_add_str(out, " (the hub says: ");
    printable_line(words, strlen(words), out);
    buf_add_char(out, ')');
}

static void add_wait(struct buf *out, uint64_t seconds)
{
    if (seconds != HEAD_NONE)
        buf_printf(out, " for %llu s", (unsigned long long)seconds);
}

/* Scheme and host; what is behind them may be signed. */
static void add_host(struct buf *out, const char *url)
{
    const char *colons = url ? strstr(url, "://") : NULL;
    if (colons)
        buf_add(out, url, (size_t)(colons - url) + 3 + strcspn(colons + 3, "/?#\\"));
}

static void add_value(struct buf *out, char letter, const struct fault_at *at, const struct head *h)
{
    switch (letter) {
    case 'i':
        buf_add_str(out, at->id);
        break;
    case 'r':
        buf_add_str(out, at->revision);
        break;
    case 'f':
        buf_add_str(out, at->file ? at->file : "");
        break;
    case 'h':
        add_host(out, at->url);
        break;
    case 'e':
        buf_add_str(out, at->endpoint->url);
        break;
    case 't':
        buf_add_str(out, at->endpoint->token_source);
        break;
    case 's':
        buf_printf(out, "%u", h->status);
        break;
    case 'w':
        add_wait(out, h->retry_after_s);
        break;
    case 'm':
        add_words(out, h->message);
        break;
    }
}

enum q_code fault(const struct fault_at *at, const struct head *h, struct q_err *e)
{
    struct buf text = BUF_INIT;
    size_t i = 0;
    while (!fits(&rows[i], at, h))
        i++; /* the last row fits */
    for (const char *p = rows[i].text; *p; p++) {
        if (*p == '%')
            add_value(&text, *++p, at, h);
        else
            buf_add_char(&text, *p);
    }
    enum q_code rc = q_fail(e, rows[i].code, "%s", buf_str(&text));
    buf_release(&text);
    return rc;
}
