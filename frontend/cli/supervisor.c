/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/death.h"
#include "common/mem.h"
#include "common/start.h"

#define SOCKET_NAME    "engine"
#define WEIGHTS        "weights"  /* file with the folder of the current weights */
#define IDENTITY       "identity" /* and with the identity of the first weights (engine/core) */
#define CHECK_SAYS_MAX ((size_t)1 << 20)
#define ADDRESS_MAX    100 /* a Unix socket's path has 108 bytes */

static enum q_code listen_on(struct supervisor_resources *s, const struct options *o,
                             struct q_err *e)
{
    if (*o->uds) {
        snprintf(s->url, sizeof s->url, "unix:%s", o->uds);
        return net_listen_path(&s->listening, &s->path, o->uds, e);
    }
    bool v6 = strchr(o->host, ':') != NULL;
    enum q_code rc = net_listen(&s->listening, o->host, (uint16_t)o->port, e);
    snprintf(s->url, sizeof s->url, "%s://%s%.255s%s:%u", *o->ssl_certfile ? "https" : "http",
             v6 ? "[" : "", o->host, v6 ? "]" : "", s->listening.port);
    return rc;
}

static enum q_code make_dir(struct supervisor_resources *s, struct q_err *e)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    if (!base || !*base || strlen(base) > ADDRESS_MAX - sizeof SOCKET_NAME ||
        access(base, W_OK) != 0)
        base = "/tmp";
    snprintf(s->dir, sizeof s->dir, "%s/quire-XXXXXX", base);
    if (!mkdtemp(s->dir)) { /* mode 0700 */
        enum q_code rc = q_fail(e, Q_INTERNAL, "cannot create a folder named like %s: %s", s->dir,
                                strerror(errno));
        s->dir[0] = 0;
        return rc;
    }
    snprintf(s->address, sizeof s->address, "ipc://%.*s/" SOCKET_NAME, PATH_MAX - 32, s->dir);
    return Q_OK;
}

FALLIBLE supervisor_resources_init(struct supervisor_resources *s, const struct options *o,
                                   struct q_err *e)
{
    enum q_code rc;
    s->metrics_fd = s->ready_pipe[0] = s->ready_pipe[1] = -1;
    if ((rc = listen_on(s, o, e)) || (rc = make_dir(s, e)))
        return rc;
    s->metrics_fd = memfd_create("quire-metrics", MFD_CLOEXEC);
    if (s->metrics_fd < 0 ||
        ftruncate(s->metrics_fd, (off_t)metrics_bytes((uint32_t)o->frontends)) != 0 ||
        pipe2(s->ready_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return q_fail(e, Q_INTERNAL, "memfd or pipe: %s", strerror(errno));
    return Q_OK;
}

FALLIBLE supervisor_resources_init_private(struct supervisor_resources *s, struct q_err *e)
{
    s->metrics_fd = s->ready_pipe[0] = s->ready_pipe[1] = -1;
    return make_dir(s, e);
}

void supervisor_resources_release(struct supervisor_resources *s)
{
    char path[PATH_MAX + sizeof SOCKET_NAME + 16];
    net_path_remove(&s->path);
    if (s->dir[0]) {
        snprintf(path, sizeof path, "%s/" SOCKET_NAME, s->dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/" WEIGHTS, s->dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/" IDENTITY, s->dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/" WEIGHTS ".trial", s->dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/" WEIGHTS ".adapters", s->dir);
        unlink(path);
        rmdir(s->dir);
        s->dir[0] = 0;
    }
}

static char *beside(const char *program)
{
    static char dir[PATH_MAX];
    char *path = NULL;
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    if (n < 0)
        return NULL;
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    return asprintf(&path, "%s/%s", dir, program) < 0 ? NULL : path;
}

static char *flag(const char *name, const char *value)
{
    char *text = NULL;
    return asprintf(&text, "%s=%s", name, value) < 0 ? NULL : text;
}

/* Children get the keys in the environment, one per line, whatever their source: arguments are
 * visible to every user of the machine. */
static enum q_code hide_keys(char **argv, uint32_t *n, const struct options *o, struct q_err *e)
{
    struct buf keys = BUF_INIT;
    uint32_t kept = 0;
    if (o->api_key.n == 0)
        return Q_OK;
    for (uint32_t i = 0; i < o->api_key.n; i++)
        buf_printf(&keys, "%s%s", i ? "\n" : "", o->api_key.items[i]);
    enum q_code rc = buf_check(&keys, "the API keys", e);
    if (rc == Q_OK && setenv("QUIRE_API_KEY", buf_str(&keys), 1) != 0)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the API keys");
    buf_release(&keys);
    for (uint32_t i = 0; i < *n; i++) {
        if (strncmp(argv[i], "--api-key=", strlen("--api-key=")) != 0)
            argv[kept++] = argv[i];
        else
            q_free(argv[i]);
    }
    argv[kept] = NULL;
    *n = kept;
    return rc;
}

static enum q_code child_init(struct child *c, const struct supervisor_resources *s,
                              const struct options *o, struct q_err *e)
{
    uint32_t n = 0;
    c->resources = s;
    c->argv[n++] = beside(c->is_frontend ? "quire-frontend" : "quire-engine");
    c->argv[n++] = (char *)o->positional[0];
    c->argv[n++] = flag(c->is_frontend ? "--engine" : "--listen", s->address);
    if (!c->argv[0] || !c->argv[2])
        return q_fail(e, Q_NO_MEMORY, "out of memory for arguments");
    enum q_code rc = options_forward(o, c->is_frontend ? FOR_FRONTEND : FOR_ENGINE, c->argv, &n,
                                     CHILD_ARGS_MAX, e);
    return rc ? rc : hide_keys(c->argv, &n, o, e);
}

FALLIBLE children_init(struct child *children, uint32_t *n, const struct supervisor_resources *s,
                       const struct options *o, struct q_err *e)
{
    uint32_t n_frontend = (uint32_t)o->frontends;
    for (uint32_t i = 0; i <= n_frontend; i++) {
        struct child *c = &children[i];
        c->is_frontend = i > 0;
        c->slot = i ? i - 1 : 0;
        c->n_slot = n_frontend;
        if (i == 0)
            snprintf(c->name, sizeof c->name, "engine");
        else if (n_frontend == 1)
            snprintf(c->name, sizeof c->name, "frontend");
        else
            snprintf(c->name, sizeof c->name, "frontend %u", i);
        enum q_code rc = child_init(c, s, o, e);
        if (rc != Q_OK)
            return rc;
    }
    *n = 1 + n_frontend;
    return Q_OK;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* The child inherits the descriptors; the variable has their numbers: "5,6". */
static void give_sockets(const struct net_sockets *s)
{
    char text[16 * NET_LISTEN_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        fcntl(s->fd[i], F_SETFD, 0);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", i ? "," : "", s->fd[i]);
    }
    setenv("QUIRE_LISTEN_FDS", text, 1);
}

/* In the child: only calls that are safe between fork and exec of a single-threaded program. */
static void come_loose(pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C reaches only the supervisor, which stops the children in order */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1); /* the parent ended before the line above */
}

static void run_program(const struct child *c)
{
    execv(c->argv[0], c->argv);
    fprintf(stderr, "quire: %s: %s\n", c->argv[0], strerror(errno));
    _exit(CHILD_NO_PROGRAM);
}

static void become(const struct child *c, pid_t parent)
{
    const struct supervisor_resources *s = c->resources;
    come_loose(parent);
    if (c->is_frontend) {
        give_sockets(&s->listening);
        fcntl(s->metrics_fd, F_SETFD, 0);
        fcntl(s->ready_pipe[1], F_SETFD, 0);
        set_number("QUIRE_METRICS_FD", s->metrics_fd);
        set_number("QUIRE_METRICS_SLOT", (int)c->slot);
        set_number("QUIRE_METRICS_SLOTS", (int)c->n_slot);
        set_number("QUIRE_READY_FD", s->ready_pipe[1]);
    } else {
        char path[PATH_MAX + sizeof IDENTITY + 1];
        snprintf(path, sizeof path, "%s/" WEIGHTS, s->dir);
        setenv("QUIRE_WEIGHTS_FILE", path, 1);
        snprintf(path, sizeof path, "%s/" IDENTITY, s->dir);
        setenv("QUIRE_IDENTITY_FILE", path, 1);
        setenv("QUIRE_ENGINE_DEATH", c->death, 1);
        set_number("QUIRE_ENGINE_START", c->n_start + 1);
    }
    run_program(c);
}

FALLIBLE check_begin(struct check *k, const struct child *c, struct q_err *e)
{
    int ends[2];
    pid_t parent = getpid();
    const char *slash = strrchr(c->argv[0], '/');
    if (pipe2(ends, O_CLOEXEC) != 0)
        return q_fail(e, Q_IO, "cannot check %s: pipe: %s", c->name, strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        come_loose(parent);
        dup2(ends[1], STDERR_FILENO);
        setenv(START_CHECK, "1", 1);
        run_program(c);
    }
    close(ends[1]);
    *k = (struct check){.pid = pid, .fd = ends[0], .name = slash ? slash + 1 : c->argv[0]};
    if (pid > 0)
        return Q_OK;
    close(ends[0]);
    return q_fail(e, Q_IO, "cannot check %s: fork: %s", c->name, strerror(errno));
}

/* The last line of a text that is not empty. */
static const char *last_line(char *text)
{
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n')
        text[--n] = '\0';
    const char *newline = strrchr(text, '\n');
    return newline ? newline + 1 : text;
}

int check_end(struct check *k, struct q_err *e)
{
    struct buf said = BUF_INIT_MAX(CHECK_SAYS_MAX);
    char step[4096];
    ssize_t n;
    int status = 0;
    while ((n = read(k->fd, step, sizeof step)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            buf_add(&said, step, (size_t)n);
    close(k->fd);
    while (waitpid(k->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const char *line = said.len ? last_line(said.data) : "";
    if (code && !*line)
        q_fail_text(e, Q_INVALID, "%s %s %d during the check of its arguments", k->name,
                    WIFSIGNALED(status) ? "was killed by signal" : "exited with code",
                    WIFSIGNALED(status) ? WTERMSIG(status) : code);
    else if (code)
        q_fail_text(e, Q_INVALID, "%s", line);
    buf_release(&said);
    return code;
}

FALLIBLE child_start(struct child *c, struct q_err *e)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return q_fail(e, Q_IO, "cannot start %s: fork: %s", c->name, strerror(errno));
    if (pid == 0)
        become(c, parent);
    c->pid = pid;
    c->n_start++;
    c->n_oom = death_oom_kills();
    c->started_ms = clock_ms();
    return Q_OK;
}
