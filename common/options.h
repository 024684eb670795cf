/* SPDX-License-Identifier: Apache-2.0 */
/* options - the command line, environment, configuration file and --help of every program, from one
 * table (options.def).
 *
 * `--flag value` and `--flag=value`; a bool is `--flag` or `--no-flag`; `_` may stand for `-` in
 * flags; `--` ends them. A list of WORDS takes all words up to the next option (one word in chat
 * and bench serve, which do not need MODEL); if MODEL is missing, the last of them is MODEL. A JSON
 * option takes an object, or its members one by one: `--flag.key.key value`, `--flag.key+ value`
 * for the end of an array; one of PAIRS also `--flag name=value,name=value`. Options that are not
 * on the command line are taken from the environment (QUIRE_MAX_NUM_SEQS=8; WORDS one per line),
 * then from the YAML file of --config, then from the table. vLLM's flags without an option are in
 * vllm_flags.def: common/vllm.h.
 * Threads: main, before others start; options_defaults and options_set are reentrant. */
#ifndef QUIRE_COMMON_OPTIONS_H
#define QUIRE_COMMON_OPTIONS_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "common/err.h"

enum {
    FOR_SERVE = 1 << 0,
    FOR_ENGINE = 1 << 1,
    FOR_FRONTEND = 1 << 2,
    FOR_WORKER = 1 << 3,
    FOR_GENERATE = 1 << 4,
    FOR_CHAT = 1 << 5,
    FOR_KEYGEN = 1 << 6,
    FOR_BATCH = 1 << 7,
    FOR_TOKENIZE = 1 << 8,
    FOR_PARSE = 1 << 9,
    FOR_RENDER = 1 << 10,
    FOR_LIBRARY = 1 << 11, /* quire_options_set: options of an engine or of `generate` */
    FOR_SCHEMA = 1 << 12,
    FOR_CHECK = 1 << 13,
    FOR_DISTILL = 1 << 14,
    FOR_TEACH = 1 << 15,
    FOR_BENCH_ROOFLINE = 1 << 16,
    FOR_BENCH_KERNELS = 1 << 17,
    FOR_BENCH_LATENCY = 1 << 18,
    FOR_BENCH_THROUGHPUT = 1 << 19,
    FOR_BENCH_SERVE = 1 << 20,
    FOR_BENCH_QUALITY = 1 << 21,
    FOR_DOWNLOAD = 1 << 22,
    FOR_CACHE = 1 << 23,
    FOR_REPLAY = 1 << 24,
    FOR_ALL = (1 << 25) - 1,
    FOR_PROGRAMS = FOR_ALL & ~FOR_LIBRARY,
    FOR_BENCH_LOCAL = FOR_BENCH_LATENCY | FOR_BENCH_THROUGHPUT | FOR_BENCH_QUALITY, /* an engine */
    FOR_BENCH_WORK = FOR_BENCH_THROUGHPUT | FOR_BENCH_SERVE, /* prompts of a data set */
    FOR_BENCH = FOR_BENCH_LOCAL | FOR_BENCH_SERVE | FOR_BENCH_ROOFLINE | FOR_BENCH_KERNELS,
    FOR_MODEL = FOR_SERVE | FOR_ENGINE | FOR_FRONTEND | FOR_GENERATE | FOR_CHAT | FOR_BATCH |
                FOR_BENCH_LOCAL | FOR_REPLAY |
                FOR_LIBRARY, /* programs that read the model folder */
    FOR_CORE = FOR_SERVE | FOR_ENGINE | FOR_GENERATE | FOR_CHAT | FOR_BATCH | FOR_BENCH_LOCAL |
               FOR_REPLAY | FOR_LIBRARY, /* programs that contain an engine core, or start one */
    FOR_VLLM = FOR_SERVE | FOR_ENGINE | FOR_FRONTEND | FOR_GENERATE | FOR_BATCH |
               FOR_BENCH_LOCAL /* programs that take vLLM's flags and --config */
};

#define OPTION_LIST_MAX       256
#define OPTION_POSITIONAL_MAX 8

struct option_list {
    const char *items[OPTION_LIST_MAX]; /* borrowed from argv, or of struct option_text */
    uint32_t n;
};
typedef const char *option_STR; /* never NULL; "" = not given */
typedef int64_t option_INT;
typedef double option_NUM;
typedef uint64_t option_BYTES;
typedef bool option_BOOL;
typedef const char *option_JSON;  /* an object's text; "" = not given */
typedef const char *option_PAIRS; /* likewise */
#define option_LIST  struct option_list
#define option_WORDS struct option_list

struct option_text; /* allocated texts: values of --config, members of JSON */

struct options {
#define OPT(field, flag, type, def, min, max, programs, help) option_##type field;
#include "common/options.def"
    const char *positional[OPTION_POSITIONAL_MAX]; /* positional arguments, e.g. MODEL */
    uint32_t n_positional;
    uint64_t given[5];     /* bit per row of the table: set by command line, environment or file */
    uint64_t no_effect[8]; /* bit per row of vllm_flags.def: accepted without effect, to be logged
                            * once */
    const char *help_word; /* of --help=WORD; NULL = all options */
    struct option_text *texts;
};

struct program_info {
    uint32_t program;  /* one FOR_* bit */
    const char *name;  /* "quire serve" */
    const char *usage; /* "MODEL [options]" */
    const char *about; /* paragraphs, and rows NAME, tab, TEXT; each ends with a newline */
    uint32_t positional_min, positional_max;
};

/* Errors: Q_INVALID: unknown flag (with the nearest known one), flag of another program, missing or
 * bad value; Q_UNSUPPORTED: a rejected vLLM flag, with the reason; errors of --config name file and
 * line. If --help or --version is among the arguments, the rest is not checked and o->help or
 * o->version is set. The strings are valid until options_release. */
FALLIBLE options_parse(struct options *o, const struct program_info *p, int argc, char **argv,
                       struct q_err *e);
/* Free the texts of --config and JSON members; the options must not be used afterwards. */
void options_release(struct options *o);
/* Every option at its default, nothing given. */
void options_defaults(struct options *o);
/* Set one option of `program` by name: "max_num_seqs", "max-num-seqs" or "--max-num-seqs", or one
 * of vLLM's names for it; strings are borrowed from value. Errors: Q_NOT_FOUND (no such option of
 * the program; with the nearest known one), Q_INVALID (value), Q_UNSUPPORTED (a rejected vLLM
 * flag). */
FALLIBLE options_set(struct options *o, uint32_t program, const char *name, const char *value,
                     struct q_err *e);
/* Usage, description, options in groups, examples; `word` as in --help=WORD, or NULL. Lines of at
 * most `width` columns. */
void options_help(const struct program_info *p, const char *word, unsigned width, FILE *out);
/* The examples of these programs (FOR_*), under a title. */
void options_examples(uint32_t programs, unsigned width, FILE *out);
/* The usual start of main: parse, set up the log, answer --help and --version, log a line for each
 * of vLLM's flags that has no effect. Returns -1 to go on,
 * else the exit code (0 after help, 2 after a usage error that was printed). */
int options_main(struct options *o, const struct program_info *p, int argc, char **argv);
/* Was this flag ("--max-num-seqs") given? */
bool options_given(const struct options *o, const char *flag);
/* Re-create arguments for another program: the given options that `program` also accepts, as
 * "--flag=value", into argv[*n …], NULL-terminated; strings are allocated and live as long as the
 * process. Errors: Q_TOO_LARGE (max). */
FALLIBLE options_forward(const struct options *o, uint32_t program, char **argv, uint32_t *n,
                         uint32_t max, struct q_err *e);

#endif
