/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of libquire-cuda.so when no device can be opened; this file plays CUDA's part. */
#include "check.h"
#include "kernels/cuda/no_device.h"

static void each_cause_has_its_message(void **state)
{
    (void)state;
    static const struct {
        int driver;
        const char *why;
        enum q_code code;
        const char *message;
    } cases[] = {
        {0, "CUDA driver version is insufficient for CUDA runtime version", Q_NOT_FOUND,
         "CUDA: no device: this machine has no NVIDIA driver (libcuda.so.1)"},
        {12040, "CUDA driver version is insufficient for CUDA runtime version", Q_UNSUPPORTED,
         "CUDA: the NVIDIA driver supports CUDA 12.4, this build requires 13.0 or newer; update "
         "the driver"},
        {DRIVER_LEAST - 10, "", Q_UNSUPPORTED,
         "CUDA: the NVIDIA driver supports CUDA 12.99, this build requires 13.0 or newer; update "
         "the driver"},
        {DRIVER_LEAST, "no CUDA-capable device is detected", Q_NOT_FOUND,
         "CUDA: no device: no CUDA-capable device is detected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct q_err e = Q_ERR_INIT;
        assert_int_equal(no_device(cases[i].driver, cases[i].why, &e), cases[i].code);
        assert_string_equal(e.message, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_cause_has_its_message)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
