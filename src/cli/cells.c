/* Each run is a process of this program, `deltarule train`, in a process group of its own, so that a Ctrl-C reaches it once and
 * through us; where we are killed the kernel kills it. What it prints comes through a pipe, of which the end is kept for the
 * case that it fails. */
#include "cli/cells.h"

#include "base/number.h"
#include "cli/commands.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_JOBS = 256, TAIL = 600 };

typedef struct {
    pid_t process;
    int cell, output; /* output: the reading end of its pipe */
    double begun;
    char tail[TAIL + 1]; /* the last bytes that it printed */
    size_t used;
} job;

typedef struct {
    dr_experiment *experiment;
    const char *folder;
    const cli_cells_options *options;
    job jobs[MOST_JOBS];
    int running, limit;
    int begun, failed, next; /* next: the cell to look at */
    bool told;               /* the runs were told to end */
    int lock;                /* descriptor of the folder's lock */
} sweep;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* In the child: becomes the run of a cell. */
static void become(const sweep *self, int cell, int output, pid_t parent) {
    char run[PATH_MAX], config[PATH_MAX];
    const char *name = dr_experiment_cell(self->experiment, cell);
    snprintf(run, sizeof run, "%s/%s", self->folder, name);
    snprintf(config, sizeof config, "%s/%s.json", self->folder, name);
    const bool resumes = dr_experiment_state(self->experiment, cell) == DR_CELL_BEGUN;
    const char *const fresh[] = {"deltarule", "train",
                                 "--config",  config,
                                 "--out",     run,
                                 "--backend", self->options->backend,
                                 "--threads", self->options->threads,
                                 NULL};
    const char *const again[] = {
        "deltarule", "train", "--resume", run, "--backend", self->options->backend, "--threads", self->options->threads, NULL};
    fcntl(self->lock, F_SETFD, 0); /* so that the folder is free when all its runs have ended */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it was killed before this call */
    setpgid(0, 0);
    if (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0) _exit(1);
    execv("/proc/self/exe", (char *const *)(resumes ? again : fresh));
    _exit(127);
}

static int begin(sweep *self, int cell) {
    int ends[2];
    dr_status status = dr_experiment_prepare(self->experiment, self->folder, cell);
    if (status != DR_OK) return cli_failure(&cli_experiment, status);
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        fprintf(stderr, "deltarule experiment: a run cannot be begun: %s\n", strerror(errno));
        return 1;
    }
    const pid_t parent = getpid(), child = fork();
    if (child == 0) become(self, cell, ends[1], parent);
    close(ends[1]);
    if (child < 0) {
        fprintf(stderr, "deltarule experiment: a run cannot be begun: %s\n", strerror(errno));
        close(ends[0]);
        return 1;
    }
    self->jobs[self->running++] = (job){.process = child, .cell = cell, .output = ends[0], .begun = now()};
    self->begun++;
    return 0;
}

/* Keeps the end of what a run printed. false: it has ended. */
static bool listen(job *of) {
    char bytes[TAIL];
    ssize_t got;
    do got = read(of->output, bytes, sizeof bytes);
    while (got < 0 && errno == EINTR);
    if (got <= 0) return false;
    const size_t fresh = (size_t)got, kept = of->used + fresh > TAIL ? TAIL - fresh : of->used;
    memmove(of->tail, of->tail + (of->used - kept), kept);
    memcpy(of->tail + kept, bytes, fresh);
    of->used = kept + fresh;
    of->tail[of->used] = '\0';
    return true;
}

/* The last line that a run printed. */
static const char *last_line(job *of) {
    while (of->used > 0 && of->tail[of->used - 1] == '\n') of->tail[--of->used] = '\0';
    const char *line = strrchr(of->tail, '\n');
    return line ? line + 1 : of->tail;
}

static void tell_end(const sweep *self, job *of, bool done) {
    int finished = 0;
    const int cells = dr_experiment_cells(self->experiment);
    const char *name = dr_experiment_cell(self->experiment, of->cell);
    for (int i = 0; i < cells; i++) finished += dr_experiment_state(self->experiment, i) == DR_CELL_DONE;
    if (done)
        dr_print(stderr, "%d of %d done: %s, %.0f s\n", finished, cells, name, now() - of->begun);
    else
        fprintf(stderr, "deltarule experiment: the run %s failed: %s\n", name, last_line(of));
}

/* Takes the job out of the list and says how it ended. */
static int end(sweep *self, int index) {
    job of = self->jobs[index];
    int how = 0;
    close(of.output);
    while (waitpid(of.process, &how, 0) < 0 && errno == EINTR) {
    }
    self->jobs[index] = self->jobs[--self->running];
    if (self->told && !(WIFEXITED(how) && WEXITSTATUS(how) == 0)) return 0; /* it can be resumed */
    const bool done = WIFEXITED(how) && WEXITSTATUS(how) == 0;
    if (done) {
        dr_status status = dr_experiment_finish(self->experiment, self->folder, of.cell);
        if (status == DR_OK) status = dr_experiment_write(self->experiment, self->folder);
        if (status != DR_OK) return cli_failure(&cli_experiment, status);
    }
    self->failed += !done;
    tell_end(self, &of, done);
    return 0;
}

static void tell_all_to_end(sweep *self) {
    if (self->told) return;
    self->told = true;
    for (int i = 0; i < self->running; i++) kill(self->jobs[i].process, SIGTERM);
}

/* Waits until a run prints or ends, and sees to it. */
static int serve(sweep *self) {
    struct pollfd polls[MOST_JOBS];
    const int count = self->running;
    for (int i = 0; i < count; i++) polls[i] = (struct pollfd){.fd = self->jobs[i].output, .events = POLLIN};
    if (poll(polls, (nfds_t)count, -1) < 0) return 0; /* a signal: the caller looks */
    for (int i = count - 1; i >= 0; i--)
        if (polls[i].revents && !listen(&self->jobs[i])) {
            int status = end(self, i);
            if (status) return status;
        }
    return 0;
}

static bool may_begin(const sweep *self) {
    return self->running < self->limit && !self->told && self->next < dr_experiment_cells(self->experiment) &&
           (self->options->most == 0 || self->begun < self->options->most);
}

static int limit_of(const cli_cells_options *options) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = 1;
    dr_integer_parse(options->threads, &threads);
    long jobs = options->jobs > 0 ? options->jobs : threads > 0 ? cores / (long)threads : 1;
    return jobs < 1 ? 1 : jobs > MOST_JOBS ? MOST_JOBS : (int)jobs;
}

int cli_cells_run(dr_experiment *experiment, const char *folder, const cli_cells_options *options) {
    sweep *self = calloc(1, sizeof *self);
    if (!self) {
        fprintf(stderr, "deltarule experiment: out of memory\n");
        return 1;
    }
    *self = (sweep){.experiment = experiment, .folder = folder, .options = options, .limit = limit_of(options), .lock = -1};
    /* a moment for the runs of a process that was killed: they end after it */
    dr_status held = dr_experiment_hold(folder, 10, &self->lock);
    if (held == DR_OK) held = dr_experiment_load(experiment, folder);
    int status = held == DR_OK ? 0 : cli_failure(&cli_experiment, held);
    while (status == 0 && (self->running > 0 || may_begin(self))) {
        if (cli_interrupted()) tell_all_to_end(self);
        while (status == 0 && may_begin(self)) {
            if (dr_experiment_state(experiment, self->next) != DR_CELL_DONE) status = begin(self, self->next);
            self->next++;
        }
        if (status == 0 && self->running > 0) status = serve(self);
    }
    if (status) tell_all_to_end(self);
    if (self->lock >= 0) close(self->lock);
    for (; self->running > 0; self->running--) waitpid(self->jobs[self->running - 1].process, NULL, 0);
    if (status == 0) status = cli_interrupted() ? CLI_STATUS_INTERRUPTED : self->failed ? 1 : 0;
    free(self);
    return status;
}
