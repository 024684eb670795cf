/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/progress.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/columns.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/size_text.h"

#define BAR_MS    200
#define LINE_MS   10000
#define BAR_WIDTH 20

void progress_init(struct progress *p, const char *id, bool json)
{
    memset(p, 0, sizeof *p);
    p->id = id;
    p->json = json;
    p->bar = !json && isatty(2) && !getenv("HF_HUB_DISABLE_PROGRESS_BARS");
}

/* "40 %, 1.20 GB of 3.00 GB, 85.0 MB/s, 21 s left, 3 of 12 files" */
static void describe(const struct progress *p, char *out, size_t n)
{
    char done[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], speed[SIZE_TEXT_MAX], left[48] = "";
    const double seconds = (double)(clock_ms() - p->begun_ms) / 1000;
    const double rate = seconds > 0 ? (double)(p->done - p->begun_with) / seconds : 0;
    size_text(done, (double)p->done);
    size_text(total, (double)p->total);
    size_text(speed, rate);
    if (rate > 0 && p->done < p->total)
        snprintf(left, sizeof left, ", %.0f s left", ceil((double)(p->total - p->done) / rate));
    snprintf(out, n, "%3.0f %%, %s of %s, %s/s%s, %u of %u files",
             p->total ? 100.0 * (double)p->done / (double)p->total : 100.0, done, total, speed,
             left, p->n_done, p->n_file);
}

static void clear_bar(struct progress *p)
{
    if (p->is_shown)
        fputs("\r\033[K", stderr);
    p->is_shown = false;
}

static void show_bar(struct progress *p)
{
    char text[256], bar[BAR_WIDTH + 1];
    const unsigned width = columns_width(stderr);
    const uint64_t full = p->total ? p->done * BAR_WIDTH / p->total : BAR_WIDTH;
    for (unsigned i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    describe(p, text, sizeof text);
    if (width > BAR_WIDTH + 24)
        fprintf(stderr, "\r\033[K%s %.*s", bar, (int)(width - BAR_WIDTH - 2), text);
    else
        fprintf(stderr, "\r\033[K%.*s", (int)width - 1, text);
    fflush(stderr);
    p->is_shown = true;
}

static void show_json(const struct progress *p)
{
    struct buf out = BUF_INIT;
    buf_add_str(&out, "{\"model\":");
    buf_add_json_str(&out, p->id, strlen(p->id));
    buf_printf(&out, ",\"bytes\":%llu,\"total_bytes\":%llu,\"files\":%u,\"total_files\":%u}\n",
               (unsigned long long)p->done, (unsigned long long)p->total, p->n_done, p->n_file);
    fputs(buf_str(&out), stdout);
    fflush(stdout);
    buf_release(&out);
}

void progress_tick(struct progress *p)
{
    char text[256];
    const int64_t now = clock_ms();
    if (!p->n_file || now - p->shown_ms < (p->bar ? BAR_MS : LINE_MS))
        return;
    p->shown_ms = now;
    if (p->bar) {
        show_bar(p);
    } else if (p->json) {
        show_json(p);
    } else {
        describe(p, text, sizeof text);
        log_info("%s: %s", p->id, text);
    }
}

void progress_begin(struct progress *p)
{
    char total[SIZE_TEXT_MAX];
    p->begun_ms = p->shown_ms = clock_ms();
    p->begun_with = p->done;
    size_text(total, (double)(p->total - p->done));
    if (!p->bar && !p->json && p->total > p->done)
        log_info("%s: downloading %u files, %s", p->id, p->n_file - p->n_done, total);
}

void progress_add(struct progress *p, uint64_t bytes)
{
    p->done += bytes;
}

void progress_file(struct progress *p, const char *name, uint64_t size, bool cached)
{
    p->n_done++;
    if (p->json) {
        struct buf out = BUF_INIT;
        buf_add_str(&out, "{\"file\":");
        buf_add_json_str(&out, name, strlen(name));
        buf_printf(&out, ",\"size\":%llu,\"status\":\"%s\"}\n", (unsigned long long)size,
                   cached ? "cached" : "downloaded");
        fputs(buf_str(&out), stdout);
        fflush(stdout);
        buf_release(&out);
    } else if (!p->bar && !cached) {
        char text[SIZE_TEXT_MAX];
        log_info("%s: %s, %s", p->id, name, size_text(text, (double)size));
    }
}

void progress_end(struct progress *p)
{
    clear_bar(p);
    fflush(stderr);
}
