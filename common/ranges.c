/* SPDX-License-Identifier: Apache-2.0 */
#include "common/ranges.h"
#include "common/mem.h"

enum q_code ranges_add(struct ranges *r, size_t start, size_t end, struct q_err *e)
{
    enum q_code rc;
    if (start >= end)
        return Q_OK;
    if (r->n && r->at[r->n - 1].end == start) {
        r->at[r->n - 1].end = end;
        return Q_OK;
    }
    Q_ASSERT(!r->n || r->at[r->n - 1].end < start);
    if (r->n == r->cap && (rc = q_grow(&r->at, &r->cap, r->n + 1, sizeof *r->at, RANGES_MAX, e)))
        return rc;
    r->at[r->n++] = (struct byte_range){start, end};
    return Q_OK;
}

void ranges_cut(struct ranges *r, size_t end)
{
    while (r->n && r->at[r->n - 1].start >= end)
        r->n--;
    if (r->n && r->at[r->n - 1].end > end)
        r->at[r->n - 1].end = end;
}

size_t ranges_find(const struct ranges *r, size_t at)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->at[mid].end > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

bool ranges_meet(const struct ranges *r, size_t start, size_t end)
{
    size_t i = ranges_find(r, start);
    return start < end && i < r->n && r->at[i].start < end;
}

void ranges_release(struct ranges *r)
{
    q_free(r->at);
    *r = (struct ranges)RANGES_INIT;
}
