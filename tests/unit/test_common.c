/* SPDX-License-Identifier: Apache-2.0 */
/* err, mem, buf, utf8, parse, dtype and file: the parts every layer leans on. */
#include "check.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/download.h"
#include "common/dtype.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/net.h"
#include "common/parse.h"
#include "common/size_text.h"
#include "common/utf8.h"

static void time_without_a_turn_of_the_loop_is_left_out(void **state)
{
    (void)state;
    int64_t turn_ms = 0;
    assert_int_equal(clock_gap_ms(&turn_ms, 90000, 2000), 0); /* the first turn */
    assert_int_equal(clock_gap_ms(&turn_ms, 91999, 2000), 0);
    assert_int_equal(clock_gap_ms(&turn_ms, 93999, 2000), 2000);
    assert_int_equal(clock_gap_ms(&turn_ms, 94000, 2000), 0); /* counted once */
    assert_int_equal(turn_ms, 94000);
    assert_int_equal(clock_skip_gap(90000, 2000, 94000), 92000);
    assert_int_equal(clock_skip_gap(93000, 2000, 94000), 94000); /* heard within the gap */
    assert_int_equal(clock_skip_gap(90000, 0, 94000), 90000);
    assert_int_equal(clock_skip_gap(0, 2000, 94000), 0); /* never heard */

    struct clock_watch w = {0, 0, 0};
    assert_int_equal(clock_watch_since(&w, 0, 50000, 2000), 0);
    assert_int_equal(clock_watch_since(&w, 89000, 90000, 2000), 90000); /* no turn before: late */
    assert_int_equal(clock_watch_since(&w, 90500, 91000, 2000), 90500); /* another job */
    assert_int_equal(clock_watch_since(&w, 90500, 92000, 2000), 90500);
    assert_int_equal(clock_watch_since(&w, 90500, 152000, 2000), 150500); /* frozen for a minute */
    assert_int_equal(clock_watch_since(&w, 90500, 153000, 2000), 150500);
    assert_int_equal(clock_watch_since(&w, 90500, 163000, 2000), 160500); /* and again */
    assert_int_equal(clock_watch_since(&w, 0, 164000, 2000), 0);
}

static void err_keeps_code_and_cuts_whole_characters(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    char text[Q_MESSAGE_MAX + 64];
    memset(text, 'x', sizeof text);
    for (size_t shift = 0; shift < 4; shift++) { /* U+1F600 wherever the message may be cut */
        memset(text, 'x', sizeof text - 1);
        text[sizeof text - 1] = '\0';
        for (size_t at = shift; at + 4 < sizeof text; at += 4)
            memcpy(text + at, "\xf0\x9f\x98\x80", 4);
        assert_int_equal(q_fail(&e, Q_INVALID, "%s", text), Q_INVALID);
        assert_true(utf8_valid(e.message, strlen(e.message)));
        assert_true(strlen(e.message) >= Q_MESSAGE_MAX - 8);
        assert_non_null(strstr(e.message, "\xe2\x80\xa6")); /* … */
    }
    assert_int_equal(q_fail(&e, Q_NO_SPACE, "kv: need %d", 3), Q_NO_SPACE);
    assert_int_equal(q_wrap(&e, "step %d", 7), Q_NO_SPACE);
    assert_string_equal(e.message, "step 7: kv: need 3");
    assert_int_equal(q_fail(&e, Q_IO, "%s, of all things", e.message), Q_IO); /* its own message */
    assert_string_equal(e.message, "step 7: kv: need 3, of all things");
    e.code = Q_NO_SPACE;
    snprintf(e.message, sizeof e.message, "step 7: kv: need 3");
    assert_int_equal(q_code_http(Q_NO_SPACE), 429);
    assert_string_equal(q_code_name(Q_NO_SPACE), "NO_SPACE");
    assert_int_equal(q_fail(NULL, Q_IO, "nobody listens"), Q_IO);
}

/* What does not fit goes from the middle of paths: where they begin, how they end and what is said
 * of them stays. */
static void err_shortens_paths_in_their_middle(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    char path[4096], other[4096];
    memset(path, 'a', sizeof path);
    memset(other, 'b', sizeof other);
    memcpy(path, "/models/first", 13);
    memcpy(other, "/models/second", 14);
    memcpy(path + sizeof path - 13, "/config.json", 13);
    memcpy(other + sizeof other - 16, "/tokenizer.json", 16);
    assert_int_equal(q_fail(&e, Q_IO, "%s: cannot copy to %s: disk full", path, other), Q_IO);
    assert_true(strlen(e.message) < Q_MESSAGE_MAX);
    assert_true(strlen(e.message) > Q_MESSAGE_MAX - 16);
    assert_non_null(strstr(e.message, "/models/firsta"));
    assert_non_null(strstr(e.message, "a/config.json: cannot copy to /models/secondb"));
    assert_non_null(strstr(e.message, "b/tokenizer.json: disk full"));
    assert_int_equal(q_wrap(&e, "%s", path), Q_IO);
    assert_true(strlen(e.message) < Q_MESSAGE_MAX);
    assert_non_null(strstr(e.message, "/config.json: /models/first"));
    assert_non_null(strstr(e.message, "b/tokenizer.json: disk full"));
    char words[3 * Q_MESSAGE_MAX + 1] = ""; /* no word is long: the text's own middle goes */
    for (size_t i = 0; i < sizeof words - 1; i++)
        words[i] = i % 8 == 7 ? ' ' : (char)('0' + i % 8);
    assert_int_equal(q_fail(&e, Q_IO, "first %slast", words), Q_IO);
    assert_true(strlen(e.message) < Q_MESSAGE_MAX && strlen(e.message) > Q_MESSAGE_MAX - 8);
    assert_memory_equal(e.message, "first 0123456 0", 15);
    assert_string_equal(e.message + strlen(e.message) - 12, "0123456 last");
    char small[] = "0123456789abcde";
    q_shorten(small, 12);
    assert_string_equal(small, "012\xe2\x80\xa6"
                               "abcde");
    memset(words, '\x80', sizeof words - 1); /* no character at all */
    assert_int_equal(q_fail(&e, Q_IO, "%s", words), Q_IO);
    assert_true(strlen(e.message) < Q_MESSAGE_MAX);
}

static void download_knows_what_is_not_the_file(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
         "/m/x.json is a Git LFS pointer, not the file itself: run `git lfs pull` "
         "in "
         "/m"},
        {"version https://hawser.github.com/spec/v1\n", "is a Git LFS pointer"},
        {"# xet version 0\nfilesize = 5\nhash = '0'\n", "is a Xet pointer"},
        {"\xef\xbb\xbf\n<!DOCTYPE html><title>x", "is an HTML page"},
        {"<HTML>", "is an HTML page"},
        {"GGUF\3", "is a GGUF file despite its name"},
        {"PK\3\4 ", "is a zip archive despite its name"},
        {"/annex/objects/SHA256E-s5--0.json\n", "is a git-annex pointer"},
        {"Entry not found", "error message instead of the file (\"Entry not found\")"},
        {"Invalid username or password.\nx", "(\"Invalid username or password.\")"},
        {"", "is empty"},
    };
    static const char *const good[] = {"{",
                                       "version",
                                       "<s>",
                                       "x",
                                       " \n",
                                       "{\"a\": \"<html\"}",
                                       "version https://git-lfs.github.com"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(download_check(bad[i].text, strlen(bad[i].text), "/m/x.json", &e), Q_CORRUPT,
                     bad[i].part, &e);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ok(download_check(good[i], strlen(good[i]), "/m/x.json", &e), &e);
    assert_ok(download_check("PK\3\4 ", 5, "/m/pytorch_model.bin", &e), &e); /* of torch.save */
    assert_fails(download_check(bad[0].text, strlen(bad[0].text), "x.json", &e), Q_CORRUPT,
                 "`git lfs pull` in .,", &e);
    assert_fails(download_check(bad[0].text, strlen(bad[0].text), "/x.json", &e), Q_CORRUPT,
                 "`git lfs pull` in /,", &e);
    assert_fails(download_check_file("/nonexistent/x", &e), Q_NOT_FOUND, "/nonexistent/x", &e);
    assert_fails(download_check_file("/", &e), Q_IO, "/: cannot read", &e);
}

static void net_knows_what_others_reach(void **state)
{
    (void)state;
    static const char *const open[] = {
        "0.0.0.0",          "::", "192.0.2.1",           "2001:db8::1",
        "::ffff:192.0.2.1", "*",  "no.such.host.invalid"};
    static const char *const closed[] = {"127.0.0.1", "127.1.2.3", "::1", "localhost",
                                         "::ffff:127.0.0.1"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        assert_true(net_host_is_open(open[i]));
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        assert_false(net_host_is_open(closed[i]));
    assert_string_equal(net_hint(0), "");
    assert_non_null(strstr(net_hint(EADDRINUSE), "--port"));
    assert_non_null(strstr(net_hint(EACCES), "1024"));
}

static void mem_counts_fails_and_grows(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    mem_fail_after(1);
    void *first = q_alloc(8);
    void *second = q_alloc(8);
    mem_fail_after(-1);
    assert_non_null(first);
    assert_null(second);
    q_free(first);
    assert_null(q_realloc_array(NULL, SIZE_MAX / 2, 3));
    uint32_t *items = NULL;
    size_t cap = 0;
    assert_ok(q_grow(&items, &cap, 5, sizeof *items, 100, &e), &e);
    assert_true(cap >= 5);
    items[4] = 9;
    assert_ok(q_grow(&items, &cap, 100, sizeof *items, 100, &e), &e);
    assert_int_equal(cap, 100);
    assert_int_equal(items[4], 9);
    assert_fails(q_grow(&items, &cap, 101, sizeof *items, 100, &e), Q_TOO_LARGE, "101", &e);
    assert_int_equal(cap, 100);
    q_free(items);
}

static void arena_respects_its_limit(void **state)
{
    (void)state;
    struct arena a = ARENA_INIT(100000);
    unsigned char *p = arena_alloc(&a, 10);
    assert_non_null(p);
    for (int i = 0; i < 10; i++)
        assert_int_equal(p[i], 0);
    assert_int_equal((uintptr_t)p % 16, 0);
    assert_non_null(arena_alloc(&a, 50000));
    assert_null(arena_alloc(&a, 60000));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc_array(&a, SIZE_MAX / 4, 8));
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 90000));
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    arena_release(&a);
}

static void buf_keeps_its_first_failure(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT_MAX(10);
    buf_printf(&b, "%s-%d", "abc", 42);
    assert_string_equal(buf_str(&b), "abc-42");
    buf_add_str(&b, "too long");
    buf_add_str(&b, "x"); /* would fit, but comes after the failure */
    assert_string_equal(buf_str(&b), "abc-42");
    assert_fails(buf_check(&b, "test text", &e), Q_TOO_LARGE, "test text", &e);
    buf_release(&b);
    struct buf j = BUF_INIT;
    buf_add_json_str(&j, "a\"\\\n\x01\xff\xc3\xa9", 8);
    assert_string_equal(buf_str(&j), "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\"");
    struct buf k = BUF_INIT;
    buf_move(&k, &j);
    assert_null(j.data);
    buf_release(&k);
    buf_release(&j);
    struct buf big = BUF_INIT;
    buf_printf(&big, "%0500d", 7);
    assert_int_equal(big.len, 500);
    buf_release(&big);
}

static void utf8_agrees_with_the_standard(void **state)
{
    (void)state;
    uint32_t cp;
    /* Unicode 15, table 3-8: maximal subparts of an ill-formed sequence */
    static const char bad[] = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
    static const uint32_t want[] = {0x61,   0xfffd, 0xfffd, 0xfffd, 0x62,
                                    0xfffd, 0x63,   0xfffd, 0xfffd, 0x64};
    size_t at = 0, n = sizeof bad - 1;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        at += utf8_decode(bad + at, n - at, &cp);
        assert_int_equal(cp, want[i]);
    }
    assert_int_equal(at, n);
    for (uint32_t c = 0; c < 0x110000; c += 7) {
        char out[4];
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        size_t len = utf8_encode(c, out);
        assert_true(utf8_valid(out, len));
        assert_int_equal(utf8_decode(out, len, &cp), len);
        assert_int_equal(cp, c);
        for (size_t cut = 1; cut < len; cut++)
            assert_int_equal(utf8_complete_prefix(out, cut), 0);
    }
    assert_false(utf8_valid("\xed\xa0\x80", 3));
    assert_false(utf8_valid("\xc0\x80", 2));
    assert_int_equal(utf8_complete_prefix("ab\xff", 3),
                     3); /* broken for good: nothing to wait for */
    assert_int_equal(utf8_count("a\xc3\xa9\xff", 4), 3);
}

static void numbers_are_parsed_whole_or_not_at_all(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    int64_t i;
    double d;
    uint64_t u;
    assert_false(parse_exceeds_i64("9223372036854775807", 19));
    assert_true(parse_exceeds_i64("9223372036854775808", 19));
    assert_true(parse_exceeds_i64("10000000000000000000000000000000", 32));
    assert_false(parse_exceeds_i64("9223372036854775808.5", 21));
    assert_false(parse_exceeds_i64("", 0));
    assert_ok(parse_i64(&i, "-12", -20, 20, "x", &e), &e);
    assert_int_equal(i, -12);
    static const char *const bad_i[] = {"", " 1", "1 ", "0x10", "21", "9999999999999999999", "1e3"};
    for (size_t k = 0; k < sizeof bad_i / sizeof *bad_i; k++)
        assert_fails(parse_i64(&i, bad_i[k], -20, 20, "--port", &e), Q_INVALID, "--port", &e);
    static const struct {
        const char *text;
        int64_t count;
    } counts[] = {
        {"32768", 32768},   {"32k", 32000},        {"32K", 32768},  {"1.5k", 1500},
        {"25.6k", 25600},   {"2m", 2000000},       {"1M", 1 << 20}, {"0k", 0},
        {"4g", 4000000000}, {"1t", 1000000000000}, {"-3", -3},
    };
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        assert_ok(parse_count(&i, counts[k].text, -5, INT64_MAX, "x", &e), &e);
        assert_int_equal(i, counts[k].count);
    }
    static const char *const bad_counts[] = {"k",    "1kk",      "1.5",  "-1k",  "1 k",
                                             " 1k",  "0x1k",     "1kB",  "1e3k", "",
                                             "nank", "9999999t", "1..5k"};
    for (size_t k = 0; k < sizeof bad_counts / sizeof *bad_counts; k++)
        assert_fails(parse_count(&i, bad_counts[k], -5, INT64_MAX, "--max-model-len", &e),
                     Q_INVALID, "--max-model-len", &e);
    assert_fails(parse_count(&i, "1.5K", 0, INT64_MAX, "x", &e), Q_INVALID, "1.5k", &e);
    assert_fails(parse_count(&i, "70k", 0, 65535, "--port", &e), Q_INVALID, "65535", &e);
    assert_ok(parse_f64(&d, "0.5", 0, 1, "x", &e), &e);
    assert_true(d == 0.5);
    static const char *const bad_f[] = {"", "nan", "inf", "1.5", "0.5x"};
    for (size_t k = 0; k < sizeof bad_f / sizeof *bad_f; k++)
        assert_fails(parse_f64(&d, bad_f[k], 0, 1, "x", &e), Q_INVALID, "from 0 to 1", &e);
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"0", 0},
        {"123", 123},
        {"4K", 4096},
        {"1.5K", 1536},
        {"2GiB", 2ull << 30},
        {"2GB", 2000000000},
        {"2gb", 2000000000},
        {"1.5k", 1500},
        {"4g", 4000000000},
        {"7B", 7},
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        assert_ok(parse_bytes(&u, sizes[k].text, "x", &e), &e);
        assert_int_equal(u, sizes[k].bytes);
    }
    assert_fails(parse_bytes(&u, "12 apples", "--max-body-bytes", &e), Q_INVALID, "12 apples", &e);
    assert_fails(parse_bytes(&u, "-1", "x", &e), Q_INVALID, "-1", &e);
    assert_fails(parse_bytes(&u, "99999999999G", "x", &e), Q_INVALID, "size", &e);
}

static void half_floats_round_like_the_hardware(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) { /* every half survives the way through float */
        float f = f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
        else
            assert_int_equal(f32_to_f16(f), h);
    }
    for (uint32_t h = 0; h < 0x7bff; h++) { /* half-way between neighbours goes to the even one */
        float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1));
        float middle = (float)(((double)low + high) / 2);
        assert_int_equal(f32_to_f16(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, high)), h + 1);
        assert_int_equal(f32_to_f16(nextafterf(middle, low)), h);
    }
    assert_int_equal(f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(f32_to_bf16(bf16_to_f32(0x3f81)), 0x3f81);
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3f80); /* half-way: to even */
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3f82);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    assert_true(isinf(bf16_to_f32(f32_to_bf16(3.4e38f))));
    enum dtype t;
    assert_true(dtype_parse(&t, "BF16") && t == DT_BF16 && dtype_bits(t) == 16);
    assert_false(dtype_parse(&t, "bf16"));
}

/* The number that a code of 8 bits is, by its definition: sign, exponent, mantissa. */
static double value_of_f8(uint32_t code, int n_mantissa, int bias)
{
    const int exponent = (int)(code & 0x7f) >> n_mantissa;
    const int mantissa = (int)(code & ((1u << n_mantissa) - 1));
    const double magnitude = exponent
                                 ? ldexp(mantissa + (1 << n_mantissa), exponent - bias - n_mantissa)
                                 : ldexp(mantissa, 1 - bias - n_mantissa);
    return code & 0x80 ? -magnitude : magnitude;
}

static void eight_bit_floats_are_the_nearest(void **state)
{
    static const struct {
        enum dtype dtype;
        int n_mantissa, bias;
        uint8_t largest, beyond; /* the largest finite code, and that of what is larger */
    } types[] = {{DT_F8_E4M3, 3, 7, 0x7e, 0x7f}, {DT_F8_E5M2, 2, 15, 0x7b, 0x7c}};
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        const enum dtype t = types[k].dtype;
        for (uint32_t code = 0; code <= types[k].largest; code++) {
            const double low = value_of_f8(code, types[k].n_mantissa, types[k].bias);
            const double high = value_of_f8(code + 1, types[k].n_mantissa, types[k].bias);
            const uint32_t next = code == types[k].largest ? types[k].beyond : code + 1;
            const float middle = (float)((low + high) / 2);
            assert_int_equal(f32_to_f8((float)low, t), code);
            assert_int_equal(f32_to_f8((float)-low, t), code | 0x80);
            assert_int_equal(f32_to_f8(middle, t), code % 2 ? next : code); /* ties to even */
            assert_int_equal(f32_to_f8(nextafterf(middle, INFINITY), t), next);
            assert_int_equal(f32_to_f8(nextafterf(middle, 0), t), code);
        }
        assert_int_equal(f32_to_f8(INFINITY, t), types[k].beyond);
        assert_int_equal(f32_to_f8(-3e38f, t), types[k].beyond | 0x80);
        assert_int_equal(f32_to_f8(NAN, t) & 0x7f, 0x7f);
        assert_int_equal(f32_to_f8(1e-30f, t), 0);
    }
}

static void sizes_have_the_unit_that_fits(void **state)
{
    char text[SIZE_TEXT_MAX];
    static const struct {
        double bytes;
        const char *decimal, *binary;
    } rows[] = {
        {0, "0 B", "0 B"},
        {999, "999 B", "999 B"},
        {1000, "1.00 kB", "1000 B"},
        {4096, "4.10 kB", "4.00 KiB"},
        {9994, "9.99 kB", "9.76 KiB"},
        {9996, "10.0 kB", "9.76 KiB"},
        {99960, "100 kB", "97.6 KiB"},
        {999499, "999 kB", "976 KiB"},
        {999500, "1.00 MB", "976 KiB"},
        {1023.6 * 1024, "1.05 MB", "1.00 MiB"},
        {1.5e9, "1.50 GB", "1.40 GiB"},
        {2e12, "2.00 TB", "1.82 TiB"},
        {5e18, "5000 PB", "4441 PiB"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_string_equal(size_text(text, rows[i].bytes), rows[i].decimal);
        assert_string_equal(size_text_binary(text, rows[i].bytes), rows[i].binary);
    }
}

static void given_pipes_are_read(void)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    char given[32];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "hello", 5), 5);
    close(ends[1]);
    snprintf(given, sizeof given, "/dev/fd/%d", ends[0]);
    assert_ok(file_read(&b, given, 100, &e), &e);
    assert_ok(file_read(&b, "/dev/null", 100, &e), &e);
    assert_string_equal(buf_str(&b), "hello");
    close(ends[0]);
    buf_release(&b);
}

static void pipes_are_not_replaced(const char *path)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    struct stat st;
    char through[64]; /* no descriptor: a path that begins like one */
    assert_fails(file_write(path, "x", 1, 0600, &e), Q_IO, "not replaced", &e);
    assert_true(lstat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_fails(file_write("/proc/self/fd/1", "x", 1, 0600, &e), Q_IO, "not replaced", &e);
    snprintf(through, sizeof through, "/proc/self/fd/../../..%s", path);
    assert_fails(file_read(&b, through, 100, &e), Q_IO, "pipe or a device", &e);
    buf_release(&b);
}

static void files_are_read_mapped_and_replaced(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    char path[] = "/tmp/quire-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(file_write(path, "hello", 5, 0600, &e), &e);
    struct buf b = BUF_INIT;
    assert_ok(file_read(&b, path, 100, &e), &e);
    assert_string_equal(buf_str(&b), "hello");
    buf_reset(&b);
    assert_fails(file_read(&b, path, 4, &e), Q_TOO_LARGE, path, &e);
    buf_release(&b);
    struct mapping m = MAPPING_INIT;
    assert_ok(mapping_open(&m, path, &e), &e);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    mapping_release(&m);
    assert_ok(file_write(path, "", 0, 0600, &e), &e);
    assert_ok(mapping_open(&m, path, &e), &e);
    assert_int_equal(m.size, 0);
    mapping_release(&m);
    unlink(path);
    assert_fails(mapping_open(&m, path, &e), Q_NOT_FOUND, path, &e);
    assert_fails(mapping_open(&m, "/", &e), Q_IO, "directory", &e);
    assert_fails(mapping_open(&m, "/dev/zero", &e), Q_IO, "pipe or a device", &e);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(mapping_open(&m, path, &e), Q_IO, "pipe or a device", &e);
    assert_fails(file_read(&b, path, 100, &e), Q_IO, "pipe or a device", &e);
    pipes_are_not_replaced(path);
    unlink(path);
    given_pipes_are_read();
    char joined[16];
    assert_ok(path_join(joined, sizeof joined, "a/", "b", &e), &e);
    assert_string_equal(joined, "a/b");
    assert_fails(path_join(joined, 4, "abc", "d", &e), Q_TOO_LARGE, "abc", &e);
    assert_true(clock_us() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_without_a_turn_of_the_loop_is_left_out),
        cmocka_unit_test(err_keeps_code_and_cuts_whole_characters),
        cmocka_unit_test(err_shortens_paths_in_their_middle),
        cmocka_unit_test(download_knows_what_is_not_the_file),
        cmocka_unit_test(net_knows_what_others_reach),
        cmocka_unit_test(mem_counts_fails_and_grows),
        cmocka_unit_test(arena_respects_its_limit),
        cmocka_unit_test(buf_keeps_its_first_failure),
        cmocka_unit_test(utf8_agrees_with_the_standard),
        cmocka_unit_test(numbers_are_parsed_whole_or_not_at_all),
        cmocka_unit_test(half_floats_round_like_the_hardware),
        cmocka_unit_test(eight_bit_floats_are_the_nearest),
        cmocka_unit_test(sizes_have_the_unit_that_fits),
        cmocka_unit_test(files_are_read_mapped_and_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
