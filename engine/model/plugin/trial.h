/* SPDX-License-Identifier: Apache-2.0 */
/* trial - does a plugin survive its own code? Its constructors and its entry, and later the
 * callbacks that run while a model is opened, run in a process of their own first, so that one that
 * crashes, exits or hangs there is an error here.
 * Threads: any; it forks. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#define QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#include "engine/model/plugin/plugin_arch.h"

/* Errors: Q_UNAVAILABLE (killed by a signal, ended, or not done after some seconds). What else is
 * wrong with the file is told of when this process loads it. */
FALLIBLE plugin_trial(const char *path, struct q_err *e);
/* run(ctx), which calls `callback` ("check") of the architecture's plugin, in a process of its own:
 * what it writes in memory is lost. *ran false with Q_OK: no such process could be had. Errors: as
 * plugin_trial. */
FALLIBLE plugin_trial_call(bool *ran, const struct plugin_arch *a, const char *callback,
                           void (*run)(void *ctx), void *ctx, struct q_err *e);

#endif
