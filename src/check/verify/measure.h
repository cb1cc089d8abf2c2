/* What a case is measured with: memory of the backend that is filled from tensors of the file, and the relative error of what
 * comes back. */
#ifndef DR_VERIFY_MEASURE_H
#define DR_VERIFY_MEASURE_H

#include <deltarule/backend.h>

enum { DR_DEVICE_BLOCKS = 80 };

/* Blocks of a backend's memory that are freed together. */
typedef struct {
    dr_backend *backend;
    int count;
    void *block[DR_DEVICE_BLOCKS];
} dr_device_memory;

/* The functions with a dtype take tensors of that type where the backend's memory holds it; a backend that holds another one,
 * the reference, is given and gives numbers rounded to it. The others stand for the backend's own type. */

void dr_device_free(dr_device_memory *memory);
dr_status dr_device_bytes(dr_device_memory *memory, size_t bytes, void **block);
/* count elements, NaN: what a backend forgets to write will show. */
dr_status dr_device_unset(dr_device_memory *memory, int64_t count, void **block);
dr_status dr_device_zero(dr_device_memory *memory, int64_t count, void **block);
/* count elements of a tensor; one with fewer has each of them several times in a row. */
void dr_tensor_repeat(const dr_tensor *tensor, int64_t count, double *values);
dr_status dr_device_fill(dr_device_memory *memory, const dr_tensor *tensor, int64_t count, void **block);
dr_status dr_device_fill_as(dr_device_memory *memory, dr_dtype dtype, const dr_tensor *tensor, int64_t count, void **block);
dr_status dr_device_unset_as(dr_device_memory *memory, dr_dtype dtype, int64_t count, void **block);
dr_status dr_device_put_as(dr_backend *backend, dr_dtype dtype, const double *values, int64_t count, void *block);
dr_status dr_device_get_as(dr_backend *backend, dr_dtype dtype, const void *block, int64_t count, double *values);

/* The relative errors of some tensors, by name. */
typedef struct {
    int count;
    struct {
        char tensor[40];
        double error;
    } of[DR_DEVICE_BLOCKS];
} dr_errors;

/* The relative error over some tensors that is the largest against what is allowed, and where it is. */
typedef struct {
    double error; /* -1: nothing was compared; infinite: a value is NaN or infinite */
    char tensor[40];
    double excess;          /* error over what is allowed */
    double tolerance;       /* allowed, */
    const dr_errors *plain; /* or, if that is more, twice the error in here; NULL: nothing else */
    double least;           /* errors in there count as this at least */
    dr_errors *kept;        /* all errors go in here; NULL: nowhere */
} dr_worst;

typedef struct {
    dr_worst forward, backward;
    char kernel[96]; /* that ran */
} dr_measurement;

/* What rounding to the type alone does to a tensor, relative: a random error of up to half a unit in the last place. */
double dr_rounding_error(dr_dtype dtype);

void dr_measurement_start(dr_measurement *measurement, double forward_tolerance, double backward_tolerance);

/* ||actual - expected|| / max(||expected||, 1e-6 sqrt(n)), Euclidean, over the whole tensor, in double; taken into *worst under
 * the name "prefix" "name". actual: [count of expected] in host memory. */
void dr_measure(const double *actual, const dr_tensor *expected, const char *prefix, const char *name, dr_worst *worst);
/* The same of a block of the backend's memory. */
dr_status dr_measure_block(dr_backend *backend, const void *actual, const dr_tensor *expected, const char *prefix,
                           const char *name, dr_worst *worst);
/* The same of count elements, of which as many in a row are summed as stand for one of expected. */
dr_status dr_measure_sums(dr_backend *backend, dr_dtype dtype, const void *actual, int64_t count, const dr_tensor *expected,
                          const char *prefix, const char *name, dr_worst *worst);

#endif
