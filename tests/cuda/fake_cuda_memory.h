/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda_memory - memory of fake_cuda: the card's, which opens only while work runs, and pinned
 * memory of the host. Private to fake_cuda*.c. Threads: as fake_cuda.h. */
#ifndef QUIRE_TESTS_CUDA_FAKE_CUDA_MEMORY_H
#define QUIRE_TESTS_CUDA_FAKE_CUDA_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL: out of memory. */
void *memory_new(size_t n, bool on_card);
/* Takes no memory until it is used: of the card for ever inaccessible, of the host zero. */
void *memory_new_untouched(size_t n, bool on_card);
/* False if p is not the start of an allocation of this kind. */
bool memory_free(void *p, bool on_card);
/* True if one allocation has all n bytes from p on. */
bool memory_has(const void *p, size_t n);
uint32_t memory_count(void);
uint64_t memory_card_bytes(void);
/* Calls nest. */
void memory_open(bool open);

#endif
