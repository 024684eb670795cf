/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_list - the LoRA adapters of an engine as its hello and heartbeats have them: for each a
 * name, a folder and a fingerprint, each followed by NUL. Threads: a list is a value. */
#ifndef QUIRE_FRONTEND_LINK_ADAPTER_LIST_H
#define QUIRE_FRONTEND_LINK_ADAPTER_LIST_H
#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

struct adapter_entry { /* borrowed from the list */
    const char *name, *path, *fingerprint;
};
/* The entry at *at, which begins with 0 and then is at the next. False: there is none; what is cut
 * off is not there. */
bool adapter_list_next(const struct buf *list, size_t *at, struct adapter_entry *out);
bool adapter_list_find(const struct buf *list, const char *name, struct adapter_entry *out);

#endif
