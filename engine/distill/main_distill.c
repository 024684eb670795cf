/* SPDX-License-Identifier: Apache-2.0 */
/* quire-distill: checks the options and the models, starts the ranks of this machine and waits for
 * them; or is a rank itself: started so, by mpirun, or the only one. */
#include <stdio.h>
#include "common/log.h"
#include "engine/distill/distill_options.h"
#include "engine/distill/distill_taught.h"
#include "engine/distill/launch.h"

static const struct program_info info = {
    .program = FOR_DISTILL,
    .name = "quire distill",
    .usage = "--teacher MODEL --student MODEL --data FILE --output DIR --steps N [options]",
    .about =
        "Trains the student so that its probabilities of the next token become the teacher's. A "
        "micro batch goes through teacher, student, loss and backward pass before the next one, so "
        "memory does not grow with the global batch.\n"
        "OUTPUT gets a model folder for each saved step, which `quire serve` and transformers "
        "load, "
        "and the state to resume from: the same command goes on after an interruption, bit for "
        "bit. SIGTERM and Ctrl-C finish the step, write the state and end with exit code 0.\n"
        "All of it is computed by CPUs: several machines by MPI; training on GPUs (and NCCL) is "
        "not "
        "supported.\n"
        "Exit codes:\n"
        "0\tdone, or stopped by a signal\n"
        "2\toptions, models or data are wrong\n"
        "6\tother errors, such as a full disk; the log has the reason\n"
        "7\tthe loss was not a number, or a spike, in --max-bad-steps steps in a row\n"
        "128+N\ta rank was ended by signal N\n",
};

static int fail(const struct q_err *e, int code)
{
    fprintf(stderr, "quire distill: %s\n", e->message);
    return code;
}

/* What all ranks see alike, rank 0 says. */
static void setup_log(const struct options *o, bool is_first)
{
    enum log_level level = LOG_INFO;
    struct q_err e = Q_ERR_INIT;
    if (log_level_parse(&level, o->log_level, &e))
        return; /* options_main has refused it */
    if (o->quiet && level < LOG_WARNING)
        level = LOG_WARNING;
    log_setup("distill", is_first ? level : LOG_ERROR, o->log_json);
}

/* One rank, from begin to end. */
static int run_rank(const struct distill_options *o, const struct options *options, struct q_err *e)
{
    struct transport *transport = NULL;
    bool bad_numbers = false;
    trainer_catch_signals();
    enum q_code rc = transport_open(&transport, e);
    if (rc)
        return fail(e, launch_exit_code(rc, false));
    setup_log(options, transport_rank(transport) == 0);
    rc = trainer_run(o, transport, &bad_numbers, e);
    if (!rc) {
        transport_close(transport);
        return LAUNCH_EXIT_OK;
    }
    const int code =
        bad_numbers ? LAUNCH_EXIT_NUMBERS : launch_exit_code(rc, transport_peer_failed(transport));
    fail(e, code);
    transport_fail(transport, e->message);
    return code;
}

static int run_all(const struct distill_options *o, const struct options *options, char **argv,
                   struct q_err *e)
{
    const struct topology_sizes sizes = trainer_sizes(o);
    const struct launch_options launch = {
        .n_rank = topology_n_rank(&sizes),
        .n_thread = o->n_thread,
        .max_restarts = (uint32_t)options->max_restarts,
        .argv = argv,
    };
    int code = 0;
    if (launch_is_rank() || (launch.n_rank == 1 && launch.max_restarts == 0))
        return run_rank(o, options, e);
    enum q_code rc = launch_run(&launch, &code, e);
    return rc ? fail(e, launch_exit_code(rc, false)) : code;
}

int main(int argc, char **argv)
{
    static struct options o;
    static struct distill_options d;
    static struct distill_texts texts;
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    setup_log(&o, !launch_is_rank());
    /* what the launcher has compared is not compared again by each rank */
    const bool compared = launch_n_thread() > 0 || o.allow_different_tokenizers;
    enum q_code rc = distill_options_parse(&d, &texts, &o, &e);
    if (!rc)
        rc = distill_options_folders(&d, &texts, compared, &e);
    if (rc)
        code = fail(&e, LAUNCH_EXIT_USAGE);
    else if (d.teacher_url && (rc = distill_taught(&d, &o, &e)))
        code = fail(&e, launch_exit_code(rc, false));
    else
        code = run_all(&d, &o, argv, &e);
    options_release(&o);
    return code;
}
