/* SPDX-License-Identifier: Apache-2.0 */
/* trial - does a shared object load at all? Its constructors and its entry run in a process of
 * their own first, so that one that crashes, exits or hangs there is an error here.
 * Threads: any; it forks. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#define QUIRE_ENGINE_MODEL_PLUGIN_TRIAL_H
#include "common/err.h"

/* Errors: Q_UNAVAILABLE (killed by a signal, ended, or not done after some seconds). What else is
 * wrong with the file is told of when this process loads it. */
FALLIBLE plugin_trial(const char *path, struct q_err *e);

#endif
