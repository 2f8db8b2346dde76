// Random subsampling of counts, one thread per row: the numbers of downsample_cpu in the same
// order.

// Random words of a cell: Philox4x32-10 of a counter, the cell and the seed.
struct Words {
  uint64 seed, cell, made;
  uint32 word[4];
  int taken;

  __device__ Words(uint64 seed, uint64 cell) : seed(seed), cell(cell), made(0), taken(4) {}

  __device__ uint32 next() {
    if (taken == 4) {
      uint32 c0 = uint32(made), c1 = uint32(made >> 32), c2 = uint32(cell), c3 = uint32(cell >> 32);
      uint32 k0 = uint32(seed), k1 = uint32(seed >> 32);
      for (int round = 0; round < 10; ++round) {
        const uint64 p0 = uint64(0xD2511F53u) * c0, p1 = uint64(0xCD9E8D57u) * c2;
        c0 = uint32(p1 >> 32) ^ c1 ^ k0;
        c2 = uint32(p0 >> 32) ^ c3 ^ k1;
        c1 = uint32(p1);
        c3 = uint32(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      word[0] = c0;
      word[1] = c1;
      word[2] = c2;
      word[3] = c3;
      ++made;
      taken = 0;
    }
    return word[taken++];
  }

  // A number below a bound of 1 to 2^32 - 1, without bias.
  __device__ uint32 below(uint32 bound) {
    uint64 product = uint64(next()) * bound;
    if (uint32(product) < bound) {
      const uint32 least = (0u - bound) % bound;  // 2^32 modulo the bound
      while (uint32(product) < least) product = uint64(next()) * bound;
    }
    return uint32(product >> 32);
  }
};

// Without replacement: each count is kept with the probability (counts still to keep) / (counts
// still to come).
template <class Rows, class Out>
__device__ void keep(const Rows& x, int64 row, int64 target, Words& words, Out* out) {
  const int64 start = x.start(row), stop = x.stop(row);
  uint64 left = 0, wanted = uint64(target);
  for (int64 at = start; at < stop; ++at) left += uint64(x.value(row, at));
  for (int64 at = start; at < stop; ++at) {
    uint64 n = uint64(x.value(row, at)), kept = 0;
    while (n && wanted && wanted < left) {
      if (words.below(uint32(left)) < wanted) {
        ++kept;
        --wanted;
      }
      --left;
      --n;
    }
    if (wanted) {  // as many as are left: all of them
      kept += n;
      wanted -= n;
      left -= n;
    }
    out[at - start] = Out(kept);
  }
}

// With replacement. `ends`: room for one number per value.
template <class Rows, class Out>
__device__ void redraw(const Rows& x, int64 row, int64 target, Words& words, uint64* ends,
                       Out* out) {
  const int64 start = x.start(row), n = x.stop(row) - start;
  uint64 total = 0;
  for (int64 at = 0; at < n; ++at) {
    total += uint64(x.value(row, start + at));
    ends[at] = total;
    out[at] = Out(0);
  }
  if (!total) return;
  for (int64 i = 0; i < target; ++i) {
    const uint64 drawn = words.below(uint32(total));
    int64 low = 0, high = n - 1;  // the first that ends after it
    while (low < high) {
      const int64 middle = (low + high) / 2;
      if (ends[middle] > drawn)
        high = middle;
      else
        low = middle + 1;
    }
    out[low] = Out(double(out[low]) + 1.0);
  }
}

// `starts`: where the values of a row go in `out`; `ends` is null without replacement.
template <class Rows, class Out>
__device__ void draw_rows(const Rows& x, int64 n_rows, const int64* cells, const int64* targets,
                          uint64 seed, uint64* ends, int64 row_length, const int64* starts,
                          Out* out) {
  for (int64 row = first_thread(); row < n_rows; row += all_threads()) {
    const int64 to = starts ? starts[row] : row * row_length;
    if (targets[row] < 0) {
      for (int64 at = x.start(row); at < x.stop(row); ++at) {
        out[to + at - x.start(row)] = Out(x.value(row, at));
      }
      continue;
    }
    Words words(seed, uint64(cells[row]));
    if (ends)
      redraw(x, row, targets[row], words, ends + to, out + to);
    else
      keep(x, row, targets[row], words, out + to);
  }
}

template <typename T, typename Out>
__global__ void draw_csr(const T* data, const int64* indptr, int64 n_rows, const int64* cells,
                         const int64* targets, uint64 seed, uint64* ends, Out* out) {
  const Sparse<T, int> x{data, nullptr, indptr};
  draw_rows(x, n_rows, cells, targets, seed, ends, 0, indptr, out);
}

template <typename T, typename Out>
__global__ void draw_dense(const T* data, int64 row_step, int64 gene_step, int64 n_rows,
                           int64 n_genes, const int64* cells, const int64* targets, uint64 seed,
                           uint64* ends, Out* out) {
  const Dense<T> x{data, row_step, gene_step, n_genes};
  draw_rows(x, n_rows, cells, targets, seed, ends, n_genes, nullptr, out);
}
