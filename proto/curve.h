/* SPDX-License-Identifier: Apache-2.0 */
/* curve - the CURVE keys for tcp:// between frontends and engines.
 *
 * `quire keygen` writes a folder of four files, one Z85 key of 40 characters each:
 *     engine.key    secret; stays with the engine            frontend.key  secret; stays with the
 * frontends engine.pub    frontends need it to know the engine     frontend.pub  the engine lets in
 * only this key An engine reads engine.key and frontend.pub, a frontend frontend.key and
 * engine.pub; the other two files are not needed. All frontends share one key: they are instances
 * of one program. Threads: values. */
#ifndef QUIRE_PROTO_CURVE_H
#define QUIRE_PROTO_CURVE_H
#include <stdint.h>
#include "common/err.h"

#define CURVE_TEXT  41 /* a key as Z85 with its NUL */
#define CURVE_BYTES 32

enum curve_side { CURVE_ENGINE, CURVE_FRONTEND };
struct curve_keys { /* what one side needs */
    char public_key[CURVE_TEXT], secret_key[CURVE_TEXT];
    char peer_key[CURVE_TEXT]; /* the other side's public key */
};

/* Make new keys in `dir` (created with mode 0700 if missing), files of mode 0600.
 * Errors: Q_MISMATCH (a key file exists already and is not overwritten), Q_IO. */
FALLIBLE curve_generate(const char *dir, struct q_err *e);
/* Errors: Q_NOT_FOUND, Q_IO, Q_CORRUPT (no key in the file), Q_FORBIDDEN (a secret key readable by
 * others than its owner and group). */
FALLIBLE curve_load(struct curve_keys *out, const char *dir, enum curve_side side, struct q_err *e);
void curve_wipe(struct curve_keys *k); /* overwrites the secret */

#endif
