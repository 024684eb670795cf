/* SPDX-License-Identifier: Apache-2.0 */
/* child - run a function in a child process, so that a crash, an exit or a hang of it is a result
 * and no end of this process. The child sees memory as it was at the call; what it writes there is
 * lost, except in shared mappings. It is killed with its parent. Threads: any; it forks, so the
 * function must not wait for locks that other threads of this process may hold. */
#ifndef QUIRE_COMMON_CHILD_H
#define QUIRE_COMMON_CHILD_H

enum child_end {
    CHILD_DONE,   /* the function returned */
    CHILD_KILLED, /* by a signal: number */
    CHILD_EXITED, /* the function ended the process; number: its exit status */
    CHILD_HUNG,   /* it had not ended after limit_ms; it was killed */
    CHILD_NONE    /* no process could be started, or its end could not be known */
};
struct child_result {
    enum child_end end;
    int number;
};

/* Returns when the child has ended, and at most a few seconds after limit_ms. */
struct child_result child_run(void (*run)(void *ctx), void *ctx, int limit_ms);

#endif
