/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/vision/vision.h"
#include <string.h>
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/forward/acts.h"
#include "engine/model/forward/matmul.h"
#include "engine/model/region.h"
#include "engine/model/vision/vision_weights.h"

struct work {                          /* of a square */
    float *patches;                    /* [n_side * n_side, n_patch] */
    float *x, *y;                      /* [n_row, hidden] before and behind the layers */
    float *shuffled;                   /* [n_token, hidden * shuffle * shuffle], or NULL */
    float *inner[2];                   /* [n_token, text_size] between two products, or NULL */
    unsigned char *kern;               /* [n_thread, kern_bytes] */
    uint32_t *ids, *positions, *slots; /* [n_row] */
    uint32_t *blocks;                  /* [n_block] */
    struct region memory;
    size_t kern_bytes;
};
struct vision {
    struct vision_config *c;
    struct vision_words words;
    const struct kern_table *kern;
    struct team *team;
    uint32_t n_thread, n_block;
    struct vision_weights *w;    /* NULL: vision_load was not called */
    struct vision_weights *next; /* until vision_settle */
    struct work work;
    struct kv_cache kv;
    struct model_scratch *scratch;
};

/* ---- what the folder says ---- */

static FALLIBLE read_config(struct vision *v, const char *dir, const struct vision_options *o,
                            struct buf *why, struct q_err *e)
{
    struct model_config *text = q_alloc(sizeof *text);
    if (!text)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", dir);
    enum q_code rc = model_config_load(text, NULL, dir, e);
    if (!rc)
        rc = vision_config_load(&v->c, dir, o, text, why, e);
    if (!rc && why->len)
        log_warning("%s: images are not served: %s", text->outer, buf_str(why));
    q_free(text);
    return rc;
}

FALLIBLE vision_open(struct vision **out, const char *dir, const struct vision_options *o,
                     struct q_err *e)
{
    struct buf why = BUF_INIT;
    struct vision *v = q_calloc(1, sizeof *v);
    *out = NULL;
    if (!v)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", dir);
    enum q_code rc = read_config(v, dir, o, &why, e);
    if (!rc && v->c)
        rc = vision_words_read(&v->words, v->c, dir, e);
    if (rc == Q_UNSUPPORTED && v->c) { /* a token that is not there: the text model is served */
        log_warning("images are not served: %s", e->message);
        q_err_reset(e);
        rc = Q_OK;
    } else if (!rc && v->c) {
        *out = v;
        v = NULL;
    }
    buf_release(&why);
    vision_free(v);
    return rc;
}

static void describe(struct buf *out, const struct vision_config *c)
{
    buf_printf(out,
               "tower %s, layers %u, squares of %u x %u pixels, at most %u of an image, rows of "
               "each %u",
               c->tower->type, c->layers.n_layer, c->image_size, c->image_size,
               vision_squares_max(c), c->n_token);
}

FALLIBLE vision_describe(struct buf *out, bool *served, const char *dir,
                         const struct model_config *text, struct q_err *e)
{
    struct vision_config *c = NULL;
    const enum q_code rc = vision_config_load(&c, dir, NULL, text, out, e);
    *served = c != NULL;
    if (c)
        describe(out, c);
    else if (!rc && !out->len)
        buf_printf(out, "%s is not supported", text->outer);
    q_free(c);
    return rc;
}

uint32_t vision_placeholder(const struct vision *v)
{
    return v->c->placeholder;
}

/* ---- sizes and rows ---- */

FALLIBLE vision_check(struct vision_size image, struct q_err *e)
{
    const uint64_t h = image.height, w = image.width;
    if (h > w * VISION_RATIO_MAX || w > h * VISION_RATIO_MAX)
        return q_fail(e, Q_INVALID,
                      "%u x %u pixels: one side is more than %u times as long as the other",
                      image.width, image.height, VISION_RATIO_MAX);
    return Q_OK;
}

struct vision_size vision_kept_size(const struct vision *v, struct vision_size image)
{
    return vision_kept(v->c, image);
}

static uint32_t rows_of(const struct vision *v, struct vision_grid g)
{
    struct vision_layout l;
    vision_layout(&l, v->c, &v->words, g);
    return l.n_row;
}

uint32_t vision_rows(const struct vision *v, struct vision_size image)
{
    return rows_of(v, vision_grid_of(v->c, vision_kept(v->c, image)));
}

uint32_t vision_rows_max(const struct vision *v)
{
    if (v->c->model->cut == VISION_CUT_GRID)
        return vision_squares_max(v->c) * v->c->n_token + 2;
    return vision_rows(v,
                       (struct vision_size){1, 1}); /* no image has more tiles than a square one */
}

uint32_t vision_rows_of_square(const struct vision *v)
{
    return v->c->n_token + 2;
}

FALLIBLE vision_keep_image(const struct vision *v, unsigned char *to, const unsigned char *rgb,
                           struct vision_size image, struct q_err *e)
{
    return vision_keep(to, v->c, rgb, image, e);
}

void vision_tokens(const struct vision *v, struct vision_size kept, uint32_t first, uint32_t n,
                   uint32_t *ids)
{
    struct vision_layout l;
    uint32_t row = 0;
    vision_layout(&l, v->c, &v->words, vision_grid_of(v->c, kept));
    for (uint32_t i = 0; i < l.n; i++) {
        const struct vision_run *r = &l.runs[i];
        for (const uint32_t end = row + (r->token == VISION_ROWS ? v->c->n_token : 1); row < end;
             row++)
            if (row >= first && row - first < n)
                ids[row - first] = r->token;
    }
}

/* ---- weights ---- */

static void cut_work(struct work *w, struct region_cutter *c, const struct vision *v)
{
    const struct vision_config *f = v->c;
    const size_t hidden = f->layers.hidden_size, n_row = f->n_row, f32 = sizeof(float);
    const bool is_mlp = f->model->projector != VISION_SHUFFLE;
    w->patches = region_cut(c, (size_t)f->n_side * f->n_side * f->n_patch, f32);
    w->x = region_cut(c, n_row * hidden, f32);
    w->y = region_cut(c, n_row * hidden, f32);
    w->shuffled =
        f->shuffle > 1 ? region_cut(c, f->n_token * hidden * f->shuffle * f->shuffle, f32) : NULL;
    for (size_t i = 0; i < 2; i++)
        w->inner[i] = is_mlp ? region_cut(c, (size_t)f->n_token * f->text_size, f32) : NULL;
    w->kern = region_cut(c, v->n_thread, w->kern_bytes);
    w->ids = region_cut(c, n_row, sizeof *w->ids);
    w->positions = region_cut(c, n_row, sizeof *w->positions);
    w->slots = region_cut(c, n_row, sizeof *w->slots);
    w->blocks = region_cut(c, v->n_block, sizeof *w->blocks);
}

static FALLIBLE make_work(struct vision *v, struct q_err *e)
{
    struct work *w = &v->work;
    struct region_cutter c = {0};
    const struct model_config *l = &v->c->layers;
    v->n_block = (v->c->n_row + KERN_BLOCK - 1) / KERN_BLOCK;
    w->kern_bytes = (kern_scratch_bytes(KERN_BLOCK, l->n_head, l->head_dim) + REGION_ALIGN - 1) /
                    REGION_ALIGN * REGION_ALIGN;
    cut_work(w, &c, v);
    const enum q_code rc = region_init(&w->memory, c.used, "work memory of images", e);
    if (rc)
        return rc;
    c = (struct region_cutter){.base = w->memory.data};
    cut_work(w, &c, v);
    for (uint32_t i = 0; i < v->c->n_row; i++)
        w->positions[i] = w->slots[i] = i;
    for (uint32_t i = 0; i < v->n_block; i++)
        w->blocks[i] = i;
    return Q_OK;
}

/* Nobody needs the K and V of a layer behind it, so all layers have the same memory: between two
 * that write there is the product behind attention, which waits for all threads. */
static FALLIBLE make_kv(struct vision *v, struct q_err *e)
{
    const enum q_code rc = kv_cache_init(&v->kv, v->w->layers, v->n_block, e);
    for (uint32_t i = 1; i < v->kv.n_layer && !rc; i++) {
        v->kv.k[i] = v->kv.k[0];
        v->kv.v[i] = v->kv.v[0];
    }
    return rc;
}

FALLIBLE vision_load(struct vision *v, const struct model_options *o, struct q_err *e)
{
    struct vision_weights *w = NULL;
    enum q_code rc = vision_weights_load(&w, v->c, o, e);
    if (rc)
        return q_wrap(e, "images (--language-model-only serves the text model without them)");
    if (v->w) {
        v->next = w;
        return Q_OK;
    }
    v->w = w;
    v->kern = o->kern;
    v->team = o->team;
    v->n_thread = o->team ? team_size(o->team) : 1;
    if ((rc = make_work(v, e)) || (rc = make_kv(v, e)))
        return rc;
    if ((rc = model_scratch_new(&v->scratch, v->w->layers, v->c->n_row, v->n_thread, e)))
        return rc;
    struct buf text = BUF_INIT;
    describe(&text, v->c);
    log_info("images: %s; %.1f MiB", buf_str(&text), (double)vision_bytes(v) / (1 << 20));
    buf_release(&text);
    return Q_OK;
}

void vision_settle(struct vision *v, bool keeps_new)
{
    if (!v->next)
        return;
    vision_weights_free(keeps_new ? v->w : v->next);
    v->w = keeps_new ? v->next : v->w;
    v->next = NULL;
}

uint64_t vision_bytes(const struct vision *v)
{
    if (!v->w)
        return 0;
    return vision_weights_bytes(v->w) + v->work.memory.size +
           2 * (uint64_t)v->n_block * v->kv.block_bytes[0] +
           model_scratch_bytes(v->w->layers, v->c->n_row, v->n_thread);
}

void vision_free(struct vision *v)
{
    if (!v)
        return;
    model_scratch_free(v->scratch);
    kv_cache_release(&v->kv);
    region_release(&v->work.memory);
    vision_weights_free(v->w);
    vision_weights_free(v->next);
    q_free(v->c);
    q_free(v);
}

/* ---- a square ---- */

struct square {
    struct vision *v;
    struct vision_patches from;
    float *out; /* [n_token, text_size] */
    size_t stride;
};
struct square_run { /* what a thread does of it */
    const struct square *s;
    const struct vision *v;
    struct team *team; /* NULL: alone */
    struct kern_exec x;
};

struct rows {
    uint32_t at, n;
};

static struct rows share(const struct square_run *p, uint32_t n)
{
    const uint32_t at = (uint32_t)((uint64_t)n * p->x.ith / p->x.nth);
    return (struct rows){at, (uint32_t)((uint64_t)n * (p->x.ith + 1) / p->x.nth) - at};
}

static void meet(const struct square_run *p)
{
    team_barrier(p->team);
}

struct product {
    const struct packed *w;
    const float *bias, *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
    uint32_t n_row;
};

static void multiply(const struct square_run *p, const struct product *m)
{
    const struct matmul_rows x = {
        .x = (void *)(uintptr_t)m->x,
        .stride = m->x_stride,
        .dtype = DT_F32,
    };
    const struct matmul a = {
        .w = m->w,
        .bias = m->bias,
        .x = &x,
        .y = m->y,
        .y_dtype = DT_F32,
        .y_stride = m->y_stride,
        .n_row = m->n_row,
    };
    matmul_run(p->v->kern, &a, &p->x);
}

struct row_norm {
    const float *const *weight_bias; /* [2]; NULL in it: none */
    uint32_t n_col;
    double eps;
};

static void normalize(const struct square_run *p, float *rows, struct rows r, struct row_norm how)
{
    const uint32_t n = how.n_col;
    const struct layer_norm_args a = {
        .y = rows + (size_t)r.at * n,
        .y_dtype = DT_F32,
        .x = rows + (size_t)r.at * n,
        .w = how.weight_bias[0],
        .b = how.weight_bias[1],
        .n_row = r.n,
        .n_col = n,
        .x_stride = n,
        .y_stride = n,
        .eps = (float)how.eps,
    };
    const struct kern_exec alone = {
        .nth = 1,
        .scratch = p->x.scratch,
        .scratch_bytes = p->x.scratch_bytes,
    };
    if (how.weight_bias[0] && r.n)
        p->v->kern->layer_norm(&a, &alone);
}

/* Patches to the first layer's rows. */
static void embed_patches(const struct square_run *p)
{
    const struct vision_config *c = p->v->c;
    const struct vision_weights *w = p->v->w;
    const struct work *to = &p->v->work;
    const uint32_t n = c->n_side * c->n_side, hidden = c->layers.hidden_size;
    const struct rows mine = share(p, n), all = share(p, c->n_row);
    struct vision_patches from = p->s->from;
    from.first = mine.at;
    from.n = mine.n;
    vision_patches(to->patches + (size_t)mine.at * c->n_patch, c, &from);
    meet(p);
    multiply(p, &(struct product){
                    .w = &w->patch,
                    .bias = w->patch_bias,
                    .x = to->patches,
                    .x_stride = c->n_patch,
                    .y = to->x + (c->tower->class_row ? hidden : 0),
                    .y_stride = hidden,
                    .n_row = n,
                });
    if (c->tower->class_row && p->x.ith == 0)
        memcpy(to->x, w->class_row, hidden * sizeof *to->x);
    meet(p);
    for (size_t i = (size_t)all.at * hidden; i < (size_t)(all.at + all.n) * hidden; i++)
        to->x[i] += w->positions[i];
    normalize(p, to->x, all, (struct row_norm){w->first_norm, hidden, c->layers.rms_norm_eps});
    meet(p);
}

static void run_layers(const struct square_run *p)
{
    struct vision *v = p->s->v;
    const struct work *w = &v->work;
    const uint32_t n = v->c->n_row;
    const struct attention_seq seq = {.blocks = w->blocks, .n_query = n};
    const struct batch b = {
        .token_ids = w->ids,
        .positions = w->positions,
        .slot_mapping = w->slots,
        .seqs = &seq,
        .n_token = n,
        .n_seq = 1,
        .any_row = true,
        .context_max = n,
        .n_prompts = &n,
        .stream_in = w->x,
        .stream_out = w->y,
    };
    model_forward(v->w->layers, &b, &v->kv, v->scratch, NULL, p->team, p->x.ith, p->x.nth);
    meet(p);
    const struct model_config *l = &v->c->layers;
    normalize(p, w->y, share(p, n),
              (struct row_norm){v->w->last_norm, l->hidden_size, l->rms_norm_eps});
}

/* Squares of patches become rows: patch (dy, dx) of a square is columns from (dy * shuffle + dx) *
 * hidden on. The norm behind it has torch's eps. */
static void shuffle(const struct square_run *p)
{
    const struct vision_config *c = p->v->c;
    const size_t hidden = c->layers.hidden_size;
    const uint32_t s = c->shuffle, n = c->n_side / s;
    const struct rows mine = share(p, n * n);
    const float *from = p->v->work.y + (c->tower->class_row ? hidden : 0);
    float *to = p->v->work.shuffled + mine.at * hidden * s * s;
    meet(p);
    for (uint32_t i = mine.at; i < mine.at + mine.n; i++)
        for (uint32_t dy = 0; dy < s; dy++) {
            const size_t at = (size_t)(i / n * s + dy) * c->n_side + i % n * s;
            memcpy(to, from + at * hidden, s * hidden * sizeof *to);
            to += s * hidden;
        }
    normalize(p, p->v->work.shuffled, mine,
              (struct row_norm){p->v->w->shuffled_norm, (uint32_t)hidden * s * s, 1e-5});
}

static void activate(const struct square_run *p)
{
    const struct vision_config *c = p->v->c;
    const struct rows mine = share(p, c->n_token);
    enum arch_activation act = ARCH_GELU;
    const bool known = arch_activation_parse(&act, c->projector_act);
    Q_ASSERT(known); /* vision_config_load */
    const struct activate_args a = {
        .act = act_of(act),
        .y = p->v->work.inner[1] + (size_t)mine.at * c->text_size,
        .y_dtype = DT_F32,
        .x = p->v->work.inner[0] + (size_t)mine.at * c->text_size,
        .n_row = mine.n,
        .n_col = c->text_size,
        .x_stride = c->text_size,
        .y_stride = c->text_size,
    };
    if (mine.n)
        p->v->kern->activate(&a, &(struct kern_exec){.nth = 1});
}

static void project(const struct square_run *p)
{
    const struct vision_config *c = p->v->c;
    const struct vision_weights *w = p->v->w;
    const struct work *from = &p->v->work;
    const size_t hidden = c->layers.hidden_size;
    const bool drops_class = c->tower->class_row && !c->keeps_class;
    struct product m = {
        .w = &w->project[0],
        .bias = w->project_bias[0],
        .x = c->shuffle > 1 ? from->shuffled : from->y + (drops_class ? hidden : 0),
        .x_stride = hidden * c->shuffle * c->shuffle,
        .y = from->inner[0] ? from->inner[0] : p->s->out,
        .y_stride = from->inner[0] ? c->text_size : p->s->stride,
        .n_row = c->n_token,
    };
    if (c->shuffle > 1)
        shuffle(p);
    meet(p);
    multiply(p, &m);
    if (!from->inner[0])
        return;
    meet(p);
    activate(p);
    meet(p);
    m = (struct product){
        .w = &w->project[1],
        .bias = w->project_bias[1],
        .x = from->inner[1],
        .x_stride = c->text_size,
        .y = p->s->out,
        .y_stride = p->s->stride,
        .n_row = c->n_token,
    };
    multiply(p, &m);
}

static void run_square(void *arg, uint32_t ith, uint32_t nth)
{
    const struct square *s = arg;
    const struct square_run p = {
        .s = s,
        .v = s->v,
        .team = nth > 1 ? s->v->team : NULL,
        .x =
            {
                .ith = ith,
                .nth = nth,
                .scratch = s->v->work.kern + ith * s->v->work.kern_bytes,
                .scratch_bytes = s->v->work.kern_bytes,
            },
    };
    embed_patches(&p);
    run_layers(&p);
    project(&p);
}

static void embed_square(struct vision *v, const struct vision_image *image, uint32_t i, float *out,
                         size_t stride)
{
    const struct vision_grid g = vision_grid_of(v->c, image->size);
    struct square s = {
        .v = v,
        .from = {.kept = image->kept, .size = image->size, .at = vision_square_at(v->c, g, i)},
        .out = out,
        .stride = stride,
    };
    if (v->team)
        team_run(v->team, run_square, &s);
    else
        run_square(&s, 0, 1);
}

struct vision_out vision_embed(struct vision *v, const struct vision_image *image,
                               const struct vision_out *out)
{
    struct vision_layout l;
    struct vision_out made = *out;
    vision_layout(&l, v->c, &v->words, vision_grid_of(v->c, image->size));
    for (uint32_t i = 0, row = 0; i < l.n; i++) {
        const bool is_square = l.runs[i].token == VISION_ROWS;
        const uint32_t end = row + (is_square ? v->c->n_token : 1);
        if (is_square && row < out->end && end > out->first) {
            embed_square(v, image, l.runs[i].square, out->rows + row * out->stride, out->stride);
            made.first = row < made.first ? row : made.first;
            made.end = end > made.end ? end : made.end;
        }
        row = end;
    }
    return made;
}
