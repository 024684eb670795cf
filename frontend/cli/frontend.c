/* SPDX-License-Identifier: Apache-2.0 */
/* quire-frontend: HTTP for one engine. */
#include "common/options.h"
#include "frontend/api/app.h"

int main(int argc, char **argv)
{
    static struct options o; /* lives as long as the process */
    static const struct program_info info = {
        .program = FOR_FRONTEND,
        .name = "quire frontend",
        .usage = "MODEL --engine ADDRESS [options]",
        .about = "Serves the OpenAI-compatible HTTP API for an engine that was started separately "
                 "(quire engine).",
        .positional_min = 1,
        .positional_max = 1,
    };
    int code = options_main(&o, &info, argc, argv);
    return code >= 0 ? code : app_run(&o);
}
