/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_config - a GGUF file's metadata as a config.json.
 *
 * Its keys are renamed by tables (gguf_config.c) and the rest of config.h reads the result. What
 * the metadata does not say is taken from the tensors: the vocabulary's size, tied embeddings,
 * biases, norms of q and k, factors of the rope. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_GGUF_CONFIG_H
#define QUIRE_COMMON_HUB_GGUF_CONFIG_H
#include <jansson.h>
#include "common/buf.h"
#include "common/gguf/gguf.h"

/* A new reference to config.json's object. Errors: Q_UNSUPPORTED (an architecture or a setting, by
 * name, with what is accepted), Q_CORRUPT (file, key, found, expected), Q_NO_MEMORY. */
FALLIBLE gguf_to_config(json_t **out, const struct gguf *g, struct q_err *e);
/* The same as text, of the file at `path`. Errors: also those of gguf_file_open. */
FALLIBLE gguf_config_text(struct buf *out, const char *path, struct q_err *e);
/* "llama, qwen2, …": values of general.architecture that are served. */
void gguf_config_names(struct buf *out);

#endif
