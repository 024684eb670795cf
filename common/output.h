/* SPDX-License-Identifier: Apache-2.0 */
/* output - detects failed writes to standard output. A full disk or a closed pipe is only reported
 * when buffered bytes are written, for the last of them after main. Threads: the main one. */
#ifndef QUIRE_COMMON_OUTPUT_H
#define QUIRE_COMMON_OUTPUT_H

/* For programs only, before a file is opened: standard streams that are closed are opened, so that
 * no other file gets their numbers. At the end of the process, if not all of standard output was
 * written: a message, and exit code 1 in place of 0; other exit codes are kept. program: lives as
 * long as the process. */
void output_check_at_exit(const char *program);

#endif
