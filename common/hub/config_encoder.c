/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders with learned positions. RoBERTa numbers positions from behind its padding token on, so
 * that the first rows of the table stand for no position. */
#include <string.h>
#include "common/hub/config_internal.h"

static const struct encoder {
    const char *model_type;
    uint32_t n_type; /* type_vocab_size when absent; 0: there are no token types */
    uint32_t first;  /* the row of position 0 */
} encoders[] = {
    // clang-format off
    {"bert",        2, 0},
    {"distilbert",  0, 0},
    {"roberta",     2, 2},
    {"xlm_roberta", 2, 2},
    // clang-format on
};

static enum q_code check_positions(const struct hub_json_at *at, struct q_err *e)
{
    const char *kind = "absolute";
    enum q_code rc = hub_json_str(&kind, at, "position_embedding_type", e);
    if (!rc && strcmp(kind, "absolute") != 0)
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: position_embedding_type \"%.40s\" is not supported, expected absolute",
                    at->path, kind);
    return rc;
}

static enum q_code skip_padding(struct model_config *c, const struct encoder *row,
                                const struct hub_json_at *at, struct q_err *e)
{
    int64_t pad = (int64_t)row->first - 1;
    enum q_code rc =
        hub_json_int(&pad, at, "pad_token_id", (struct hub_json_range){0, UINT32_MAX}, e);
    if (rc)
        return rc;
    if (pad + 1 != row->first)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: pad_token_id %lld is not supported for model_type \"%s\", expected %u: "
                      "positions are numbered from behind it on",
                      at->path, (long long)pad, c->model_type, row->first - 1);
    if (c->max_position <= row->first)
        return q_fail(e, Q_CORRUPT,
                      "%s: max_position_embeddings is %u, expected more than the %u rows that "
                      "stand for no position",
                      at->path, c->max_position, row->first);
    c->max_position -= row->first;
    return Q_OK;
}

enum q_code config_encoder_load(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct encoder *row = encoders, *end = encoders + sizeof encoders / sizeof *encoders;
    enum q_code rc;
    while (row < end && strcmp(row->model_type, c->model_type) != 0)
        row++;
    if (row == end)
        return Q_OK;
    int64_t n_type = row->n_type;
    if ((rc = check_positions(at, e)) ||
        (row->n_type && (rc = hub_json_int(&n_type, at, "type_vocab_size",
                                           (struct hub_json_range){1, 1u << 16}, e))))
        return rc;
    c->n_type = (uint32_t)n_type;
    return row->first ? skip_padding(c, row, at, e) : Q_OK;
}
