/* SPDX-License-Identifier: Apache-2.0 */
/* log - lines to stderr: `2026-01-02T03:04:05.678Z INFO engine: loaded 12 tensors`, or one JSON
 * object per line.
 *
 * Each line is one write(2), so lines of several processes on one stderr never mix. Control
 * characters are escaped, because messages quote client input. Threads: any. Set up once in main.
 */
#ifndef QUIRE_COMMON_LOG_H
#define QUIRE_COMMON_LOG_H
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

/* `component` ("engine", "frontend") is kept, not copied. */
void log_setup(const char *component, enum log_level level, bool json);
FALLIBLE log_level_parse(enum log_level *out, const char *name, struct q_err *e);
bool log_enabled(enum log_level level);
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *fmt, ...);

#define log_debug(...)   log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)    log_line(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_error(...)   log_line(LOG_ERROR, __VA_ARGS__)

/* True at most once per `interval_ms` for each `*last_ms` (start it at 0): for messages that a
 * hostile peer can cause at any rate. *n_skipped counts the suppressed ones since the last true. */
bool log_ratelimit(int64_t *last_ms, uint64_t *n_skipped, int64_t interval_ms);

#endif
