/* SPDX-License-Identifier: Apache-2.0 */
/* Which formats a chat template speaks: its text holds the tags the model was trained to write. */
#include <string.h>
#include "frontend/parsers/parser.h"

#define MARKS 3

struct row {
    const char *name;
    const char *marks[MARKS]; /* all of them */
};
/* clang-format off */
#define DETECT_TOOL(n, ...) {n, {__VA_ARGS__}},
#define DETECT_REASONING(n, ...)
static const struct row tools[] = {
#include "frontend/parsers/detect.def"
};
#define DETECT_TOOL(n, ...)
#define DETECT_REASONING(n, ...) {n, {__VA_ARGS__}},
static const struct row reasonings[] = {
#include "frontend/parsers/detect.def"
};
/* clang-format on */

static const char *find(const struct row *rows, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        int k = 0;
        while (k < MARKS && rows[i].marks[k] && strstr(text, rows[i].marks[k]))
            k++;
        if (k == MARKS || !rows[i].marks[k])
            return rows[i].name;
    }
    return NULL;
}

struct parser_detected parser_detect(const char *text)
{
    return (struct parser_detected){find(tools, sizeof tools / sizeof *tools, text),
                                    find(reasonings, sizeof reasonings / sizeof *reasonings, text)};
}
