/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/archs.h"
#include <stddef.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *type;
} archs[] = {
#define ARCH(architecture, family) {#architecture, #family},
#include "common/hub/archs.def"
};
#define N_ARCH (sizeof archs / sizeof *archs)

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
    for (size_t i = 0; i < N_ARCH; i++)
        if (strcmp(archs[i].name, architecture) == 0)
            return Q_OK;
    const char *near = nearest(architecture);
    return q_fail(e, Q_UNSUPPORTED, "%s: architecture %s is not supported%s%s; supported are %s",
                  path, architecture, near ? ", the most similar is " : "", near ? near : "",
                  archs_names());
}
