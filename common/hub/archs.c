/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/archs.h"
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include "common/buf.h"

static const struct {
    const char *name, *type;
} archs[] = {
#define ARCH(architecture, family) {#architecture, #family},
#include "common/hub/archs.def"
};
#define N_ARCH (sizeof archs / sizeof *archs)

/* Those of plugins, the last one first. Nothing is ever removed, so a reader needs no lock. */
static _Atomic(const struct archs_added *) added;

void archs_add(struct archs_added *a)
{
    a->next = atomic_load(&added);
    while (!atomic_compare_exchange_weak(&added, &a->next, a)) {
    }
}

const struct archs_added *archs_added_find(const char *name)
{
    const struct archs_added *a = atomic_load(&added);
    while (a && strcmp(a->name, name) != 0)
        a = a->next;
    return a;
}

bool archs_any_added(void)
{
    return atomic_load(&added) != NULL;
}

const char *archs_type(const char *name)
{
    for (size_t i = 0; i < N_ARCH; i++)
        if (strcmp(archs[i].name, name) == 0)
            return archs[i].type;
    return NULL;
}

bool archs_is_own(const char *name)
{
    return archs_type(name) != NULL;
}

const char *archs_names(void)
{
    static const char names[] =
#define ARCH(architecture, family) ", " #architecture
#include "common/hub/archs.def"
        ;
    return names + 2;
}

const char *archs_of_type(const char *model_type)
{
    for (size_t i = 0; i < N_ARCH; i++)
        if (strcmp(archs[i].type, model_type) == 0)
            return archs[i].name;
    return NULL;
}

/* "Qwen3NextForCausalLM" is most similar to the longest architecture name whose part before "For"
 * is a prefix of it: Qwen3ForCausalLM. Case is ignored. NULL: none. */
static const char *nearest(const char *architecture)
{
    const char *found = NULL;
    size_t longest = 0;
    for (size_t i = 0; i < N_ARCH; i++) {
        const char *stem_end = strstr(archs[i].name, "For");
        size_t n = stem_end ? (size_t)(stem_end - archs[i].name) : strlen(archs[i].name);
        if (n > longest && strncasecmp(archs[i].name, architecture, n) == 0) {
            longest = n;
            found = archs[i].name;
        }
    }
    return found;
}

enum q_code archs_check(const char *architecture, const char *path, struct q_err *e)
{
    struct buf plugins = BUF_INIT;
    if (archs_is_own(architecture) || archs_added_find(architecture))
        return Q_OK;
    const char *near = nearest(architecture);
    for (const struct archs_added *a = atomic_load(&added); a; a = a->next)
        buf_printf(&plugins, "%s%s", plugins.len ? ", " : ", and by plugins ", a->name);
    const enum q_code rc =
        q_fail(e, Q_UNSUPPORTED, "%s: architecture %s is not supported%s%s; supported are %s%s",
               path, architecture, near ? ", the most similar is " : "", near ? near : "",
               archs_names(), buf_str(&plugins));
    buf_release(&plugins);
    return rc;
}
