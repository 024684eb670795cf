/* SPDX-License-Identifier: Apache-2.0 */
/* config_internal - declarations shared by the files of config only: the parts of config.json with
 * a separate file. Threads: reentrant.
 *
 * config_moe.c: how many experts there are, how many of them a token uses, and which layers have
 * them. The keys and the meaning of their absence depend on the model type; a type that is not in
 * its table has no experts.
 * config_forward.c: what some families compute besides, in their spelling (config_forward.def).
 * config_layers.c: which layers have a window, and which rope.
 * config_kinds.c: layers with other heads, K and V that layers share, inputs of each layer.
 * config_streams.c: several residual streams, low-rank branches, sparse gates.
 * config_mixers.c: which layers have something else in place of attention or beside it, its sizes
 *     and multipliers; which have no MLP.
 * config_rope.c: the rotary embedding, in both spellings:
 *     older   "rope_theta": 1e6, "rope_scaling": null | {"type" or "rope_type": "yarn", …}
 *     newer   "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4, …} */
#ifndef QUIRE_COMMON_HUB_CONFIG_INTERNAL_H
#define QUIRE_COMMON_HUB_CONFIG_INTERNAL_H
#include "common/hub/config.h"
#include "common/hub/hub_json.h"

/* Fills c->moe from c->model_type, c->n_layer, c->intermediate_size and the object. Errors:
 * Q_CORRUPT (file, key, found, accepted). */
FALLIBLE config_moe_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->window and c->no_rope. c->model_type and c->n_layer are set. Errors: Q_CORRUPT,
 * Q_UNSUPPORTED (a kind of layer). */
FALLIBLE config_layers_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->rope and c->local_rope from c's sizes and the object. Errors: Q_CORRUPT, Q_UNSUPPORTED
 * (a kind that is not in enum rope_kind, with the kinds that are). */
FALLIBLE config_rope_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->forward and the settings whose keys differ between families: activation, eps, biases,
 * tied embeddings. c->model_type and c->head_dim are set. Errors: Q_CORRUPT, Q_UNSUPPORTED. */
/* Fills what only encoders have: c->n_type, and c->max_position where rows of the table of
 * positions are reserved. The sizes are set. Errors: Q_CORRUPT, Q_UNSUPPORTED. */
FALLIBLE config_encoder_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->latent and c->head_dim of the model types that have latent attention. Errors: Q_CORRUPT,
 * Q_UNSUPPORTED. */
FALLIBLE config_latent_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->mixer, and c->intermediate_size where it is computed from another number; before
 * config_layers_load. The sizes are set. Errors: Q_CORRUPT, Q_UNSUPPORTED (a kind of layer). */
FALLIBLE config_mixers_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->layers of the model types that have such; behind config_layers_load. Errors: Q_CORRUPT,
 * Q_UNSUPPORTED. */
FALLIBLE config_kinds_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
/* Fills c->streams of the model types that have several. The sizes are set. Errors: Q_CORRUPT,
 * Q_UNSUPPORTED. */
FALLIBLE config_streams_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);
FALLIBLE config_forward_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);

#endif
