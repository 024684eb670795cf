/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint - the hub's address and the user's token, from the environment and the token file.
 *
 * HF_ENDPOINT (https://huggingface.co) · HF_TOKEN, else HUGGING_FACE_HUB_TOKEN, else the file
 * HF_TOKEN_PATH, else HF_HOME/token, unless HF_HUB_DISABLE_IMPLICIT_TOKEN is set. The token is sent
 * to the endpoint's own scheme, host and port, and nowhere else. Threads: pure. */
#ifndef QUIRE_COMMON_HUB_REMOTE_ENDPOINT_H
#define QUIRE_COMMON_HUB_REMOTE_ENDPOINT_H
#include <limits.h>
#include <stdbool.h>
#include "common/buf.h"

#define ENDPOINT_URL_MAX 512
#define TOKEN_MAX        4096 /* bytes */

struct endpoint {
    char url[ENDPOINT_URL_MAX + 1];     /* without a slash at the end */
    char token[TOKEN_MAX + 1];          /* "": none */
    char token_source[PATH_MAX + 16];   /* for messages: "HF_TOKEN", "the file …" */
    char authorization[TOKEN_MAX + 32]; /* header line; "": no token */
    char ca_file[PATH_MAX];             /* certificates; "": the system's */
    long connect_timeout_s, stall_timeout_s;
};

/* Errors: Q_INVALID (a variable's value), Q_IO (the token file). */
FALLIBLE endpoint_init(struct endpoint *p, struct q_err *e);
/* Is the URL of the endpoint's scheme, host and port? */
bool endpoint_has(const struct endpoint *p, const char *url);
/* Append one component or path to a URL; slashes are kept or escaped. */
void endpoint_escape(struct buf *url, const char *text, bool keep_slashes);

#endif
