/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the host emulation as work of fake_cuda's streams: libquire-fake-cuda.so is
 * libquire-cuda.so on fake_cuda, the emulation and the fake cuBLASLt. A launcher runs when it is
 * called, so one that reads device memory ends with a fault, as on a card. */
#include "cuda_emu.h"
#include <cstdlib>
extern "C" {
#include "fake_cuda.h"
#include "fake_lt.h"
#include "kernels/cuda/stream.h"
#include "launch_log.h"
}

struct launched {
    emu_work work;
    size_t n;
};
#define ARGS_AT ((sizeof(launched) + 15) / 16 * 16)

static void run_kernel(void *arg)
{
    const launched *l = (const launched *)arg;
    emu_launch(l->work.grid, l->work.block, l->work.shared_bytes, l->work.body,
               (char *)arg + ARGS_AT);
}

/* A launcher's stream is a struct cuda_stream (kernels/cuda/stream.h). */
static void give_kernel(void *stream, const emu_work *work, const void *arg, size_t n)
{
    const cudaStream_t to = ((const struct cuda_stream *)stream)->cuda;
    if (fake_cuda.records) {
        const struct launch entry = launch_log_entry(work->kernel);
        fake_cuda_launch(to, launch_log_run, &entry, sizeof entry);
        return;
    }
    std::vector<char> copy(ARGS_AT + n);
    *(launched *)(void *)copy.data() = {*work, n};
    memcpy(copy.data() + ARGS_AT, arg, n);
    fake_cuda_launch(to, run_kernel, copy.data(), copy.size());
}

static void give_product(void *stream, void (*run)(void *), const void *arg, size_t n)
{
    fake_cuda_launch((cudaStream_t)stream, run, arg, n);
}

/* A tuner measures cuBLASLt after our kernels: what is measured later is faster. */
static float faster_ms(void)
{
    static uint32_t n;
    return 1000.0f / (float)(1 + n++ % 1000);
}

extern "C" const struct lt_api *lt_api_open(char why[LT_WHY_MAX])
{
    *why = '\0';
    fake_lt.n_algo = 1; /* emulation takes its time */
    return &fake_lt_api;
}

extern "C" bool cuda_code_waits(void)
{
    return fake_cuda.major >= 9;
}

__attribute__((constructor)) static void connect(void)
{
    const char *capability = getenv("QUIRE_FAKE_CAPABILITY");
    emu_gives = give_kernel;
    fake_lt.give = give_product;
    fake_cuda.elapsed_ms = faster_ms;
    if (capability && *capability == '9')
        fake_cuda.major = 9;
    emu_shared_max = (size_t)227 << 10;
}
