/* SPDX-License-Identifier: Apache-2.0 */
/* distill_options - the command line of `quire distill` as struct distill_options (trainer.h).
 *
 * Everything that options alone, the models' config.json and their tokenizers can show to be wrong
 * is an error here, before a rank starts: flag, value, and what is accepted. Threads: main. */
#ifndef QUIRE_ENGINE_DISTILL_DISTILL_OPTIONS_H
#define QUIRE_ENGINE_DISTILL_DISTILL_OPTIONS_H
#include <limits.h>
#include "common/options.h"
#include "engine/distill/trainer.h"
#include "engine/model/plugins.h"

#define DISTILL_SAVE_STEPS_MAX 4096u

struct distill_texts { /* what struct distill_options points to, besides the command line */
    char teacher[PATH_MAX], student[PATH_MAX], cache[PATH_MAX], taught[PATH_MAX];
    uint64_t save_steps[DISTILL_SAVE_STEPS_MAX];
    struct kern_table kern;
    struct plugins_config plugins;
};

/* Values and their combinations. Paths are as given: distill_options_folders looks for them.
 * texts: lives as long as out. Errors: Q_INVALID (flag, value, what is accepted). */
FALLIBLE distill_options_parse(struct distill_options *out, struct distill_texts *texts,
                               const struct options *o, struct q_err *e);
/* Finds the folders, loads plugins, and checks and compares the models: layers and stages, tensors,
 * vocabularies, tokenizers, lengths (data.seq_len and data.vocab_size are set). Errors: those of
 * hub_resolve, plugins_open, model_config_load, student_check and teacher_check, Q_INVALID,
 * Q_MISMATCH (teacher and student do not go together), Q_UNSUPPORTED. */
FALLIBLE distill_options_folders(struct distill_options *o, struct distill_texts *texts,
                                 bool allow_different, struct q_err *e);

#endif
