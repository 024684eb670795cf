/* SPDX-License-Identifier: Apache-2.0 */
/* death - how a child process ended, and whether it was the doing of somebody else.
 *
 * A process that crashes on what it computes ends by a signal of the kernel for it (SIGSEGV,
 * SIGABRT …) or by an exit code. SIGKILL, SIGTERM, SIGINT, SIGHUP and SIGQUIT are sent by others,
 * an administrator for example; SIGKILL also by the kernel when memory runs out, which the process
 * may have caused: then the kernel's count of such kills has grown. A process that is stopped
 * (SIGSTOP, a debugger) looks like one that hangs until it is asked for. Threads: reentrant. */
#ifndef QUIRE_COMMON_DEATH_H
#define QUIRE_COMMON_DEATH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* How many processes the kernel has killed for lack of memory since it started; 0: unknown. */
uint64_t death_oom_kills(void);
/* The same from the text of /proc/vmstat. */
uint64_t death_oom_kills_of(const char *vmstat);
/* Was the process ended by others? status: of waitpid; was_oom: killed for lack of memory. */
bool death_from_outside(int status, bool was_oom);
/* Is this child stopped by a signal or a debugger, or was it stopped by a signal and continued?
 * What it is asked again, or waited for, stays the same. */
bool death_was_stopped(pid_t pid);
/* Is this process ending? It may be seconds until it can be waited for: the memory of a large one
 * is freed before. */
bool death_has_begun(pid_t pid);
/* "was killed by signal 9 (Killed)", "exited with code 4". */
void death_describe(int status, bool was_oom, char *out, size_t size);

#endif
