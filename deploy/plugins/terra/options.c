/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

static const char help[] =
    "usage: terra-rollout MODEL --context FILE --actions FILE --out FILE [options] [-- ENGINE "
    "OPTIONS]\n"
    "Generates the tokens of video frames, one request a frame, all rollouts at once.\n\n"
    "  --context FILE     .npy of token ids, [frames, patches] or [rollouts, frames, patches]; the "
    "rest\n"
    "                     of a last frame that ends in -1 is generated\n"
    "  --actions FILE     .npy of numbers, [frames, actions, 3] or [rollouts, frames, actions, 3]: "
    "of the\n"
    "                     context's frames and of all new ones but the last\n"
    "  --out FILE         .npy to write: int32 tokens of the new frames, [rollouts, frames, "
    "patches]\n"
    "  --plugin FILE      the plugin; default: one from QUIRE_PLUGIN_PATH that serves the model\n"
    "  --frames N         new frames; default: as many as there are actions for\n"
    "  --rollouts N       default: as many as the arrays have. An array of one counts for all\n"
    "  --temperature X    of sampling; default 0: the most likely token\n"
    "  --seed N           of the first rollout, the next one has the next; default 0\n"
    "  --picture FILE     .ppm to write, by a stand-in decoder: each token is a colour\n"
    "  --columns N        patches of a frame side by side in it; default: nearly a square\n"
    "  --tokens N         only N tokens of the last frame, to measure; writes no --out\n"
    "  --json             print figures as a JSON object on standard output\n"
    "  --progress         show progress on standard error; default: on a terminal\n"
    "Engine options are those of `quire generate --help`: -- --quantization int8 --threads 2\n";

enum option_id {
    OPT_CONTEXT,
    OPT_ACTIONS,
    OPT_OUT,
    OPT_PLUGIN,
    OPT_FRAMES,
    OPT_ROLLOUTS,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_PICTURE,
    OPT_COLUMNS,
    OPT_TOKENS,
    OPT_JSON,
    OPT_PROGRESS,
    OPT_HELP
};
static const struct option names[] = {
    {"context", required_argument, NULL, OPT_CONTEXT},
    {"actions", required_argument, NULL, OPT_ACTIONS},
    {"out", required_argument, NULL, OPT_OUT},
    {"plugin", required_argument, NULL, OPT_PLUGIN},
    {"frames", required_argument, NULL, OPT_FRAMES},
    {"rollouts", required_argument, NULL, OPT_ROLLOUTS},
    {"temperature", required_argument, NULL, OPT_TEMPERATURE},
    {"seed", required_argument, NULL, OPT_SEED},
    {"picture", required_argument, NULL, OPT_PICTURE},
    {"columns", required_argument, NULL, OPT_COLUMNS},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"json", no_argument, NULL, OPT_JSON},
    {"progress", no_argument, NULL, OPT_PROGRESS},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static bool read_number(const char *name, const char *text, double least, double most, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && errno == 0 && *out >= least && *out <= most)
        return true;
    fprintf(stderr, "terra-rollout: --%s is \"%s\", expected a number from %g to %g\n", name, text,
            least, most);
    return false;
}

static bool read_whole(const char *name, const char *text, double least, double most, double *out)
{
    if (!read_number(name, text, least, most, out))
        return false;
    if (*out == floor(*out))
        return true;
    fprintf(stderr, "terra-rollout: --%s is \"%s\", expected a whole number\n", name, text);
    return false;
}

static bool read_count(const char *name, const char *text, double most, uint32_t *out)
{
    double x;
    if (!read_whole(name, text, 1, most, &x))
        return false;
    *out = (uint32_t)x;
    return true;
}

static bool set_engine(struct rollout_options *o, const char *name, const char *value)
{
    struct quire_error error;
    if (quire_options_set(&o->engine, name, value, &error) == QUIRE_OK)
        return true;
    fprintf(stderr, "terra-rollout: %s\n", error.message);
    return false;
}

static bool read_option(struct rollout_options *o, int id, const char *value)
{
    const char *name = id <= OPT_HELP ? names[id].name : "";
    double number = 0;
    switch (id) {
    case OPT_CONTEXT:
        o->files.context = value;
        return true;
    case OPT_ACTIONS:
        o->files.actions = value;
        return true;
    case OPT_OUT:
        o->out = value;
        return true;
    case OPT_PLUGIN:
        return set_engine(o, name, value);
    case OPT_FRAMES:
        return read_count(name, value, 65536, &o->files.n_frame);
    case OPT_ROLLOUTS:
        return read_count(name, value, ROLLOUTS_MAX, &o->files.n_rollout);
    case OPT_TEMPERATURE:
        return read_number(name, value, 0, 2, &o->temperature);
    case OPT_SEED:
        if (!read_whole(name, value, 0, 1e15, &number))
            return false;
        o->seed = (int64_t)number;
        return true;
    case OPT_PICTURE:
        o->picture = value;
        return true;
    case OPT_COLUMNS:
        return read_count(name, value, 4096, &o->columns);
    case OPT_TOKENS:
        return read_count(name, value, 4096, &o->tokens);
    case OPT_JSON:
        o->json = true;
        return true;
    case OPT_PROGRESS:
        o->progress = true;
        return true;
    default:
        return false;
    }
}

/* Behind "--": --name value, --name=value, or --name of a switch. The engine's options keep the
 * words, which are cut in place. */
static bool read_engine_options(struct rollout_options *o, char **words, int n)
{
    for (int i = 0; i < n; i++) {
        const char *name = words[i], *value = "true";
        char *equals = strchr(words[i], '=');
        if (strncmp(name, "--", 2) != 0) {
            fprintf(stderr, "terra-rollout: \"%s\" is no option of the engine\n", name);
            return false;
        }
        if (equals) {
            *equals = '\0';
            value = equals + 1;
        } else if (i + 1 < n && strncmp(words[i + 1], "--", 2) != 0) {
            value = words[++i];
        }
        if (!set_engine(o, name, value))
            return false;
    }
    return true;
}

int options_read(struct rollout_options *o, int argc, char **argv)
{
    int id, n_own = argc;
    *o = (struct rollout_options){.progress = isatty(STDERR_FILENO) == 1};
    quire_options_init(&o->engine, sizeof o->engine);
    o->engine.skip_tokenizer = true; /* the tokens are of an image tokenizer */
    for (int i = argc - 1; i > 0; i--)
        n_own = strcmp(argv[i], "--") == 0 ? i : n_own;
    while ((id = getopt_long(n_own, argv, "", names, NULL)) != -1) {
        if (id == OPT_HELP) {
            fputs(help, stdout);
            return EXIT_SUCCESS;
        }
        if (!read_option(o, id, optarg))
            return EXIT_USAGE;
    }
    if (optind + 1 != n_own || !o->files.context || !o->files.actions || (!o->out && !o->tokens)) {
        fputs("terra-rollout: MODEL, --context, --actions and --out are needed; --help lists all\n",
              stderr);
        return EXIT_USAGE;
    }
    o->engine.model = argv[optind];
    return n_own < argc && !read_engine_options(o, argv + n_own + 1, argc - n_own - 1) ? EXIT_USAGE
                                                                                       : -1;
}
