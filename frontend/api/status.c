/* SPDX-License-Identifier: Apache-2.0 */
/* /health, /ready, /version, /metrics, /v1/models: information about the server. */
#include <string.h>
#include "common/mem.h"
#include "common/metrics.h"
#include "frontend/api/app.h"
#include "proto/step.h"

#define SCRAPE_MS 500 /* to wait for the engine */

static void reply_json(struct http_exchange *x, int status, struct buf *body)
{
    http_reply(x, status, "application/json", body);
}

void on_health(void *app, struct http_exchange *x)
{
    struct buf body = BUF_INIT;
    (void)app;
    buf_add_str(&body, "{\"status\":\"ok\"}");
    reply_json(x, 200, &body);
}

void on_ready(void *app, struct http_exchange *x)
{
    struct buf body = BUF_INIT, reasons = BUF_INIT;
    app_reasons(app, &reasons);
    bool ready = reasons.len == 0;
    const char *code = app_code(app), *quote = *code ? "\"" : "";
    buf_printf(&body, "{\"status\":\"%s\",\"reasons\":[%s],\"codes\":[%s%s%s]}",
               ready ? "ready" : "not ready", buf_str(&reasons), quote, code, quote);
    buf_release(&reasons);
    reply_json(x, ready ? 200 : 503, &body);
}

void on_version(void *app, struct http_exchange *x)
{
    struct buf body = BUF_INIT;
    (void)app;
    buf_add_str(&body, "{\"version\":\"" QUIRE_VERSION "\"}");
    reply_json(x, 200, &body);
}

/* /metrics requests a heartbeat and waits for it, so that the values include the effect of earlier
 * requests. The wait is short: if the engine is lost or busy, the other values are still served. */
struct scrape {
    struct scrape *next;
    uv_timer_t timer;
    struct app *app;
    struct http_exchange *x;
};

static void reply_metrics(struct app *a, struct http_exchange *x)
{
    struct buf body = BUF_INIT;
    char labels[64];
    metrics_render(&body, a->served.names[0]);
    snprintf(labels, sizeof labels, "block_size=\"%u\",num_gpu_blocks=\"%.0f\"", STEP_BLOCK_TOKENS,
             metric_value(METRIC_KV_TOTAL));
    metrics_render_info(&body, a->served.names[0], "vllm:cache_config_info",
                        "Configuration of the KV cache: tokens per block and number of blocks.",
                        labels);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void on_scrape_closed(uv_handle_t *h)
{
    q_free(h->data);
}

/* Remove from the list; the caller owns the exchange. */
static void end_scrape(struct scrape *s)
{
    struct scrape **at = &s->app->scrapes;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    http_on_gone(s->x, NULL, NULL);
    uv_close((uv_handle_t *)&s->timer, on_scrape_closed);
}

static void on_scrape_gone(void *ctx)
{
    end_scrape(ctx);
}

static void on_scrape_time(uv_timer_t *timer)
{
    struct scrape *s = timer->data;
    end_scrape(s);
    reply_metrics(s->app, s->x);
}

void status_told(void *app)
{
    struct app *a = app;
    while (a->scrapes) {
        struct scrape *s = a->scrapes;
        end_scrape(s);
        reply_metrics(a, s->x);
    }
}

void on_metrics(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct scrape *s = a->engines && engines_ask(a->engines) ? q_calloc(1, sizeof *s) : NULL;
    if (!s) {
        reply_metrics(a, x);
        return;
    }
    *s = (struct scrape){.next = a->scrapes, .app = a, .x = x};
    a->scrapes = s;
    uv_timer_init(&a->loop, &s->timer);
    s->timer.data = s;
    uv_timer_start(&s->timer, on_scrape_time, SCRAPE_MS, 0);
    http_on_gone(x, on_scrape_gone, s);
}

/* vLLM's ModelPermission, the same for every model: sampling and logprobs are allowed. */
static void add_permission(const char *name, struct buf *out)
{
    struct buf id = BUF_INIT;
    buf_printf(&id, "modelperm-%s", name);
    buf_add_str(out, "{\"id\":");
    buf_add_json_str(out, buf_str(&id), id.len);
    buf_release(&id);
    buf_printf(out, ",\"object\":\"model_permission\",\"created\":%.0f",
               metric_value(METRIC_START_TIME));
    buf_add_str(out, ",\"allow_create_engine\":false,\"allow_sampling\":true,"
                     "\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
                     "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
                     "\"is_blocking\":false}");
}

struct shown_model {
    const char *id, *root, *parent; /* parent NULL: none */
};

static void add_text(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, ",\"%s\":", key);
    if (text)
        buf_add_json_str(out, text, strlen(text));
    else
        buf_add_str(out, "null");
}

static void add_model(const struct app *a, const struct shown_model *m, struct buf *out)
{
    buf_add_str(out, "{\"id\":");
    buf_add_json_str(out, m->id, strlen(m->id));
    buf_printf(out, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"quire\"",
               metric_value(METRIC_START_TIME));
    add_text(out, "root", m->root);
    add_text(out, "parent", m->parent);
    buf_printf(out, ",\"max_model_len\":%u,\"permission\":[", app_max_model_len(a));
    add_permission(m->id, out);
    buf_add_str(out, "]}");
}

/* An adapter: its folder, and the model that it belongs to. */
static struct shown_model shown_adapter(const struct app *a, const struct adapter_entry *of)
{
    return (struct shown_model){of->name, of->path, a->served.names[0]};
}

void on_models(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct buf body = BUF_INIT;
    struct adapter_entry adapter;
    buf_add_str(&body, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < a->served.n_name; i++) {
        if (!http_key_allows(x, a->served.names[i]))
            continue;
        buf_add_str(&body, body.data[body.len - 1] == '[' ? "" : ",");
        add_model(a, &(struct shown_model){a->served.names[i], a->options->positional[0], NULL},
                  &body);
    }
    for (size_t at = 0; adapter_list_next(&engines_info(a->engines)->adapters, &at, &adapter);) {
        const struct shown_model m = shown_adapter(a, &adapter);
        if (!http_key_allows(x, adapter.name))
            continue;
        buf_add_str(&body, body.data[body.len - 1] == '[' ? "" : ",");
        add_model(a, &m, &body);
    }
    buf_add_str(&body, "]}");
    reply_json(x, 200, &body);
}

/* Of GET, DELETE and cancel: whatever the id, there is no such response. */
void on_stored_response(void *app, struct http_exchange *x)
{
    const struct http_text path = http_path(x);
    const size_t n_prefix = strlen("/v1/responses/");
    size_t n_id = 0;
    struct q_err e = Q_ERR_INIT;
    while (n_prefix + n_id < path.n && path.data[n_prefix + n_id] != '/')
        n_id++;
    enum q_code rc = q_fail(&e, Q_NOT_FOUND,
                            "response_id: no response \"%.*s\": responses are not stored, and "
                            "previous_response_id is not available; send the whole conversation in "
                            "input",
                            (int)(n_id < 80 ? n_id : 80), path.data + n_prefix);
    (void)rc; /* in e */
    (void)app;
    http_reply_error(
        x, &(struct http_error){.code = e.code, .message = e.message, .param = "response_id"});
}

void on_model(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct buf body = BUF_INIT;
    char name[512];
    struct http_text path = http_path(x);
    size_t n_prefix = strlen("/v1/models/");
    struct adapter_entry adapter;
    const struct buf *adapters = &engines_info(a->engines)->adapters;
    snprintf(name, sizeof name, "%.*s", (int)(path.n - n_prefix), path.data + n_prefix);
    if (!*name || served_model_find_name(&a->served, name, adapters, &adapter, &e) != Q_OK ||
        app_check_key(a, x, adapter.name, &e) != Q_OK) {
        app_reply_error(x, &e, "model");
        return;
    }
    const struct shown_model own = {name, a->options->positional[0], NULL};
    const struct shown_model of = adapter.name ? shown_adapter(a, &adapter) : own;
    add_model(a, &of, &body);
    reply_json(x, 200, &body);
}
