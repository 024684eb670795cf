/* SPDX-License-Identifier: Apache-2.0 */
/* The public library over a session. It copies the caller's parameters, and it detokenizes and
 * finds stop strings on the caller's thread (as a frontend does), so that the engine's thread
 * handles token ids only. */
#include "engine/quire.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include "common/chat/thinking_words.h"
#include "common/chat/turn.h"
#include "common/items/items.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/tokenizer/stream.h"
#include "engine/library/quire_chat.h"
#include "engine/library/quire_engine.h"
#include "engine/library/quire_options.h"

static_assert(sizeof(struct session_top) == sizeof(struct quire_alternative) &&
                  offsetof(struct session_top, logprob) ==
                      offsetof(struct quire_alternative, logprob),
              "events show the items' alternatives as they are");

struct quire_request {
    struct session_request items;
    struct session *session; /* borrowed from the engine */
    struct detok *detok;     /* NULL with skip_tokenizer */
    struct stop *stop;       /* NULL without stop strings */
    struct quire_chat *chat; /* NULL: the prompt is no conversation */
    bool include_stop;
    uint32_t n_prompt;
    struct buf piece, kept;  /* of the detokenizer, of the stop strings */
    struct buf text;         /* of the event now */
    struct session_top *top; /* of the event now, owned */
    bool engine_done;        /* the last item was taken */
    bool finished;           /* FINISH was given, or is next: `finish` */
    struct quire_event finish;
    struct quire_event held; /* a conversation's token or finish, after its other events */
    bool holds;
};

/* engine */

/* Tokenizer and chat template; of these a model may have none. */
static FALLIBLE open_text(struct quire_engine *engine, const struct quire_options *o,
                          const struct core_config *c, struct q_err *e)
{
    struct options all;
    enum q_code rc = tokenizer_open(&engine->tokenizer, c->tokenizer_path, e);
    if (rc)
        return rc;
    if (!(rc = quire_options_all(&all, o, e)))
        rc = chat_model_open(&engine->chat, &all, c->worker.model_dir, c->tokenizer_path, e);
    options_release(&all);
    return rc == Q_OK ? chat_model_tags(&engine->chat, engine->tokenizer, e) : rc;
}

static FALLIBLE engine_open(struct quire_engine *engine, const struct quire_options *given,
                            struct q_err *e)
{
    struct quire_options o;
    struct core_config c;
    enum q_code rc;
    if ((rc = quire_options_config(&c, &o, given, e)))
        return rc;
    log_setup("quire", (enum log_level)c.worker.log_level, c.worker.log_json);
    if ((!o.skip_tokenizer && (rc = open_text(engine, &o, &c, e))) ||
        (rc = session_open(&engine->session, &c, o.progress, o.progress_ctx, e)))
        return rc;
    if (strcmp(o.generation_config, "vllm") != 0)
        engine->defaults = *session_generation_defaults(engine->session);
    generation_defaults_merge(&engine->defaults, &c.override);
    return Q_OK;
}

enum quire_code quire_engine_open(struct quire_engine **out, const struct quire_options *o,
                                  struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct quire_engine *engine = q_calloc(1, sizeof *engine);
    enum q_code rc =
        engine ? engine_open(engine, o, &e) : q_fail(&e, Q_NO_MEMORY, "engine: out of memory");
    if (rc) {
        quire_engine_close(engine);
        return quire_error_give(error, &e);
    }
    *out = engine;
    return QUIRE_OK;
}

void quire_engine_close(struct quire_engine *engine)
{
    if (!engine)
        return;
    session_close(engine->session);
    tokenizer_free(engine->tokenizer);
    chat_model_release(&engine->chat);
    q_free(engine);
}

void quire_engine_info(const struct quire_engine *engine, struct quire_info *info)
{
    const struct core_info *c = session_info(engine->session);
    struct quire_info full = {
        .size = info->size,
        .vocab_size = c->shape.vocab_size,
        .max_model_len = session_max_model_len(engine->session),
        .max_num_seqs = c->limits.max_num_seqs,
        .num_blocks = c->n_block,
        .n_param = c->shape.n_param,
        .weight_bytes = c->shape.weight_bytes,
        .row_ops = c->shape.row_ops,
        .logit_ops = c->shape.logit_ops,
        .context_ops = c->shape.context_ops,
        .step_bytes = c->shape.step_bytes,
        .asked_row_ops = c->shape.asked_row_ops,
        .asked_context_ops = c->shape.asked_context_ops,
        .kv_token_bytes = c->shape.kv_block_bytes / KERN_BLOCK,
        .has_chat_template = engine->chat.template,
    };
    full.n_modality = c->n_modality;
    full.n_vector = c->shape.pools ? session_pooling(engine->session)->n_out : 0;
    full.classifies = session_pooling(engine->session)->makes == ARCHS_CLASSIFIES;
    full.chat_template_error = engine->chat.broken ? engine->chat.error : NULL;
    snprintf(full.dtype, sizeof full.dtype, "%s", dtype_name(c->shape.compute_dtype));
    snprintf(full.quantization, sizeof full.quantization, "%s",
             quantization_name(c->shape.quantization));
    session_fingerprint(engine->session, full.fingerprint);
    memcpy(info, &full, info->size < sizeof full ? info->size : sizeof full);
}

static_assert((int)QUIRE_KEEP == (int)IN_FLIGHT_KEEP && (int)QUIRE_ABORT == (int)IN_FLIGHT_ABORT &&
                  (int)QUIRE_WAIT == (int)IN_FLIGHT_WAIT,
              "one enumeration under two names");

enum quire_code quire_engine_reload(struct quire_engine *engine, const char *dir,
                                    enum quire_in_flight mode, struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc;
    if ((unsigned)mode > QUIRE_WAIT)
        rc = q_fail(&e, Q_INVALID, "reload: mode is %d, expected one of enum quire_in_flight",
                    (int)mode);
    else
        rc = session_reload(engine->session, dir ? dir : "", (enum in_flight_mode)mode, &e);
    return rc ? quire_error_give(error, &e) : QUIRE_OK;
}

void quire_engine_stats(struct quire_engine *engine, struct quire_stats *stats)
{
    struct scheduler_stats s;
    struct quire_stats full = {.size = stats->size};
    session_stats(engine->session, &s, &full.worker_restarts);
    full.steps = s.step;
    full.prompt_tokens = s.prompt_tokens;
    full.generation_tokens = s.generation_tokens;
    full.preemptions = s.n_preemption;
    full.aborted = s.n_aborted;
    full.finished = s.n_finished;
    full.running = s.n_running;
    full.waiting = s.n_waiting;
    full.blocks_used = s.kv_blocks_used;
    full.blocks_total = s.kv_blocks_total;
    full.prefix_queries = s.prefix_queries;
    full.prefix_hits = s.prefix_hits;
    full.swapped = s.n_swapped;
    full.swap_blocks_used = s.swap_blocks_used;
    full.swap_blocks_total = s.swap_blocks_total;
    full.swap_preemptions = s.n_swap_out;
    full.step_gaps = s.n_gap;
    full.step_gap_us = s.gap_us;
    memcpy(stats, &full, stats->size < sizeof full ? stats->size : sizeof full);
}

/* request */

void quire_params_init(struct quire_params *p, size_t size)
{
    const struct quire_params defaults = {
        .size = size,
        .n_text = SIZE_MAX,
        .add_special = true,
        .temperature = -1,
        .top_p = -1,
        .min_p = -1,
        .repetition_penalty = -1,
        .top_k = -1,
        .seed = -1,
        .skip_special = true,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .parallel_tool_calls = true,
    };
    memset(p, 0, size);
    memcpy(p, &defaults, size < sizeof defaults ? size : sizeof defaults);
}

static float choose_param(float given, bool has, double model, float otherwise)
{
    return given >= 0 ? given : has ? (float)model : otherwise;
}

static struct proto_bytes bytes_of(const char *text) /* NULL: none */
{
    return (struct proto_bytes){(const unsigned char *)text, text ? strlen(text) : 0};
}

static FALLIBLE submit_of(struct msg_submit *m, const struct quire_engine *engine,
                          const struct quire_params *p, struct q_err *e)
{
    const struct generation_defaults *g = &engine->defaults;
    bool caps = p->max_tokens == 0 && quire_chat_asked(p) && g->has_max_new_tokens;
    uint32_t max = caps && g->max_new_tokens > 0 ? (uint32_t)g->max_new_tokens : p->max_tokens;
    int64_t top_k = p->top_k >= 0 ? p->top_k : g->has_top_k && g->top_k > 0 ? g->top_k : 0;
    uint64_t seed = (uint64_t)p->seed;
    if (p->seed < 0 && getrandom(&seed, sizeof seed, 0) != sizeof seed)
        return q_fail(e, Q_IO, "cannot get random numbers: %s", strerror(errno));
    if (p->logprobs > (int32_t)SAMPLE_LOGPROBS_MAX ||
        p->prompt_logprobs > (int32_t)SAMPLE_LOGPROBS_MAX)
        return q_fail(e, Q_INVALID, "logprobs is %d and prompt_logprobs is %d, expected at most %d",
                      p->logprobs, p->prompt_logprobs, SAMPLE_LOGPROBS_MAX);
    *m = (struct msg_submit){
        .temperature = choose_param(p->temperature, g->has_temperature, g->temperature, 1),
        .top_p = choose_param(p->top_p, g->has_top_p, g->top_p, 1),
        .min_p = choose_param(p->min_p, g->has_min_p, g->min_p, 0),
        .top_k = top_k > UINT32_MAX ? UINT32_MAX : (uint32_t)top_k,
        .repetition_penalty = choose_param(p->repetition_penalty, g->has_repetition_penalty,
                                           g->repetition_penalty, 1),
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .seed = seed,
        .max_tokens = max ? max : session_info(engine->session)->limits.max_model_len,
        .max_tokens_fits = !p->max_tokens,
        .min_tokens = p->min_tokens,
        .ignore_eos = p->ignore_eos,
        .n_logprob = p->logprobs < 0 ? 0 : (uint32_t)p->logprobs + 1,
        .n_prompt_logprob = p->prompt_logprobs < 0 ? 0 : (uint32_t)p->prompt_logprobs + 1,
        .stop_ids = {p->stop_ids, p->n_stop_id},
        .bias_ids = {p->bias_ids, p->n_bias},
        .bias = {p->bias, p->n_bias},
        .allowed_ids = {p->allowed_ids, p->n_allowed},
        .priority = (uint32_t)p->priority,
        .adapter = {p->adapter, p->adapter ? strlen(p->adapter) : 0},
        .cache_salt = bytes_of(p->cache_salt),
        .no_prefix_cache = p->no_prefix_cache,
        .grammar_kind = p->grammar_kind,
        .grammar = bytes_of(p->grammar),
        .grammar_after = bytes_of(p->grammar_after),
    };
    return Q_OK;
}

static_assert((int)QUIRE_FLOAT32 == (int)ITEM_F32 && (int)QUIRE_UINT8 == (int)ITEM_U8 &&
                  (int)QUIRE_INT32 == (int)ITEM_I32 && (int)QUIRE_FLOAT64 == (int)ITEM_NUMBERS,
              "one enumeration under two names");

/* [p->n_input] borrowing what the caller gave; NULL: none, or `e`. */
static FALLIBLE arrays_of(struct item_array **out, const struct quire_params *p, struct q_err *e)
{
    if (p->n_input > ITEMS_MAX)
        return q_fail(e, Q_INVALID, "inputs: %zu, expected at most %u", p->n_input, ITEMS_MAX);
    struct item_array *all = p->n_input ? q_calloc(p->n_input, sizeof *all) : NULL;
    if (p->n_input && !all)
        return q_fail(e, Q_NO_MEMORY, "inputs: out of memory for %zu", p->n_input);
    *out = all;
    for (size_t i = 0; i < p->n_input; i++) {
        const struct quire_input *from = &p->inputs[i];
        if (!from->modality || (unsigned)from->number > QUIRE_FLOAT64 ||
            from->n_dim > ITEM_ARRAY_DIMS_MAX || (!from->data && from->n_byte))
            return q_fail(e, Q_INVALID,
                          "inputs[%zu]: expected the name of a modality, a type of enum "
                          "quire_number, at most %u dimensions, and data",
                          i, ITEM_ARRAY_DIMS_MAX);
        all[i] = (struct item_array){
            .modality = from->modality,
            .dtype = (enum item_dtype)from->number,
            .n_dim = from->n_dim,
            .data = from->data,
            .n_byte = from->n_byte,
        };
        memcpy(all[i].dims, from->dims, from->n_dim * sizeof *from->dims);
        if (item_array_bytes(&all[i]) != from->n_byte)
            return q_fail(e, Q_INVALID, "inputs[%zu]: %zu bytes, expected %zu for its shape", i,
                          from->n_byte, item_array_bytes(&all[i]));
    }
    return Q_OK;
}

/* Of a model with inputs: an answer that does not fit is not cut (a frame is whole or nothing). */
static FALLIBLE check_length(const struct quire_engine *engine, const struct quire_request *r,
                             const struct quire_params *p, struct q_err *e)
{
    const struct core_info *info = session_info(engine->session);
    if (!r->chat && !(info->n_modality && p->max_tokens))
        return Q_OK;
    return turn_check_length(r->chat ? "messages" : "prompt", r->n_prompt, p->max_tokens,
                             info->limits.max_model_len, e);
}

static FALLIBLE prompt_of(struct token_list *ids, const struct quire_engine *engine,
                          const struct quire_request *r, const struct quire_params *p,
                          struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (r->chat) { /* templates write special tokens themselves */
        const struct buf *prompt = quire_chat_prompt(r->chat);
        struct parts *parts = quire_chat_parts(r->chat);
        const struct tokenizer_text text = {
            .data = buf_str(prompt),
            .n = prompt->len,
            .content = quire_chat_content(r->chat),
            .inserts = parts->places,
            .n_insert = parts->list.n,
        };
        return tokenizer_encode_prompt(engine->tokenizer, &text, false, ids, e);
    }
    if (!p->text) {
        for (size_t i = 0; i < p->n_ids && !rc; i++)
            rc = token_list_add(ids, p->ids[i], e);
        return rc;
    }
    if (!engine->tokenizer)
        return q_fail(e, Q_UNSUPPORTED,
                      "the engine was opened with skip_tokenizer: prompts are token ids");
    return tokenizer_encode(engine->tokenizer, p->text,
                            p->n_text == SIZE_MAX ? strlen(p->text) : p->n_text, p->add_special,
                            ids, e);
}

/* A conversation changes only the grammar of its parameters. */
static FALLIBLE begin_chat(struct quire_request *r, const struct quire_engine *engine,
                           struct quire_params *p, struct q_err *e)
{
    if (p->n_input)
        return q_fail(e, Q_INVALID,
                      "inputs: not accepted with a conversation; its messages have content parts");
    if (p->text || p->n_ids)
        return q_fail(e, Q_INVALID,
                      "params: expected one prompt, got several of conversation, text and ids");
    if (!engine->tokenizer)
        return q_fail(e, Q_UNSUPPORTED,
                      "messages: the engine was opened with skip_tokenizer: prompts are token ids");
    return quire_chat_new(&r->chat, &engine->chat, session_item_types(engine->session), p, e);
}

static FALLIBLE request_init(struct quire_request *r, const struct quire_engine *engine,
                             struct quire_params *p, struct q_err *e)
{
    size_t n_item_max = (size_t)session_info(engine->session)->limits.max_model_len * 2 + 16;
    enum q_code rc;
    r->session = engine->session;
    r->include_stop = p->include_stop;
    r->items.notify = p->notify;
    r->items.notify_ctx = p->notify_ctx;
    if ((rc = queue_init(&r->items.items, sizeof(struct session_item), n_item_max, false, e)))
        return rc;
    if ((rc = quire_chat_asked(p) ? begin_chat(r, engine, p, e) : quire_chat_unasked(p, e)))
        return rc;
    /* A format's tags may be special tokens; the parser needs to see them. */
    bool skips = p->skip_special && !(r->chat && quire_chat_parses(r->chat));
    if (engine->tokenizer && (rc = detok_new(&r->detok, engine->tokenizer, skips, e)))
        return rc;
    if (!p->n_stop)
        return Q_OK;
    if (!engine->tokenizer)
        return q_fail(e, Q_UNSUPPORTED, "stop strings require a tokenizer");
    return stop_new(&r->stop, p->stops, p->n_stop, p->include_stop, e);
}

static void request_release(struct quire_request *r)
{
    queue_release(&r->items.items);
    detok_free(r->detok);
    stop_free(r->stop);
    quire_chat_free(r->chat);
    buf_release(&r->piece);
    buf_release(&r->kept);
    buf_release(&r->text);
    q_free(r->top);
    q_free(r);
}

/* The items of a conversation, and where their placeholders are. *positions: allocated. */
static FALLIBLE take_parts(struct session_submit_args *a, struct msg_submit *m,
                           uint32_t **positions, const struct parts *parts, struct q_err *e)
{
    const size_t n = parts->list.n;
    if (!n)
        return Q_OK;
    uint32_t *at = *positions = q_calloc(n, sizeof *at);
    if (!at)
        return q_fail(e, Q_NO_MEMORY, "messages: out of memory for %zu items", n);
    for (size_t i = 0; i < n; i++)
        at[i] = (uint32_t)parts->places[i].position;
    m->item_positions = (struct proto_u32s){at, n};
    a->items = parts->list.items;
    a->n_item = (uint32_t)n;
    return Q_OK;
}

/* A count above 0 needs its array. */
static FALLIBLE check_arrays(const struct quire_params *p, struct q_err *e)
{
    const struct {
        const char *array, *count;
        const void *data;
        size_t n;
    } all[] = {
        {"ids", "n_ids", p->ids, p->text ? 0 : p->n_ids},
        {"stops", "n_stop", p->stops, p->n_stop},
        {"stop_ids", "n_stop_id", p->stop_ids, p->n_stop_id},
        {"bias_ids", "n_bias", p->bias_ids, p->n_bias},
        {"bias", "n_bias", p->bias, p->n_bias},
        {"allowed_ids", "n_allowed", p->allowed_ids, p->n_allowed},
        {"inputs", "n_input", p->inputs, p->n_input},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].n && !all[i].data)
            return q_fail(e, Q_INVALID, "%s: NULL with %s = %zu, expected an array of that length",
                          all[i].array, all[i].count, all[i].n);
    for (size_t i = 0; i < p->n_stop; i++)
        if (!p->stops[i])
            return q_fail(e, Q_INVALID, "stops[%zu]: NULL, expected a string", i);
    return Q_OK;
}

#define PROMPT_END_TOKENS 256u /* a tag that opens reasoning, and blanks after it */

/* submit.thinking, which borrows `words`; nothing where a grammar lets no reasoning come. */
static FALLIBLE set_thinking(struct token_list *words, const struct quire_engine *engine,
                             const struct quire_request *r, const struct quire_params *p,
                             struct msg_submit *m, struct q_err *e)
{
    struct buf end = BUF_INIT;
    enum q_code rc = Q_OK;
    if (!p->has_thinking_budget)
        return Q_OK;
    if ((rc = thinking_words_check(&engine->chat, engine->tokenizer, e)) ||
        (m->grammar_kind && !m->grammar_after.n && !m->reasoning_tags.n))
        return rc;
    const size_t n = m->prompt.n < PROMPT_END_TOKENS ? m->prompt.n : PROMPT_END_TOKENS;
    const struct buf *prompt = r->chat ? quire_chat_prompt(r->chat) : &end;
    if (!r->chat)
        rc = tokenizer_decode(engine->tokenizer, m->prompt.data + m->prompt.n - n, n, false, &end,
                              e);
    const struct thinking_words_args a = {
        .model = &engine->chat,
        .tokenizer = engine->tokenizer,
        .max_tokens = p->thinking_token_budget,
        .prompt = buf_str(prompt),
        .n_prompt = prompt->len,
        .calls = r->chat && p->tools_json,
        .grammar = m->grammar_kind != 0,
    };
    if (!rc)
        rc = thinking_words(words, &a, e);
    m->thinking = (struct proto_u32s){words->ids, words->n};
    buf_release(&end);
    return rc;
}

static FALLIBLE submit_request(struct quire_request *r, struct quire_engine *engine,
                               const struct quire_params *given, struct q_err *e)
{
    struct quire_params p;
    struct token_list ids = TOKEN_LIST_INIT, thinking = TOKEN_LIST_INIT;
    struct session_submit_args a = {.request = &r->items};
    struct item_array *arrays = NULL;
    uint32_t *positions = NULL;
    struct msg_submit m;
    enum q_code rc;
    quire_params_init(&p, sizeof p);
    if (given->size < offsetof(struct quire_params, add_special) || given->size > 2 * sizeof p)
        return q_fail(e, Q_INVALID, "params: size is %zu; call quire_params_init first",
                      given->size);
    memcpy(&p, given, given->size < sizeof p ? given->size : sizeof p);
    if ((rc = check_arrays(&p, e)) || (rc = request_init(r, engine, &p, e)) ||
        (rc = prompt_of(&ids, engine, r, &p, e)) || (rc = submit_of(&m, engine, &p, e)))
        goto out;
    m.prompt = (struct proto_u32s){ids.ids, ids.n};
    const struct buf *tags = r->chat ? quire_chat_tags(r->chat) : NULL;
    if (tags)
        m.reasoning_tags = (struct proto_bytes){(const unsigned char *)tags->data, tags->len};
    r->n_prompt = (uint32_t)ids.n;
    if ((rc = check_length(engine, r, &p, e)) || (rc = arrays_of(&arrays, &p, e)) ||
        (rc = set_thinking(&thinking, engine, r, &p, &m, e)))
        goto out;
    a.submit = &m;
    a.items = arrays;
    a.n_item = (uint32_t)p.n_input;
    if (r->chat && (rc = take_parts(&a, &m, &positions, quire_chat_parts(r->chat), e)))
        goto out;
    if (!(rc = session_submit(engine->session, &a, e)))
        r->n_prompt = a.n_prompt;
out:
    q_free(positions);
    q_free(arrays);
    token_list_release(&ids);
    token_list_release(&thinking);
    return rc;
}

enum quire_code quire_submit(struct quire_request **out, struct quire_engine *engine,
                             const struct quire_params *p, struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct quire_request *r = q_calloc(1, sizeof *r);
    if (!r)
        q_fail(&e, Q_NO_MEMORY, "request: out of memory");
    else if (submit_request(r, engine, p, &e))
        request_release(r);
    else
        *out = r;
    return e.code ? quire_error_give(error, &e) : QUIRE_OK;
}

/* Add final text: through the stop strings if there are any; of a conversation only its content. */
static FALLIBLE add_text(struct quire_request *r, bool last, int *i_hit, struct q_err *e)
{
    const struct buf *final = &r->piece;
    enum q_code rc = Q_OK;
    *i_hit = -1;
    if (r->stop) {
        final = &r->kept;
        rc = stop_push(r->stop, buf_str(&r->piece), r->piece.len, &r->kept, i_hit, e);
        if (!rc && last && *i_hit < 0)
            rc = stop_flush(r->stop, &r->kept, e);
    }
    if (!rc)
        rc = buf_check(final, "text", e);
    if (rc)
        return rc;
    if (r->chat)
        return quire_chat_feed(r->chat, final, last || *i_hit >= 0, &r->text, e);
    buf_add(&r->text, buf_str(final), final->len);
    return buf_check(&r->text, "text", e);
}

static void set_finish(struct quire_request *r, enum quire_finish why, int32_t i_stop,
                       int64_t stop_id)
{
    r->finished = true;
    if (why == QUIRE_FINISH_STOP && r->chat && quire_chat_calls(r->chat))
        why = QUIRE_FINISH_TOOL_CALLS;
    r->finish = (struct quire_event){
        .kind = QUIRE_FINISH,
        .finish = why,
        .i_stop = i_stop,
        .stop_id = stop_id,
    };
}

/* A stop string ends the request: abort it in the engine and drop later events. */
static void stop_found(struct quire_request *r, int i_hit)
{
    set_finish(r, QUIRE_FINISH_STOP, i_hit, -1);
    if (!r->engine_done)
        session_abort(r->session, &r->items);
}

static FALLIBLE take_token(struct quire_request *r, const struct session_item *item,
                           struct quire_event *event, struct q_err *e)
{
    int i_hit = -1;
    bool hidden = item->kind == SESSION_PROMPT || (item->finish == FINISH_STOP && !r->include_stop);
    enum q_code rc = Q_OK;
    r->top = item->top;
    *event = (struct quire_event){
        .kind = item->kind == SESSION_PROMPT ? QUIRE_PROMPT : QUIRE_TOKEN,
        .token = item->token,
        .position = item->position,
        .logprob = item->logprob,
        .rank = item->rank,
        .top = (const struct quire_alternative *)(const void *)item->top,
        .n_top = item->n_top,
        .i_stop = -1,
        .stop_id = -1,
    };
    if (r->detok && !hidden && !(rc = detok_push(r->detok, item->token, &r->piece, e)))
        rc = add_text(r, false, &i_hit, e);
    if (i_hit >= 0)
        stop_found(r, i_hit);
    event->text = buf_str(&r->text);
    event->n_text = r->text.len;
    return rc;
}

static FALLIBLE take_finish(struct quire_request *r, const struct session_item *item,
                            struct quire_event *event, struct q_err *e)
{
    static const enum quire_finish reasons[] = {QUIRE_FINISH_NONE, QUIRE_FINISH_STOP,
                                                QUIRE_FINISH_LENGTH, QUIRE_FINISH_ABORT,
                                                QUIRE_FINISH_ERROR};
    int i_hit = -1;
    enum q_code rc = Q_OK;
    r->engine_done = true;
    if (item->error.code) {
        *e = item->error;
        set_finish(r, QUIRE_FINISH_ERROR, -1, -1);
        return e->code;
    }
    if (r->chat && item->finish != FINISH_STOP)
        quire_chat_cut(r->chat);
    if (r->detok && !(rc = detok_flush(r->detok, &r->piece, e)))
        rc = add_text(r, true, &i_hit, e);
    set_finish(r, i_hit >= 0 ? QUIRE_FINISH_STOP : reasons[item->finish], i_hit,
               i_hit < 0 && item->stop_id ? (int64_t)item->stop_id - 1 : -1);
    *event = r->finish;
    event->text = buf_str(&r->text);
    event->n_text = r->text.len;
    return rc;
}

/* The next event of the engine, turned into one of ours. */
static FALLIBLE take_item(struct quire_request *r, struct quire_event *event, int timeout_ms,
                          struct q_err *e)
{
    struct session_item item;
    enum q_code rc;
    q_free(r->top);
    r->top = NULL;
    buf_reset(&r->piece);
    buf_reset(&r->kept);
    buf_reset(&r->text);
    if (r->finished) {
        *event = r->finish;
        event->text = "";
        return Q_OK;
    }
    if (!queue_pop(&r->items.items, &item, timeout_ms)) {
        if (!queue_closed(&r->items.items))
            return q_fail(e, Q_TIMEOUT, "timeout: no event within %d ms", timeout_ms);
        r->engine_done = true;
        set_finish(r, QUIRE_FINISH_ERROR, -1, -1);
        return q_fail(e, Q_NO_MEMORY, "request: out of memory for its events");
    }
    if (item.kind == SESSION_FINISH)
        return take_finish(r, &item, event, e);
    rc = take_token(r, &item, event, e);
    if (rc && !r->finished) {
        set_finish(r, QUIRE_FINISH_ERROR, -1, -1);
        session_abort(r->session, &r->items);
    }
    return rc;
}

static FALLIBLE next(struct quire_request *r, struct quire_event *event, int timeout_ms,
                     struct q_err *e)
{
    enum q_code rc;
    if (r->chat && quire_chat_next(r->chat, event))
        return Q_OK;
    if (r->holds) {
        *event = r->held;
        r->holds = false;
        return Q_OK;
    }
    rc = take_item(r, event, timeout_ms, e);
    if (rc || !r->chat)
        return rc;
    r->held = *event;
    r->holds = quire_chat_next(r->chat, event);
    if (!r->holds)
        *event = r->held;
    return Q_OK;
}

enum quire_code quire_next(struct quire_request *r, struct quire_event *event, int timeout_ms,
                           struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = next(r, event, timeout_ms, &e);
    if (rc && rc != Q_TIMEOUT) {
        *event = r->finish;
        event->text = "";
    }
    return rc ? quire_error_give(error, &e) : QUIRE_OK;
}

const char *quire_request_message(struct quire_request *r)
{
    const char *message = r->chat ? quire_chat_message(r->chat) : NULL;
    return message ? message : "";
}

uint32_t quire_request_n_prompt(const struct quire_request *r)
{
    return r->n_prompt;
}

void quire_request_free(struct quire_request *r)
{
    struct session_item item;
    if (!r)
        return;
    if (!r->engine_done && !r->finished)
        session_abort(r->session, &r->items);
    while (!r->engine_done && queue_pop(&r->items.items, &item, -1)) {
        q_free(item.top);
        r->engine_done = item.kind == SESSION_FINISH;
    }
    request_release(r);
}

/* text */

enum quire_code quire_tokenize(const struct quire_engine *engine, struct quire_tokens *out,
                               const struct quire_text *in, bool add_special,
                               struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct token_list list = TOKEN_LIST_INIT;
    if (!engine->tokenizer)
        q_fail(&e, Q_UNSUPPORTED, "the engine was opened with skip_tokenizer");
    else if (in->n && !in->bytes)
        q_fail(&e, Q_INVALID, "text: NULL with n = %zu, expected that many bytes", in->n);
    else if (!tokenizer_encode(engine->tokenizer, in->bytes, in->n, add_special, &list, &e)) {
        *out = (struct quire_tokens){list.ids, list.n}; /* the list's memory goes to the caller */
        return QUIRE_OK;
    }
    token_list_release(&list);
    return quire_error_give(error, &e);
}

enum quire_code quire_detokenize(const struct quire_engine *engine, struct quire_text *out,
                                 const struct quire_tokens *in, bool skip_special,
                                 struct quire_error *error)
{
    struct q_err e = Q_ERR_INIT;
    struct buf b = BUF_INIT;
    if (!engine->tokenizer)
        q_fail(&e, Q_UNSUPPORTED, "the engine was opened with skip_tokenizer");
    else if (in->n && !in->ids)
        q_fail(&e, Q_INVALID, "ids: NULL with n = %zu, expected that many token ids", in->n);
    else if (!tokenizer_decode(engine->tokenizer, in->ids, in->n, skip_special, &b, &e) &&
             !buf_check(&b, "text", &e)) {
        char *bytes = b.data ? b.data : q_strdup(""); /* the buffer's memory goes to the caller */
        if (bytes) {
            *out = (struct quire_text){bytes, b.len};
            return QUIRE_OK;
        }
        q_fail(&e, Q_NO_MEMORY, "text: out of memory");
    }
    buf_release(&b);
    return quire_error_give(error, &e);
}

enum quire_code quire_input_read(struct quire_input *out, const char *path, const char *tensor,
                                 struct quire_error *error)
{
    struct item_list list = ITEM_LIST_INIT;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = item_list_file(&list, path, tensor, &e);
    const struct item_array *a = rc ? NULL : &list.items[0];
    void *data = a ? q_alloc(a->n_byte + 1) : NULL;
    if (a && !data)
        rc = q_fail(&e, Q_NO_MEMORY, "out of memory for %zu bytes", a->n_byte);
    if (a && data) {
        if (a->n_byte)
            memcpy(data, a->data, a->n_byte);
        *out = (struct quire_input){
            .number = (enum quire_number)a->dtype,
            .n_dim = a->n_dim,
            .data = data,
            .n_byte = a->n_byte,
        };
        memcpy(out->dims, a->dims, a->n_dim * sizeof *a->dims);
    }
    item_list_release(&list);
    return rc ? quire_error_give(error, &e) : QUIRE_OK;
}

void quire_free(const void *memory)
{
    q_free((void *)(uintptr_t)memory);
}

const char *quire_version(void)
{
    return QUIRE_VERSION;
}
