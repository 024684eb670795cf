/* SPDX-License-Identifier: Apache-2.0 */
/* quire-generate MODEL PROMPT…: answers without a server, through the public library
 * (engine/quire.h) only. A model with a chat template gets a text prompt as a user's message; a
 * model without one, or any model with --raw, continues the text. A window of answers, at most
 * twice the number of running requests, is computed at once. Answers are printed in the order of
 * the prompts, so the window also bounds the number of answers in memory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/chat/json.h"
#include "common/chat/messages.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/printable.h"
#include "common/tokenizer/stream.h"
#include "engine/library/generate_input.h"
#include "engine/library/generate_print.h"
#include "engine/quire.h"

#define MAX_TOKENS_DEFAULT 128 /* of plain text, which may never end */
#define TOOLS_MAX          ((size_t)16 << 20)
#define PROGRESS_EVERY_MS  500
#define GIVEN_MAX          64 /* options of the engine */

enum { EXIT_ANSWER = 1, EXIT_USAGE = 2, EXIT_LOAD = 3 };

struct asked { /* a prompt whose answers are not all printed */
    struct generate_prompt prompt;
    uint32_t n_left;
};

struct job { /* one answer */
    struct asked *asked;
    uint32_t i_answer;
    struct quire_request *request;
};

struct program {
    struct options o;
    struct generate_input input;
    struct job *jobs; /* [n_job_max] a ring: the oldest at i_job */
    uint32_t n_job_max, i_job, n_job;
    struct quire_engine *engine;
    uint32_t max_model_len;
    bool chats;       /* the model has a chat template, and it is used */
    struct buf tools; /* of --tools; empty: none */
    struct answer_style style;
    bool progress; /* is shown */
    bool said;     /* the line is on the terminal now */
    bool noted;    /* that the model is none to chat with */
    bool failed;
    uint64_t n_printed;
    int64_t start_ms, said_ms;
};

static void clear_line(struct program *p)
{
    if (p->said)
        fputs("\r\033[K", stderr);
    p->said = false;
}

static void complain(struct program *p, const char *what, const char *message)
{
    clear_line(p);
    printable_printf(stderr, "quire generate: %s%s%s\n", what, *what ? ": " : "", message);
}

/* How far it is, now and then. */
static void tell(struct program *p)
{
    int64_t now = clock_ms();
    struct quire_stats stats = {.size = sizeof stats};
    if (!p->progress || now - p->said_ms < PROGRESS_EVERY_MS)
        return;
    p->said_ms = now;
    quire_engine_stats(p->engine, &stats);
    double seconds = (double)(now - p->start_ms) / 1000;
    const struct generate_input *in = &p->input;
    fprintf(stderr, "\r\033[K%llu answers, %u running, %.0f tokens/s",
            (unsigned long long)p->n_printed, stats.running,
            seconds > 0 ? (double)stats.generation_tokens / seconds : 0);
    if (in->file_bytes)
        fprintf(stderr, ", %.0f %% of the file read",
                100 * (double)in->done_bytes / (double)in->file_bytes);
    p->said = true;
}

static void show_progress(void *ctx, uint32_t percent)
{
    (void)ctx;
    fprintf(stderr, percent < 100 ? "\rloading %u %%" : "\r              \r", percent);
}

/* Every option of the engine that was given, by its name: there is no list of them to forget one
 * in. The texts live as long as the process. */
static enum quire_code set_options(struct quire_options *q, const struct options *o,
                                   struct quire_error *error)
{
    char *given[GIVEN_MAX + 1];
    uint32_t n = 0;
    struct q_err e = Q_ERR_INIT;
    enum quire_code rc = QUIRE_OK;
    if (options_forward(o, FOR_LIBRARY, given, &n, GIVEN_MAX + 1, &e)) {
        *error = (struct quire_error){.code = QUIRE_NO_MEMORY};
        snprintf(error->message, sizeof error->message, "%s", e.message);
        return error->code;
    }
    for (uint32_t i = 0; i < n && rc == QUIRE_OK; i++) {
        char *value = strchr(given[i], '=');
        *value++ = '\0';
        rc = quire_options_set(q, given[i], value, error);
    }
    return rc;
}

/* Are all prompts ids, as far as the command line shows? */
static bool has_ids_only(const struct options *o)
{
    return o->n_positional == 1 && !o->prompt.n && !*o->input_file;
}

/* broken: why the chat template cannot be used, or NULL. --system and --tools are nothing to a
 * model without one. */
static int check_chat(struct program *p, const char *broken)
{
    if (broken && !p->o.raw && !has_ids_only(&p->o)) {
        complain(p, broken,
                 "use --raw to continue prompts as plain text, or --chat-template FILE for a chat "
                 "template");
        return EXIT_LOAD;
    }
    if (p->chats || (!*p->o.system && !*p->o.tools))
        return 0;
    complain(p, *p->o.system ? "--system" : "--tools",
             "this model has no chat template; set one with --chat-template FILE");
    return EXIT_USAGE;
}

/* And nothing else makes text needed. */
static bool is_ids_only(const struct options *o)
{
    return has_ids_only(o) && !o->stop.n && !*o->system && !*o->tools &&
           !options_given(o, "--tokenizer");
}

/* For ids alone, a model without a tokenizer does: its answers are ids. */
static enum quire_code open_model(struct program *p, struct quire_options *q,
                                  struct quire_error *error)
{
    enum quire_code rc = quire_engine_open(&p->engine, q, error);
    if (rc != QUIRE_NOT_FOUND || q->skip_tokenizer || !is_ids_only(&p->o))
        return rc;
    struct quire_error first = *error; /* if the model is missing, both report it */
    q->skip_tokenizer = p->o.skip_tokenizer_init = true;
    rc = quire_engine_open(&p->engine, q, error);
    if (!rc)
        complain(p, first.message, "answers are printed as token ids");
    return rc;
}

static int open_engine(struct program *p)
{
    struct quire_options q;
    struct quire_error error;
    quire_options_init(&q, sizeof q);
    q.model = p->o.positional[0];
    q.log_level = "warning";
    q.progress = isatty(STDERR_FILENO) ? show_progress : NULL;
    bool opened =
        set_options(&q, &p->o, &error) == QUIRE_OK && open_model(p, &q, &error) == QUIRE_OK;
    quire_options_release(&q);
    if (opened) {
        struct quire_info info = {.size = sizeof info};
        quire_engine_info(p->engine, &info);
        p->max_model_len = info.max_model_len;
        p->chats = info.has_chat_template && !p->o.raw;
        return check_chat(p, info.chat_template_error);
    }
    complain(p, "", error.message);
    return error.code == QUIRE_INVALID ? EXIT_USAGE : EXIT_LOAD;
}

/* Does it go through the chat template? */
static bool chats(const struct program *p, const struct generate_prompt *prompt)
{
    return generate_prompt_has_messages(prompt) || (p->chats && prompt->text);
}

static FALLIBLE check_prompt(const struct program *p, const struct generate_prompt *prompt,
                             struct q_err *e)
{
    bool text = prompt->text != NULL;
    if (p->o.raw && generate_prompt_has_messages(prompt))
        return q_fail(e, Q_INVALID,
                      "messages: not accepted with --raw, which requires plain prompts");
    if (text && chats(p, prompt) && memchr(prompt->text, '\0', prompt->n_text))
        return q_fail(e, Q_INVALID, "prompt: contains a NUL byte");
    return Q_OK;
}

/* Of an answer, when none is given. Ids may be of a model that refuses what does not fit. */
static uint32_t default_length(const struct program *p, const struct generate_prompt *prompt)
{
    const size_t n = prompt->n_ids < p->max_model_len ? p->max_model_len - prompt->n_ids : 0;
    if (chats(p, prompt))
        return 0;
    return n < MAX_TOKENS_DEFAULT ? (uint32_t)n : MAX_TOKENS_DEFAULT;
}

static FALLIBLE params_of(struct quire_params *q, const struct program *p, const struct job *job,
                          struct q_err *e)
{
    const struct options *o = &p->o;
    const struct generate_prompt *prompt = &job->asked->prompt;
    quire_params_init(q, sizeof *q);
    if (!chats(p, prompt)) {
        q->text = prompt->text;
        q->n_text = prompt->n_text;
    } else if (!generate_prompt_has_messages(prompt)) {
        q->user = prompt->text;
        q->system = o->system;
    }
    q->tools_json = p->tools.len ? p->tools.data : NULL;
    q->ids = prompt->ids;
    q->n_ids = prompt->n_ids;
    q->temperature = (float)o->temperature;
    q->top_p = (float)o->top_p;
    q->top_k = o->top_k;
    q->min_p = (float)o->min_p;
    q->repetition_penalty = (float)o->repetition_penalty;
    q->seed = o->seed;
    q->max_tokens = o->max_tokens ? (uint32_t)o->max_tokens : default_length(p, prompt);
    q->ignore_eos = o->ignore_eos;
    q->adapter = o->adapter;
    q->logprobs = o->json ? (int32_t)o->logprobs : -1;
    q->stops = prompt->stops ? prompt->stops : o->stop.items;
    q->n_stop = prompt->stops ? prompt->n_stop : o->stop.n;
    enum q_code rc = check_prompt(p, prompt, e);
    if (rc || (rc = generate_prompt_params(prompt, q, e)))
        return rc;
    q->seed = q->seed < 0 ? -1 : q->seed + job->i_answer; /* the answers to one prompt differ */
    return Q_OK;
}

/* Report a prompt that was not answered, with the reason: as text, and with --json as an object. */
static void report(struct program *p, const struct generate_prompt *prompt, const char *what,
                   const char *message)
{
    char where[64] = "";
    p->failed = true;
    if (p->input.file && prompt->number)
        snprintf(where, sizeof where, "line %llu%s%s", (unsigned long long)prompt->number,
                 *what ? ": " : "", what);
    complain(p, *where ? where : what, message);
    if (p->o.json)
        generated_print_error(prompt, message);
}

/* Read all events of one answer. False: it failed, and the error was reported. */
static bool take_answer(struct program *p, struct generated *a)
{
    struct quire_event ev;
    struct quire_error error;
    do {
        if (quire_next(a->request, &ev, -1, &error) != QUIRE_OK) {
            report(p, a->prompt, "the request failed", error.message);
            return false;
        }
        tell(p);
        generated_take(a, &p->style, &ev);
    } while (ev.kind != QUIRE_FINISH);
    return true;
}

static void print_answer(struct program *p, const struct job *job)
{
    struct generated a = {
        .prompt = &job->asked->prompt,
        .i_answer = job->i_answer,
        .request = job->request,
    };
    if (take_answer(p, &a)) {
        clear_line(p);
        generated_print(&a, &p->style);
        p->n_printed++;
    }
    generated_release(&a);
}

static void drop_asked(struct asked *a)
{
    if (--a->n_left)
        return;
    generate_prompt_release(&a->prompt);
    q_free(a);
}

static void print_oldest(struct program *p)
{
    struct job *job = &p->jobs[p->i_job];
    print_answer(p, job);
    quire_request_free(job->request);
    drop_asked(job->asked);
    p->i_job = (p->i_job + 1) % p->n_job_max;
    p->n_job--;
}

/* Log once that a model without a chat template continues the text. */
static void note_plain(struct program *p, const struct generate_prompt *prompt)
{
    if (p->noted || p->chats || p->o.raw || !prompt->text || p->o.skip_tokenizer_init)
        return;
    p->noted = true;
    complain(
        p, "",
        "this model has no chat template: it continues the prompt as plain text (as with --raw)");
}

/* Submit one answer; if the engine's queue is full, the oldest answer is read first. */
static void submit_answer(struct program *p, struct asked *asked, uint32_t i_answer)
{
    struct quire_params q;
    struct q_err e = Q_ERR_INIT;
    struct quire_error error = {QUIRE_OK, ""};
    struct job job = {.asked = asked, .i_answer = i_answer};
    enum quire_code rc = QUIRE_OK;
    while (p->n_job == p->n_job_max)
        print_oldest(p);
    note_plain(p, &asked->prompt);
    if (params_of(&q, p, &job, &e)) {
        report(p, &asked->prompt, "", e.message);
        drop_asked(asked);
        return;
    }
    while ((rc = quire_submit(&job.request, p->engine, &q, &error)) == QUIRE_BUSY && p->n_job)
        print_oldest(p);
    if (rc) {
        report(p, &asked->prompt, "", error.message);
        drop_asked(asked);
        return;
    }
    p->jobs[(p->i_job + p->n_job++) % p->n_job_max] = job;
}

/* The next valid prompt; invalid ones are reported. NULL: the end, or an error in *rc. */
static struct asked *next(struct program *p, enum q_code *rc)
{
    struct q_err e = Q_ERR_INIT;
    struct asked *a = q_calloc(1, sizeof *a);
    bool more = true;
    *rc = a ? Q_OK : q_fail(&e, Q_NO_MEMORY, "out of memory for a prompt");
    while (!*rc && more && !ferror(stdout)) { /* no answer can be printed any more */
        *rc = generate_input_next(&p->input, &a->prompt, &more, &e);
        if (!*rc && more) {
            a->n_left = a->prompt.n_answer;
            return a;
        }
        bool line_is_bad = p->input.file && (*rc == Q_INVALID || *rc == Q_TOO_LARGE);
        if (line_is_bad) {
            report(p, &a->prompt, "", e.message);
            q_err_reset(&e);
            *rc = Q_OK;
        }
        generate_prompt_release(&a->prompt);
    }
    if (*rc)
        complain(p, "", e.message);
    q_free(a);
    return NULL;
}

static bool run_program(struct program *p)
{
    enum q_code rc;
    struct asked *now = next(p, &rc);
    while (now) {
        struct asked *after = next(p, &rc); /* is there one? then answers have headings */
        uint32_t n = now->prompt.n_answer;
        p->style.many = p->style.many || after || n > 1;
        for (uint32_t i = 0; i < n; i++)
            submit_answer(p, now, i);
        now = after;
    }
    while (p->n_job)
        print_oldest(p);
    clear_line(p);
    log_info("%llu answers in %.3f s", (unsigned long long)p->n_printed,
             (double)(clock_ms() - p->start_ms) / 1000);
    return !rc && !p->failed;
}

/* The file's text goes to the library; it is checked here, where it has a name. */
static FALLIBLE read_tools(struct buf *text, const char *path, struct q_err *e)
{
    json_t *v = NULL, *tools = NULL;
    enum q_code rc = file_read(text, path, TOOLS_MAX, e);
    if (rc)
        return q_wrap(e, "--tools");
    if (!(rc = json_text(&v, buf_str(text), text->len, e)) && !json_is_array(v))
        rc = q_fail(e, Q_INVALID,
                    "expected an array of tools, [{\"type\": \"function\", \"function\": "
                    "{\"name\": …}}], got %s",
                    json_kind(v));
    else if (!rc)
        rc = tools_read(&tools, v, e);
    json_decref(tools);
    json_decref(v);
    return rc ? q_wrap(e, "--tools: %s", path) : Q_OK;
}

static FALLIBLE check_stops(const struct options *o, struct q_err *e)
{
    struct stop *stops = NULL;
    enum q_code rc = o->stop.n ? stop_new(&stops, o->stop.items, o->stop.n, false, e) : Q_OK;
    stop_free(stops);
    return rc ? q_wrap(e, "--stop") : Q_OK;
}

/* Read the other options for conversations. */
static FALLIBLE read_chat_options(struct program *p, struct q_err *e)
{
    const struct options *o = &p->o;
    if (o->raw && (*o->system || *o->tools))
        return q_fail(e, Q_INVALID, "%s is not accepted with --raw, which continues plain text",
                      *o->system ? "--system" : "--tools");
    return *o->tools ? read_tools(&p->tools, o->tools, e) : Q_OK;
}

static bool wants_progress(const struct program *p)
{
    if (options_given(&p->o, "--progress"))
        return p->o.progress;
    return isatty(STDERR_FILENO) && (p->o.json || p->o.n > 1 || *p->o.input_file);
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_GENERATE,
        .name = "quire generate",
        .usage = "MODEL [PROMPT …] [options]",
        .about =
            "Generates answers without a server. Prompts are the arguments after MODEL, --prompt, "
            "--prompt-ids and the lines of --input-file. A model with a chat template receives a "
            "prompt as a user message; a model without one continues the text, as does --raw.\n"
            "A single answer is streamed; several answers are computed in batches and printed in "
            "order. --json (the default with --input-file) prints one object per answer, for a "
            "chat model with the message (content, reasoning, tool_calls).\n"
            "Each line of the input file is a JSON object with one of these prompts:\n"
            "prompt\ttext, or a list of token ids\n"
            "messages\ta conversation; also with tools, tool_choice, chat_template_kwargs, "
            "documents, reasoning_effort, parallel_tool_calls, continue_final_message. Content "
            "parts of a plugin's own type are inputs that are not text: {\"type\": \"action\", "
            "\"action\": [0.1, 0.2]}\n"
            "prompt_token_ids\ta list of token ids and placeholders, with multi_modal_data: "
            "{\"actions\": [[0.1, 0.2], {\"path\": \"a.npy\"}]}\n"
            "and with any of these fields:\n"
            "sampling\ttemperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, "
            "frequency_penalty, seed, n, logprobs\n"
            "end\tmax_tokens, min_tokens, thinking_token_budget, stop, ignore_eos\n"
            "other\tcustom_id, detokenize, priority\n"
            "Exit codes:\n"
            "0\tevery prompt was answered\n"
            "1\ta prompt failed\n"
            "2\tinvalid command line\n"
            "3\tthe model cannot be loaded",
        .positional_min = 1,
        .positional_max = 8,
    };
    static struct program p;
    struct q_err e = Q_ERR_INIT;
    int rc = options_main(&p.o, &info, argc, argv);
    if (rc >= 0)
        return rc;
    if (read_chat_options(&p, &e) || check_stops(&p.o, &e) ||
        generate_input_open(&p.input, &p.o, &e)) {
        complain(&p, "", e.message);
        return EXIT_USAGE;
    }
    p.o.json = p.o.json || p.input.file;
    p.progress = wants_progress(&p);
    p.style = (struct answer_style){.o = &p.o, .terminal = isatty(STDOUT_FILENO)};
    p.n_job_max = 2 * (uint32_t)p.o.max_num_seqs;
    p.jobs = q_calloc(p.n_job_max, sizeof *p.jobs);
    if (!p.jobs) {
        complain(&p, "", "out of memory");
        return EXIT_ANSWER;
    }
    if ((rc = open_engine(&p)))
        return rc;
    p.start_ms = clock_ms();
    bool ok = run_program(&p);
    quire_engine_close(p.engine);
    generate_input_close(&p.input);
    return ok ? 0 : EXIT_ANSWER;
}
