/* SPDX-License-Identifier: Apache-2.0 */
/* recorder - writes the steps of an engine to files of bounded size (record.h).
 *
 * A step is copied into a queue; a thread writes complete frames every RECORDER_FLUSH_MS, so a
 * SIGKILL loses only the last interval. A file that has reached its size becomes PATH.1, PATH.1
 * becomes PATH.2 …, and the oldest is removed; the new file begins with the running sequences, so
 * that each file can be replayed alone. What was there at the start is kept in the same way.
 * Recording never delays or fails an engine: if the file cannot be written or the queue is full,
 * recording stops, with one line in the log.
 * Threads: all calls from the loop that made it. */
#ifndef QUIRE_ENGINE_RECORD_RECORDER_H
#define QUIRE_ENGINE_RECORD_RECORDER_H
#include "engine/record/record.h"

#define RECORDER_FLUSH_MS    200
#define RECORDER_QUEUE_BYTES ((uint64_t)64 << 20)  /* of steps that are not written yet */
#define RECORDER_ITEM_BYTES  ((uint64_t)512 << 20) /* of their items, likewise */
#define RECORDER_FILES_MAX   1000u

struct recorder_options { /* borrowed, as long as the recorder */
    const char *path;
    uint64_t file_bytes; /* a file ends after about so many */
    uint32_t n_file;     /* at most, PATH included */
    const char *model;   /* "" or NULL: the folder of the worker's configuration */
    char **options;      /* [n_option] "--flag=value": those of the engine */
    uint32_t n_option;
};

struct recorder;
/* Errors: Q_NO_MEMORY, Q_TOO_LARGE (path), Q_IO (no thread). */
FALLIBLE recorder_new(struct recorder **out, const struct recorder_options *o, struct q_err *e);
/* Write what is queued and the END. NULL is fine. */
void recorder_free(struct recorder *r);
/* Begin a file, for the steps that follow: when the worker is ready, and when weights changed. */
void recorder_begin(struct recorder *r, const struct record_head *head,
                    const struct record_texts *texts);
void recorder_step(struct recorder *r, const struct step_view *view,
                   const struct step_result *result);
/* Of an admission of the next step: all items of its request (record_put_items). */
void recorder_items(struct recorder *r, const struct record_items *head,
                    const struct step_item *items, const unsigned char *store);
/* The worker has loaded or dropped an adapter. */
void recorder_adapter(struct recorder *r, const struct record_adapter *a, const char *dir);
void recorder_worker(struct recorder *r); /* the steps that follow are of a new worker */
/* False: recording has stopped. */
bool recorder_runs(const struct recorder *r);

#endif
