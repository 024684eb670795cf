/* SPDX-License-Identifier: Apache-2.0 */
/* The port is open before everything else: config.json is read, then the server listens, then the
 * tokenizer is loaded on a thread, then the engine is connected. So a load balancer gets /health at
 * once, and /ready when the model can be served. */
#include "frontend/api/app.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/json_read.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/net.h"
#include "common/parse.h"
#include "common/start.h"
#include "frontend/api/json.h"
#include "frontend/api/request_record.h"
#include "frontend/http/tls_relay.h"
#include "proto/address.h"
#include "common/parsers/parser.h"

#define APP_SIGN_MS       2000
#define DESCRIPTORS       65536
#define DESCRIPTORS_OTHER 512  /* sockets of the engine, files, connections that linger */
#define BODIES_DEFAULT    16   /* of --max-body-bytes each: --max-total-body-bytes */
#define LAST_BYTES_MS     2000 /* for clients to read the errors that end their requests */
#define ALIKE_MS          2000 /* time between failures of several frontends with the same cause */

/* the same codes as quire-engine's; the supervisor does not restart after these */
enum { EXIT_USAGE = 2, EXIT_LOAD = 3, EXIT_ADDRESS = 5 };

void app_reply_error(struct http_exchange *x, const struct q_err *e, const char *param)
{
    http_reply_error(x, &(struct http_error){
                            .code = e->code,
                            .message = e->message,
                            .param = param && *param ? param : NULL,
                            .openai_code = e->code == Q_NOT_FOUND ? "model_not_found" : NULL,
                        });
}

FALLIBLE app_check_key(const struct app *a, const struct http_exchange *x, const char *adapter,
                       struct q_err *e)
{
    bool allowed = adapter && http_key_allows(x, adapter);
    for (uint32_t i = 0; !adapter && !allowed && i < a->served.n_name; i++)
        allowed = http_key_allows(x, a->served.names[i]);
    return allowed
               ? Q_OK
               : q_fail(e, Q_FORBIDDEN, "model: this API key has no access to the model \"%.100s\"",
                        adapter ? adapter : a->served.names[0]);
}

struct early {
    struct early *next;
    struct http_exchange *x; /* NULL after the exchange ended */
    http_handler *again;
};

static void on_early_gone(void *ctx)
{
    struct early *w = ctx;
    w->x = NULL;
}

bool app_available(struct app *a, struct http_exchange *x, http_handler *again)
{
    struct early *w;
    if (a->loaded && a->engines) /* also of a connection that was accepted before the drain began */
        return true;
    if (a->draining || !(w = q_calloc(1, sizeof *w))) {
        http_reply_error(x, &(struct http_error){
                                .code = Q_UNAVAILABLE,
                                .message = "the server is shutting down",
                                .retry_after_s = 1,
                            });
        return false;
    }
    *w = (struct early){a->early, x, again};
    a->early = w;
    http_on_gone(x, on_early_gone, w);
    return false;
}

/* The model is loaded: continue the requests that waited for it, in their order. */
static void serve_early(struct app *a)
{
    struct early *ordered = NULL;
    while (a->early) {
        struct early *w = a->early;
        a->early = w->next;
        w->next = ordered;
        ordered = w;
    }
    while (ordered) {
        struct early *w = ordered;
        ordered = w->next;
        if (w->x) {
            http_on_gone(w->x, NULL, NULL);
            w->again(a, w->x);
        }
        q_free(w);
    }
}

const char *app_code(const struct app *a)
{
    return a->draining                 ? "draining"
           : !a->loaded || !a->engines ? "tokenizer_loading"
                                       : engines_code(a->engines);
}

void app_reasons(const struct app *a, struct buf *out)
{
    const char *reason = a->draining                            ? "shutting down"
                         : !a->loaded || !a->engines            ? "loading the model's tokenizer"
                         : engines_state(a->engines) != LINK_UP ? engines_reason(a->engines)
                                                                : NULL;
    if (reason)
        buf_add_json_str(out, reason, strlen(reason));
}

uint32_t app_max_model_len(const struct app *a)
{
    uint32_t engine = a->engines ? engines_info(a->engines)->max_model_len : 0;
    return engine ? engine : a->served.max_model_len;
}

void app_item_types(const struct app *a, struct item_types *out)
{
    if (a->engines && engines_info(a->engines)->instance)
        *out = engines_info(a->engines)->item_types;
    else
        *out = (struct item_types){.unknown = true};
}

static void set_rss(void)
{
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    if (file_read(&text, "/proc/self/statm", 4096, &e) == Q_OK) {
        const char *second = strchr(buf_str(&text), ' ');
        if (second)
            metric_set(METRIC_RSS,
                       (double)strtoll(second, NULL, 10) * (double)sysconf(_SC_PAGESIZE));
    }
    buf_release(&text);
}

/* A descriptor number that the supervisor put into the environment; -1 = none. */
static int inherited(const char *name)
{
    const char *text = getenv(name);
    int64_t fd;
    struct q_err e = Q_ERR_INIT;
    if (!text || parse_i64(&fd, text, 0, 1 << 20, name, &e) != Q_OK)
        return -1;
    return (int)fd;
}

/* Send one byte to the supervisor. False: there is no supervisor. A full pipe is that of one that
 * is stopped. */
static bool tell_supervisor(unsigned char byte)
{
    int fd = inherited("QUIRE_READY_FD");
    if (fd >= 0 && write(fd, &byte, 1) != 1 && errno != EAGAIN)
        log_warning("cannot send a message to the supervisor: %s", strerror(errno));
    return fd >= 0;
}

static void on_gauge(uv_timer_t *timer)
{
    struct app *a = timer->data;
    set_rss();
    if (a->engines && engines_hang(a->engines))
        tell_supervisor(APP_ENGINE_HANGS);
    else if (a->announced)
        tell_supervisor((unsigned char)inherited("QUIRE_METRICS_SLOT")); /* the loop runs */
}

static void stop(struct app *a, int exit_code)
{
    a->exit_code = exit_code;
    uv_stop(&a->loop);
}

static void on_drained(void *ctx)
{
    struct app *a = ctx;
    log_info("all requests are finished");
    stop(a, 0);
}

static void on_unread(uv_timer_t *timer)
{
    struct app *a = timer->data;
    log_warning("%u clients have not read their last bytes: closing the connections",
                http_server_n_open(a->server));
    stop(a, 0);
}

/* What is still open ends with an error; a stream with an event of it and [DONE]. */
static void end_open(struct app *a, const char *message)
{
    uv_timer_start(&a->deadline, on_unread, LAST_BYTES_MS, 0);
    serve_early(a); /* draining: each is refused */
    if (a->engines)
        engines_end(a->engines, message);
}

static void on_deadline(uv_timer_t *timer)
{
    struct app *a = timer->data;
    log_warning("%u requests are still open after --shutdown-timeout: ending them with an error",
                http_server_n_open(a->server));
    end_open(a, "the server is shutting down and --shutdown-timeout is over: "
                "send the request again");
}

static void on_engine_failed(uv_signal_t *signal, int number)
{
    struct app *a = signal->data;
    (void)number;
    if (http_server_n_open(a->server))
        log_error("the engine has failed: ending %u open requests with an error",
                  http_server_n_open(a->server));
    if (!a->draining) {
        a->draining = true;
        http_server_drain(a->server, on_drained, a);
    }
    end_open(a, "the engine has failed and is not started again; the server ends");
}

static void on_signal(uv_signal_t *signal, int number)
{
    struct app *a = signal->data;
    if (a->draining) { /* a second signal ends the process at once */
        stop(a, 0);
        return;
    }
    a->draining = true;
    log_info("%s: accepting no new requests, %u requests are open",
             number == SIGINT ? "interrupted" : "terminated", http_server_n_open(a->server));
    uv_timer_start(&a->deadline, on_deadline, (uint64_t)a->options->shutdown_timeout * 1000, 0);
    http_server_drain(a->server, on_drained, a);
}

/* SIGHUP: read the files of the server again that may change. */
static void on_reload(uv_signal_t *signal, int number)
{
    struct app *a = signal->data;
    struct q_err e = Q_ERR_INIT;
    (void)number;
    if (!a->server)
        return;
    if (http_server_reload_tls(a->server, &e) != Q_OK)
        log_error("the certificate stays as it was: %s", e.message);
    q_err_reset(&e);
    if (!*a->options->api_key_file)
        return;
    if (http_server_reload_keys(a->server, &e) == Q_OK)
        log_info("read %zu API keys", http_server_n_key(a->server));
    else
        log_error("the API keys stay as they were: %s", e.message);
}

static void on_engines_change(void *ctx)
{
    struct app *a = ctx;
    a->tasks.reads_images = !a->engines || engines_info(a->engines)->item_types.n;
    if (a->announced || !a->engines || engines_state(a->engines) != LINK_UP)
        return;
    a->announced = true;
    if (!tell_supervisor((unsigned char)inherited("QUIRE_METRICS_SLOT")))
        log_info("ready"); /* otherwise the supervisor logs it when all frontends are ready */
}

static void load_on_thread(uv_work_t *work)
{
    struct app *a = work->data;
    enum q_code rc = served_model_load(&a->served, &a->load_error);
    (void)rc; /* kept in load_error */
}

/* FORBIDDEN: tcp without keys. */
static void end_failed(struct app *a)
{
    log_error("%s", a->load_error.message);
    stop(a, a->load_error.code == Q_INVALID || a->load_error.code == Q_FORBIDDEN ? EXIT_USAGE
                                                                                 : EXIT_LOAD);
}

static void on_failed_alone(uv_timer_t *timer)
{
    end_failed(timer->data);
}

static void after_load(uv_work_t *work, int status)
{
    struct app *a = work->data;
    const struct options *o = a->options;
    (void)status;
    a->reading = false;
    struct engines_config c = {
        .addresses = o->engine.items,
        .n = o->engine.n,
        .link =
            {
                .keys = o->keys,
                .insecure_tcp = o->insecure_tcp,
                .engine_timeout_ms = (uint32_t)o->engine_timeout * 1000,
                .no_replay = !o->replay,
            },
        .on_change = on_engines_change,
        .on_heartbeat = status_told,
        .on_command_done = control_command_done,
        .on_stream_resumed = resume_answered,
        .ctx = a,
    };
    memcpy(c.link.digest, a->served.digest, sizeof c.link.digest);
    if (a->load_error.code == Q_OK &&
        engines_new(&a->engines, &a->loop, &c, &a->load_error) == Q_OK) {
        a->loaded = true;
        serve_early(a);
        return;
    }
    /* Frontends of one server fail with the same cause: the first one reports it, and its end ends
     * the others. */
    if (inherited("QUIRE_METRICS_SLOT") > 0 && !a->draining)
        uv_timer_start(&a->deadline, on_failed_alone, ALIKE_MS, 0);
    else
        end_failed(a);
}

static const struct http_route routes[] = {
#define ROUTE(method, path, auth, handler, about) {#method, path, HTTP_##auth, handler},
#include "frontend/api/routes.def"
};

static enum q_code share_metrics(struct q_err *e)
{
    int fd = inherited("QUIRE_METRICS_FD"), slot = inherited("QUIRE_METRICS_SLOT"),
        n = inherited("QUIRE_METRICS_SLOTS");
    if (fd < 0 || slot < 0 || n < 0)
        return Q_OK;
    return metrics_share(fd, (uint32_t)slot, (uint32_t)n, e);
}

/* A JSON list of strings, or a single string; *read owns them, as long as the process lives. */
static enum q_code read_list(struct cors_list *out, json_t **read, const char *flag,
                             const char *text, struct q_err *e)
{
    json_t *list = *text == '[' ? json_read_string(text, 0, NULL) : json_pack("[s]", text);
    size_t n = json_array_size(list);
    *read = list;
    const char **items = q_calloc(n + 1, sizeof *items);
    if (!items)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", flag);
    for (size_t i = 0; i < n; i++)
        items[i] = json_string_value(json_array_get(list, i));
    *out = (struct cors_list){items, n};
    for (size_t i = 0; i < n; i++)
        if (!items[i] || !*items[i] || strpbrk(items[i], "\r\n"))
            list = NULL;
    if (!list)
        return q_fail(
            e, Q_INVALID,
            "%s: \"%.100s\" is not a JSON list of strings such as [\"https://example.org\"]", flag,
            text);
    return Q_OK;
}

static enum q_code read_lists(struct app *a, struct q_err *e)
{
    enum q_code rc;
    struct cors *c = &a->cors;
    const struct options *o = a->options;
    c->credentials = o->allow_credentials;
    if ((rc = read_list(&a->allowed_hosts, &a->lists[0], "--allowed-hosts", o->allowed_hosts, e)) ||
        (rc = read_list(&c->origins, &a->lists[1], "--allowed-origins", o->allowed_origins, e)) ||
        (rc = read_list(&c->methods, &a->lists[2], "--allowed-methods", o->allowed_methods, e)))
        return rc;
    return read_list(&c->headers, &a->lists[3], "--allowed-headers", o->allowed_headers, e);
}

/* What the limit of descriptors leaves beside those of other uses. */
static uint32_t connections_max(const struct options *o)
{
    struct rlimit r;
    int64_t n = o->max_connections;
    const bool tls = *o->ssl_certfile;
    const int64_t each = tls ? TLS_DESCRIPTORS : 1;
    const int64_t other = DESCRIPTORS_OTHER + (tls ? TLS_DESCRIPTORS_MORE : 0);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY &&
        n > ((int64_t)r.rlim_cur - other) / each) {
        n = ((int64_t)r.rlim_cur - other) / each;
        n = n > 1 ? n : 1;
        log_warning("the limit of file descriptors (%llu) leaves room for %lld connections, not "
                    "%lld (--max-connections)",
                    (unsigned long long)r.rlim_cur, (long long)n, (long long)o->max_connections);
    }
    return (uint32_t)n;
}

/* Create the server, which reads the file of keys and does not listen yet. */
static enum q_code make_server(struct app *a, struct q_err *e)
{
    const struct options *o = a->options;
    const uint32_t n_connection = connections_max(o);
    if (o->max_total_body_bytes && o->max_total_body_bytes < o->max_body_bytes)
        return q_fail(e, Q_INVALID,
                      "--max-total-body-bytes is %zu, less than one body may have "
                      "(--max-body-bytes %zu)",
                      (size_t)o->max_total_body_bytes, (size_t)o->max_body_bytes);
    const struct http_config c = {
        .routes = routes,
        .n_route = sizeof routes / sizeof *routes,
        .app = a,
        .api_keys = o->api_key.items,
        .n_api_key = o->api_key.n,
        .api_key_file = o->api_key_file,
        .public_metrics = o->public_metrics,
        .enable_steering = o->enable_steering,
        .allowed_hosts = a->allowed_hosts,
        .body_max = o->max_body_bytes,
        .total_body_max =
            o->max_total_body_bytes ? o->max_total_body_bytes : BODIES_DEFAULT * o->max_body_bytes,
        .open_max = (uint32_t)o->max_open_requests,
        .connections_max = n_connection,
        .address_connections_max = o->max_connections_per_address
                                       ? (uint32_t)o->max_connections_per_address
                                       : (n_connection + 1) / 2,
        .write_timeout_ms = (int64_t)o->write_timeout * 1000,
        .tls =
            {
                .cert = o->ssl_certfile,
                .key = o->ssl_keyfile,
                .ca = o->ssl_ca_certs,
                .client_cert = (enum tls_client_cert)o->ssl_cert_reqs,
                .ciphers = o->ssl_ciphers,
            },
        .tls_refresh = o->enable_ssl_refresh,
        .ping_ms = (uint32_t)o->sse_ping_ms,
        .reuse_port = o->reuse_port,
        .cors = a->cors,
    };
    return http_server_new(&a->server, &a->loop, &c, e);
}

/* fds: numbers separated by commas. */
static enum q_code listen_inherited(struct app *a, const char *fds, struct q_err *e)
{
    enum q_code rc = Q_OK;
    char *end = NULL;
    for (uint32_t n = 0; !rc && n < NET_LISTEN_MAX; n++, fds = end + 1) {
        long fd = strtol(fds, &end, 10);
        if (end == fds || fd < 0 || fd > 1 << 20)
            return q_fail(e, Q_INVALID, "QUIRE_LISTEN_FDS: expected numbers, got \"%s\"", fds);
        rc = http_server_listen_fd(a->server, (int)fd, e);
        if (*end != ',')
            break;
    }
    return rc;
}

static enum q_code listen_now(struct app *a, struct q_err *e)
{
    const struct options *o = a->options;
    const char *fds = getenv("QUIRE_LISTEN_FDS");
    if (fds) /* the supervisor logs the address */
        return listen_inherited(a, fds, e);
    if (*o->uds) {
        const enum q_code rc = http_server_listen_path(a->server, o->uds, e);
        if (rc == Q_OK)
            log_info("listening on unix:%s", o->uds);
        return rc;
    }
    enum q_code rc = http_server_listen(a->server, o->host, (uint16_t)o->port, e);
    if (rc != Q_OK)
        return rc;
    log_info("listening on %s://%s%s%s:%u", *o->ssl_certfile ? "https" : "http",
             strchr(o->host, ':') ? "[" : "", o->host, strchr(o->host, ':') ? "]" : "",
             http_server_port(a->server));
    if (!o->api_key.n && !*o->api_key_file)
        net_warn_open(o->host, http_server_port(a->server));
    return Q_OK;
}

static void start_loading(struct app *a)
{
    a->reading = true;
    a->loading.data = a;
    uv_queue_work(&a->loop, &a->loading, load_on_thread, after_load);
}

static enum q_code begin(struct app *a, struct q_err *e)
{
    enum q_code rc;
    a->exit_code = EXIT_USAGE;
    if (!a->options->engine.n)
        return q_fail(
            e, Q_INVALID,
            "--engine is missing: expected the engine's address, such as ipc:///run/quire/engine");
    if (*a->options->uds && a->options->reuse_port)
        return q_fail(e, Q_INVALID, "--reuse-port shares a TCP port, it cannot be used with --uds");
    if (engines_check(a->options->engine.items, a->options->engine.n, e) != Q_OK)
        return q_wrap(e, "--engine");
    if ((rc = chat_model_check(a->options, e)) || (rc = read_lists(a, e)) ||
        (rc = share_metrics(e)) || (rc = make_server(a, e)) ||
        (rc = request_record_new(&a->requests, a->options, e)))
        return rc;
    a->exit_code = EXIT_LOAD;
    rc = served_model_open(&a->served, a->options->positional[0], a->options, e);
    if (!rc && start_is_check()) /* files that are read while the port is open */
        rc = served_model_load(&a->served, e);
    if (rc || start_is_check())
        return rc;
    a->exit_code = EXIT_ADDRESS;
    if ((rc = listen_now(a, e)))
        return rc;
    a->exit_code = 0;
    metric_set(METRIC_START_TIME, (double)clock_unix());
    a->gauge.data = a;
    uv_timer_init(&a->loop, &a->gauge);
    uv_timer_start(&a->gauge, on_gauge, 0, APP_SIGN_MS);
    start_loading(a);
    return Q_OK;
}

static enum q_code init(struct app *a, const struct options *o, struct q_err *e)
{
    signal(SIGPIPE, SIG_IGN);
    if (net_raise_descriptors(DESCRIPTORS, e))
        return e->code;
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write */
    a->options = o;
    const int failed = uv_loop_init(&a->loop);
    if (failed)
        return q_fail(e, Q_IO, "cannot make an event loop: %s", uv_strerror(failed));
    tasks_init(&a->tasks, &a->loop);
    a->tasks.reads_files = *o->allowed_local_media_path;
    a->tasks.reads_images = true; /* until the engine says what it takes */
    return Q_OK;
}

FALLIBLE app_open(struct app *a, const struct options *o, struct q_err *e)
{
    enum q_code rc;
    if ((rc = init(a, o, e)))
        return rc;
    a->tasks.reads_files = true; /* of the program's own user: job_item_rules */
    if ((rc = chat_model_check(o, e)) ||
        (rc = served_model_open(&a->served, o->positional[0], o, e)))
        return rc;
    start_loading(a);
    return Q_OK;
}

void app_close(struct app *a)
{
    if (a->server)
        http_server_remove_path(a->server);
    engines_free(a->engines);
    a->engines = NULL;
    request_record_free(a->requests);
    a->requests = NULL;
    if (a->reading || tasks_n_working(&a->tasks) ||
        (a->server && http_server_is_sending(a->server)))
        _exit(a->exit_code); /* exit() would release data that these threads still use */
}

/* Set before files are read or sockets listen: an earlier signal waits for the loop and then ends
 * the program in the same way. */
static void take_signals(struct app *a)
{
    a->sigterm.data = a->sigint.data = a->deadline.data = a;
    uv_timer_init(&a->loop, &a->deadline);
    uv_signal_init(&a->loop, &a->sigterm);
    uv_signal_init(&a->loop, &a->sigint);
    uv_signal_init(&a->loop, &a->engine_failed);
    a->engine_failed.data = a;
    uv_signal_start(&a->engine_failed, on_engine_failed, APP_ENGINE_FAILED);
    uv_signal_start(&a->sigterm, on_signal, SIGTERM);
    uv_signal_init(&a->loop, &a->sighup);
    a->sighup.data = a;
    if (*a->options->api_key_file || *a->options->ssl_certfile)
        uv_signal_start(&a->sighup, on_reload, SIGHUP);
    uv_signal_start(&a->sigint, on_signal, SIGINT);
}

int app_run(const struct options *o)
{
    struct q_err e = Q_ERR_INIT;
    struct app *a = q_calloc(1, sizeof *a); /* process lifetime */
    if (!a || init(a, o, &e)) {
        log_error("%s", a ? e.message : "out of memory");
        return 1;
    }
    take_signals(a);
    if (begin(a, &e) != Q_OK) {
        if (start_is_check())
            start_fail("quire frontend", e.message);
        else
            log_error("%s", e.message);
        return e.code == Q_INVALID && a->exit_code == EXIT_LOAD ? EXIT_USAGE : a->exit_code;
    }
    if (start_is_check())
        return 0;
    uv_run(&a->loop, UV_RUN_DEFAULT);
    app_close(a);
    return a->exit_code;
}
