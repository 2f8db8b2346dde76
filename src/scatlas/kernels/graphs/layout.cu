// A round of UMAP's layout, eight lanes per cell: the forces, schedule and random numbers of
// layout_cpu. Each cell sums its own forces in a fixed order: the same bits on every run.

constexpr float LONGEST = 4.0f, FARTHEST = 40.0f, NEAREST = 1e-12f, SOFTENING = 0.001f;
constexpr uint64 STEP = 0x9E3779B97F4A7C15ull;
// Lanes per cell, and places that a lane reads at once: nearly all the time is spent waiting for
// the memory, which is read at random.
constexpr int LANES = 8, AT_ONCE = 4;

__device__ inline uint64 hash(uint64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <int N>
struct alignas(N == 2 ? 8 : 4) Place {
  float at[N];
};

// Squared distance, its floor as on the CPU, and the differences along each axis.
template <int N>
__device__ inline float apart_of(const Place<N>& a, const Place<N>& b, float* apart) {
  float d2 = NEAREST;
#pragma unroll
  for (int axis = 0; axis < N; ++axis) {
    apart[axis] = a.at[axis] - b.at[axis];
    d2 += apart[axis] * apart[axis];
  }
  return d2;
}

template <int N>
__global__ void run_round(
    const Place<N>* __restrict__ coordinates, Place<N>* __restrict__ out,
    const Place<N>* __restrict__ others, int64 n_others, const int64* __restrict__ indptr,
    const int* __restrict__ indices, const float* __restrict__ weights,
    const uint64* __restrict__ keys, int64 n, float a, float b, float number, float rate,
    float damping, float pulls, float gamma, int n_draws, uint64 round) {
  const int lane_of = threadIdx.x % LANES;
  for (int64 first = first_thread(); first / 32 * 32 < n * LANES; first += all_threads()) {
    const int64 i = first / LANES;
    const bool is_there = i < n;
    const Place<N> here = is_there ? coordinates[i] : Place<N>{};
    const int64 stop = is_there ? load(indptr + i + 1) : 0;
    const float last = fmaxf(number - 1.0f, 0.0f);
    float force[N] = {}, stiffness = 0.0f, apart[N];
    int n_used = 0;
    Place<N> there[AT_ONCE];
    for (int64 edge = (is_there ? load(indptr + i) : 0) + lane_of; edge < stop;
         edge += LANES * AT_ONCE) {
      bool is_used[AT_ONCE];
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at) {
        const int64 mine = edge + at * LANES;
        const float weight = mine < stop ? load(weights + mine) : 0.0f;
        is_used[at] = int(__fmul_rn(number, weight)) > int(__fmul_rn(last, weight));
      }
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at)
        if (is_used[at]) there[at] = others[load(indices + edge + at * LANES)];
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at) {
        if (!is_used[at]) continue;
        ++n_used;
        const float d2 = apart_of<N>(here, there[at], apart);
        const float power = a * exp2f(b * __log2f(d2));
        const float factor = pulls * (2.0f * b / (1.0f + power)) * power / d2;
        stiffness += factor;
#pragma unroll
        for (int axis = 0; axis < N; ++axis) force[axis] -= factor * apart[axis];
      }
    }
    for (int step = LANES / 2; step; step >>= 1) {
      n_used += __shfl_xor_sync(FULL, n_used, step, LANES);
      stiffness += __shfl_xor_sync(FULL, stiffness, step, LANES);
    }
    const uint64 stream = hash(round + (is_there ? keys ? load(keys + i) : uint64(i) : 0) * STEP);
    for (int first_draw = lane_of; first_draw < n_used * n_draws; first_draw += LANES * AT_ONCE) {
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at) {
        const int draw = first_draw + at * LANES;
        const uint64 bits = hash(stream + uint64(draw + 1) * STEP) >> 32;
        if (draw < n_used * n_draws) there[at] = others[(bits * uint64(n_others)) >> 32];
      }
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at) {
        if (first_draw + at * LANES >= n_used * n_draws) continue;
        const float d2 = apart_of<N>(here, there[at], apart);
        const float power = a * exp2f(b * __log2f(d2));
        const float limit = LONGEST * rsqrtf(d2);
        const float push = gamma * (2.0f * b / (1.0f + power)) / (SOFTENING + d2);
        const float factor = fminf(fmaxf(push, -limit), limit);
#pragma unroll
        for (int axis = 0; axis < N; ++axis) force[axis] += factor * apart[axis];
      }
    }
    Place<N> moved = here;
    float square = NEAREST;
#pragma unroll
    for (int axis = 0; axis < N; ++axis) {
      for (int step = LANES / 2; step; step >>= 1)
        force[axis] += __shfl_xor_sync(FULL, force[axis], step, LANES);
      force[axis] *= rate / (1.0f + damping * rate * stiffness);
      square += force[axis] * force[axis];
    }
    const float share = fminf(1.0f, FARTHEST * rsqrtf(square));
#pragma unroll
    for (int axis = 0; axis < N; ++axis) moved.at[axis] += share * force[axis];
    if (is_there && lane_of == 0) out[i] = moved;
  }
}
