/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors - the tensors of a model folder by name, single file or sharded, mapped read-only.
 *
 * File: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data.
 * Checked at open: header within the file, offsets in order, no overlap, no hole past the end,
 * shape * dtype = bytes, no name twice. Source: safetensors README ("Format"). Threads: an open set
 * is only read. */
#ifndef QUIRE_COMMON_HUB_SAFETENSORS_H
#define QUIRE_COMMON_HUB_SAFETENSORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/dtype.h"
#include "common/err.h"
#include "common/file.h"

#define TENSOR_DIMS_MAX 8u

struct tensor {
    const char *name; /* borrowed from the set */
    const char *file; /* path, for messages; borrowed from the set */
    enum dtype dtype;
    uint32_t n_dim;
    uint64_t shape[TENSOR_DIMS_MAX];
    const void *data; /* into the mapping; aligned to nothing in particular */
    uint64_t n_bytes;
};

struct tensor_set;
/* Opens dir/model.safetensors, or the shards of dir/model.safetensors.index.json (every shard named
 * must exist and hold what the index says). Errors: Q_NOT_FOUND (says what was looked for; names
 * pytorch_model.bin when that is what is there), Q_CORRUPT (file, tensor, reason). */
FALLIBLE tensor_set_open(struct tensor_set **out, const char *dir, struct q_err *e);
/* One file given by path (tests, adapters). */
FALLIBLE tensor_set_open_file(struct tensor_set **out, const char *path, struct q_err *e);
void tensor_set_free(struct tensor_set *s);
/* Everything needed often has been copied: let the mapped pages go from this process (they come
 * back from the page cache when touched). Keeps the resident size honest after a load. */
void tensor_set_drop_pages(const struct tensor_set *s);
/* The same for some bytes of a tensor's data; and ask for them before they are read, all at once.
 * Pages that reach beyond the bytes stay. */
void tensor_drop(const void *data, size_t n);
void tensor_want(const void *data, size_t n);
/* The files, by number below tensor_set_n_file, as they were when mapped; and are they still so? */
uint32_t tensor_set_n_file(const struct tensor_set *s);
const struct file_stamp *tensor_set_stamp(const struct tensor_set *s, uint32_t i);
bool tensor_set_unchanged(const struct tensor_set *s);
/* NULL = no such tensor. */
const struct tensor *tensor_find(const struct tensor_set *s, const char *name);
uint32_t tensor_count(const struct tensor_set *s);
const struct tensor *tensor_at(const struct tensor_set *s, uint32_t i);

#endif
