/* SPDX-License-Identifier: Apache-2.0 */
/* quire: `quire VERB …` runs quire-VERB, which stands beside this file. The verbs are the files
 * found there, so that a new program is a verb by being installed. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VERBS_MAX 64
#define VERB_SIZE 32

static const struct {
    const char *verb, *about;
} known[] = {
    /* what --help says of those it finds */
    {"serve", "start engine and frontends for a model and keep them running"},
    {"engine", "run an engine alone"},
    {"frontend", "run an HTTP frontend alone"},
    {"worker", "started by the engine: holds weights, computes"},
    {"generate", "generate text offline"},
    {"run-batch", "answer a file of requests in OpenAI's batch format"},
    {"bench", "measure the machine, a model, or any OpenAI server"},
    {"chat", "talk to a server in the terminal"},
    {"tokenize", "text to token ids and back, without a server"},
    {"schema", "try grammars for structured output: JSON lines in and out"},
    {"parse", "try a tool-call or reasoning parser on text"},
    {"render", "try a chat template on messages"},
    {"keygen", "make the keys for tcp:// between engine and frontends"},
};

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
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (access(path, X_OK) == 0)
            snprintf(v->names[v->n++], VERB_SIZE, "%s", verb);
    }
    if (d)
        closedir(d);
    qsort(v->names, v->n, VERB_SIZE, by_name);
}

static void help(const struct verbs *v, FILE *out)
{
    fprintf(out, "usage: quire VERB [arguments]\n       quire VERB --help\n\nverbs:\n");
    for (size_t i = 0; i < v->n; i++) {
        const char *about = "";
        for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++)
            if (!strcmp(known[k].verb, v->names[i]))
                about = known[k].about;
        fprintf(out, "  %-10s %s\n", v->names[i], about);
    }
}

/* Edit distance (Levenshtein), for words shorter than VERB_SIZE. */
static size_t distance(const char *a, const char *b)
{
    size_t row[VERB_SIZE + 1], n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            size_t step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
        }
    }
    return row[n];
}

static int unknown(const struct verbs *v, const char *verb)
{
    const char *nearest = NULL;
    size_t best = 3; /* further apart than this it is another word */
    fprintf(stderr, "quire: there is no verb \"%.60s\"", verb);
    for (size_t i = 0; i < v->n && strlen(verb) < VERB_SIZE; i++) {
        size_t d = distance(verb, v->names[i]);
        if (d < best) {
            best = d;
            nearest = v->names[i];
        }
    }
    if (nearest)
        fprintf(stderr, "; did you mean \"quire %s\"?\n", nearest);
    else
        fprintf(stderr, "; `quire help` lists them\n");
    return 2;
}

int main(int argc, char **argv)
{
    static struct verbs v;
    char dir[PATH_MAX], path[PATH_MAX + VERB_SIZE + 8];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
    if (n < 0) {
        fprintf(stderr, "quire: /proc/self/exe: %s\n", strerror(errno));
        return 1;
    }
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    find_verbs(&v, dir);
    const char *verb = argc > 1 ? argv[1] : NULL;
    if (!verb || !strcmp(verb, "help") || !strcmp(verb, "--help") || !strcmp(verb, "-h")) {
        help(&v, verb ? stdout : stderr);
        return verb ? 0 : 2;
    }
    if (!strcmp(verb, "--version") || !strcmp(verb, "version")) {
        printf("quire " QUIRE_VERSION "\n");
        return 0;
    }
    bool found = false;
    for (size_t i = 0; i < v.n; i++)
        found |= !strcmp(v.names[i], verb);
    if (!found)
        return unknown(&v, verb);
    snprintf(path, sizeof(path), "%s/quire-%s", dir, verb);
    argv[1] = path;
    execv(path, argv + 1);
    fprintf(stderr, "quire: %s: %s\n", path, strerror(errno));
    return 1;
}
