/* Ctrl-C and SIGTERM: the first asks the command to stop in good order, the second leaves at once. */
#ifndef DR_CLI_INTERRUPT_H
#define DR_CLI_INTERRUPT_H

#include <stdbool.h>

enum { CLI_STATUS_INTERRUPTED = 130 };

/* From now on the first signal sets what cli_interrupted() tells and prints `advice`, which lives as long as the program. */
void cli_interrupt_catch(const char *advice);
bool cli_interrupted(void);

#endif
