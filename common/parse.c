/* SPDX-License-Identifier: Apache-2.0 */
#include "common/parse.h"
#include <ctype.h>
#include <stdbool.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum q_code parse_i64(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                      struct q_err *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    bool number = end != text && *end == '\0' && !isspace((unsigned char)*text) && errno == 0;
    if (!number || v < min || v > max)
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a whole number from %lld to %lld", what,
                      text, (long long)min, (long long)max);
    *out = v;
    return Q_OK;
}

enum q_code parse_count(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                        struct q_err *e)
{
    static const char units[] = "kmgtKMGT";
    char *end;
    double v = strtod(text, &end), factor = 1;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (!isdigit((unsigned char)*text) || !unit || end[1] ||
        strspn(text, "0123456789.") + 1 != strlen(text))
        return parse_i64(out, text, min, max, what, e);
    bool decimal = unit - units < 4;
    for (long i = 0; i <= (unit - units) % 4; i++)
        factor *= decimal ? 1000 : 1024;
    if (!decimal && v != floor(v))
        return q_fail(e, Q_INVALID,
                      "%s: \"%.60s\" combines a fraction with a power of 1024; did you mean "
                      "%.*s%c, with a power of 1000?",
                      what, text, (int)(end - text), text, tolower((unsigned char)*unit));
    v = floor(v * factor + 0.5);
    if (!(v >= (double)min && v <= (double)max && v < 9.2e18))
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a whole number from %lld to %lld", what,
                      text, (long long)min, (long long)max);
    *out = (int64_t)v;
    return Q_OK;
}

bool parse_exceeds_i64(const char *text, size_t n)
{
    static const char most[] = "9223372036854775807";
    const size_t n_most = sizeof most - 1;
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return n > n_most || (n == n_most && memcmp(text, most, n) > 0);
}

enum q_code parse_f64(double *out, const char *text, double min, double max, const char *what,
                      struct q_err *e)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || !isfinite(v) || v < min || v > max)
        return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a number from %g to %g", what, text, min,
                      max);
    *out = v;
    return Q_OK;
}

enum q_code parse_bytes(uint64_t *out, const char *text, const char *what, struct q_err *e)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    double factor = 1;
    if (end == text || !isfinite(v) || v < 0)
        goto bad;
    if (*end) {
        const char *unit = strchr(units, toupper((unsigned char)*end));
        bool binary = strcasecmp(end + 1, "iB") == 0 || end[1] == '\0';
        bool decimal =
            strcasecmp(end + 1, "B") == 0 || (end[1] == '\0' && islower((unsigned char)*end));
        if (strcasecmp(end, "B") != 0) {
            if (!unit || (!binary && !decimal))
                goto bad;
            for (long i = 0; i <= unit - units; i++)
                factor *= decimal ? 1000 : 1024;
        }
    }
    if (v * factor >= 9.2e18)
        goto bad;
    *out = (uint64_t)(v * factor);
    return Q_OK;
bad:
    return q_fail(e, Q_INVALID, "%s: \"%.60s\" is not a size such as 1073741824, 512M, 4GiB or 4GB",
                  what, text);
}
