/* SPDX-License-Identifier: Apache-2.0 */
/* unicode - properties of single code points as in Python's str, on top of utf8proc.
 * Threads: pure. */
#ifndef QUIRE_COMMON_TEMPLATE_UNICODE_H
#define QUIRE_COMMON_TEMPLATE_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNI_CASE_MAX 3 /* code points one code point can become */

bool uni_is_space(uint32_t c);    /* str.isspace, str.strip, re's \s */
bool uni_is_line_end(uint32_t c); /* str.splitlines */
bool uni_is_alpha(uint32_t c);
bool uni_is_decimal(uint32_t c);
bool uni_is_digit(uint32_t c);
bool uni_is_numeric(uint32_t c);
bool uni_is_word(uint32_t c); /* re's \w */
bool uni_is_upper(uint32_t c);
bool uni_is_lower(uint32_t c);
bool uni_is_title(uint32_t c);
bool uni_is_cased(uint32_t c);
bool uni_is_case_ignorable(uint32_t c);
bool uni_is_printable(uint32_t c); /* repr shows it as it is */
/* s[from..to) without the white space at its start, at its end: the new from, the new to. */
size_t uni_skip_space(const char *s, size_t from, size_t to);
size_t uni_trim_space(const char *s, size_t from, size_t to);
/* The full mappings; return how many code points were written. */
size_t uni_upper(uint32_t c, uint32_t out[UNI_CASE_MAX]);
size_t uni_lower(uint32_t c, uint32_t out[UNI_CASE_MAX]); /* the caller handles final sigma */
size_t uni_title(uint32_t c, uint32_t out[UNI_CASE_MAX]);
size_t uni_fold(uint32_t c, uint32_t out[UNI_CASE_MAX]);

#endif
