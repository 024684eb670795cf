/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a request, as its submits carry them: of `multi_modal_data`, an object for all of
 * its prompts or a list with one for each; or of the content parts of its messages. */
#include "common/mem.h"
#include "frontend/api/job_internal.h"

struct item_rules job_item_rules(const struct app *a)
{
    return prompts_item_rules(a->options, !a->server); /* run-batch: its user's own files */
}

static enum q_code read_one(struct job *j, const json_t *v, struct item_wire *out, struct q_err *e)
{
    const struct item_rules rules = job_item_rules(j->app);
    struct item_list list = ITEM_LIST_INIT;
    enum q_code rc = item_list_read(&list, v, &rules, e);
    if (rc == Q_OK)
        rc = item_wire_make(out, list.items, (uint32_t)list.n, e);
    item_list_release(&list);
    return rc;
}

FALLIBLE job_read_items(struct job *j, struct q_err *e)
{
    const json_t *v = j->params.multi_modal_data;
    const bool is_list = json_is_array(v);
    enum q_code rc = Q_OK;
    if (!j->params.has[FIELD_multi_modal_data])
        return Q_OK;
    snprintf(j->params.param, sizeof j->params.param, "multi_modal_data");
    if (is_list && json_array_size(v) != j->prompts.n)
        return q_fail(e, Q_INVALID, "multi_modal_data: a list of %zu objects for %zu prompts",
                      json_array_size(v), j->prompts.n);
    const size_t n = is_list ? j->prompts.n : 1;
    j->items = q_calloc(n, sizeof *j->items);
    if (!j->items)
        return q_fail(e, Q_NO_MEMORY, "multi_modal_data: out of memory");
    for (; j->n_items < n && rc == Q_OK; j->n_items++)
        rc = read_one(j, is_list ? json_array_get(v, j->n_items) : v, &j->items[j->n_items], e);
    /* They are in j->items. Many numbers are freed here, on a thread, and not on the loop. */
    json_object_del(j->body, "multi_modal_data");
    j->params.multi_modal_data = NULL;
    if (rc == Q_OK)
        j->params.param[0] = '\0';
    return rc;
}

FALLIBLE job_take_parts(struct job *j, struct q_err *e)
{
    const struct parts *parts = &j->turn.parts;
    if (!parts->list.n)
        return Q_OK;
    j->items = q_calloc(1, sizeof *j->items);
    j->positions = q_calloc(parts->list.n, sizeof *j->positions);
    if (!j->items || !j->positions)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory for %zu items", parts->list.n);
    for (size_t i = 0; i < parts->list.n; i++)
        j->positions[i] = (uint32_t)parts->places[i].position;
    j->n_items = 1;
    return item_wire_make(j->items, parts->list.items, (uint32_t)parts->list.n, e);
}

const struct item_wire *job_items_of(const struct job *j, size_t i_prompt)
{
    const struct item_wire *w = j->n_items ? &j->items[j->n_items > 1 ? i_prompt : 0] : NULL;
    return w && w->n_shape ? w : NULL;
}

void job_release_items(struct job *j)
{
    for (size_t i = 0; j->items && i < j->n_items; i++)
        item_wire_release(&j->items[i]);
    q_free(j->items);
    q_free(j->positions);
}
