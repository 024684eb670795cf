/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/distill_taught.h"
#include "common/log.h"
#include "engine/distill/launch.h"
#include "engine/distill/teach.h"

#define TOP_K_DEFAULT 20u /* that of `quire teach` */

static struct teach_options teach_options_of(const struct distill_options *o,
                                             const struct options *options)
{
    return (struct teach_options){
        .data = o->data,
        .output = o->teacher_file,
        .top_k = o->loss.top_k ? o->loss.top_k : TOP_K_DEFAULT,
        .kern = o->kern,
        .quiet = o->quiet,
        .url =
            {
                .url = o->teacher_url,
                .model = options->teach_served_model,
                .api_key = options->api_key.n ? options->api_key.items[0] : "",
                .n_connection = (uint32_t)options->teach_connections,
                .n_retry = (uint32_t)options->teach_retries,
                .timeout_s = options->teach_timeout,
            },
    };
}

static FALLIBLE teach(const struct distill_options *o, const struct options *options,
                      struct q_err *e)
{
    struct teach_options t = teach_options_of(o, options);
    struct teach_counts counts = {0};
    enum q_code rc = team_new(&t.team, o->n_thread, true, e);
    if (rc)
        return rc;
    t.data.team = t.team;
    rc = teach_run(&t, &counts, e);
    if (!rc && o->eval_path) {
        t.data.paths = &o->eval_path;
        t.data.n_path = 1;
        rc = teach_run(&t, &counts, e);
    }
    team_free(t.team);
    if (!rc)
        log_info("log-probabilities of %s are in %s", o->teacher_url, o->teacher_file);
    return rc;
}

FALLIBLE distill_taught(const struct distill_options *o, const struct options *options,
                        struct q_err *e)
{
    if (launch_n_thread()) /* the launcher has written them */
        return Q_OK;
    if (launch_is_rank())
        return q_fail(e, Q_UNSUPPORTED,
                      "--teacher-url with mpirun: its ranks would all ask the server; write a "
                      "folder by quire teach --teacher-url %s first, and give it as --teacher-file",
                      o->teacher_url);
    return teach(o, options, e) ? q_wrap(e, "--teacher-url") : Q_OK;
}
