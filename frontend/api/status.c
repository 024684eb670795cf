/* SPDX-License-Identifier: Apache-2.0 */
/* /health, /ready, /version, /metrics, /v1/models: what the server says of itself. */
#include <string.h>
#include "common/metrics.h"
#include "frontend/api/app.h"
#include "proto/step.h"

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
    buf_printf(&body, "{\"status\":\"%s\",\"reasons\":[%s]}", ready ? "ready" : "not ready",
               buf_str(&reasons));
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

void on_metrics(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct buf body = BUF_INIT;
    char labels[64];
    metrics_render(&body, a->served.names[0]);
    snprintf(labels, sizeof(labels), "block_size=\"%u\",num_gpu_blocks=\"%.0f\"", STEP_BLOCK_TOKENS,
             metric_value(METRIC_KV_TOTAL));
    metrics_render_info(&body, a->served.names[0], "vllm:cache_config_info",
                        "The KV cache: tokens of a block, blocks of the pool.", labels);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void add_model(const struct app *a, const char *name, struct buf *out)
{
    buf_add_str(out, "{\"id\":");
    buf_add_json_str(out, name, strlen(name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"quire\",\"root\":",
               metric_value(METRIC_START_TIME));
    buf_add_json_str(out, a->options->positional[0], strlen(a->options->positional[0]));
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%u}", app_max_model_len(a));
}

void on_models(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct buf body = BUF_INIT;
    buf_add_str(&body, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < a->served.n_name; i++) {
        buf_add_str(&body, i ? "," : "");
        add_model(a, a->served.names[i], &body);
    }
    buf_add_str(&body, "]}");
    reply_json(x, 200, &body);
}

void on_model(void *app, struct http_exchange *x)
{
    struct app *a = app;
    struct q_err e = Q_ERR_INIT;
    struct buf body = BUF_INIT;
    char name[512];
    struct http_text path = http_path(x);
    size_t n_prefix = strlen("/v1/models/");
    snprintf(name, sizeof(name), "%.*s", (int)(path.n - n_prefix), path.data + n_prefix);
    if (!*name || served_check_name(&a->served, name, &e) != Q_OK) {
        app_reply_error(x, &e, "model");
        return;
    }
    add_model(a, name, &body);
    reply_json(x, 200, &body);
}
