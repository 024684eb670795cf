/* SPDX-License-Identifier: Apache-2.0 */
/* hub - from a user's model argument to a model folder.
 *
 * A model is a folder with config.json, a GGUF file or a folder of them (gguf_choice.h), or an id "org/name" of the Hugging Face hub: the snapshot
 * of the revision in the local cache (cache.h), which is downloaded if it is not there or not
 * complete (hub_download.h). With HF_HUB_OFFLINE nothing is downloaded. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_HUB_H
#define QUIRE_COMMON_HUB_HUB_H
#include <limits.h>
#include <stdbool.h>
#include "common/hub/weight_files.h"

/* dir: [PATH_MAX] out; of a GGUF file its path. revision: NULL = "main"; a branch, tag or commit hash. Ignored for folders.
 * Cost: a few system calls if the model is there; else the download.
 * Errors: Q_NOT_FOUND (with the places searched and a remedy), Q_UNSUPPORTED, Q_CORRUPT, Q_IO (a
 * folder or file of another kind: folder.h), Q_INVALID (no id and no path), those of
 * hub_download. */
FALLIBLE hub_resolve(char dir[PATH_MAX], const char *model, const char *revision, struct q_err *e);
/* The same with weights in files of this format. */
FALLIBLE hub_resolve_format(char dir[PATH_MAX], const char *model, const char *revision,
                            enum weight_format format, struct q_err *e);
/* The same for a program that reads no weights: config, tokenizer and template. */
FALLIBLE hub_resolve_files(char dir[PATH_MAX], const char *model, const char *revision,
                           struct q_err *e);

struct options;
/* For a program that starts others which need MODEL and --tokenizer: download what is not in the
 * cache, with progress on its own standard error. What else is wrong with them is left to those
 * programs. Errors: those of hub_download. */
FALLIBLE hub_prepare(const struct options *o, struct q_err *e);

/* Find a tokenizer. `what`: a folder or a file, used unchanged (no config.json required), or a
 * model id as above. path: [PATH_MAX] out. Errors: those of hub_resolve, Q_TOO_LARGE. */
FALLIBLE hub_find_tokenizer(char path[PATH_MAX], const char *what, const char *revision,
                            struct q_err *e);

/* Resolve --tokenizer and --tokenizer-revision: a folder, a file, or a model id as above; empty:
 * the model's own folder. path: [PATH_MAX] out. Errors: those of hub_resolve. */
FALLIBLE hub_resolve_tokenizer(char path[PATH_MAX], const char *tokenizer, const char *revision,
                               const char *model_dir, struct q_err *e);

/* Find a LoRA adapter. what: a folder, used unchanged (its files are not looked at), or an id
 * "org/name": its snapshot in the cache, to which its two files are downloaded first if they are not
 * there and `download`. dir: [PATH_MAX] out. Errors: those of hub_resolve, Q_TOO_LARGE. */
FALLIBLE hub_find_adapter(char dir[PATH_MAX], const char *what, bool download, struct q_err *e);

/* Can a file of this name be the tokenizer, or contain its settings? (tokenizer_files.def) */
bool hub_is_tokenizer_file(const char *name);

/* SHA-256 over the data that must be equal for a frontend and an engine: the values of config.json
 * and the bytes of every tokenizer file of the folder (tokenizer_files.def), or a GGUF file's
 * metadata. Weights are not
 * included.
 * Errors: Q_IO, Q_NOT_FOUND. */
FALLIBLE hub_digest(unsigned char digest[32], const char *dir, struct q_err *e);

#endif
