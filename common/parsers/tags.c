/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of texts with tags, and the written form of a tag. At TAG_SUFFIX a tag may have a
 * suffix of the checkpoint. */
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/parsers/parser_internal.h"

static bool is_suffix(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
}

size_t tag_suffix(const char *text, size_t n)
{
    size_t i = n > 0 && text[0] == ':';
    while (i > 0 && i < n && i < TAG_SUFFIX_MAX && is_suffix(text[i]))
        i++;
    return i;
}

/* As far as both go they agree. *length: of the tag in the text, 0 if more of it has to come. */
static bool tag_agrees(const char *tag, const char *text, size_t n, size_t *length)
{
    size_t i = 0;
    *length = 0;
    for (; *tag && i < n; tag++)
        if (*tag == *TAG_SUFFIX)
            i += tag_suffix(text + i, n - i);
        else if (*tag != text[i++])
            return false;
    if (*tag == 0)
        *length = i;
    return true;
}

int tag_begun(const char *const *tags, const char *text, size_t n, size_t *whole)
{
    int begun = -1;
    *whole = 0;
    for (int i = 0; i < FORMAT_TAGS && tags[i]; i++) {
        if (!tag_agrees(tags[i], text, n, whole))
            continue;
        if (*whole)
            return i;
        begun = i;
    }
    return begun;
}

size_t tag_ends(const char *tag, const char *text, size_t n)
{
    size_t least = strlen(tag) - (strchr(tag, *TAG_SUFFIX) != NULL), length;
    for (size_t k = least; k <= n && k <= least + TAG_SUFFIX_MAX; k++)
        if (tag_agrees(tag, text + n - k, k, &length) && length == k)
            return k;
    return 0;
}

const char *tag_write(const char *tag, const char *suffix, size_t n, char *out)
{
    size_t at = strcspn(tag, TAG_SUFFIX);
    bool has = tag[at] != 0;
    int length = snprintf(out, FORMAT_TAG_MAX, "%.*s%.*s%s", (int)at, tag, has ? (int)n : 0, suffix,
                          tag + at + has);
    Q_ASSERT(length < FORMAT_TAG_MAX);
    return out;
}

bool tag_closes(const char *tag)
{
    return strstr(tag, "</") || strstr(tag, "end") || strstr(tag, "close");
}
