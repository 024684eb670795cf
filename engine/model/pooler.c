/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/pooler.h"
#include <math.h>
#include <string.h>
#include "engine/model/pooler_internal.h"

#define LANES 16u

static float dot(const float *a, const float *b, uint32_t n)
{
    float lane[LANES] = {0};
    uint32_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (uint32_t l = 0; l < LANES; l++)
            lane[l] += a[k + l] * b[k + l];
    for (; k < n; k++)
        lane[k % LANES] += a[k] * b[k];
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static float act_one(enum pooling_act act, float x)
{
    switch (act) {
    case POOLING_ACT_TANH:
        return tanhf(x);
    case POOLING_ACT_RELU:
        return x > 0 ? x : 0;
    case POOLING_ACT_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f)); /* 1 / sqrt(2) */
    case POOLING_ACT_SIGMOID:
        return 1 / (1 + expf(-x));
    default:
        return x;
    }
}

/* Of length 1; a vector of zeros stays. */
static void normalize(float *y, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)y[i] * y[i];
    const float scale = sum > 0 ? (float)(1 / sqrt(sum)) : 1;
    for (uint32_t i = 0; i < n; i++)
        y[i] *= scale;
}

static void softmax(float *y, uint32_t n)
{
    float max = y[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = y[i] > max ? y[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += y[i] = expf(y[i] - max);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)(y[i] / sum);
}

static void act(enum pooling_act kind, float *y, uint32_t n)
{
    if (kind == POOLING_ACT_NORMALIZE)
        normalize(y, n);
    else if (kind == POOLING_ACT_SOFTMAX)
        softmax(y, n);
    else
        for (uint32_t i = 0; i < n; i++)
            y[i] = act_one(kind, y[i]);
}

static void layer_norm(float *y, const float *weight, uint32_t n, float eps)
{
    double mean = 0, square = 0;
    for (uint32_t i = 0; i < n; i++)
        mean += y[i];
    mean /= n;
    for (uint32_t i = 0; i < n; i++)
        square += (y[i] - mean) * (y[i] - mean);
    const double scale = 1 / sqrt(square / n + (double)eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)((y[i] - mean) * scale) * weight[i];
}

static void run_layer(const struct pooler *p, const struct pooler_layer *l, const float *x,
                      float *y)
{
    for (uint32_t i = 0; i < l->n_out; i++)
        y[i] = dot(l->weight + (size_t)i * l->n_in, x, l->n_in) + (l->bias ? l->bias[i] : 0);
    act(l->act, y, l->n_out);
    if (l->norm)
        layer_norm(y, l->norm, l->n_out, p->eps);
}

bool pooler_run(const struct pooler *p, const float *x, struct pooler_ask ask, float *scratch,
                float *y)
{
    const uint32_t n = ask.n ? ask.n : p->n_out;
    float *next[2] = {scratch, scratch + p->width};
    bool is_finite = true;
    for (uint32_t i = 0; i < p->n_layer; i++) {
        run_layer(p, &p->layers[i], x, next[i % 2]);
        x = next[i % 2];
    }
    memcpy(y, x, n * sizeof *y);
    if (!ask.is_raw)
        act(p->act, y, n);
    for (uint32_t i = 0; i < n; i++)
        is_finite = is_finite && isfinite(y[i]);
    return is_finite;
}

uint32_t pooler_n_out(const struct pooler *p)
{
    return p->n_out;
}

uint32_t pooler_n_scratch(const struct pooler *p)
{
    return 2 * p->width;
}
