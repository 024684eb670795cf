/* SPDX-License-Identifier: Apache-2.0 */
/* Names are compared without case, '_' and '-', so that topP matches top_p; then by edit distance
 * (insertion, deletion, substitution, swap), with a lower limit for shorter names. */
#include "common/nearest.h"

#include <assert.h>
#include <string.h>

#define PLAIN_MAX 48 /* bytes of a name that are compared */
static_assert(PLAIN_MAX <= NEAREST_MAX, "plain names can be compared");

static size_t plain(char out[PLAIN_MAX], const char *name, size_t n)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n && n_out < PLAIN_MAX; i++)
        if (name[i] != '_' && name[i] != '-')
            out[n_out++] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] | 0x20) : name[i];
    return n_out;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Optimal string alignment. */
size_t nearest_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t rows[3][NEAREST_MAX + 1];
    if (n_a > NEAREST_MAX || n_b > NEAREST_MAX)
        return n_a > n_b ? n_a : n_b;
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

size_t nearest_name(const char *name, const char *names, const char **nearest)
{
    char given[PLAIN_MAX], known[PLAIN_MAX];
    size_t n_given = plain(given, name, strlen(name)), n_best = 0,
           best = n_given < 5   ? 2
                  : n_given < 9 ? 3
                                : 4;
    while (*names) {
        size_t n = strcspn(names, " "), n_known = plain(known, names, n);
        size_t d = nearest_distance(given, n_given, known, n_known);
        if (d < best && d < n_given) {
            best = d;
            n_best = n;
            *nearest = names;
        }
        names += n + (names[n] == ' ');
    }
    return n_best;
}
