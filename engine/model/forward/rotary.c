/* SPDX-License-Identifier: Apache-2.0 */
/* inv_freq[j] = theta^(-2j/d), d = the elements of a head that are rotated; angle = position *
 * inv_freq in f32 as the models were trained; then
 *   linear    inv_freq / factor
 *   dynamic   theta' = theta * (factor * L / M - (factor - 1))^(d / (d - 2)), L = max(prompt
 *             length, M)
 *   llama3    wavelength w = 2 pi / inv_freq against bands of the original length O:
 *             w > O / low: inv_freq / factor;  w < O / high: as it is; between: the two mixed by
 *             s = (O / w - low) / (high - low), unless low = high
 *   yarn      inv_freq and inv_freq / factor mixed by a ramp over j between the dimensions that
 *             turn beta_fast and beta_slow times within O tokens; cos and sin scaled by
 *             0.1 mscale ln(factor) + 1
 *   proportional  inv_freq / factor of the first pairs, 0 of the others, which are not rotated
 *   longrope  inv_freq[j] / short_factor[j] for prompts up to the original length O, else
 *             / long_factor[j]; cos and sin scaled by sqrt(1 + ln(factor) / ln(O))
 * Sources: arXiv:2104.09864, arXiv:2306.15595 (linear), arXiv:2309.00071 (yarn and dynamic),
 * arXiv:2402.13753 (longrope), Llama 3.1 model card. */
#include "engine/model/forward/rotary.h"
#include <math.h>

static void plain(float *inv_freq, uint32_t n_pair, double theta)
{
    for (uint32_t j = 0; j < n_pair; j++)
        inv_freq[j] = (float)(1.0 / pow(theta, (double)j / n_pair));
}

static void llama3(struct rotary *r)
{
    const struct rope_config *c = &r->config;
    double low = c->low_freq_factor, high = c->high_freq_factor,
           original = c->original_max_position;
    for (uint32_t j = 0; j < r->n_pair; j++) {
        double f = r->inv_freq[j];
        double wavelength = 2 * M_PI / f;
        if (wavelength > original / low) {
            f /= c->factor;
        } else if (wavelength >= original / high && low < high) {
            double s = (original / wavelength - low) / (high - low);
            f = (1 - s) * f / c->factor + s * f;
        }
        r->inv_freq[j] = (float)f;
    }
}

double rope_yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* The dimension (of d) whose pair rotates n_rotation times within `original` tokens. */
static double yarn_dim(const struct rotary *r, double n_rotation, double original)
{
    return r->n_pair * log(original / (n_rotation * 2 * M_PI)) / log(r->config.theta);
}

static void yarn(struct rotary *r)
{
    const struct rope_config *c = &r->config;
    double original = c->original_max_position > 0 ? c->original_max_position : r->max_position;
    double factor = c->factor > 0 ? c->factor : r->max_position / original;
    double low = yarn_dim(r, c->beta_fast, original), high = yarn_dim(r, c->beta_slow, original);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, 2.0 * r->n_pair - 1);
    if (low == high)
        high += 0.001;
    for (uint32_t j = 0; j < r->n_pair; j++) {
        double ramp =
            fmin(fmax((j - low) / (high - low), 0), 1); /* 0: rotates often, kept; 1: stretched */
        double f = r->inv_freq[j];
        r->inv_freq[j] = (float)(f / factor * ramp + f * (1 - ramp));
    }
    if (c->attention_factor > 0)
        r->scale = (float)c->attention_factor;
    else if (c->mscale > 0 && c->mscale_all_dim > 0)
        r->scale = (float)(rope_yarn_mscale(factor, c->mscale) /
                           rope_yarn_mscale(factor, c->mscale_all_dim));
    else
        r->scale = (float)rope_yarn_mscale(factor, 1);
}

static void longrope(struct rotary *r)
{
    const struct rope_config *c = &r->config;
    const double longest = r->max_position;
    const double original = c->original_max_position > 0 ? c->original_max_position : longest;
    const double factor = c->factor > 0 ? c->factor : longest / original;
    for (uint32_t j = 0; j < r->n_pair; j++) {
        const double base = pow(c->theta, (double)j / r->n_pair);
        r->inv_freq[j] = (float)(1.0 / (c->short_factor[j] * base));
        r->long_freq[j] = (float)(1.0 / (c->long_factor[j] * base));
    }
    r->max_position = (uint32_t)original;
    if (c->attention_factor > 0)
        r->scale = (float)c->attention_factor;
    else if (factor > 1 && original > 1)
        r->scale = (float)sqrt(1 + log(factor) / log(original));
}

static void proportional(struct rotary *r)
{
    const double factor = r->config.factor > 0 ? r->config.factor : 1;
    const uint32_t n = (uint32_t)(r->config.proportion * r->n_pair);
    for (uint32_t j = 0; j < r->n_pair; j++)
        r->inv_freq[j] = j < n ? (float)(r->inv_freq[j] / factor) : 0;
}

static void init_of(struct rotary *r, const struct model_config *c, const struct rope_config *rope,
                    uint32_t n_rot)
{
    r->config = *rope;
    r->max_position = c->max_position;
    r->n_pair = n_rot / 2;
    r->scale = 1;
    Q_ASSERT(r->n_pair <= ROTARY_PAIRS_MAX);
    plain(r->inv_freq, r->n_pair, rope->theta);
    if (rope->kind == ROPE_PROPORTIONAL)
        proportional(r);
    if (rope->kind == ROPE_LINEAR)
        for (uint32_t j = 0; j < r->n_pair; j++)
            r->inv_freq[j] = (float)(r->inv_freq[j] / rope->factor);
    if (rope->kind == ROPE_LLAMA3)
        llama3(r);
    if (rope->kind == ROPE_YARN)
        yarn(r);
    if (rope->kind == ROPE_DYNAMIC)
        r->max_position = rotary_free_length(c);
    if (rope->kind == ROPE_LONG)
        longrope(r);
}

void rotary_init(struct rotary *r, const struct model_config *c)
{
    init_of(r, c, &c->rope, model_config_n_rot_wide(c));
}

void rotary_init_local(struct rotary *r, const struct model_config *c)
{
    init_of(r, c, &c->local_rope, model_config_n_rot(c));
}

uint32_t rotary_free_length(const struct model_config *c)
{
    if (!rotary_varies(c))
        return 0;
    return c->rope.original_max_position > 0 ? (uint32_t)c->rope.original_max_position
                                             : c->max_position;
}

/* theta' of the dynamic kind for a prompt longer than max_position. */
static double dynamic_theta(const struct rotary *r, uint32_t n_prompt)
{
    double d = 2.0 * r->n_pair;
    double stretch = r->config.factor * n_prompt / r->max_position - (r->config.factor - 1);
    return r->config.theta * pow(stretch, d > 2 ? d / (d - 2) : 1);
}

void rotary_row(const struct rotary *r, float *row, uint32_t position, uint32_t n_prompt)
{
    const bool beyond = n_prompt > r->max_position;
    const bool stretched = r->config.kind == ROPE_DYNAMIC && beyond;
    const float *freqs = r->config.kind == ROPE_LONG && beyond ? r->long_freq : r->inv_freq;
    double theta = stretched ? dynamic_theta(r, n_prompt) : 0;
    for (uint32_t j = 0; j < r->n_pair; j++) {
        float f = stretched ? (float)(1.0 / pow(theta, (double)j / r->n_pair)) : freqs[j];
        float angle = (float)position * f;
        double s, c;
        sincos(angle, &s, &c);
        row[2 * j] = (float)c * r->scale;
        row[2 * j + 1] = (float)s * (r->config.backward ? -r->scale : r->scale);
    }
}

uint32_t rotary_length_max(const struct model_config *c)
{
    const struct rope_config *r = &c->rope;
    double length = c->max_position;
    if (r->kind == ROPE_LINEAR || r->kind == ROPE_DYNAMIC)
        length *= r->in_max_position ? 1 : r->factor;
    if (r->kind == ROPE_YARN && r->factor > 0)
        length = (r->original_max_position > 0 ? r->original_max_position : length) * r->factor;
    return length < (double)(1u << 30) ? (uint32_t)length : 1u << 30;
}
