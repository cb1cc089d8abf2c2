/* A signal handler can speak to the program through static storage only: the two variables here. Leaving at once is safe
 * because files are replaced whole (the library writes beside them, syncs and renames). */
#include "cli/interrupt.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t signalled;
static const char *volatile advice_text = "";

static void on_signal(int number) {
    (void)number;
    if (signalled) _exit(CLI_STATUS_INTERRUPTED);
    signalled = 1;
    ssize_t written = write(STDERR_FILENO, advice_text, strlen(advice_text));
    (void)written; /* nothing can be done about it here */
}

void cli_interrupt_catch(const char *advice) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    advice_text = advice;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

static void on_interrupt(int number) {
    (void)number;
    signalled = 1;
}

void cli_interrupt_each(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; /* without SA_RESTART: a read that waits for a line ends */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void cli_interrupt_forget(void) {
    signalled = 0;
}

bool cli_interrupted(void) {
    return signalled != 0;
}

static void on_lost_page(int number) {
    static const char text[] =
        "deltarule: a file that is in use, of a corpus or a model, became shorter or cannot be read any more; "
        "nothing more can be computed. What was written before is whole\n";
    (void)number;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(1);
}

void cli_explain_lost_files(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_lost_page;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
