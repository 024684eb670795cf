/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/dataset.h"
#include <string.h>
#include "common/mem.h"
#include "engine/bench/trace.h"

#define INPUT_DEFAULT   512
#define OUTPUT_DEFAULT  128
#define PROMPTS_DEFAULT 100

static uint32_t around(uint32_t length, double ratio, uint64_t *random)
{
    double low = length * (1 - ratio), high = length * (1 + ratio);
    uint32_t n = (uint32_t)(low + bench_uniform(random) * (high - low) + 0.5);
    return n ? n : 1;
}

static FALLIBLE add_random(struct workload *w, const struct options *o, struct q_err *e)
{
    uint32_t input, output;
    uint64_t random = w->seed;
    size_t n = o->num_prompts ? (size_t)o->num_prompts : PROMPTS_DEFAULT;
    enum q_code rc;
    if ((rc = bench_one(&input, o->input_lens, INPUT_DEFAULT, "--input-len", e)) ||
        (rc = bench_one(&output, o->output_lens, OUTPUT_DEFAULT, "--output-len", e)))
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        const struct work item = {
            .input_len = around(input, o->random_range_ratio, &random),
            .output_len = around(output, o->random_range_ratio, &random),
        };
        rc = workload_add(w, &item, e);
    }
    return rc;
}

enum q_code dataset_open(struct workload *w, const struct options *o, struct q_err *e)
{
    const char *name = *o->dataset_name ? o->dataset_name : *o->dataset_path ? "trace" : "random";
    struct buf data = BUF_INIT_MAX((size_t)4 << 30);
    uint32_t output;
    enum q_code rc;
    w->seed = (uint64_t)o->bench_seed;
    w->prefix_len = (uint32_t)o->random_prefix_len;
    if (!strcmp(name, "random"))
        return *o->dataset_path
                   ? q_fail(e, Q_INVALID,
                            "--dataset-path is not accepted with --dataset-name random")
                   : add_random(w, o, e);
    if (strcmp(name, "trace") != 0 && strcmp(name, "custom") != 0)
        return q_fail(e, Q_INVALID, "--dataset-name is \"%.40s\", expected random, trace or custom",
                      name);
    if (!*o->dataset_path)
        return q_fail(e, Q_INVALID, "--dataset-name %s requires --dataset-path", name);
    if ((rc = bench_one(&output, o->output_lens, OUTPUT_DEFAULT, "--output-len", e)) ||
        (rc = trace_read(&data, o->dataset_path, e)))
        goto out;
    rc = !strcmp(name, "trace") ? trace_parse(w, data.data, data.len, e)
                                : workload_custom(w, data.data, data.len, output, e);
    if (!rc && !w->n)
        rc = q_fail(e, Q_CORRUPT, "the file contains no requests");
    if (rc)
        rc = q_wrap(e, "%.120s", o->dataset_path);
    if (o->num_prompts)
        workload_cut(w, (size_t)o->num_prompts);
out:
    buf_release(&data);
    return rc;
}
