/* SPDX-License-Identifier: Apache-2.0 */
/* quire-bench: `quire bench VERB …`. The verbs are a table; each is a function of its own file. */
#include <string.h>
#include <unistd.h>
#include "common/hub/config.h"
#include "common/hub/hub.h"
#include "common/columns.h"
#include "common/log.h"
#include "engine/bench/bench.h"
#include "kcheck.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MODEL = 3 };

/* The tests' program for kernels (tests/kcheck) is inside this one. */
static enum q_code bench_kernels(struct bench *b, struct q_err *e)
{
    const struct options *o = &b->o;
    if (!strcmp(o->json_out, "-"))
        return q_fail(e, Q_INVALID, "--json: standard output has the table; give a file");
    struct kcheck_bench what = {.op = *o->op ? o->op : NULL,
                                .caps = o->cpu_isa,
                                .json = *o->json_out ? o->json_out : NULL,
                                .n_thread = o->threads};
    b->o.json_out = ""; /* what is written there has the machine and every row already */
    return kcheck_bench(&what, e);
}

static const struct verb {
    const char *verb;
    bench_verb *run;
    const char *about;
    struct program_info info;
} verbs[] = {
    {"roofline",
     bench_roofline,
     "what this machine reads and computes at most",
     {.program = FOR_BENCH_ROOFLINE,
      .name = "quire bench roofline",
      .usage = "[options]",
      .about = "Measures the ceilings of this machine with all threads: memory read in three ways, "
               "in small and in huge pages, and the multiply-add and dot-product instructions it "
               "has for fp32, bf16 and int8."}},
    {"kernels",
     bench_kernels,
     "each kernel of the engine beside those ceilings",
     {.program = FOR_BENCH_KERNELS,
      .name = "quire bench kernels",
      .usage = "[options]",
      .about =
          "Times every variant of every kernel that this machine can run, as a fraction of the "
          "read bandwidth or of the arithmetic peak measured in the same run."}},
    {"latency",
     bench_latency,
     "one batch at a time: prefill, decode, first token",
     {.program = FOR_BENCH_LATENCY,
      .name = "quire bench latency",
      .usage = "MODEL [options]",
      .about = "Runs batches of random prompts through the engine and shows the medians of the "
               "repeats: prompt tokens per second, tokens per second while all sequences decode, "
               "times to the first and between tokens, and fractions of the machine's ceilings. "
               "With --load-format dummy a folder with config.json is all it needs.",
      .positional_max = 1}},
    {"throughput",
     bench_throughput,
     "many requests at once through the engine",
     {.program = FOR_BENCH_THROUGHPUT,
      .name = "quire bench throughput",
      .usage = "MODEL [options]",
      .about = "Hands the engine all requests of a data set at once and shows how fast they are "
               "done. No server.",
      .positional_max = 1}},
    {"serve",
     bench_serve,
     "drive an OpenAI server, ours or another",
     {.program = FOR_BENCH_SERVE,
      .name = "quire bench serve",
      .usage = "[options]",
      .about =
          "Sends requests to any server with OpenAI's API at a rate, as a Poisson process or as "
          "a trace has them, and shows what its clients see: times to the first token (TTFT), "
          "per token (TPOT), between pieces (ITL) and to the end (E2EL), throughput and "
          "goodput. Interrupted (Ctrl-C) it shows what it has. Ends with 1 when a request "
          "failed."}},
    {"quality",
     bench_quality,
     "what quantization changes: perplexity, top-1 agreement",
     {.program = FOR_BENCH_QUALITY,
      .name = "quire bench quality",
      .usage = "MODEL [options]",
      .about = "Scores the same text by MODEL as the options load it (--quantization, "
               "--kv-cache-dtype, --dtype) and by the reference, and shows both perplexities and "
               "how often both find the same token most likely. The text is --dataset-path, or "
               "what the reference says by itself.",
      .positional_max = 1}},
};
#define N_VERB (sizeof verbs / sizeof *verbs)

static void help(FILE *out)
{
    unsigned width = columns_width(out);
    fputs("usage: quire bench VERB [options]\n"
          "       quire bench VERB --help, quire help bench VERB\n\nverbs:\n",
          out);
    for (size_t i = 0; i < N_VERB; i++)
        columns_row(out, verbs[i].verb, 14, width, verbs[i].about);
    fputc('\n', out);
    columns_put(out, 0, 0, width,
                "Each prints a table; --json FILE writes {\"machine\", \"run\", \"results\"} too.");
}

static const struct verb *find(const char *name)
{
    for (size_t i = 0; i < N_VERB; i++)
        if (!strcmp(verbs[i].verb, name))
            return &verbs[i];
    return NULL;
}

static int fail(const struct verb *v, const struct q_err *e)
{
    fprintf(stderr, "%s: %s\n", v->info.name, e->message);
    return e->code == Q_INVALID ? EXIT_USAGE : e->code == Q_UNAVAILABLE ? EXIT_MODEL : EXIT_FAILED;
}

/* Before seconds are spent on the machine's ceilings. */
static FALLIBLE check_model(const struct bench *b, struct q_err *e)
{
    char dir[PATH_MAX];
    struct model_config ignored;
    const char *revision = *b->o.revision ? b->o.revision : NULL;
    enum q_code rc = hub_resolve(dir, b->model, revision, e);
    if (!rc)
        rc = model_config_load(&ignored, NULL, dir, e);
    if (rc && rc != Q_INVALID)
        e->code = rc = Q_UNAVAILABLE; /* fail: the model's exit code */
    return rc;
}

static FALLIBLE check(struct bench *b, const struct verb *v, struct q_err *e)
{
    const struct options *o = &b->o;
    b->model = o->n_positional ? o->positional[0] : o->model_name;
    if ((v->info.program & FOR_BENCH_LOCAL) && !*b->model)
        return q_fail(e, Q_INVALID, "MODEL is missing; usage: %s %s", v->info.name, v->info.usage);
    return v->info.program & FOR_BENCH_LOCAL ? check_model(b, e) : Q_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct q_err e = Q_ERR_INIT;
    const char *name = argc > 1 ? argv[1] : NULL;
    bool asked = name && (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"));
    const struct verb *v = asked && argc > 2 ? find(argv[2]) : name ? find(name) : NULL;
    if (v && asked) { /* quire bench help VERB */
        options_help(&v->info, NULL, columns_width(stdout), stdout);
        return 0;
    }
    if (!v) {
        if (name && !asked)
            fprintf(stderr, "quire bench: there is no verb \"%.60s\"\n", name);
        help(asked ? stdout : stderr);
        return asked ? 0 : EXIT_USAGE;
    }
    int code = options_main(&b.o, &v->info, argc - 1, argv + 1);
    if (code >= 0)
        return code;
    machine_describe(&b.machine);
    b.machine.n_thread = b.o.threads ? (uint32_t)b.o.threads : b.machine.n_core;
    b.out = strcmp(b.o.json_out, "-") ? stdout : stderr;
    b.progress = options_given(&b.o, "--progress") ? b.o.progress : isatty(STDERR_FILENO);
    enum q_code rc = check(&b, v, &e);
    if (!rc)
        rc = v->run(&b, &e);
    bench_progress_end(&b);
    struct q_err unsaved = Q_ERR_INIT;
    if ((b.n_result || !rc) && bench_save(&b, &unsaved) && !rc) {
        rc = unsaved.code;
        e = unsaved;
    }
    buf_release(&b.results);
    buf_release(&b.run);
    return rc ? fail(v, &e) : 0;
}
