/* SPDX-License-Identifier: Apache-2.0 */
/* --config: a YAML file's options, for `quire serve`. What it sets goes on to children as text; the
 * same text must be taken there. */
#include <stddef.h>
#include <stdint.h>
#include "common/mem.h"
#include "common/options_internal.h"

#define ARGS_MAX 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void forward(const struct options *o)
{
    static const struct program_info engine = {FOR_ENGINE, "quire engine", "", "", 0, 1};
    static struct options again;
    static char *argv[ARGS_MAX];
    struct q_err e = Q_ERR_INIT;
    uint32_t n = 1;
    argv[0] = NULL;
    static char name[] = "engine";
    argv[0] = name;
    argv[1] = NULL;
    enum q_code rc = options_forward(o, FOR_ENGINE, argv, &n, ARGS_MAX, &e);
    Q_ASSERT(!rc || rc == Q_NO_MEMORY || rc == Q_TOO_LARGE);
    if (!rc)
        rc = options_parse(&again, &engine, (int)n, argv, &e);
    Q_ASSERT(!rc);
    options_release(&again);
    for (uint32_t i = 1; i < n; i++)
        q_free(argv[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct program_info serve = {FOR_SERVE, "quire serve", "MODEL", "", 1, 1};
    static struct options o;
    struct q_err e = Q_ERR_INIT;
    options_defaults(&o);
    enum q_code rc = options_file_text(&o, &serve, (const char *)data, size, "x.yaml", &e);
    Q_ASSERT((rc == Q_OK) == (e.code == Q_OK));
    if (!rc)
        forward(&o);
    options_release(&o);
    return 0;
}
