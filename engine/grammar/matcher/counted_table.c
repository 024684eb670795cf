/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/matcher/counted_table.h"
#include "common/mem.h"

void counted_loop_table_unref(struct counted_loop_table *t)
{
    if (!t || --t->n_ref)
        return;
    struct counted_loop_list *lists[] = {&t->inside, &t->exits, &t->outs};
    for (int i = 0; i < 3; i++) {
        q_free(lists[i]->ids);
        q_free(lists[i]->at);
    }
    q_free(t->all);
    q_free(t);
}
