/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/names.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Remove trailing slashes, unless nothing else remains. */
static size_t trimmed(const char *s)
{
    size_t n = strlen(s);
    while (n > 1 && s[n - 1] == '/')
        n--;
    return n;
}

static bool same(const char *a, const char *b)
{
    size_t n = trimmed(a);
    return n && n == trimmed(b) && memcmp(a, b, n) == 0;
}

/* "…/models--org--name/snapshots/HASH" -> "org/name". */
static bool id_of_path(char out[PATH_MAX], const char *path)
{
    static const char start[] = "models--", below[] = "/snapshots/";
    const char *end = strstr(path, below);
    if (!end || strchr(end + sizeof below - 1, '/') || !end[sizeof below - 1])
        return false;
    const char *name = end;
    while (name > path && name[-1] != '/')
        name--;
    if (strncmp(name, start, sizeof start - 1) != 0)
        return false;
    name += sizeof start - 1;
    const char *dashes = strstr(name, "--");
    if (!dashes || dashes >= end)
        snprintf(out, PATH_MAX, "%.*s", (int)(end - name), name);
    else
        snprintf(out, PATH_MAX, "%.*s/%.*s", (int)(dashes - name), name, (int)(end - dashes - 2),
                 dashes + 2);
    return *out;
}

/* The last component of a path; false for ".", ".." and the root, which have no name. */
static bool last_part(char out[PATH_MAX], const char *path)
{
    size_t n = trimmed(path), at = n;
    while (at && path[at - 1] != '/')
        at--;
    snprintf(out, PATH_MAX, "%.*s", (int)(n - at), path + at);
    return *out && strcmp(out, ".") != 0 && strcmp(out, "..") != 0;
}

/* The working folder as the shell names it, which may contain links; the result of getcwd contains
 * none. */
static const char *working_dir(char system[PATH_MAX])
{
    char real[PATH_MAX];
    const char *shell = getenv("PWD");
    if (!getcwd(system, PATH_MAX))
        return NULL;
    return shell && *shell == '/' && realpath(shell, real) && !strcmp(real, system) ? shell
                                                                                    : system;
}

/* The absolute path without "." components. ".." is kept: after a link it names another folder than
 * the text suggests. */
static void make_absolute(char out[PATH_MAX], const char *path)
{
    char system[PATH_MAX];
    const char *base = *path == '/' ? "" : working_dir(system);
    size_t n = base ? (size_t)snprintf(out, PATH_MAX, "%.*s", (int)trimmed(base), base) : PATH_MAX;
    if (n == 1) /* the root */
        n = 0;
    while (*path && n < PATH_MAX) {
        const size_t part = strcspn(path, "/");
        if (part && !(part == 1 && *path == '.'))
            n += (size_t)snprintf(out + n, PATH_MAX - n, "/%.*s", (int)part, path);
        path += part + (path[part] == '/');
    }
    if (n >= PATH_MAX)
        out[0] = '\0';
}

void model_names_init(struct model_names *n, const char *model, const char *dir)
{
    char absolute[PATH_MAX] = "";
    if (!realpath(dir, absolute))
        absolute[0] = '\0';
    snprintf(n->given, sizeof n->given, "%s", model);
    snprintf(n->path, sizeof n->path, "%.*s", (int)trimmed(absolute), absolute);
    n->unresolved[0] = '\0';
    if (strcmp(model, dir) == 0)
        make_absolute(n->unresolved, model);
    if (strcmp(model, dir) != 0) /* an id */
        snprintf(n->shown, sizeof n->shown, "%s", model);
    else if (!id_of_path(n->shown, model) && !id_of_path(n->shown, n->path) &&
             !last_part(n->shown, model) && !last_part(n->shown, n->path))
        snprintf(n->shown, sizeof n->shown, "%s", model);
}

bool model_names_have(const struct model_names *n, const char *name)
{
    return same(n->shown, name) || same(n->given, name) || same(n->unresolved, name) ||
           same(n->path, name);
}
