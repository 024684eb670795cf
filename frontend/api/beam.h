/* SPDX-License-Identifier: Apache-2.0 */
/* beam - beam search over an engine that only samples: the n best continuations of a prompt.
 *
 * Each step requests from the engine, for every beam, one token with its 2n best alternatives and
 * their logprobs; of all n * 2n continuations those that end the text are set aside, and the n best
 * others are the next beams. A step's prompts are the previous ones plus a token, so the prefix
 * cache has all blocks but the last. The method and the score are vLLM's:
 *
 *     score = (sum of logprobs) / (tokens of prompt and answer without an eos) ^ length_penalty
 *
 * Masks, bias and penalties of the request apply before the logprobs; a stop string ends an answer
 * like an eos, but its tokens count. There is no random draw, so the answer is a function of the
 * prompt and independent of temperature and seed. Ties go to the better parent, then to the more
 * likely token. Threads: the loop's thread. */
#ifndef QUIRE_FRONTEND_API_BEAM_H
#define QUIRE_FRONTEND_API_BEAM_H
#include "frontend/api/beam_tree.h"
#include "frontend/link/link.h"

struct job;
struct prompt;
struct beam_search;

/* Start for choices first … first + n - 1 of the job, which get their tokens at the end of the
 * search; on an error the job fails. Errors: Q_NO_MEMORY, Q_NO_SPACE. */
FALLIBLE beam_search_new(struct beam_search **out, struct job *j, uint32_t first, struct q_err *e);
void beam_search_stop(struct beam_search *b); /* close its generations; NULL is accepted */
void beam_search_free(struct beam_search *b);

#endif
