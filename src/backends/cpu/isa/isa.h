/* Names by instruction set. Each file of this folder is compiled once for each instruction set with DR_ISA set to its name, so
 * every external symbol here carries that name as a suffix: DR_ISA_NAME(dr_cpu_kernels) is dr_cpu_kernels_avx2, and so on. */
#ifndef DR_CPU_ISA_H
#define DR_CPU_ISA_H

#define DR_ISA_JOIN(name, isa)  name##_##isa
#define DR_ISA_PASTE(name, isa) DR_ISA_JOIN(name, isa)
#define DR_ISA_NAME(name)       DR_ISA_PASTE(name, DR_ISA)

#endif
