/* SPDX-License-Identifier: Apache-2.0 */
/* quire-keygen: creates the keys for tcp:// between frontends and engines. */
#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "common/log.h"
#include "common/options.h"
#include "proto/curve.h"

int main(int argc, char **argv)
{
    static struct options o;
    static const struct program_info info = {
        .program = FOR_KEYGEN,
        .name = "quire keygen",
        .usage = "DIR",
        .about = "Creates the CURVE keys for tcp:// in the folder DIR. The engine's machine needs "
                 "engine.key and frontend.pub, the frontends' machines need frontend.key and "
                 "engine.pub. Existing files are not overwritten.",
        .positional_min = 1,
        .positional_max = 1,
    };
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (curve_generate(o.positional[0], &e) != Q_OK) {
        log_error("%s", e.message);
        return 1;
    }
    if (o.json) {
        struct buf dir = BUF_INIT;
        buf_add_json_str(&dir, o.positional[0], strlen(o.positional[0]));
        printf("{\"dir\":%s,\"files\":[\"engine.key\",\"engine.pub\",\"frontend.key\","
               "\"frontend.pub\"]}\n",
               buf_str(&dir));
        buf_release(&dir);
    } else {
        printf("keys created in %s: start engine and frontends with --keys %s\n", o.positional[0],
               o.positional[0]);
    }
    return 0;
}
