/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include <stdlib.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/options_internal.h"

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
    assert_fails(parse(&o, &engine, WORDS("m", "--enforce-eager", "true"), &e), Q_INVALID,
                 "write --enforce-eager=true", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--prot", "1"), &e), Q_INVALID,
                 "did you mean --port?", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--no"), &e), Q_INVALID, "quire serve --help lists",
                 &e);
    assert_fails(parse(&o, &engine, WORDS("m", "-t"), &e), Q_INVALID, "-t", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--insecure-tcp=maybe"), &e), Q_INVALID, "maybe",
                 &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--no-insecure-tcp=1"), &e), Q_INVALID,
                 "does not take a value", &e);
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
    options_help(&engine, NULL, 80, out);
    fclose(out);
    assert_non_null(strstr(text, "--listen"));
    assert_non_null(strstr(text, "--max-num-seqs N"));
    assert_non_null(strstr(text, "\nKV cache:\n"));
    assert_null(strstr(text, "--port"));
    assert_null(strstr(text, "\nHTTP:\n"));
    assert_null(strstr(text, "--skip-tokenizer-init"));
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_in_range(end - line, 0, 80 + 8); /* bytes; the columns are fewer */
    free(text);
}

/* vLLM's flags */

static void flags_of_vllm_are_all_known(void **state)
{
    (void)state;
    char line[200], flag[100], brief[100];
    size_t n = 0, n_row = 0;
    FILE *list = fopen("tests/data/vllm_flags.txt", "re");
    assert_non_null(list);
    while (fgets(line, sizeof line, list)) {
        *brief = '\0';
        if (sscanf(line, "%99s %99s", flag, brief) < 1 || *flag != '-')
            continue;
        const struct vllm_flag *f = vllm_find(flag);
        if (!f || f->earlier || strcmp(f->brief, brief) != 0)
            if (strcmp(flag, "--help") != 0)
                fail_msg("%s %s: not in vllm_flags.def as it is there", flag, brief);
        n++;
    }
    fclose(list);
    for (size_t i = 0; i < vllm_n_flag; i++)
        n_row += !vllm_flags[i].earlier;
    assert_int_equal(n, 322);
    assert_int_equal(n_row, n);
}

/* What a row names has to be there, and what it refuses or ignores needs a reason. */
static void rows_of_vllm_flags_are_whole(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < vllm_n_flag; i++) {
        const struct vllm_flag *f = &vllm_flags[i];
        struct option_target t = {.vllm = f};
        assert_ptr_equal(vllm_find(f->flag), f); /* once */
        if (f->verdict == VLLM_AS) {
            const struct option_row *row = option_row_of(&t);
            if (!row || !(row->programs & FOR_SERVE))
                fail_msg("%s: %s is no option of quire serve", f->flag, f->arg);
        } else if (f->verdict == VLLM_SAME) {
            assert_ok(option_find(&t, &serve, f->flag, strlen(f->flag), &e), &e);
            assert_non_null(t.row);
        } else if (strlen(f->why) < 8) {
            fail_msg("%s: no reason", f->flag);
        }
        if (f->takes == VLLM_ON && f->verdict == VLLM_REFUSED)
            assert_string_equal(f->arg, "false"); /* --no-flag has no effect of its own */
    }
}

static void flags_of_vllm_do_what_their_rows_say(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    assert_ok(
        parse(&o, &serve,
              WORDS("m", "-tp", "1", "-pp=1", "--trust_remote_code", "--no-async-scheduling", "-O3",
                    "-O.level=3", "-cc.mode=3", "--compilation-config.pass_config.fuse", "true",
                    "--block-size=16", "--api-server-count", "3", "--seed", "7",
                    "--sse-keep-alive-interval", "2", "--uvicorn-log-level", "critical",
                    "--cudagraph-capture-sizes", "1", "2", "4", "--device-ids=1"),
              &e),
        &e);
    assert_int_equal(o.frontends, 3);
    assert_int_equal(o.sse_ping_ms, 2000);
    assert_string_equal(o.log_level, "error");
    assert_string_equal(o.cuda_graph_sizes, "1,2,4");
    assert_string_equal(o.device, "cuda:1");
    assert_true(options_given(&o, "--frontends"));
    size_t n = 0;
    for (size_t i = 0; i < 512; i++)
        n += o.no_effect[i / 64] >> i % 64 & 1;
    assert_int_equal(n, 8); /* -O and -cc are two, -cc twice one */
    options_release(&o);
    assert_fails(parse(&o, &serve, WORDS("m", "-tp", "2"), &e), Q_UNSUPPORTED,
                 "--tensor-parallel-size 2", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--enable-tower-connector-lora"), &e), Q_UNSUPPORTED,
                 "LoRA", &e);
    assert_ok(parse(&o, &serve,
                    WORDS("m", "--no-enable-tower-connector-lora", "--kv-transfer-config={}"), &e),
              &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--kv-transfer-config.kv_role", "both"), &e),
                 Q_UNSUPPORTED, "--kv-transfer-config", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--compilation-config", "{\"a\""), &e), Q_INVALID,
                 "--compilation-config", &e);
    assert_fails(parse(&o, &engine, WORDS("m", "--api-server-count", "3"), &e), Q_INVALID,
                 "--frontends is not an option of quire engine", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--tensor-parallel", "2"), &e), Q_INVALID,
                 "did you mean --tensor-parallel-size?", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--trust-remote-cod"), &e), Q_INVALID,
                 "did you mean --trust-remote-code?", &e);
}

/* Flags of older versions that set a member of a JSON option, or have other words for values. */
static void flags_of_older_vllm_set_options(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    assert_ok(
        parse(&o, &serve,
              WORDS("m", "--rope-scaling", "{\"rope_type\": \"yarn\"}", "--rope-scaling.factor",
                    "4", "--rope-theta", "1e6", "--override-pooler-config.pooling_type=CLS",
                    "--task", "embedding", "--load-format", "bitsandbytes"),
              &e),
        &e);
    assert_string_equal(
        o.hf_overrides,
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4},\"rope_theta\":1000000.0}");
    assert_string_equal(o.pooler_config, "{\"pooling_type\":\"CLS\"}");
    assert_string_equal(o.convert, "embed");
    assert_string_equal(o.load_format, "auto");
    options_release(&o);
    assert_ok(parse(&o, &serve, WORDS("m", "--task", "generate"), &e), &e);
    assert_string_equal(o.convert, "none");
    options_release(&o);
    assert_fails(parse(&o, &serve, WORDS("m", "--rope-scaling", "yarn"), &e), Q_INVALID,
                 "--rope-scaling: \"yarn\" is not a JSON object", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--rope-scaling", "{"), &e), Q_INVALID,
                 "--rope-scaling is not valid JSON", &e);
}

static void lists_take_words_and_leave_the_model(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    assert_ok(parse(&o, &serve,
                    WORDS("m", "--api-key", "a", "b", "--served-model-name", "x", "--api-key=c"),
                    &e),
              &e);
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.api_key.n, 3);
    assert_string_equal(o.api_key.items[1], "b");
    assert_int_equal(o.served_model_name.n, 1);
    assert_ok(parse(&o, &serve, WORDS("--api-key", "a", "b", "m"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.api_key.n, 2);
    assert_ok(parse(&o, &serve, WORDS("--api-key", "a", "m", "--port", "1"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.api_key.n, 1);
    assert_ok(parse(&o, &serve, WORDS("--api-key", "a", "b", "--", "m"), &e), &e);
    assert_int_equal(o.api_key.n, 2);
    assert_ok(parse(&o, &serve, WORDS("--hf-token", "m"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_ok(parse(&o, &serve, WORDS("m", "--served-model-name", "[\"x\", \"y\"]"), &e), &e);
    assert_int_equal(o.served_model_name.n, 2);
    assert_string_equal(o.served_model_name.items[1], "y");
    options_release(&o);
    static const struct program_info chat = {FOR_CHAT, "quire chat", "", "", 0, 1};
    assert_ok(parse(&o, &chat, WORDS("--api-key", "a", "m"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_fails(parse(&o, &serve, WORDS("--api-key", "a"), &e), Q_INVALID, "missing", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--api-key", "--port", "1"), &e), Q_INVALID,
                 "--api-key needs a value", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--host", "--port", "1"), &e), Q_INVALID,
                 "--host needs a value", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--spec-tokens"), &e), Q_INVALID,
                 "it sets --speculative-config.num_speculative_tokens", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--sse-keep-alive-interval"), &e), Q_INVALID,
                 "--sse-keep-alive-interval needs a value: it sets --sse-ping-ms", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--cudagraph-capture-sizes"), &e), Q_INVALID,
                 "--cudagraph-capture-sizes needs a value: it sets --cuda-graph-sizes", &e);
    setenv("QUIRE_API_KEY", "one\ntwo", 1);
    assert_ok(parse(&o, &serve, WORDS("m"), &e), &e);
    assert_int_equal(o.api_key.n, 2);
    assert_string_equal(o.api_key.items[1], "two");
    unsetenv("QUIRE_API_KEY");
    options_release(&o);
}

static void the_model_may_be_a_flag(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    static const struct program_info generate = {FOR_GENERATE, "quire generate", "", "", 1, 8};
    assert_ok(parse(&o, &serve, WORDS("--model", "m", "--served-model-name", "a", "b"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.n_positional, 1);
    assert_int_equal(o.served_model_name.n, 2);
    assert_ok(parse(&o, &serve, WORDS("m", "--model", "m"), &e), &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--model", "n"), &e), Q_INVALID, "twice", &e);
    assert_ok(parse(&o, &generate, WORDS("--model", "m", "a prompt"), &e), &e);
    assert_string_equal(o.positional[0], "m");
    assert_string_equal(o.positional[1], "a prompt");
    assert_ok(parse(&o, &serve, WORDS("m", "--max-model-len", "32k"), &e), &e);
    assert_int_equal(o.max_model_len, 32000);
    assert_ok(parse(&o, &serve, WORDS("m", "--max-model-len", "auto"), &e), &e);
    assert_int_equal(o.max_model_len, -1);
    assert_ok(parse(&o, &serve, WORDS("m", "--max-model-len", "-1"), &e), &e);
    assert_int_equal(o.max_model_len, -1);
}

static void json_may_come_in_parts(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    assert_ok(parse(&o, &serve,
                    WORDS("m", "--speculative-config", "{\"method\": \"ngram\"}",
                          "--speculative_config.num_speculative_tokens=4", "--spec-model", "x/y",
                          "-sc.a.b_c", "[1]", "-sc.list+", "1,two", "--speculative-config.list+=3"),
                    &e),
              &e);
    assert_string_equal(o.speculative_config,
                        "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"model\":\"x/y\","
                        "\"a\":{\"b_c\":[1]},\"list\":[1,\"two\",3]}");
    options_release(&o);
    static const char *const bad[] = {"ngram", "[1]", "{", "{\"a\" 1}", "4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(parse(&o, &serve, WORDS("m", "--speculative-config", bad[i]), &e), Q_INVALID,
                     "--speculative-config", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "-sc.a=1", "-sc.a.b=2"), &e), Q_INVALID,
                 "not an object", &e);
    options_release(&o);
    assert_fails(parse(&o, &serve, WORDS("m", "--port.x", "1"), &e), Q_INVALID,
                 "does not take a JSON object", &e);
    assert_fails(parse(&o, &serve, WORDS("m", "-sc.", "1"), &e), Q_INVALID, "expected a key of",
                 &e);
}

/* --config */

static enum q_code file(struct options *o, const char *text, struct q_err *e)
{
    options_defaults(o);
    return options_file_text(o, &serve, text, strlen(text), "x.yaml", e);
}

static void a_file_gives_what_is_not_given(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    char path[] = "/tmp/quire-options-XXXXXX.yaml";
    FILE *out = fdopen(mkstemps(path, 5), "w");
    assert_non_null(out);
    fputs("\xef\xbb\xbf# a server\nmodel: m\nport: 81\nhost: 0.0.0.0\nserved-model-name: [a, 'b']\n"
          "max_model_len: 32k\nenable-prefix-caching: no\n--tensor-parallel-size: 1\n"
          "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n  on: [yes, ~]\n"
          "chat-template:\nquantization: \"none\"\nno-enable-auto-tool-choice: true\n"
          "cudagraph-capture-sizes: [1, 2]\nallowed-origins: [\"*\", http://a.b]\n"
          "compilation-config: {mode: 3}\n",
          out);
    fclose(out);
    setenv("QUIRE_HOST", "::", 1);
    assert_ok(parse(&o, &serve, WORDS("--config", path, "--port", "82"), &e), &e);
    unsetenv("QUIRE_HOST");
    assert_string_equal(o.positional[0], "m");
    assert_int_equal(o.port, 82);      /* the command line wins */
    assert_string_equal(o.host, "::"); /* and so does the environment */
    assert_int_equal(o.served_model_name.n, 2);
    assert_string_equal(o.served_model_name.items[1], "b");
    assert_int_equal(o.max_model_len, 32000);
    assert_false(o.enable_prefix_caching);
    assert_false(o.enable_auto_tool_choice);
    assert_string_equal(o.cuda_graph_sizes, "1,2");
    assert_string_equal(o.speculative_config, "{\"method\":\"ngram\",\"num_speculative_tokens\":4,"
                                              "\"on\":[true,null]}");
    assert_string_equal(o.chat_template, "");
    assert_string_equal(o.allowed_origins, "[\"*\",\"http://a.b\"]");
    options_release(&o);
    assert_ok(parse(&o, &serve, WORDS("n", "--config", path, "--served-model-name", "c"), &e), &e);
    assert_string_equal(o.positional[0], "n");
    assert_int_equal(o.served_model_name.n, 1);
    options_release(&o);
    assert_fails(parse(&o, &serve, WORDS("m", "--config", path, "--config", path), &e), Q_INVALID,
                 "--config is given twice", &e);
    unlink(path);
    assert_fails(parse(&o, &serve, WORDS("m", "--config", path), &e), Q_NOT_FOUND, path, &e);
    assert_fails(parse(&o, &serve, WORDS("m", "--config", "x.json"), &e), Q_INVALID, ".yaml", &e);
}

static void mistakes_in_a_file_are_named_with_their_lines(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"port: 80\nport: 81\n", "line 2: port is given twice"},
        {"host: a\n\nprot: 80\n", "line 3: unknown option --prot; did you mean --port?"},
        {"port: [1, 2]\n", "--port takes one value"},
        {"# x\nport: {a: 1}\n", "x.yaml: line 2: --port takes one value"},
        {"allowed-origins: {a: 1}\n", "x.yaml: line 1: --allowed-origins takes a list"},
        {"port: many\n", "x.yaml line 1: --port: \"many\""},
        {"enable-prefix-caching: perhaps\n", "not true or false"},
        {"no-enable-prefix-caching: perhaps\n",
         "line 1: --no-enable-prefix-caching: \"perhaps\" is not true or false"},
        {"no-trust-remote-code: [1]\n", "--no-trust-remote-code takes one value"},
        {"- port\n", "a mapping"},
        {"port: 80\n---\nhost: a\n", "expected one YAML document"},
        {"port: 80\n  host: [\n", "not valid YAML"},
        {"config: other.yaml\n", "--config is accepted on the command line only"},
        {"help: true\n", "--help is accepted on the command line only"},
        {"? [a]\n: b\n", "a key is not a string"},
        {"host: !!python/object:os.system a\n", "tag"},
        {"host: !x a\n", "tag"},
        {"host: \"a\\0b\"\n", "NUL"},
        {"speculative-config: &a [*a]\n", "levels"},
        {"speculative-config: {a: &a [1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a], "
         "c: &c [*b,*b,*b,*b,*b,*b,*b,*b], d: [*c,*c,*c,*c,*c,*c,*c,*c]}\n",
         "parts"},
        {"speculative-config: [1]\n", "is not a JSON object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum q_code rc = file(&o, bad[i].text, &e);
        if (!rc || !strstr(e.message, bad[i].part))
            fail_msg("%s: got \"%s\", wanted \"%s\"", bad[i].text, e.message, bad[i].part);
        q_err_reset(&e);
        options_release(&o);
    }
    assert_fails(file(&o, "a: 1\nenable-tower-connector-lora: true\n", &e), Q_INVALID, "line 1",
                 &e);
    assert_fails(file(&o, "enable-tower-connector-lora: true\n", &e), Q_UNSUPPORTED,
                 "line 1: --enable-tower-connector-lora", &e);
    assert_ok(file(&o, "fully-sharded-loras: false\ntrust-remote-code: true\n", &e), &e);
    assert_ok(file(&o, "", &e), &e);
    assert_ok(file(&o, "# nothing\n", &e), &e);
    assert_ok(file(&o, "port: ~\n", &e), &e);
    assert_int_equal(o.port, 8000);
    options_release(&o);
}

/* `no-flag` is true or false in each of the words that the flag itself takes. */
static void a_file_may_negate(void **state)
{
    (void)state;
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    static const struct {
        const char *value;
        bool on; /* enable-prefix-caching then */
    } cases[] = {
        {"true", false}, {"1", false}, {"\"yes\"", false}, {"ON", false},
        {"false", true}, {"0", true},  {"\"no\"", true},   {"Off", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "no-enable-prefix-caching: %s\n", cases[i].value);
        assert_ok(file(&o, text, &e), &e);
        if (o.enable_prefix_caching != cases[i].on)
            fail_msg("%s", text);
        options_release(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_from_flags_environment_and_defaults),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(children_get_what_was_given_and_theirs),
        cmocka_unit_test(help_lists_a_programs_own_options),
        cmocka_unit_test(flags_of_vllm_are_all_known),
        cmocka_unit_test(rows_of_vllm_flags_are_whole),
        cmocka_unit_test(flags_of_vllm_do_what_their_rows_say),
        cmocka_unit_test(flags_of_older_vllm_set_options),
        cmocka_unit_test(lists_take_words_and_leave_the_model),
        cmocka_unit_test(the_model_may_be_a_flag),
        cmocka_unit_test(json_may_come_in_parts),
        cmocka_unit_test(a_file_gives_what_is_not_given),
        cmocka_unit_test(mistakes_in_a_file_are_named_with_their_lines),
        cmocka_unit_test(a_file_may_negate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
