/* SPDX-License-Identifier: Apache-2.0 */
/* weight_finder - the tensors of a checkpoint that a family's table asks for: found by name and
 * checked for presence, shape and type. Nothing of their data is read but scales and orders of
 * quantized matrices. Without files the same sources stand for dummy numbers.
 * Threads: pure functions of an open tensor set. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FINDER_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_FINDER_H
#include "engine/model/load/weight_source.h"

#define WEIGHT_FINDER_MODEL UINT32_MAX
/* sources: [W_COUNT]. A tensor that holds several slots is found in each of them, as a slice.
 * layer: a number, or WEIGHT_FINDER_MODEL for embedding, final norm and lm_head.
 * Errors: Q_NOT_FOUND, Q_MISMATCH (file, tensor, expected and found). */
FALLIBLE weight_finder_find(struct weight_source *sources, const struct weight_finder *f,
                            uint32_t layer, struct q_err *e);
/* The same of one expert of a layer that has experts. */
FALLIBLE weight_finder_find_expert(struct weight_source *sources, const struct weight_finder *f,
                                   struct arch_place at, struct q_err *e);
/* A plugin's tensor, of a layer where it is of one. `present` is false: it may be left out, and
 * is. */
FALLIBLE weight_finder_find_own(struct weight_source *s, const struct weight_finder *f,
                                const struct arch_own *own, uint32_t layer, struct q_err *e);
/* Rows that the table or the plugin's tensors say of a name; 0: they do not know it. */
uint32_t weight_finder_rows(const struct arch *a, const struct model_config *c, const char *name);
/* The slot that the family's table has for a name, or for what a quantized matrix of that name is
 * stored as; W_COUNT: none. */
enum arch_slot weight_finder_slot(const struct arch *a, const struct model_config *c,
                                  const char *name);
/* Are there tensors that change what a matrix reads? AutoAWQ divides activations by them where no
 * layer before the matrix can take the scales. Errors: Q_UNSUPPORTED (file, tensor, what to use
 * instead). */
FALLIBLE weight_finder_check_inputs(const struct weight_finder *f, struct q_err *e);
/* How many tensors of the files the family's table does not know; the first of them, or NULL. */
uint32_t weight_finder_unused(const struct tensor **first, const struct weight_finder *f);
/* Log one warning when there are any. */
void weight_finder_warn_unused(const struct arch *a, uint32_t n, const struct tensor *first);

#endif
