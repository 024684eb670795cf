/* SPDX-License-Identifier: Apache-2.0 */
/* speculate - draft tokens for speculative decoding.
 *
 * A draft token is one token per position, never a distribution: n-gram lookup copies the tokens
 * that followed the same words earlier in the sequence, a draft model (draft.h) proposes its most
 * likely token. The step then computes the rows of all draft tokens at once and samples after each
 * as if the draft tokens before it were the sequence; sampling is a pure function of (logits,
 * parameters, history, seed, position), so a row whose draft tokens were accepted gives the very
 * token that would have come without speculation, at any temperature. That is rejection sampling
 * (Leviathan et al., arXiv 2211.17192) for a proposal of all mass on one token: accepted with
 * probability p(draft token), and otherwise a draw from p without it. So speculation changes how
 * many steps are taken, and no token. Threads: reentrant. */
#ifndef QUIRE_ENGINE_WORKER_SPECULATE_H
#define QUIRE_ENGINE_WORKER_SPECULATE_H
#include "engine/worker/ring.h"

/* The tokens after the last earlier occurrence of the longest suffix of n_min … n_max tokens.
 * draft tokens: room for n_draft_token_max. Returns their number. O(n_known * n_max) at worst. */
uint32_t speculate_ngram(uint32_t *draft_tokens, uint32_t n_draft_token_max,
                         const uint32_t *history, uint32_t n_known, const struct speculation *c);

#endif
