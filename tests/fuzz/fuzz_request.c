/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP bodies: JSON to parameters, messages, tools and prompts, and on through the bundled model's
 * template and tokenizer. The first byte picks the endpoint. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/chat/messages.h"
#include "common/mem.h"
#include "frontend/api/anthropic.h"
#include "frontend/api/json.h"
#include "frontend/api/params_sampling.h"
#include "frontend/api/prompt.h"
#include "frontend/api/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct served_model served;
static struct options options;

static void load(void)
{
    struct q_err e = Q_ERR_INIT;
    const char *dir = "deploy/model/quire-tiny";
    options_defaults(&options);
    options.trust_request_chat_template = true;
    served.options = &options;
    served.config.vocab_size = 2560; /* of that model */
    if (tokenizer_open(&served.tokenizer, dir, &e) != Q_OK ||
        chat_model_open(&served.chat, &options, dir, dir, &e) != Q_OK ||
        chat_model_tags(&served.chat, served.tokenizer, &e) != Q_OK)
        snprintf(served.chat.error, sizeof served.chat.error, "no model here");
}

/* The prompt, and the parser for what comes behind it. */
static enum q_code try_turn(struct turn *t, struct prompts *prompts, struct q_err *e)
{
    struct turn_before before;
    struct parser *parser = NULL;
    enum q_code rc = prompts_render(prompts, t, e);
    if (rc != Q_OK)
        return rc;
    const struct buf *rendered = &prompts->items->rendered;
    for (size_t i = 0; i < t->parts.list.n; i++) /* ascending, and no mark is left */
        Q_ASSERT(t->parts.places[i].at <= rendered->len &&
                 (!i || t->parts.places[i].at >= t->parts.places[i - 1].at));
    Q_ASSERT(!t->parts.list.n || !strstr(buf_str(rendered), t->parts.nonce));
    turn_before(t, rendered, &before);
    Q_ASSERT(!before.after || !before.tags);
    rc = turn_parser(t, rendered, before.after || before.tags, &parser, e);
    parser_free(parser);
    return rc;
}

static void try_prompts(const struct params *p, const struct sample_params *s)
{
    struct q_err e = Q_ERR_INIT;
    struct prompts prompts = {NULL, 0};
    enum q_code rc = Q_OK;
    static const struct item_types types = {
        .n = 3,
        .rows =
            {
                {
                    .modality = "grids",
                    .part_type = "grid",
                    .placeholder = (uint32_t)-7,
                    .n_dim = 2,
                    .dims = {2, 3},
                    .n_token = 4,
                    .max_items = 3,
                },
                {
                    .modality = "strips",
                    .part_type = "strips",
                    .placeholder = 7,
                    .n_dim = 1,
                    .dims_max = {5},
                    .max_items = 8,
                },
                {
                    .modality = "image",
                    .part_type = "image_url",
                    .placeholder = 9,
                    .n_dim = 3,
                    .dims = {0, 0, 3},
                    .dims_max = {64, 64},
                    .max_items = 4,
                },
            },
    };
    struct turn_ask ask = prompts_ask(&served, p, s);
    ask.item_types = &types;
    struct turn turn = {.model = NULL};
    if (p->prompt)
        rc = prompts_read(&prompts, p->prompt, &served, true, &e);
    else if (p->messages && (rc = turn_read(&turn, &served.chat, &ask, &e)) == Q_OK)
        rc = try_turn(&turn, &prompts, &e);
    if (rc == Q_OK && prompts.n && served.tokenizer)
        rc = prompts_encode(&prompts, &served, p->add_special_tokens, &e);
    for (size_t i = 0; rc == Q_OK && i < turn.parts.list.n; i++) {
        const struct tokenizer_insert *x = &turn.parts.places[i];
        Q_ASSERT(x->position < prompts.items->ids.n &&
                 prompts.items->ids.ids[x->position] == x->id);
    }
    prompts_release(&prompts);
    turn_release(&turn);
}

static void try_body(const json_t *body, enum params_where where)
{
    static struct params_ids ids;
    static struct params p;
    const char *stops[PARAMS_STOPS_MAX];
    struct params_context context = {&served.defaults, served.config.vocab_size, 20};
    struct sample_params s;
    struct q_err e = Q_ERR_INIT;
    json_t *tools = NULL;
    uint32_t n_stop;
    enum q_code rc = params_read(&p, body, where, &e);
    for (const char *c = p.unknown.text; *c; c++)
        Q_ASSERT(*c >= ' ' && *c < 0x7f); /* it becomes a header */
    Q_ASSERT(!p.unknown.n == !*p.unknown.text);
    if (rc != Q_OK || params_sampling(&p, &context, &s, &ids, &e) != Q_OK ||
        params_stops(&p, stops, &n_stop, &e) != Q_OK || tools_read(&tools, p.tools, &e) != Q_OK ||
        params_bad_words(&p, served.tokenizer, &s, &ids, &e) != Q_OK)
        goto out;
    s.max_tokens = s.max_tokens ? s.max_tokens : 16;
    if (s.min_tokens <= s.max_tokens &&
        sample_params_check(&s, served.config.vocab_size, &e) != Q_OK)
        __builtin_trap(); /* what the frontend lets through, the engine must take */
    try_prompts(&p, &s);
out:
    params_ids_release(&ids); /* also after a refusal, as a job does */
    json_decref(tools);
}

/* Another API's body: what it is converted to is read like any other. */
static void try_dialect(const json_t *body, const struct dialect *dialect)
{
    struct q_err e = Q_ERR_INIT;
    json_t *chat, *entries;
    if (dialect->read(&chat, &entries, body, &e) != Q_OK)
        return;
    Q_ASSERT(json_is_array(json_object_get(chat, "messages")));
    Q_ASSERT(json_array_size(entries) == json_array_size(json_object_get(chat, "messages")));
    json_decref(entries);
    try_body(chat, WHERE_CHAT);
    json_decref(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum params_where where[] = {WHERE_CHAT, WHERE_TEXT, WHERE_TOKENS, WHERE_DETOK};
    static bool loaded;
    struct q_err e = Q_ERR_INIT;
    json_t *body;
    if (!loaded)
        load();
    loaded = true;
    if (n == 0 || json_body(&body, (const char *)data + 1, n - 1, &e) != Q_OK)
        return 0;
    if (data[0] % 8 < 4)
        try_body(body, where[data[0] % 8]);
    else
        try_dialect(body, data[0] % 2 ? &anthropic_dialect : &responses_dialect);
    json_decref(body);
    return 0;
}
