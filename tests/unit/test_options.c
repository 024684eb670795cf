/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include <stdlib.h>
#include "common/mem.h"
#include "common/options.h"

static const struct program_info engine = {
    FOR_ENGINE, "quire engine", "MODEL [options]", "about", 1, 1};
static const struct program_info serve = {FOR_SERVE, "quire serve", "MODEL [options]", "about", 1,
                                          1};

/* Parse a NULL-terminated list of words. */
static enum q_code parse(struct options *o, const struct program_info *p, const char *const *words,
                         struct q_err *e)
{
    char *argv[32] = {"program"};
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    return options_parse(o, p, argc, argv, e);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void values_come_from_flags_environment_and_defaults(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    setenv("QUIRE_MAX_NUM_SEQS", "7", 1);
    setenv("QUIRE_THREADS", "3", 1);
    assert_ok(parse(&o, &engine,
                    WORDS("m", "--threads=2", "--listen", "ipc:///a", "--listen", "ipc:///b",
                          "--kv_cache_memory_bytes", "2G", "--insecure-tcp"),
                    &e),
              &e);
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.threads, 2); /* the command line wins */
    assert_int_equal(o.max_num_seqs, 7);
    assert_int_equal(o.max_num_batched_tokens, 2048);
    assert_int_equal(o.listen.n, 2);
    assert_string_equal(o.listen.items[1], "ipc:///b");
    assert_int_equal(o.kv_cache_memory_bytes, 2ull << 30);
    assert_true(o.insecure_tcp);
    assert_true(options_given(&o, "--threads"));
    assert_true(options_given(&o, "--max-num-seqs"));
    assert_false(options_given(&o, "--dtype"));
    setenv("QUIRE_MAX_NUM_SEQS", "many", 1);
    assert_fails(parse(&o, &engine, WORDS("m"), &e), Q_INVALID, "QUIRE_MAX_NUM_SEQS", &e);
    unsetenv("QUIRE_MAX_NUM_SEQS");
    unsetenv("QUIRE_THREADS");
    assert_ok(parse(&o, &serve, WORDS("m", "--no-enable-auto-tool-choice"), &e), &e);
    assert_false(o.enable_auto_tool_choice);
    assert_ok(parse(&o, &serve, WORDS("--", "--odd-name"), &e), &e);
    assert_string_equal(o.positional[0], "--odd-name");
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    assert_fails(parse(&o, &engine, WORDS("m", "--max-num-seq", "3"), &e), Q_INVALID,
                 "--max-num-seqs", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--port", "3"), &e), Q_INVALID,
                 "not an option of quire engine", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--threads"), &e), Q_INVALID, "needs a value", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--threads", "300"), &e), Q_INVALID, "256", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--threads", "two"), &e), Q_INVALID, "two", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "n"), &e), Q_INVALID, "unexpected argument", &e);
    assert_fails(parse(&o, &engine, WORDS("--threads", "1"), &e), Q_INVALID, "missing", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "-t"), &e), Q_INVALID, "-t", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--insecure-tcp=maybe"), &e), Q_INVALID, "maybe",
                 &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--no-insecure-tcp=1"), &e), Q_INVALID,
                 "takes no value", &e);
    assert_ok(parse(&o, &engine, WORDS("--nonsense", "--help"), &e), &e);
    assert_true(o.help);
}

static void children_get_what_was_given_and_theirs(void **state)
{
    (void)state;
    static struct options o, again;
    struct q_err e = Q_ERR_INIT;
    char *argv[32] = {"quire-engine", "m"};
    uint32_t n = 2;
    assert_ok(parse(&o, &serve,
                    WORDS("m", "--threads", "2", "--port", "80", "--kv-cache-memory-bytes", "1M",
                          "--skip-tokenizer-init"),
                    &e),
              &e);
    assert_ok(options_forward(&o, FOR_ENGINE, argv, &n, 32, &e), &e);
    assert_int_equal(n, 5);
    assert_null(argv[n]);
    assert_ok(options_parse(&again, &engine, (int)n, argv, &e), &e);
    assert_int_equal(again.threads, 2);
    assert_int_equal(again.kv_cache_memory_bytes, 1 << 20);
    assert_true(again.skip_tokenizer_init);
    for (uint32_t i = 2; i < n; i++)
        q_free(argv[i]);
    n = 2;
    assert_fails(options_forward(&o, FOR_ENGINE, argv, &n, 4, &e), Q_TOO_LARGE, "4", &e);
    for (uint32_t i = 2; i < n; i++)
        q_free(argv[i]);
}

static void help_lists_a_programs_own_options(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    options_help(&engine, out);
    fclose(out);
    assert_non_null(strstr(text, "--listen"));
    assert_non_null(strstr(text, "--max-num-seqs N"));
    assert_null(strstr(text, "--port"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_from_flags_environment_and_defaults),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(children_get_what_was_given_and_theirs),
        cmocka_unit_test(help_lists_a_programs_own_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
