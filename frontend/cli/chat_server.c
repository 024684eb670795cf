/* SPDX-License-Identifier: Apache-2.0 */
/* The server writes its log to a pipe. During the start, progress and errors are read from it; then
 * a thread empties the pipe and keeps the last lines (log_tail.h), which are shown if the server
 * ends unexpectedly. */
#include "frontend/cli/chat_server.h"
#include <errno.h>
#include <jansson.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/rand.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/json_read.h"

#define ARGS_MAX   200
#define STOP_MS    5000
#define LOOK_MS    30
#define DEATH_MS   1000 /* time from a lost connection to the end of the server's process */
#define TAIL_LINES 8
#define ERRORS_MAX 4096                 /* bytes */
#define NO_CHAT    "chat is disabled: " /* of the frontend's log */

/* The path of its program, which is in the folder of this one. */
static FALLIBLE arguments(char *argv[ARGS_MAX], const struct options *o, struct q_err *e)
{
    static char path[PATH_MAX + 16];
    uint32_t n = 0, k = 0;
    static char *given[ARGS_MAX]; /* texts that live as long as the process */
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    enum q_code rc;
    if (length < 0)
        return q_fail(e, Q_IO, "/proc/self/exe: %s", strerror(errno));
    path[length] = '\0';
    snprintf(strrchr(path, '/'), sizeof "/quire-serve", "/quire-serve");
    if ((rc = options_forward(o, FOR_SERVE, given, &n, ARGS_MAX - 16, e)))
        return rc;
    argv[k++] = path;
    argv[k++] = (char *)(uintptr_t)o->positional[0];
    for (uint32_t i = 0; i < n; i++)
        if (strncmp(given[i], "--log-", 6) != 0 && strncmp(given[i], "--api-key", 9) != 0)
            argv[k++] = given[i];
    if (!options_given(o, "--port"))
        argv[k++] = (char *)(uintptr_t) "--port=0";
    argv[k++] = (char *)(uintptr_t) "--host=127.0.0.1";
    argv[k++] = (char *)(uintptr_t) "--shutdown-timeout=1";
    argv[k++] = (char *)(uintptr_t) "--log-level=info";
    argv[k++] = (char *)(uintptr_t) "--log-json";
    argv[k] = NULL;
    return Q_OK;
}

/* In the child: it ends with its parent, and signals of the terminal's keys do not reach it. */
static _Noreturn void become(char **argv, int log_fd, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    if (getppid() == parent && dup2(log_fd, STDERR_FILENO) >= 0) {
        execv(argv[0], argv);
        dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    }
    _exit(127);
}

static FALLIBLE spawn(struct chat_server *s, const struct options *o, struct q_err *e)
{
    char *argv[ARGS_MAX];
    unsigned char random[32];
    int ends[2];
    pid_t parent = getpid();
    enum q_code rc = arguments(argv, o, e);
    if (rc)
        return rc;
    if (RAND_bytes(random, sizeof random) != 1)
        return q_fail(e, Q_INTERNAL, "cannot get random numbers for a key");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(s->key + 2 * i, 3, "%02x", random[i]);
    setenv("QUIRE_API_KEY", s->key, 1); /* arguments are visible to all users */
    if (pipe2(ends, O_CLOEXEC) != 0)
        return q_fail(e, Q_IO, "cannot start the server: pipe: %s", strerror(errno));
    s->log_fd = ends[0];
    fcntl(s->log_fd, F_SETFL, O_NONBLOCK);
    s->pid = fork();
    if (s->pid == 0)
        become(argv, ends[1], parent);
    close(ends[1]);
    if (s->pid > 0)
        return Q_OK;
    s->pid = 0;
    return q_fail(e, Q_IO, "cannot start the server: fork: %s", strerror(errno));
}

static void note_error(struct chat_server *s, const char *text)
{
    if (s->errors.len < ERRORS_MAX && (!s->errors.len || !strstr(s->errors.data, text)))
        buf_printf(&s->errors, "%s%s", s->errors.len ? "\n" : "", text);
}

/* A server without chat still serves plain text, but this program needs chat. */
static void note_no_chat(struct chat_server *s, const char *text)
{
    s->no_chat = true;
    buf_reset(&s->errors); /* this is the one cause */
    note_error(s, text);
}

/* Process one line of the log: JSON, or plain text before logging is set up. One that finds no
 * memory may be the one that is waited for. */
static FALLIBLE take_line(struct chat_server *s, unsigned *percent, struct q_err *e)
{
    json_error_t why;
    enum q_code rc = buf_check(&s->line, "the server's log", e);
    if (rc)
        return rc;
    json_t *v = json_read_bytes(buf_str(&s->line), s->line.len, 0, &why);
    if (!v && json_error_code(&why) == json_error_out_of_memory)
        return q_fail(e, Q_NO_MEMORY, "the server's log: out of memory");
    const char *message = json_string_value(json_object_get(v, "message"));
    const char *from = json_string_value(json_object_get(v, "component"));
    const char *level = json_string_value(json_object_get(v, "level"));
    bool serve = from && !strcmp(from, "serve");
    if (!message && s->line.len)
        note_error(s, s->line.data);
    else if (message && level && !strcmp(level, "ERROR") && !(serve && s->errors.len))
        note_error(s, message); /* the end of a child is not reported after its reason */
    else if (message && !strncmp(message, NO_CHAT, strlen(NO_CHAT)))
        note_no_chat(s, message + strlen(NO_CHAT));
    else if (message && serve && !strncmp(message, "listening on ", 13))
        snprintf(s->url, sizeof s->url, "%s", message + 13);
    else if (message && serve && !strcmp(message, "ready"))
        s->ready = true;
    else if (message)
        sscanf(message, "loading %u %%", percent);
    json_decref(v);
    return Q_OK;
}

static FALLIBLE read_log(struct chat_server *s, unsigned *percent, struct q_err *e)
{
    char data[4096];
    ssize_t n;
    enum q_code rc = Q_OK;
    while (!rc && (n = read(s->log_fd, data, sizeof data)) > 0) {
        for (ssize_t i = 0; i < n && !rc; i++) {
            if (data[i] != '\n') {
                buf_add_char(&s->line, data[i]);
                continue;
            }
            rc = take_line(s, percent, e);
            buf_reset(&s->line);
        }
    }
    return rc;
}

/* Wait for more of the log, for a short time at most. */
static void wait_log(const struct chat_server *s)
{
    struct pollfd p = {.fd = s->log_fd, .events = POLLIN};
    if (poll(&p, 1, LOOK_MS) > 0 && !(p.revents & POLLIN))
        usleep(LOOK_MS * 1000); /* closed: its processes end next */
}

FALLIBLE chat_server_start(struct chat_server *s, const struct options *o,
                           bool (*progress)(unsigned percent), struct q_err *e)
{
    unsigned percent = 0;
    enum q_code rc = spawn(s, o, e);
    bool alive = true;
    while (!rc && !s->ready && alive) {
        alive = waitpid(s->pid, NULL, WNOHANG) == 0;
        rc = read_log(s, &percent, e);
        if (rc)
            break;
        if (s->no_chat)
            rc = q_fail(e, Q_UNSUPPORTED, "%s", buf_str(&s->errors));
        else if (!progress(percent))
            rc = q_fail(e, Q_CANCELLED, "interrupted");
        else if (!s->ready && alive)
            wait_log(s);
    }
    if (!alive) {
        s->pid = 0;
        if (!rc)
            rc = q_fail(e, Q_UNAVAILABLE, "%s",
                        s->errors.len ? s->errors.data
                                      : "the model's server exited during its start");
    }
    if (!rc) {
        rc = log_tail_start(&s->tail, s->log_fd, e);
        s->log_fd = 0;
    }
    return rc;
}

/* Format a line of the log as text. */
static void add_log_line(const char *line, size_t n, struct buf *out)
{
    json_t *v = json_read_bytes(line, n, 0, NULL);
    const char *message = json_string_value(json_object_get(v, "message")),
               *from = json_string_value(json_object_get(v, "component"));
    if (message)
        buf_printf(out, "\n  %s: %s", from ? from : "", message);
    else
        buf_printf(out, "\n  %.*s", (int)n, line);
    json_decref(v);
}

static void add_last_lines(const struct buf *log, struct buf *out)
{
    const char *end = buf_str(log) + log->len, *at = end;
    unsigned n = 0;
    while (at > log->data && (at[-1] != '\n' || n++ < TAIL_LINES))
        at--; /* each line ends with a newline, the last one too */
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        add_log_line(at, (size_t)(stop - at), out);
        at = stop + 1;
    }
}

bool chat_server_ended(struct chat_server *s, struct buf *why)
{
    int64_t until = clock_ms() + DEATH_MS;
    int status = 0;
    struct buf log = BUF_INIT;
    pid_t ended = 0;
    while (s->pid > 0 && (ended = waitpid(s->pid, &status, WNOHANG)) == 0 && clock_ms() < until)
        usleep(5000);
    if (s->pid <= 0 || ended == 0)
        return false;
    if (WIFSIGNALED(status))
        buf_printf(why, "the model's server was killed by signal %d (%s)", WTERMSIG(status),
                   strsignal(WTERMSIG(status)));
    else
        buf_printf(why, "the model's server exited with code %d", WEXITSTATUS(status));
    s->pid = 0;
    log_tail_end(&s->tail, DEATH_MS, &log);
    if (log.len) {
        buf_add_str(why, "; the end of its log:");
        add_last_lines(&log, why);
    }
    buf_release(&log);
    return true;
}

void chat_server_stop(struct chat_server *s)
{
    int64_t until = clock_ms() + STOP_MS;
    if (s->pid > 0)
        kill(s->pid, SIGTERM);
    while (s->pid > 0 && waitpid(s->pid, NULL, WNOHANG) == 0) {
        if (clock_ms() >= until)
            kill(s->pid, SIGKILL);
        usleep(5000);
    }
    if (s->log_fd > 0)
        close(s->log_fd);
    log_tail_end(&s->tail, 0, NULL);
    buf_release(&s->line);
    buf_release(&s->errors);
    *s = (struct chat_server){.pid = 0};
}
