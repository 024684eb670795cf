/* SPDX-License-Identifier: Apache-2.0 */
/* turn_ask - the unchecked fields of a request to a chat model. Threads: values; strings and JSON
 * are borrowed from the request. */
#ifndef QUIRE_COMMON_CHAT_TURN_ASK_H
#define QUIRE_COMMON_CHAT_TURN_ASK_H
#include <jansson.h>
#include <stdbool.h>
#include "common/chat/form.h"
#include "common/items/items.h"

/* what a request asks for of a model that can reason (thinking.h) */
enum thinking {
    THINKING_UNSAID, /* the chat template decides */
    THINKING_ON,
    THINKING_OFF
};

struct turn_ask { /* a request's fields by their names; NULL: not given */
    const json_t *messages, *tools, *tool_choice, *documents, *chat_template_kwargs,
        *enable_thinking, *thinking;
    const char *reasoning_effort, *chat_template;
    bool add_generation_prompt, continue_final_message, parallel_tool_calls;
    bool auto_tool_choice;               /* the model may call by its own choice */
    bool trust_template;                 /* chat_template is taken */
    struct form form;                    /* that the answer must have */
    const struct item_types *item_types; /* that content parts may have; NULL: text only */
    struct item_rules item_rules;
};

#endif
