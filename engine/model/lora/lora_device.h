/* SPDX-License-Identifier: Apache-2.0 */
/* lora_device - the adapters of a model on a device: as many slots as a step may have different
 * adapters, each with room for the largest adapter there may be (ops_lora.h).
 *
 * Any number of adapters is in host memory, from where the device copies one to a slot when a step
 * has it and no slot does: to that whose adapter no step had for longest, and never to one of the
 * same step. The copy is work of the stream of the steps, so that it waits for all steps that read
 * the slot, and the step that needs it waits for the copy. Threads: one; steps allocate nothing. */
#ifndef QUIRE_ENGINE_MODEL_LORA_LORA_DEVICE_H
#define QUIRE_ENGINE_MODEL_LORA_LORA_DEVICE_H
#include "engine/model/lora/lora.h"
#include "kernels/device.h"

struct lora_device;
struct lora_device_args {
    const struct device_link *link;    /* borrowed until lora_device_free */
    const struct model_config *config; /* borrowed for the call */
    enum dtype dtype;                  /* of all adapters */
    uint32_t rank_max, n_slot;
};
/* Errors: Q_NO_MEMORY; those of arch_find. */
FALLIBLE lora_device_new(struct lora_device **out, const struct lora_device_args *a,
                         struct q_err *e);
void lora_device_free(struct lora_device *d); /* behind its adapters; takes NULL */
uint64_t lora_device_bytes(const struct lora_device *d);

/* An adapter of lora_load, with the dtype and at most the rank of `d`: its numbers go to host
 * memory that the device reads. Before the first step that has it. Errors: Q_NO_MEMORY. */
FALLIBLE lora_device_add(const struct lora_device *d, struct lora *a, struct q_err *e);
/* Before lora_free. No step that has it is in flight, and none will have it. */
void lora_device_remove(struct lora_device *d, const struct lora *a);

/* Give the stream what the batch needs: each of its adapters has a slot then, until the next call.
 * Errors: Q_TOO_LARGE (more adapters than slots; the slots stay as they are). */
FALLIBLE lora_device_place(struct lora_device *d, const struct lora_batch *b, struct q_err *e);
/* Tiles of a step of n rows, which lora_device_tiles fills: those of the batch, then unused ones.
 * */
uint32_t lora_device_n_tile(const struct lora_device *d, uint32_t n_row);
/* b: placed, or NULL, for none. rows: [n_row] of the step. */
void lora_device_tiles(const struct lora_device *d, const struct lora_batch *b, uint32_t n_row,
                       struct lora_row_tile *tiles, uint32_t *rows);
/* What the kernels of a step of n rows read; tiles and rows are in device memory. `product` is the
 * operation's: lora_product. */
struct lora_slots lora_device_slots(const struct lora_device *d, uint32_t n_row,
                                    const struct lora_row_tile *tiles, const uint32_t *rows);

#endif
