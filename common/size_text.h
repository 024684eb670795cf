/* SPDX-License-Identifier: Apache-2.0 */
/* size_text - a number of bytes for people, in the unit that fits it, with three digits.
 *
 *     999 B    1.00 kB    12.3 MB    999 GB        size_text: of files, disks and transfers
 *     999 B    1.00 KiB   12.3 MiB   1000 GiB      size_text_binary: of memory
 *
 * Threads: pure. */
#ifndef QUIRE_COMMON_SIZE_TEXT_H
#define QUIRE_COMMON_SIZE_TEXT_H

#define SIZE_TEXT_MAX 32 /* bytes, with the NUL */

/* Both return `out`. */
const char *size_text(char out[SIZE_TEXT_MAX], double bytes);
const char *size_text_binary(char out[SIZE_TEXT_MAX], double bytes);

#endif
