/* SPDX-License-Identifier: Apache-2.0 */
/* quire-generate MODEL --prompt …: answers without a server, through the public library
 * (engine/quire.h) and nothing else of the engine. All answers are computed together; they are
 * printed in the order of the prompts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/parse.h"
#include "engine/quire.h"

#define PROMPT_BYTES_MAX   ((size_t)64 << 20)
#define PROMPT_IDS_MAX     ((size_t)1 << 24)
#define MAX_TOKENS_DEFAULT 128

enum { EXIT_ANSWER = 1, EXIT_USAGE = 2, EXIT_LOAD = 3 };

struct prompt {
    const char *text; /* NULL: ids */
    size_t n_text;
    uint32_t *ids;
    size_t n_ids;
};

struct job { /* one answer */
    uint32_t i_prompt, i_answer;
    struct quire_request *request;
};

struct answer { /* the one being taken */
    struct buf text, ids, logprobs;
    uint32_t n_token;
    struct quire_event last; /* its FINISH */
};

struct program {
    struct options o;
    struct prompt prompts[2 * OPTION_LIST_MAX];
    uint32_t n_prompt;
    struct job *jobs; /* [n_job] */
    uint32_t n_job;
    struct quire_engine *engine;
    bool stream; /* one answer as text: print as it comes */
    bool failed;
};

static void complain(const char *what, const char *message)
{
    fprintf(stderr, "quire-generate: %s%s%s\n", what, *what ? ": " : "", message);
}

static FALLIBLE read_stdin(struct prompt *p, struct q_err *e)
{
    struct buf b = BUF_INIT_MAX(PROMPT_BYTES_MAX);
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        buf_add(&b, chunk, n);
    if (ferror(stdin))
        return q_fail(e, Q_IO, "standard input: %s", strerror(errno));
    enum q_code rc = buf_check(&b, "standard input", e);
    p->text = buf_str(&b); /* process lifetime */
    p->n_text = b.len;
    return rc;
}

/* "1,2,3" */
static FALLIBLE parse_ids(struct prompt *p, const char *text, struct q_err *e)
{
    size_t cap = 0;
    while (*text) {
        char number[32];
        int64_t id;
        size_t n = strcspn(text, ",");
        enum q_code rc;
        snprintf(number, sizeof number, "%.*s", (int)(n < sizeof number ? n : sizeof number - 1),
                 text);
        if ((rc = parse_i64(&id, number, 0, UINT32_MAX, "--prompt-ids", e)) ||
            (rc = q_grow(&p->ids, &cap, p->n_ids + 1, sizeof *p->ids, PROMPT_IDS_MAX, e)))
            return rc;
        p->ids[p->n_ids++] = (uint32_t)id;
        text += n + (text[n] == ',');
    }
    return p->n_ids ? Q_OK : q_fail(e, Q_INVALID, "--prompt-ids is empty");
}

static FALLIBLE take_prompts(struct program *p, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < p->o.prompt.n && !rc; i++) {
        struct prompt *to = &p->prompts[p->n_prompt++];
        to->text = p->o.prompt.items[i];
        to->n_text = strlen(to->text);
        if (!strcmp(to->text, "-"))
            rc = read_stdin(to, e);
    }
    for (uint32_t i = 0; i < p->o.prompt_ids.n && !rc; i++)
        rc = parse_ids(&p->prompts[p->n_prompt++], p->o.prompt_ids.items[i], e);
    if (!rc && !p->n_prompt)
        rc =
            q_fail(e, Q_INVALID, "no prompt: give --prompt TEXT, --prompt - or --prompt-ids 1,2,3");
    return rc;
}

static void show_progress(void *ctx, uint32_t percent)
{
    (void)ctx;
    fprintf(stderr, percent < 100 ? "\rloading %u %%" : "\r              \r", percent);
}

static int open_engine(struct program *p)
{
    const struct options *o = &p->o;
    struct quire_options q;
    struct quire_error error;
    quire_options_init(&q, sizeof q);
    q.model = o->positional[0];
    q.revision = o->revision;
    q.load_format = o->load_format;
    q.dtype = o->dtype;
    q.generation_config = o->generation_config;
    q.cpu_isa = o->cpu_isa;
    q.log_level = options_given(o, "--log-level") ? o->log_level : "warning";
    q.max_model_len = (uint32_t)o->max_model_len;
    q.max_num_seqs = (uint32_t)o->max_num_seqs;
    q.max_num_batched_tokens = (uint32_t)o->max_num_batched_tokens;
    q.max_num_queued_reqs = (uint32_t)o->max_num_queued_reqs;
    q.num_blocks = (uint32_t)o->num_gpu_blocks_override;
    q.kv_cache_bytes = o->kv_cache_memory_bytes;
    q.kv_cache_dtype = o->kv_cache_dtype;
    q.gpu_memory_utilization = o->gpu_memory_utilization;
    q.threads = (uint32_t)o->threads;
    q.skip_tokenizer = o->skip_tokenizer_init;
    q.progress = isatty(STDERR_FILENO) ? show_progress : NULL;
    if (quire_engine_open(&p->engine, &q, &error) == QUIRE_OK)
        return 0;
    complain("", error.message);
    return error.code == QUIRE_INVALID ? EXIT_USAGE : EXIT_LOAD;
}

static void params_of(struct quire_params *q, const struct program *p, const struct job *job)
{
    const struct options *o = &p->o;
    const struct prompt *prompt = &p->prompts[job->i_prompt];
    quire_params_init(q, sizeof *q);
    q->text = prompt->text;
    q->n_text = prompt->n_text;
    q->ids = prompt->ids;
    q->n_ids = prompt->n_ids;
    q->temperature = (float)o->temperature;
    q->top_p = (float)o->top_p;
    q->top_k = o->top_k;
    q->min_p = (float)o->min_p;
    q->repetition_penalty = (float)o->repetition_penalty;
    q->seed = o->seed < 0 ? -1 : o->seed + job->i_answer; /* the answers to one prompt differ */
    q->max_tokens = o->max_tokens ? (uint32_t)o->max_tokens : MAX_TOKENS_DEFAULT;
    q->ignore_eos = o->ignore_eos;
    q->logprobs = o->json ? (int32_t)o->logprobs : -1;
    q->stops = o->stop.items;
    q->n_stop = o->stop.n;
}

static double json_number(float x)
{
    return isfinite(x) ? (double)x : -9999.0; /* JSON has no infinity */
}

static void add_logprob(struct answer *a, const struct quire_event *ev)
{
    struct buf *b = &a->logprobs;
    buf_printf(b, "%s{\"token_id\":%u,\"logprob\":%.7g,\"rank\":%u,\"top\":[",
               a->n_token > 1 ? "," : "", ev->token, json_number(ev->logprob), ev->rank);
    for (uint32_t i = 0; i < ev->n_top; i++)
        buf_printf(b, "%s{\"token_id\":%u,\"logprob\":%.7g}", i ? "," : "", ev->top[i].token,
                   json_number(ev->top[i].logprob));
    buf_add_str(b, "]}");
}

/* All events of one answer. False: it failed, which was said. */
static bool take_answer(const struct program *p, const struct job *job, struct answer *a)
{
    struct quire_event ev;
    struct quire_error error;
    do {
        if (quire_next(job->request, &ev, -1, &error) != QUIRE_OK) {
            complain("the answer failed", error.message);
            return false;
        }
        buf_add(&a->text, ev.text, ev.n_text);
        if (ev.kind == QUIRE_TOKEN) {
            buf_printf(&a->ids, "%s%u", a->n_token++ ? (p->o.json ? "," : " ") : "", ev.token);
            if (ev.rank)
                add_logprob(a, &ev);
        }
        if (p->stream && !p->o.skip_tokenizer_init) {
            fwrite(ev.text, 1, ev.n_text, stdout);
            fflush(stdout);
        }
    } while (ev.kind != QUIRE_FINISH);
    a->last = ev;
    return true;
}

static void print_json(const struct program *p, const struct job *job, const struct answer *a)
{
    static const char *const reasons[] = {"", "stop", "length", "abort", "error"};
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"prompt\":%u,\"index\":%u,", job->i_prompt, job->i_answer);
    if (!p->o.skip_tokenizer_init) {
        buf_add_str(&b, "\"text\":");
        buf_add_json_str(&b, buf_str(&a->text), a->text.len);
        buf_add_char(&b, ',');
    }
    buf_printf(&b, "\"token_ids\":[%s],\"finish_reason\":\"%s\",\"stop_reason\":", buf_str(&a->ids),
               reasons[a->last.finish]);
    if (a->last.i_stop >= 0)
        buf_add_json_str(&b, p->o.stop.items[a->last.i_stop],
                         strlen(p->o.stop.items[a->last.i_stop]));
    else if (a->last.stop_id >= 0)
        buf_printf(&b, "%lld", (long long)a->last.stop_id);
    else
        buf_add_str(&b, "null");
    if (p->o.logprobs >= 0)
        buf_printf(&b, ",\"logprobs\":[%s]", buf_str(&a->logprobs));
    buf_printf(&b, ",\"prompt_tokens\":%u,\"completion_tokens\":%u}",
               quire_request_n_prompt(job->request), a->n_token);
    puts(buf_str(&b));
    fflush(stdout);
    buf_release(&b);
}

static void print_text(const struct program *p, const struct job *job, const struct answer *a)
{
    const struct buf *what = p->o.skip_tokenizer_init ? &a->ids : &a->text;
    if (p->n_job > 1)
        printf("--- prompt %u, answer %u\n", job->i_prompt + 1, job->i_answer + 1);
    if (!p->stream || p->o.skip_tokenizer_init)
        fwrite(buf_str(what), 1, what->len, stdout);
    putchar('\n');
    fflush(stdout);
}

static void print_answer(struct program *p, struct job *job)
{
    struct answer a = {.text = BUF_INIT, .ids = BUF_INIT, .logprobs = BUF_INIT};
    if (!take_answer(p, job, &a))
        p->failed = true;
    else if (p->o.json)
        print_json(p, job, &a);
    else
        print_text(p, job, &a);
    quire_request_free(job->request);
    job->request = NULL;
    buf_release(&a.text);
    buf_release(&a.ids);
    buf_release(&a.logprobs);
}

/* Submit all; when the engine has enough, take the oldest answer first. False: a prompt was
 * refused. */
static bool run(struct program *p)
{
    uint32_t i_print = 0;
    for (uint32_t i = 0; i < p->n_job; i++) {
        struct quire_params q;
        struct quire_error error;
        enum quire_code rc;
        params_of(&q, p, &p->jobs[i]);
        while ((rc = quire_submit(&p->jobs[i].request, p->engine, &q, &error)) == QUIRE_BUSY &&
               i_print < i)
            print_answer(p, &p->jobs[i_print++]);
        if (rc != QUIRE_OK) {
            complain("", error.message);
            for (; i_print < i; i_print++)
                quire_request_free(p->jobs[i_print].request);
            return false;
        }
    }
    for (; i_print < p->n_job; i_print++)
        print_answer(p, &p->jobs[i_print]);
    return true;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_GENERATE,
        .name = "quire-generate",
        .usage = "MODEL --prompt TEXT [options]",
        .about = "Answers prompts without a server. One prompt streams its answer; several are "
                 "computed together. --json "
                 "prints one object per answer. Ends with 2 for a wrong command line, 3 when the "
                 "model cannot be loaded, 1 "
                 "when an answer failed.",
        .positional_min = 1,
        .positional_max = 1};
    static struct program p;
    struct q_err e = Q_ERR_INIT;
    int rc = options_main(&p.o, &info, argc, argv);
    if (rc >= 0)
        return rc;
    if (take_prompts(&p, &e)) {
        complain("", e.message);
        return EXIT_USAGE;
    }
    uint32_t n = (uint32_t)p.o.n;
    p.n_job = p.n_prompt * n;
    p.stream = p.n_job == 1 && !p.o.json;
    p.jobs = q_calloc(p.n_job, sizeof *p.jobs);
    if (!p.jobs)
        return EXIT_ANSWER;
    for (uint32_t i = 0; i < p.n_job; i++)
        p.jobs[i] = (struct job){.i_prompt = i / n, .i_answer = i % n};
    if ((rc = open_engine(&p)))
        return rc;
    bool ok = run(&p) && !p.failed;
    quire_engine_close(p.engine);
    return ok ? 0 : EXIT_ANSWER;
}
