/* Each run is a process of this program, `deltarule train`, in a process group of its own, so that a Ctrl-C reaches it once and
 * through us; where we are killed the kernel kills it. What it prints comes through a pipe, of which the end is kept for the
 * case that it fails. What follows a run, a probe of its model or tasks that it is asked, are processes likewise, one after
 * another in the place of the run. */
#include "cli/cells.h"

#include "base/number.h"
#include "cli/commands.h"
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_JOBS = 256, TAIL = 600, MOST_ARGUMENTS = 60, MOST_OUTPUT = 1 << 26 };

typedef struct {
    pid_t process;
    int cell, output;    /* output: the reading end of its pipe */
    int gpu;             /* its place among those that runs are spread over */
    int capture;         /* what a follow-up prints; -1: it is a run */
    char what[32];       /* "probe of " */
    double begun;        /* when its cell was */
    char tail[TAIL + 1]; /* the last bytes that it printed */
    size_t used;
} job;

typedef struct {
    dr_experiment *experiment;
    const char *folder;
    const cli_cells_options *options;
    job jobs[MOST_JOBS];
    int running, limit;
    int begun, failed, next; /* next: the place of the cell to look at */
    bool told;               /* the runs were told to end */
    int lock;                /* descriptor of the folder's lock */
} sweep;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Arguments of a command, the last NULL. */
typedef struct {
    const char *at[MOST_ARGUMENTS + 1];
    int count;
} arguments;

static void add(arguments *to, const char *one, const char *other) {
    if (to->count + 2 > MOST_ARGUMENTS) return;
    to->at[to->count++] = one;
    if (other) to->at[to->count++] = other;
}

/* The command of a cell: its run, or what follows it. */
static void make_command(const sweep *self, int cell, const char *const *follow_up, const char *run, const char *config,
                         arguments *made) {
    const bool resumes = dr_experiment_state(self->experiment, cell) == DR_CELL_BEGUN;
    *made = (arguments){.count = 0};
    add(made, "deltarule", NULL);
    if (follow_up) {
        for (; *follow_up; follow_up++) add(made, *follow_up, NULL);
    } else {
        add(made, "train", NULL);
        add(made, resumes ? "--resume" : "--out", run);
        if (!resumes) add(made, "--config", config);
    }
    add(made, "--backend", self->options->backend);
    const bool times = strcmp(made->at[1], "bench") == 0;
    /* a benchmark refuses a number of threads where a GPU computes */
    if (!times || strcmp(self->options->backend, "cuda") != 0) add(made, "--threads", self->options->threads);
    if (times || strcmp(made->at[1], "train") == 0) add(made, "--dtype", self->options->dtype);
}

/* The GPU with the fewest runs. */
static int free_gpu(const sweep *self) {
    int best = 0, fewest = MOST_JOBS + 1;
    for (int gpu = 0; gpu < self->options->gpus; gpu++) {
        int runs = 0;
        for (int i = 0; i < self->running; i++) runs += self->jobs[i].gpu == gpu;
        if (runs < fewest) best = gpu, fewest = runs;
    }
    return best;
}

/* Lets this process see one GPU: the one of that place in CUDA_VISIBLE_DEVICES, or of that number where it is not set. */
static void see_gpu(int gpu) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char name[128];
    for (int i = 0; visible && *visible && i < gpu; i++) {
        visible += strcspn(visible, ",");
        visible += *visible == ',';
    }
    if (visible)
        snprintf(name, sizeof name, "%.*s", (int)strcspn(visible, ","), visible);
    else
        snprintf(name, sizeof name, "%d", gpu);
    setenv("CUDA_VISIBLE_DEVICES", name, 1);
}

/* In the child: becomes the command. */
static void become(const sweep *self, const arguments *command, int output, int capture, int gpu, pid_t parent) {
    fcntl(self->lock, F_SETFD, 0); /* so that the folder is free when all its runs have ended */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it was killed before this call */
    setpgid(0, 0);
    if (self->options->gpus > 0) see_gpu(gpu);
    if (dup2(capture >= 0 ? capture : output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0) _exit(1);
    execv("/proc/self/exe", (char *const *)command->at);
    _exit(127);
}

static int cannot_begin(void) {
    fprintf(stderr, "deltarule experiment: a run cannot be begun: %s\n", strerror(errno));
    return 1;
}

/* Begins the next command of a cell as a job. What follows a run prints into a file without a name, from where it is read. */
static int begin_command(sweep *self, int cell, double begun) {
    int ends[2], capture = -1;
    char run[PATH_MAX], config[PATH_MAX];
    const char *const *follow_up = NULL;
    arguments command;
    const bool trained = dr_experiment_state(self->experiment, cell) == DR_CELL_TRAINED;
    dr_status status = dr_experiment_next(self->experiment, self->folder, cell, &follow_up); /* early: for what is missing */
    if (status == DR_OK && !trained) status = dr_experiment_prepare(self->experiment, self->folder, cell);
    if (status != DR_OK) return cli_failure(&cli_experiment, status);
    snprintf(run, sizeof run, "%s/%s", self->folder, dr_experiment_cell(self->experiment, cell));
    snprintf(config, sizeof config, "%s/%s.json", self->folder, dr_experiment_cell(self->experiment, cell));
    make_command(self, cell, trained ? follow_up : NULL, run, config, &command);
    if (trained && (capture = memfd_create("output", MFD_CLOEXEC)) < 0) return cannot_begin();
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        if (capture >= 0) close(capture);
        return cannot_begin();
    }
    const int gpu = free_gpu(self);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) become(self, &command, ends[1], capture, gpu, parent);
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        if (capture >= 0) close(capture);
        return cannot_begin();
    }
    job *of = &self->jobs[self->running++];
    *of = (job){.process = child, .cell = cell, .output = ends[0], .gpu = gpu, .capture = capture, .begun = begun};
    if (trained) snprintf(of->what, sizeof of->what, "%s of the ", command.at[1]);
    return 0;
}

static int begin(sweep *self, int cell) {
    self->begun++;
    return begin_command(self, cell, now());
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

/* Why a command failed. A command that ended by itself is told by its last line, or by its status where it printed nothing. A
 * command that a signal ended is told by the signal, too, since its last line is one of its progress. */
static void why(job *of, int how, char *text, size_t size) {
    const char *said = last_line(of);
    if (WIFSIGNALED(how)) {
        const int signal = WTERMSIG(how);
        if (*said)
            snprintf(text, size, "it ended by signal %d, %s; it had said: %.200s", signal, strsignal(signal), said);
        else
            snprintf(text, size, "it said nothing and ended by signal %d, %s", signal, strsignal(signal));
    } else if (*said)
        snprintf(text, size, "%s", said);
    else
        snprintf(text, size, "it said nothing and ended with status %d", WEXITSTATUS(how));
}

static void tell_done(const sweep *self, const job *of) {
    int finished = 0;
    const int cells = dr_experiment_cells(self->experiment);
    for (int i = 0; i < cells; i++) finished += dr_experiment_state(self->experiment, i) == DR_CELL_DONE;
    dr_print(stderr, "%d of %d done: %s, %.0f s\n", finished, cells, dr_experiment_cell(self->experiment, of->cell),
             now() - of->begun);
}

/* What a follow-up printed, with a zero byte behind it; free it. NULL: too much, or there is no memory. */
static char *read_capture(int capture) {
    const off_t bytes = lseek(capture, 0, SEEK_END);
    char *text = bytes >= 0 && bytes < MOST_OUTPUT ? malloc((size_t)bytes + 1) : NULL;
    off_t done = 0;
    while (text && done < bytes) {
        const ssize_t got = pread(capture, text + done, (size_t)(bytes - done), done);
        if (got <= 0) break;
        done += got;
    }
    if (text) text[done] = '\0';
    return text;
}

/* Keeps what a command measured that ended well. */
static dr_status keep(sweep *self, const job *of) {
    if (of->capture < 0) return dr_experiment_finish(self->experiment, self->folder, of->cell);
    char *text = read_capture(of->capture);
    dr_status status = dr_experiment_keep(self->experiment, self->folder, of->cell, text ? text : "");
    free(text);
    return status;
}

/* Takes the job out of the list, says how it ended, and begins what follows it. */
static int end(sweep *self, int index) {
    job of = self->jobs[index];
    int how = 0;
    close(of.output);
    while (waitpid(of.process, &how, 0) < 0 && errno == EINTR) {
    }
    self->jobs[index] = self->jobs[--self->running];
    const bool done = WIFEXITED(how) && WEXITSTATUS(how) == 0;
    dr_status status = done ? keep(self, &of) : DR_OK;
    if (of.capture >= 0) close(of.capture);
    if (status == DR_OK && done) status = dr_experiment_record(self->experiment, self->folder);
    if (status == DR_OK && done) status = dr_experiment_write(self->experiment, self->folder);
    if (status != DR_OK) return cli_failure(&cli_experiment, status);
    if (!done && self->told) return 0; /* it can be resumed */
    if (!done) {
        char reason[TAIL + 1];
        self->failed++;
        why(&of, how, reason, sizeof reason);
        fprintf(stderr, "deltarule experiment: the %srun %s failed: %s\n", of.what,
                dr_experiment_cell(self->experiment, of.cell), reason);
        return 0;
    }
    if (dr_experiment_state(self->experiment, of.cell) == DR_CELL_DONE)
        tell_done(self, &of);
    else if (!self->told)
        return begin_command(self, of.cell, of.begun);
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

/* The cores that this process may use, which taskset and containers make fewer than the machine has. */
static long cores_of_process(void) {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
}

static int limit_of(const dr_experiment *experiment, const cli_cells_options *options) {
    const long cores = cores_of_process();
    const long said = dr_experiment_jobs(experiment);
    int64_t threads = 1;
    dr_integer_parse(options->threads, &threads);
    long jobs = threads > 0 ? cores / (long)threads : 1;
    const long fit = said * (options->gpus > 1 ? options->gpus : 1);
    if (said > 0 && fit < jobs) jobs = fit;
    if (options->jobs > 0) jobs = options->jobs;
    return jobs < 1 ? 1 : jobs > MOST_JOBS ? MOST_JOBS : (int)jobs;
}

int cli_cells_run(dr_experiment *experiment, const char *folder, const cli_cells_options *options, bool *refused) {
    sweep *self = calloc(1, sizeof *self);
    *refused = !self;
    if (!self) {
        fprintf(stderr, "deltarule experiment: out of memory\n");
        return 1;
    }
    *self = (sweep){
        .experiment = experiment, .folder = folder, .options = options, .limit = limit_of(experiment, options), .lock = -1};
    /* a moment for the runs of a process that was killed: they end after it */
    dr_status held = dr_experiment_hold(folder, 10, &self->lock);
    if (held == DR_OK) held = dr_experiment_load(experiment, folder);
    if (held == DR_OK) held = dr_experiment_record(experiment, folder);
    int status = held == DR_OK ? 0 : cli_failure(&cli_experiment, held);
    while (status == 0 && (self->running > 0 || may_begin(self))) {
        if (cli_interrupted()) tell_all_to_end(self);
        while (status == 0 && may_begin(self)) {
            const int cell = dr_experiment_turn(experiment, self->next++);
            if (dr_experiment_state(experiment, cell) != DR_CELL_DONE) status = begin(self, cell);
        }
        if (status == 0 && self->running > 0) status = serve(self);
    }
    *refused = status != 0;
    if (*refused) tell_all_to_end(self);
    if (self->lock >= 0) close(self->lock);
    for (; self->running > 0; self->running--) waitpid(self->jobs[self->running - 1].process, NULL, 0);
    if (status == 0) status = cli_interrupted() ? CLI_STATUS_INTERRUPTED : self->failed ? 1 : 0;
    free(self);
    return status;
}
