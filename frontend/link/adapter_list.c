/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/link/adapter_list.h"
#include <string.h>

static const char *next_text(const struct buf *list, size_t *at)
{
    const char *text = buf_str(list) + *at;
    const char *end = *at < list->len ? memchr(text, 0, list->len - *at) : NULL;
    if (!end)
        return NULL;
    *at += (size_t)(end - text) + 1;
    return text;
}

bool adapter_list_next(const struct buf *list, size_t *at, struct adapter_entry *out)
{
    return (out->name = next_text(list, at)) && (out->path = next_text(list, at)) &&
           (out->fingerprint = next_text(list, at));
}

bool adapter_list_find(const struct buf *list, const char *name, struct adapter_entry *out)
{
    for (size_t at = 0; adapter_list_next(list, &at, out);)
        if (!strcmp(out->name, name))
            return true;
    return false;
}
