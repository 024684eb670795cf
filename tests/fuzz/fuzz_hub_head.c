/* SPDX-License-Identifier: Apache-2.0 */
/* Header lines of a hub's answer, of arbitrary bytes: values that are safe as paths, and the error
 * that is made of them. */
#include "common/check.h"
#include "common/hub/remote/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct endpoint endpoint = {.url = "https://hub.example"};
    const char *at = (const char *)data, *end = at + n;
    struct q_err e = Q_ERR_INIT;
    struct head h;
    head_init(&h);
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        head_line(&h, at, (size_t)(stop - at), 1000000);
        at = newline ? newline + 1 : end;
    }
    Q_ASSERT(!*h.etag || (cache_is_hash(h.etag) && !strchr(h.etag, '/') && h.etag[0] != '.'));
    Q_ASSERT(!*h.commit || cache_is_hash(h.commit));
    Q_ASSERT(h.status <= 999 && strlen(h.location) <= HEAD_URL_MAX);
    Q_ASSERT(h.size == HEAD_NONE || h.size < (uint64_t)1 << 54);
    Q_ASSERT(!*h.location || !endpoint_has(&endpoint, h.location) ||
             !strncasecmp(h.location, "https://hub.example", 19));
    const struct fault_at list = {&endpoint, "org/name", "main", NULL, NULL};
    const struct fault_at file = {&endpoint, "org/name", "main", "config.json",
                                  "https://store.example/x?signature=y"};
    const enum q_code first = fault(&list, &h, &e);
    Q_ASSERT(first != Q_OK && first == e.code);
    q_err_reset(&e);
    const enum q_code second = fault(&file, &h, &e);
    Q_ASSERT(second != Q_OK && second == e.code);
    return 0;
}
