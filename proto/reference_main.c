/* SPDX-License-Identifier: Apache-2.0 */
/* proto_reference > proto/reference.md */
#include <stdio.h>
#include "proto/proto.h"

int main(void)
{
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    proto_reference(&text);
    enum q_code rc = buf_check(&text, "reference", &e);
    if (rc)
        fprintf(stderr, "proto_reference: %s\n", e.message);
    else
        fputs(buf_str(&text), stdout);
    buf_release(&text);
    return rc != Q_OK;
}
