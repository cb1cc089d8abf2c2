/* How many threads a backend has, and how many a parallel region gets. Every region of this backend asks here. */
#ifndef DR_CPU_THREADS_H
#define DR_CPU_THREADS_H

#include <deltarule/backend.h>

/* The number of threads of a backend: asked, at most DR_MOST_THREADS, or where that is 0 what OpenMP says. DR_ERROR_ARGUMENT if
 * OpenMP's settings forbid or cannot say it, DR_ERROR_UNSUPPORTED if the system does not let this process make so many. */
dr_status dr_cpu_choose_threads(int asked, int *threads);

/* Threads for a region that the calling thread opens now, from 1 to `most`: 1 in the child of a fork and within a parallel
 * region of the caller, else `most`, or as many as the system lets it make. Never more than was asked. */
int dr_cpu_team(int most);

#endif
