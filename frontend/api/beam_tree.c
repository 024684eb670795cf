/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/beam_tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define NODES_MAX ((size_t)1 << 26)

FALLIBLE beam_tree_init(struct beam_tree *t, const struct beam_rules *r, struct q_err *e)
{
    memset(t, 0, sizeof *t);
    t->rules = *r;
    t->row_size = 2 * r->width;
    t->beams = q_calloc(r->width, sizeof *t->beams);
    t->candidates = q_calloc((size_t)r->width * t->row_size, sizeof *t->candidates);
    t->ended = q_calloc(r->width + 1, sizeof *t->ended);
    if (!t->beams || !t->candidates || !t->ended) {
        beam_tree_release(t);
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u beams", r->width);
    }
    t->beams[0] = BEAM_NONE;
    t->n_beam = 1;
    return Q_OK;
}

void beam_tree_release(struct beam_tree *t)
{
    q_free(t->nodes);
    q_free(t->row_ids);
    q_free(t->row_logprobs);
    q_free(t->beams);
    q_free(t->candidates);
    q_free(t->ended);
    memset(t, 0, sizeof *t);
}

static bool ends(const struct beam_tree *t, uint32_t token)
{
    for (uint32_t i = 0; i < t->rules.n_end; i++)
        if (t->rules.ends[i] == token)
            return true;
    return false;
}

static double score(const struct beam_tree *t, double sum, uint32_t n_token)
{
    return sum / pow((double)t->rules.n_prompt + n_token, t->rules.length_penalty);
}

/* Insert into the best `width`, sorted; equal ones keep their order. */
static void add_end(struct beam_tree *t, struct beam_end end)
{
    uint32_t i = t->n_ended;
    while (i > 0 && t->ended[i - 1].score < end.score) {
        t->ended[i] = t->ended[i - 1];
        i--;
    }
    t->ended[i] = end;
    if (t->n_ended < t->rules.width)
        t->n_ended++;
}

static FALLIBLE keep(struct beam_tree *t, const struct beam_node *node, uint32_t *i_node,
                     struct q_err *e)
{
    enum q_code rc =
        q_grow(&t->nodes, &t->nodes_cap, t->n_node + 1, sizeof *t->nodes, NODES_MAX, e);
    if (rc != Q_OK)
        return rc;
    *i_node = (uint32_t)t->n_node;
    t->nodes[t->n_node++] = *node;
    return Q_OK;
}

static FALLIBLE keep_row(struct beam_tree *t, const uint32_t *ids, const float *logprobs,
                         uint32_t n, struct q_err *e)
{
    size_t need = (t->n_row + 1) * t->row_size;
    enum q_code rc;
    if ((rc = q_grow(&t->row_ids, &t->ids_cap, need, sizeof *t->row_ids, NODES_MAX, e)) ||
        (rc = q_grow(&t->row_logprobs, &t->logprobs_cap, need, sizeof *t->row_logprobs, NODES_MAX,
                     e)))
        return rc;
    for (uint32_t i = 0; i < t->row_size; i++) { /* a short row repeats its last entry */
        t->row_ids[t->n_row * t->row_size + i] = ids[i < n ? i : n - 1];
        t->row_logprobs[t->n_row * t->row_size + i] = logprobs[i < n ? i : n - 1];
    }
    t->n_row++;
    return Q_OK;
}

/* The answer ends with this token: an end token, which does not count, or one that completes a stop
 * string. */
static FALLIBLE end(struct beam_tree *t, const struct beam_node *node, bool by_token,
                    struct q_err *e)
{
    uint32_t kept;
    double s = score(t, node->sum, node->depth - by_token);
    if (t->n_ended == t->rules.width && t->ended[t->n_ended - 1].score >= s)
        return Q_OK;
    enum q_code rc = keep(t, node, &kept, e);
    if (rc == Q_OK)
        add_end(t, (struct beam_end){kept, s, by_token});
    return rc;
}

FALLIBLE beam_offer(struct beam_tree *t, const uint32_t *ids, const float *logprobs, uint32_t n,
                    struct q_err *e)
{
    Q_ASSERT(t->n_offered < t->n_beam);
    uint32_t parent = t->beams[t->n_offered];
    const struct beam_node *from = parent == BEAM_NONE ? NULL : &t->nodes[parent];
    uint32_t depth = from ? from->depth + 1 : 1;
    double sum = from ? from->sum : 0;
    if (n == 0)
        return q_fail(e, Q_INTERNAL, "beam search: the engine returned no alternatives");
    if (n > t->row_size)
        n = t->row_size;
    enum q_code rc = keep_row(t, ids, logprobs, n, e);
    for (uint32_t i = 0; rc == Q_OK && i < n; i++) {
        const struct beam_node node = {
            .token = ids[i],
            .parent = parent,
            .depth = depth,
            .row = (uint32_t)t->n_row - 1,
            .sum = sum + (double)logprobs[i],
            .logprob = logprobs[i],
            .rank = i + 1,
        };
        if (!isfinite(logprobs[i]))
            continue;
        if (!ends(t, ids[i]))
            t->candidates[t->n_candidate++] = node;
        else if (depth > t->rules.min_tokens)
            rc = end(t, &node, true, e);
    }
    t->n_offered++;
    return rc;
}

static int by_sum(const void *a, const void *b)
{
    const struct beam_node *x = a, *y = b;
    if (x->sum != y->sum)
        return x->sum > y->sum ? -1 : 1;
    if (x->row != y->row) /* rows are in the order of the parents */
        return x->row < y->row ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Can no beam become one of the best? Logprobs are at most 0, so a sum only decreases; the score is
 * then highest at the smallest or the largest length that is still possible. */
static bool decided(const struct beam_tree *t, uint32_t depth)
{
    if (t->n_ended < t->rules.width)
        return false;
    if (t->rules.early_stopping || t->n_beam == 0)
        return true;
    double sum = t->nodes[t->beams[0]].sum, worst = t->ended[t->n_ended - 1].score;
    return worst > score(t, sum, depth) && worst > score(t, sum, t->rules.max_tokens);
}

FALLIBLE beam_advance(struct beam_tree *t, struct q_err *e)
{
    uint32_t depth = 0;
    enum q_code rc = Q_OK;
    Q_ASSERT(t->n_offered == t->n_beam);
    qsort(t->candidates, t->n_candidate, sizeof *t->candidates, by_sum);
    t->n_beam = 0;
    for (uint32_t i = 0; rc == Q_OK && i < t->n_candidate && t->n_beam < t->rules.width; i++) {
        const struct beam_node *node = &t->candidates[i];
        depth = node->depth;
        if (t->rules.ends_text && t->rules.ends_text(t->rules.ctx, t, node))
            rc = end(t, node, false, e);
        else if ((rc = keep(t, node, &t->beams[t->n_beam], e)) == Q_OK)
            t->n_beam++;
    }
    t->n_candidate = t->n_offered = 0;
    if (rc != Q_OK)
        return rc;
    t->over = t->n_beam == 0 || decided(t, depth) || depth >= t->rules.max_tokens;
    bool only_ended = t->n_beam == 0 || decided(t, depth);
    for (uint32_t i = 0; t->over && !only_ended && i < t->n_beam; i++)
        add_end(t,
                (struct beam_end){t->beams[i], score(t, t->nodes[t->beams[i]].sum, depth), false});
    return Q_OK;
}

FALLIBLE beam_tokens(const struct beam_tree *t, uint32_t node, struct token_list *out,
                     struct q_err *e)
{
    size_t first = out->n, n = node == BEAM_NONE ? 0 : t->nodes[node].depth;
    enum q_code rc = Q_OK;
    for (size_t i = 0; rc == Q_OK && i < n; i++)
        rc = token_list_add(out, 0, e);
    for (size_t i = n; rc == Q_OK && i-- > 0; node = t->nodes[node].parent)
        out->ids[first + i] = t->nodes[node].token;
    return rc;
}
