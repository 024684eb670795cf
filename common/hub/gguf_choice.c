/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/gguf_choice.h"
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/gguf/gguf_file.h"
#include "common/mem.h"

#define NAMES_MAX   4096u
#define NAMES_SHOWN 8u

struct names {
    char **items; /* [n], paths below the folder, owned */
    size_t n, cap;
};

static void names_release(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        q_free(l->items[i]);
    q_free(l->items);
}

/* The first file of a model: neither a later one of a split, nor of another kind. */
static bool is_model(const char *name)
{
    static const char *const others[] = {"mmproj", "imatrix"};
    uint32_t number = 1, count;
    bool yes = gguf_file_is_named(name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        yes = yes && !strcasestr(name, others[i]);
    return yes && (!gguf_file_split(&number, &count, name) || number == 1);
}

static bool add_name(struct names *l, const char *folder, const char *name)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
    if (n <= 0 || n >= (int)sizeof path ||
        q_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items, NAMES_MAX, NULL))
        return false;
    l->items[l->n] = q_strdup(path);
    return l->items[l->n] && ++l->n;
}

/* Names of models in dir/folder, and, of the folder itself, those in its folders. */
static void read_folder(struct names *l, const char *dir, const char *folder)
{
    char path[PATH_MAX], below[PATH_MAX];
    if (path_join(path, sizeof path, dir, folder, NULL))
        return;
    DIR *d = opendir(path);
    for (const struct dirent *x; d && (x = readdir(d));) {
        if (x->d_name[0] == '.')
            continue;
        if (is_model(x->d_name))
            (void)add_name(l, folder, x->d_name);
        else if (!*folder && !path_join(below, sizeof below, dir, x->d_name, NULL) &&
                 dir_exists(below))
            read_folder(l, dir, x->d_name);
    }
    if (d)
        closedir(d);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool gguf_choice_has(const char *dir)
{
    struct names l = {0};
    read_folder(&l, dir, "");
    const bool yes = l.n > 0;
    names_release(&l);
    return yes;
}

static bool is_border(char c)
{
    return !c || strchr("-._/", c);
}

static bool has_tag(const char *name, const char *tag)
{
    const size_t n = strlen(tag);
    for (const char *p = name; n && *p; p++)
        if (strncasecmp(p, tag, n) == 0 && (p == name || is_border(p[-1])) &&
            (is_border(p[n]) && p[n] != '_'))
            return true;
    return !n;
}

static void add_names(struct buf *out, const struct names *l)
{
    for (size_t i = 0; i < l->n && i < NAMES_SHOWN; i++)
        buf_printf(out, "%s%s", i ? ", " : "", l->items[i]);
    if (l->n > NAMES_SHOWN)
        buf_printf(out, " and %zu more", l->n - NAMES_SHOWN);
}

enum q_code gguf_choose(char path[PATH_MAX], const char *dir, const char *tag, struct q_err *e)
{
    struct names all = {0}, found = {0};
    struct buf text = BUF_INIT;
    enum q_code rc;
    read_folder(&all, dir, "");
    if (all.n)
        qsort(all.items, all.n, sizeof *all.items, by_name);
    for (size_t i = 0; i < all.n; i++)
        if (has_tag(all.items[i], tag))
            (void)add_name(&found, "", all.items[i]);
    add_names(&text, found.n ? &found : &all);
    if (found.n == 1)
        rc = path_join(path, PATH_MAX, dir, found.items[0], e);
    else if (found.n)
        rc = q_fail(e, Q_INVALID,
                    "%s has several GGUF files%s%s: %s; give the path of one, or its quantization "
                    "behind a colon, as in MODEL:Q4_K_M",
                    dir, *tag ? " of " : "", tag, buf_str(&text));
    else
        rc = q_fail(e, Q_NOT_FOUND, "%s has no GGUF file%s%s%s%s", dir, *tag ? " of " : "", tag,
                    all.n ? "; its files are " : "", buf_str(&text));
    buf_release(&text);
    names_release(&all);
    names_release(&found);
    return rc;
}

size_t gguf_choice_tag(const char **tag, const char *model)
{
    const char *slash = strrchr(model, '/'), *colon = strrchr(slash ? slash : model, ':');
    *tag = "";
    if (!colon || colon == model || !colon[1] || strlen(colon + 1) >= GGUF_TAG_MAX)
        return 0;
    for (const char *p = colon + 1; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("-._", *p))
            return 0;
    *tag = colon + 1;
    return (size_t)(colon - model);
}
