/* SPDX-License-Identifier: Apache-2.0 */
/* fake_lt - cuBLASLt without a card: the functions of lt_api.h on host memory, done when they
 * return or given to a stream, and as strict about arguments as the library is: types that fit each
 * other, W turned and x not, steps and addresses aligned as was promised, workspace as large as was
 * said.
 *
 * It has FAKE_LT_ALGOS algorithms, all of them right unless fake_lt says otherwise; which one ran
 * is told by the first word of struct lt_algo. Threads: one. */
#ifndef QUIRE_TESTS_CUDA_FAKE_LT_H
#define QUIRE_TESTS_CUDA_FAKE_LT_H
#include <stdbool.h>
#include "kernels/cuda/lt_api.h"

#define FAKE_LT_ALGOS     4u
#define FAKE_LT_WORKSPACE 4096u /* bytes that algorithm 3 needs */

struct fake_lt {
    uint32_t n_algo;       /* that the heuristic offers */
    bool is_old;           /* before 12.9: products have no scales for each row and output */
    bool no_scales;        /* of a card that has no algorithm with them */
    uint32_t wrong;        /* bits: algorithm i gives a wrong number in its last row */
    uint32_t refused;      /* bits: algorithm i is refused */
    uint64_t refused_from; /* so many products are run, the others refused; 0: all are run */
    uint64_t n_matmul;     /* that were run */
    uint32_t last;         /* algorithm of the last one */
    uint32_t n_object;     /* descriptions that there are now */
    uint64_t n_heuristic;  /* calls */
    void (*ran)(uint32_t algo);
    /* Gives a product to a stream, run(copy of the n bytes of arg); NULL: it is done at once. */
    void (*give)(void *stream, void (*run)(void *arg), const void *arg, size_t n);
};
extern struct fake_lt fake_lt;
extern const struct lt_api fake_lt_api;

#endif
