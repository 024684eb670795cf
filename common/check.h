/* SPDX-License-Identifier: Apache-2.0 */
/* check - consistency checks of a whole state, which cost too much for production: in builds with
 * tests they run after each step or event, in other builds Q_CHECK(core_check(c)) is empty. A check
 * asserts (Q_ASSERT), changes nothing and allocates nothing. Threads: those of the state. */
#ifndef QUIRE_COMMON_CHECK_H
#define QUIRE_COMMON_CHECK_H

#ifdef QUIRE_CHECKS /* set by the layers' CMakeLists.txt, with QUIRE_TESTS */
#define Q_CHECK(call) (call)
#else
#define Q_CHECK(call) ((void)0)
#endif

#endif
