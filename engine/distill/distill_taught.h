/* SPDX-License-Identifier: Apache-2.0 */
/* distill_taught - --teacher-url: the log-probabilities of the run's data from a server, written
 * into o->teacher_file (teach.h) before a rank reads them. Sequences that the folder has are
 * skipped, so a run that goes on asks for nothing twice. Threads: main, before ranks start. */
#ifndef QUIRE_ENGINE_DISTILL_DISTILL_TAUGHT_H
#define QUIRE_ENGINE_DISTILL_DISTILL_TAUGHT_H
#include "common/options.h"
#include "engine/distill/trainer.h"

/* o: with its folders; a rank of the launcher's does nothing. Errors: Q_UNSUPPORTED (a rank of
 * mpirun's: which command writes the folder), those of teach_run. */
FALLIBLE distill_taught(const struct distill_options *o, const struct options *options,
                        struct q_err *e);

#endif
