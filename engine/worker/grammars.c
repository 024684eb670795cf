/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker/grammars.h"
#include <pthread.h>
#include <string.h>
#include "common/hub/config.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/grammar/matcher/matcher.h"
#include "engine/worker/thinking_state.h"

#define FORCED_MAX 256 /* bytes looked ahead */

struct entry { /* a grammar */
    struct matcher *matcher;
    uint32_t n_user;
    uint64_t used; /* counts admissions */
};
struct follow { /* a slot's text so far; states of an older generation are none */
    struct entry *entry;
    uint32_t generation, n, n_prompt;
    size_t cap, config_cap;
    uint32_t *tokens;        /* [n] output tokens read */
    matcher_config *configs; /* [n + 1] before the first, and after each */
};
struct thinking_follow { /* a slot's thinking budget, after the known tokens */
    uint32_t n_admitted, n_known;
    struct thinking_budget budget; /* borrows from the slot */
    struct thinking_state state;
};
struct grammars {
    char *dir; /* folder or file of the tokenizer */
    pthread_t thread;
    bool is_read; /* the thread was joined */
    struct trie trie;
    uint32_t vocab_size, n_slot;
    uint32_t eos_ids[64], n_eos;
    struct entry **entries; /* [n_entry] */
    size_t n_entry, entry_cap;
    uint64_t n_admit;
    struct follow *follows;           /* [n_slot] */
    struct thinking_follow *thinking; /* [n_slot] */
};

static void *read_vocabulary(void *arg)
{
    struct grammars *g = arg;
    struct tokenizer *t = NULL;
    struct q_err e = Q_ERR_INIT;
    if (tokenizer_open(&t, g->dir, &e) || trie_of_tokenizer(&g->trie, t, g->vocab_size, &e))
        log_debug("structured output is not available: %s", e.message);
    tokenizer_free(t);
    mem_trim();
    return NULL;
}

FALLIBLE grammars_new(struct grammars **out, const struct grammars_args *a, struct q_err *e)
{
    struct model_config c;
    struct generation_defaults defaults;
    struct q_err ignored = Q_ERR_INIT;
    struct grammars *g = q_calloc(1, sizeof *g);
    if (g) {
        g->is_read = true;
        g->trie = (struct trie)TRIE_INIT;
        g->vocab_size = a->vocab_size;
        g->n_slot = a->n_slot;
        g->dir = q_strdup(*a->tokenizer_path ? a->tokenizer_path : a->model_dir);
        g->follows = q_calloc(a->n_slot, sizeof *g->follows);
    }
    if (g)
        g->thinking = q_calloc(a->n_slot, sizeof *g->thinking);
    if (!g || !g->dir || !g->follows || !g->thinking) {
        grammars_free(g);
        return q_fail(e, Q_NO_MEMORY, "worker: out of memory for grammars");
    }
    if (!model_config_load(&c, &defaults, a->model_dir, &ignored)) {
        g->n_eos = c.n_eos < 64 ? c.n_eos : 64;
        memcpy(g->eos_ids, c.eos_ids, g->n_eos * sizeof *g->eos_ids);
    }
    int rc = pthread_create(&g->thread, NULL, read_vocabulary, g);
    if (rc) {
        grammars_free(g);
        return q_fail(e, Q_IO, "worker: cannot start a thread: %s", strerror(rc));
    }
    g->is_read = false;
    pthread_setname_np(g->thread, "quire-vocab");
    *out = g;
    return Q_OK;
}

void grammars_free(struct grammars *g)
{
    if (!g)
        return;
    if (!g->is_read)
        pthread_join(g->thread, NULL);
    for (size_t i = 0; i < g->n_entry; i++) {
        matcher_free(g->entries[i]->matcher);
        q_free(g->entries[i]);
    }
    for (uint32_t i = 0; g->follows && i < g->n_slot; i++) {
        q_free(g->follows[i].tokens);
        q_free(g->follows[i].configs);
    }
    q_free(g->entries);
    q_free(g->follows);
    q_free(g->thinking);
    q_free(g->dir);
    trie_release(&g->trie);
    q_free(g);
}

static void drop(struct grammars *g, size_t i)
{
    matcher_free(g->entries[i]->matcher);
    q_free(g->entries[i]);
    g->entries[i] = g->entries[--g->n_entry];
}

/* Free unused matchers beyond GRAMMARS_KEPT, the oldest first. */
static void tidy(struct grammars *g)
{
    for (;;) {
        size_t n_free = 0, oldest = SIZE_MAX;
        for (size_t i = 0; i < g->n_entry; i++) {
            if (g->entries[i]->n_user)
                continue;
            n_free++;
            if (oldest == SIZE_MAX || g->entries[i]->used < g->entries[oldest]->used)
                oldest = i;
        }
        if (n_free <= GRAMMARS_KEPT)
            return;
        drop(g, oldest);
    }
}

static struct entry *find_entry(struct grammars *g, const struct slot_grammar *s)
{
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < g->n_entry; i++)
        if (matcher_is(g->entries[i]->matcher, s->words, s->n_word))
            return g->entries[i];
    struct entry *x = q_calloc(1, sizeof *x);
    if (!x ||
        q_grow(&g->entries, &g->entry_cap, g->n_entry + 1, sizeof *g->entries, 1u << 20, &e) ||
        matcher_new(&x->matcher, s->words, s->n_word, &g->trie, &e)) {
        log_error("%s", *e.message ? e.message : "out of memory for a grammar");
        q_free(x);
        return NULL;
    }
    g->entries[g->n_entry++] = x;
    return x;
}

/* True if it could be read. */
static bool wait_vocabulary(struct grammars *g)
{
    if (!g->is_read)
        pthread_join(g->thread, NULL);
    g->is_read = true;
    return g->trie.nodes != NULL;
}

static void admit(void *ctx, const struct slot_grammar *s)
{
    struct grammars *g = ctx;
    struct follow *f = &g->follows[s->slot];
    const bool has_vocabulary = wait_vocabulary(g);
    if (f->entry)
        f->entry->n_user--;
    f->entry = has_vocabulary ? find_entry(g, s) : NULL;
    f->n = f->generation = 0;
    if (f->entry) {
        f->entry->n_user++;
        f->entry->used = ++g->n_admit;
    }
    tidy(g);
}

/* The state after the tokens, continued from the stored states. 0: the tokens violate the
 * grammar. */
static matcher_config follow_tokens(struct follow *f, const uint32_t *tokens, uint32_t n)
{
    struct matcher *m = f->entry->matcher;
    struct q_err e = Q_ERR_INIT;
    uint32_t generation = matcher_begin(m), same = 0;
    if (q_grow(&f->tokens, &f->cap, n + 1u, sizeof *f->tokens, 1u << 28, &e) ||
        q_grow(&f->configs, &f->config_cap, n + 2u, sizeof *f->configs, 1u << 28, &e))
        return 0;
    if (f->generation != generation) {
        f->configs[0] = matcher_start(m);
        f->n = 0;
        f->generation = generation;
    }
    while (same < n && same < f->n && f->tokens[same] == tokens[same])
        same++;
    for (; same < n; same++) {
        f->tokens[same] = tokens[same];
        f->configs[same + 1] = matcher_token(m, f->configs[same], tokens[same]);
        if (!f->configs[same + 1] && matcher_can_end(m, f->configs[same]))
            f->configs[same + 1] = f->configs[same]; /* an eos that ended nothing */
    }
    f->n = n;
    return f->configs[n];
}

static void clear(uint32_t *bits, const uint32_t *ids, uint32_t n, uint32_t vocab_size)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < vocab_size)
            bits[ids[i] / 32] &= ~(1u << ids[i] % 32);
}

static void set(uint32_t *bits, const uint32_t *ids, uint32_t n, uint32_t vocab_size)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < vocab_size)
            bits[ids[i] / 32] |= 1u << ids[i] % 32;
}

/* The state after the job's tokens, and its mask in bits [n_word]; 0: no token may come, and bits
 * are 0. */
static matcher_config follow_job(struct follow *f, const struct mask_job *job, uint32_t *bits,
                                 uint32_t n_word)
{
    struct matcher *m = f->entry->matcher;
    matcher_config c = follow_tokens(f, job->history + job->n_prompt, job->n_known - job->n_prompt);
    if (c && matcher_mask(m, c, bits))
        return c;
    memset(bits, 0, n_word * sizeof *bits); /* of a mask that was not finished */
    return 0;
}

static void fill_mask(void *ctx, const struct mask_job *job, uint32_t *bits)
{
    struct grammars *g = ctx;
    struct follow *f = &g->follows[job->slot];
    if (!f->entry)
        return;
    struct matcher *m = f->entry->matcher;
    uint32_t n_word = trie_words(&g->trie);
    uint64_t n_failure = mem_failure_count();
    matcher_config c = follow_job(f, job, bits, n_word);
    if (!c && mem_failure_count() != n_failure) { /* again: a matcher that is stuck frees memory */
        n_failure = mem_failure_count();
        c = follow_job(f, job, bits, n_word);
        if (!c && mem_failure_count() != n_failure)
            log_error("out of memory for a grammar's mask");
    }
    if (!c)
        return;
    if (matcher_is_before(m, c)) /* an answer that ends within its reasoning is none */
        clear(bits, job->stop_ids, job->n_stop_id, g->vocab_size);
    if (!matcher_can_end(m, c))
        return;
    set(bits, job->stop_ids, job->n_stop_id, g->vocab_size);
    if (matcher_must_end(m, c) && !job->n_stop_id) /* ignore_eos: it ends again and again */
        set(bits, g->eos_ids, g->n_eos, g->vocab_size);
}

/* The forced bytes as the longest possible tokens, which models mostly choose too; at the end of
 * the text an end token. At the end of the forced bytes the model may choose a longer token; then
 * this draft token is rejected. */
static uint32_t propose_tokens(void *ctx, const struct mask_job *job, uint32_t *tokens, uint32_t n)
{
    struct grammars *g = ctx;
    struct follow *f = &g->follows[job->slot];
    char forced[FORCED_MAX];
    uint32_t n_token = 0;
    if (!f->entry)
        return 0;
    struct matcher *m = f->entry->matcher;
    matcher_config c = follow_tokens(f, job->history + job->n_prompt, job->n_known - job->n_prompt);
    if (!c)
        return 0;
    size_t n_forced = matcher_forced(m, c, forced, sizeof forced), at = 0, length;
    while (at < n_forced && n_token < n &&
           (length = trie_longest(&g->trie, forced + at, n_forced - at, &tokens[n_token]))) {
        at += length;
        n_token++;
    }
    c = at == n_forced && n_token < n ? matcher_bytes(m, c, forced, n_forced) : 0;
    if (c && matcher_must_end(m, c) && job->n_stop_id)
        tokens[n_token++] = job->stop_ids[job->n_stop_id - 1]; /* the model's eos come last */
    return n_token;
}

/* ---- thinking budgets ---- */

static size_t longest_token(const void *ctx, const char *text, size_t n, uint32_t *token)
{
    return trie_longest(ctx, text, n, token);
}

static bool force_end(void *ctx, const struct mask_job *job, uint32_t *token)
{
    struct grammars *g = ctx;
    struct thinking_follow *f = &g->thinking[job->slot];
    *token = UINT32_MAX;
    if (!wait_vocabulary(g))
        return true;
    const struct thinking_vocabulary v = {
        .text = g->trie.text,
        .at = g->trie.at,
        .n_vocab = g->trie.n_vocab,
        .longest = longest_token,
        .ctx = &g->trie,
    };
    if (f->n_admitted != job->n_admitted || f->n_known > job->n_known) {
        f->n_admitted = 0;
        if (!thinking_budget_view(&f->budget, job->thinking, job->n_thinking, g->vocab_size))
            return true;
        thinking_state_begin(&f->state, &f->budget);
        f->n_known = job->n_prompt;
        f->n_admitted = job->n_admitted;
    }
    struct thinking_state state = f->state;
    for (uint32_t i = f->n_known; i < job->n_known; i++)
        thinking_state_read(&state, &f->budget, &v, job->history[i]);
    if (job->is_known) {
        f->state = state;
        f->n_known = job->n_known;
    }
    return thinking_state_forces(&state, &f->budget, &v, token);
}

struct mask_provider grammars_provider(struct grammars *g)
{
    return (struct mask_provider){
        .admit = admit,
        .fill = fill_mask,
        .propose = propose_tokens,
        .force = force_end,
        .ctx = g,
    };
}
