/* SPDX-License-Identifier: Apache-2.0 */
/* quire: `quire VERB …` runs quire-VERB in the folder of this program. The verbs are the files in
 * this folder, so a program becomes a verb when it is installed; common/verbs.def has descriptions
 * of the known ones, and suggestions for verbs of other programs. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/columns.h"
#include "common/nearest.h"
#include "common/output.h"
#include "common/options.h"
#include "common/vllm.h"

#define VERBS_MAX 64
#define VERB_SIZE 32
#define INDENT    16 /* of what a verb does */

static const struct {
    const char *verb, *about, *title; /* a title has no verb */
} known[] = {
#define VERBS(name, title)         {NULL, NULL, title},
#define VERB(verb, program, about) {verb, about, NULL},
#include "common/verbs.def"
};
#define N_KNOWN (sizeof known / sizeof *known)

static const struct {
    const char *word, *command, *about;
} words[] = {
#define WORD(word, command, about) {word, command, about},
#include "common/verbs.def"
};
#define N_WORD (sizeof words / sizeof *words)

struct verbs {
    char names[VERBS_MAX][VERB_SIZE];
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void find_verbs(struct verbs *v, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    v->n = 0;
    while (d && v->n < VERBS_MAX && (entry = readdir(d))) {
        const char *verb = entry->d_name + strlen("quire-");
        if (strncmp(entry->d_name, "quire-", strlen("quire-")) != 0 || strlen(verb) >= VERB_SIZE ||
            !*verb)
            continue;
        char path[PATH_MAX + 300];
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (access(path, X_OK) == 0)
            snprintf(v->names[v->n++], VERB_SIZE, "%s", verb);
    }
    if (d)
        closedir(d);
    qsort(v->names, v->n, VERB_SIZE, by_name);
}

static bool is_verb(const struct verbs *v, const char *name)
{
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->names[i], name))
            return true;
    return false;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (known[i].verb && !strcmp(known[i].verb, name))
            return true;
    return false;
}

/* List the installed verbs under their titles, and unknown ones at the end. */
static void help(const struct verbs *v, FILE *out)
{
    unsigned width = columns_width(out);
    const char *title = NULL;
    fputs("usage: quire VERB [arguments]\n       quire help VERB      same as quire VERB --help\n  "
          "     quire help vllm      vLLM's flags and their equivalents\n       quire --version\n",
          out);
    for (size_t i = 0; i < N_KNOWN; i++) {
        if (known[i].title)
            title = known[i].title;
        if (!known[i].verb || !is_verb(v, known[i].verb))
            continue;
        if (title)
            fprintf(out, "\n%s:\n", title);
        title = NULL;
        columns_row(out, known[i].verb, INDENT, width, known[i].about);
    }
    title = "\nOthers:\n";
    for (size_t i = 0; i < v->n; i++) {
        if (is_known(v->names[i]))
            continue;
        fputs(title, out);
        title = "";
        columns_row(out, v->names[i], INDENT, width, "");
    }
    fputs("\nExamples:\n    quire serve Qwen/Qwen3-0.6B      then, in a second terminal: quire "
          "chat\n    quire generate ./model \"Once upon\"\n",
          out);
}

/* Print a command with the given model in place of MODEL. */
static void print_command(const char *command, const char *model)
{
    const char *at = strstr(command, "MODEL");
    if (at && model && *model != '-')
        fprintf(stderr, "%.*s%.200s%s", (int)(at - command), command, model, at + strlen("MODEL"));
    else
        fputs(command, stderr);
}

static int unknown(const struct verbs *v, char **argv)
{
    const char *verb = argv[0], *nearest = NULL;
    size_t best = 3; /* maximum distance of a suggestion */
    bool meant = false;
    for (size_t i = 0; i < N_WORD; i++) {
        if (strcmp(words[i].word, verb) != 0)
            continue;
        if (!meant)
            fprintf(stderr, "quire: unknown verb \"%s\". Similar commands:\n", verb);
        meant = true;
        fputs("  ", stderr);
        print_command(words[i].command, argv[1]);
        fputs("\n      ", stderr);
        columns_put(stderr, 6, 6, columns_width(stderr), words[i].about);
    }
    if (meant)
        return 2;
    fprintf(stderr, "quire: unknown verb \"%.60s\"", verb);
    for (size_t i = 0; i < v->n; i++) {
        size_t d = nearest_distance(verb, strlen(verb), v->names[i], strlen(v->names[i]));
        if (d < best) {
            best = d;
            nearest = v->names[i];
        }
    }
    if (nearest)
        fprintf(stderr, "; did you mean \"quire %s\"?\n", nearest);
    else
        fprintf(stderr, "; `quire help` lists the verbs\n");
    return 2;
}

static bool is_serve_option(const char *flag)
{
    static const struct {
        const char *flag;
        uint32_t programs;
    } rows[] = {
#define OPT(field, flag, type, def, min, max, programs, help) {flag, programs},
#include "common/options.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].programs & FOR_SERVE) && !strcmp(rows[i].flag, flag))
            return true;
    return false;
}

static int run_verb(const char *dir, char **argv)
{
    char path[PATH_MAX + VERB_SIZE + 8];
    snprintf(path, sizeof path, "%s/quire-%s", dir, argv[0]);
    argv[0] = path;
    execv(path, argv);
    fprintf(stderr, "quire: %s: %s\n", path, strerror(errno));
    return 1;
}

/* quire help [VERB [WORD]]: the same as VERB [WORD] --help. argv: the arguments after "help". */
static int help_about(const struct verbs *v, const char *dir, char **argv)
{
    static char flag[] = "--help";
    char *line[4] = {argv[0], argv[0] ? argv[1] : NULL, flag, NULL};
    if (!argv[0] || !strcmp(argv[0], "help") || argv[0][0] == '-') {
        help(v, stdout);
        return 0;
    }
    if (!strcmp(argv[0], "vllm")) {
        vllm_page(stdout, columns_width(stdout), is_serve_option);
        return 0;
    }
    if (!is_verb(v, argv[0]))
        return unknown(v, argv);
    if (!line[1]) {
        line[1] = flag;
        line[2] = NULL;
    }
    return run_verb(dir, line);
}

int main(int argc, char **argv)
{
    static struct verbs v;
    char dir[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    if (n < 0) {
        fprintf(stderr, "quire: /proc/self/exe: %s\n", strerror(errno));
        return 1;
    }
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    find_verbs(&v, dir);
    const char *verb = argc > 1 ? argv[1] : NULL;
    output_check_at_exit("quire");
    if (!verb) {
        help(&v, stderr);
        return 2;
    }
    if (!strcmp(verb, "help") || !strcmp(verb, "--help") || !strcmp(verb, "-h"))
        return help_about(&v, dir, argv + 2);
    if (!strcmp(verb, "--version") || !strcmp(verb, "-V") || !strcmp(verb, "version")) {
        printf("quire " QUIRE_VERSION "\n");
        return 0;
    }
    return is_verb(&v, verb) ? run_verb(dir, argv + 1) : unknown(&v, argv + 1);
}
