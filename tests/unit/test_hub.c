/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "common/hub/hub.h"
#include "common/mem.h"

#define HASH "0123456789abcdef0123456789abcdef01234567"
#define REPO "hub/models--org--name/"

static struct folder f;
static struct q_err e;
static char dir[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    folder_init(&f);
    q_err_reset(&e);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    setenv("HF_HOME", f.path, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&f);
    return 0;
}

static void assert_dir(const char *below)
{
    char want[PATH_MAX];
    assert_ok(path_join(want, sizeof want, f.path, below, &e), &e);
    assert_string_equal(dir, want);
}

static void test_folder(void **state)
{
    (void)state;
    assert_fails(hub_resolve(dir, f.path, NULL, &e), Q_INVALID, "no config.json", &e);
    folder_text(&f, "config.json", "{}");
    assert_ok(hub_resolve(dir, f.path, NULL, &e), &e);
    assert_string_equal(dir, f.path);
    char file[PATH_MAX];
    assert_ok(path_join(file, sizeof file, f.path, "config.json", &e), &e);
    assert_fails(hub_resolve(dir, file, NULL, &e), Q_INVALID, "is a file", &e);
    assert_fails(hub_resolve(dir, "/no/such/folder", NULL, &e), Q_NOT_FOUND, "no such folder", &e);
    assert_fails(hub_resolve(dir, "./gone", NULL, &e), Q_NOT_FOUND, "no such folder", &e);
    assert_fails(hub_resolve(dir, "", NULL, &e), Q_INVALID, "empty", &e);
}

static void test_cache(void **state)
{
    (void)state;
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "does not download yet", &e);
    folder_text(&f, REPO "refs/main", HASH "\n");
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "no revision \"main\"", &e);
    folder_text(&f, REPO "snapshots/" HASH "/README.md", "x");
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "not complete", &e);
    folder_text(&f, REPO "snapshots/" HASH "/config.json", "{}");
    folder_text(&f, REPO "snapshots/other/config.json", "{}");
    assert_ok(hub_resolve(dir, "org/name", NULL, &e), &e);
    assert_dir(REPO "snapshots/" HASH);
    assert_ok(hub_resolve(dir, "org/name", HASH, &e), &e);
    assert_dir(REPO "snapshots/" HASH);
    assert_ok(hub_resolve(dir, "org/name", "other", &e), &e);
    assert_dir(REPO "snapshots/other");
    assert_fails(hub_resolve(dir, "org/name", "v2", &e), Q_NOT_FOUND, "--revision v2", &e);
    folder_text(&f, REPO "refs/refs/pr/1", "other");
    assert_ok(hub_resolve(dir, "org/name", "refs/pr/1", &e), &e);
    assert_dir(REPO "snapshots/other");
}

static void test_places(void **state)
{
    (void)state;
    char place[PATH_MAX];
    folder_text(&f, "elsewhere/models--name/refs/main", HASH);
    folder_text(&f, "elsewhere/models--name/snapshots/" HASH "/config.json", "{}");
    assert_ok(path_join(place, sizeof place, f.path, "elsewhere", &e), &e);
    assert_fails(hub_resolve(dir, "name", NULL, &e), Q_NOT_FOUND, "neither a folder nor cached",
                 &e);
    setenv("HF_HUB_CACHE", place, 1);
    assert_ok(hub_resolve(dir, "name", NULL, &e), &e);
    unsetenv("HF_HUB_CACHE");
    assert_dir("elsewhere/models--name/snapshots/" HASH);
}

static void test_hostile_names(void **state)
{
    (void)state;
    static const char *const ids[] = {"org/..", "org/na me", "o\trg/name",
                                      "org/-x", "org/a..b",  "org/"};
    static const char *const revisions[] = {"../../x", "/etc", "a//b", "a/", "x\ny", "..", ".git"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_int_not_equal(hub_resolve(dir, ids[i], NULL, &e), Q_OK);
        q_err_reset(&e);
    }
    for (size_t i = 0; i < sizeof revisions / sizeof *revisions; i++)
        assert_fails(hub_resolve(dir, "org/name", revisions[i], &e), Q_INVALID, "not a revision",
                     &e);
    folder_text(&f, REPO "refs/main", "../../../../etc");
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_CORRUPT, "does not hold a commit hash",
                 &e);
}

static void test_digest(void **state)
{
    (void)state;
    unsigned char a[32], b[32];
    assert_fails(hub_digest(a, f.path, &e), Q_NOT_FOUND, "config.json", &e);
    folder_text(&f, "config.json", "{\"a\": 1, \"b\": [1.5, null]}");
    assert_ok(hub_digest(a, f.path, &e), &e);
    folder_text(&f, "config.json", "{\"b\":[1.5,null],\n\"a\":1}\n");
    assert_ok(hub_digest(b, f.path, &e), &e);
    assert_memory_equal(a, b, 32); /* the same meaning */
    folder_text(&f, "config.json", "{\"b\":[1.5,null],\"a\":2}");
    assert_ok(hub_digest(b, f.path, &e), &e);
    assert_memory_not_equal(a, b, 32);
    folder_text(&f, "config.json", "{\"a\": 1, \"b\": [1.5, null]}");
    folder_text(&f, "tokenizer.json", "{}");
    assert_ok(hub_digest(b, f.path, &e), &e);
    assert_memory_not_equal(a, b, 32);
    folder_text(&f, "tokenizer.json", "{ }");
    assert_ok(hub_digest(a, f.path, &e), &e);
    assert_memory_not_equal(a, b, 32); /* the tokenizer's bytes count */
    static const char *const files[] = {
        "tekken.json",        "tekken_240911.json", "tokenizer.model",    "vocab.txt",
        "vocab.json",         "merges.txt",         "qwen.tiktoken",      "tokenizer_config.json",
        "spm.model",          "tiktoken.model",     "tokenizer.model.v3", "spiece.model",
        "sentencepiece.model"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) { /* and whatever file it can be */
        folder_text(&f, files[i], "1");
        assert_ok(hub_digest(b, f.path, &e), &e);
        assert_memory_not_equal(a, b, 32);
        folder_text(&f, files[i], "2");
        assert_ok(hub_digest(a, f.path, &e), &e);
        assert_memory_not_equal(a, b, 32);
    }
    folder_text(&f, "README.md", "1");
    folder_text(&f, "vocab.json.bak", "1");
    assert_ok(hub_digest(b, f.path, &e), &e);
    assert_memory_equal(a, b, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(test_places, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_digest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
