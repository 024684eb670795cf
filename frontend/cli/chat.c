/* SPDX-License-Identifier: Apache-2.0 */
/* quire-chat: a conversation with a model in the terminal, at a server or in a server of its own
 * (chat_server.h). From a pipe, every line is a message, and only the answers are printed. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/columns.h"
#include "common/hub/hub.h"
#include "common/printable.h"
#include "frontend/cli/chat_input.h"
#include "frontend/cli/chat_server.h"
#include "frontend/cli/chat_talk.h"

enum { EXIT_ANSWER = 1, EXIT_USAGE = 2, EXIT_LOAD = 3, EXIT_INTERRUPTED = 130 };

#define BLANKS      " \t\n"
#define HELP_INDENT 26  /* columns of a command with its arguments */
#define NAME_MAX    255 /* bytes of a function's name in a prompt */

struct chat {
    struct options o;
    struct chat_talk talk;
    struct chat_input *input;
    struct chat_server server;
    char saved[1024]; /* the file that /save wrote last */
    bool failed;
};

static volatile sig_atomic_t stop;

static void on_interrupt(int number)
{
    (void)number;
    stop = 1;
}

static void complain(const char *message)
{
    printable_printf(stderr, "quire chat: %s\n", message);
}

/* Print a message of the program (not of the model). */
static void note(const char *text)
{
    fprintf(stderr, "(%s)\n", text);
}

/* Report that an answer failed because the server ended unexpectedly. */
static void report_end(struct chat *c, enum q_code rc)
{
    struct buf why = BUF_INIT;
    if ((rc == Q_IO || rc == Q_UNAVAILABLE) && chat_server_ended(&c->server, &why)) {
        complain(buf_str(&why));
        note("use /save FILE to save the conversation; `quire chat MODEL` starts a new one");
    }
    buf_release(&why);
}

/* Request an answer; Ctrl-C stops the answer, not the program. */
static enum q_code answer(struct chat *c)
{
    struct q_err e = Q_ERR_INIT;
    struct sigaction now = {.sa_handler = on_interrupt}, before;
    bool edits = chat_input_edits(c->input);
    sigemptyset(&now.sa_mask);
    stop = 0;
    if (edits)
        sigaction(SIGINT, &now, &before);
    enum q_code rc = talk_answer(&c->talk, &e);
    if (edits)
        sigaction(SIGINT, &before, NULL);
    report_end(c, rc);
    if (rc == Q_CANCELLED)
        note("stopped");
    else if (rc)
        complain(e.message);
    if (rc == Q_NO_SPACE && json_array_size(c->talk.messages) > (talk_system(&c->talk) ? 1 : 0))
        note("the conversation has reached the model's context length: /reset starts a new one");
    c->failed |= rc && rc != Q_CANCELLED;
    return rc;
}

/* commands: each gets the text after its name, "" for none. False: end the program. */

static bool do_help(struct chat *c, const char *rest);

static bool do_quit(struct chat *c, const char *rest)
{
    (void)c;
    (void)rest;
    return false;
}

static bool do_reset(struct chat *c, const char *rest)
{
    (void)rest;
    talk_reset(&c->talk);
    note("started a new conversation");
    return true;
}

static bool do_retry(struct chat *c, const char *rest)
{
    (void)rest;
    if (talk_rewind(&c->talk))
        answer(c);
    else
        note("there is no message to answer");
    return true;
}

static bool do_save(struct chat *c, const char *rest)
{
    struct q_err e = Q_ERR_INIT;
    if (!*rest) {
        note("/save requires a file name");
    } else if (talk_save(&c->talk, rest, !strcmp(rest, c->saved), &e)) {
        complain(e.message);
    } else {
        snprintf(c->saved, sizeof c->saved, "%s", rest);
        note("saved");
    }
    return true;
}

static bool do_system(struct chat *c, const char *rest)
{
    struct q_err e = Q_ERR_INIT;
    const char *now = talk_system(&c->talk);
    if (!*rest)
        printable_printf(stderr, "(system message: %s)\n", now ? now : "none");
    else if (talk_set_system(&c->talk, strcmp(rest, "off") ? rest : NULL, &e))
        complain(e.message);
    else
        note(strcmp(rest, "off") ? "the system message is set" : "the system message is removed");
    return true;
}

static bool do_tools(struct chat *c, const char *rest)
{
    struct q_err e = Q_ERR_INIT;
    size_t i;
    json_t *tool;
    if (*rest && talk_load_tools(&c->talk, strcmp(rest, "off") ? rest : NULL, &e))
        complain(e.message);
    if (!c->talk.tools)
        note("no tools are loaded");
    json_array_foreach (c->talk.tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name")),
                   *about = json_string_value(json_object_get(f, "description"));
        printable_printf(stderr, "(tool %s%s%s)\n", name ? name : "without a name",
                         about ? ": " : "", about ? about : "");
    }
    return true;
}

static bool do_image(struct chat *c, const char *rest)
{
    struct q_err e = Q_ERR_INIT;
    const bool is_off = !strcmp(rest, "off");
    if (*rest && talk_attach_image(&c->talk, is_off ? NULL : rest, &e))
        complain(e.message);
    printable_printf(stderr, "(images with the next message: %zu)\n",
                     json_array_size(c->talk.images));
    return true;
}

static const struct {
    const char *name, *form, *about;
    bool takes_file;
    bool (*run)(struct chat *c, const char *rest);
} commands[] = {
    {"/help", "", "show this list", false, do_help},
    {"/reset", "", "start a new conversation and keep the system message", false, do_reset},
    {"/retry", "", "regenerate the last answer", false, do_retry},
    {"/regenerate", "", "same as above", false, do_retry},
    {"/system", "[TEXT|off]", "show, set or remove the system message", false, do_system},
    {"/tools", "[FILE|off]",
     "show, load or remove the functions that the model may call (a JSON array)", true, do_tools},
    {"/image", "[FILE|off]",
     "attach an image (PNG, JPEG, WebP, GIF) to the next message, or detach all", true, do_image},
    {"/save", "FILE", "save the conversation to a file as JSON", true, do_save},
    {"/quit", "", "quit (also /exit and Ctrl-D)", false, do_quit},
    {"/exit", "", "same as above", false, do_quit},
};
#define N_COMMAND (sizeof commands / sizeof *commands)

static bool do_help(struct chat *c, const char *rest)
{
    unsigned width = columns_width(stderr);
    (void)c;
    (void)rest;
    for (size_t i = 0; i < N_COMMAND; i++) {
        char left[40];
        snprintf(left, sizeof left, "%-11s %s", commands[i].name, commands[i].form);
        columns_row(stderr, left, HELP_INDENT, width, commands[i].about);
    }
    columns_put(
        stderr, 0, 0, width,
        "A line that ends in \\ continues on the next line; \"\"\" starts and ends a message of "
        "several lines. Ctrl-C stops an answer. After a tool call, type its result.");
    return true;
}

/* N_COMMAND: the line is no command. */
static size_t find_command(const char *line)
{
    size_t n = strcspn(line, BLANKS), i = 0;
    while (i < N_COMMAND &&
           (strlen(commands[i].name) != n || memcmp(commands[i].name, line, n) != 0))
        i++;
    return i;
}

/* Is the input a command? A text of several lines may begin with a slash. */
static bool is_command(const struct chat *c, const char *text)
{
    return *text == '/' && chat_input_is_line(c->input) &&
           (!strchr(text, '\n') || find_command(text) < N_COMMAND);
}

/* Run a command line; trailing blanks are removed. False: end the program. */
static bool command(struct chat *c, char *line)
{
    size_t i = find_command(line), n_name = strcspn(line, BLANKS), n = strlen(line);
    while (n && strchr(BLANKS, line[n - 1]))
        line[--n] = '\0';
    if (i < N_COMMAND)
        return commands[i].run(c, line + n_name + strspn(line + n_name, BLANKS));
    printable_printf(stderr, "(unknown command %.*s; /help lists the commands)\n", (int)n_name,
                     line);
    return true;
}

/* Read the results of the model's tool calls and request answers, until the model calls no more
 * tools. False: end of the input. */
static bool give_results(struct chat *c, struct buf *text)
{
    const json_t *call;
    struct q_err e = Q_ERR_INIT;
    while ((call = talk_waiting_call(&c->talk))) {
        struct buf prompt = BUF_INIT;
        const json_t *name = json_object_get(json_object_get(call, "function"), "name");
        buf_add_str(&prompt, "result of ");
        size_t n = json_string_length(name) < NAME_MAX ? json_string_length(name) : NAME_MAX;
        printable_line(json_string_value(name), n, &prompt);
        buf_add_str(&prompt, "> ");
        enum chat_input_kind kind = chat_input_read(c->input, buf_str(&prompt), text);
        buf_release(&prompt);
        if (kind == INPUT_TEXT && talk_add_result(&c->talk, buf_str(text), &e) == Q_OK) {
            if (!talk_waiting_call(&c->talk) && answer(c) && !chat_input_edits(c->input))
                return false;
            continue;
        }
        if (e.code)
            complain(e.message);
        q_err_reset(&e);
        talk_drop_calls(&c->talk);
        if (kind == INPUT_END && !chat_input_edits(c->input))
            return false;
        note("the tool calls are discarded; /retry generates the answer again");
    }
    return true;
}

static bool one_message(struct chat *c, struct buf *text)
{
    struct q_err e = Q_ERR_INIT;
    enum chat_input_kind kind = chat_input_read(c->input, "> ", text);
    if (kind == INPUT_INTERRUPTED) {
        note("press Ctrl-C again or Ctrl-D to quit");
        chat_input_warned(c->input);
        return true;
    }
    if (text->failed) {
        complain("out of memory for the message");
        c->failed = true;
        return kind != INPUT_END;
    }
    if (kind == INPUT_END)
        return false;
    if (text->len == 0)
        return true;
    if (is_command(c, text->data))
        return command(c, text->data) && give_results(c, text);
    if (talk_add_user(&c->talk, text->data, &e)) {
        complain(e.message);
        c->failed = true;
        return chat_input_edits(c->input);
    }
    if (answer(c) && !chat_input_edits(c->input))
        return false;
    return give_results(c, text);
}

static void banner(const struct chat *c)
{
    const struct http_url *u = &c->talk.peer.url;
    if (!chat_input_edits(c->input))
        return;
    if (c->server.pid)
        printable_printf(stdout, "quire chat with %s\n", c->o.positional[0]);
    else
        printable_printf(stdout, "quire chat with %s at %s://%s:%s%s\n", c->talk.model,
                         http_url_scheme(u), u->host, u->port, u->prefix);
    puts("/help lists the commands. Ctrl-C stops an answer, Ctrl-D quits.\n");
}

static bool show_loading(unsigned percent)
{
    static unsigned shown = UINT_MAX;
    if (percent != shown && isatty(STDERR_FILENO))
        fprintf(stderr, "\rloading %u %%", percent);
    shown = percent;
    return !stop;
}

/* Choose the model: of a running server, or of a server of this program. */
static int connect_model(struct chat *c)
{
    struct q_err e = Q_ERR_INIT;
    char url[128];
    json_t *names = NULL;
    const struct options *o = &c->o;
    struct chat_peer *peer = &c->talk.peer;
    peer->key = o->api_key.n ? o->api_key.items[0] : NULL;
    peer->stop = &stop;
    if (o->n_positional && *o->url) {
        complain(
            "MODEL and --url are both given: use MODEL to run a model, or --url to use a server");
        return EXIT_USAGE;
    }
    snprintf(url, sizeof url, "http://127.0.0.1:%d", (int)o->port);
    if (o->n_positional) {
        struct sigaction now = {.sa_handler = on_interrupt}, before;
        sigaction(SIGINT, &now, &before);
        enum q_code rc = chat_server_start(&c->server, o, show_loading, &e);
        sigaction(SIGINT, &before, NULL);
        if (isatty(STDERR_FILENO))
            fputs("\r\033[K", stderr);
        if (rc) {
            complain(c->server.errors.len ? buf_str(&c->server.errors) : e.message);
            return rc == Q_CANCELLED ? EXIT_INTERRUPTED : EXIT_LOAD;
        }
        peer->key = c->server.key;
        snprintf(url, sizeof url, "%s", c->server.url);
    }
    if (http_url_parse(&peer->url, *o->url ? o->url : url, &e)) {
        complain(e.message);
        return EXIT_USAGE;
    }
    if (chat_models(peer, &names, &e)) {
        complain(e.message);
        return EXIT_ANSWER;
    }
    const char *first = json_string_value(json_array_get(names, 0));
    snprintf(c->talk.model, sizeof c->talk.model, "%s",
             *o->model_name ? o->model_name
             : first        ? first
                            : "");
    json_decref(names);
    return 0;
}

static int talk(struct chat *c)
{
    static const char *words[N_COMMAND + 1];
    static char with_blank[N_COMMAND][32];
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < N_COMMAND; i++) {
        snprintf(with_blank[i], sizeof with_blank[i], "%s%s", commands[i].name,
                 commands[i].takes_file ? " " : "");
        words[i] = with_blank[i];
    }
    c->talk.options = &c->o;
    c->talk.terminal = isatty(STDOUT_FILENO);
    c->talk.verbose = c->o.verbose;
    talk_reset(&c->talk);
    if ((*c->o.system && talk_set_system(&c->talk, c->o.system, &e)) ||
        (*c->o.tools && talk_load_tools(&c->talk, c->o.tools, &e)) ||
        chat_input_open(&c->input, words, &e)) {
        complain(e.message);
        return EXIT_USAGE;
    }
    int code = connect_model(c);
    if (code)
        return code;
    banner(c);
    while (one_message(c, &text)) {
    }
    buf_release(&text);
    return c->failed && !chat_input_edits(c->input) ? EXIT_ANSWER : 0;
}

int main(int argc, char **argv)
{
    static struct chat c;
    static const struct program_info info = {
        .program = FOR_CHAT,
        .name = "quire chat",
        .usage = "[MODEL] [options]",
        .about =
            "Chats with a model in the terminal: with MODEL it runs the model itself, otherwise it "
            "connects to a running server. Type a message and press Enter; /help lists the "
            "commands, Ctrl-C stops an answer, Ctrl-D quits. If the input is a pipe, each line is "
            "a message, and the exit code is 1 if one of them was not answered.",
        .positional_min = 0,
        .positional_max = 1,
    };
    int code = options_main(&c.o, &info, argc, argv);
    if (code >= 0)
        return code;
    struct q_err e = Q_ERR_INIT;
    if (hub_prepare(&c.o, &e)) {
        complain(e.message);
        return EXIT_ANSWER;
    }
    code = talk(&c);
    chat_input_close(c.input);
    talk_release(&c.talk);
    chat_server_stop(&c.server);
    return code;
}
