/* SPDX-License-Identifier: Apache-2.0 */
/* --help: usage, description, the options under the titles of the table's groups, examples. */
#include <ctype.h>
#include <string.h>
#include "common/columns.h"
#include "common/options_internal.h"

#define INDENT    30   /* of the right column */
#define LINE_SIZE 4096 /* of a paragraph of a description */

/* A group contains the rows up to the next group. OPT increments the enum, GROUP does not. */
enum {
#define OPT(field, flag, type, def, min, max, programs, help) ROW_##field,

#define GROUP(name, title) GROUP_##name, BEFORE_##name = GROUP_##name - 1,
#include "common/options.def"
    ROWS
};

static const struct {
    size_t first;
    const char *title;
} groups[] = {
#define GROUP(name, title) {GROUP_##name, title},
#include "common/options.def"
};
#define N_GROUP (sizeof groups / sizeof *groups)

static const struct {
    const char *flag, *name;
} names[] = {
#define ARG(flag, name) {flag, name},
#include "common/options.def"
};

static const struct {
    const char *letter, *flag;
} letters[] = {
#define SHORT(letter, flag) {letter, flag},
#include "common/options.def"
};

static const struct {
    const char *flag;
    uint32_t programs;
} unlisted[] = {
#define UNLISTED(flag, programs) {flag, programs},
#include "common/options.def"
};

static const struct {
    const char *flag;
    uint32_t programs;
    const char *help;
} meanings[] = {
#define MEANS(flag, programs, help) {flag, programs, help},
#include "common/options.def"
};

static const struct {
    uint32_t program;
    const char *command, *about;
} examples[] = {
#define EXAMPLE(program, command, about) {program, command, about},
#include "common/verbs.def"
};
#define N_EXAMPLE (sizeof examples / sizeof *examples)

static const char *value_name(const struct option_row *r)
{
    static const char *const types[] = {
        [TYPE_STR] = "TEXT",   [TYPE_INT] = "N",     [TYPE_NUM] = "X",
        [TYPE_BYTES] = "SIZE", [TYPE_LIST] = "TEXT", [TYPE_BOOL] = "",
        [TYPE_WORDS] = "TEXT", [TYPE_JSON] = "JSON", [TYPE_PAIRS] = "JSON",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names && r->type != TYPE_BOOL; i++)
        if (strcmp(names[i].flag, r->flag) == 0)
            return names[i].name;
    return types[r->type];
}

static const char *help_of(const struct option_row *r, uint32_t program)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if ((meanings[i].programs & program) && strcmp(meanings[i].flag, r->flag) == 0)
            return meanings[i].help;
    return r->help;
}

static void option_help(const struct option_row *r, uint32_t program, unsigned width, FILE *out)
{
    const char *help = help_of(r, program);
    char left[2 * OPTION_FLAG_MAX], right[2048];
    const char *letter = "", *name = value_name(r);
    bool on_by_default = r->type == TYPE_BOOL && r->def[0] == '1';
    bool tell = r->def[0] && r->type != TYPE_BOOL && !strstr(help, "default");
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (strcmp(letters[i].flag, r->flag) == 0)
            letter = letters[i].letter;
    snprintf(left, sizeof left, "%s%s%s%s%s%s%s", letter, *letter ? ", " : "",
             on_by_default ? "--[no-]" : "", r->flag + (on_by_default ? 2 : 0), *name ? " " : "",
             name, r->type == TYPE_WORDS ? " ..." : "");
    snprintf(right, sizeof right, "%s%s%s%s", help, tell ? " (default " : "", tell ? r->def : "",
             tell ? ")" : "");
    columns_row(out, left, INDENT, width, right);
}

static bool contains(const char *text, const char *word)
{
    char name[OPTION_FLAG_MAX + 1];
    size_t n = 0;
    for (; word[n] && n < OPTION_FLAG_MAX; n++)
        name[n] = word[n] == '_' ? '-' : word[n];
    name[n] = '\0';
    return strcasestr(text, name) != NULL;
}

static bool is_listed(const struct option_row *r, uint32_t program)
{
    for (size_t i = 0; i < sizeof unlisted / sizeof *unlisted; i++)
        if ((unlisted[i].programs & program) && strcmp(unlisted[i].flag, r->flag) == 0)
            return false;
    return r->programs & program;
}

/* Returns how many options were shown. */
static size_t group_help(size_t i_group, const struct program_info *p, const char *word,
                         unsigned width, FILE *out)
{
    size_t end = i_group + 1 < N_GROUP ? groups[i_group + 1].first : option_n_row, n = 0;
    bool whole = !word || contains(groups[i_group].title, word);
    for (size_t i = groups[i_group].first; i < end; i++) {
        const struct option_row *r = &option_rows[i];
        if (!is_listed(r, p->program) || !(whole || contains(r->flag, word)))
            continue;
        if (n++ == 0)
            fprintf(out, "\n%s:\n", groups[i_group].title);
        option_help(r, p->program, width, out);
    }
    return n;
}

void options_examples(uint32_t programs, unsigned width, FILE *out)
{
    bool any = false;
    for (size_t i = 0; i < N_EXAMPLE; i++) {
        if (!(examples[i].program & programs))
            continue;
        if (!any)
            fputs("\nExamples:\n", out);
        any = true;
        fputs("  ", out);
        columns_put(out, 2, 2, width, examples[i].about);
        columns_command(out, width, examples[i].command);
    }
}

/* The example is the first option that takes a value. */
static void sources_help(const struct program_info *p, unsigned width, FILE *out)
{
    char name[OPTION_FLAG_MAX + 8], text[400];
    for (size_t i = 0; i < option_n_row; i++) {
        const struct option_row *r = &option_rows[i];
        if (!(r->programs & p->program) || r->type == TYPE_BOOL || !strcmp(r->flag, "--model"))
            continue;
        option_env_name(name, r->flag);
        snprintf(text, sizeof text,
                 "Every option can also be set by an environment variable, for example %s by %s.%s",
                 r->flag, name,
                 p->program & (FOR_VLLM | FOR_CHECK)
                     ? " vLLM's flags are accepted too: `quire help vllm` lists their meanings."
                     : "");
        fputc('\n', out);
        columns_put(out, 0, 0, width, text);
        return;
    }
}

/* Paragraphs, each on lines of its own, and rows NAME TAB TEXT in the columns of the options. */
static void about_help(const char *about, unsigned width, FILE *out)
{
    char line[LINE_SIZE];
    while (*about) {
        const size_t n = strcspn(about, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, about);
        char *tab = strchr(line, '\t');
        if (tab)
            *tab++ = '\0';
        if (tab)
            columns_row(out, line, INDENT, width, tab);
        else
            columns_put(out, 0, 0, width, line);
        about += n + (about[n] == '\n');
    }
}

void options_help(const struct program_info *p, const char *word, unsigned width, FILE *out)
{
    char usage[256];
    size_t n = 0;
    snprintf(usage, sizeof usage, "%s %s", p->name, p->usage);
    fputs("usage: ", out);
    columns_put(out, 7, 7, width, usage);
    if (!word) {
        fputc('\n', out);
        about_help(p->about, width, out);
    }
    for (size_t i = 0; i < N_GROUP; i++)
        n += group_help(i, p, word, width, out);
    if (word && n == 0)
        fprintf(out, "\nNo option of %s contains \"%.60s\" in its name.\n", p->name, word);
    if (word)
        return;
    options_examples(p->program, width, out);
    sources_help(p, width, out);
}
