/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bench/machine.h"
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "common/clock.h"
#include "kernels/kern.h"

#define BUSY_LOAD 0.2

/* The value of the first line "model name : …". */
static void read_cpu(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f)
        fclose(f);
}

void machine_describe(struct machine *m)
{
    struct utsname name;
    memset(m, 0, sizeof *m);
    read_cpu(m->cpu, sizeof m->cpu);
    snprintf(m->isa, sizeof m->isa, "%s", kern_variant_name("linear", kern_caps_machine()));
    if (uname(&name) == 0)
        snprintf(m->system, sizeof m->system, "%.20s %.64s", name.sysname, name.release);
    m->n_core = team_default_threads();
    m->memory_gb = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) * 1e-9;
    if (getloadavg(&m->load, 1) != 1)
        m->load = 0;
    m->clock_unix = (double)clock_unix();
}

bool machine_is_busy(const struct machine *m)
{
    return m->load > BUSY_LOAD;
}

void machine_print(const struct machine *m, FILE *out)
{
    fprintf(out, "%s, %u cores, %u threads, %s, %.1f GB, %s\n", m->cpu, m->n_core, m->n_thread,
            m->isa, m->memory_gb, m->system);
    if (machine_is_busy(m))
        fprintf(out, "warning: other programs use %.1f cores, so the results are not reliable\n",
                m->load);
}

void machine_json(struct buf *b, const struct machine *m, const struct roofline *r)
{
    buf_add_str(b, "{\"cpu\":");
    buf_add_json_str(b, m->cpu, strlen(m->cpu));
    buf_add_str(b, ",\"isa\":");
    buf_add_json_str(b, m->isa, strlen(m->isa));
    buf_add_str(b, ",\"system\":");
    buf_add_json_str(b, m->system, strlen(m->system));
    buf_printf(b, ",\"cores\":%u,\"threads\":%u,\"memory_gb\":%.1f,\"load_1m\":%.2f,\"time\":%.0f",
               m->n_core, m->n_thread, m->memory_gb, m->load, m->clock_unix);
    if (r)
        buf_printf(
            b,
            ",\"read_gb_s\":%.1f,\"fp32_gop_s\":%.0f,\"bf16_gop_s\":%.0f,\"int8_gop_s\":%.0f,"
            "\"barrier_us\":%.3f",
            r->read_gb_s, r->fp32_gop_s, r->bf16_gop_s, r->int8_gop_s, r->barrier_us);
    if (r && r->reading_source)
        buf_printf(b, ",\"reading\":\"%s\",\"reading_source\":\"%s\"", r->reading,
                   r->reading_source);
    buf_add_char(b, '}');
}
