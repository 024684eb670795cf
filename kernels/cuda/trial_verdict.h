/* SPDX-License-Identifier: Apache-2.0 */
/* trial_verdict - results of all trials on one card, and their file: one file per card, driver and
 * build of this library. Text, one trial per line:
 *
 *     quire-trials 1
 *     card NVIDIA H100 80GB HBM3
 *     capability 9.0
 *     driver 13000
 *     library 51224008 1764345600123456789
 *     attention compared 1234567 0 0
 *     bf16 compared 9012345 8123456 0.00012
 *     int8 failed killed by signal 11 (Segmentation fault)
 *     sum 9e3779b97f4a7c15
 *
 * compared: outputs, outputs with different bits, largest relative difference. failed: the reason;
 * such a trial is not repeated until the file is deleted. A trial without a line was not run. A
 * file that is damaged, or of another card, driver or build, counts as no file.
 * Threads: pure functions, and files. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_VERDICT_H
#define QUIRE_KERNELS_CUDA_TRIAL_VERDICT_H
#include "common/buf.h"
#include "kernels/cuda/card_file.h"
#include "kernels/cuda/trial.h"
#include "kernels/cuda/trial_linear.h"

#define TRIAL_WHY_MAX  100u
#define TRIAL_FILE_MAX (64u << 10) /* bytes */

enum cuda_trial {
    TRIAL_ATTENTION,
    TRIAL_LINEAR,                                /* + enum linear_type */
    TRIAL_GROUPED = TRIAL_LINEAR + LINEAR_TYPES, /* + enum linear_type */
    TRIAL_OVERLAP = TRIAL_GROUPED + LINEAR_TYPES,
    TRIALS
};
extern const char *const trial_names[TRIALS]; /* "attention", "bf16", "grouped-bf16", "overlap" */

enum trial_state { TRIAL_NOT_RUN, TRIAL_COMPARED, TRIAL_FAILED };
struct trial_row {
    enum trial_state state;
    struct trial_result result; /* TRIAL_COMPARED */
    char why[TRIAL_WHY_MAX];    /* otherwise; one line, may be "" if it was not run */
};
struct trial_verdict {
    struct trial_row rows[TRIALS];
};

struct trial_library { /* identifies the build: the file of the library */
    uint64_t bytes, mtime_ns;
};

/* v is empty after an error: Q_CORRUPT (line and reason), Q_MISMATCH (another card, driver or
 * build). */
FALLIBLE trial_verdict_parse(struct trial_verdict *v, const struct card *card,
                             const struct trial_library *library, const char *text, size_t n,
                             struct q_err *e);
/* Rows that were not run are left out. */
void trial_verdict_print(struct buf *out, const struct trial_verdict *v, const struct card *card,
                         const struct trial_library *library);

/* The file's path. Errors: Q_TOO_LARGE. */
FALLIBLE trial_verdict_path(char out[PATH_MAX], const struct card *card, const char *dir,
                            struct q_err *e);
/* The file in dir. v is empty after an error: as trial_verdict_parse; Q_NOT_FOUND, Q_IO. */
FALLIBLE trial_verdict_load(struct trial_verdict *v, const struct card *card,
                            const struct trial_library *library, const char *dir, struct q_err *e);
/* Creates the folder; replaces the file atomically. Errors: Q_IO, Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE trial_verdict_save(const struct trial_verdict *v, const struct card *card,
                            const struct trial_library *library, const char *dir, struct q_err *e);

#endif
