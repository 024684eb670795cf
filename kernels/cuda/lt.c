/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt is column-major, so our row-major W is [n_in, n_out] there, x [n_in, n_row] and y
 * [n_out, n_row]: y = W^T x, the only form that it supports for int8 and fp8 too.
 *
 * A shape's descriptors are made once, at its first use (by the tuner or from the file); a call
 * sets only the values that may differ: rows, row strides, the bias's address. */
#include "kernels/cuda/lt.h"
#include <string.h>
#include "common/mem.h"

struct lt_entry { /* a shape and its choices */
    struct lt_shape shape;
    void *w, *x, *y; /* the library's; y serves as C and D */
    void *descs[2];  /* by lt_choice.by_sums; NULL: there is no such way */
    bool is_kept[LT_BUCKETS];
    struct lt_choice choices[LT_BUCKETS];
};

enum { LT_NO_WAY = 15 }; /* CUBLAS_STATUS_NOT_SUPPORTED */

struct lt {
    const struct lt_api *api;
    void *handle;
    size_t workspace_max;
    const struct lt_choice *trial;
    uint64_t n_run, n_refused;
    uint32_t n_entry;
    struct lt_entry entries[LT_SHAPES_MAX];
};

static const struct {
    enum lt_type in, sums;
    enum lt_compute compute;
} kinds[LT_KINDS] = {
    [LT_KIND_BF16] = {LT_BF16, LT_F32, LT_COMPUTE_F32},
    [LT_KIND_F16] = {LT_F16, LT_F32, LT_COMPUTE_F32},
    [LT_KIND_I8] = {LT_I8, LT_I32, LT_COMPUTE_I32},
    [LT_KIND_E4M3] = {LT_E4M3, LT_F32, LT_COMPUTE_F32},
};

/* ---- buckets ---- */
uint32_t lt_bucket_rows(uint32_t bucket)
{
    const uint32_t power = UINT32_C(32) << bucket / 2;
    return bucket % 2 ? power + power / 2 : power;
}

uint32_t lt_bucket(uint32_t n_row)
{
    uint32_t i = 0;
    while (i + 1 < LT_BUCKETS && lt_bucket_rows(i) < n_row)
        i++;
    return i;
}

/* ---- life ---- */
enum q_code lt_open(struct lt **out, const struct lt_api *api, size_t workspace_max,
                    struct q_err *e)
{
    struct lt *lt = q_calloc(1, sizeof *lt);
    if (!lt)
        return q_fail(e, Q_NO_MEMORY, "cuBLASLt: out of memory for a table of choices");
    lt->api = api;
    lt->workspace_max = workspace_max;
    const int status = api->create(&lt->handle);
    if (status != LT_OK) {
        q_free(lt);
        return q_fail(e, Q_IO, "cuBLASLt: initialization failed with status %d", status);
    }
    *out = lt;
    return Q_OK;
}

static void release_entry(const struct lt *lt, struct lt_entry *s)
{
    void *const layouts[] = {s->w, s->x, s->y};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i])
            lt->api->layout_destroy(layouts[i]);
    for (int i = 0; i < 2; i++)
        if (s->descs[i])
            lt->api->desc_destroy(s->descs[i]);
    memset(s, 0, sizeof *s);
}

void lt_close(struct lt *lt)
{
    if (!lt)
        return;
    for (uint32_t i = 0; i < lt->n_entry; i++)
        release_entry(lt, &lt->entries[i]);
    lt->api->destroy(lt->handle);
    q_free(lt);
}

size_t lt_version(const struct lt *lt)
{
    return lt->api->version();
}

size_t lt_workspace_max(const struct lt *lt)
{
    return lt->workspace_max;
}

uint64_t lt_n_run(const struct lt *lt)
{
    return lt->n_run;
}

uint64_t lt_n_refused(const struct lt *lt)
{
    return lt->n_refused;
}

/* ---- shapes ---- */
void lt_shape_settle(struct lt_shape *s)
{
    if (s->kind == LT_KIND_I8 || s->gated) /* scales, SiLU: the library has no such end */
        s->target = LT_TO_SUMS;
    if (s->target == LT_TO_SUMS)
        s->has_bias = s->accumulate = false;
}

static bool same_shape(const struct lt_shape *a, const struct lt_shape *b)
{
    return a->kind == b->kind && a->n_out == b->n_out && a->n_in == b->n_in &&
           a->target == b->target && a->has_bias == b->has_bias && a->accumulate == b->accumulate &&
           a->gated == b->gated;
}

static struct lt_entry *find_entry(const struct lt *lt, const struct lt_shape *s)
{
    for (uint32_t i = 0; i < lt->n_entry; i++)
        if (same_shape(&lt->entries[i].shape, s))
            return (struct lt_entry *)(uintptr_t)&lt->entries[i];
    return NULL;
}

/* Where the scales of e4m3 are. */
static int set_scales(const struct lt *lt, void *desc, const float *w, const float *x)
{
    const int status = lt->api->desc_set(desc, LT_DESC_SCALES_A, &w, sizeof w);
    return status ? status : lt->api->desc_set(desc, LT_DESC_SCALES_B, &x, sizeof x);
}

/* What the library does besides the sums. Heuristics want addresses of scales; none is read. */
static int describe_end(const struct lt *lt, void *desc, const struct lt_shape *p)
{
    static const float somewhere[4] __attribute__((aligned(LT_ALIGN))) = {0};
    const struct lt_api *a = lt->api;
    const int32_t f32 = LT_F32, outer = LT_SCALES_OUTER;
    const uint32_t bias = LT_EPILOGUE_BIAS;
    int status = LT_OK;
    if (p->has_bias) {
        status = a->desc_set(desc, LT_DESC_EPILOGUE, &bias, sizeof bias);
        status = status ? status : a->desc_set(desc, LT_DESC_BIAS_TYPE, &f32, sizeof f32);
    }
    if (p->kind != LT_KIND_E4M3)
        return status;
    status = status ? status : a->desc_set(desc, LT_DESC_SCALES_A_IS, &outer, sizeof outer);
    status = status ? status : a->desc_set(desc, LT_DESC_SCALES_B_IS, &outer, sizeof outer);
    return status ? status : set_scales(lt, desc, somewhere, somewhere);
}

/* *out is NULL where the library has no such way. */
static void describe_way(const struct lt *lt, const struct lt_shape *p, bool by_sums, void **out)
{
    const struct lt_api *a = lt->api;
    const int32_t turned = LT_TRANSPOSED, plain = LT_PLAIN;
    void *desc = NULL;
    int status = a->desc_create(&desc, (int)kinds[p->kind].compute, (int)kinds[p->kind].sums);
    status = status ? status : a->desc_set(desc, LT_DESC_TRANSPOSE_A, &turned, sizeof turned);
    status = status ? status : a->desc_set(desc, LT_DESC_TRANSPOSE_B, &plain, sizeof plain);
    if (!by_sums)
        status = status ? status : describe_end(lt, desc, p);
    if (status && desc)
        a->desc_destroy(desc);
    *out = status ? NULL : desc;
}

static bool describe(const struct lt *lt, struct lt_entry *s)
{
    const struct lt_api *a = lt->api;
    const struct lt_shape *p = &s->shape;
    const int in = (int)kinds[p->kind].in, sums = (int)kinds[p->kind].sums;
    if (p->target == LT_TO_Y)
        describe_way(lt, p, false, &s->descs[false]);
    if (p->target == LT_TO_SUMS || p->kind == LT_KIND_E4M3)
        describe_way(lt, p, true, &s->descs[true]);
    int status = s->descs[false] || s->descs[true] ? LT_OK : LT_NO_WAY;
    status = status ? status : a->layout_create(&s->w, in, p->n_in, p->n_out, p->n_in);
    status = status ? status : a->layout_create(&s->x, in, p->n_in, LT_ROWS_MIN, p->n_in);
    status = status ? status : a->layout_create(&s->y, sums, p->n_out, LT_ROWS_MIN, p->n_out);
    return status == LT_OK;
}

static struct lt_entry *find_or_add(struct lt *lt, const struct lt_shape *shape)
{
    struct lt_entry *s = find_entry(lt, shape);
    if (s || lt->n_entry == LT_SHAPES_MAX)
        return s;
    s = &lt->entries[lt->n_entry];
    s->shape = *shape;
    if (describe(lt, s)) {
        lt->n_entry++;
        return s;
    }
    release_entry(lt, s);
    return NULL;
}

/* Rows, and elements between them. */
static int set_rows(const struct lt *lt, void *layout, uint64_t n_row, int64_t step)
{
    const int status = lt->api->layout_set(layout, LT_LAYOUT_COLS, &n_row, sizeof n_row);
    return status ? status : lt->api->layout_set(layout, LT_LAYOUT_STEP, &step, sizeof step);
}

/* ---- choices ---- */
static int make_preference(const struct lt *lt, void **out)
{
    const uint64_t bytes = lt->workspace_max;
    const uint32_t align = LT_ALIGN;
    int status = lt->api->pref_create(out);
    status = status ? status : lt->api->pref_set(*out, LT_PREF_WORKSPACE, &bytes, sizeof bytes);
    for (int i = LT_PREF_ALIGN_A; i <= LT_PREF_ALIGN_D && !status; i++)
        status = lt->api->pref_set(*out, i, &align, sizeof align);
    return status;
}

/* Of one way, at most n. */
static uint32_t ask(const struct lt *lt, const struct lt_entry *s, bool by_sums, void *pref,
                    struct lt_choice *out, uint32_t n)
{
    struct lt_found found[LT_CANDIDATES_MAX];
    uint32_t n_out = 0;
    int n_found = 0;
    if (!s->descs[by_sums] || lt->api->heuristic(lt->handle, s->descs[by_sums], s->w, s->x, s->y,
                                                 s->y, pref, (int)n, found, &n_found) != LT_OK)
        return 0;
    for (int i = 0; i < n_found; i++)
        if (found[i].status == LT_OK && found[i].workspace_bytes <= lt->workspace_max)
            out[n_out++] = (struct lt_choice){
                .by_sums = by_sums,
                .algo = found[i].algo,
                .workspace_bytes = found[i].workspace_bytes,
            };
    return n_out;
}

uint32_t lt_candidates(struct lt *lt, const struct lt_shape *shape, uint32_t n_row,
                       struct lt_choice *out)
{
    const struct lt_entry *s = find_or_add(lt, shape);
    void *pref = NULL;
    uint32_t n = 0;
    if (!s)
        return 0;
    const uint32_t each = LT_CANDIDATES_MAX / (s->descs[false] && s->descs[true] ? 2 : 1);
    int status = make_preference(lt, &pref);
    status = status ? status : set_rows(lt, s->x, n_row, shape->n_in);
    status = status ? status : set_rows(lt, s->y, n_row, shape->n_out);
    for (int by_sums = 0; by_sums < 2 && status == LT_OK; by_sums++)
        n += ask(lt, s, by_sums, pref, out + n, each);
    if (pref)
        lt->api->pref_destroy(pref);
    return n;
}

void lt_keep(struct lt *lt, const struct lt_shape *shape, uint32_t bucket,
             const struct lt_choice *c)
{
    Q_ASSERT(bucket < LT_BUCKETS);
    if (!c->is_own && c->workspace_bytes > lt->workspace_max)
        return;
    struct lt_entry *s = find_or_add(lt, shape);
    if (!s)
        return;
    s->choices[bucket] = *c;
    s->is_kept[bucket] = true;
}

const struct lt_choice *lt_choice_of(const struct lt *lt, const struct lt_shape *shape,
                                     uint32_t n_row)
{
    if (lt->trial)
        return lt->trial->is_own ? NULL : lt->trial;
    const struct lt_entry *s = n_row < LT_ROWS_MIN ? NULL : find_entry(lt, shape);
    const uint32_t bucket = lt_bucket(n_row);
    return !s || !s->is_kept[bucket] || s->choices[bucket].is_own ? NULL : &s->choices[bucket];
}

void lt_set_trial(struct lt *lt, const struct lt_choice *c)
{
    lt->trial = c;
}

/* ---- a product ---- */
static int run_algorithm(const struct lt *lt, struct lt_entry *s, const struct lt_call *c,
                         const struct lt_choice *choice)
{
    static const float one_f = 1, zero_f = 0;
    static const int32_t one_i = 1, zero_i = 0;
    const bool ints = s->shape.kind == LT_KIND_I8, ends = !choice->by_sums;
    void *desc = s->descs[choice->by_sums];
    const void *one = ints ? (const void *)&one_i : &one_f;
    const void *zero = ints ? (const void *)&zero_i : &zero_f;
    int status = set_rows(lt, s->x, c->n_row, (int64_t)c->x_stride);
    status = status ? status : set_rows(lt, s->y, c->n_row, (int64_t)c->y_stride);
    if (ends && s->shape.has_bias)
        status = status ? status : lt->api->desc_set(desc, LT_DESC_BIAS, &c->bias, sizeof c->bias);
    if (ends && s->shape.kind == LT_KIND_E4M3)
        status = status ? status : set_scales(lt, desc, c->w_scales, c->x_scales);
    return status
               ? status
               : lt->api->matmul(lt->handle, desc, one, c->w, s->w, c->x, s->x,
                                 ends && s->shape.accumulate ? one : zero, c->y, s->y, c->y, s->y,
                                 &choice->algo, c->workspace, choice->workspace_bytes, c->stream);
}

bool lt_run(struct lt *lt, const struct lt_call *c, const struct lt_choice *choice)
{
    struct lt_entry *s = find_or_add(lt, &c->shape);
    Q_ASSERT(!choice->is_own);
    if (s && s->descs[choice->by_sums] && run_algorithm(lt, s, c, choice) == LT_OK) {
        lt->n_run++;
        return true;
    }
    lt->n_refused++;
    if (s && !lt->trial)
        s->choices[lt_bucket(c->n_row_all)] = (struct lt_choice){.is_own = true};
    return false;
}
