/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of text: stop strings fed in any pieces, tokens decoded one by one. */
#include "check.h"
#include <pthread.h>
#include <stdlib.h>
#include "common/buf.h"
#include "common/tokenizer/stream.h"
#include "common/utf8.h"

static struct q_err err;
static uint64_t seed = 20260101;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* Feed text in pieces of at most piece_max bytes (0 = whole). */
static int run_stop(const char *const *stops, size_t n_stop, bool include, const char *text,
                    size_t piece_max, struct buf *out)
{
    struct stop *s = NULL;
    int hit = -1;
    int i_hit;
    size_t n = strlen(text);
    buf_reset(out);
    assert_ok(stop_new(&s, stops, n_stop, include, &err), &err);
    for (size_t i = 0; i < n;) {
        size_t step = piece_max ? 1 + draw((uint32_t)piece_max) : n;
        step = step > n - i ? n - i : step;
        assert_ok(stop_push(s, text + i, step, out, &i_hit, &err), &err);
        if (i_hit >= 0) {
            assert_int_equal(hit, -1); /* said once */
            hit = i_hit;
        }
        i += step;
    }
    assert_ok(stop_flush(s, out, &err), &err);
    stop_free(s);
    return hit;
}

static void test_stop_rows(void **state)
{
    (void)state;
    static const struct {
        const char *stops[3];
        const char *text;
        bool include;
        const char *want;
        int hit;
    } rows[] = {
        {{"END"}, "abc END def", false, "abc ", 0},
        {{"END"}, "abc END def", true, "abc END", 0},
        {{"END"}, "abc EN", false, "abc EN", -1},
        {{"aab"}, "aaab", false, "a", 0},
        {{"aaaa"}, "aaabaaa", false, "aaabaaa", -1},
        {{"b", "ab"}, "xaby", false, "x", 1},   /* same end: the longest */
        {{"ab", "ab"}, "xaby", false, "x", 0},  /* equal: the first */
        {{"bcd", "c"}, "abcd", false, "ab", 1}, /* the one that ends first */
        {{"\n\n"}, "a\n\nb", false, "a", 0},
        {{"\u4f60"}, "\u4f5f\u4f60\u597d", false, "\u4f5f", 0},
        {{NULL}, "all of it", false, "all of it", -1},
        {{"x"}, "", false, "", -1},
        {{"x"}, "x", false, "", 0},
    };
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = 0;
        while (n < 3 && rows[i].stops[n])
            n++;
        for (size_t piece = 0; piece < 4; piece++) {
            int hit = run_stop(rows[i].stops, n, rows[i].include, rows[i].text, piece, &out);
            assert_string_equal(buf_str(&out), rows[i].want);
            assert_int_equal(hit, rows[i].hit);
        }
    }
    buf_release(&out);
}

/* The definition: the earliest end of any stop string; of those the longest, then the first. */
static int naive(const char (*stops)[8], size_t n_stop, bool include, const char *text, char *out)
{
    size_t n = strlen(text);
    for (size_t end = 1; end <= n; end++) {
        int hit = -1;
        for (size_t i = 0; i < n_stop; i++) {
            size_t len = strlen(stops[i]);
            bool ends = len <= end && memcmp(text + end - len, stops[i], len) == 0;
            if (ends && (hit < 0 || len > strlen(stops[hit])))
                hit = (int)i;
        }
        if (hit >= 0) {
            size_t keep = include ? end : end - strlen(stops[hit]);
            memcpy(out, text, keep);
            out[keep] = '\0';
            return hit;
        }
    }
    memcpy(out, text, n + 1);
    return -1;
}

static void random_text(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s[i] = (char)('a' + draw(2 + draw(2)));
    s[n] = '\0';
}

static void test_stop_random(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    for (int round = 0; round < 20000; round++) {
        char stops[4][8], text[48], want[48];
        const char *list[4] = {stops[0], stops[1], stops[2], stops[3]};
        size_t n_stop = draw(5);
        for (size_t i = 0; i < n_stop; i++)
            random_text(stops[i], 1 + draw(6));
        random_text(text, draw(40));
        bool include = draw(2);
        int hit = naive(stops, n_stop, include, text, want);
        assert_int_equal(run_stop(list, n_stop, include, text, draw(6), &out), hit);
        assert_string_equal(buf_str(&out), want);
    }
    buf_release(&out);
}

static void test_stop_refused(void **state)
{
    (void)state;
    static char long_one[STOP_BYTES_MAX + 2];
    const char *many[STOP_STRINGS_MAX + 1];
    struct stop *s = NULL;
    memset(long_one, 'x', STOP_BYTES_MAX + 1);
    for (size_t i = 0; i <= STOP_STRINGS_MAX; i++)
        many[i] = "x";
    assert_fails(stop_new(&s, many, STOP_STRINGS_MAX + 1, false, &err), Q_INVALID, "17 strings",
                 &err);
    many[2] = "";
    assert_fails(stop_new(&s, many, 3, false, &err), Q_INVALID, "stop[2] is empty", &err);
    many[1] = long_one;
    assert_fails(stop_new(&s, many, 3, false, &err), Q_INVALID, "stop[1] has 1025 bytes", &err);
    long_one[STOP_BYTES_MAX] = '\0';
    assert_ok(stop_new(&s, many, 2, false, &err), &err);
    stop_free(s);
    stop_free(NULL);
}

/* Nothing comes out after a stop string, for any further input. */
static void test_stop_done(void **state)
{
    (void)state;
    const char *stops[] = {"."};
    struct stop *s = NULL;
    struct buf out = BUF_INIT;
    int hit;
    assert_ok(stop_new(&s, stops, 1, true, &err), &err);
    assert_ok(stop_push(s, "a.b.", 4, &out, &hit, &err), &err);
    assert_int_equal(hit, 0);
    assert_ok(stop_push(s, "c.", 2, &out, &hit, &err), &err);
    assert_int_equal(hit, -1);
    assert_ok(stop_flush(s, &out, &err), &err);
    assert_string_equal(buf_str(&out), "a.");
    stop_free(s);
    buf_release(&out);
}

/* Any ids: the pieces are whole UTF-8 and together the text that decoding at once gives. */
static void test_detok_random(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    assert_ok(tokenizer_open(&t, "tests/data/tokenizers/qwen2", &err), &err);
    uint32_t n_id = tokenizer_vocab_size(t) + 3; /* a few that are none */
    for (int round = 0; round < 3000; round++) {
        uint32_t ids[40];
        size_t n = draw(40);
        bool skip = draw(2);
        struct detok *d = NULL;
        struct buf whole = BUF_INIT;
        struct buf parts = BUF_INIT;
        for (size_t i = 0; i < n; i++)
            ids[i] = draw(3) ? draw(256) : draw(n_id); /* mostly single bytes */
        assert_ok(tokenizer_decode(t, ids, n, skip, &whole, &err), &err);
        assert_ok(detok_new(&d, t, skip, &err), &err);
        for (size_t i = 0; i < n; i++) {
            size_t from = parts.len;
            assert_ok(detok_push(d, ids[i], &parts, &err), &err);
            assert_true(utf8_valid(buf_str(&parts) + from, parts.len - from));
        }
        assert_ok(detok_flush(d, &parts, &err), &err);
        assert_int_equal(parts.len, whole.len);
        assert_memory_equal(buf_str(&parts), buf_str(&whole), whole.len);
        detok_free(d);
        buf_release(&whole);
        buf_release(&parts);
    }
    detok_free(NULL);
    tokenizer_free(t);
}

/* A part behind ByteFallback gets whole tokens: a run of bytes is one, however it streams. Every
 * sequence of up to five of these ids. */
static void test_runs_of_bytes_before_whole_tokens(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
        "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u00e9\u00e9\"},\"content\":\"x\"}"};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        struct tokenizer *t = NULL;
        struct buf json = BUF_INIT, whole = BUF_INIT, stream = BUF_INIT;
        buf_printf(
            &json,
            "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":["
            "[\"<unk>\",0],[\"a\",-1],[\"_b\",-2],[\"<0xC3>\",-3],[\"<0xA9>\",-3]]},"
            "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},%s]}}",
            parts[k]);
        assert_ok(tokenizer_from_json(&t, buf_str(&json), json.len, &err), &err);
        for (uint32_t n = 0; n <= 5; n++)
            for (uint32_t code = 0; code < 1u << (2 * n); code++) {
                struct detok *d = NULL;
                uint32_t ids[5];
                for (uint32_t i = 0; i < n; i++)
                    ids[i] = 1 + (code >> (2 * i)) % 4;
                buf_reset(&whole);
                buf_reset(&stream);
                assert_ok(tokenizer_decode(t, ids, n, false, &whole, &err), &err);
                assert_ok(detok_new(&d, t, false, &err), &err);
                for (uint32_t i = 0; i < n; i++)
                    assert_ok(detok_push(d, ids[i], &stream, &err), &err);
                assert_ok(detok_flush(d, &stream, &err), &err);
                detok_free(d);
                if (strcmp(buf_str(&stream), buf_str(&whole)) != 0)
                    fail_msg("%s: %u ids, %x: \"%s\", as a stream \"%s\"", parts[k], n, code,
                             buf_str(&whole), buf_str(&stream));
            }
        buf_release(&json);
        buf_release(&whole);
        buf_release(&stream);
        tokenizer_free(t);
    }
}

static void test_token_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct buf b = BUF_INIT;
    assert_ok(tokenizer_open(&t, "tests/data/tokenizers/qwen2", &err), &err);
    uint32_t id = tokenizer_id(t, "\u0120t"); /* " t" */
    assert_ok(tokenizer_token_bytes(t, id, &b, &err), &err);
    assert_string_equal(buf_str(&b), " t");
    buf_reset(&b);
    id = tokenizer_id(t, "\u00e4"); /* the byte 0xe4, no UTF-8 by itself */
    assert_ok(tokenizer_token_bytes(t, id, &b, &err), &err);
    assert_int_equal(b.len, 1);
    assert_int_equal((unsigned char)b.data[0], 0xe4);
    buf_reset(&b);
    id = tokenizer_id(t, "<|im_end|>");
    assert_true(tokenizer_is_special(t, id));
    assert_ok(tokenizer_token_bytes(t, id, &b, &err), &err);
    assert_string_equal(buf_str(&b), "<|im_end|>");
    assert_false(tokenizer_is_special(t, tokenizer_id(t, "<tool_call>")));
    assert_int_equal(tokenizer_id(t, "no such token"), TOKEN_NONE);
    buf_reset(&b);
    assert_ok(tokenizer_token_bytes(t, UINT32_MAX - 1, &b, &err), &err);
    assert_int_equal(b.len, 0);
    buf_release(&b);
    tokenizer_free(t);
}

/* One tokenizer, several threads at once: everybody gets what one alone gets. */
#define N_THREAD 4

static const char thread_text[] =
    "Hello,  na\u0308ive w\u00f6rld!\n\n  12345 <|im_start|>user \u4f60\u597d aaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void *encode_often(void *tokenizer)
{
    static _Thread_local struct token_list ids;
    struct q_err e;
    uint64_t sum = 0;
    for (int round = 0; round < 200; round++) {
        ids.n = 0;
        if (tokenizer_encode(tokenizer, thread_text, sizeof thread_text - 1, true, &ids, &e))
            sum += 1u << 30;
        for (size_t i = 0; i < ids.n; i++)
            sum = sum * 31 + ids.ids[i];
    }
    token_list_release(&ids);
    return (void *)(uintptr_t)sum;
}

static void test_threads(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    pthread_t threads[N_THREAD];
    assert_ok(tokenizer_open(&t, "tests/data/tokenizers/qwen2", &err), &err);
    void *want = encode_often(t);
    for (int i = 0; i < N_THREAD; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (int i = 0; i < N_THREAD; i++) {
        void *got = NULL;
        pthread_join(threads[i], &got);
        assert_ptr_equal(got, want);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_rows),
        cmocka_unit_test(test_stop_random),
        cmocka_unit_test(test_stop_refused),
        cmocka_unit_test(test_stop_done),
        cmocka_unit_test(test_detok_random),
        cmocka_unit_test(test_runs_of_bytes_before_whole_tokens),
        cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
