/* SPDX-License-Identifier: Apache-2.0 */
/* item_memory - contents of items in POSIX shared memory, from a frontend to an engine on the same
 * machine (ipc://): a large tensor does not pass through a socket.
 *
 * The frontend makes an object for each submit; the engine removes it as soon as it has opened it,
 * so nothing is left when either ends afterwards. An object whose submit was never read is removed
 * by the frontend with the generation, and one of a frontend that died by the next engine or
 * frontend of the same user (item_memory_sweep).
 * Threads: values. */
#ifndef QUIRE_PROTO_ITEM_MEMORY_H
#define QUIRE_PROTO_ITEM_MEMORY_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define ITEM_MEMORY_MAX 64u /* bytes of a name, with its NUL */

/* A new object without bytes; name: "/quire-items-PID-…"; *fd: the caller's. Errors: Q_IO. */
FALLIBLE item_memory_new(char name[ITEM_MEMORY_MAX], int *fd, struct q_err *e);
/* The bytes from `offset` on are data[n], so that an object may be written in pieces. Errors:
 * Q_NO_SPACE, Q_IO. */
FALLIBLE item_memory_write(int fd, const void *data, size_t n, uint64_t offset, struct q_err *e);
/* Both. Errors: those. */
FALLIBLE item_memory_make(char name[ITEM_MEMORY_MAX], const void *data, size_t n, struct q_err *e);
/* Remove it, if it is still there. */
void item_memory_drop(const char *name);
/* Open the object of another process of this user, of n_byte bytes, and remove it. name: [n_name],
 * checked. *fd: the caller's. Errors: Q_CORRUPT (name, size, owner), Q_NOT_FOUND, Q_IO. */
FALLIBLE item_memory_open(int *fd, const char *name, size_t n_name, uint64_t n_byte,
                          struct q_err *e);
/* Read its bytes into out[n_byte] (read, not mapped: its maker could cut a mapping short). Errors:
 * Q_CORRUPT. */
FALLIBLE item_memory_read(void *out, int fd, uint64_t n_byte, struct q_err *e);
/* Both. *out: released by q_free. Errors: those, Q_NO_MEMORY. */
FALLIBLE item_memory_take(void **out, const char *name, size_t n_name, uint64_t n_byte,
                          struct q_err *e);
/* Remove objects of processes of this user that are gone. */
void item_memory_sweep(void);

#endif
