/* SPDX-License-Identifier: Apache-2.0 */
/* A hub's list of files and an index of shards, of arbitrary bytes: refused, or names that stay in
 * a folder. The input: the list, a 0xff byte, the index. */
#include "common/check.h"
#include "common/hub/remote/choose.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_names(const struct listing *l)
{
    Q_ASSERT(cache_is_hash(l->commit) && !strchr(l->commit, '/'));
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->names[i];
        Q_ASSERT(*name && *name != '/' && !strstr(name, "//"));
        Q_ASSERT(strncmp(name, "../", 3) != 0 && !strstr(name, "/../") && strcmp(name, "..") != 0);
        Q_ASSERT(i == 0 || strcmp(l->names[i - 1], name) < 0);
        Q_ASSERT(listing_has(l, name));
    }
}

static void choose(const struct listing *l, const char *text, size_t n)
{
    static const struct option_list none;
    static const char *const named[] = {"auto", "safetensors", "pt", "mistral", "gguf"};
    const struct choose_index index = {"index", text, n};
    struct q_err e = Q_ERR_INIT;
    bool *take = q_calloc(l->n + 1, sizeof *take);
    for (size_t i = 0; take && i < sizeof named / sizeof *named; i++) {
        const struct choose_rules rules = {&none, &none, named[i], true};
        const char *name = NULL;
        choose_texts(take, l, &rules);
        q_err_reset(&e);
        const enum q_code rc = choose_weights(take, &name, l, &rules, "org/name", &e);
        Q_ASSERT(rc == e.code && (!name || listing_has(l, name)));
        q_err_reset(&e);
        const enum q_code shards = choose_shards(take, l, &rules, &index, &e);
        Q_ASSERT(shards == e.code);
    }
    q_free(take);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct listing l = LISTING_INIT;
    struct q_err e = Q_ERR_INIT;
    const char *text = (const char *)data;
    const uint8_t *end = n ? memchr(data, 0xff, n) : NULL;
    const size_t n_list = end ? (size_t)(end - data) : n;
    const enum q_code rc = listing_parse(&l, text, n_list, "org/name", &e);
    Q_ASSERT(rc == e.code);
    if (!rc) {
        check_names(&l);
        choose(&l, end ? text + n_list + 1 : "", end ? n - n_list - 1 : 0);
    }
    listing_release(&l);
    return 0;
}
