/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_lt.h"
#include <stdlib.h>
#include <string.h>
#include "common/dtype.h"
#include "kernels/ops/e4m3.h"

enum { REFUSED = 15, WRONG_VALUE = 7 }; /* CUBLAS_STATUS_NOT_SUPPORTED, _INVALID_VALUE */

struct fake_lt fake_lt = {.n_algo = FAKE_LT_ALGOS};

struct desc {
    int compute, scale, turned_a, turned_b, bias_type;
    uint32_t epilogue;
    int scales_a, scales_b; /* LT_SCALES_OUTER; 0: none */
    const float *bias, *a_scales, *b_scales;
};
struct layout {
    int type;
    uint64_t rows, cols;
    int64_t step;
};
struct pref {
    uint64_t workspace;
    uint32_t align[4];
};

static size_t version(void)
{
    return 130100;
}

static int create(void **handle)
{
    *handle = &fake_lt;
    fake_lt.n_object++;
    return LT_OK;
}

static int destroy(void *handle)
{
    fake_lt.n_object--;
    return handle == &fake_lt ? LT_OK : WRONG_VALUE;
}

static void *object(size_t n)
{
    fake_lt.n_object++;
    return calloc(1, n);
}

static int drop(void *p)
{
    fake_lt.n_object--;
    free(p);
    return LT_OK;
}

static int desc_create(void **out, int compute, int scale_type)
{
    struct desc *d = object(sizeof *d);
    d->compute = compute;
    d->scale = scale_type;
    d->epilogue = LT_EPILOGUE_NONE;
    *out = d;
    return LT_OK;
}

static int desc_set(void *desc, int attribute, const void *value, size_t n)
{
    struct desc *d = desc;
    const struct {
        int attribute;
        void *to;
        size_t n;
    } all[] = {
        {LT_DESC_TRANSPOSE_A, &d->turned_a, 4},
        {LT_DESC_TRANSPOSE_B, &d->turned_b, 4},
        {LT_DESC_EPILOGUE, &d->epilogue, 4},
        {LT_DESC_BIAS, &d->bias, sizeof d->bias},
        {LT_DESC_BIAS_TYPE, &d->bias_type, 4},
        {LT_DESC_SCALES_A, &d->a_scales, sizeof d->a_scales},
        {LT_DESC_SCALES_B, &d->b_scales, sizeof d->b_scales},
        {LT_DESC_SCALES_A_IS, &d->scales_a, 4},
        {LT_DESC_SCALES_B_IS, &d->scales_b, 4},
    };
    const size_t n_known = sizeof all / sizeof *all - (fake_lt.is_old ? 2 : 0);
    for (size_t i = 0; i < n_known; i++)
        if (all[i].attribute == attribute && all[i].n == n) {
            memcpy(all[i].to, value, n);
            return LT_OK;
        }
    return WRONG_VALUE;
}

static int layout_create(void **out, int type, uint64_t rows, uint64_t cols, int64_t step)
{
    struct layout *l = object(sizeof *l);
    *l = (struct layout){type, rows, cols, step};
    *out = l;
    return LT_OK;
}

static int layout_set(void *layout, int attribute, const void *value, size_t n)
{
    struct layout *l = layout;
    if (n != 8 || (attribute != LT_LAYOUT_COLS && attribute != LT_LAYOUT_STEP))
        return WRONG_VALUE;
    memcpy(attribute == LT_LAYOUT_COLS ? (void *)&l->cols : &l->step, value, 8);
    return LT_OK;
}

static int pref_create(void **out)
{
    *out = object(sizeof(struct pref));
    return LT_OK;
}

static int pref_set(void *pref, int attribute, const void *value, size_t n)
{
    struct pref *p = pref;
    if (attribute == LT_PREF_WORKSPACE && n == 8)
        memcpy(&p->workspace, value, 8);
    else if (attribute >= LT_PREF_ALIGN_A && attribute <= LT_PREF_ALIGN_D && n == 4)
        memcpy(&p->align[attribute - LT_PREF_ALIGN_A], value, 4);
    else
        return WRONG_VALUE;
    return LT_OK;
}

static int64_t bytes_of(int type)
{
    return type == LT_I8 || type == LT_E4M3 ? 1 : type == LT_F32 || type == LT_I32 ? 4 : 2;
}

static bool is_aligned(const struct layout *l)
{
    return l->step >= (int64_t)l->rows && l->step * bytes_of(l->type) % 16 == 0;
}

static bool has_scales(const struct desc *d)
{
    return d->scales_a == LT_SCALES_OUTER;
}

/* Of A and of B, and both with addresses. */
static bool is_scaled(const struct desc *d, const struct layout *a)
{
    return a->type == LT_E4M3 && d->scales_a == LT_SCALES_OUTER && d->scales_b == d->scales_a &&
           d->a_scales && d->b_scales && !fake_lt.no_scales &&
           ((uintptr_t)d->a_scales | (uintptr_t)d->b_scales) % 16 == 0;
}

/* D [m, n] = A^T [k, m] B [k, n], column-major. */
static bool is_supported(const struct desc *d, const struct layout *a, const struct layout *b,
                         const struct layout *c)
{
    const bool ints = a->type == LT_I8;
    return d->turned_a == LT_TRANSPOSED && d->turned_b == LT_PLAIN && a->type == b->type &&
           (ints || a->type == LT_BF16 || a->type == LT_F16 || a->type == LT_E4M3) &&
           c->type == (ints ? LT_I32 : LT_F32) &&
           d->compute == (ints ? LT_COMPUTE_I32 : LT_COMPUTE_F32) && d->scale == c->type &&
           a->rows == b->rows && c->rows == a->cols && c->cols == b->cols && is_aligned(a) &&
           is_aligned(b) && is_aligned(c) &&
           (bytes_of(a->type) > 1 || (a->rows % 4 == 0 && a->cols % 4 == 0)) &&
           (is_scaled(d, a) || (!d->scales_a && !d->scales_b)) &&
           (d->epilogue == LT_EPILOGUE_NONE ||
            (d->epilogue == LT_EPILOGUE_BIAS && !ints && d->bias_type == LT_F32));
}

static int heuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int n, struct lt_found *out, int *n_out)
{
    const struct pref *p = pref;
    fake_lt.n_heuristic++;
    *n_out = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (p->align[i] != 16)
            return WRONG_VALUE;
    if (handle != &fake_lt || c != d || !is_supported(desc, a, b, c))
        return REFUSED;
    for (uint32_t i = 0; i < fake_lt.n_algo && *n_out < n; i++)
        out[(*n_out)++] = (struct lt_found){
            .algo.data = {i, 1, 2, 3, 4, 5, 6, 7},
            .workspace_bytes = i == 3 ? FAKE_LT_WORKSPACE : 0,
        };
    return LT_OK;
}

static float element(const void *p, int type, uint64_t i)
{
    const uint16_t *h = p;
    if (type == LT_E4M3)
        return e4m3_to_f32(((const uint8_t *)p)[i]);
    return type == LT_F16 ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
}

static float sum_floats(const void *a, const void *b, int type, uint64_t k)
{
    const size_t n = (size_t)bytes_of(type);
    float sum = 0;
    for (uint64_t i = 0; i < k; i++)
        sum +=
            element((const char *)a + i * n, type, 0) * element((const char *)b + i * n, type, 0);
    return sum;
}

static int32_t sum_ints(const int8_t *a, const int8_t *b, uint64_t k)
{
    int32_t sum = 0;
    for (uint64_t i = 0; i < k; i++)
        sum += a[i] * b[i];
    return sum;
}

struct product {
    struct desc desc;
    struct layout a, b, c;
    const void *w, *x;
    void *y;
    bool onto;
    bool spoil;      /* one number of the last row is wrong */
    void *workspace; /* NULL: not used */
    size_t workspace_bytes;
};

static void compute(void *arg)
{
    const struct product *p = arg;
    const uint64_t k = p->a.rows;
    if (p->workspace)
        memset(p->workspace, 0xff, p->workspace_bytes);
    for (uint64_t j = 0; j < p->c.cols; j++)
        for (uint64_t i = 0; i < p->c.rows; i++) {
            const char *w = (const char *)p->w + (int64_t)i * p->a.step * bytes_of(p->a.type);
            const char *x = (const char *)p->x + (int64_t)j * p->b.step * bytes_of(p->b.type);
            const uint64_t at = j * (uint64_t)p->c.step + i;
            const bool spoil = p->spoil && j + 1 == p->c.cols && i == p->c.rows / 2;
            if (p->a.type == LT_I8) {
                ((int32_t *)p->y)[at] =
                    sum_ints((const int8_t *)w, (const int8_t *)x, k) + (spoil ? 1000000 : 0);
                continue;
            }
            float sum = sum_floats(w, x, p->a.type, k) + (spoil ? 1000 : 0);
            if (has_scales(&p->desc))
                sum *= p->desc.a_scales[i] * p->desc.b_scales[j];
            if (p->onto)
                sum += ((float *)p->y)[at];
            if (p->desc.epilogue == LT_EPILOGUE_BIAS)
                sum += p->desc.bias[i];
            ((float *)p->y)[at] = sum;
        }
}

static int matmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                  const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                  void *d, void *d_layout, const struct lt_algo *algo, void *workspace,
                  size_t workspace_bytes, void *stream)
{
    const struct layout *y = d_layout;
    const uint32_t i = (uint32_t)algo->data[0];
    uint32_t one, zero;
    memcpy(&one, alpha, 4);
    memcpy(&zero, beta, 4);
    if (handle != &fake_lt || c != d || c_layout != d_layout ||
        ((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % 16 || i >= FAKE_LT_ALGOS ||
        algo->data[7] != 7 || (y->type == LT_I32 ? one != 1 : one != 0x3f800000))
        return WRONG_VALUE;
    if (fake_lt.refused >> i & 1 ||
        (fake_lt.refused_from && fake_lt.n_matmul >= fake_lt.refused_from) ||
        !is_supported(desc, a_layout, b_layout, y) ||
        (i == 3 && (workspace_bytes < FAKE_LT_WORKSPACE || !workspace)))
        return REFUSED;
    struct product p = {
        .desc = *(const struct desc *)desc,
        .a = *(const struct layout *)a_layout,
        .b = *(const struct layout *)b_layout,
        .c = *y,
        .w = a,
        .x = b,
        .y = d,
        .onto = zero != 0,
        .spoil = fake_lt.wrong >> i & 1,
        .workspace = i == 3 ? workspace : NULL,
        .workspace_bytes = workspace_bytes,
    };
    if (fake_lt.give)
        fake_lt.give(stream, compute, &p, sizeof p);
    else
        compute(&p);
    fake_lt.n_matmul++;
    fake_lt.last = i;
    if (fake_lt.ran)
        fake_lt.ran(i);
    return LT_OK;
}

const struct lt_api fake_lt_api = {
    .version = version,
    .create = create,
    .destroy = destroy,
    .desc_create = desc_create,
    .desc_set = desc_set,
    .desc_destroy = drop,
    .layout_create = layout_create,
    .layout_set = layout_set,
    .layout_destroy = drop,
    .pref_create = pref_create,
    .pref_set = pref_set,
    .pref_destroy = drop,
    .heuristic = heuristic,
    .matmul = matmul,
};
