/* SPDX-License-Identifier: Apache-2.0 */
/* modality - inputs of a model that are not tokens: the shape that an item of a request must have,
 * and the rows of embeddings that it becomes. Resolved from a plugin's struct quire_modality and
 * the config, or the images of a built-in model (vision/vision.h), for the engine (checks,
 * placeholders) and its worker (rows).
 *
 * In a prompt each row of an item is one placeholder id. Token ids are u32 from the wire to the
 * worker; a negative placeholder is its two's complement (-3 is 0xfffffffd), so it is never a token
 * of the vocabulary. Items stand in the order of their placeholders.
 * Threads: made by one; then only read. */
#ifndef QUIRE_ENGINE_MODEL_MODALITY_H
#define QUIRE_ENGINE_MODEL_MODALITY_H
#include "common/err.h"
#include "common/hub/config.h"
#include "engine/plugin.h"

#define MODALITIES_MAX       8u
#define MODALITY_NAME_MAX    64u
#define MODALITY_ITEMS_LIMIT 65536u     /* items of a modality in one request */
#define MODALITY_TOKENS_MAX  (1u << 20) /* rows of an item */

struct modality {
    char name[MODALITY_NAME_MAX];      /* key of multi_modal_data */
    char part_type[MODALITY_NAME_MAX]; /* of chat content parts; "": none */
    uint32_t placeholder;
    bool expand;
    enum quire_dtype dtype;
    uint32_t n_dim, dims[QUIRE_DIMS_MAX]; /* 0: any, 1 … dims_max */
    uint32_t dims_max[QUIRE_DIMS_MAX];
    uint32_t n_token;                /* rows of an item; 0: modality_count_tokens asks the plugin */
    uint32_t max_items;              /* of one request */
    const struct quire_modality *of; /* NULL: images of a built-in model */
};
struct vision;
struct modality_work; /* work memory of callbacks */
struct modalities {
    struct modality rows[MODALITIES_MAX]; /* [n] */
    uint32_t n;
    struct quire_model *model; /* for callbacks */
    struct vision *vision;     /* of a built-in model; NULL: it has none */
    const struct quire_host *host;
    struct modality_work *work; /* modalities_bind */
};

/* Of the architecture that the config names; n = 0 for one that takes tokens alone. config_dir: the
 * model folder, whose config.json the sizes are read from. images: may be NULL. Errors: Q_CORRUPT
 * (a size that is no number or out of range, with its key), Q_INVALID (a plugin's row that makes no
 * sense, with its field), those of vision_open. */
struct vision_options;
FALLIBLE modalities_open(struct modalities **out, const char *config_dir,
                         const struct vision_options *images, struct q_err *e);
void modalities_free(struct modalities *m); /* NULL is fine */
/* For modality_embed: the loaded model, which must outlive m, and work memory of as many calls at a
 * time. Makes the rows of a dummy item of each modality, the largest, of zeros, in a process of its
 * own first (plugin_try), so that what fails always fails at start. Errors: Q_UNSUPPORTED with the
 * plugin's message, Q_UNAVAILABLE (it crashes, exits or hangs), Q_NO_MEMORY. */
struct model;
FALLIBLE modalities_bind(struct modalities *m, const struct model *model, uint32_t n_thread,
                         struct q_err *e);
/* Weights that only items are made with: of images of a built-in model, by the options of its text
 * model. Again for a reload: other weights beside the old ones, of which modalities_settle keeps
 * one. Errors: those of vision_load. */
struct model_options;
FALLIBLE modalities_load(struct modalities *m, const struct model_options *o, struct q_err *e);
void modalities_settle(struct modalities *m, bool keeps_new);
/* Of modalities_bind and modalities_load. */
uint64_t modalities_work_bytes(const struct modalities *m);
/* The largest item that the modality takes: dtype, shape, bytes, rows; data NULL. */
void modality_largest(const struct modalities *m, uint32_t i_modality, struct quire_item *out);
/* "actions" -> its number; m->n: there is none. */
uint32_t modality_find(const struct modalities *m, const char *name);
/* Which modality's placeholder it is; m->n: it is a token. */
uint32_t modality_of_placeholder(const struct modalities *m, uint32_t token_id);
/* Is the item's dtype and shape one that the modality takes, does check_item accept it? Sets
 * item->n_token. Errors: Q_INVALID: "actions[3]: shape [2] is not [3]". */
FALLIBLE modality_check(const struct modalities *m, uint32_t i_modality, struct quire_item *item,
                        struct q_err *e);
size_t modality_item_bytes(const struct quire_item *item); /* of its dtype and dims */
/* An item as the engine keeps it for its worker: kept->dims and kept->n_byte, by the item's shape;
 * of images their squares, else the item's own. */
void modality_kept(const struct modalities *m, uint32_t i_modality, const struct quire_item *item,
                   struct quire_item *kept);
/* Its contents, [kept->n_byte]; those of a plugin's item are there already. The item went through
 * modality_check. Errors: Q_NO_MEMORY. */
FALLIBLE modality_keep(const struct modalities *m, uint32_t i_modality,
                       const struct quire_item *item, void *to, struct q_err *e);
/* ids: [n] of a kept item's rows from `first` on: the token that a row is, or MODALITY_ROW. */
#define MODALITY_ROW UINT32_MAX
void modality_tokens(const struct modalities *m, uint32_t i_modality, const struct quire_item *kept,
                     uint32_t first, uint32_t n, uint32_t *ids);
/* Rows of its items that a step should have at most, because each takes long; 0: no limit. */
uint32_t modality_rows_of_step(const struct modalities *m, uint32_t i_modality);
/* Is an item computed by the whole team? Then its owner calls modality_embed_part in place of
 * modality_embed, one at a time. */
static inline bool modality_is_of_team(const struct modalities *m, uint32_t i_modality)
{
    return !m->rows[i_modality].of;
}
/* The rows of a kept item, after modalities_bind; at most n_thread calls at a time. The item went
 * through modality_check. Errors: Q_INVALID with the plugin's message. */
FALLIBLE modality_embed(const struct modalities *m, uint32_t i_modality,
                        const struct quire_item *item, const struct quire_rows *out,
                        struct q_err *e);
struct modality_span { /* rows of an item */
    uint32_t first, end;
};
/* Of the team's: at least the rows `want` of a kept item but for those of tokens, into their places
 * in out, [item->n_token] rows. Returns which are there then. After modalities_load. */
struct modality_span modality_embed_part(const struct modalities *m, uint32_t i_modality,
                                         const struct quire_item *item, struct modality_span want,
                                         const struct quire_rows *out);

#endif
