/* SPDX-License-Identifier: Apache-2.0 */
/* hub_download - starts the program that downloads (quire-download, beside this one) and waits.
 *
 * Downloads are a program of their own, so that no other one loads libcurl and TLS. The program
 * shows its progress on standard error, and sends its error through a pipe, so that it is reported
 * once, by the caller. It ends with its caller. Two processes that want the same files at once do
 * not load them twice: the cache's locks. Threads: reentrant; the caller's thread waits. */
#ifndef QUIRE_COMMON_HUB_HUB_DOWNLOAD_H
#define QUIRE_COMMON_HUB_HUB_DOWNLOAD_H
#include <stdbool.h>
#include "common/hub/weight_files.h"

#define HUB_ERROR_FD "QUIRE_ERROR_FD" /* environment: number of the pipe for the error */

/* Exit codes of quire-download. */
enum hub_exit { HUB_EXIT_IO = 1, HUB_EXIT_USAGE = 2, HUB_EXIT_MODEL = 3, HUB_EXIT_NETWORK = 4 };

struct hub_wanted {
    const char *id, *revision; /* valid ones (cache.h) */
    bool weights;              /* also the weights */
    enum weight_format format; /* of these */
    const char *tag;           /* of a GGUF file (gguf_choice.h); NULL or "": none */
    bool any_file;             /* a folder without config.json will do: a tokenizer */
    bool adapter;              /* a LoRA adapter's two files, nothing else */
};

/* Is the program there? Not beside a program that is not quire's own (the library). */
bool hub_can_download(void);
/* Errors: Q_NOT_FOUND (no such model, revision or access), Q_UNAVAILABLE (network or hub), Q_IO
 * (disk), Q_CANCELLED (a signal). */
FALLIBLE hub_download(const struct hub_wanted *w, struct q_err *e);

#endif
