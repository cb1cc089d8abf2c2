/* DR_FOR_CHECK marks the functions inside this library that the second one, deltarule_check (src/check), calls too: the shared
 * library shows them beside the public ones. They are no part of the interface and may change with every version. */
#ifndef DR_BASE_FOR_CHECK_H
#define DR_BASE_FOR_CHECK_H

#include <deltarule/status.h>

#define DR_FOR_CHECK DR_API

#endif
