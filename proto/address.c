/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/address.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static enum q_code parse_path(struct address *a, const char *text, const char *path,
                              struct q_err *e)
{
    size_t n = strlen(path);
    if (path[0] != '/')
        return q_fail(e, Q_INVALID, "address \"%s\": the path must be absolute, as in ipc:///run/q",
                      text);
    if (n > ADDRESS_PATH_MAX)
        return q_fail(e, Q_INVALID, "address: the socket's path has %zu bytes, at most %d: %.64s…",
                      n, ADDRESS_PATH_MAX, path);
    if (path[n - 1] == '/')
        return q_fail(e, Q_INVALID, "address \"%s\": is a folder, expected a file", text);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
            return q_fail(e, Q_INVALID, "address: the path has a control character at byte %zu", i);
    memcpy(a->path, path, n + 1);
    return Q_OK;
}

/* Digits only, 0 … 65535. */
static bool parse_port(uint16_t *out, const char *text)
{
    uint32_t port = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 5)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    if (port > UINT16_MAX)
        return false;
    *out = (uint16_t)port;
    return true;
}

/* Letters, digits, '-', '.', '_' for names and IPv4; hex digits, ':', '.' and a %zone for IPv6. */
static bool host_valid(const char *host, size_t n, bool bracketed)
{
    if (n == 0 || n > ADDRESS_HOST_MAX)
        return false;
    if (n == 1 && host[0] == '*')
        return !bracketed;
    const char *also = bracketed ? ":.%" : "-._";
    for (size_t i = 0; i < n; i++) {
        char c = host[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && (c == '\0' || !strchr(also, c)))
            return false;
    }
    return true;
}

static enum q_code parse_host_port(struct address *a, const char *text, const char *rest,
                                   struct q_err *e)
{
    const char *colon = strrchr(rest, ':');
    if (!colon || !parse_port(&a->port, colon + 1))
        return q_fail(e, Q_INVALID,
                      "address \"%.128s\": expected tcp://host:port with a port from 0 to 65535",
                      text);
    const char *host = rest;
    size_t n = (size_t)(colon - rest);
    bool bracketed = n >= 2 && host[0] == '[' && host[n - 1] == ']';
    if (bracketed) {
        host++;
        n -= 2;
    }
    if (!host_valid(host, n, bracketed))
        return q_fail(e, Q_INVALID,
                      "address \"%.128s\": the host must be a name, an IPv4 address, [an IPv6 "
                      "address] or *",
                      text);
    memcpy(a->host, host, n);
    a->host[n] = '\0';
    return Q_OK;
}

enum q_code address_parse(struct address *out, const char *text, struct q_err *e)
{
    struct address a = {0};
    enum q_code rc;
    if (strncmp(text, "ipc://", 6) == 0) {
        a.kind = ADDRESS_IPC;
        rc = parse_path(&a, text, text + 6, e);
    } else if (strncmp(text, "tcp://", 6) == 0) {
        a.kind = ADDRESS_TCP;
        rc = parse_host_port(&a, text, text + 6, e);
    } else {
        rc = q_fail(e, Q_INVALID,
                    "address \"%.128s\": expected ipc:///path/to/socket or tcp://host:port", text);
    }
    if (!rc)
        *out = a;
    return rc;
}

void address_print(const struct address *a, char out[ADDRESS_TEXT_MAX])
{
    if (a->kind == ADDRESS_IPC)
        snprintf(out, ADDRESS_TEXT_MAX, "ipc://%s", a->path);
    else if (strchr(a->host, ':'))
        snprintf(out, ADDRESS_TEXT_MAX, "tcp://[%s]:%u", a->host, a->port);
    else
        snprintf(out, ADDRESS_TEXT_MAX, "tcp://%s:%u", a->host, a->port);
}
