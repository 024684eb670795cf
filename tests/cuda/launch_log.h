/* SPDX-License-Identifier: Apache-2.0 */
/* launch_log - the kernels that a step launches, with the bytes that their operation has to read
 * and write, while fake_cuda.records: no kernel runs. A graph's launches are logged when it runs.
 *
 * Bytes are those of an operation's arguments, each once: what a kernel reads again, and what
 * kernels of one operation leave for each other in the workspace, is not in them. Of a product with
 * experts each row counts as having its own, until all are read.
 * Threads: as fake_cuda.h; read it while no work is given. */
#ifndef QUIRE_TESTS_CUDA_LAUNCH_LOG_H
#define QUIRE_TESTS_CUDA_LAUNCH_LOG_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define LAUNCH_LOG_PUBLIC __attribute__((visibility("default")))

struct launch {
    const char *op;     /* NULL: an operation that launch_log.c has no bytes of */
    const void *kernel; /* its function */
    uint32_t n_row;
    uint32_t kv_token; /* of attention: bytes of K and V of a token of the context */
    uint64_t weights, kv_written, read, written; /* bytes; of an operation's first kernel */
};
struct launch_log {
    struct launch *items;
    size_t n, room;
};
extern LAUNCH_LOG_PUBLIC struct launch_log launch_log;

LAUNCH_LOG_PUBLIC void launch_log_reset(void); /* frees the entries */
/* The entry of a kernel that the operation in progress launches. */
struct launch launch_log_entry(const void *kernel);
void launch_log_run(void *entry); /* appends a copy */

#ifdef __cplusplus
}
#endif
#endif
