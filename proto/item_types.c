/* SPDX-License-Identifier: Apache-2.0 */
/*     modality_names   name NUL part type NUL …
 *     modalities       placeholder, rows of an item, items of a request, n_dim, (dim, largest) … */
#include "proto/item_types.h"
#include <string.h>

#define HEAD 4u /* numbers before the dims */

static size_t put_text(unsigned char *to, const char *text)
{
    const size_t n = strlen(text) + 1;
    memcpy(to, text, n);
    return n;
}

void item_types_put(struct msg_hello *m, struct item_types_wire *w, const struct item_types *t)
{
    size_t n_name = 0, n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct item_type *x = &t->rows[i];
        n_name += put_text(w->names + n_name, x->modality);
        n_name += put_text(w->names + n_name, x->part_type);
        w->numbers[n++] = x->placeholder;
        w->numbers[n++] = x->n_token;
        w->numbers[n++] = x->max_items;
        w->numbers[n++] = x->n_dim;
        for (uint32_t d = 0; d < x->n_dim; d++) {
            w->numbers[n++] = x->dims[d];
            w->numbers[n++] = x->dims_max[d];
        }
    }
    m->modality_names = (struct proto_bytes){w->names, n_name};
    m->modalities = (struct proto_u32s){w->numbers, n};
}

/* The next text of the names; false: there is none that fits. */
static bool take_text(char out[ITEM_TYPE_NAME_MAX], struct proto_bytes *names)
{
    const size_t n = names->n ? strnlen((const char *)names->data, names->n) : 0;
    if (n == names->n || n >= ITEM_TYPE_NAME_MAX)
        return false;
    memcpy(out, names->data, n + 1);
    names->data += n + 1;
    names->n -= n + 1;
    return true;
}

static bool take_numbers(struct item_type *x, struct proto_u32s *numbers)
{
    const uint32_t *from = numbers->data;
    if (numbers->n < HEAD || from[3] > ITEM_TYPE_DIMS_MAX || numbers->n - HEAD < 2 * from[3])
        return false;
    x->placeholder = from[0];
    x->n_token = from[1];
    x->max_items = from[2];
    x->n_dim = from[3];
    for (uint32_t d = 0; d < x->n_dim; d++) {
        x->dims[d] = from[HEAD + 2 * d];
        x->dims_max[d] = from[HEAD + 2 * d + 1];
    }
    numbers->data += HEAD + 2 * x->n_dim;
    numbers->n -= HEAD + 2 * x->n_dim;
    return x->n_token <= ITEM_TYPE_TOKENS_MAX;
}

FALLIBLE item_types_read(struct item_types *t, const struct msg_hello *m, struct q_err *e)
{
    struct proto_bytes names = m->modality_names;
    struct proto_u32s numbers = m->modalities;
    *t = (struct item_types){.n = 0};
    while (names.n || numbers.n) {
        struct item_type *x = &t->rows[t->n];
        if (t->n == ITEM_TYPES_MAX || !take_text(x->modality, &names) || !*x->modality ||
            !take_text(x->part_type, &names) || !take_numbers(x, &numbers)) {
            *t = (struct item_types){.n = 0};
            return q_fail(e, Q_CORRUPT, "hello: modality %u is malformed", t->n);
        }
        t->n++;
    }
    return Q_OK;
}
