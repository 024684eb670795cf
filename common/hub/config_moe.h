/* SPDX-License-Identifier: Apache-2.0 */
/* config_moe - what config.json says about experts: how many there are, how many of them a token
 * uses, and which layers have them. Which keys say so, and what their absence means, depends on the
 * model type; a type that is not in the table has no experts. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_CONFIG_MOE_H
#define QUIRE_COMMON_HUB_CONFIG_MOE_H
#include "common/hub/config.h"
#include "common/hub/hub_json.h"

/* Fills c->moe from c->model_type, c->n_layer, c->intermediate_size and the object. Errors:
 * Q_CORRUPT (file, key, found, accepted). */
FALLIBLE config_moe_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e);

#endif
