/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output in a whole engine with the bundled model: the grammar holds behind the end of
 * the reasoning only, and the answers are the same to the last bit with draft tokens, in small
 * pools, after a replay. */
#include "common/buf.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/grammar/grammar.h"
#include "engine_bits.h"

#define MODEL     "deploy/model/quire-tiny"
#define N_REQUEST 6u
#define N_TOKEN   100u
#define DRAFT     "{\"model\":\"" MODEL "\",\"num_speculative_tokens\":3}"
#define NGRAM     "{\"method\":\"ngram\",\"prompt_lookup_min\":1,\"num_speculative_tokens\":4}"

struct run {
    const char *speculative; /* --speculative-config */
    uint32_t n_block, n_emitted;
    const char *after;
    bool one_by_one; /* --disable-jump-forward */
    bool preempt;    /* the last one loses its place after every third step */
};

static struct bits_answer answers[2][BITS_REQUESTS];
static struct tokenizer *tokenizer;
static const char *const choices[] = {"{\"answer\": true}", "{\"answer\": false}", "no answer"};
static const char source[] =
    "[\"{\\\"answer\\\": true}\", \"{\\\"answer\\\": false}\", \"no answer\"]";

static struct proto_bytes bytes_of(const char *s)
{
    return (struct proto_bytes){(const unsigned char *)s, strlen(s)};
}

/* The same prompts with seeds of their own; with n_emitted the first tokens of `replay` are known
 * already. */
static struct scheduler_stats run(const struct run *r, const struct bits_answer *replay,
                                  struct bits_answer *out)
{
    struct q_err e = Q_ERR_INIT;
    struct bits_engine b;
    struct core_config c = bits_config(MODEL);
    struct token_list prompt = TOKEN_LIST_INIT;
    uint32_t emitted[N_TOKEN];
    c.worker.n_block = r->n_block;
    c.worker.max_num_seqs = 4;
    c.no_jump_forward = r->one_by_one;
    assert_ok(speculative_parse(&c.worker.speculation, r->speculative, &e), &e);
    assert_ok(tokenizer_encode(tokenizer, "Once upon a time", 16, true, &prompt, &e), &e);
    bits_open(&b, &c, out);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        uint32_t n = replay && replay[i].n > r->n_emitted ? r->n_emitted : 0;
        for (uint32_t k = 0; k < n; k++)
            emitted[k] = replay[i].sampled[k].token;
        if (n) { /* what was given before is part of the answer */
            out[i].n = n;
            memcpy(out[i].sampled, replay[i].sampled, n * sizeof *out[i].sampled);
        }
        const struct msg_submit m = {
            .req_id = i,
            .prompt = {prompt.ids, prompt.n},
            .emitted = {emitted, n},
            .temperature = 0.9f,
            .top_p = 1,
            .repetition_penalty = 1,
            .seed = 7 + i,
            .n_logprob = 3,
            .max_tokens = N_TOKEN,
            .grammar_kind = GRAMMAR_CHOICE,
            .grammar = bytes_of(source),
            .grammar_after = bytes_of(r->after),
        };
        bits_submit(&b, &m);
    }
    token_list_release(&prompt);
    for (uint32_t i = 0; r->preempt && b.n_finished < N_REQUEST; i++) {
        bits_turn(&b);
        if (i % 3 == 2)
            core_preempt_last(b.core);
    }
    return bits_finish(&b, N_REQUEST);
}

static void text_of(const struct bits_answer *a, struct buf *text)
{
    struct q_err e = Q_ERR_INIT;
    uint32_t ids[N_TOKEN];
    uint32_t n = a->n - (a->finish == FINISH_STOP); /* without the eos */
    for (uint32_t i = 0; i < n; i++)
        ids[i] = a->sampled[i].token;
    assert_ok(tokenizer_decode(tokenizer, ids, n, false, text, &e), &e);
}

static bool is_choice(const char *text)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (!strcmp(text, choices[i]))
            return true;
    return false;
}

/* Free up to the marker, which any text has soon; then one of the choices and the end. */
static void the_grammar_begins_after_the_marker(void **state)
{
    (void)state;
    static const struct run ways[] = {
        {"", 36, 0, "e", true, false},    {NGRAM, 36, 0, "e", true, false},
        {NGRAM, 36, 0, "e", false, true}, {"", 36, 5, "e", false, true},
        {"", 36, 0, "e", false, false},   {NGRAM, 36, 9, "e", false, false},
        {DRAFT, 36, 0, "e", true, false}, {DRAFT, 36, 0, "e", false, true},
    };
    uint64_t n_preemption = 0;
    uint32_t n_whole = 0, n_free = 0;
    run(&ways[0], NULL, answers[0]);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        struct buf text = BUF_INIT;
        text_of(&answers[0][i], &text);
        const char *marker = strchr(buf_str(&text), 'e');
        if (answers[0][i].finish == FINISH_STOP) {
            assert_non_null(marker);
            if (!is_choice(marker + 1))
                fail_msg("request %u: %s", i, buf_str(&text));
            n_whole++;
            n_free += marker != buf_str(&text);
        }
        buf_release(&text);
    }
    assert_true(n_whole >= N_REQUEST / 2 && n_free > 0);
    for (size_t w = 1; w < sizeof ways / sizeof *ways; w++) {
        struct scheduler_stats s = run(&ways[w], ways[w].n_emitted ? answers[0] : NULL, answers[1]);
        n_preemption += s.n_preemption;
        if (memcmp(answers[0], answers[1], N_REQUEST * sizeof *answers[0]) != 0)
            fail_msg("way %zu differs", w);
    }
    assert_true(n_preemption > 0);
}

/* Without a marker it holds from the first token. */
static void the_grammar_holds_at_once(void **state)
{
    (void)state;
    const struct run r = {"", 36, 0, "", false, false};
    run(&r, NULL, answers[0]);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        struct buf text = BUF_INIT;
        text_of(&answers[0][i], &text);
        assert_int_equal(answers[0][i].finish, FINISH_STOP);
        if (!is_choice(buf_str(&text)))
            fail_msg("request %u: %s", i, buf_str(&text));
        buf_release(&text);
    }
}

/* Text that the grammar forces is drafted, so that it takes fewer steps; the answers are those of
 * sampling token by token. */
static void forced_text_takes_fewer_steps(void **state)
{
    (void)state;
    const struct run slow = {"", 36, 0, "", true, false}, fast = {"", 36, 0, "", false, false};
    struct scheduler_stats s = run(&slow, NULL, answers[0]);
    assert_int_equal(s.n_forced_token, 0);
    struct scheduler_stats f = run(&fast, NULL, answers[1]);
    assert_memory_equal(answers[0], answers[1], N_REQUEST * sizeof *answers[0]);
    print_message("%llu steps, %llu without; %llu of %llu forced tokens were accepted\n",
                  (unsigned long long)f.step, (unsigned long long)s.step,
                  (unsigned long long)f.n_forced_accepted, (unsigned long long)f.n_forced_token);
    assert_true(f.step < s.step);
    assert_true(f.n_forced_accepted > 0 && f.n_forced_accepted <= f.n_forced_token);
    assert_int_equal(f.n_draft_token, 0);
    assert_int_equal(f.generation_tokens, s.generation_tokens);
}

static int setup(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    return tokenizer_open(&tokenizer, MODEL, &e) != Q_OK;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grammar_begins_after_the_marker),
        cmocka_unit_test(the_grammar_holds_at_once),
        cmocka_unit_test(forced_text_takes_fewer_steps),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
