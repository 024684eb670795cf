/* SPDX-License-Identifier: Apache-2.0 */
/* Force-included into every C file: unsafe calls do not compile. Replacements:
 * strcpy/strcat/sprintf -> snprintf or struct buf; strtok -> a loop; atoi/atol/atof ->
 * common/parse.h; gmtime/localtime -> the _r forms; alloca -> an arena. malloc & co. are checked by
 * lint (common/mem.h). */
#ifndef QUIRE_COMMON_BANNED_H
#define QUIRE_COMMON_BANNED_H
#ifndef __cplusplus
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#undef alloca
#pragma GCC poison strcpy strcat sprintf vsprintf strtok atoi atol atoll atof alloca gmtime \
    localtime gets
#endif
#endif
