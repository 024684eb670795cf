/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck as a program of its own; `quire bench kernels` has the same code inside. */
#include "kcheck.h"

int main(int argc, char **argv)
{
    return kcheck_main(argc, argv);
}
