/* SPDX-License-Identifier: Apache-2.0 */
/* The array of a slot holds doubles: one for a counter or gauge; bounds + 1 counts and the sum for
 * a histogram. Doubles count exactly up to 2^53. A slot's writer is one thread, so plain loads and
 * stores of aligned 8-byte values suffice; they are relaxed atomics because other processes read
 * them. */
#include "common/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum kind { KIND_COUNTER, KIND_TOTAL, KIND_GAUGE, KIND_HISTOGRAM };
enum sum_rule { RULE_SUM, RULE_ONE, RULE_OWN };

struct bounds {
    uint32_t n;
    double at[METRIC_BUCKETS_MAX];
};

/* Latencies start at 0.5 ms: on a fast accelerator a token takes 2 to 8 ms, which vLLM's first
 * bucket of 10 ms does not resolve. vLLM's larger bounds are kept, so that existing dashboards
 * work. */
static const struct bounds bounds_LATENCY = {
    29, {0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.025, 0.04,
         0.05,   0.06,  0.075, 0.1,   0.15,  0.2,    0.25, 0.3,  0.5,   0.75,
         1,      2.5,   5,     10,    20,    40,     80,   160,  640}};
static const struct bounds bounds_POWERS = {
    15, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};
static const struct bounds bounds_COUNTS = {18,
                                            {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000,
                                             10000, 20000, 50000, 100000, 200000, 500000}};
static const struct bounds bounds_SMALL = {5, {1, 2, 5, 10, 20}};

struct row {
    const char *name, *labels, *help;
    enum kind kind;
    enum sum_rule rule;
    const struct bounds *bounds; /* histograms only */
};

static const struct row rows[METRIC_COUNT] = {
#define COUNTER(id, name, labels, help)    {name, labels, help, KIND_COUNTER, RULE_SUM, NULL},
#define TOTAL(id, name, labels, help)      {name, labels, help, KIND_TOTAL, RULE_OWN, NULL},
#define GAUGE(id, name, labels, sum, help) {name, labels, help, KIND_GAUGE, RULE_##sum, NULL},
#define HISTOGRAM(id, name, buckets, help)                  \
    {name,                                                  \
     "",                                                    \
     help,                                                  \
     KIND_HISTOGRAM,                                        \
     METRIC_##id == METRIC_ITERATION ? RULE_OWN : RULE_SUM, \
     &bounds_##buckets},
#include "common/metrics.def"
};

#define SLOT_VALUES (METRIC_COUNT * (METRIC_BUCKETS_MAX + 2))

typedef _Atomic double cell;
static cell own_slot[SLOT_VALUES];
static cell *slots = own_slot; /* [n_slots][SLOT_VALUES] */
static cell *mine = own_slot;
static uint32_t n_slots = 1;

/* Index of a metric's first value within a slot. The stride is fixed: simple, at the cost of a few
 * kilobytes. */
static cell *at(cell *slot, enum metric m)
{
    return slot + (size_t)m * (METRIC_BUCKETS_MAX + 2);
}

static double get(const cell *c)
{
    return atomic_load_explicit((cell *)c, memory_order_relaxed);
}

static void put_value(cell *c, double v)
{
    atomic_store_explicit(c, v, memory_order_relaxed);
}

uint64_t metrics_bytes(uint32_t n_slot)
{
    return (uint64_t)n_slot * SLOT_VALUES * sizeof(cell);
}

FALLIBLE metrics_share(int fd, uint32_t slot, uint32_t n_slot, struct q_err *e)
{
    if (n_slot == 0 || n_slot > METRICS_SLOTS_MAX || slot >= n_slot)
        return q_fail(e, Q_INVALID, "metrics: slot %u of %u, expected below %d", slot, n_slot,
                      METRICS_SLOTS_MAX);
    void *p = mmap(NULL, metrics_bytes(n_slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return q_fail(e, Q_IO, "metrics: mmap of the shared table: %s", strerror(errno));
    slots = p;
    n_slots = n_slot;
    mine = slots + (size_t)slot * SLOT_VALUES;
    /* The counters of a restarted process continue at the values of its predecessor; its gauges
     * start at 0. */
    for (int m = 0; m < METRIC_COUNT; m++)
        if (rows[m].kind == KIND_GAUGE)
            put_value(at(mine, (enum metric)m), 0);
    return Q_OK;
}

void metric_add(enum metric m, double value)
{
    cell *c = at(mine, m);
    put_value(c, get(c) + value);
}

void metric_set(enum metric m, double value)
{
    put_value(at(mine, m), value);
}

void metric_observe(enum metric m, double value)
{
    const struct bounds *b = rows[m].bounds;
    cell *c = at(mine, m);
    uint32_t i = 0;
    while (i < b->n && !(value <= b->at[i]))
        i++;
    put_value(c + i, get(c + i) + 1);
    put_value(c + b->n + 1, get(c + b->n + 1) + value);
}

void metric_set_buckets(enum metric m, const uint64_t *counts, uint32_t n, double sum)
{
    const struct bounds *b = rows[m].bounds;
    cell *c = at(mine, m);
    if (n != b->n + 1)
        return;
    for (uint32_t i = 0; i < n; i++)
        put_value(c + i, (double)counts[i]);
    put_value(c + n, sum);
}

double metric_value(enum metric m)
{
    const cell *c = at(mine, m);
    if (rows[m].kind != KIND_HISTOGRAM)
        return get(c);
    double n = 0;
    for (uint32_t i = 0; i <= rows[m].bounds->n; i++)
        n += get(c + i);
    return n;
}

/* The value over all slots, combined by the row's rule. */
static double joined(enum metric m, uint32_t i_value)
{
    double v = 0;
    if (rows[m].rule == RULE_OWN)
        return get(at(mine, m) + i_value);
    for (uint32_t s = 0; s < n_slots; s++) {
        double x = get(at(slots + (size_t)s * SLOT_VALUES, m) + i_value);
        v = rows[m].rule == RULE_SUM ? v + x : fmax(v, x);
    }
    return v;
}

static void add_number(struct buf *out, double v)
{
    if (v == floor(v) && fabs(v) < 9e15)
        buf_printf(out, "%.0f\n", v);
    else
        buf_printf(out, "%.9g\n", v);
}

/* A label's value: backslash, quote and newline are escaped. */
static void add_label_value(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            buf_add_char(out, '\\');
        if (*s == '\n')
            buf_add_str(out, "\\n");
        else
            buf_add_char(out, *s);
    }
}

static void render_sample(struct buf *out, const char *name, const char *labels, const char *suffix)
{
    buf_printf(out, "%s%s{%s", name, suffix, labels);
}

static void render_histogram(struct buf *out, enum metric m, const char *labels)
{
    const struct bounds *b = rows[m].bounds;
    double n = 0;
    for (uint32_t i = 0; i <= b->n; i++) {
        n += joined(m, i);
        render_sample(out, rows[m].name, labels, "_bucket");
        if (i < b->n)
            buf_printf(out, ",le=\"%.9g\"} ", b->at[i]);
        else
            buf_add_str(out, ",le=\"+Inf\"} ");
        add_number(out, n);
    }
    render_sample(out, rows[m].name, labels, "_sum");
    buf_add_str(out, "} ");
    add_number(out, joined(m, b->n + 1));
    render_sample(out, rows[m].name, labels, "_count");
    buf_add_str(out, "} ");
    add_number(out, n);
}

static void own_labels(struct buf *out, const char *model)
{
    buf_add_str(out, "engine=\"0\",model_name=\"");
    add_label_value(out, model);
    buf_add_char(out, '"');
}

void metrics_render_info(struct buf *out, const char *model, const char *name, const char *help,
                         const char *labels)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s{", name, help, name, name);
    own_labels(out, model);
    buf_printf(out, ",%s} 1\n", labels);
}

void metrics_render(struct buf *out, const char *model)
{
    static const char *const types[] = {"counter", "counter", "gauge", "histogram"};
    struct buf labels = BUF_INIT;
    own_labels(&labels, model);
    for (int i = 0; i < METRIC_COUNT; i++) {
        const struct row *r = &rows[i];
        bool first = i == 0 || strcmp(rows[i - 1].name, r->name) != 0;
        if (first)
            buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", r->name, r->help, r->name,
                       types[r->kind]);
        if (r->kind == KIND_HISTOGRAM) {
            render_histogram(out, (enum metric)i, buf_str(&labels));
            continue;
        }
        render_sample(out, r->name, buf_str(&labels), "");
        buf_printf(out, "%s%s} ", *r->labels ? "," : "", r->labels);
        add_number(out, joined((enum metric)i, 0));
    }
    buf_release(&labels);
}
