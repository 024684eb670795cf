/* SPDX-License-Identifier: Apache-2.0 */
/* libquire-fake.so: the fake device as a library that a worker loads (--cuda-library). */
#include "fake_device.h"

__attribute__((visibility("default"))) const struct device_table *quire_device_7(void);

const struct device_table *quire_device_7(void)
{
    return fake_device_table();
}
