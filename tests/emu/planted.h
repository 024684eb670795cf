/* SPDX-License-Identifier: Apache-2.0 */
/* planted - a kernel with and without a bug, and what the emulation must say of it ("": anything).
 * Each table of cases ends with one without a name; planted.cc runs them. Threads: one. */
#ifndef QUIRE_TESTS_EMU_PLANTED_H
#define QUIRE_TESTS_EMU_PLANTED_H
#include "kernels/cuda/launch.cuh"

#define PLANTED_OUT 96u /* thread t < 96 of a kernel leaves 3 * ((t + 40) % 96) here */
extern unsigned planted_out[PLANTED_OUT];

enum found_by { BY_ALL, BY_WATCH, BY_ASAN_TOO, BY_TSAN_TOO, BY_RESULT, BY_RESULT_TOO };
struct planted {
    const char *name;
    void (*right)(), (*wrong)();
    unsigned n_thread;
    size_t shared;
    enum found_by by;
    const char *says;
};
extern const struct planted planted_hopper[];

#endif
