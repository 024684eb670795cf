/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors - the tensors of a model folder by name, single file or sharded, mapped read-only:
 * of safetensors files, or of files that torch.save wrote (torch_file.h).
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
#include "common/err.h"
#include "common/file.h"
#include "common/hub/tensor.h"
#include "common/hub/weight_files.h"
#include "common/mem.h"

struct tensor_set;
/* Opens the weights of a folder (weight_files.h): one file, or the shards of an index (every listed
 * shard must exist and contain the listed tensors). Errors: Q_NOT_FOUND (with the names searched,
 * and what is there instead), Q_CORRUPT (file, tensor, reason), Q_UNSUPPORTED (torch_file.h). */
FALLIBLE tensor_set_open(struct tensor_set **out, const char *dir, struct q_err *e);
/* The same of one format alone. */
FALLIBLE tensor_set_open_as(struct tensor_set **out, const char *dir, enum weight_format format,
                            struct q_err *e);
/* One file given by path (tests, adapters): of torch.save where the name ends in .bin, else
 * safetensors. */
FALLIBLE tensor_set_open_file(struct tensor_set **out, const char *path, struct q_err *e);
/* Other names for the same data: items [n] are tensors of the set, or rows of them, whose names are
 * copied. Errors: Q_CORRUPT (two of one name), Q_NO_MEMORY. */
FALLIBLE tensor_set_replace(struct tensor_set *s, const struct tensor *items, size_t n,
                            struct q_err *e);
void tensor_set_free(struct tensor_set *s);
/* The format of its files, and the name of the one that was found (an index, or the weights). */
enum weight_format tensor_set_format(const struct tensor_set *s);
const char *tensor_set_found(const struct tensor_set *s);
/* Release the mapped pages of this process after a load, when all data in frequent use has been
 * copied; later accesses read them from the page cache again. Otherwise the resident size includes
 * the files. */
void tensor_set_drop_pages(const struct tensor_set *s);
/* The same for some bytes of a tensor's data; and prefetch them all at once. Pages that extend
 * beyond the bytes are kept. */
void tensor_drop(const void *data, size_t n);
void tensor_want(const void *data, size_t n);
/* The stamps of the files when they were mapped, by number below tensor_set_n_file; and: are the
 * files unchanged? */
uint32_t tensor_set_n_file(const struct tensor_set *s);
const struct file_stamp *tensor_set_stamp(const struct tensor_set *s, uint32_t i);
bool tensor_set_unchanged(const struct tensor_set *s);
/* The header of a safetensors file that is not mapped, because others may cut it meanwhile: where
 * its tensors are. Their `data` are not there. Errors: as tensor_set_open_file, Q_IO.
 * Ownership: safetensors_head_release. */
struct safetensors_head {
    struct tensor_list list;
    struct arena names;
    unsigned char *bytes;
};
/* clang-format off */
#define SAFETENSORS_HEAD_INIT {.names = ARENA_INIT((size_t)1 << 28)}
/* clang-format on */
FALLIBLE safetensors_head_read(struct safetensors_head *h, const struct file_open *f, uint64_t size,
                               struct q_err *e);
uint64_t safetensors_head_offset(const struct safetensors_head *h, const struct tensor *t);
void safetensors_head_release(struct safetensors_head *h);
/* NULL = no such tensor. */
const struct tensor *tensor_find(const struct tensor_set *s, const char *name);
uint32_t tensor_count(const struct tensor_set *s);
const struct tensor *tensor_at(const struct tensor_set *s, uint32_t i);

#endif
