/* SPDX-License-Identifier: Apache-2.0 */
/* params_sampling - the sampling parameters of a request, from its checked fields and the model's
 * defaults. Threads: as params.h. */
#ifndef QUIRE_FRONTEND_API_PARAMS_SAMPLING_H
#define QUIRE_FRONTEND_API_PARAMS_SAMPLING_H
#include "frontend/api/params.h"

/* The sampling parameters of the request; max_tokens is 0 if the request does not set it (the
 * length of the prompt decides). `ids` must live as long as *s. */
FALLIBLE params_sampling(struct params *p, const struct params_context *c, struct sample_params *s,
                         struct params_ids *ids, struct q_err *e);
/* Stop strings: `stop` as a list; borrowed. */
#define PARAMS_STOPS_MAX 16
FALLIBLE params_stops(struct params *p, const char *stops[PARAMS_STOPS_MAX], uint32_t *n,
                      struct q_err *e);

#endif
