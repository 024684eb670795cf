/* SPDX-License-Identifier: Apache-2.0 */
/* The examples in the comments of quire.h: taken out by CMake (quire_examples.inc, one function
 * each), compiled here, and run on the bundled model. */
#include "check.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "engine/quire.h"
#include "quire_examples.inc"

#define MODEL "deploy/model/quire-tiny"

/* The examples say "path/to/model". */
static void go_where_the_model_is(const char *dir)
{
    char here[1024], target[1100];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(target, sizeof target, "%s/" MODEL, here);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(mkdir("path", 0700), 0);
    assert_int_equal(mkdir("path/to", 0700), 0);
    assert_int_equal(symlink(target, "path/to/model"), 0);
}

static void the_examples_run_and_answer(void **state)
{
    (void)state;
    char dir[64], text[4096];
    snprintf(dir, sizeof dir, "/tmp/quire-examples-%d", (int)getpid());
    go_where_the_model_is(dir);
    assert_true(sizeof examples / sizeof *examples >= 2);
    FILE *said = tmpfile(), *out = stdout, *err = stderr;
    assert_non_null(said);
    stdout = stderr = said;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        examples[i]();
    stdout = out;
    stderr = err;
    rewind(said);
    size_t n = fread(text, 1, sizeof text - 1, said);
    text[n] = '\0';
    fclose(said);
    assert_true(n > 0); /* the answer; an error would name its reason */
    assert_null(strstr(text, "path/to/model"));
    assert_null(strstr(text, "expected"));
    unlink("path/to/model");
    rmdir("path/to");
    rmdir("path");
    assert_int_equal(chdir("/"), 0);
    rmdir(dir);
}

static enum quire_code set(struct quire_options *o, const char *name, const char *value,
                           const char *says)
{
    struct quire_error e = {QUIRE_OK, ""};
    enum quire_code rc = quire_options_set(o, name, value, &e);
    if (rc && (rc != e.code || !strstr(e.message, says)))
        fail_msg("%s: \"%s\", wanted \"%s\"", name, e.message, says);
    return rc;
}

static void options_are_set_by_name(void **state)
{
    (void)state;
    struct quire_options o;
    quire_options_init(&o, sizeof o);
    assert_int_equal(set(&o, "max_num_seqs", "64", ""), QUIRE_OK);
    assert_int_equal(o.max_num_seqs, 64);
    assert_int_equal(set(&o, "--kv-cache-memory-bytes", "2G", ""), QUIRE_OK);
    assert_int_equal(o.kv_cache_bytes, UINT64_C(2) << 30);
    assert_int_equal(set(&o, "dtype", "float32", ""), QUIRE_OK);
    assert_string_equal(o.dtype, "float32");
    assert_int_equal(set(&o, "num-gpu-blocks-override", "77", ""), QUIRE_OK);
    assert_int_equal(o.num_blocks, 77);
    assert_int_equal(set(&o, "skip_tokenizer_init", "true", ""), QUIRE_OK);
    assert_true(o.skip_tokenizer);
    assert_int_equal(set(&o, "gpu_memory_utilization", "0.25", ""), QUIRE_OK);
    assert_true(o.gpu_memory_utilization == 0.25);
    assert_null(o.settings);
    assert_int_equal(set(&o, "max_num_seqs", "0", "--max-num-seqs"), QUIRE_INVALID);
    assert_int_equal(o.max_num_seqs, 64);
    assert_int_equal(set(&o, "max_num_seq", "1", "did you mean --max-num-seqs"), QUIRE_NOT_FOUND);
    assert_int_equal(set(&o, "listen", "ipc:///x", "not an option of"), QUIRE_NOT_FOUND);
    assert_int_equal(set(&o, "prompt", "x", "not an option of"), QUIRE_NOT_FOUND);
    for (int i = 0; i < 256; i++)
        assert_int_equal(set(&o, "scheduling_policy", "priority", ""), QUIRE_OK);
    assert_int_equal(set(&o, "scheduling_policy", "fcfs", "more than 256"), QUIRE_TOO_LARGE);
    quire_options_release(&o);
    assert_null(o.settings);
    quire_options_release(&o);
    assert_int_equal(o.max_num_seqs, 64);              /* fields stay */
    o.size = offsetof(struct quire_options, settings); /* a program older than the setter */
    assert_int_equal(set(&o, "threads", "1", "older"), QUIRE_UNSUPPORTED);
    quire_options_release(&o);
}

/* What is no field reaches the engine all the same: its own checks answer. */
static void options_by_name_reach_the_engine(void **state)
{
    (void)state;
    struct quire_options o;
    struct quire_engine *engine = NULL;
    struct quire_error e = {QUIRE_OK, ""};
    quire_options_init(&o, sizeof o);
    o.model = MODEL;
    assert_int_equal(set(&o, "scheduling_policy", "random", ""), QUIRE_OK);
    assert_int_equal(quire_engine_open(&engine, &o, &e), QUIRE_INVALID);
    assert_non_null(strstr(e.message, "expected fcfs or priority"));
    quire_options_release(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_set_by_name),
        cmocka_unit_test(options_by_name_reach_the_engine),
        cmocka_unit_test(the_examples_run_and_answer),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
