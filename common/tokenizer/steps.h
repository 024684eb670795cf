/* SPDX-License-Identifier: Apache-2.0 */
/* steps - counts the steps of encoding, so that a test can tell linear from quadratic time without
 * a clock.
 *
 * In builds with tests every loop whose length depends on the text adds its rounds to a counter of
 * the thread; in other builds TOK_STEPS is empty. Steps of a pattern are counted if it was
 * compiled while tok_steps_patterns was set (which makes it slower), as the distance that matching
 * moves in the text, back and forth. Threads: each has its own counter. */
#ifndef QUIRE_COMMON_TOKENIZER_STEPS_H
#define QUIRE_COMMON_TOKENIZER_STEPS_H

#ifdef QUIRE_TOK_STEPS
#include <stdbool.h>
#include <stdint.h>
extern _Thread_local uint64_t tok_steps;
extern bool tok_steps_patterns;
#define TOK_STEPS(n) (tok_steps += (uint64_t)(n))
#else
#define TOK_STEPS(n) ((void)0)
#endif

#endif
