/* SPDX-License-Identifier: Apache-2.0 */
/* quire-replay FILE [MODEL]: are the steps of --record computed to the same bits now? The engine's
 * options are in the file; those of the command line take their place. Options that load code or
 * write files (is_for_owner) are never taken from the file, which may come from others. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/options.h"
#include "common/printable.h"
#include "engine/core/engine_options.h"
#include "engine/replay/replay.h"

enum { EXIT_SAME = 0, EXIT_DIFFERS = 1, EXIT_USAGE = 2, EXIT_LOAD = 3, EXIT_FILE = 4 };

static int complain(const char *what, const char *message, int code)
{
    printable_printf(stderr, "quire replay: %s%s%s\n", what, *what ? ": " : "", message);
    return code;
}

static int write_out(struct buf *out)
{
    struct q_err e = Q_ERR_INIT;
    const bool is_lost = buf_check(out, "the output", &e) ||
                         fwrite(buf_str(out), 1, out->len, stdout) < out->len || fflush(stdout);
    buf_reset(out);
    return is_lost ? complain("", "cannot write to standard output", EXIT_USAGE) : EXIT_SAME;
}

/* ---- options of the file ---- */

/* Does the option load code, or write files? */
static bool is_for_owner(const char *flag)
{
    static const char *const flags[] = {"--plugin", "--plugin-path", "--cuda-library",
                                        "--packed-cache", "--download-dir"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(flag, flags[i]))
            return true;
    return false;
}

/* One "--flag=value" of the file. is_given: the command line has the flag. */
static FALLIBLE take_option(struct options *o, const char *text, bool is_given, struct q_err *e)
{
    const char *equals = strchr(text, '=');
    char flag[64];
    if (!equals ||
        snprintf(flag, sizeof flag, "%.*s", (int)(equals - text), text) >= (int)sizeof flag)
        return q_fail(e, Q_CORRUPT, "an option of the head is \"%.40s\"", text);
    if (is_given)
        return Q_OK;
    if (is_for_owner(flag)) {
        printable_printf(stderr,
                         "quire replay: the engine was started with %s; it is not taken from the "
                         "file: give it on the command line\n",
                         text);
        return Q_OK;
    }
    return options_set(o, FOR_REPLAY, flag, equals + 1, e);
}

static FALLIBLE take_options(struct options *o, const struct record_reader *file, struct q_err *e)
{
    bool given[RECORD_OPTIONS_MAX];
    char flag[64];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < file->head.n_option; i++) {
        const char *text = file->texts.options[i];
        snprintf(flag, sizeof flag, "%.*s", (int)strcspn(text, "="), text);
        given[i] = options_given(o, flag) || !strncmp(flag, "--log-", 6);
    }
    for (uint32_t i = 0; i < file->head.n_option && !rc; i++)
        rc = take_option(o, file->texts.options[i], given[i], e);
    return rc;
}

static FALLIBLE configure(struct replay *r, struct options *o, struct q_err *e)
{
    const struct record_texts *t = &r->file.texts;
    struct worker_config *w = &r->config.worker;
    enum q_code rc;
    if ((rc = take_options(o, &r->file, e)) ||
        (rc = engine_options(&r->config, o, o->n_positional > 1 ? o->positional[1] : t->model, e)))
        return rc;
    if (o->n_positional < 2 && *t->weights_dir &&
        snprintf(w->weights_dir, sizeof w->weights_dir, "%s", t->weights_dir) >=
            (int)sizeof w->weights_dir)
        return q_fail(e, Q_CORRUPT, "the folder of weights has a name that is too long");
    return Q_OK;
}

/* ---- results ---- */

static void add_row(struct buf *out, const char *name, const struct record_row *row)
{
    buf_printf(out,
               ", \"%s\": {\"slot\": %u, \"position\": %u, \"token\": %u, \"sum\": \"%016" PRIx64
               "\"}",
               name, row->slot, row->position, row->token, row->sum);
}

static void add_json(struct buf *out, const struct replay *r, const char *path)
{
    const struct replay_difference *d = &r->difference;
    buf_add_str(out, "{\"file\": ");
    buf_add_json_str(out, path, strlen(path));
    buf_printf(
        out,
        ", \"identical\": %s, \"steps\": %" PRIu64 ", \"rows\": %" PRIu64 ", \"tokens\": %" PRIu64
        ", \"rows_before\": %" PRIu64 ", \"fingerprint\": \"%s\", \"recorded_fingerprint\": ",
        d->step ? "false" : "true", r->n_step, r->n_row, r->n_token, r->n_filled, r->fingerprint);
    buf_add_json_str(out, r->file.head.fingerprint, strlen(r->file.head.fingerprint));
    buf_printf(out, ", \"incomplete\": %s, \"end\": ", r->file.is_incomplete ? "true" : "false");
    if (r->end)
        buf_add_json_str(out, r->end, strlen(r->end));
    else
        buf_add_str(out, "null");
    if (d->step) {
        buf_printf(out, ", \"difference\": {\"step\": %" PRIu64 ", \"what\": \"%s\"", d->step,
                   d->what);
        if (d->has_row) {
            add_row(out, "recorded", &d->recorded);
            add_row(out, "computed", &d->computed);
        }
        buf_add_str(out, "}");
    }
    buf_add_str(out, "}\n");
}

static void add_text(struct buf *out, const struct replay *r)
{
    const struct replay_difference *d = &r->difference;
    const struct record_row *was = &d->recorded, *is = &d->computed;
    if (strcmp(r->fingerprint, r->file.head.fingerprint) != 0)
        buf_printf(out, "fingerprint: recorded %s, now %s\n", r->file.head.fingerprint,
                   r->fingerprint);
    if (!d->step)
        buf_printf(out, "byte-identical: %" PRIu64 " steps, %" PRIu64 " rows, %" PRIu64 " tokens\n",
                   r->n_step, r->n_row, r->n_token);
    else if (!d->has_row)
        buf_printf(out, "step %" PRIu64 " differs: it has other rows\n", d->step);
    else
        buf_printf(out,
                   "step %" PRIu64 " differs in %s: recorded slot %u, position %u, token %u, "
                   "logprobs %016" PRIx64 "; computed slot %u, position %u, token %u, logprobs "
                   "%016" PRIx64 "\n",
                   d->step, d->what, was->slot, was->position, was->token, was->sum, is->slot,
                   is->position, is->token, is->sum);
    if (r->n_filled)
        buf_printf(out, "%" PRIu64 " rows of sequences from before the file were computed first\n",
                   r->n_filled);
    if (r->file.is_incomplete)
        buf_add_str(out, "the last frame of the file is cut, as after a kill\n");
    else if (r->end)
        buf_printf(out, "the file ends: %s\n", r->end);
}

static int show(struct replay *r, bool as_json)
{
    struct record_item item;
    struct q_err e = Q_ERR_INIT;
    struct buf out = BUF_INIT;
    bool more = true;
    int code = EXIT_SAME;
    while (!code && !record_next(&r->file, &item, &more, &e) && more) {
        replay_show(&item, as_json, &out);
        code = write_out(&out);
    }
    buf_release(&out);
    return e.code ? complain("", e.message, EXIT_FILE) : code;
}

static int compare(struct replay *r, struct options *o)
{
    struct q_err e = Q_ERR_INIT;
    struct buf out = BUF_INIT;
    enum q_code rc = configure(r, o, &e);
    if (rc)
        return complain("", e.message, rc == Q_INVALID ? EXIT_USAGE : EXIT_LOAD);
    if (replay_open(r, &e))
        return complain("", e.message, EXIT_LOAD);
    if ((rc = replay_run(r, &e)))
        return complain(o->positional[0], e.message, rc == Q_CORRUPT ? EXIT_FILE : EXIT_LOAD);
    if (o->json)
        add_json(&out, r, o->positional[0]);
    else
        add_text(&out, r);
    const int code = write_out(&out);
    buf_release(&out);
    return code ? code : r->difference.step ? EXIT_DIFFERS : EXIT_SAME;
}

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_REPLAY,
        .name = "quire replay",
        .usage = "FILE [MODEL] [options]",
        .about =
            "Computes the steps of a file of `quire serve --record` again and compares tokens and "
            "logprobs bit by bit. Model and options are those of the recorded engine; a MODEL and "
            "options on the command line take their place, to compare another build, other "
            "kernels or other weights. A fingerprint that differs is told and is no difference by "
            "itself.\n"
            "Exit codes:\n"
            "0\tbyte-identical\n"
            "1\ta step differs; the first one is named\n"
            "2\tinvalid command line\n"
            "3\tthe model cannot be loaded, or does not fit the file\n"
            "4\tthe file cannot be read or is damaged",
        .positional_min = 1,
        .positional_max = 2,
    };
    static struct options o;
    static struct replay r = REPLAY_INIT;
    struct mapping m = MAPPING_INIT;
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (!options_given(&o, "--log-level")) {
        o.log_level = "warning";
        log_setup("replay", LOG_WARNING, o.log_json);
    }
    if (mapping_open(&m, o.positional[0], &e))
        return complain("", e.message, EXIT_FILE);
    if (record_open(&r.file, m.data, m.size, &e))
        code = complain(o.positional[0], e.message, EXIT_FILE);
    else
        code = o.replay_show ? show(&r, o.json) : compare(&r, &o);
    q_free(r.config.adapters.modules);
    replay_release(&r);
    mapping_release(&m);
    options_release(&o);
    return code;
}
