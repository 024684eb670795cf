/* SPDX-License-Identifier: Apache-2.0 */
#include "common/json_read.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "common/mem.h"

#define RESERVE ((size_t)4096) /* bytes; a number of 1000 digits takes 2048 */
#define ALIGN   ((size_t)16)

static _Thread_local struct {
    bool is_reading, has_failed;
    size_t n_used; /* bytes of the reserve */
    _Alignas(ALIGN) unsigned char reserve[RESERVE];
} reading;

static void *json_alloc(size_t n)
{
    void *p = reading.has_failed ? NULL : q_alloc(n);
    if (p || !reading.is_reading)
        return p;
    reading.has_failed = true;
    if (n > RESERVE - reading.n_used) {
        reading.n_used = RESERVE; /* a token that lacks bytes gets no memory for its copy */
        return NULL;
    }
    p = reading.reserve + reading.n_used;
    n = (n + ALIGN - 1) & ~(ALIGN - 1);
    reading.n_used = n < RESERVE - reading.n_used ? reading.n_used + n : RESERVE;
    return p;
}

static void json_free(void *p)
{
    const uintptr_t at = (uintptr_t)p, reserve = (uintptr_t)reading.reserve;
    if (at < reserve || at >= reserve + RESERVE)
        q_free(p);
}

void json_use_mem(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
}

static void begin(void)
{
    reading.is_reading = true;
    reading.has_failed = false;
    reading.n_used = 0;
}

static json_t *end(json_t *v, json_error_t *error)
{
    if (reading.has_failed) {
        json_decref(v);
        v = NULL;
    }
    if (reading.has_failed && error) {
        memset(error->text, 0, sizeof error->text);
        memcpy(error->text, "out of memory", sizeof "out of memory");
        error->text[sizeof error->text - 1] =
            json_error_out_of_memory; /* as json_error_code reads it */
    }
    reading.is_reading = reading.has_failed = false;
    return v;
}

json_t *json_read_bytes(const char *text, size_t n, size_t flags, json_error_t *error)
{
    begin();
    return end(json_loadb(text, n, flags, error), error);
}

json_t *json_read_string(const char *text, size_t flags, json_error_t *error)
{
    begin();
    return end(json_loads(text, flags, error), error);
}

json_t *json_read_callback(json_load_callback_t callback, void *data, size_t flags,
                           json_error_t *error)
{
    begin();
    return end(json_load_callback(callback, data, flags, error), error);
}
