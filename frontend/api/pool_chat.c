/* SPDX-License-Identifier: Apache-2.0 */
/* The path is the chat endpoint's (turn.h, prompt.h), with vLLM's defaults for vectors: no
 * generation prompt, and no special tokens besides the template's. */
#include <string.h>
#include "common/mem.h"
#include "frontend/api/pool.h"

static enum q_code check_together(struct pool_job *j, struct q_err *e)
{
    if (j->fields[POOL_input])
        return pool_fail_at(
            j, q_fail(e, Q_INVALID, "messages: input is there as well; send one of the two"),
            POOL_messages);
    if (json_is_true(j->fields[POOL_add_generation_prompt]) &&
        json_is_true(j->fields[POOL_continue_final_message]))
        return pool_fail_at(
            j,
            q_fail(e, Q_INVALID,
                   "continue_final_message: cannot be true together with add_generation_prompt"),
            POOL_continue_final_message);
    return Q_OK;
}

static enum q_code render(struct pool_job *j, const struct turn_ask *ask, struct q_err *e)
{
    enum q_code rc = turn_read(&j->turn, &j->app->served.chat, ask, e);
    if (rc) {
        snprintf(j->param, sizeof j->param, "%s", j->turn.field ? j->turn.field : "messages");
        return rc;
    }
    if (!(rc = prompts_render(&j->chat, &j->turn, e)))
        return Q_OK;
    return pool_fail_at(
        j, rc, strncmp(e->message, "chat_template:", 14) ? POOL_messages : POOL_chat_template);
}

FALLIBLE pool_read_chat(struct pool_job *j, struct q_err *e)
{
    const struct turn_ask ask = {
        .messages = j->fields[POOL_messages],
        .chat_template_kwargs = j->fields[POOL_chat_template_kwargs],
        .chat_template = json_string_value(j->fields[POOL_chat_template]),
        .add_generation_prompt = json_is_true(j->fields[POOL_add_generation_prompt]),
        .continue_final_message = json_is_true(j->fields[POOL_continue_final_message]),
        .trust_template = j->app->options->trust_request_chat_template,
        .item_types = &j->item_types,
        .item_rules = prompts_item_rules(j->app->options, !j->app->server),
    };
    enum q_code rc;
    if ((rc = check_together(j, e)) || (rc = render(j, &ask, e)))
        return rc;
    if ((rc = pool_make_texts(j, 1, e)))
        return pool_fail_at(j, rc, POOL_messages);
    j->texts->text = j->chat.items->text;
    j->texts->n_text = j->chat.items->n_text;
    j->texts->content = &j->chat.items->content;
    j->texts->inserts = j->chat.items->inserts;
    j->texts->n_insert = j->chat.items->n_insert;
    return Q_OK;
}

FALLIBLE pool_take_items(struct pool_job *j, struct q_err *e)
{
    const struct parts *parts = &j->turn.parts;
    const size_t n = parts->list.n;
    if (!n)
        return Q_OK;
    if (!(j->positions = q_calloc(n, sizeof *j->positions)))
        return q_fail(e, Q_NO_MEMORY, "out of memory for %zu items", n);
    for (size_t i = 0; i < n; i++)
        j->positions[i] = (uint32_t)parts->places[i].position;
    return item_wire_make(&j->items, parts->list.items, (uint32_t)n, e);
}
