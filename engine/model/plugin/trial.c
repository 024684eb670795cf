/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/trial.h"
#include <string.h>
#include "common/child.h"

FALLIBLE plugin_trial(bool *ran, const struct trial *t, struct q_err *e)
{
    const struct child_result r = child_run(t->run, t->ctx, t->limit_ms);
    *ran = r.end == CHILD_DONE;
    switch (r.end) {
    case CHILD_HUNG:
        return q_fail(e, Q_UNAVAILABLE, "plugin %s hung %s: it took more than %d s", t->plugin,
                      t->when, t->limit_ms / 1000);
    case CHILD_KILLED:
        return q_fail(e, Q_UNAVAILABLE, "plugin %s crashed %s: signal %d (%s)", t->plugin, t->when,
                      r.number, strsignal(r.number));
    case CHILD_EXITED:
        return q_fail(e, Q_UNAVAILABLE, "plugin %s ended the process %s, with status %d", t->plugin,
                      t->when, r.number);
    case CHILD_DONE:
    case CHILD_NONE:
        break;
    }
    return Q_OK;
}
