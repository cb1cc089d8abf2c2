/* A component whose files are still to come. */
typedef int dr_empty;
