/* SPDX-License-Identifier: Apache-2.0 */
/* A server's answer of arbitrary bytes: an error, or rows with ascending ids and finite
 * log-probabilities. The first byte says which rows are asked for, and how many tokens of each. */
#include <math.h>
#include <string.h>
#include "engine/distill/teacher_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const uint32_t tokens[] = {1, 2, 3, 4};
    uint32_t ids[4 * 4];
    float logprobs[4 * 4];
    char text[100];
    struct q_err e = Q_ERR_INIT;
    if (n == 0)
        return 0;
    struct teacher_question q = {
        .model = "m",
        .ids = tokens,
        .n = 4,
        .top_k = 1 + data[0] / 16 % 4,
    };
    int32_t labels[4];
    for (uint32_t i = 0; i < 4; i++) {
        labels[i] = data[0] >> i & 1 && i < 3 ? 1 : -1;
        q.n_counted += labels[i] >= 0;
    }
    q.labels = labels;
    const char *body = (const char *)data + 1;
    if (!teacher_answer_read(body, n - 1, &q, ids, logprobs, &e))
        for (uint32_t i = 0; i < q.n_counted * q.top_k; i++) {
            Q_ASSERT(isfinite(logprobs[i]) && logprobs[i] <= 0);
            Q_ASSERT(i % q.top_k == 0 || ids[i] > ids[i - 1]);
        }
    teacher_answer_error(text, sizeof text, body, n - 1);
    Q_ASSERT(strlen(text) < sizeof text);
    q_err_reset(&e);
    Q_ASSERT(!teacher_answer_model(text, sizeof text, body, n - 1, &e) || e.code);
    return 0;
}
