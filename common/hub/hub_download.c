/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/hub_download.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/hub/gguf_choice.h"
#include "common/mem.h"
#include "common/start.h"

#define PROGRAM     "quire-download"
#define ERROR_MAX   2048 /* bytes of a message */
#define PATTERN_MAX (4 * GGUF_TAG_MAX + 32)

static bool find_program(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - sizeof PROGRAM - 1);
    if (n <= 0)
        return false;
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash)
        return false;
    memcpy(slash + 1, PROGRAM, sizeof PROGRAM);
    return access(path, X_OK) == 0;
}

bool hub_can_download(void)
{
    char path[PATH_MAX];
    return find_program(path);
}

/* This process's environment and the pipe's number; the caller frees the array alone. */
static char **environment(char *error_fd)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **out = q_realloc_array(NULL, n + 2, sizeof *out);
    if (!out)
        return NULL;
    memcpy(out, environ, n * sizeof *out);
    out[n] = error_fd;
    out[n + 1] = NULL;
    return out;
}

/* All signals at their defaults and open; standard output is the caller's answers, so it is closed
 * to the program; a start that only checks shows no progress. */
static int set_up(posix_spawn_file_actions_t *actions, posix_spawnattr_t *attributes, int error_fd)
{
    sigset_t none, all;
    int rc;
    sigemptyset(&none);
    sigfillset(&all);
    if ((rc = posix_spawnattr_setflags(attributes,
                                       POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF)) ||
        (rc = posix_spawnattr_setsigmask(attributes, &none)) ||
        (rc = posix_spawnattr_setsigdefault(attributes, &all)) ||
        (rc = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0)) ||
        (rc = posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0)) ||
        (rc = posix_spawn_file_actions_adddup2(actions, error_fd, error_fd))) /* it stays open */
        return rc;
    return start_is_check() ? posix_spawn_file_actions_addopen(actions, 2, "/dev/null", O_WRONLY, 0)
                            : 0;
}

/* Files of a tag, in any letters: "--include=*[Qq]4_0*.gguf". */
static void write_pattern(char out[PATTERN_MAX], const char *tag)
{
    size_t n = (size_t)snprintf(out, PATTERN_MAX, "--include=*");
    for (; *tag && n < PATTERN_MAX - 16; tag++) {
        const int c = (unsigned char)*tag;
        n += (size_t)snprintf(out + n, PATTERN_MAX - n, isalpha(c) ? "[%c%c]" : "%c", toupper(c),
                              tolower(c));
    }
    snprintf(out + n, PATTERN_MAX - n, "*.gguf");
}

static enum q_code begin(pid_t *pid, const struct hub_wanted *w, int error_fd, struct q_err *e)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char path[PATH_MAX], revision[PATH_MAX], format[64], number[64];
    char weights[] = "--weights", no_weights[] = "--no-weights", end[] = "--", program[] = PROGRAM;
    char include[PATTERN_MAX] = "";
    const bool tagged = w->tag && *w->tag;
    char *argv[] = {
        program,
        revision,
        format,
        w->weights || w->adapter || tagged ? weights : no_weights,
        tagged ? include : end,
        tagged ? end : (char *)w->id,
        tagged ? (char *)w->id : NULL,
        NULL,
    };
    if (tagged)
        write_pattern(include, w->tag);
    snprintf(format, sizeof format, "--load-format=%s",
             w->adapter ? "adapter" : weight_format_name(w->format));
    snprintf(revision, sizeof revision, "--revision=%s", w->revision);
    snprintf(number, sizeof number, HUB_ERROR_FD "=%d", error_fd);
    char **env = environment(number);
    if (!env)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", w->id);
    if (!find_program(path)) {
        q_free(env);
        return q_fail(e, Q_NOT_FOUND, "%s: " PROGRAM " is not beside this program", w->id);
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int rc = set_up(&actions, &attributes, error_fd);
    if (!rc)
        rc = posix_spawn(pid, path, &actions, &attributes, argv, env);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    q_free(env);
    return rc ? q_fail(e, Q_IO, "%s: %s", path, strerror(rc)) : Q_OK;
}

static void read_all(struct buf *out, int fd)
{
    char block[512];
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n > 0)
            buf_add(out, block, (size_t)n);
        else if (n == 0 || errno != EINTR)
            return;
    }
}

static enum q_code code_of(int status)
{
    switch (WEXITSTATUS(status)) {
    case HUB_EXIT_MODEL:
        return Q_NOT_FOUND;
    case HUB_EXIT_NETWORK:
        return Q_UNAVAILABLE;
    default:
        return Q_IO;
    }
}

static enum q_code finish(pid_t pid, const struct hub_wanted *w, const struct buf *message,
                          struct q_err *e)
{
    int status;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        ;
    if (got < 0)
        return q_fail(e, Q_IO, "%s: waiting for " PROGRAM ": %s", w->id, strerror(errno));
    if (WIFSIGNALED(status))
        return q_fail(
            e, Q_CANCELLED,
            "%s: the download was stopped by signal %d (%s); the next start goes on where "
            "it ended",
            w->id, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) == 0)
        return Q_OK;
    if (!message->len)
        return q_fail(e, Q_IO, "%s: " PROGRAM " exited with code %d", w->id, WEXITSTATUS(status));
    return q_fail(e, code_of(status), "%s", buf_str(message));
}

enum q_code hub_download(const struct hub_wanted *w, struct q_err *e)
{
    int fds[2];
    pid_t pid;
    struct buf message = BUF_INIT_MAX(ERROR_MAX);
    if (pipe2(fds, O_CLOEXEC) != 0)
        return q_fail(e, Q_IO, "%s: pipe: %s", w->id, strerror(errno));
    int theirs = fcntl(fds[1], F_DUPFD_CLOEXEC, 3);
    close(fds[1]);
    enum q_code rc = theirs < 0 ? q_fail(e, Q_IO, "%s: pipe: %s", w->id, strerror(errno))
                                : begin(&pid, w, theirs, e);
    if (theirs >= 0)
        close(theirs);
    if (!rc) {
        read_all(&message, fds[0]);
        rc = finish(pid, w, &message, e);
    }
    close(fds[0]);
    buf_release(&message);
    return rc;
}
