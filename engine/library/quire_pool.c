/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors, in one call for many texts: a window of requests is open in the session, and their
 * results are taken in the order of the inputs. */
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/library/quire_engine.h"
#include "engine/library/quire_options.h"
#include "engine/quire_pool.h"

#define ITEMS_OF_REQUEST 8u /* accepted, vector, finish */

struct open_input {
    struct session_request request;
    struct token_list ids;
    uint32_t second_at;
    bool is_open; /* submitted, and its last item is not taken */
};

struct pooling_run {
    struct quire_engine *engine;
    const struct quire_pool_params *p;
    struct open_input *window; /* [n_window], input i at i % n_window */
    size_t n_window, n_sent, n_taken;
    struct quire_vectors out;
};

void quire_pool_params_init(struct quire_pool_params *p, size_t size)
{
    memset(p, 0, size);
    p->size = size;
}

static FALLIBLE encode_pair(struct open_input *to, const struct quire_engine *engine,
                            const struct quire_pool_input *in, struct q_err *e)
{
    const struct tokenizer *t = engine->tokenizer;
    struct token_list a = TOKEN_LIST_INIT, b = TOKEN_LIST_INIT;
    enum q_code rc;
    if (!(rc = tokenizer_encode(t, in->text, strlen(in->text), false, &a, e)) &&
        !(rc = tokenizer_encode(t, in->second, strlen(in->second), false, &b, e))) {
        const struct tokenizer_pair pair = {
            .first = a.ids,
            .second = b.ids,
            .n_first = a.n,
            .n_second = b.n,
        };
        rc = tokenizer_encode_pair(t, &pair, &to->ids, &to->second_at, e);
    }
    if (!session_pooling(engine->session)->pair_types)
        to->second_at = 0;
    token_list_release(&a);
    token_list_release(&b);
    return rc;
}

static FALLIBLE encode(struct open_input *to, const struct pooling_run *r,
                       const struct quire_pool_input *in, struct q_err *e)
{
    const struct tokenizer *t = r->engine->tokenizer;
    enum q_code rc = Q_OK;
    to->ids.n = 0;
    to->second_at = 0;
    if (!in->text) {
        if (in->second || (in->n_ids && !in->ids))
            return q_fail(e, Q_INVALID, "expected a text, or token ids without a second text");
        for (size_t i = 0; i < in->n_ids && !rc; i++)
            rc = token_list_add(&to->ids, in->ids[i], e);
        return rc;
    }
    if (!t)
        return q_fail(e, Q_UNSUPPORTED,
                      "the engine was opened with skip_tokenizer: inputs are "
                      "token ids");
    if (in->second)
        return encode_pair(to, r->engine, in, e);
    return tokenizer_encode(t, in->text, strlen(in->text), !r->p->no_special, &to->ids, e);
}

/* Submit the next input. Errors: also Q_NO_SPACE (the engine's queue is full). */
static FALLIBLE send(struct pooling_run *r, struct q_err *e)
{
    struct open_input *o = &r->window[r->n_sent % r->n_window];
    const char *salt = r->p->cache_salt;
    const enum q_code rc = encode(o, r, &r->p->inputs[r->n_sent], e);
    if (rc ||
        queue_init(&o->request.items, sizeof(struct session_item), ITEMS_OF_REQUEST, false, e))
        return q_wrap(e, "input %zu", r->n_sent);
    const struct msg_submit m = {
        .prompt = {o->ids.ids, o->ids.n},
        .pools = true,
        .n_value = r->p->dimensions,
        .raw_vector = r->p->raw,
        .second_text = o->second_at,
        .priority = (uint32_t)r->p->priority,
        .cache_salt = {(const unsigned char *)salt, salt ? strlen(salt) : 0},
    };
    struct session_submit_args a = {.request = &o->request, .submit = &m};
    if (session_submit(r->engine->session, &a, e)) {
        queue_release(&o->request.items);
        return q_wrap(e, "input %zu", r->n_sent);
    }
    o->is_open = true;
    r->n_sent++;
    r->out.n_token += o->ids.n;
    return Q_OK;
}

/* The items of a request up to its last one. */
static FALLIBLE take(struct open_input *o, float *to, uint32_t n_value, struct q_err *e)
{
    struct session_item item;
    bool has_vector = false;
    enum q_code rc = Q_OK;
    while (o->is_open) {
        if (!queue_pop(&o->request.items, &item, -1)) {
            rc = q_fail(e, Q_NO_MEMORY, "engine: out of memory for a result");
            break;
        }
        if (item.kind == SESSION_VECTOR && item.n_value == n_value) {
            memcpy(to, item.values, n_value * sizeof *to);
            has_vector = true;
        }
        q_free(item.values);
        q_free(item.top);
        if (item.kind != SESSION_FINISH)
            continue;
        o->is_open = false;
        if (item.finish == FINISH_ERROR && item.error.code) {
            *e = item.error;
            rc = e->code;
        } else if (item.finish != FINISH_STOP || !has_vector) {
            rc = q_fail(e, Q_CANCELLED, "the request was aborted");
        }
    }
    o->is_open = false;
    queue_release(&o->request.items);
    return rc;
}

static FALLIBLE take_next(struct pooling_run *r, struct q_err *e)
{
    float *to = r->out.values + r->n_taken * r->out.n_value;
    struct open_input *o = &r->window[r->n_taken % r->n_window];
    if (take(o, to, r->out.n_value, e))
        return q_wrap(e, "input %zu", r->n_taken);
    r->n_taken++;
    return Q_OK;
}

static FALLIBLE run_all(struct pooling_run *r, struct q_err *e)
{
    enum q_code rc = Q_OK;
    Q_ASSERT(r->n_window > 0);
    while (r->n_taken < r->p->n_input && !rc) {
        const size_t n_open = r->n_sent - r->n_taken;
        if (r->n_sent == r->p->n_input || n_open == r->n_window)
            rc = take_next(r, e);
        else if ((rc = send(r, e)) == Q_NO_SPACE && n_open)
            rc = take_next(r, e); /* others have filled the queue */
    }
    return rc;
}

static void release(struct pooling_run *r)
{
    struct q_err ignored = Q_ERR_INIT;
    for (size_t i = 0; r->window && i < r->n_window; i++) {
        struct open_input *o = &r->window[i];
        if (o->is_open) {
            session_abort(r->engine->session, &o->request);
            float *none = q_alloc(r->out.n_value * sizeof *none);
            if (none && take(o, none, r->out.n_value, &ignored))
                q_err_reset(&ignored);
            q_free(none);
        }
        token_list_release(&o->ids);
    }
    q_free(r->window);
}

static FALLIBLE check(const struct quire_engine *engine, const struct quire_pool_params *p,
                      struct q_err *e)
{
    const struct pooling *pooling = session_pooling(engine->session);
    if (pooling->makes == ARCHS_GENERATES)
        return q_fail(e, Q_INVALID,
                      "the model generates text and makes no vectors; set the option runner to "
                      "pooling for a model that does");
    if (!p->n_input || !p->inputs)
        return q_fail(e, Q_INVALID, "inputs: expected at least one");
    if (p->dimensions > pooling->n_out)
        return q_fail(e, Q_INVALID, "dimensions: %u are more than the vector's %u", p->dimensions,
                      pooling->n_out);
    return Q_OK;
}

static FALLIBLE pool(struct quire_engine *engine, struct quire_vectors *out,
                     const struct quire_pool_params *p, struct q_err *e)
{
    struct pooling_run r = {.engine = engine, .p = p};
    enum q_code rc = check(engine, p, e);
    if (rc)
        return rc;
    r.n_window = 2 * (size_t)session_info(engine->session)->limits.max_num_seqs;
    r.n_window = r.n_window < p->n_input ? r.n_window : p->n_input;
    r.out.n = p->n_input;
    r.out.n_value = p->dimensions ? p->dimensions : session_pooling(engine->session)->n_out;
    r.out.values = q_calloc(p->n_input, r.out.n_value * sizeof *r.out.values);
    r.window = q_calloc(r.n_window, sizeof *r.window);
    rc = r.out.values && r.window
             ? run_all(&r, e)
             : q_fail(e, Q_NO_MEMORY, "out of memory for %zu vectors", p->n_input);
    release(&r);
    if (rc)
        q_free(r.out.values);
    else
        *out = r.out;
    return rc;
}

enum quire_code quire_pool(struct quire_engine *engine, struct quire_vectors *out,
                           const struct quire_pool_params *given, struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct quire_pool_params p;
    enum q_code rc;
    quire_pool_params_init(&p, sizeof p);
    if (given->size < offsetof(struct quire_pool_params, dimensions) ||
        given->size > 2 * sizeof p) {
        rc = q_fail(&e, Q_INVALID, "params: size is %zu; call quire_pool_params_init first",
                    given->size);
    } else {
        memcpy(&p, given, given->size < sizeof p ? given->size : sizeof p);
        rc = pool(engine, out, &p, &e);
    }
    return rc ? quire_error_give(error, &e) : QUIRE_OK;
}

static float cosine(const float *a, const float *b, uint32_t n)
{
    double dot = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < n; i++) {
        dot += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return aa > 0 && bb > 0 ? (float)(dot / sqrt(aa * bb)) : 0;
}

static FALLIBLE score(struct quire_engine *engine, float *scores, const struct quire_pool_params *p,
                      bool is_paired, struct q_err *e)
{
    struct quire_vectors v;
    const enum q_code rc = pool(engine, &v, p, e);
    if (rc)
        return rc;
    for (size_t i = 0; is_paired && i < v.n; i++)
        scores[i] = v.values[i];
    for (size_t i = 1; !is_paired && i < v.n; i++)
        scores[i - 1] = cosine(v.values, v.values + i * v.n_value, v.n_value);
    q_free(v.values);
    return Q_OK;
}

enum quire_code quire_score(struct quire_engine *engine, float *scores, const char *query,
                            const char *const *documents, size_t n, struct quire_error *error)
{
    const struct pooling *pooling = session_pooling(engine->session);
    const bool is_paired = pooling->makes == ARCHS_CLASSIFIES;
    struct q_err e = Q_ERR_INIT;
    struct quire_pool_params p;
    enum q_code rc;
    if (is_paired && pooling->n_out != 1) {
        q_fail_text(&e, Q_INVALID, "the model has %u classes; scores are those of one with one",
                    pooling->n_out);
        return quire_error_give(error, &e);
    }
    if (!query || (n && (!documents || !scores))) {
        q_fail_text(&e, Q_INVALID, "%s: NULL, expected %s",
                    !query       ? "query"
                    : !documents ? "documents"
                                 : "scores",
                    !query ? "a text" : "an array with an element for each document");
        return quire_error_give(error, &e);
    }
    for (size_t i = 0; i < n; i++)
        if (!documents[i]) {
            q_fail_text(&e, Q_INVALID, "documents[%zu]: NULL, expected a text", i);
            return quire_error_give(error, &e);
        }
    struct quire_pool_input *inputs = q_calloc(n + 1, sizeof *inputs);
    quire_pool_params_init(&p, sizeof p);
    p.inputs = inputs;
    p.n_input = n ? n + !is_paired : 0;
    for (size_t i = 0; inputs && i < n; i++) {
        inputs[is_paired ? i : i + 1].text = is_paired ? query : documents[i];
        inputs[is_paired ? i : i + 1].second = is_paired ? documents[i] : NULL;
    }
    if (inputs && !is_paired)
        inputs[0].text = query;
    rc = inputs ? score(engine, scores, &p, is_paired, &e)
                : q_fail(&e, Q_NO_MEMORY, "out of memory for %zu texts", n);
    q_free(inputs);
    return rc ? quire_error_give(error, &e) : QUIRE_OK;
}

const char *quire_class_name(const struct quire_engine *engine, uint32_t i, char buffer[32])
{
    return pooling_label(session_pooling(engine->session), i, buffer);
}
