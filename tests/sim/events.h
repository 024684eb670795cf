/* SPDX-License-Identifier: Apache-2.0 */
/* events - a virtual clock, and all that is to happen, in its order.
 *
 * clock_ms and clock_us of the code under test are this clock; log lines go nowhere, or, with their
 * virtual time, to stdout. Two events of one time happen in the order in which they were added, so
 * the seed determines everything. Threads: one. */
#ifndef QUIRE_TESTS_SIM_EVENTS_H
#define QUIRE_TESTS_SIM_EVENTS_H
#include <stdbool.h>
#include <stdint.h>

/* p is of q_alloc, or NULL: freed by the event, or by events_reset when it did not happen. */
typedef void event_run(uint64_t a, void *p);

void events_reset(uint64_t seed); /* forget all events; the clock starts again */
void events_show_log(bool shown);
void event_add(int64_t after_us, event_run *run, uint64_t a, void *p);
bool events_next(void); /* the next one happens; false: there is none */
int64_t events_now_us(void);

uint64_t events_random(void);
uint32_t events_pick(uint32_t min, uint32_t max); /* both included */
bool events_chance(uint32_t in_10000);

#endif
