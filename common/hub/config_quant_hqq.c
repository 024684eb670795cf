/* SPDX-License-Identifier: Apache-2.0 */
/* HQQ as transformers' HqqConfig writes it:
 *
 *     "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1, …}, …}
 *     "quant_config": {"self_attn.q_proj": {"weight_quant_params": {…}}, "mlp.down_proj": …}
 *
 * Bits and groups of a matrix are in the shapes of its tensors; here they are checked, so that what
 * is not supported is refused before any tensor is looked at. */
#include <string.h>
#include "common/hub/config_quant_internal.h"

static const char params_key[] = "weight_quant_params";
static const struct quant_bits hqq_bits = {
    "nbits", 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8, "2, 3, 4, 5, 6 or 8"};

static enum q_code refuse(const struct hub_json_at *at, const char *what, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: hqq with %s is not supported, expected nbits 2, 3, 4 or 8, axis 1, "
                  "channel_wise, view_as_float false; " COULD_USE,
                  at->path, what);
}

/* The most bits of any matrix. */
static enum q_code load_params(struct quant_config *q, const struct hub_json_at *of,
                               struct q_err *e)
{
    const struct hub_json_at at = {hub_json_find(of, params_key), of->path};
    struct quant_config one = {0};
    int64_t axis = 1;
    bool by_channel = true, is_viewed = false;
    enum q_code rc;
    if (!json_is_object(at.object))
        return q_fail(e, Q_CORRUPT, "%s: hqq's %s is %s, expected an object", at.path, params_key,
                      hub_json_kind(at.object));
    if (json_is_real(hub_json_find(&at, "nbits"))) /* 1.58 */
        return refuse(&at, "nbits that is no whole number", e);
    if ((rc = config_quant_bits(&one, &at, &hqq_bits, e)) ||
        (rc = hub_json_int(&axis, &at, "axis", (struct hub_json_range){0, 1}, e)) ||
        (rc = hub_json_bool(&by_channel, &at, "channel_wise", e)) ||
        (rc = hub_json_bool(&is_viewed, &at, "view_as_float", e)))
        return rc;
    if (axis != 1)
        return refuse(&at, "axis 0", e);
    if (!by_channel)
        return refuse(&at, "one scale for a whole matrix", e);
    if (is_viewed)
        return refuse(&at, "view_as_float", e);
    q->bits = one.bits > q->bits ? one.bits : q->bits;
    return Q_OK;
}

enum q_code config_quant_hqq(struct quant_config *q, const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_at all = {hub_json_find(at, "quant_config"), at->path};
    json_t *one;
    const char *name;
    enum q_code rc = Q_OK;
    *q = (struct quant_config){.method = QUANT_HQQ};
    if (!json_is_object(all.object) || json_object_size(all.object) == 0)
        return q_fail(e, Q_CORRUPT, "%s: hqq's quant_config is %s, expected an object", at->path,
                      hub_json_kind(all.object));
    if (hub_json_find(&all, params_key))
        return load_params(q, &all, e);
    json_object_foreach ((json_t *)(uintptr_t)all.object, name, one) {
        const struct hub_json_at of = {one, at->path};
        if (!json_is_object(one))
            return q_fail(e, Q_CORRUPT, "%s: hqq's quant_config.%.40s is %s, expected an object",
                          at->path, name, hub_json_kind(one));
        if ((rc = load_params(q, &of, e)))
            return rc;
    }
    return Q_OK;
}
