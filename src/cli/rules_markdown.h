/* The table of rules as a page of documentation. */
#ifndef DR_CLI_RULES_MARKDOWN_H
#define DR_CLI_RULES_MARKDOWN_H

#include <deltarule/status.h>

/* Prints docs/rules.md. */
dr_status cli_print_rules_markdown(void);

#endif
