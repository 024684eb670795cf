/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank tells all others the parts of tensors that it has; all compute the same table from the
 * same list. A part is written by the first rank that has it: a part is left out where the ranks
 * before have all of its rows and columns already. Parts of a tensor are rows, of one range or of
 * several that lie equally far apart, or a range of columns, as tensor parallelism cuts them. */
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

#define RANGES_OF_TENSOR 4096u

struct told_part { /* as a rank tells it; one without a name is none */
    char name[ARCH_NAME_MAX];
    uint32_t n_dim, rows, cols; /* of the whole tensor */
    uint32_t row_at, col_at, n_row, n_col;
    uint32_t block, stride, transposed, training_only;
    uint32_t rank, i; /* the i-th of the rank */
};

/* ---- telling ---- */

static uint32_t count_parts(const struct params *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += p->all[i].is_copy ? 0 : p->all[i].n_tensor;
    return n;
}

/* Copies are read from a state but never written: they have no part here. */
static void list_parts(const struct params *p, struct told_part *told, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->all[i].n_tensor && !p->all[i].is_copy; k++, n++) {
            const struct param_tensor *t = &p->all[i].tensors[k];
            memcpy(told[n].name, t->name, sizeof told[n].name);
            told[n].n_dim = t->n_dim;
            told[n].rows = t->all_rows;
            told[n].cols = t->all_cols;
            told[n].row_at = t->row_at;
            told[n].col_at = t->col_at;
            told[n].n_row = t->n_row;
            told[n].n_col = t->n_col;
            told[n].block = t->block;
            told[n].stride = t->stride;
            told[n].transposed = t->transposed;
            told[n].training_only = p->all[i].training_only;
            told[n].rank = rank;
            told[n].i = n;
        }
}

static int by_place(const void *a, const void *b)
{
    const struct told_part *x = a, *y = b;
    if (x->training_only != y->training_only)
        return x->training_only < y->training_only ? -1 : 1;
    const int order = strcmp(x->name, y->name);
    if (order)
        return order;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* *parts: [*n] of all ranks, by name and rank; the caller's. */
static enum q_code gather_parts(struct told_part **parts, size_t *n, const struct params *p,
                                struct transport *t, struct q_err *e)
{
    const struct transport_group group = transport_all(t);
    uint64_t n_max = count_parts(p);
    enum q_code rc = transport_max(t, &group, &n_max, e);
    if (rc)
        return rc;
    struct told_part *mine = q_calloc(n_max + 1, sizeof *mine);
    struct told_part *all = q_calloc(n_max * group.n + 1, sizeof *all);
    if (!mine || !all)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the names of tensors");
    else
        list_parts(p, mine, transport_rank(t));
    if (!(rc = checkpoint_agree(t, rc, e)) && n_max)
        rc = transport_gather(t, &group, mine, n_max * sizeof *mine, all, e);
    q_free(mine);
    if (rc || !all) {
        q_free(all);
        return rc ? rc : Q_NO_MEMORY;
    }
    *n = 0;
    for (size_t i = 0; i < n_max * group.n; i++)
        if (*all[i].name)
            all[(*n)++] = all[i];
    if (*n)
        qsort(all, *n, sizeof *all, by_place);
    *parts = all;
    return Q_OK;
}

/* ---- who writes ---- */

struct cover { /* of one tensor, by the parts so far: ranges of whole rows, or of whole columns */
    struct {
        uint32_t start, end;
    } at[RANGES_OF_TENSOR];
    uint32_t n;
};

static bool is_covered(const struct cover *c, uint32_t start, uint32_t end)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->at[i].start <= start && end <= c->at[i].end)
            return true;
    return false;
}

/* Ranges that touch become one; they stay few. */
static bool add_range(struct cover *c, uint32_t start, uint32_t end)
{
    for (uint32_t i = 0; i < c->n;) {
        if (start <= c->at[i].end && c->at[i].start <= end) {
            start = c->at[i].start < start ? c->at[i].start : start;
            end = c->at[i].end > end ? c->at[i].end : end;
            c->at[i] = c->at[--c->n];
        } else {
            i++;
        }
    }
    if (c->n == RANGES_OF_TENSOR)
        return false;
    c->at[c->n].start = start;
    c->at[c->n++].end = end;
    return true;
}

/* Rows of the tensor from the part's first one to its last. */
static uint64_t span_of(const struct told_part *t)
{
    if (!t->block)
        return t->n_row;
    return (uint64_t)(t->n_row - 1) / t->block * t->stride + (t->n_row - 1) % t->block + 1;
}

static bool fits(const struct told_part *t)
{
    return t->n_row && t->n_col && t->n_row <= t->rows && t->n_col <= t->cols &&
           t->row_at + span_of(t) <= t->rows && t->col_at <= t->cols - t->n_col &&
           (!t->block || t->stride >= t->block) &&
           (t->n_dim == 2 || (t->n_dim == 1 && t->cols == 1));
}

/* All ranges of the part. *has: they were there before. False: there are too many. */
static bool add_part(struct cover *c, const struct told_part *t, bool by_columns, bool *has)
{
    const uint32_t n = by_columns ? t->n_col : t->n_row;
    const uint32_t step = t->block && !by_columns ? t->block : n;
    bool fits_in = true;
    *has = true;
    for (uint32_t i = 0; i < n && fits_in; i += step) {
        const uint32_t m = n - i < step ? n - i : step;
        const uint32_t at =
            by_columns ? t->col_at : t->row_at + (t->block ? i / step * t->stride : 0);
        *has = *has && is_covered(c, at, at + m);
        fits_in = add_range(c, at, at + m);
    }
    return fits_in;
}

/* The n parts of one tensor: writes[i] of part i. */
static enum q_code choose_writers(const struct told_part *parts, size_t n, bool *writes,
                                  struct q_err *e)
{
    const struct told_part *first = parts;
    struct cover *c = q_calloc(1, sizeof *c);
    bool by_columns = false, whole = true;
    enum q_code rc = Q_OK;
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the parts of tensors");
    for (size_t i = 0; i < n; i++)
        by_columns |= parts[i].n_col != parts[i].cols;
    const uint32_t all = by_columns ? first->cols : first->rows;
    for (size_t i = 0; i < n && whole; i++) {
        const struct told_part *t = &parts[i];
        bool has = false;
        whole = t->n_dim == first->n_dim && t->rows == first->rows && t->cols == first->cols &&
                t->transposed == first->transposed && fits(t) &&
                (!by_columns || t->n_row == t->rows) && add_part(c, t, by_columns, &has);
        writes[i] = whole && !has;
    }
    if (!whole || !is_covered(c, 0, all))
        rc = q_fail(e, Q_MISMATCH,
                    "the ranks' parts of the tensor %s (%u x %u) do not make the whole of it",
                    first->name, first->rows, first->cols);
    q_free(c);
    return rc;
}

/* ---- the table ---- */

/* This rank's parts in the order of list_parts, for the numbers that it told. */
static void point_to_own(struct tensor_table *t, const struct params *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->all[i].n_tensor && !p->all[i].is_copy; k++, n++) {
            t->own[n].param = &p->all[i];
            t->own[n].tensor = &p->all[i].tensors[k];
        }
    t->n_own = n;
}

static enum q_code fill_table(struct tensor_table *t, const struct told_part *parts, size_t n,
                              uint32_t rank, struct q_err *e)
{
    enum q_code rc = Q_OK;
    bool *writes = q_calloc(n + 1, sizeof *writes);
    if (!writes)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the parts of tensors");
    for (size_t i = 0, end; i < n && !rc; i = end) {
        for (end = i + 1; end < n && strcmp(parts[end].name, parts[i].name) == 0;)
            end++;
        struct whole_tensor *w = &t->all[t->n];
        memcpy(w->name, parts[i].name, sizeof w->name);
        w->training_only = parts[i].training_only;
        w->n_dim = parts[i].n_dim;
        w->rows = parts[i].transposed ? parts[i].cols : parts[i].rows;
        w->cols = parts[i].transposed ? parts[i].rows : parts[i].cols;
        rc = choose_writers(parts + i, end - i, writes + i, e);
        for (size_t k = i; k < end; k++)
            if (parts[k].rank == rank) {
                t->own[parts[k].i].whole = t->n;
                t->own[parts[k].i].writes = writes[k];
            }
        t->n++;
        t->n_model += !w->training_only;
    }
    q_free(writes);
    return rc;
}

enum q_code tensor_table_make(struct tensor_table *out, const struct params *p, struct transport *t,
                              struct q_err *e)
{
    struct tensor_table table = {.n = 0};
    struct told_part *parts = NULL;
    size_t n = 0;
    enum q_code rc = gather_parts(&parts, &n, p, t, e);
    if (rc)
        return rc;
    table.all = q_calloc(n + 1, sizeof *table.all);
    table.own = q_calloc(count_parts(p) + 1, sizeof *table.own);
    if (!table.all || !table.own) {
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for the names of tensors");
    } else {
        point_to_own(&table, p);
        rc = fill_table(&table, parts, n, transport_rank(t), e);
    }
    q_free(parts);
    if (rc)
        tensor_table_release(&table);
    else
        *out = table;
    return rc;
}

void tensor_table_release(struct tensor_table *t)
{
    q_free(t->all);
    q_free(t->own);
    *t = (struct tensor_table){.n = 0};
}

/* ---- files ---- */

void layout_item_name(char out[ARCH_NAME_MAX + 2], const struct tensor_table *t,
                      const struct layout_item *item, bool prefixed)
{
    static const char prefixes[] = {
        [CHECKPOINT_W] = 'w',
        [CHECKPOINT_G] = 'g',
        [CHECKPOINT_M] = 'm',
        [CHECKPOINT_V] = 'v',
    };
    size_t at = 0;
    if (prefixed) {
        out[at++] = prefixes[item->array];
        out[at++] = '.';
    }
    memcpy(out + at, t->all[item->whole].name, ARCH_NAME_MAX);
}

static uint64_t data_bytes(const struct layout *l, const struct tensor_table *t, uint32_t i)
{
    const struct whole_tensor *w = &t->all[l->items[i].whole];
    return (uint64_t)w->rows * w->cols * (dtype_bits(l->dtype) / 8);
}

/* Which file each tensor is in: files are filled in the order of the tensors. */
static void assign_files(struct layout *l, const struct tensor_table *t, uint64_t shard_bytes)
{
    uint64_t n = 0;
    uint32_t i_file = 0;
    for (uint32_t i = 0; i < l->n_item; i++) {
        const uint64_t more = data_bytes(l, t, i);
        if (shard_bytes && n && n + more > shard_bytes) {
            i_file++;
            n = 0;
        }
        n += more;
        l->n_data += more;
        l->items[i].i_file = i_file;
    }
    l->n_file = i_file + 1;
}

/* The header of the file of items[first … first + n). */
static enum q_code layout_one(struct layout *l, const struct tensor_table *t, bool prefixed,
                              uint32_t first, uint32_t n, struct q_err *e)
{
    struct layout_file *file = &l->files[l->items[first].i_file];
    struct safetensors_item *items = q_calloc(n + 1, sizeof *items);
    char(*names)[ARCH_NAME_MAX + 2] = q_calloc(n + 1, sizeof *names);
    enum q_code rc =
        items && names ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for a checkpoint's layout");
    for (uint32_t i = 0; i < n && !rc; i++) {
        const struct whole_tensor *w = &t->all[l->items[first + i].whole];
        layout_item_name(names[i], t, &l->items[first + i], prefixed);
        items[i].name = names[i];
        items[i].dtype = l->dtype;
        items[i].n_dim = w->n_dim;
        items[i].shape[0] = w->rows;
        items[i].shape[1] = w->cols;
    }
    if (!rc)
        rc = safetensors_layout(items, n, &file->header, &file->n_bytes, e);
    for (uint32_t i = 0; i < n && !rc; i++)
        l->items[first + i].at = items[i].at;
    l->n_bytes += file->n_bytes;
    q_free(items);
    q_free(names);
    return rc;
}

static void name_files(struct layout *l, const char *name)
{
    for (uint32_t i = 0; i < l->n_file; i++)
        if (l->n_file == 1)
            snprintf(l->files[i].name, LAYOUT_NAME_MAX, "%s.safetensors", name);
        else
            snprintf(l->files[i].name, LAYOUT_NAME_MAX, "%s-%05u-of-%05u.safetensors", name, i + 1,
                     l->n_file);
    l->index_name = l->n_file > 1 ? "model.safetensors.index.json" : NULL;
}

enum q_code layout_make(struct layout *out, const struct tensor_table *t,
                        const struct layout_ask *ask, struct q_err *e)
{
    struct layout l = {.dtype = ask->dtype, .n_tensor = ask->is_model ? t->n_model : t->n};
    enum q_code rc = Q_OK;
    l.n_item = l.n_tensor * ask->n_array;
    l.items = q_calloc(l.n_item + 1, sizeof *l.items);
    if (!l.items)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a checkpoint's layout");
    for (uint32_t i = 0; i < l.n_item; i++) {
        l.items[i].whole = i % l.n_tensor;
        l.items[i].array = ask->arrays[i / l.n_tensor];
    }
    assign_files(&l, t, ask->shard_bytes);
    l.files = q_calloc(l.n_file, sizeof *l.files);
    if (!l.files)
        rc = q_fail(e, Q_NO_MEMORY, "out of memory for a checkpoint's layout");
    else
        name_files(&l, ask->name);
    for (uint32_t i = 0, end; i < l.n_item && !rc; i = end) {
        for (end = i + 1; end < l.n_item && l.items[end].i_file == l.items[i].i_file;)
            end++;
        rc = layout_one(&l, t, ask->prefixed, i, end - i, e);
    }
    if (rc)
        layout_release(&l);
    else
        *out = l;
    return rc;
}

void layout_release(struct layout *l)
{
    for (uint32_t i = 0; i < l->n_file && l->files; i++)
        buf_release(&l->files[i].header);
    q_free(l->files);
    q_free(l->items);
    *l = (struct layout){.n_item = 0};
}
