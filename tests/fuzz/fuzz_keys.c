/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of --api-key-file, and an Authorization header against what was read of them. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/http/api_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    struct api_keys k = API_KEYS_INIT;
    const char *text = (const char *)data, *end = size ? memchr(text, '\n', size) : NULL;
    size_t n_header = end ? (size_t)(end - text) : 0;
    enum q_code rc = api_keys_add_text(&k, text + n_header, size - n_header, &e);
    Q_ASSERT((rc == Q_OK) == (e.code == Q_OK));
    bool admin = false;
    for (size_t i = 0; i < k.n; i++) {
        Q_ASSERT(k.items[i].weight >= 1 && k.items[i].weight <= API_KEY_WEIGHT_MAX);
        Q_ASSERT(*k.items[i].name && (!k.items[i].models || *k.items[i].models));
        admin = admin || k.items[i].admin;
    }
    Q_ASSERT(admin == k.has_admin);
    const struct api_key *found = api_keys_find(&k, text, n_header);
    Q_ASSERT(!found || (found >= k.items && found < k.items + k.n));
    Q_ASSERT(!found || !found->models || !api_key_allows(found, ""));
    api_keys_release(&k);
    return 0;
}
