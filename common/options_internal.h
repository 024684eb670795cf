/* SPDX-License-Identifier: Apache-2.0 */
/* options_internal - declarations shared by the files of options: the table's rows and the parsing
 * of flags. Threads: as options.h. */
#ifndef QUIRE_COMMON_OPTIONS_INTERNAL_H
#define QUIRE_COMMON_OPTIONS_INTERNAL_H
#include <stddef.h>
#include "common/options.h"
#include "common/vllm.h"

#define OPTION_FLAG_MAX 64 /* bytes of a flag's name */

enum option_type {
    TYPE_STR,
    TYPE_INT,
    TYPE_NUM,
    TYPE_BYTES,
    TYPE_BOOL,
    TYPE_LIST,
    TYPE_WORDS,
    TYPE_JSON,
    TYPE_PAIRS /* JSON that may also be given as name=value,… */
};

struct option_row {
    const char *flag; /* "--max-num-seqs" */
    enum option_type type;
    const char *def;
    double min, max;
    uint32_t programs;
    const char *help;
    size_t offset; /* of the field in struct options */
};
extern const struct option_row option_rows[];
extern const size_t option_n_row;

/* Target of a flag: a row, or a vLLM flag without a row. */
struct option_target {
    const struct option_row *row;
    const struct vllm_flag *vllm;
    char flag[OPTION_FLAG_MAX + 1]; /* as it was written, with dashes and without path and value */
    const char *path;               /* "key.key" or "key+" of a JSON option, or NULL; borrowed */
    size_t n_path;
    bool negated;
};
/* Maximum number of words after the flag. */
enum option_arity { ARITY_NONE, ARITY_ONE, ARITY_MANY, ARITY_MAYBE };

/* Find the target of `text` for the program: "--flag", "--flag.key", "--no-flag"; n bytes, no
 * value.
 * Errors: Q_INVALID (unknown, with the nearest known one; another program's). */
FALLIBLE option_find(struct option_target *t, const struct program_info *p, const char *text,
                     size_t n, struct q_err *e);
enum option_arity option_arity(const struct option_target *t);
/* Set the target to n words. */
FALLIBLE option_apply(struct options *o, const struct program_info *p,
                      const struct option_target *t, const char *const *words, size_t n,
                      struct q_err *e);
/* The row that the target sets, NULL for none. */
const struct option_row *option_row_of(const struct option_target *t);
bool option_given(const struct options *o, const struct option_row *row);
void option_mark(struct options *o, const struct option_row *row);
/* One value of a row. Strings are borrowed. Errors: Q_INVALID. */
FALLIBLE option_put(struct options *o, const struct option_row *row, const char *value,
                    struct q_err *e);
/* true, yes, on, 1, or false, no, off, 0, letters of either case. flag: for the message. Errors:
 * Q_INVALID. */
FALLIBLE option_bool(bool *out, const char *value, const char *flag, struct q_err *e);

/* A copy of n bytes that lives until options_release; NULL when out of memory. */
const char *option_text(struct options *o, const char *text, size_t n);
/* The text of a JSON option with one member set: the value if it is JSON, else as a string.
 * Errors: Q_INVALID (the path contains a value that is not an object). */
FALLIBLE option_member(struct options *o, const struct option_target *t, const char *value,
                       struct q_err *e);
/* The row's field, a JSON object or name=value pairs, as a JSON object. Errors: Q_INVALID. */
FALLIBLE option_pairs(struct options *o, const struct option_target *t, struct q_err *e);
/* The strings of a WORDS value that is a JSON array of strings; *n = 0 if it is not. */
FALLIBLE option_array(struct options *o, const char *text, const char **items, size_t *n,
                      struct q_err *e);

/* Set the options of a YAML file that are not set yet.
 * Errors: Q_INVALID, Q_UNSUPPORTED, with file and line; those of file_read. */
FALLIBLE options_file(struct options *o, const struct program_info *p, const char *path,
                      struct q_err *e);
/* The same from memory; path is for messages. */
FALLIBLE options_file_text(struct options *o, const struct program_info *p, const char *text,
                           size_t n, const char *path, struct q_err *e);

/* QUIRE_MAX_NUM_SEQS for --max-num-seqs */
void option_env_name(char out[OPTION_FLAG_MAX + 8], const char *flag);

#endif
