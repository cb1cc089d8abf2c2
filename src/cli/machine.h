/* What this machine calls itself. */
#ifndef DR_CLI_MACHINE_H
#define DR_CLI_MACHINE_H

enum { CLI_MACHINE_SIZE = 128 };

/* The name of the first GPU for backend cuda, as NVIDIA's driver has it, of the processor otherwise; "unknown" where the system
 * does not tell. */
void cli_machine_name(const char *backend, char name[CLI_MACHINE_SIZE]);

#endif
