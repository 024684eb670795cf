/* SPDX-License-Identifier: Apache-2.0 */
/* khash - the names that h2o's http2_internal.h takes from a header that is not installed with it.
 *
 * The table of streams is only pointed to; the function that looks into it is not called here, and
 * finds nothing. Threads: none. */
#ifndef QUIRE_FRONTEND_HTTP_KHASH_H
#define QUIRE_FRONTEND_HTTP_KHASH_H
#include <stddef.h>
#include <stdint.h>

typedef uint32_t khiter_t;
#define KHASH_MAP_INIT_INT64(name, value) struct kh_##name;
#define khash_t(name)                     struct kh_##name
#define kh_get(name, table, key)          ((void)(table), (void)(key), 0u)
#define kh_end(table)                     ((void)(table), 0u)
#define kh_val(table, i)                  ((void)(table), (void)(i), NULL)

#endif
