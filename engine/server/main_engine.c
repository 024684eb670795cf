/* SPDX-License-Identifier: Apache-2.0 */
/* quire-engine MODEL --listen ADDRESS: serve a model to frontends. Exit codes: enum server_exit. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/log.h"
#include "common/options.h"
#include "common/parse.h"
#include "common/start.h"
#include "engine/core/engine_options.h"
#include "engine/server/server.h"
#include "engine/worker/worker.h"

/* The engine before this one, under the same supervisor, may have been given other weights. */
static FALLIBLE take_up_weights(struct server_config *c, struct q_err *e)
{
    struct worker_config *w = &c->core.worker;
    struct buf dir = BUF_INIT;
    enum q_code rc = Q_OK;
    c->weights_file = getenv("QUIRE_WEIGHTS_FILE");
    if (c->weights_file && file_exists(c->weights_file))
        rc = file_read(&dir, c->weights_file, sizeof w->weights_dir - 1, e);
    if (!rc && dir.len) {
        snprintf(w->weights_dir, sizeof w->weights_dir, "%s", buf_str(&dir));
        if (w->format == LOAD_DUMMY)
            w->format = LOAD_AUTO;
    }
    buf_release(&dir);
    return rc;
}

/* And they had requests on trial. */
static FALLIBLE take_up_trial(struct server_config *c, struct q_err *e)
{
    static char path[PATH_MAX];
    if (!c->weights_file)
        return Q_OK;
    if (snprintf(path, sizeof path, "%s.trial", c->weights_file) >= (int)sizeof path)
        return q_fail(e, Q_TOO_LARGE, "QUIRE_WEIGHTS_FILE: the path is too long");
    c->trial_file = path;
    return Q_OK;
}

/* And the first one of them had weights, which may have been replaced. */
static FALLIBLE take_up_identity(struct server_config *c, struct q_err *e)
{
    struct buf id = BUF_INIT;
    enum q_code rc = Q_OK;
    c->identity_file = getenv("QUIRE_IDENTITY_FILE");
    if (c->identity_file && file_exists(c->identity_file))
        rc = file_read(&id, c->identity_file, WEIGHTS_IDENTITY_BYTES, e);
    c->core.has_weights_before = id.len == WEIGHTS_IDENTITY_BYTES;
    if (c->core.has_weights_before)
        memcpy(c->core.weights_before, id.data, WEIGHTS_IDENTITY_BYTES);
    buf_release(&id);
    return rc;
}

/* The same of adapters that were loaded and unloaded; one whose folder is gone is left out. */
static FALLIBLE take_up_adapters(struct server_config *c, struct q_err *e)
{
    static char path[PATH_MAX];
    struct adapter_settings *s = &c->core.adapters;
    if (!c->weights_file || !s->max_loras)
        return Q_OK;
    if (snprintf(path, sizeof path, "%s.adapters", c->weights_file) >= (int)sizeof path)
        return q_fail(e, Q_TOO_LARGE, "QUIRE_WEIGHTS_FILE: the path is too long");
    c->adapters_file = path;
    return file_exists(path) ? adapter_settings_take(s, path, e) : Q_OK;
}

/* From options to a configuration whose model is there and whose device can be opened. */
static FALLIBLE configure(struct server_config *c, const struct options *o, struct q_err *e)
{
    enum q_code rc;
    if (o->listen.n == 0)
        return q_fail(e, Q_INVALID,
                      "--listen is missing: expected an address for frontends such as "
                      "ipc:///run/quire/engine or tcp://127.0.0.1:5555");
    if (o->listen.n > SERVER_LISTEN_MAX)
        return q_fail(e, Q_INVALID, "--listen is given %u times, expected at most %d", o->listen.n,
                      SERVER_LISTEN_MAX);
    if ((rc = engine_options(&c->core, o, o->positional[0], e)) || (rc = take_up_weights(c, e)) ||
        (rc = take_up_trial(c, e)) || (rc = take_up_identity(c, e)) ||
        (rc = take_up_adapters(c, e)))
        return rc;
    return start_is_check() ? worker_check(&c->core.worker, e) : Q_OK;
}

/* Of this engine by its supervisor; 0 = unknown. */
static uint32_t start_number(void)
{
    struct q_err e = Q_ERR_INIT;
    int64_t n = 0;
    const char *text = getenv("QUIRE_ENGINE_START");
    if (text && parse_i64(&n, text, 0, INT32_MAX, "QUIRE_ENGINE_START", &e))
        log_warning("%s", e.message);
    return (uint32_t)n;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_ENGINE,
        .name = "quire engine",
        .usage = "MODEL --listen ADDRESS [options]",
        .about =
            "Loads a model and serves it to frontends over ipc:// or tcp://. Exit codes: 0 after "
            "SIGTERM, 2 for an invalid command line, 3 if the model cannot be loaded, 4 if the "
            "worker crashed too often, 5 if an address cannot be listened on, 6 for other errors, "
            "7 "
            "if it hung.",
        .positional_min = 1,
        .positional_max = 1,
    };
    static struct options o;
    static struct server_config c;
    struct q_err e = Q_ERR_INIT;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before any thread starts: they inherit it */
    int rc = options_main(&o, &info, argc, argv);
    if (rc >= 0)
        return rc;
    enum q_code code = configure(&c, &o, &e);
    if (code) {
        if (o.log_json && !start_is_check())
            log_error("%s", e.message);
        else
            start_fail(info.name, e.message);
        return code == Q_INVALID ? SERVER_EXIT_USAGE : SERVER_EXIT_LOAD;
    }
    if (start_is_check())
        return SERVER_EXIT_OK;
    c.model_name = o.positional[0];
    c.death = getenv("QUIRE_ENGINE_DEATH");
    c.n_start = start_number();
    c.supervised = getenv("QUIRE_ENGINE_START") != NULL;
    c.listen = o.listen.items;
    c.n_listen = o.listen.n;
    c.weight_roots = o.allowed_weights_path.items;
    c.n_weight_root = o.allowed_weights_path.n;
    c.keys_dir = o.keys;
    c.insecure_tcp = o.insecure_tcp;
    c.heartbeat_ms = (uint32_t)o.heartbeat_ms;
    c.max_frontend_reqs = (uint32_t)o.max_frontend_reqs;
    c.shutdown_timeout_ms = (uint32_t)o.shutdown_timeout * 1000;
    c.stream_bytes_max = (size_t)o.stream_resume_bytes;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write */
    return server_run(&c);
}
