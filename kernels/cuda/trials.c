/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that were never tested on a card are tried when a card is opened: their results determine
 * whether they are used, and device_props.note reports it. No other work is on the device then, so
 * that a trial that breaks the device costs only a restart. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/device_internal.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/trial.h"
#include "kernels/cuda/trial_linear.h"

#define WGMMA_VARIABLE   "QUIRE_CUDA_WGMMA" /* 0: not even tried */
#define WGMMA_OFF        WGMMA_VARIABLE "=0"
#define OVERLAP_VARIABLE "QUIRE_CUDA_OVERLAP" /* likewise */
#define OVERLAP_OFF      OVERLAP_VARIABLE "=0"

/* A kernel's error persists until the process ends or the device is reset; the device has no other
 * work yet. */
static FALLIBLE begin_anew(struct device *d, const char *off, const struct q_err *why,
                           struct q_err *e)
{
    if (cudaDeviceReset() == cudaSuccess && cudaSetDevice(d->index) == cudaSuccess &&
        cudaFree(NULL) == cudaSuccess)
        return Q_OK;
    return q_fail(
        e, Q_IO,
        "CUDA: a trial of kernels left the device unusable (%.120s); set %s to skip the trial",
        why->message, off);
}

static bool is_off(const char *variable)
{
    const char *wanted = getenv(variable);
    return wanted && strcmp(wanted, "0") == 0;
}

/* Append a sentence to the note for the log. */
static __attribute__((format(printf, 2, 3))) void note(struct device *d, const char *fmt, ...)
{
    char *at = d->props.note + strlen(d->props.note);
    const char *end = d->props.note + sizeof d->props.note;
    va_list args;
    if (at > d->props.note && end - at > 3)
        at = stpcpy(at, "; ");
    va_start(args, fmt);
    vsnprintf(at, (size_t)(end - at), fmt, args);
    va_end(args);
}

static FALLIBLE run_trial(struct device *d, struct attention_trial *r, struct q_err *e)
{
    struct device_link on = {quire_device_6(), d, NULL};
    enum q_code rc = on.t->stream_new(d, &on.s, e);
    if (rc)
        return rc;
    rc = attention_trial_run(r, &on, d->kern.attention, attention_sm90a_trial, e);
    on.t->stream_free(on.s);
    return rc;
}

/* Add the kernels that require these bits. */
static void add_caps(struct device *d, uint32_t more)
{
    kern_table_cuda(&d->kern, d->kern.caps | more);
}

/* Attention by wgmma is used if its results on this card pass the trial. */
static FALLIBLE try_attention(struct device *d, bool same_bits, struct q_err *e)
{
    struct attention_trial r = {0};
    struct q_err why = Q_ERR_INIT;
    if (run_trial(d, &r, &why)) {
        note(d, "attention of prompts by mma.sync: the trial of wgmma failed: %.160s", why.message);
        return begin_anew(d, WGMMA_OFF, &why, e);
    }
    const bool holds = attention_trial_holds(&r, same_bits);
    note(d,
         "attention of prompts by %s: of %u outputs of wgmma, %u differ from mma.sync, by at most "
         "%.3g of the largest%s",
         holds ? "wgmma" : "mma.sync", r.n, r.n_differ, r.worst,
         same_bits ? "; deterministic mode requires equal bits" : "");
    if (holds)
        add_caps(d, CAP_SM90A);
    return Q_OK;
}

static FALLIBLE run_products(struct device *d, struct linear_trial r[LINEAR_TYPES], struct q_err *e)
{
    struct device_link on = {quire_device_6(), d, NULL};
    struct kern_table tried = d->kern;
    enum q_code rc = on.t->stream_new(d, &on.s, e);
    if (rc)
        return rc;
    linear_trial_table(&tried);
    rc = linear_trial_run(r, &on, &d->kern, &tried, e);
    on.t->stream_free(on.s);
    return rc;
}

/* The same for products, by type. */
static FALLIBLE try_products(struct device *d, bool same_bits, struct q_err *e)
{
    static const uint32_t caps[LINEAR_TYPES] = {CAP_SM90A_LINEAR, CAP_SM90A_LINEAR, CAP_SM90A_I8,
                                                CAP_SM90A_E4M3};
    struct linear_trial r[LINEAR_TYPES] = {{0}};
    struct q_err why = Q_ERR_INIT;
    char said[LINEAR_TYPES * 40];
    uint32_t held = CAP_SM90A_ALL & ~(uint32_t)CAP_SM90A;
    size_t n = 0;
    if (run_products(d, r, &why)) {
        note(d, "products by mma.sync: the trial of wgmma failed: %.160s", why.message);
        return begin_anew(d, WGMMA_OFF, &why, e);
    }
    for (int i = 0; i < LINEAR_TYPES; i++) /* bf16 and f16 only together */
        if (!linear_trial_holds(&r[i], (enum linear_type)i, same_bits))
            held &= ~caps[i];
    for (int i = 0; i < LINEAR_TYPES; i++)
        n += (size_t)snprintf(said + n, sizeof said - n, "%s%s by %s (%.3g)", i ? ", " : "",
                              linear_type_names[i], held & caps[i] ? "wgmma" : "mma.sync",
                              r[i].worst);
    note(d, "products of many rows (in brackets the largest relative difference): %s", said);
    add_caps(d, held);
    return Q_OK;
}

static FALLIBLE try_wgmma(struct device *d, bool same_bits, struct q_err *e)
{
    const uint32_t all = d->kern.caps;
    enum q_code rc;
    if (!(all & CAP_SM90A_ALL))
        return Q_OK;
    kern_table_cuda(&d->kern, all & ~(uint32_t)CAP_SM90A_ALL);
    if (is_off(WGMMA_VARIABLE)) {
        note(d, "attention of prompts and products by mma.sync: set by " WGMMA_OFF);
        return Q_OK;
    }
    rc = try_attention(d, same_bits, e);
    return rc ? rc : try_products(d, same_bits, e);
}

static FALLIBLE run_overlap(struct device *d, struct overlap_trial *r, struct q_err *e)
{
    struct device_link apart = {quire_device_6(), d, NULL}, early = apart;
    enum q_code rc;
    d->overlaps = false;
    if ((rc = apart.t->stream_new(d, &apart.s, e)))
        return rc;
    d->overlaps = true;
    if (!(rc = early.t->stream_new(d, &early.s, e)))
        rc = overlap_trial_run(r, &apart, &early, (struct overlap_size){24, 8}, e);
    apart.t->stream_free(apart.s);
    early.t->stream_free(early.s);
    return rc;
}

/* The same for kernels that begin before the previous one has ended. */
static FALLIBLE try_overlap(struct device *d, struct q_err *e)
{
    struct overlap_trial r = {0};
    struct q_err why = Q_ERR_INIT;
    if (!cuda_code_waits())
        return Q_OK;
    if (is_off(OVERLAP_VARIABLE)) {
        note(d, "kernels one after the other: set by " OVERLAP_OFF);
        return Q_OK;
    }
    const enum q_code rc = run_overlap(d, &r, &why);
    d->overlaps = !rc && r.n_wrong == 0;
    if (rc) {
        note(d, "kernels one after the other: the trial of overlapping kernels failed: %.160s",
             why.message);
        return begin_anew(d, OVERLAP_OFF, &why, e);
    }
    note(d, "kernels %s: %u of %u runs of %u kernels differed in bits",
         d->overlaps ? "begin early" : "one after the other", r.n_wrong, r.n_run,
         r.n_kernel / r.n_run);
    return Q_OK;
}

enum q_code device_trials(struct device *d, bool same_bits, struct q_err *e)
{
    enum q_code rc = try_wgmma(d, same_bits, e);
    return rc ? rc : try_overlap(d, e);
}
