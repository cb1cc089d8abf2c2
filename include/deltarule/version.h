/* The version of the library, and of its binary interface. docs/abi.md says what may change under which number, and how public
 * structs grow.
 *
 * All functions of this header may be called at any time from any thread. */
#ifndef DELTARULE_VERSION_H
#define DELTARULE_VERSION_H

#define DELTARULE_VERSION_MAJOR 0
#define DELTARULE_VERSION_MINOR 1
#define DELTARULE_VERSION_PATCH 0
#define DELTARULE_VERSION       "0.1.0"

/* One number to compare: 1002003 of version 1.2.3. */
#define DELTARULE_VERSION_OF(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define DELTARULE_VERSION_NUMBER                  DELTARULE_VERSION_OF(DELTARULE_VERSION_MAJOR, DELTARULE_VERSION_MINOR, DELTARULE_VERSION_PATCH)

/* The binary interface that a program compiled with these headers needs, and the number in the shared library's name. */
#define DELTARULE_ABI 1

#if defined(__GNUC__)
#define DR_API __attribute__((visibility("default")))
#else
#define DR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that runs, as "major.minor.patch", and as DELTARULE_VERSION_NUMBER has it. */
DR_API const char *dr_version(void);
DR_API int dr_version_number(void);

/* DELTARULE_ABI of the library that runs. A program that loads it by hand compares. */
DR_API int dr_abi(void);

#ifdef __cplusplus
}
#endif
#endif
