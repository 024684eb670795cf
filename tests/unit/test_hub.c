/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "common/hub/cache.h"
#include "common/hub/folder.h"
#include "common/hub/hub.h"
#include "common/hub/names.h"
#include "common/hub/weight_files.h"
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
    setenv("HF_HUB_OFFLINE", "1", 1);
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
    assert_fails(hub_resolve(dir, f.path, NULL, &e), Q_NOT_FOUND, "is an empty folder", &e);
    folder_text(&f, "config.json", "{}");
    assert_ok(hub_resolve(dir, f.path, NULL, &e), &e);
    assert_string_equal(dir, f.path);
    char file[PATH_MAX];
    assert_ok(path_join(file, sizeof file, f.path, "config.json", &e), &e);
    assert_fails(hub_resolve(dir, file, NULL, &e), Q_NOT_FOUND, "use its folder", &e);
    folder_text(&f, "notes", "x");
    assert_ok(path_join(file, sizeof file, f.path, "notes", &e), &e);
    assert_fails(hub_resolve(dir, file, NULL, &e), Q_NOT_FOUND, "is a file", &e);
    assert_fails(hub_resolve(dir, "~/m", NULL, &e), Q_NOT_FOUND, "expands ~", &e);
    assert_fails(hub_resolve(dir, "https://huggingface.co/a/b/tree/main", NULL, &e), Q_INVALID,
                 "use the model id: a/b", &e);
    assert_fails(hub_resolve(dir, "llama3:8b", NULL, &e), Q_INVALID, "tags after a colon", &e);
    assert_fails(hub_resolve(dir, "/no/such/folder", NULL, &e), Q_NOT_FOUND, "no such folder", &e);
    assert_fails(hub_resolve(dir, "./gone", NULL, &e), Q_NOT_FOUND, "no such folder", &e);
    assert_fails(hub_resolve(dir, "", NULL, &e), Q_INVALID, "empty", &e);
}

static void test_cache(void **state)
{
    (void)state;
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "`quire download org/name`",
                 &e);
    folder_text(&f, REPO "refs/main", ""); /* its write was interrupted */
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "no revision \"main\"", &e);
    folder_text(&f, REPO "refs/main", HASH "\n");
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND, "no revision \"main\"", &e);
    folder_text(&f, REPO "snapshots/" HASH "/README.md", "x");
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_NOT_FOUND,
                 "no config.json; its files are: README.md", &e);
    folder_text(&f, REPO "snapshots/" HASH "/config.json", "{}");
    folder_text(&f, REPO "snapshots/other/config.json", "{}");
    assert_ok(hub_resolve(dir, "org/name", NULL, &e), &e);
    assert_dir(REPO "snapshots/" HASH);
    assert_ok(hub_resolve(dir, "org/name", HASH, &e), &e);
    assert_dir(REPO "snapshots/" HASH);
    assert_ok(hub_resolve(dir, "org/name", "other", &e), &e);
    assert_dir(REPO "snapshots/other");
    assert_fails(hub_resolve(dir, "org/name", "v2", &e), Q_NOT_FOUND,
                 "`quire download org/name --revision v2`", &e);
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
    assert_fails(hub_resolve(dir, "name", NULL, &e), Q_NOT_FOUND, "neither a folder nor in the",
                 &e);
    setenv("HF_HUB_CACHE", place, 1);
    assert_ok(hub_resolve(dir, "name", NULL, &e), &e);
    assert_dir("elsewhere/models--name/snapshots/" HASH);
    setenv("QUIRE_TEST_A", f.path, 1); /* variables in variables, as huggingface_hub has them */
    setenv("QUIRE_TEST_B", "where", 1);
    setenv("HF_HUB_CACHE", "$QUIRE_TEST_A/else${QUIRE_TEST_B}", 1);
    assert_ok(hub_resolve(dir, "name", NULL, &e), &e);
    assert_dir("elsewhere/models--name/snapshots/" HASH);
    setenv("HF_HUB_CACHE", "/$QUIRE_TEST_NONE/${QUIRE_TEST_B/$/a$", 1); /* stay as they are */
    assert_ok(cache_dir(dir, &e), &e);
    assert_string_equal(dir, "/$QUIRE_TEST_NONE/${QUIRE_TEST_B/$/a$");
    char longest[2 * PATH_MAX];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    setenv("QUIRE_TEST_A", longest, 1);
    setenv("HF_HUB_CACHE", "$QUIRE_TEST_A", 1);
    assert_fails(cache_dir(dir, &e), Q_TOO_LARGE, "HF_HUB_CACHE: path longer than", &e);
    unsetenv("HF_HUB_CACHE");
    unsetenv("QUIRE_TEST_A");
    unsetenv("QUIRE_TEST_B");
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
    assert_fails(hub_resolve(dir, "org/name", NULL, &e), Q_CORRUPT,
                 "does not contain a commit hash", &e);
}

/* What people point at that is no model folder: files of the folder (a name that ends with / is a
 * folder), what is given of it, and the answer. */
static const struct {
    const char *files[4], *given;
    enum q_code code;
    const char *part;
} no_models[] = {
    {{"a.gguf", "b-Q8_0.gguf"}, "", Q_INVALID, "has several GGUF files: a.gguf, b-Q8_0.gguf; give"},
    {{"a.gguf", "b-Q8_0.gguf"}, ":Q4_0", Q_NOT_FOUND, "has no GGUF file of Q4_0; its files are a"},
    {{"a.gguf", "config.json"}, ":A:B", Q_NOT_FOUND, "no such folder"},
    {{"ggml-model-q4_0.bin"}, "", Q_UNSUPPORTED, "a GGML file"},
    {
        {"adapter_config.json", "adapter_model.safetensors"},
        "",
        Q_UNSUPPORTED,
        "is a LoRA adapter, not a model: its base model is org/base; serve its base model with "
        "--enable-lora --lora-modules NAME=FOLDER",
    },
    {
        {"adapter_model.safetensors"},
        "/adapter_model.safetensors",
        Q_UNSUPPORTED,
        "is a LoRA adapter",
    },
    {
        {"pytorch_model.bin", "training_args.bin"},
        "",
        Q_UNSUPPORTED,
        "a PyTorch pickle checkpoint (pytorch_model.bin); of such files quire reads",
    },
    {{"model.pt"}, "/model.pt", Q_UNSUPPORTED, "is a PyTorch pickle checkpoint"},
    {{"model.onnx"}, "", Q_UNSUPPORTED, "an ONNX model (model.onnx)"},
    {{"weights.npz"}, "", Q_UNSUPPORTED, "MLX weights (weights.npz)"},
    {
        {"consolidated.00.pth"},
        "",
        Q_UNSUPPORTED,
        "Meta's own layout (consolidated.00.pth); quire reads it in a folder with its params.json",
    },
    {{"consolidated.safetensors"}, "", Q_UNSUPPORTED, "Mistral's own layout"},
    {{"model_index.json", "unet/config.json"}, "", Q_UNSUPPORTED, "is a diffusers pipeline"},
    {{"model.tar.gz"}, "/model.tar.gz", Q_UNSUPPORTED, "is an archive; unpack the archive"},
    {{"model.safetensors.incomplete"}, "", Q_UNSUPPORTED, "part of an incomplete download"},
    {{"model.safetensors"}, "", Q_NOT_FOUND, "has weights (model.safetensors) and no config.json"},
    {
        {"model.safetensors"},
        "/model.safetensors",
        Q_NOT_FOUND,
        "is one file of a model; use its folder: /tmp/",
    },
    {
        {"a/config.json", "b/config.json", "c/x"},
        "",
        Q_NOT_FOUND,
        "use one of its model folders: a, b",
    },
    {
        {"models--org--a/x", "models--b/x"},
        "",
        Q_NOT_FOUND,
        "is a Hugging Face cache; use the id of one of its models: b, org/a",
    },
    {
        {"models--org--a/snapshots/1/config.json"},
        "/models--org--a",
        Q_NOT_FOUND,
        "use the model id org/a",
    },
    {
        {"models--org--a/snapshots/1/config.json"},
        "/models--org--a//", /* as a shell completes it */
        Q_NOT_FOUND,
        "use the model id org/a",
    },
    {
        {"README.md", "b.txt"},
        "",
        Q_NOT_FOUND,
        "is not a model folder: it has no config.json; its files are: README.md, b.txt",
    },
    {{"1", "2", "3", "4"}, "", Q_NOT_FOUND, "its files are: 1, 2, 3, 4"},
};

static void test_no_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof no_models / sizeof *no_models; i++) {
        struct folder g;
        char path[PATH_MAX];
        folder_init(&g);
        for (size_t k = 0; k < 4 && no_models[i].files[k]; k++)
            folder_text(&g, no_models[i].files[k], "{\"base_model_name_or_path\": \"org/base\"}");
        snprintf(path, sizeof path, "%s%s", g.path, no_models[i].given);
        assert_fails(hub_resolve(dir, path, NULL, &e), no_models[i].code, no_models[i].part, &e);
        folder_release(&g);
    }
    struct folder g;
    char path[PATH_MAX];
    folder_init(&g);
    folder_text(&g, "renamed", "GGUF\3");
    snprintf(path, sizeof path, "%s/renamed", g.path);
    assert_fails(hub_resolve(dir, path, NULL, &e), Q_UNSUPPORTED, "a name that ends with .gguf",
                 &e);
    folder_release(&g);
}

/* Links to nothing: of the hub's cache without its blobs, and of a git-annex clone before `get`. */
static void test_broken_links(void **state)
{
    (void)state;
    static const struct {
        const char *name, *target, *part;
    } links[] = {
        {"config.json", "../../blobs/none", "config.json is a link to a missing file"},
        {"config.json", "../.git/annex/objects/x/y/KEY/KEY",
         "file's content: run `git annex get config.json` in /tmp/quire-test-"},
        {"model.safetensors", "../../blobs/none", "model.safetensors is a link to a missing file"},
        {"model.safetensors", ".git/annex/objects/x/y/KEY/KEY",
         "model.safetensors is a git-annex link without the file's content: run `git "
         "annex get model.safetensors`"},
        {"model-1.safetensors", ".git/annex/objects/x/y/KEY/KEY", "annex get model-1.safetensors`"},
        {"model-q4.safetensors", "../../blobs/none", "q4.safetensors is a link to a missing file"},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        struct folder g;
        bool config = !strcmp(links[i].name, "config.json");
        folder_init(&g);
        if (!strcmp(links[i].name, "model-1.safetensors"))
            folder_text(&g, "model.safetensors.index.json",
                        "{\"weight_map\": {\"a\": \"model-1.safetensors\"}}");
        folder_link(&g, links[i].name, links[i].target);
        assert_fails(config ? hub_resolve(dir, g.path, NULL, &e)
                            : weight_files_check(g.path, WEIGHTS_AUTO, &e),
                     Q_NOT_FOUND, links[i].part, &e);
        folder_release(&g);
    }
}

/* Files and folders of another owner. */
static void test_no_permission(void **state)
{
    (void)state;
    struct folder g;
    char path[PATH_MAX];
    const bool is_root = geteuid() == 0;
    folder_init(&g);
    folder_text(&g, "in/config.json", "{}");
    snprintf(path, sizeof path, "%s/in", g.path);
    assert_int_equal(chmod(g.path, 0711), 0);
    assert_int_equal(chmod(path, 0), 0);
    if (is_root)
        assert_int_equal(seteuid(65534), 0); /* whom modes bind */
    assert_fails(hub_resolve(dir, path, NULL, &e), Q_IO, "/in: cannot read the folder: Permission",
                 &e);
    snprintf(path, sizeof path, "%s/in/below", g.path);
    assert_fails(hub_resolve(dir, path, NULL, &e), Q_IO, "/below: cannot read the folder: Perm",
                 &e);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    snprintf(path, sizeof path, "%s/in", g.path);
    assert_int_equal(chmod(path, 0700), 0);
    folder_release(&g);
}

/* A folder with config.json whose weights are not there, or are something else. */
static void test_no_weights(void **state)
{
    (void)state;
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    static const char index[] =
        "{\"weight_map\": {\"a\": \"model-1.safetensors\", \"b\": \"model-2.safetensors\"}}";
    static const struct {
        const char *name, *text, *name2, *text2;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"m.gguf", "GGUF", NULL, NULL, Q_UNSUPPORTED,
         "no model.safetensors; the weights are a GGUF file (m.gguf)"},
        {"pytorch_model.bin", lfs, NULL, NULL, Q_CORRUPT, "model.bin is a Git LFS pointer"},
        {"model.pt", "x", NULL, NULL, Q_UNSUPPORTED,
         "no model.safetensors; the weights are a PyTorch pickle checkpoint (model.pt); of such"},
        {"pytorch_model.bin.index.json", "{\"weight_map\": {\"a\": \"pytorch_model-1.bin\"}}", NULL,
         NULL, Q_NOT_FOUND, "the shard pytorch_model-1.bin is missing"},
        {"README.md", "x", NULL, NULL, Q_NOT_FOUND,
         "the folder has no weights; its files are: README.md, config.json"},
        {"model-00001-of-00002.safetensors", "x", NULL, NULL, Q_NOT_FOUND,
         "model-00001-of-00002.safetensors is one of 2 files, and model-00002-of-00002.safetensors "
         "is missing"},
        {"q-00002-of-00003.safetensors", "x", "q-00003-of-00003.safetensors", "x", Q_NOT_FOUND,
         "and q-00001-of-00003.safetensors is missing"},
        {"model-q4.safetensors", "x", "other.safetensors", lfs, Q_CORRUPT,
         "other.safetensors is a Git LFS pointer"},
        {"adapter_model.safetensors", "x", NULL, NULL, Q_UNSUPPORTED,
         "are a LoRA adapter (adapter"},
        {".hidden.safetensors", "x", NULL, NULL, Q_NOT_FOUND, "the folder has no weights"},
        {"model.safetensors", lfs, NULL, NULL, Q_CORRUPT, "model.safetensors is a Git LFS pointer"},
        {"model.safetensors", "<!doctype html>", NULL, NULL, Q_CORRUPT, "is an HTML page"},
        {"model.safetensors", "", NULL, NULL, Q_CORRUPT, "is empty"},
        {"model.safetensors.index.json", lfs, NULL, NULL, Q_CORRUPT,
         "index.json is a Git LFS pointer"},
        {"model.safetensors.index.json", index, "model-1.safetensors", "x", Q_NOT_FOUND,
         "the shard model-2.safetensors is missing"},
        {"model.safetensors.index.json", index, "model-1.safetensors", lfs, Q_CORRUPT,
         "model-1.safetensors is a Git LFS pointer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder g;
        folder_init(&g);
        folder_text(&g, "config.json", "{}");
        folder_text(&g, cases[i].name, cases[i].text);
        if (cases[i].name2)
            folder_text(&g, cases[i].name2, cases[i].text2);
        assert_fails(weight_files_check(g.path, WEIGHTS_AUTO, &e), cases[i].code, cases[i].part,
                     &e);
        folder_release(&g);
    }
    folder_text(&f, "model.safetensors", "x");
    assert_ok(weight_files_check(f.path, WEIGHTS_AUTO, &e),
              &e); /* what is in it is tensor_set_open's */
}

static void test_names(void **state)
{
    (void)state;
    struct model_names n;
    char path[PATH_MAX], slashes[PATH_MAX + 8];
    assert_ok(path_join(path, sizeof path, f.path, REPO "snapshots/" HASH, &e), &e);
    folder_text(&f, REPO "refs/main", HASH);
    folder_text(&f, REPO "snapshots/" HASH "/config.json", "{}");
    assert_ok(hub_resolve(dir, "org/name", NULL, &e), &e);
    model_names_init(&n, "org/name", dir); /* an id */
    assert_string_equal(n.shown, "org/name");
    assert_true(model_names_have(&n, "org/name") && model_names_have(&n, path));
    assert_false(model_names_have(&n, "name") || model_names_have(&n, "") ||
                 model_names_have(&n, HASH));
    model_names_init(&n, path, path); /* the snapshot's folder */
    assert_string_equal(n.shown, "org/name");
    assert_true(model_names_have(&n, path));
    folder_text(&f, "llama/config.json", "{}");
    assert_ok(path_join(path, sizeof path, f.path, "llama", &e), &e);
    snprintf(slashes, sizeof slashes, "%s//", path);
    model_names_init(&n, slashes, slashes); /* a folder */
    assert_string_equal(n.shown, "llama");
    assert_true(model_names_have(&n, path) && model_names_have(&n, slashes));
    assert_true(model_names_have(&n, "llama") && model_names_have(&n, "llama/"));
    assert_false(model_names_have(&n, "lama") || model_names_have(&n, f.path));
    char way[PATH_MAX], base[PATH_MAX];
    assert_ok(path_join(way, sizeof way, f.path, "tiny", &e), &e);
    folder_link(&f, "tiny", path);
    assert_int_equal(chdir(f.path), 0);
    assert_non_null(getcwd(base, sizeof base));
    setenv("PWD", "/nonexistent", 1);
    model_names_init(&n, "./tiny/", "./tiny/"); /* a link */
    assert_string_equal(n.shown, "tiny");
    assert_ok(path_join(way, sizeof way, base, "tiny", &e), &e);
    assert_true(model_names_have(&n, way) && model_names_have(&n, path));
    assert_false(model_names_have(&n, base) || model_names_have(&n, ""));
    assert_int_equal(symlink(base, "way"), 0); /* the shell's name of this folder */
    assert_ok(path_join(way, sizeof way, base, "way", &e), &e);
    setenv("PWD", way, 1);
    model_names_init(&n, ".//tiny", ".//tiny");
    assert_ok(path_join(way, sizeof way, base, "way/tiny", &e), &e);
    assert_true(model_names_have(&n, way) && model_names_have(&n, path));
    assert_int_equal(unlink("way"), 0);
    assert_int_equal(chdir(path), 0);
    model_names_init(&n, ".", "."); /* names nothing itself */
    assert_string_equal(n.shown, "llama");
    assert_true(model_names_have(&n, ".") && model_names_have(&n, path));
    model_names_init(&n, "../llama", "../llama");
    assert_string_equal(n.shown, "llama");
    char link[PATH_MAX];
    assert_ok(path_join(link, sizeof link, f.path, "production", &e), &e);
    folder_link(&f, "production", "llama");
    model_names_init(&n, link, link); /* the name that was typed, not that of its target */
    assert_string_equal(n.shown, "production");
    assert_true(model_names_have(&n, link) && model_names_have(&n, path));
    assert_int_equal(chdir("/"), 0);
    model_names_init(&n, "/", "/");
    assert_string_equal(n.shown, "/");
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
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) { /* and each other kind of file */
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
        cmocka_unit_test_setup_teardown(test_no_model, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_permission, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_digest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
