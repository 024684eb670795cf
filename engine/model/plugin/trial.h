/* SPDX-License-Identifier: Apache-2.0 */
/* trial - does a plugin survive its own code? Its constructors, its entry and the tables that it
 * gives, and later the callbacks that run while a model is opened, run in a process of their own
 * first, so that a plugin that crashes, exits or hangs there is an error here.
 * Threads: any; it forks. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#define QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#include <stdbool.h>
#include "common/err.h"

#define TRIAL_MS 30000 /* of code that reads and writes tables */

struct trial {
    const char *plugin; /* for errors: its file, or its name and version */
    const char *when;   /* "while it was loaded" */
    int limit_ms;
    void (*run)(void *ctx);
    void *ctx;
};
/* run(ctx) in a process of its own: what it writes in memory is lost. *ran false with Q_OK: no such
 * process could be had. Errors: Q_UNAVAILABLE (killed by a signal, ended, or not done within
 * limit_ms). */
FALLIBLE plugin_trial(bool *ran, const struct trial *t, struct q_err *e);

#endif
