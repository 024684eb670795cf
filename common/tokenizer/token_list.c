/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/token_list.h"
#include "common/mem.h"

#define IDS_MAX ((size_t)1 << 28) /* ids of one list */

enum q_code token_list_add(struct token_list *l, uint32_t id, struct q_err *e)
{
    if (l->n == l->cap) {
        enum q_code rc = q_grow(&l->ids, &l->cap, l->n + 1, sizeof *l->ids, IDS_MAX, e);
        if (rc)
            return rc;
    }
    l->ids[l->n++] = id;
    return Q_OK;
}

enum q_code token_list_join(struct token_list *to, const struct token_list *from, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < from->n && !rc; i++)
        rc = token_list_add(to, from->ids[i], e);
    return rc;
}

void token_list_release(struct token_list *l)
{
    q_free(l->ids);
    *l = (struct token_list)TOKEN_LIST_INIT;
}
