/* SPDX-License-Identifier: Apache-2.0 */
#include "common/columns.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "common/parse.h"
#include "common/utf8.h"

#define WIDTH_MIN 40
#define WIDTH_MAX 120 /* longer lines are hard to read */

unsigned columns_width(FILE *out)
{
    struct q_err e = Q_ERR_INIT;
    struct winsize size = {0};
    const char *text = getenv("COLUMNS");
    int64_t width = 0;
    if (!text || parse_i64(&width, text, 1, 100000, "COLUMNS", &e) != Q_OK) {
        bool known = isatty(fileno(out)) && ioctl(fileno(out), TIOCGWINSZ, &size) == 0;
        width = known && size.ws_col ? size.ws_col : COLUMNS_DEFAULT;
    }
    return (unsigned)(width < WIDTH_MIN ? WIDTH_MIN : width > WIDTH_MAX ? WIDTH_MAX : width);
}

void columns_put(FILE *out, unsigned at, unsigned indent, unsigned width, const char *text)
{
    bool first = true; /* of its line */
    while (*text) {
        size_t n = strcspn(text, " \n");
        unsigned columns = (unsigned)utf8_count(text, n);
        if (n && !first && at + 1 + columns > width) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        if (n) {
            fprintf(out, "%s%.*s", first ? "" : " ", (int)n, text);
            at += columns + !first;
            first = false;
        }
        text += n;
        if (*text == '\n') {
            fprintf(out, "\n%*s", text[1] ? (int)indent : 0, "");
            at = indent;
            first = true;
        }
        text += *text != '\0';
    }
    fputc('\n', out);
}

void columns_row(FILE *out, const char *left, unsigned indent, unsigned width, const char *right)
{
    unsigned n = (unsigned)utf8_count(left, strlen(left));
    if (n + 4 > indent)
        fprintf(out, "  %s\n%*s", left, (int)indent, "");
    else
        fprintf(out, "  %s%*s", left, (int)(indent - n - 2), "");
    columns_put(out, indent, indent, width, right);
}

/* The bytes to the next space outside of quotes. */
static size_t shell_word(const char *s)
{
    char quote = 0;
    size_t n = 0;
    for (; s[n] && (quote || s[n] != ' '); n++)
        if (quote ? s[n] == quote : s[n] == '\'' || s[n] == '"')
            quote = quote ? 0 : s[n];
    return n;
}

void columns_command(FILE *out, unsigned width, const char *command)
{
    unsigned at = 4;
    fputs("    ", out);
    for (bool first = true; *command; first = false) {
        size_t n = shell_word(command);
        unsigned columns = (unsigned)utf8_count(command, n);
        if (!first && at + 1 + columns + 2 > width) { /* room for " \" */
            fputs(" \\\n       ", out);
            at = 7;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", (int)n, command);
        at += columns + !first;
        command += n;
        command += *command == ' ';
    }
    fputc('\n', out);
}
