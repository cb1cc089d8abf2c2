/* Functions of one number that models apply element by element: between the two projections of a feed-forward, to gates, and as
 * feature maps of queries and keys. */
#ifndef DR_OPS_FUNCTION_H
#define DR_OPS_FUNCTION_H

typedef enum {
    DR_FUNCTION_IDENTITY,
    DR_FUNCTION_RELU,         /* max(x, 0), whose slope at 0 is 0 */
    DR_FUNCTION_SQUARED_RELU, /* max(x, 0)^2 */
    DR_FUNCTION_SIGMOID,
    DR_FUNCTION_SILU, /* x sigmoid(x) */
    DR_FUNCTION_TANH,
    DR_FUNCTION_GELU,      /* x times the normal distribution function of x */
    DR_FUNCTION_GELU_TANH, /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
    DR_FUNCTION_ELU_1,     /* x + 1 for x > 0, else e^x: elu + 1 */
    DR_FUNCTIONS
} dr_function;

#endif
