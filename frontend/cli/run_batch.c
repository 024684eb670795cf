/* SPDX-License-Identifier: Apache-2.0 */
/* quire-run-batch: processes a file of requests with an engine of its own.
 *
 * This process is a frontend without a port: lines are passed to the same handlers as HTTP requests
 * (frontend/api), by exchanges without a connection (frontend/http/local.h). The engine is a child,
 * as in quire serve, and is restarted when it crashes; the link submits open requests again.
 * Rejected: a frontend as another child behind a Unix socket, which needs a client with hundreds of
 * connections and copies every byte twice. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/cli/batch.h"
#include "frontend/cli/supervisor.h"

enum {
    EXIT_LINES = 1, /* some lines have no status 200 */
    EXIT_USAGE = 2,
    EXIT_LOAD = 3,
    EXIT_ENGINE = 4, /* it died too often */
    EXIT_FILES = 6,
    EXIT_SIGNAL = 128 /* + its number */
};

#define STABLE_MS     30000 /* as under quire serve */
#define BACKOFF_MS    100
#define BACKOFF_MAX   10000
#define FAILURES_MAX  6
#define LINE_EVERY_MS 10000 /* interval of progress lines without a terminal */
#define STOP_MS       5000  /* time limit for the end of the engine */
#define WAIT_MAX_S    86400 /* a line waits for the engine */

struct program {
    struct options o;
    struct app app;
    struct supervisor_resources resources;
    struct child engine;
    struct batch batch;
    uv_signal_t signals[3];
    bool terminal, said;
    int64_t start_ms, up_ms, said_ms; /* up_ms: the engine accepts requests */
    int exit_code;
};

static void complain(const char *message)
{
    fprintf(stderr, "quire run-batch: %s\n", message);
}

static void stop(struct program *p, int exit_code)
{
    if (!p->exit_code)
        p->exit_code = exit_code;
    uv_stop(&p->app.loop);
}

/* progress */

static uint64_t n_done(const struct program *p)
{
    const struct batch_count *c = &p->batch.count;
    return c->n_answered + c->n_refused + c->n_bad;
}

static void add_eta(struct buf *out, const struct program *p, double seconds)
{
    const struct batch *b = &p->batch;
    double part = b->in.size ? (double)b->count.bytes / (double)b->in.size : 0;
    if (!b->in.size)
        return;
    buf_printf(out, ", %.0f %%", 100 * (part < 1 ? part : 1));
    if (part > 0 && part < 1 && seconds > 1) {
        unsigned long long left = (unsigned long long)(seconds / part * (1 - part));
        buf_printf(out, ", %llu:%02llu:%02llu left", left / 3600, left / 60 % 60, left % 60);
    }
}

static void say_progress(struct program *p)
{
    const struct batch_count *c = &p->batch.count;
    struct buf out = BUF_INIT;
    double seconds = p->up_ms ? (double)(clock_ms() - p->up_ms) / 1000 : 0;
    if (!n_done(p)) {
        buf_printf(&out, "loading the model and the first lines; %llu results exist already",
                   (unsigned long long)c->n_before);
    } else {
        buf_printf(&out, "%llu lines", (unsigned long long)n_done(p));
        add_eta(&out, p, seconds);
        if (seconds > 0)
            buf_printf(&out, ", %.1f lines/s, %.0f tokens/s", (double)n_done(p) / seconds,
                       (double)c->completion_tokens / seconds);
        unsigned long long n_failed = c->n_refused + c->n_bad;
        if (n_failed)
            buf_printf(&out, ", %llu failed", n_failed);
    }
    fprintf(stderr, p->terminal ? "\r\033[K%s" : "quire run-batch: %s\n", buf_str(&out));
    p->said = true;
    buf_release(&out);
}

/* Start the engine again after a delay, unless it failed too often. */
static void start_later(struct program *p)
{
    struct child *c = &p->engine;
    if (c->n_failure > FAILURES_MAX) {
        complain("the engine crashed too often: run the same command again to continue");
        stop(p, EXIT_ENGINE);
        return;
    }
    int64_t wait_ms = BACKOFF_MS << (c->n_failure - 1);
    c->restart_ms = clock_ms() + (wait_ms < BACKOFF_MAX ? wait_ms : BACKOFF_MAX);
}

static void start_again(struct program *p)
{
    struct q_err e = Q_ERR_INIT;
    p->engine.restart_ms = 0;
    if (!child_start(&p->engine, &e))
        return;
    complain(e.message); /* the machine may have a process again soon */
    p->engine.n_failure++;
    start_later(p);
}

static void on_tick(void *ctx)
{
    struct program *p = ctx;
    int64_t now = clock_ms(), every = p->terminal ? 500 : LINE_EVERY_MS;
    bool wanted = options_given(&p->o, "--progress") ? p->o.progress : p->terminal;
    if (!p->up_ms && p->app.engines && engines_state(p->app.engines) == LINK_UP)
        p->up_ms = now;
    if (wanted && now - p->said_ms >= every) {
        p->said_ms = now;
        say_progress(p);
    }
    if (p->app.engines && engines_hang(p->app.engines) && p->engine.pid > 0 &&
        now - p->engine.started_ms > STOP_MS) {
        complain("the engine does not respond: killing it");
        kill(p->engine.pid, SIGKILL);
    }
    if (p->engine.restart_ms && p->engine.restart_ms <= now)
        start_again(p);
}

/* the engine */

static void on_death(struct program *p, int status)
{
    struct child *c = &p->engine;
    int64_t now = clock_ms();
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    c->pid = 0;
    c->n_failure = now - c->started_ms > STABLE_MS ? 1 : c->n_failure + 1;
    if (code == EXIT_USAGE || code == EXIT_LOAD || code == CHILD_NO_PROGRAM) {
        stop(p, code == EXIT_USAGE ? EXIT_USAGE : EXIT_LOAD); /* the child has printed the reason */
        return;
    }
    start_later(p);
    if (!c->restart_ms)
        return;
    fprintf(stderr, "%squire run-batch: the engine %s %d: restarting it\n", p->said ? "\n" : "",
            WIFEXITED(status) ? "exited with code" : "was killed by signal",
            WIFEXITED(status) ? code : code - 128);
}

static void on_signal(uv_signal_t *signal, int number)
{
    struct program *p = signal->data;
    int status;
    if (number != SIGCHLD)
        stop(p, EXIT_SIGNAL + number);
    else if (p->engine.pid > 0 && waitpid(p->engine.pid, &status, WNOHANG) == p->engine.pid)
        on_death(p, status);
}

/* Prepare the engine without starting it: its arguments and the model are checked. */
static FALLIBLE prepare_engine(struct program *p, struct q_err *e)
{
    uint32_t n = 0;
    enum q_code rc;
    struct check check;
    if ((rc = supervisor_resources_init_private(&p->resources, e)) ||
        (rc = children_init(&p->engine, &n, &p->resources, &p->o, e)))
        return rc;
    p->o.engine = (struct option_list){.items = {p->resources.address}, .n = 1};
    if (!options_given(&p->o, "--log-level")) {
        char **last = p->engine.argv;
        while (*last)
            last++;
        *last = (char *)(uintptr_t) "--log-level=warning";
    }
    if ((rc = check_begin(&check, &p->engine, e)))
        return rc;
    p->exit_code = check_end(&check, e);
    return p->exit_code ? e->code : Q_OK;
}

/* End the engine; its only frontend is closed, so no request is open. */
static void end_engine(struct program *p)
{
    int64_t until = clock_ms() + STOP_MS;
    if (p->engine.pid > 0)
        kill(p->engine.pid, SIGTERM);
    while (p->engine.pid > 0 && waitpid(p->engine.pid, NULL, WNOHANG) == 0) {
        if (clock_ms() >= until)
            kill(p->engine.pid, SIGKILL);
        usleep(5000);
    }
    supervisor_resources_release(&p->resources);
}

/* the whole */

static void on_end(void *ctx)
{
    struct program *p = ctx;
    const struct batch *b = &p->batch;
    if (b->error.code) {
        fprintf(stderr, "%squire run-batch: %s; run the same command again to continue\n",
                p->said && p->terminal ? "\n" : "", b->error.message);
        stop(p, b->error.code == Q_CORRUPT && p->app.served.chat.broken ? EXIT_LOAD : EXIT_FILES);
        return;
    }
    stop(p, b->count.n_refused + b->count.n_bad + b->out.n_failed ? EXIT_LINES : 0);
}

static void summary(const struct program *p)
{
    const struct batch_count *c = &p->batch.count;
    double seconds = (double)(clock_ms() - p->start_ms) / 1000;
    double busy = p->up_ms ? (double)(clock_ms() - p->up_ms) / 1000 : 0;
    if (p->said && p->terminal)
        fprintf(stderr, "\r\033[K");
    if (p->o.json) {
        fprintf(
            strcmp(p->o.output_file, "-") != 0 ? stdout : stderr,
            "{\"lines\":%llu,\"answered\":%llu,\"refused\":%llu,\"invalid\":%llu,"
            "\"done_before\":%llu,\"retries\":%llu,\"prompt_tokens\":%llu,"
            "\"completion_tokens\":%llu,\"seconds\":%.3f,\"busy_seconds\":%.3f,\"exit_code\":%d}\n",
            (unsigned long long)c->n_line, (unsigned long long)c->n_answered,
            (unsigned long long)c->n_refused, (unsigned long long)c->n_bad,
            (unsigned long long)c->n_before, (unsigned long long)c->n_retry,
            (unsigned long long)c->prompt_tokens, (unsigned long long)c->completion_tokens, seconds,
            busy, p->exit_code);
        return;
    }
    fprintf(stderr,
            "quire run-batch: %llu lines read: %llu answered, %llu rejected, %llu invalid, %llu "
            "skipped because results exist; %llu prompt and %llu completion tokens in %.1f s",
            (unsigned long long)c->n_line, (unsigned long long)c->n_answered,
            (unsigned long long)c->n_refused, (unsigned long long)c->n_bad,
            (unsigned long long)c->n_before, (unsigned long long)c->prompt_tokens,
            (unsigned long long)c->completion_tokens, seconds);
    if (busy > 0)
        fprintf(stderr, " (%.0f tokens/s)", (double)c->completion_tokens / busy);
    fprintf(stderr, "\n");
    if (p->exit_code > EXIT_SIGNAL)
        complain("interrupted: run the same command again to continue");
}

static uint32_t at_most(int64_t n, uint32_t limit)
{
    return n < limit ? (uint32_t)n : limit;
}

/* End after any part of the start: a thread may still be reading the model, which exit() would race
 * with. */
static void end(struct program *p)
{
    fflush(NULL);
    p->app.exit_code = p->exit_code;
    if (p->batch.in.reading) /* a thread waits in read(2) */
        p->app.reading = true;
    engines_free(p->app.engines); /* first: the engine aborts the open requests */
    p->app.engines = NULL;
    end_engine(p);
    app_close(&p->app);
}

static int run_program(struct program *p)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGCHLD};
    struct q_err e = Q_ERR_INIT;
    struct batch *b = &p->batch;
    b->app = &p->app;
    b->ctx = p;
    b->on_tick = on_tick;
    b->on_end = on_end;
    /* The number of running sequences, and as many waiting ones. */
    b->open_max = at_most(p->o.max_num_seqs, LINK_FLOWS_MAX / 4) +
                  at_most(p->o.max_num_queued_reqs, (uint32_t)p->o.max_num_seqs);
    enum q_code rc = prepare_engine(p, &e);
    if (!rc && (rc = app_open(&p->app, &p->o, &e)))
        p->exit_code = rc == Q_INVALID ? EXIT_USAGE : EXIT_LOAD;
    else if (!rc && (rc = batch_begin(b, p->o.input_file, p->o.output_file, &e)))
        p->exit_code = EXIT_FILES;
    else if (!rc)
        rc = child_start(&p->engine, &e);
    if (rc) {
        complain(e.message);
        p->exit_code = p->exit_code ? p->exit_code : EXIT_ENGINE;
        end(p);
        return p->exit_code;
    }
    if (b->out.n_line || b->out.n_torn)
        fprintf(stderr, "quire run-batch: %llu results exist already in %s%s\n",
                (unsigned long long)b->out.n_line, p->o.output_file,
                b->out.n_torn ? "; an incomplete last line was removed" : "");
    for (size_t i = 0; i < 3; i++) {
        p->signals[i].data = p;
        uv_signal_init(&p->app.loop, &p->signals[i]);
        uv_signal_start(&p->signals[i], on_signal, numbers[i]);
    }
    uv_run(&p->app.loop, UV_RUN_DEFAULT);
    if (!p->exit_code &&
        !b->ended) /* the app has stopped the loop, because the model cannot be read */
        p->exit_code = p->app.exit_code;
    batch_stop(b);
    if (batch_out_close(&b->out, &e)) {
        complain(e.message);
        p->exit_code = EXIT_FILES;
    }
    summary(p);
    if ((fflush(stdout) != 0 || ferror(stdout)) && !p->exit_code)
        p->exit_code = EXIT_FILES; /* common/output prints the message */
    end(p);
    batch_ids_release(&b->ids);
    return p->exit_code;
}

int main(int argc, char **argv)
{
    static struct program p;
    static const struct program_info info = {
        .program = FOR_BATCH,
        .name = "quire run-batch",
        .usage = "MODEL -i INPUT -o OUTPUT [options]",
        .about =
            "Processes a file of requests in OpenAI's batch format: one JSON object per line with "
            "custom_id, method, url (/v1/chat/completions, /v1/completions, /v1/responses …) and "
            "body. A line may also be the body alone: {\"messages\": […]} or {\"prompt\": \"…\"}, "
            "which a chat "
            "model receives as a user message (not with --raw); without custom_id its id is "
            "line-N. Each result is appended to OUTPUT when it is complete, in any order. After an "
            "interruption the same command resumes and skips the lines that have results. Exit "
            "codes:\n"
            "0\tevery line was answered\n"
            "1\tsome lines failed; OUTPUT has the errors\n"
            "2\tinvalid command line\n"
            "3\tthe model cannot be loaded\n"
            "4\tthe engine crashed too often\n"
            "6\ta file cannot be read or written\n"
            "130\tCtrl-C",
        .positional_min = 0,
        .positional_max = 1,
    };
    int code = options_main(&p.o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (!p.o.n_positional && *p.o.model_name) {
        p.o.positional[0] = p.o.model_name;
        p.o.n_positional = 1;
    }
    if (!p.o.n_positional || !*p.o.input_file || !*p.o.output_file) {
        complain(!p.o.n_positional  ? "MODEL is missing; usage: quire run-batch MODEL -i INPUT -o "
                                      "OUTPUT"
                 : !*p.o.input_file ? "-i INPUT is missing; - is standard input"
                                    : "-o OUTPUT is missing; - is standard output");
        return EXIT_USAGE;
    }
    struct q_err e = Q_ERR_INIT;
    if (hub_prepare(&p.o, &e)) { /* before signals are handled: Ctrl-C ends a download */
        complain(e.message);
        return EXIT_LOAD;
    }
    if (!options_given(&p.o, "--log-level"))
        log_setup("run-batch", LOG_WARNING, p.o.log_json);
    p.o.engine_timeout = WAIT_MAX_S;
    p.o.frontends = 0;
    p.terminal = isatty(STDERR_FILENO);
    p.start_ms = clock_ms();
    return run_program(&p);
}
