// Nonzero values of genes, gathered as sortable keys, and rank sums of the sorted keys.
//
// A key is, from the top: the gene, 32 bits that order its values, and the group in `bits` bits.
// The highest of the 32 says that the value is above zero.

constexpr uint64 TOP = 1ull << 63;

// Bits that sort as the values do; the highest is set for values above zero. 64 bits for types of
// 64 bits, else 32.
__device__ inline unsigned ordered(int v) { return unsigned(v) ^ (1u << 31); }
__device__ inline unsigned ordered(float v) {
  const unsigned raw = __float_as_uint(v);
  return raw >> 31 ? ~raw : raw | (1u << 31);
}
__device__ inline uint64 ordered(int64 v) { return uint64(v) ^ TOP; }
__device__ inline uint64 ordered(double v) {
  const uint64 raw = uint64(__double_as_longlong(v));
  return raw >> 63 ? ~raw : raw | TOP;
}

// Keys of the selected values of a block, in any order. Gene and group of values of 64 bits are
// stored separately in `places` (gene in the upper half).
template <class Rows>
__device__ void take(
  const Rows rows, int64 n_rows, const int* codes, const int* place, int bits, uint64* n_taken,
  uint64* keys, uint64* places
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int code = codes[row];
    if (code < 0) continue;
    const int64 stop = rows.stop(row);
    for (int64 start = rows.start(row); start < stop; start += 32) {
      const int64 at = start + lane();
      const int gene = at < stop ? place[rows.gene(at)] : -1;
      const bool wanted = gene >= 0 && rows.value(row, at) != 0;
      const unsigned all = __ballot_sync(FULL, wanted);
      if (all == 0) continue;
      uint64 to = 0;
      if (lane() == 0) to = atomicAdd(n_taken, uint64(__popc(all)));
      to = __shfl_sync(FULL, to, 0) + __popc(all & ((1u << lane()) - 1));
      if (!wanted) continue;
      const auto value = ordered(rows.value(row, at));
      const uint64 first = uint64(gene) << 32;
      if constexpr (sizeof(value) > 4) {
        keys[to] = value;
        places[to] = first | uint64(code);
      } else {
        keys[to] = (first | value) << bits | uint64(code);
      }
    }
  }
}

template <class V, class I> __global__ void take_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, const int* codes,
  const int* place, int bits, uint64* n_taken, uint64* keys, uint64* places
) {
  const Sparse<V, I> rows{data, indices, indptr};
  take(rows, n_rows, codes, place, bits, n_taken, keys, places);
}

template <class V> __global__ void take_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_genes, int64 n_rows, const int* codes,
  const int* place, int bits, uint64* n_taken, uint64* keys, uint64* places
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  take(rows, n_rows, codes, place, bits, n_taken, keys, places);
}

// Where the keys that equal the one at `at`, but for their last `shift` bits, begin and end within
// lo and hi: steps that double, then halves.
__device__ inline int64 end_of(const uint64* keys, int64 at, int64 hi, int shift) {
  const uint64 own = keys[at] >> shift;
  int64 step = 1, inside = at;
  while (at + step < hi && keys[at + step] >> shift == own) {
    inside = at + step;
    step *= 2;
  }
  int64 outside = at + step < hi ? at + step : hi;
  while (outside - inside > 1) {
    const int64 middle = inside + (outside - inside) / 2;
    (keys[middle] >> shift == own ? inside : outside) = middle;
  }
  return outside;
}

__device__ inline int64 start_of(const uint64* keys, int64 at, int64 lo, int shift) {
  const uint64 own = keys[at] >> shift;
  int64 step = 1, inside = at;
  while (at - step >= lo && keys[at - step] >> shift == own) {
    inside = at - step;
    step *= 2;
  }
  int64 outside = at - step >= lo ? at - step : lo - 1;
  while (inside - outside > 1) {
    const int64 middle = outside + (inside - outside) / 2;
    (keys[middle] >> shift == own ? inside : outside) = middle;
  }
  return inside;
}

// Adds or subtracts t^3 - t for t below 2^31: its low 32 bits and its high bits are summed
// separately, as integers in any order. Negative numbers wrap as int64 does.
__device__ inline void cube(uint64* limbs, int64 t, int64 sign) {
  const int64 square = t * t, low = (square & 0xffffffffll) * t;
  atomicAdd(limbs, uint64(sign * ((low & 0xffffffffll) - t)));
  atomicAdd(limbs + 1, uint64(sign * ((square >> 32) * t + (low >> 32))));
}

// Ranks and ties as in `_rank_gene` of rank_sums_cpu: one thread per distinct value and group of a
// gene, that of the first of equal keys. Blocks with the same x share a gene.
//
// keys are sorted, those of a gene from starts[gene] on; before[i] of the first i are of the
// reference (null: there is none). ranks [genes, groups], ties [genes, groups, 2], below [genes].
__global__ void walk(
  const uint64* keys, const int64* starts, const int64* zeros, const int* before, int64 n_genes,
  int64 n_groups, int bits, int reference, uint64* ranks, uint64* ties, uint64* below
) {
  const uint64 group_bits = (1ull << bits) - 1;
  const int64 stride = int64(gridDim.y) * blockDim.x;
  for (int64 gene = blockIdx.x; gene < n_genes; gene += gridDim.x) {
    const int64 lo = starts[gene], hi = starts[gene + 1];
    for (int64 at = lo + int64(blockIdx.y) * blockDim.x + threadIdx.x; at < hi; at += stride) {
      const uint64 key = keys[at];
      if (at > lo && keys[at - 1] == key) continue;
      const int64 n = end_of(keys, at, hi, 0) - at;
      const int64 first = start_of(keys, at, lo, bits), last = end_of(keys, at, hi, bits);
      const bool above = key >> (bits + 31) & 1;
      const int64 code = int64(key & group_bits), of_gene = gene * n_groups;
      const int64 offset = above ? zeros[gene] : 0;
      if (before == nullptr) {
        const int64 doubled = 2 * (offset + first - lo) + (last - first) + 1;
        atomicAdd(ranks + of_gene + code, uint64(n * doubled));
        if (at != first) continue;
        cube(ties + 2 * of_gene, last - first, 1);
        if (!above) atomicAdd(below + gene, uint64(last - first));
        continue;
      }
      const int64 equal = before[last] - before[first];
      uint64* own_ties = ties + 2 * (of_gene + code);
      if (code == reference) {
        cube(own_ties, n, 1);
        if (!above) atomicAdd(below + gene, uint64(n));
        continue;
      }
      const int64 doubled = 2 * (offset + before[first] - before[lo]) + equal;
      atomicAdd(ranks + of_gene + code, uint64(n * doubled));
      cube(own_ties, n + equal, 1);
      cube(own_ties, equal, -1);
    }
  }
}
