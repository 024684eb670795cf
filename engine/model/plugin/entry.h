/* SPDX-License-Identifier: Apache-2.0 */
/* entry - the one symbol of a plugin. Threads: pure. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_ENTRY_H
#define QUIRE_ENGINE_MODEL_PLUGIN_ENTRY_H
#include <dlfcn.h>
#include <string.h>
#include "engine/plugin.h"

#define ENTRY_TEXT(name)  ENTRY_TEXT_(name)
#define ENTRY_TEXT_(name) #name
#define ENTRY_NAME        ENTRY_TEXT(QUIRE_PLUGIN_ENTRY)

typedef const struct quire_plugin *plugin_entry(void);

/* NULL: the object exports none. */
static inline plugin_entry *plugin_entry_of(void *handle)
{
    plugin_entry *entry;
    void *symbol = dlsym(handle, ENTRY_NAME);
    memcpy(&entry, &symbol, sizeof entry); /* ISO C knows no cast between the two */
    return symbol ? entry : NULL;
}

#endif
