/* Signals. Ctrl-C and SIGTERM: the first asks the command to stop in good order, the second leaves at once. SIGBUS: a mapped
 * file lost what is read of it. */
#ifndef DR_CLI_INTERRUPT_H
#define DR_CLI_INTERRUPT_H

#include <stdbool.h>

enum { CLI_STATUS_INTERRUPTED = 130 };

/* From now on the first signal sets what cli_interrupted() tells and prints `advice`, which lives as long as the program. */
void cli_interrupt_catch(const char *advice);
bool cli_interrupted(void);

/* For a program that goes on after Ctrl-C: each one sets what cli_interrupted() tells until it is forgotten, and ends a read
 * that waits. Other signals end the program as ever. */
void cli_interrupt_each(void);
void cli_interrupt_forget(void);

/* From now on SIGBUS ends the program with status 1 and a sentence: a corpus or a model that lies mapped in memory was cut
 * short by another program, or its disk failed. */
void cli_explain_lost_files(void);

#endif
