/* SPDX-License-Identifier: Apache-2.0 */
/* service - one simulated `quire serve`: the supervisor's decisions, an engine's table of frontends
 * and core, the links of its frontends, all real; processes, sockets, workers and clients are not.
 *
 *     clients ─ link ─ wire ─┬─ frontends, outbox ─ core ─ scheduler ─ ring ─ fake worker
 *     clients ─ link ─ wire ─┘
 *                 supervise ── starts and kills all but the worker
 *
 * Processes are killed, stopped and continued, connections break or swallow everything, starts
 * fail, and the news of a death comes late, so that deaths and restarts arrive in any order; some
 * requests kill each worker, or each engine, that has them. Each client knows the answer that its
 * request gives alone, and exits with a message unless it gets exactly this one: no token is lost,
 * doubled or another, and a request ends once. After each event the links, the core and its
 * scheduler check themselves; at the end nothing may be left in any of them.
 * Threads: one, but for the core's compilers of grammars, which have nothing to do. */
#ifndef QUIRE_TESTS_SIM_SERVICE_H
#define QUIRE_TESTS_SIM_SERVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "fake_worker.h"

#define SERVICE_FRONTENDS_MAX 3u

struct service_report {
    uint64_t n_event, n_token, n_answer, n_aborted, n_refused, n_away, n_again, n_blamed;
    uint64_t n_gave_up, n_worker_death, n_engine_death, n_frontend_death, n_broken, n_resubmitted;
    double seconds;  /* virtual */
    int64_t held_us; /* the longest time that a request waited for suspects */
};
/* Simulate one service until all requests have ended. folder: of a model's config.json. */
void service_run(const char *folder, uint64_t seed, struct service_report *report);

/* The rest is shared by the files of a service. */
struct service { /* drawn from the seed */
    const char *folder;
    struct fake_model model;
    struct step_limits limits;
    uint32_t n_block, n_swap_block, queue_max, credit, heartbeat_ms, engine_timeout_ms;
    uint32_t n_frontend, n_client, n_fault;
    bool has_long;                /* one answer is as long as the model's positions */
    uint32_t latency_us, step_us; /* at most */
    uint32_t start_fails;         /* in 10000 starts of a process */
    /* Crashes of workers and hangs of engines without a cause: three with one request blame it */
    uint32_t n_crash, n_hang;
    bool is_over; /* all clients are: no more faults */
    bool gave_up; /* the supervisor: a child failed too often */
    struct service_report *report;
};
extern struct service service;

enum poison { POISON_NONE, POISON_WORKER, POISON_ENGINE }; /* what a request kills */
enum poison poison_of(uint64_t seed);

/* service.c: the supervisor's children */
pid_t service_new_pid(void);
/* A process has ended; its supervisor is told later. status: as of waitpid. */
void service_died(pid_t pid, int status);
void service_hear(unsigned char byte); /* of a frontend */
bool service_was_up(void);             /* starts may fail from now on */

/* service_wire.c: the connection of each frontend to the engine */
void wire_open(uint32_t frontend);    /* the frontend runs: connect, now or later */
void wire_break(uint32_t frontend);   /* what is on its way is lost; connects again */
void wire_swallow(uint32_t frontend); /* half-open: nothing arrives, no side is told */
void wire_close_all(void);
bool wire_send(uint32_t frontend, bool to_engine, const void *frame, size_t n);
bool wire_is_full(uint32_t frontend);              /* of frames that the frontend has not read */
uint32_t wire_epoch(uint32_t frontend);            /* number of its connection; 0 = none */
void wire_read(uint32_t frontend, bool by_engine); /* a frame was taken */

/* service_engine.c */
void engine_reset(void); /* none runs */
void engine_boot(uint64_t pid, const char *death, uint32_t n_start);
void engine_kill(int status);
void engine_pause(bool stopped); /* SIGSTOP, SIGCONT */
bool engine_was_stopped(pid_t pid);
bool engine_listens(void);
bool engine_tries(void); /* a suspect of crashes has the engine, or waits for it */
void engine_receive(uint32_t frontend, uint32_t epoch, void *frame, size_t n); /* takes it */
void engine_check_idle(void);
bool worker_kill(int status);
void worker_pause(bool stopped);

/* service_frontend.c */
void links_reset(void);
void frontend_boot(uint64_t pid, uint32_t i);
void frontend_kill(uint32_t i, int status);
void frontend_pause(uint32_t i, bool stopped);
bool frontend_runs(uint32_t i);
void frontend_receive(uint32_t i, void *frame, size_t n); /* takes it */
void links_check_idle(void);
void clients_make(void);
bool clients_over(void);
void clients_free(void);
const unsigned char *service_digest(void); /* of the folder */

#endif
