/* SPDX-License-Identifier: Apache-2.0 */
/* upload - the way of weights from files to a device: through two buffers that the device reads
 * directly, so that one is filled while the other travels.
 *
 *     for each piece:  p = upload_space(u); fill p, at most UPLOAD_BYTES
 *                      upload_copy(u, dst, n)        it goes to dst as it is, or
 *                      src = upload_stage(u, n)      it goes to device memory, for a kernel there
 *                      upload_next(u)                what was ordered is all that uses this buffer
 *     upload_end(u, e)
 * What fails on the way is said by upload_end. Threads: one. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_UPLOAD_H
#define QUIRE_ENGINE_MODEL_LOAD_UPLOAD_H
#include "kernels/device.h"

#define UPLOAD_BYTES ((size_t)16 << 20) /* of one buffer: half a millisecond of a PCIe 5 x16 slot */

struct upload {
    const struct device_link *link; /* borrowed */
    struct upload_buffer {
        void *host, *device;
        struct device_event *free; /* nothing uses the buffer any more */
        bool is_used;
    } buffers[2];
    uint32_t at;
    struct q_err error; /* the first */
};

/* Errors: Q_NO_MEMORY. */
FALLIBLE upload_init(struct upload *u, const struct device_link *link, struct q_err *e);
void upload_release(struct upload *u); /* also of one that is all zeros */
void *upload_space(struct upload *u);
void upload_copy(struct upload *u, void *dst, size_t n);
const void *upload_stage(struct upload *u, size_t n);
void upload_next(struct upload *u);
/* n bytes of host memory to dst, whatever n is. */
void upload_bytes(struct upload *u, void *dst, const void *src, size_t n);
/* Until all is there. Errors: those of the device. */
FALLIBLE upload_end(struct upload *u, struct q_err *e);

#endif
