/* SPDX-License-Identifier: Apache-2.0 */
/* The files of tuned algorithms and of trials: any bytes behind the head and before the sum (which
 * this build does not compare). What is read is within bounds, and says the same when it is printed
 * and read. */
#include <string.h>
#include "kernels/cuda/trial_verdict.h"
#include "kernels/cuda/tune_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tune_card card = {{"Card", 9, 0, 13000}, 130100};
static const struct trial_library library = {51224008, 1764345600123456789};

static void read_again(const struct tune_table *t)
{
    struct tune_table back = TUNE_TABLE_INIT;
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    tune_print(&text, t, &card);
    Q_ASSERT(tune_parse(&back, &card, buf_str(&text), text.len, &e) == Q_OK);
    Q_ASSERT(back.n == t->n);
    for (size_t i = 0; i < t->n; i++) {
        const struct tune_entry *x = &t->entries[i], *y = &back.entries[i];
        Q_ASSERT(x->bucket == y->bucket && x->shape.n_out == y->shape.n_out &&
                 x->choice.is_own == y->choice.is_own && x->choice.by_sums == y->choice.by_sums &&
                 memcmp(&x->choice.algo, &y->choice.algo, sizeof x->choice.algo) == 0);
    }
    buf_release(&text);
    tune_table_release(&back);
}

static void parse(const char *text, size_t n)
{
    struct tune_table t = TUNE_TABLE_INIT;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = tune_parse(&t, &card, text, n, &e);
    Q_ASSERT((rc == Q_OK) == (e.code == Q_OK) && (rc == Q_OK || (!t.n && !t.entries)));
    for (size_t i = 0; i < t.n; i++) {
        const struct tune_entry *x = &t.entries[i];
        struct lt_shape settled = x->shape;
        lt_shape_settle(&settled);
        Q_ASSERT(x->bucket < LT_BUCKETS && x->shape.kind < LT_KINDS && x->shape.n_out &&
                 x->shape.n_in && settled.target == x->shape.target &&
                 settled.has_bias == x->shape.has_bias);
    }
    if (!rc)
        read_again(&t);
    tune_table_release(&t);
}

static void parse_trials(const char *text, size_t n)
{
    struct trial_verdict v, back;
    struct buf again = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    if (trial_verdict_parse(&v, &card.card, &library, text, n, &e))
        return;
    trial_verdict_print(&again, &v, &card.card, &library);
    Q_ASSERT(trial_verdict_parse(&back, &card.card, &library, buf_str(&again), again.len, &e) ==
             Q_OK);
    for (int i = 0; i < TRIALS; i++) {
        const struct trial_row *x = &v.rows[i], *y = &back.rows[i];
        Q_ASSERT(x->state == y->state && x->result.n == y->result.n &&
                 x->result.n_differ <= x->result.n && x->result.worst >= 0 &&
                 x->result.worst == y->result.worst);
    }
    buf_release(&again);
}

/* text has a head and a sum; data goes between them. Returns the bytes of the text. */
static size_t insert(struct buf *text, const uint8_t *data, size_t size)
{
    static const char sum[] = "sum 0123456789abcdef\n";
    if (text->len < sizeof sum)
        return 0;
    text->len -= sizeof sum - 1;
    buf_add(text, data, size);
    buf_add_str(text, sum);
    return text->len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tune_table none = TUNE_TABLE_INIT;
    struct trial_verdict empty = {0};
    struct buf choices = BUF_INIT, trials = BUF_INIT;
    parse((const char *)data, size);
    tune_print(&choices, &none, &card);
    if (insert(&choices, data, size))
        parse(buf_str(&choices), choices.len);
    trial_verdict_print(&trials, &empty, &card.card, &library);
    if (insert(&trials, data, size))
        parse_trials(buf_str(&trials), trials.len);
    buf_release(&choices);
    buf_release(&trials);
    return 0;
}
