/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "engine/distill/launch_internal.h"

/* One write(2) for each line, so that lines of ranks and launcher never mix. */
static void write_line(struct launch_process *p, uint32_t rank, uint32_t n_rank)
{
    char text[LAUNCH_LINE_MAX + 32];
    bool plain = n_rank == 1 || (p->n_line && p->line[0] == '{');
    int n_front = plain ? 0 : snprintf(text, sizeof text, "rank %u: ", rank);
    size_t n = (size_t)n_front;
    memcpy(text + n, p->line, p->n_line);
    n += p->n_line;
    text[n++] = '\n';
    for (size_t at = 0; at < n;) {
        ssize_t written = write(STDERR_FILENO, text + at, n - at);
        if (written < 0 && errno != EINTR)
            break; /* nobody reads the log; the run goes on */
        at += written > 0 ? (size_t)written : 0;
    }
    if (p->n_line)
        snprintf(p->last, sizeof p->last, "%.*s", (int)p->n_line, p->line);
    p->n_line = 0;
}

void launch_forward(struct launch_process *p, uint32_t rank, uint32_t n_rank)
{
    char data[4096];
    ssize_t n = 1;
    while (p->log_fd >= 0 && n > 0) {
        n = read(p->log_fd, data, sizeof data);
        for (ssize_t i = 0; i < n; i++) {
            if (data[i] == '\n' || p->n_line == sizeof p->line)
                write_line(p, rank, n_rank);
            if (data[i] != '\n')
                p->line[p->n_line++] = data[i];
        }
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            close(p->log_fd);
            p->log_fd = -1;
        }
    }
}

void launch_forward_end(struct launch_process *p, uint32_t rank, uint32_t n_rank)
{
    launch_forward(p, rank, n_rank);
    if (p->n_line)
        write_line(p, rank, n_rank);
    if (p->log_fd >= 0)
        close(p->log_fd);
    p->log_fd = -1;
}
