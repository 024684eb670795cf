/* SPDX-License-Identifier: Apache-2.0 */
/* Traces and custom prompts: any bytes. What is read gives prompts of the lengths it says. */
#include <stdlib.h>
#include "engine/bench/trace.h"

#define TOKENS_MAX 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void make_prompts(const struct workload *w)
{
    static uint32_t ids[TOKENS_MAX];
    for (size_t i = 0; i < w->n && i < 8; i++) {
        uint32_t n = workload_input_len(w, i);
        if (!w->items[i].text && n <= TOKENS_MAX)
            workload_ids(w, i, 100, ids);
        for (uint32_t k = 0; !w->items[i].text && k < n && n <= TOKENS_MAX; k++)
            if (ids[k] >= 100)
                abort();
        if (w->timed && w->items[i].at_s < 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int custom = 0; custom < 2; custom++) {
        struct workload w = WORKLOAD_INIT;
        struct q_err e = Q_ERR_INIT;
        enum q_code rc = custom ? workload_custom(&w, (const char *)data, size, 5, &e)
                                : trace_parse(&w, (const char *)data, size, &e);
        if ((rc != Q_OK) != (e.code != Q_OK))
            abort();
        make_prompts(&w);
        workload_release(&w);
    }
    return 0;
}
