/* The server of a build without libmicrohttpd: each function says so. */
#include "base/error.h"
#include "serve/serve.h"

dr_status dr_server_start(const dr_serve_options *options, dr_server **server) {
    (void)options;
    (void)server;
    return dr_fail(DR_ERROR_UNSUPPORTED,
                   "this build has no server: libmicrohttpd was not found when it was configured (Debian: libmicrohttpd-dev)");
}

int dr_server_port(const dr_server *server) {
    (void)server;
    return 0;
}

dr_status dr_server_reload(dr_server *server) {
    return dr_server_start(NULL, &server);
}

void dr_server_stop(dr_server *server) {
    (void)server;
}
