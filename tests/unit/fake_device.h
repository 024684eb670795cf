/* SPDX-License-Identifier: Apache-2.0 */
/* fake_device - a device (kernels/device.h) without a card: its memory is the host's, its kernels
 * are the reference's. For tests of what drives a device.
 *
 * It is as unkind as a device may be. Nothing happens before somebody waits for it, and then no
 * more than what was waited for: a stream's work runs up to the event, work of other streams only
 * where a stream waits for it. Device memory cannot be touched while no work runs (mprotect), holds
 * NaN when it is new, and is as large as fake_total_bytes. Graphs are lists of work with their
 * arguments; what attention is given as its plan is compared with the sequences it finds. Threads:
 * one, as a device. */
#ifndef QUIRE_TESTS_UNIT_FAKE_DEVICE_H
#define QUIRE_TESTS_UNIT_FAKE_DEVICE_H
#include "kernels/device.h"

const struct device_table *fake_device_table(void);

extern uint64_t fake_total_bytes; /* of a device that is opened; 1 GiB */
__attribute__((visibility("default"))) extern uint64_t fake_n_launch; /* of graphs, so far */

#endif
