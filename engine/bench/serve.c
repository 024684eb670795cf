/* SPDX-License-Identifier: Apache-2.0 */
/* quire bench serve: a workload sent to a server at one rate after the other. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include "common/clock.h"
#include "common/json_read.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/bench/dataset.h"
#include "engine/bench/load.h"

#define URL_MAX        1024
#define HEADERS_MAX    (OPTION_LIST_MAX + 4)
#define READY_PAUSE_MS 200

struct serve {
    struct bench *b;
    struct workload work;
    bool chat, words;
    char base[URL_MAX], url[URL_MAX], model[256];
    const char *headers[HEADERS_MAX];
    struct load_config load;
    json_t *extra; /* --extra-body */
    json_t *own;   /* parameters of the request being made; NULL = none */
    struct serve_limits limits;
    struct serve_view view;
    double rates[BENCH_LIST_MAX]; /* INFINITY = all at once; NAN = the trace's times */
    uint32_t n_rate;
    uint32_t *ids;
    double *due_s;                /* [work.n] */
    struct serve_record *records; /* [work.n] */
    size_t n_now;                 /* requests of the run now */
    uint64_t n_failed;            /* in all runs */
    char what[48];                /* the run now, for progress */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* options */

static FALLIBLE parse_rates(struct serve *s, struct q_err *e)
{
    const char *text = s->b->o.request_rates;
    bool given = options_given(&s->b->o, "--request-rate");
    if (s->work.timed && !given) {
        s->rates[s->n_rate++] = NAN;
        return Q_OK;
    }
    for (;; text++) {
        char one[32];
        size_t n = strcspn(text, ",");
        if (s->n_rate == BENCH_LIST_MAX)
            return q_fail(e, Q_INVALID, "--request-rate: more than %d rates", BENCH_LIST_MAX);
        snprintf(one, sizeof one, "%.*s", (int)(n < sizeof one ? n : sizeof one), text);
        double *rate = &s->rates[s->n_rate++];
        *rate = INFINITY;
        if (strcmp(one, "inf") != 0 && parse_f64(rate, one, 1e-6, 1e6, "--request-rate", e))
            return e->code;
        text += n;
        if (!*text)
            return Q_OK;
    }
}

static FALLIBLE add_header(struct serve *s, size_t *n, const char *name, const char *value,
                           struct q_err *e)
{
    struct buf b = BUF_INIT;
    buf_printf(&b, "%s: %s", name, value);
    enum q_code rc = buf_check(&b, "a header", e);
    s->headers[(*n)++] = b.data; /* as long as the process */
    return rc;
}

static FALLIBLE make_headers(struct serve *s, struct q_err *e)
{
    const struct options *o = &s->b->o;
    char bearer[1024], name[128];
    size_t n = 0;
    enum q_code rc = add_header(s, &n, "Content-Type", "application/json", e);
    s->headers[n++] = "Expect:"; /* a long prompt must not wait for a 100 */
    if (!rc && o->api_key.n) {
        snprintf(bearer, sizeof bearer, "Bearer %s", o->api_key.items[0]);
        rc = add_header(s, &n, "Authorization", bearer, e);
    }
    for (uint32_t i = 0; i < o->header.n && !rc; i++) {
        const char *equals = strchr(o->header.items[i], '=');
        if (!equals || equals == o->header.items[i])
            return q_fail(e, Q_INVALID, "--header: \"%.80s\" is not KEY=VALUE", o->header.items[i]);
        snprintf(name, sizeof name, "%.*s", (int)(equals - o->header.items[i]), o->header.items[i]);
        rc = add_header(s, &n, name, equals + 1, e);
    }
    s->load.n_header = n;
    return rc;
}

static FALLIBLE make_urls(struct serve *s, struct q_err *e)
{
    const struct options *o = &s->b->o;
    const char *path = *o->endpoint ? o->endpoint
                       : s->chat    ? "/v1/chat/completions"
                                    : "/v1/completions";
    if (*o->base_url)
        snprintf(s->base, sizeof s->base, "%s", o->base_url);
    else
        snprintf(s->base, sizeof s->base,
                 strchr(o->bench_host, ':') ? "http://[%s]:%lld" : "http://%s:%lld", o->bench_host,
                 (long long)o->bench_port);
    if (strncmp(s->base, "http://", 7) != 0 && strncmp(s->base, "https://", 8) != 0)
        return q_fail(e, Q_INVALID, "--base-url is \"%.100s\", expected http://… or https://…",
                      s->base);
    size_t n = strlen(s->base);
    while (n && s->base[n - 1] == '/')
        s->base[--n] = '\0';
    if (n > 3 && !strcmp(s->base + n - 3, "/v1")) /* the base URL as SDKs expect it */
        s->base[n - 3] = '\0';
    if (snprintf(s->url, sizeof s->url, "%s%s%s", s->base, *path == '/' ? "" : "/", path) >=
        URL_MAX)
        return q_fail(e, Q_INVALID, "--base-url is too long");
    return Q_OK;
}

static FALLIBLE read_options(struct serve *s, struct q_err *e)
{
    const struct options *o = &s->b->o;
    json_error_t why;
    enum q_code rc;
    s->chat = !strcmp(o->backend, "openai-chat");
    if (!s->chat && strcmp(o->backend, "openai") != 0 && strcmp(o->backend, "vllm") != 0)
        return q_fail(e, Q_INVALID, "--backend is \"%.40s\", expected openai or openai-chat",
                      o->backend);
    if (*o->extra_body && !json_is_object(s->extra = json_read_string(o->extra_body, 0, &why)))
        return q_fail(e, Q_INVALID, "--extra-body is not a JSON object: %.120s",
                      s->extra ? o->extra_body : why.text);
    for (uint32_t i = 0; i < o->goodput.n; i++)
        if ((rc = serve_limits_parse(&s->limits, o->goodput.items[i], e)))
            return rc;
    if ((rc = serve_view_parse(&s->view, o->percentile_metrics, o->metric_percentiles, e)) ||
        (rc = make_urls(s, e)) || (rc = make_headers(s, e)) || (rc = dataset_open(&s->work, o, e)))
        return rc;
    s->words = s->chat || o->prompt_text || s->work.items[0].text;
    return parse_rates(s, e);
}

/* the server */

static FALLIBLE first_model(struct serve *s, const struct buf *body, struct q_err *e)
{
    json_t *o = json_read_bytes(buf_str(body), body->len, 0, NULL);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    snprintf(s->model, sizeof s->model, "%s", id ? id : "");
    json_decref(o);
    return id ? Q_OK
              : q_fail(e, Q_CORRUPT, "%.150s/v1/models lists no model; set one with --model",
                       s->base);
}

/* One question. Q_UNAVAILABLE: not yet. */
static FALLIBLE ask_server(struct serve *s, struct load_answer *a, struct q_err *e)
{
    char url[URL_MAX + 16];
    enum q_code rc;
    snprintf(url, sizeof url, "%s/v1/models", s->base);
    q_err_reset(e);
    if ((rc = load_get(&s->load, url, a, e)))
        return rc;
    if (a->status == 401 || a->status == 403)
        return q_fail(e, Q_INVALID, "%.150s: HTTP %ld; set an API key with --api-key", url,
                      a->status);
    if (a->status >= 500)
        return q_fail(e, Q_UNAVAILABLE, "%.150s: HTTP %ld", url, a->status);
    if (*s->model) /* it answers, and need not know this address */
        return Q_OK;
    if (a->status != 200)
        return q_fail(e, Q_IO, "%.150s: HTTP %ld; set a model with --model", url, a->status);
    return first_model(s, &a->body, e);
}

/* Ask until it answers, as a server that loads does not yet. */
static FALLIBLE find_server(struct serve *s, struct q_err *e)
{
    struct load_answer a = {.body = BUF_INIT};
    const double timeout = s->b->o.ready_check_timeout;
    int64_t until = clock_ms() + (int64_t)(timeout * 1000);
    enum q_code rc;
    snprintf(s->model, sizeof s->model, "%s", s->b->o.model_name);
    if (timeout == 0 && *s->model)
        return Q_OK;
    while ((rc = ask_server(s, &a, e)) == Q_UNAVAILABLE && clock_ms() < until && !interrupted) {
        bench_progress(s->b, "waiting for %s", s->base);
        nanosleep(&(struct timespec){.tv_nsec = READY_PAUSE_MS * 1000000L}, NULL);
    }
    bench_progress_end(s->b);
    buf_release(&a.body);
    if (rc == Q_UNAVAILABLE) { /* which would mean a model that cannot be loaded */
        e->code = Q_IO;
        return q_wrap(e, "the server did not become ready within %.1f s", timeout);
    }
    return rc;
}

/* requests */

/* A member, unless --extra-body or the request's own parameters have one of that name. */
__attribute__((format(printf, 4, 5))) static void member(const struct serve *s, struct buf *out,
                                                         const char *key, const char *fmt, ...)
{
    va_list ap;
    if (json_object_get(s->extra, key) || json_object_get(s->own, key))
        return;
    buf_printf(out, "%s\"%s\":", out->len > 1 ? "," : "", key);
    va_start(ap, fmt);
    buf_vprintf(out, fmt, ap);
    va_end(ap);
}

static void add_prompt(struct serve *s, size_t i, struct buf *out)
{
    struct buf words = BUF_INIT, value = BUF_INIT;
    if (s->words) {
        workload_words(&s->work, i, &words);
        buf_add_str(&value, s->chat ? "[{\"role\":\"user\",\"content\":" : "");
        buf_add_json_str(&value, buf_str(&words), words.len);
        buf_add_str(&value, s->chat ? "}]" : "");
    } else {
        uint32_t n = workload_input_len(&s->work, i);
        workload_ids(&s->work, i, (uint32_t)s->b->o.vocab_size, s->ids);
        for (uint32_t k = 0; k < n; k++)
            buf_printf(&value, "%c%u", k ? ',' : '[', s->ids[k]);
        buf_add_char(&value, ']');
    }
    member(s, out, s->chat ? "messages" : "prompt", "%s", buf_str(&value));
    out->failed = out->failed ? out->failed : value.failed;
    buf_release(&words);
    buf_release(&value);
}

static int add_json(const char *text, size_t n, void *ctx)
{
    buf_add(ctx, text, n);
    return 0;
}

/* The members of an object, but those that `except` has. */
static void add_members(json_t *object, const json_t *except, struct buf *out)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value) {
        if (json_object_get(except, key))
            continue;
        buf_add_str(out, out->len > 1 ? "," : "");
        buf_add_json_str(out, key, strlen(key));
        buf_add_char(out, ':');
        json_dump_callback(value, add_json, out, JSON_COMPACT | JSON_ENCODE_ANY);
    }
}

static enum q_code make_body(void *ctx, size_t i, struct buf *out, struct q_err *e)
{
    struct serve *s = ctx;
    const struct options *o = &s->b->o;
    struct buf model = BUF_INIT;
    buf_add_json_str(&model, s->model, strlen(s->model));
    buf_add_char(out, '{');
    member(s, out, "model", "%s", buf_str(&model));
    buf_release(&model);
    add_prompt(s, i, out);
    if (s->work.items[i].request)
        s->own = json_read_string(s->work.items[i].request, 0, NULL);
    if (o->bench_ignore_eos)
        json_object_del(s->own, "ignore_eos");
    member(s, out, "max_tokens", "%u", s->work.items[i].output_len);
    member(s, out, "temperature", "%g", o->bench_temperature);
    member(s, out, "stream", "true");
    member(s, out, "stream_options", "{\"include_usage\":true}");
    if (o->bench_ignore_eos && !s->work.items[i].text)
        member(s, out, "ignore_eos", "true");
    add_members(s->own, s->extra, out);
    add_members(s->extra, NULL, out);
    json_decref(s->own);
    s->own = NULL;
    buf_add_char(out, '}');
    return buf_check(out, "a request", e);
}

static bool tell(void *ctx, size_t n_sent, size_t n_done, uint64_t n_piece)
{
    struct serve *s = ctx;
    bench_progress(s->b, "%s: %zu of %zu sent, %zu completed, %llu chunks", s->what, n_sent,
                   s->n_now, n_done, (unsigned long long)n_piece);
    return !interrupted;
}

/* arrivals */

static double normal(uint64_t *random)
{
    double u = 1 - bench_uniform(random), v = bench_uniform(random);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v); /* Box-Muller */
}

/* Gamma distributed with this shape and scale 1. Source: Marsaglia and Tsang, "A simple method for
 * generating gamma variables", ACM TOMS 26(3), 2000. */
static double gamma_of(double shape, uint64_t *random)
{
    if (shape < 1)
        return gamma_of(shape + 1, random) * pow(1 - bench_uniform(random), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(random), v = 1 + c * x, u = 1 - bench_uniform(random);
        if (v > 0 && log(u) < x * x / 2 + d - d * v * v * v + d * log(v * v * v))
            return d * v * v * v;
    }
}

/* When each request is due. The pauses of a rate are scaled to last n / rate together, so that two
 * runs differ in their bursts and not in their load. */
static void plan_arrivals(struct serve *s, double rate)
{
    uint64_t random = s->work.seed ^ 0x617272697665u; /* not the prompts' stream */
    const size_t n = s->work.n;
    double at = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(rate))
            at = s->work.items[i].at_s / s->b->o.trace_speed;
        else if (isfinite(rate))
            at += gamma_of(s->b->o.burstiness, &random);
        s->due_s[i] = at;
    }
    if (isfinite(rate) && at > 0)
        for (size_t i = 0; i < n; i++)
            s->due_s[i] *= (double)n / rate / at;
}

/* a run */

static void reset_records(struct serve *s)
{
    memset(s->records, 0, s->work.n * sizeof *s->records);
    for (size_t i = 0; i < s->work.n; i++) {
        s->records[i].n_input = workload_input_len(&s->work, i);
        s->records[i].n_output = s->work.items[i].output_len;
    }
}

/* Requests with other prompts than those that count, all at once. */
static FALLIBLE warm_up(struct serve *s, struct q_err *e)
{
    struct load_result result = {s->records, SAMPLES_INIT};
    const uint64_t seed = s->work.seed;
    size_t n = (size_t)s->b->o.num_warmups;
    s->n_now = n < s->work.n ? n : s->work.n;
    snprintf(s->what, sizeof s->what, "warming up");
    s->work.seed = ~seed;
    reset_records(s);
    memset(s->due_s, 0, s->work.n * sizeof *s->due_s);
    enum q_code rc = load_run(&s->load, s->due_s, s->n_now, &result, e);
    s->work.seed = seed;
    samples_release(&result.pauses);
    for (size_t i = 0; i < s->n_now && !rc; i++)
        if (!s->records[i].ok && s->records[i].sent_us)
            rc = q_fail(e, Q_IO, "the first request failed: %.160s", s->records[i].error);
    return rc;
}

static FALLIBLE run_rate(struct serve *s, double rate, struct q_err *e)
{
    struct load_result result = {s->records, SAMPLES_INIT};
    struct serve_figures f = {0};
    if (isnan(rate))
        snprintf(s->what, sizeof s->what, "trace, speed %g", s->b->o.trace_speed);
    else if (isinf(rate))
        snprintf(s->what, sizeof s->what, "all at once");
    else
        snprintf(s->what, sizeof s->what, "%g requests/s", rate);
    s->n_now = s->work.n;
    reset_records(s);
    plan_arrivals(s, rate);
    enum q_code rc = load_run(&s->load, s->due_s, s->work.n, &result, e);
    if (!rc)
        rc = serve_figure_out(&f, s->records, s->work.n, &result.pauses, &s->limits, e);
    bench_progress_end(s->b);
    if (!rc) {
        f.late_ms = isinf(rate) ? NAN : f.late_ms; /* at once is as fast as it goes */
        s->n_failed += f.n_failed;
        const struct serve_shown shown = {&f, &s->view, s->records, s->work.n, rate, s->what};
        serve_show(s->b, &shown);
    }
    samples_release(&result.pauses);
    serve_figures_release(&f);
    return rc;
}

static FALLIBLE run_all(struct serve *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    uint32_t longest = 1;
    for (size_t i = 0; i < s->work.n; i++)
        longest =
            workload_input_len(&s->work, i) > longest ? workload_input_len(&s->work, i) : longest;
    s->ids = q_calloc(longest, sizeof *s->ids);
    s->due_s = q_calloc(s->work.n, sizeof *s->due_s);
    s->records = q_calloc(s->work.n, sizeof *s->records);
    if (!s->ids || !s->due_s || !s->records)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu requests", s->work.n);
    if ((rc = find_server(s, e)) || (rc = warm_up(s, e)))
        return rc;
    fprintf(s->b->out, "%s, model %s, %zu requests\n", s->url, s->model, s->work.n);
    bench_run_text(s->b, "url", s->url);
    bench_run_text(s->b, "backend", s->b->o.backend);
    bench_run_text(s->b, "model_id", s->model);
    for (uint32_t i = 0; i < s->n_rate && !rc && !interrupted; i++) {
        rc = run_rate(s, s->rates[i], e);
        s->work.seed++; /* other prompts: the server may have kept these */
    }
    if (!rc && s->n_failed)
        rc = q_fail(e, Q_IO, "%llu requests failed", (unsigned long long)s->n_failed);
    return rc;
}

enum q_code bench_serve(struct bench *b, struct q_err *e)
{
    static struct serve s;
    const struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    s.b = b;
    s.work = (struct workload)WORKLOAD_INIT;
    s.load = (struct load_config){
        .url = s.url,
        .headers = s.headers,
        .timeout_s = b->o.bench_timeout,
        .open_max = (uint32_t)b->o.max_concurrency,
        .body = make_body,
        .tell = tell,
        .ctx = &s,
    };
    sigaction(SIGINT, &stop, NULL);
    enum q_code rc = read_options(&s, e);
    if (!rc)
        rc = run_all(&s, e);
    workload_release(&s.work);
    json_decref(s.extra);
    q_free(s.ids);
    q_free(s.due_s);
    q_free(s.records);
    return rc;
}
