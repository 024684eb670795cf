/* SPDX-License-Identifier: Apache-2.0 */
/* quire-teach: writes a teacher's log-probabilities of some data into a folder, for
 * `quire distill --teacher-file`. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "common/hub/config.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/options.h"
#include "engine/distill/teach.h"
#include "engine/model/plugins.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MODEL = 3 };

static atomic_bool stop;
static volatile sig_atomic_t signal_number;

static void on_signal(int number)
{
    signal_number = number;
    atomic_store(&stop, true);
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
}

static FALLIBLE parse_dtype(struct teach_options *t, const char *text, struct q_err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DT_F32}, {"bfloat16", DT_BF16}, {"float16", DT_F16}};
    t->dtype_auto = strcmp(text, "auto") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i].name) == 0) {
            t->dtype = names[i].dtype;
            return Q_OK;
        }
    return t->dtype_auto ? Q_OK
                         : q_fail(e, Q_INVALID,
                                  "--dtype %s: expected auto, float32, bfloat16 or float16", text);
}

static FALLIBLE parse_quantization(struct teach_options *t, const char *text, struct q_err *e)
{
    static const enum quantization all[] = {QUANTIZE_NOT, QUANTIZE_INT8, QUANTIZE_INT4};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(text, quantization_name(all[i])) == 0) {
            t->quantization = all[i];
            return Q_OK;
        }
    return q_fail(e, Q_INVALID, "--quantization %s: expected int8 or int4", text);
}

static FALLIBLE check_options(const struct options *o, struct q_err *e)
{
    if (!*o->teach_url == !*o->teach_model)
        return q_fail(e, Q_INVALID, "expected --teacher-url URL or --teacher MODEL, one of them");
    if (o->teach_data.n == 0)
        return q_fail(e, Q_INVALID, "expected --data FILE, the samples");
    if (!*o->teach_output)
        return q_fail(e, Q_INVALID, "expected --output FOLDER, where the files are written");
    return Q_OK;
}

static const char *last_part(const char *path)
{
    static char name[TEACHER_NAME_MAX];
    size_t n = strlen(path), from;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (from = n; from && path[from - 1] != '/';)
        from--;
    snprintf(name, sizeof name, "%.*s", (int)(n - from), path + from);
    return name;
}

/* A folder of a model id or path; "": none. */
static FALLIBLE find_folder(char dir[PATH_MAX], const char *model, struct q_err *e)
{
    *dir = 0;
    return *model ? hub_resolve(dir, model, NULL, e) : Q_OK;
}

static FALLIBLE vocab_of(uint32_t *n_vocab, const char *dir, struct q_err *e)
{
    struct model_config c;
    const enum q_code rc = *dir ? model_config_load(&c, NULL, dir, e) : Q_OK;
    *n_vocab = *dir && !rc ? c.vocab_size : INT32_MAX;
    return rc;
}

struct places { /* where things are */
    struct plugins_config plugins;
    char model[PATH_MAX], tokenizer[PATH_MAX];
    const char *data[OPTION_LIST_MAX];
};

static FALLIBLE options_of(struct teach_options *t, struct places *p, const struct options *o,
                           struct q_err *e)
{
    enum q_code rc;
    *t = (struct teach_options){
        .output = o->teach_output,
        .top_k = (uint32_t)o->teach_top_k,
        .name = last_part(o->teach_model),
        .stop = &stop,
        .quiet = o->teach_quiet,
        .url =
            {
                .url = *o->teach_url ? o->teach_url : NULL,
                .model = o->teach_served_model,
                .api_key = o->api_key.n ? o->api_key.items[0] : "",
                .n_connection = (uint32_t)o->teach_connections,
                .n_retry = (uint32_t)o->teach_retries,
                .timeout_s = o->teach_timeout,
            },
    };
    if ((rc = check_options(o, e)) || (rc = parse_dtype(t, o->dtype, e)) ||
        (rc = parse_quantization(t, o->quantization, e)) ||
        (rc = find_folder(p->model, o->teach_model, e)) ||
        (rc = plugins_config_set(&p->plugins, o->plugin.items, o->plugin.n, o->plugin_path, e)) ||
        (*p->model && (rc = plugins_open(&p->plugins, p->model, e))) ||
        (rc = find_folder(p->tokenizer, *o->tokenizer ? o->tokenizer : o->teach_model, e)))
        return rc;
    for (uint32_t i = 0; i < o->teach_data.n; i++)
        p->data[i] = o->teach_data.items[i];
    t->dir = p->model;
    t->data = (struct dataset_options){
        .paths = p->data,
        .n_path = o->teach_data.n,
        .tokenizer_dir = *p->tokenizer ? p->tokenizer : NULL,
        .cache_dir = *o->teach_cache ? o->teach_cache : NULL,
        .seq_len = (uint32_t)o->teach_seq_length,
    };
    return vocab_of(&t->data.vocab_size, p->model, e);
}

static int print_error(const char *message, int code)
{
    fprintf(stderr, "quire teach: %s\n", message);
    return code;
}

static int run(struct teach_options *t, const struct options *o)
{
    static struct kern_table kern;
    struct teach_counts counts;
    struct q_err e = Q_ERR_INIT;
    uint32_t caps;
    if (kern_caps_parse(&caps, o->cpu_isa, &e))
        return print_error(e.message, EXIT_USAGE);
    kern_table_cpu(&kern, caps);
    t->kern = &kern;
    if (team_new(&t->team, (uint32_t)o->threads, true, &e))
        return print_error(e.message, EXIT_FAILED);
    t->data.team = t->team;
    catch_signals();
    const enum q_code rc = teach_run(t, &counts, &e);
    team_free(t->team);
    if (rc == Q_CANCELLED) {
        print_error("stopped; the same command goes on where it was", 0);
        return 128 + (signal_number ? signal_number : SIGTERM);
    }
    if (rc)
        return print_error(e.message,
                           rc == Q_INVALID || rc == Q_MISMATCH ? EXIT_USAGE : EXIT_FAILED);
    printf("%llu sequences with %llu positions written to %s, %llu were there\n",
           (unsigned long long)counts.n_sequence, (unsigned long long)counts.n_position, t->output,
           (unsigned long long)counts.n_skipped);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_TEACH,
        .name = "quire teach",
        .usage = "--teacher-url URL | --teacher MODEL --data FILE --output FOLDER [options]",
        .about = "Writes the log-probabilities that a teacher gives to the samples of a data set "
                 "into a folder, for `quire distill --teacher-file FOLDER`. The teacher is a "
                 "server that runs (quire or vLLM) or a model that is loaded here. Samples that "
                 "the folder has are skipped: after an interruption the same command goes on.",
    };
    static struct options o;
    static struct teach_options t;
    static struct places p;
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    const enum q_code rc = options_of(&t, &p, &o, &e);
    code = rc ? print_error(e.message, rc == Q_INVALID ? EXIT_USAGE : EXIT_MODEL) : run(&t, &o);
    options_release(&o);
    return code;
}
