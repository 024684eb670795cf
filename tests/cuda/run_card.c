/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_run of the program for a card: kernels of libquire-cuda.so, found as device_library_open
 * finds it, or QUIRE_CUDA_LIBRARY. Buffers of kc_buf are host memory that the card reads and writes
 * in place (support.c is built with card_alloc for q_alloc), so arguments mean the same on both
 * sides; workspace is the card's. */
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/err.h"
#include "kernels/device.h"

#define WORKSPACE_BYTES ((size_t)256 << 20)

void *card_alloc(size_t n);
void card_free(void *p);

static const struct device_table *table;
static struct device *device;
static struct device_stream *stream;
static void *workspace;

static void need(enum q_code rc, const struct q_err *e)
{
    if (!rc)
        return;
    printf("cuda_check_card: %s\n", e->message);
    exit(rc == Q_NOT_FOUND ? 77 : 1); /* no library or no card: skipped */
}

static void open_card(void)
{
    struct q_err e = Q_ERR_INIT;
    const struct device_options o = {.deterministic = true};
    if (device)
        return;
    need(device_library_open(&table, getenv("QUIRE_CUDA_LIBRARY"), &e), &e);
    need(table->open(&device, &o, &e), &e);
    need(table->stream_new(device, &stream, &e), &e);
    need(table->alloc(device, &workspace, WORKSPACE_BYTES, "workspace", &e), &e);
    printf("%s\n%s\n", table->props(device)->name, table->props(device)->note);
}

const struct kern_table *cuda_kern(void)
{
    open_card();
    return table->kern(device);
}

void cuda_workspace(size_t bytes)
{
    (void)bytes;
}

void cuda_run(void (*launcher)(const void *args, const struct kern_exec *x), const void *args)
{
    struct q_err e = Q_ERR_INIT;
    open_card();
    const struct kern_exec x = {
        .nth = 1,
        .scratch = workspace,
        .scratch_bytes = WORKSPACE_BYTES,
        .stream = stream,
    };
    launcher(args, &x);
    need(table->sync(stream, &e), &e);
    need(table->check(device, &e), &e);
}

void *card_alloc(size_t n)
{
    struct q_err e = Q_ERR_INIT;
    void *p = NULL;
    open_card();
    need(table->host_alloc(device, &p, n, "a test", &e), &e);
    return p;
}

void card_free(void *p)
{
    if (p)
        table->host_free(device, p);
}
