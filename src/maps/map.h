/* Functions of this folder are compiled for the processor that includes them: by nvcc, for the GPU. */
#ifndef DR_MAPS_MAP_H
#define DR_MAPS_MAP_H

#ifdef __CUDACC__
#define DR_MAP static inline __device__
#else
#define DR_MAP static inline
#endif

#endif
