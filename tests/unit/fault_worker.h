/* SPDX-License-Identifier: Apache-2.0 */
/* fault_worker - the prompts that crash the worker of the tests (fault_worker.c). */
#ifndef QUIRE_TESTS_UNIT_FAULT_WORKER_H
#define QUIRE_TESTS_UNIT_FAULT_WORKER_H

#define FAULT_POISON 7u /* a token that no golden prompt or answer has before one of these */
enum { FAULT_AT_ONCE = 3, FAULT_DECODING = 4, FAULT_HANGING = 5 };

#endif
