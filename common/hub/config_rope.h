/* SPDX-License-Identifier: Apache-2.0 */
/* config_rope - the rotary embedding's part of config.json, in both spellings:
 *
 *     older   "rope_theta": 1e6, "rope_scaling": null | {"type" or "rope_type": "yarn", "factor":
 * 4, …} newer   "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4, …}
 *
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_CONFIG_ROPE_H
#define QUIRE_COMMON_HUB_CONFIG_ROPE_H
#include "common/hub/config.h"
#include "common/hub/hub_json.h"

/* Errors: Q_CORRUPT, Q_UNSUPPORTED (a kind that is not in enum rope_kind, with the kinds that are).
 */
FALLIBLE config_rope_load(struct rope_config *r, const struct hub_json_at *config, struct q_err *e);

#endif
