// What the CUDA sources share. Put before each of them when it is compiled.

typedef signed char int8;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

constexpr unsigned FULL = 0xffffffffu;

__device__ inline int lane() { return threadIdx.x & 31; }

// Rows are worked on by warps: the first of this one, and how many there are in all.
__device__ inline int64 first_warp() { return (int64(blockIdx.x) * blockDim.x + threadIdx.x) >> 5; }
__device__ inline int64 all_warps() { return (int64(gridDim.x) * blockDim.x) >> 5; }
