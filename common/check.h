/* SPDX-License-Identifier: Apache-2.0 */
/* check - checks of a whole state that are too dear for users' programs: in trees with tests they
 * run after each step or event. Q_CHECK(core_check(c)) is nothing elsewhere. A check asserts
 * (Q_ASSERT), changes nothing and allocates nothing. Threads: as what it checks. */
#ifndef QUIRE_COMMON_CHECK_H
#define QUIRE_COMMON_CHECK_H

#ifdef QUIRE_CHECKS /* set by the layers' CMakeLists.txt, with QUIRE_TESTS */
#define Q_CHECK(call) (call)
#else
#define Q_CHECK(call) ((void)0)
#endif

#endif
