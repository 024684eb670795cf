/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of bench.h that read numbers from options and draw random ones; workloads need only
 * these. */
#include <string.h>
#include "common/parse.h"
#include "engine/bench/bench.h"

enum q_code bench_list_parse(struct bench_list *out, const char *text, uint32_t max,
                             const char *flag, struct q_err *e)
{
    out->n = 0;
    for (const char *at = text;; at++) {
        char one[24];
        size_t n = strcspn(at, ",");
        int64_t value = 0;
        if (out->n == BENCH_LIST_MAX)
            return q_fail(e, Q_INVALID, "%s: more than %d numbers", flag, BENCH_LIST_MAX);
        snprintf(one, sizeof one, "%.*s", (int)(n < sizeof one ? n : sizeof one), at);
        enum q_code rc = parse_i64(&value, one, 1, max, flag, e);
        if (rc)
            return rc;
        out->x[out->n++] = (uint32_t)value;
        at += n;
        if (!*at)
            return Q_OK;
    }
}

enum q_code bench_one(uint32_t *out, const char *text, uint32_t otherwise, const char *flag,
                      struct q_err *e)
{
    int64_t value = otherwise;
    enum q_code rc = *text ? parse_i64(&value, text, 1, 1 << 24, flag, e) : Q_OK;
    *out = (uint32_t)value;
    return rc;
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64; its three constants */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double bench_uniform(uint64_t *state)
{
    return (double)(bench_random(state) >> 11) * 0x1p-53;
}
