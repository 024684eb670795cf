/* SPDX-License-Identifier: Apache-2.0 */
#include "common/chat/thinking_words.h"
#include <string.h>
#include "common/mem.h"
#include "common/parsers/parser.h"
#include "common/thinking_budget.h"

#define FIELD "thinking_token_budget: "

static FALLIBLE add(struct token_list *out, uint32_t word, struct q_err *e)
{
    return token_list_add(out, word, e);
}

/* Do the ids write the tag, and nothing but blanks before it? */
static bool writes(const struct tokenizer *t, const struct token_list *ids, const char *tag)
{
    struct buf text = BUF_INIT;
    struct q_err ignored = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < ids->n && !rc; i++)
        rc = tokenizer_token_bytes(t, ids->ids[i], &text, &ignored);
    const char *at = buf_str(&text);
    bool same = !rc && !text.failed && !strcmp(at + strspn(at, " \t\r\n"), tag);
    buf_release(&text);
    return same;
}

/* The ids of an end tag, which the engine may have to force. */
static FALLIBLE encode_end(struct token_list *ids, const struct tokenizer *t, const char *tag,
                           struct q_err *e)
{
    enum q_code rc = tokenizer_encode(t, tag, strlen(tag), false, ids, e);
    if (rc)
        return rc;
    if (!ids->n || !writes(t, ids, tag))
        return q_fail(e, Q_UNSUPPORTED,
                      FIELD "the model's tokenizer cannot write the end of reasoning, %s", tag);
    return Q_OK;
}

static FALLIBLE add_tag(struct token_list *out, enum thinking_tag_kind kind, const char *tag,
                        const struct token_list *ids, struct q_err *e)
{
    const uint32_t head[] = {kind, (uint32_t)strlen(tag), ids ? (uint32_t)ids->n : 0};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof head / sizeof *head && !rc; i++)
        rc = add(out, head[i], e);
    for (const char *c = tag; *c && !rc; c++)
        rc = add(out, (unsigned char)*c, e);
    for (size_t i = 0; ids && i < ids->n && !rc; i++)
        rc = add(out, ids->ids[i], e);
    return rc;
}

static FALLIBLE add_pair(struct token_list *out, const struct tokenizer *t, const char *start,
                         const char *end, struct q_err *e)
{
    struct token_list ids = TOKEN_LIST_INIT;
    enum q_code rc = encode_end(&ids, t, end, e);
    if (!rc && !(rc = add_tag(out, THINKING_START, start, NULL, e)))
        rc = add_tag(out, THINKING_END_OF, end, &ids, e);
    token_list_release(&ids);
    return rc;
}

FALLIBLE thinking_words(struct token_list *out, const struct thinking_words_args *a,
                        struct q_err *e)
{
    const struct chat_model *m = a->model;
    struct parser_tags tags;
    enum q_code rc = Q_OK;
    const size_t n_before = out->n;
    if (!m->reasoning_parser || !a->tokenizer)
        return q_fail(e, Q_UNSUPPORTED, FIELD "requires a reasoning parser, but %s",
                      a->tokenizer ? "none is known for this model; start the server with "
                                     "--reasoning-parser"
                                   : "this server runs with --skip-tokenizer-init");
    if (!parser_reasoning_tags(&tags, m->reasoning_parser, a->calls,
                               m->template ? chat_source(m->template) : NULL, a->prompt,
                               a->n_prompt))
        return q_fail(e, Q_UNSUPPORTED,
                      FIELD "not supported with the reasoning parser %s, which has no tags around "
                            "reasoning",
                      m->reasoning_parser);
    const uint32_t flags =
        (tags.open ? THINKING_OPENED : 0u) | (tags.again && !a->grammar ? THINKING_AGAIN : 0u);
    if ((rc = add(out, a->max_tokens, e)) || (rc = add(out, flags, e)))
        return rc;
    for (size_t i = 0; i < tags.n_pair && !rc; i++)
        rc = add_pair(out, a->tokenizer, tags.starts[i], tags.ends[i], e);
    for (size_t i = 0; i < tags.n_other && !rc; i++)
        rc = add_tag(out, THINKING_END, tags.others[i], NULL, e);
    Q_ASSERT(rc || out->n - n_before <= THINKING_BUDGET_WORDS_MAX);
    return rc;
}

FALLIBLE thinking_words_check(const struct chat_model *m, const struct tokenizer *t,
                              struct q_err *e)
{
    struct token_list ignored = TOKEN_LIST_INIT;
    const struct thinking_words_args a = {.model = m, .tokenizer = t, .prompt = ""};
    const enum q_code rc = thinking_words(&ignored, &a, e);
    token_list_release(&ignored);
    return rc;
}
