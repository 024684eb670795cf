/* SPDX-License-Identifier: Apache-2.0 */
/* quire-schema MODEL|-: compiles grammars, tests texts against them and measures their masks. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/buf.h"
#include "common/hub/hub.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/matcher/matcher.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LOAD = 3 };
#define LINE_MAX_BYTES ((size_t)16 << 20)
#define SAMPLE_MAX     100000

struct lab {
    struct tokenizer *tokenizer; /* NULL: texts only */
    struct trie trie;
    uint32_t *bits;
    double *mask_us; /* of one line */
    size_t n_mask, mask_cap;
    struct q_err failed; /* of the program, the first: its answers are not to be trusted */
};

static void note_failure(struct lab *l, const struct q_err *e)
{
    if (e->code && !l->failed.code)
        l->failed = *e;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int add_piece(const char *text, size_t n, void *out)
{
    buf_add(out, text, n);
    return 0;
}

/* Kind and source of a line; false: it has none. */
static bool source_of(const json_t *line, uint32_t *kind, struct buf *out)
{
    static const struct {
        const char *key;
        uint32_t kind;
    } keys[] = {
        {"json_schema", GRAMMAR_JSON}, {"regex", GRAMMAR_REGEX},         {"choice", GRAMMAR_CHOICE},
        {"grammar", GRAMMAR_EBNF},     {"structural_tag", GRAMMAR_TAGS},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(line, keys[i].key);
        if (!v)
            continue;
        *kind = keys[i].kind;
        if (json_is_true(json_object_get(line, "compact")))
            *kind |= GRAMMAR_COMPACT;
        if (json_is_string(v))
            buf_add(out, json_string_value(v), json_string_length(v));
        else
            json_dump_callback(v, add_piece, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        return true;
    }
    return false;
}

static bool has_two_sources(const json_t *line)
{
    static const char *const keys[] = {"json_schema", "regex", "choice", "grammar",
                                       "structural_tag"};
    int n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        n += json_object_get(line, keys[i]) != NULL;
    return n > 1;
}

static bool mask(struct lab *l, struct matcher *m, matcher_config c)
{
    struct q_err e = Q_ERR_INIT;
    memset(l->bits, 0, trie_words(&l->trie) * sizeof *l->bits);
    int64_t start = now_ns();
    bool ok = matcher_mask(m, c, l->bits);
    if (!q_grow(&l->mask_us, &l->mask_cap, l->n_mask + 1, sizeof *l->mask_us, 1u << 28, &e))
        l->mask_us[l->n_mask++] = (double)(now_ns() - start) / 1000;
    note_failure(l, &e);
    return ok;
}

/* Before each mask, as in a worker: where the matcher has forgotten, the text is read again. */
static matcher_config again(struct matcher *m, uint32_t *generation, matcher_config c,
                            const uint32_t *ids, size_t n)
{
    uint32_t now = matcher_begin(m);
    if (now == *generation)
        return c;
    *generation = now;
    c = matcher_start(m);
    for (size_t i = 0; i < n && c; i++)
        c = matcher_token(m, c, ids[i]);
    return c;
}

/* A text by its bytes; with a tokenizer also by its tokens, each of which must be in the mask. */
static json_t *accepts(struct lab *l, struct matcher *m, const char *text, size_t n)
{
    struct token_list ids = TOKEN_LIST_INIT;
    struct q_err e = Q_ERR_INIT;
    matcher_begin(m);
    matcher_config c = matcher_bytes(m, matcher_start(m), text, n);
    bool by_bytes = c && matcher_can_end(m, c), by_tokens = by_bytes;
    if (l->tokenizer && tokenizer_encode(l->tokenizer, text, n, false, &ids, &e)) {
        note_failure(l, &e);
    } else if (l->tokenizer) {
        uint32_t generation = matcher_begin(m);
        c = matcher_start(m);
        for (size_t i = 0; i < ids.n && c; i++) {
            c = again(m, &generation, c, ids.ids, i);
            bool has = mask(l, m, c) && l->bits[ids.ids[i] / 32] >> ids.ids[i] % 32 & 1;
            c = matcher_token(m, c, ids.ids[i]);
            if (has != (c != 0))
                fprintf(stderr, "quire-schema: the mask and its matcher differ on token %u\n",
                        ids.ids[i]);
            if (!has)
                c = 0;
        }
        by_tokens = c && matcher_can_end(m, c);
    }
    token_list_release(&ids);
    if (by_bytes != by_tokens)
        fprintf(stderr, "quire-schema: accepted by bytes: %d, by tokens: %d\n", by_bytes,
                by_tokens);
    return json_boolean(by_tokens);
}

static uint64_t draw(uint64_t *seed)
{
    *seed += 0x9E3779B97F4A7C15u;
    uint64_t z = *seed;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* One of the set bits at random; TRIE_NONE: none is set. */
static uint32_t pick(const struct lab *l, uint64_t *seed)
{
    uint32_t n = 0, n_word = trie_words(&l->trie);
    for (uint32_t i = 0; i < n_word; i++)
        n += (uint32_t)__builtin_popcount(l->bits[i]);
    if (!n)
        return TRIE_NONE;
    uint32_t left = (uint32_t)(draw(seed) % n);
    for (uint32_t i = 0; i < n_word; i++)
        for (uint32_t word = l->bits[i]; word; word &= word - 1)
            if (left-- == 0)
                return i * 32 + (uint32_t)__builtin_ctz(word);
    return TRIE_NONE;
}

/* A text by random tokens from the masks, ended as soon as it may after n_token; null: it did not
 * come to an end. */
static json_t *sample(struct lab *l, struct matcher *m, uint64_t seed, size_t n_token)
{
    char text[65536];
    size_t n = 0;
    matcher_begin(m);
    matcher_config c = matcher_start(m);
    for (size_t i = 0; i < 4 * n_token + 64; i++) {
        bool may_end = matcher_can_end(m, c);
        if (!mask(l, m, c))
            return json_null();
        if (may_end && (i >= n_token || draw(&seed) % 4 == 0 || matcher_must_end(m, c)))
            return json_stringn(text, n) ?: json_string("(not UTF-8)");
        uint32_t id = pick(l, &seed);
        for (int tries = 0; i >= n_token && tries < 8; tries++) { /* to an end: short tokens */
            uint32_t other = pick(l, &seed);
            const uint32_t *at = l->trie.at;
            if (other != TRIE_NONE && at[other + 1] - at[other] < at[id + 1] - at[id])
                id = other;
        }
        if (id == TRIE_NONE)
            return may_end ? json_stringn(text, n) : json_string("(dead end)");
        size_t n_byte = l->trie.at[id + 1] - l->trie.at[id];
        if (n + n_byte > sizeof text)
            break;
        memcpy(text + n, l->trie.text + l->trie.at[id], n_byte);
        n += n_byte;
        c = matcher_token(m, c, id);
    }
    return json_null();
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* raw: every mask's time too, in their order. */
static void add_statistics(struct lab *l, const struct matcher *m, bool raw, json_t *out)
{
    struct matcher_stats s;
    matcher_stats(m, &s);
    json_object_set_new(out, "n_mask", json_integer((json_int_t)s.n_mask));
    json_object_set_new(out, "n_walk", json_integer((json_int_t)s.n_walk));
    if (!l->n_mask)
        return;
    double sum = 0, first = l->mask_us[0];
    json_t *times = raw ? json_array() : NULL;
    for (size_t i = 0; raw && i < l->n_mask; i++)
        json_array_append_new(times, json_real(l->mask_us[i]));
    if (raw)
        json_object_set_new(out, "mask_us", times);
    for (size_t i = 0; i < l->n_mask; i++)
        sum += l->mask_us[i];
    qsort(l->mask_us, l->n_mask, sizeof *l->mask_us, by_size);
    json_object_set_new(out, "first_mask_us", json_real(first));
    json_object_set_new(out, "mask_us_median", json_real(l->mask_us[l->n_mask / 2]));
    json_object_set_new(out, "mask_us_p99", json_real(l->mask_us[l->n_mask * 99 / 100]));
    json_object_set_new(out, "mask_us_max", json_real(l->mask_us[l->n_mask - 1]));
    json_object_set_new(out, "mask_us_mean", json_real(sum / (double)l->n_mask));
}

static void try_texts(struct lab *l, struct matcher *m, const json_t *line, json_t *out)
{
    const json_t *texts = json_object_get(line, "texts");
    json_t *accepted = json_array(), *v;
    size_t i, n = (size_t)json_number_value(json_object_get(line, "sample"));
    json_int_t n_token = (json_int_t)json_number_value(json_object_get(line, "tokens"));
    json_int_t seed = (json_int_t)json_number_value(json_object_get(line, "seed"));
    json_array_foreach ((json_t *)texts, i, v)
        json_array_append_new(
            accepted,
            accepts(l, m, json_string_value(v) ? json_string_value(v) : "", json_string_length(v)));
    json_object_set_new(out, "accepted", accepted);
    char forced[256];
    matcher_begin(m);
    size_t n_forced = matcher_forced(m, matcher_start(m), forced, sizeof forced);
    json_t *start = json_stringn(forced, n_forced);
    json_object_set_new(out, "forced", start ? start : json_string(""));
    if (!l->tokenizer || !n)
        return;
    json_t *samples = json_array();
    for (i = 0; i < n && i < SAMPLE_MAX; i++)
        json_array_append_new(samples, sample(l, m, (uint64_t)seed * 1000003 + i,
                                              n_token > 0 ? (size_t)n_token : 60));
    json_object_set_new(out, "samples", samples);
}

static void answer(struct lab *l, const json_t *line, json_t *out)
{
    struct q_err e = Q_ERR_INIT;
    struct matcher *m = NULL;
    uint32_t kind = GRAMMAR_NONE, *words = NULL, n_word = 0;
    struct buf source = BUF_INIT;
    bool has_source = source_of(line, &kind, &source);
    const char *after = json_string_value(json_object_get(line, "after"));
    int64_t start = now_ns();
    const struct grammar_source from = {
        .kind = kind,
        .text = buf_str(&source),
        .n = source.len,
        .after = after,
        .n_after = after ? strlen(after) : 0,
    };
    enum q_code rc =
        has_source && !has_two_sources(line)
            ? buf_check(&source, "the grammar", &e) ?: grammar_compile(&words, &n_word, &from, &e)
            : q_fail(&e, Q_INVALID,
                     "the line has %s of json_schema, regex, choice, grammar, "
                     "structural_tag",
                     has_source ? "more than one" : "none");
    json_object_set_new(out, "compiled", json_boolean(!rc));
    json_object_set_new(out, "compile_ms", json_real((double)(now_ns() - start) / 1e6));
    l->n_mask = 0;
    if (!rc)
        rc = matcher_new(&m, words, n_word, l->tokenizer ? &l->trie : NULL, &e);
    if (rc == Q_NO_MEMORY)
        note_failure(l, &e);
    if (rc) {
        json_object_set_new(out, "error", json_string(e.message));
        json_object_set_new(out, "code", json_string(q_code_name(rc)));
    } else {
        json_object_set_new(out, "program_bytes", json_integer((json_int_t)n_word * 4));
        try_texts(l, m, line, out);
        add_statistics(l, m, json_is_true(json_object_get(line, "raw")), out);
    }
    matcher_free(m);
    q_free(words);
    buf_release(&source);
}

/* One line of input and its answer, which is not written when some allocation failed. */
static void try_line(struct lab *l, const char *text, size_t n)
{
    json_error_t error;
    struct buf shown = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    const uint64_t n_failure = mem_failure_count();
    json_t *out = json_object(), *line = json_read_bytes(text, n, JSON_ALLOW_NUL, &error);
    if (!line && json_error_code(&error) == json_error_numeric_overflow) /* beyond 64 bits */
        line = json_read_bytes(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (json_is_object(line))
        answer(l, line, out);
    else
        json_object_set_new(out, "error", json_string("the line is not a JSON object"));
    json_dump_callback(out, add_piece, &shown, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (!mem_check(n_failure, Q_OK, "a line", &e) && !buf_check(&shown, "the answer", &e))
        puts(buf_str(&shown));
    note_failure(l, &e);
    fflush(stdout);
    buf_release(&shown);
    json_decref(line);
    json_decref(out);
}

static int run_lab(struct lab *l)
{
    struct buf text = BUF_INIT_MAX(LINE_MAX_BYTES);
    char piece[65536];
    while (fgets(piece, sizeof piece, stdin)) {
        size_t n = strlen(piece);
        buf_add(&text, piece, n);
        if (piece[n - 1] != '\n' && !feof(stdin))
            continue;
        if (text.failed == Q_NO_MEMORY)
            (void)q_fail(&l->failed, Q_NO_MEMORY, "out of memory for a line");
        if (text.failed)
            puts(text.failed == Q_NO_MEMORY ? "{\"error\":\"out of memory\"}"
                                            : "{\"error\":\"the line is longer than 16 MB\"}");
        else if (text.len > 1)
            try_line(l, text.data, text.len);
        buf_reset(&text);
    }
    if (ferror(stdin))
        (void)q_fail(&l->failed, Q_IO, "standard input cannot be read");
    buf_release(&text);
    if (l->failed.code)
        fprintf(stderr, "quire schema: %s\n", l->failed.message);
    return l->failed.code ? EXIT_FAILED : 0;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_SCHEMA,
        .name = "quire schema",
        .usage = "MODEL|- [options] < LINES",
        .about = "Compiles grammars for structured output and tests texts against them. With - "
                 "instead of "
                 "MODEL there is no vocabulary: texts are matched by their bytes, without token "
                 "masks. Each "
                 "line of standard input is a JSON object:\n"
                 "\"json_schema\": {…}\tgrammar to compile: one of json_schema, regex, choice, "
                 "grammar (EBNF "
                 "or Lark) and structural_tag\n"
                 "\"compact\": true\tJSON without spaces and line breaks\n"
                 "\"after\": \"…\"\tmarker after which the grammar begins, such as the end of "
                 "reasoning\n"
                 "\"texts\": [\"…\", …]\ttexts to test\n"
                 "\"sample\": N\talso write N texts of random tokens; \"tokens\": their length, "
                 "\"seed\": "
                 "the random seed\n"
                 "\"raw\": true\talso write the time of each mask\n"
                 "Each line of standard output has the members compiled, compile_ms and accepted "
                 "(one value "
                 "for each text), or error and code.",
        .positional_min = 1,
        .positional_max = 1,
    };
    static struct options o;
    struct lab l = {.trie = TRIE_INIT};
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    int rc = options_main(&o, &info, argc, argv);
    if (rc >= 0)
        return rc;
    if (strcmp(o.positional[0], "-") != 0) {
        if (hub_find_tokenizer(path, o.positional[0], *o.revision ? o.revision : NULL, &e) ||
            tokenizer_open(&l.tokenizer, path, &e) ||
            trie_of_tokenizer(&l.trie, l.tokenizer, tokenizer_vocab_size(l.tokenizer), &e)) {
            fprintf(stderr, "quire schema: %s\n", e.message);
            tokenizer_free(l.tokenizer);
            return EXIT_LOAD;
        }
        l.bits = q_calloc(trie_words(&l.trie), sizeof *l.bits);
        if (!l.bits)
            (void)q_fail(&l.failed, Q_NO_MEMORY, "out of memory for masks");
    }
    if (l.failed.code)
        fprintf(stderr, "quire schema: %s\n", l.failed.message);
    rc = l.failed.code ? EXIT_FAILED : run_lab(&l);
    q_free(l.bits);
    q_free(l.mask_us);
    trie_release(&l.trie);
    tokenizer_free(l.tokenizer);
    return rc;
}
