/* SPDX-License-Identifier: Apache-2.0 */
/* picture - a stand-in for a decoder: each token a square of its own colour. It shows that
 * something moves, and where; to see frames, decode the tokens by the image tokenizer that made
 * them. A row of the picture is a rollout, its frames from left to right. Threads: one. */
#ifndef TERRA_PICTURE_H
#define TERRA_PICTURE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "output.h"

/* Patches of a frame side by side: `columns`, or when it is 0 as near to a square as n_patch can be
 * divided. 0: it does not divide them. */
uint32_t picture_columns(uint32_t n_patch, uint32_t columns);
/* tokens [n_rollout, n_frame, n_patch], written as a .ppm. columns: of picture_columns. false: why
 * says what is wrong. */
bool picture_write(const char *path, const int32_t *tokens, const size_t dims[3], uint32_t columns,
                   char why[OUTPUT_WHY_MAX]);

#endif
