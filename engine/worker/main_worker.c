/* SPDX-License-Identifier: Apache-2.0 */
/* quire-worker RING: the worker as a process. An engine starts it and passes three descriptors: the
 * ring's memory and its eventfd, as "MEMORY_FD,EVENT_FD"; everything else is in the ring. It ends
 * when the engine stops it or dies. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "common/log.h"
#include "common/options.h"
#include "engine/worker/worker.h"

enum { EXIT_USAGE = 2, EXIT_LOAD = 3 };

/* Ctrl-C and service managers signal whole process groups; the engine still needs the worker to
 * finish open requests. */
static void follow_the_engine(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || parent == 1) /* it died before the line above */
        _exit(EXIT_LOAD);
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_WORKER,
        .name = "quire worker",
        .usage = "RING",
        .about = "Computes the steps of an engine. `quire engine` starts this program with the "
                 "descriptors RING; it is not meant to be started by hand.",
        .positional_min = 1,
        .positional_max = 1,
    };
    static struct options o;
    int rc = options_main(&o, &info, argc, argv);
    if (rc >= 0)
        return rc;
    int memory_fd, event_fd, items_fd;
    char rest;
    if (sscanf(o.positional[0], "%d,%d,%d%c", &memory_fd, &event_fd, &items_fd, &rest) != 3 ||
        memory_fd < 0 || event_fd < 0 || items_fd < -1) {
        fprintf(stderr,
                "quire worker: RING is \"%s\", expected three descriptors; `quire engine` starts "
                "workers\n",
                o.positional[0]);
        return EXIT_USAGE;
    }
    struct q_err e = Q_ERR_INIT;
    struct ring *ring = NULL;
    if (ring_open(&ring, memory_fd, event_fd, &e) || ring_share_items(ring, items_fd, &e)) {
        fprintf(stderr, "quire worker: %s\n", e.message);
        return EXIT_USAGE;
    }
    follow_the_engine();
    log_setup("worker", (enum log_level)ring_config(ring)->log_level, ring_config(ring)->log_json);
    rc = worker_run(ring, NULL, &e) ? EXIT_LOAD : 0;
    ring_free(ring);
    return rc;
}
