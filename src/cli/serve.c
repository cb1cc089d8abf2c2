/* deltarule serve: models behind a port. The signals that steer it are waited for by the first thread and blocked in all
 * others, so that nothing is done inside a signal handler. */
#include "serve/serve.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/model.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOST,
    PORT,
    API_KEY_FILE,
    SLOTS,
    QUEUE,
    CONTEXT,
    STORE,
    STATE_FOLDER,
    STATE_FOLDER_SIZE,
    BODY,
    CONNECTIONS,
    TIMEOUT,
    CLIENT_TIMEOUT,
    NO_LOG,
    TOKENIZER,
    BACKEND,
    THREADS,
    WEIGHTS,
    ISA,
    FLAGS
};
enum { LONGEST_KEY = 4096 };

static const cli_flag table[FLAGS] = {
    [HOST] = {.setting = {"host", DR_SETTING_TEXT, "127.0.0.1", 0, 0, NULL, NULL,
                          "address to listen on; 0.0.0.0 and :: are all of the machine's"},
              .placeholder = "ADDRESS"},
    [PORT] = {.setting = {"port", DR_SETTING_INTEGER, "8000", 0, 65535, NULL, NULL, "port to listen on; 0: any that is free"},
              .placeholder = "N"},
    [API_KEY_FILE] = {.setting = {"api_key_file", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                  "file whose first line clients must send as their key; the environment's DELTARULE_API_KEY "
                                  "without it"},
                      .placeholder = "FILE"},
    [SLOTS] = {.setting = {"slots", DR_SETTING_INTEGER, "8", 1, 4096, NULL, NULL, "answers of a model that are made at once"},
               .placeholder = "N"},
    [QUEUE] = {.setting = {"queue", DR_SETTING_INTEGER, "256", 1, 1e6, NULL, NULL,
                           "answers of a model that may wait; further ones are refused"},
               .placeholder = "N"},
    [CONTEXT] = {.setting = {"context", DR_SETTING_INTEGER, "32768", 1, 1e9, NULL, NULL,
                             "tokens that a prompt and its answer may have together"},
                 .placeholder = "N"},
    [STORE] =
        {.setting = {"store", DR_SETTING_INTEGER, "256", 0, 1e7, NULL, NULL,
                     "MiB of states that are kept, so that a prompt that goes on from another is not read again; 0: none"},
         .placeholder = "MIB"},
    [STATE_FOLDER] = {.setting = {"state_folder", DR_SETTING_TEXT, NULL, 0, 0, NULL, NULL,
                                  "folder where kept states are files too, so that they outlive the server; made if missing"},
                      .placeholder = "DIR"},
    [STATE_FOLDER_SIZE] = {.setting = {"state_folder_size", DR_SETTING_INTEGER, "1024", 1, 1e9, NULL, NULL,
                                       "MiB of files of each model in the state folder"},
                           .placeholder = "MIB"},
    [BODY] = {.setting = {"max_body", DR_SETTING_INTEGER, "8", 1, 1024, NULL, NULL, "MiB that a request's body may have"},
              .placeholder = "MIB"},
    [CONNECTIONS] = {.setting = {"connections", DR_SETTING_INTEGER, "256", 1, 65536, NULL, NULL, "connections at once"},
                     .placeholder = "N"},
    [TIMEOUT] = {.setting = {"timeout", DR_SETTING_INTEGER, "600", 1, 1e6, NULL, NULL, "seconds that a request may take"},
                 .placeholder = "SECONDS"},
    [CLIENT_TIMEOUT] = {.setting = {"client_timeout", DR_SETTING_INTEGER, "30", 1, 86400, NULL, NULL,
                                    "seconds that a client may be silent, or take for the head of a request; its body may take "
                                    "a second more for each KiB"},
                        .placeholder = "SECONDS"},
    [NO_LOG] = {.setting = {"no_log", DR_SETTING_BOOLEAN, "false", 0, 0, NULL, NULL,
                            "print no line for each request on standard error"}},
    [TOKENIZER] = CLI_FLAG_TOKENIZER,
    [BACKEND] = CLI_FLAG_BACKEND,
    [THREADS] = CLI_FLAG_THREADS,
    [WEIGHTS] = CLI_FLAG_WEIGHTS,
    [ISA] = CLI_FLAG_ISA,
};

static dr_serve_options read_options(const cli_flag *flags, const char *key) {
    return (dr_serve_options){.tokenizer = flags[TOKENIZER].value,
                              .host = flags[HOST].value,
                              .port = (int)cli_flag_integer(&flags[PORT]),
                              .api_key = key,
                              .slots = cli_flag_integer(&flags[SLOTS]),
                              .queue = cli_flag_integer(&flags[QUEUE]),
                              .context = cli_flag_integer(&flags[CONTEXT]),
                              .store_bytes = cli_flag_integer(&flags[STORE]) << 20,
                              .state_folder = flags[STATE_FOLDER].value,
                              .folder_bytes = cli_flag_integer(&flags[STATE_FOLDER_SIZE]) << 20,
                              .body_bytes = cli_flag_integer(&flags[BODY]) << 20,
                              .connections = cli_flag_integer(&flags[CONNECTIONS]),
                              .request_seconds = (double)cli_flag_integer(&flags[TIMEOUT]),
                              .client_seconds = (double)cli_flag_integer(&flags[CLIENT_TIMEOUT]),
                              .log = cli_flag_boolean(&flags[NO_LOG]) ? NULL : stderr};
}

/* The key that clients need, or NULL; free it. */
static int read_key(const char *path, char **key) {
    size_t bytes;
    const char *variable = getenv("DELTARULE_API_KEY");
    *key = NULL;
    if (path) {
        int exit_status = cli_read_input(&cli_serve, path, LONGEST_KEY, key, &bytes);
        if (exit_status) return exit_status;
        (*key)[strcspn(*key, "\r\n")] = 0;
    } else if (variable) {
        *key = strdup(variable);
    }
    if (!*key || **key) return 0;
    free(*key);
    *key = NULL;
    return cli_usage(&cli_serve, "the API key is empty: its file must begin with it");
}

static void *leave_at_second_signal(void *context) {
    int signal_number;
    sigwait(context, &signal_number);
    fprintf(stderr, "deltarule serve: stopped before all answers were finished\n");
    _Exit(1);
}

/* Until SIGTERM or SIGINT; SIGHUP reads the models anew. */
static void obey_signals(dr_server *server, const sigset_t *steering) {
    static sigset_t second;
    pthread_t thread;
    int signal_number = 0;
    while (sigwait(steering, &signal_number) == 0 && signal_number == SIGHUP) {
        if (dr_server_reload(server) == DR_OK)
            fprintf(stderr, "deltarule serve: the models were read anew\n");
        else
            fprintf(stderr, "deltarule serve: the models stay as they are: %s\n", dr_last_error());
    }
    fprintf(stderr, "deltarule serve: finishing the answers that have begun\n");
    sigemptyset(&second);
    sigaddset(&second, SIGTERM);
    sigaddset(&second, SIGINT);
    if (pthread_create(&thread, NULL, leave_at_second_signal, &second) == 0) pthread_detach(thread);
}

static int serve(const dr_serve_options *options, const sigset_t *steering) {
    dr_server *server;
    const bool six = strchr(options->host, ':') != NULL;
    dr_status status = dr_server_start(options, &server);
    if (status != DR_OK) return cli_failure(&cli_serve, status);
    if (strcmp(options->host, "127.0.0.1") != 0 && strcmp(options->host, "::1") != 0 &&
        strcmp(options->host, "localhost") != 0 && !options->api_key)
        fprintf(stderr,
                "deltarule serve: whoever reaches this machine can use the models: --api-key-file asks them for a key\n");
    printf("deltarule serve: listening on http://%s%s%s:%d\n", six ? "[" : "", options->host, six ? "]" : "",
           dr_server_port(server));
    int exit_status = cli_finish_output(&cli_serve);
    if (exit_status == 0) obey_signals(server, steering);
    dr_server_stop(server);
    return exit_status;
}

static int run(int argc, char **argv) {
    cli_flag flags[FLAGS];
    int operands, exit_status;
    char *key;
    sigset_t steering;
    dr_backend *backend;
    memcpy(flags, table, sizeof flags);
    if (!cli_flags_parse(&cli_serve, flags, FLAGS, argc, argv, &operands, &exit_status)) return exit_status;
    if (flags[STATE_FOLDER].value && cli_flag_integer(&flags[STORE]) == 0)
        return cli_usage(&cli_serve, "--state-folder keeps states that --store 0 does not keep: leave one of them out");
    exit_status = read_key(flags[API_KEY_FILE].value, &key);
    if (exit_status) return exit_status;
    sigemptyset(&steering);
    sigaddset(&steering, SIGTERM);
    sigaddset(&steering, SIGINT);
    sigaddset(&steering, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &steering, NULL);
    dr_backend_options backend_options = {.threads = (int)cli_flag_integer(&flags[THREADS]),
                                          .isa = flags[ISA].value,
                                          .weights = cli_flag_weights(&flags[WEIGHTS])};
    dr_status status = dr_backend_open(flags[BACKEND].value, &backend_options, &backend);
    if (status != DR_OK) {
        exit_status = cli_failure(&cli_serve, status);
    } else {
        dr_serve_options options = read_options(flags, key);
        options.backend = backend;
        options.models = (const char *const *)(argv + 1);
        options.model_count = operands;
        exit_status = serve(&options, &steering);
        dr_backend_close(backend);
    }
    free(key);
    return exit_status;
}

const cli_command cli_serve = {
    .name = "serve",
    .arguments = "MODEL... [flags]",
    .summary = "answers requests over HTTP as OpenAI's interface has them",
    .details =
        "MODEL is a folder, named by its last part, or NAME=FOLDER. SIGTERM finishes the answers that have begun and stops,\n"
        "a second one stops at once; SIGHUP reads the models anew. A page to try the models is at the address it prints.",
    .run = run,
    .least_operands = 1,
    .most_operands = INT_MAX - 1,
};
