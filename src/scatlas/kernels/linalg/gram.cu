// Gram matrix of a part of a CSR block. A warp keeps a row of it (products of a gene with the genes
// after it) in shared memory and adds cell by cell. No two warps share an entry and each adds its
// cells in order, so that no sum depends on the order of warps.
//
// Before that, the values of the part are sorted by gene and row. Positions count from the first
// value of the part.

// Prefetching: number of rows, and number of values per row and lane.
constexpr int ROWS_AHEAD = 4;
constexpr int DEEP = 4;

// A value at position `at`, `length` values before the end of its row.
__device__ inline uint64 packed(uint32 at, uint32 length) { return uint64(at) << 32 | length; }

// info: sum of squared values per row, whether a row is out of order, first and last position, then
// row and position of each cut after a further `step` values.
template <typename I>
__global__ void inspect(const I* __restrict__ indices, const int64* __restrict__ indptr,
                        int64 n_rows, int64 step, int64* info) {
    const int64 origin = indptr[0];
    uint64 squares = 0;
    bool sorted = true;
    for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
        const int64 start = indptr[row], stop = indptr[row + 1];
        squares += uint64(stop - start) * uint64(stop - start);
        for (int64 at = start + 1 + lane(); at < stop; at += 32)
            sorted &= indices[at - 1] < indices[at];
        if (lane() == 0)
            for (int64 cut = (start - origin) / step + 1; cut * step <= stop - origin; cut++) {
                info[2 + 2 * cut] = row + 1;
                info[3 + 2 * cut] = stop;
            }
    }
    if (!__all_sync(FULL, sorted) && lane() == 0) info[1] = 1;
    if (lane() == 0 && squares) atomicAdd(reinterpret_cast<uint64*>(info), squares);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        info[2] = origin;
        info[3] = indptr[n_rows];
    }
}

// counts[chunk, gene] over `rows_each` rows per chunk; one warp per chunk. blockIdx.y: `width`
// genes.
template <typename I>
__global__ void count(const I* __restrict__ indices, const int64* __restrict__ indptr, int64 n_rows,
                      int64 rows_each, int n_genes, int width, uint32* __restrict__ counts) {
    extern __shared__ uint32 found[];
    const int left = blockIdx.y * width, n = min(width, n_genes - left);
    for (int gene = lane(); gene < n; gene += 32) found[gene] = 0;
    __syncwarp();
    const int64 row = blockIdx.x * rows_each, last = min(row + rows_each, n_rows);
    const int64 stop = indptr[last] - indptr[0];
    for (int64 at = indptr[row] - indptr[0] + lane(); at < stop; at += 32) {
        const int gene = int(indices[at]) - left;
        if (gene >= 0 && gene < n) atomicAdd(found + gene, 1u);
    }
    __syncwarp();
    uint32* out = counts + int64(blockIdx.x) * n_genes + left;
    for (int gene = lane(); gene < n; gene += 32) out[gene] = found[gene];
}

// Replaces counts[chunk, gene] by the sums over earlier chunks, and computes totals per gene.
// Blocks of 32 genes x 32 runs of chunks.
__global__ void before(uint32* __restrict__ counts, int n_chunks, int n_genes, int64* totals) {
    __shared__ uint32 run[32][33];
    const int gene = blockIdx.x * 32 + threadIdx.x;
    const int each = (n_chunks + 31) / 32;
    const int begin = min(int(threadIdx.y) * each, n_chunks), end = min(begin + each, n_chunks);
    uint32 sum = 0;
    if (gene < n_genes)
        for (int chunk = begin; chunk < end; chunk++) sum += counts[int64(chunk) * n_genes + gene];
    run[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (gene >= n_genes) return;
    uint32 total = 0;
    for (int y = 0; y < int(threadIdx.y); y++) total += run[y][threadIdx.x];
    for (int chunk = begin; chunk < end; chunk++) {
        uint32* at = counts + int64(chunk) * n_genes + gene;
        const uint32 here = *at;
        *at = total;
        total += here;
    }
    if (threadIdx.y == 31) totals[gene] = total;
}

// first[gene]: where the gene's values begin. tasks[gene]: number of the gene's first task; a task
// has up to `each` values, and each gene one at least. One block of 1,024 threads.
__global__ void starts(const int64* __restrict__ totals, int n_genes, int64 each, int64* first,
                       int64* tasks) {
    __shared__ int64 values[1024], jobs[1024];
    const int t = threadIdx.x, per = (n_genes + 1023) / 1024;
    const int begin = min(t * per, n_genes), end = min(begin + per, n_genes);
    int64 n = 0, m = 0;
    for (int gene = begin; gene < end; gene++) {
        n += totals[gene];
        m += totals[gene] > each ? (totals[gene] + each - 1) / each : 1;
    }
    values[t] = n;
    jobs[t] = m;
    __syncthreads();
    for (int by = 1; by < 1024; by *= 2) {
        const int64 more = t >= by ? values[t - by] : 0, also = t >= by ? jobs[t - by] : 0;
        __syncthreads();
        values[t] += more;
        jobs[t] += also;
        __syncthreads();
    }
    n = values[t] - n;
    m = jobs[t] - m;
    for (int gene = begin; gene < end; gene++) {
        first[gene] = n;
        tasks[gene] = m;
        n += totals[gene];
        m += totals[gene] > each ? (totals[gene] + each - 1) / each : 1;
    }
    if (t == 1023) {
        first[n_genes] = values[t];
        tasks[n_genes] = jobs[t];
    }
}

// entries: the values in the order of their genes. Grid as for count.
template <typename I>
__global__ void by_gene(const I* __restrict__ indices, const int64* __restrict__ indptr,
                        int64 n_rows, int64 rows_each, int n_genes, int width,
                        const uint32* __restrict__ counts, const int64* __restrict__ first,
                        uint64* __restrict__ entries) {
    extern __shared__ uint32 next[];
    const int left = blockIdx.y * width, n = min(width, n_genes - left);
    const uint32* sums = counts + int64(blockIdx.x) * n_genes + left;
    for (int gene = lane(); gene < n; gene += 32)
        next[gene] = uint32(first[left + gene]) + sums[gene];
    __syncwarp();
    const int64 begin = blockIdx.x * rows_each, end = min(begin + rows_each, n_rows);
    for (int64 row = begin; row < end; row++) {
        const uint32 stop = uint32(indptr[row + 1] - indptr[0]);
        for (uint32 at = uint32(indptr[row] - indptr[0]) + lane(); at < stop; at += 32) {
            const int gene = int(indices[at]) - left;
            // The genes of a row are distinct: no other lane has this one.
            if (gene >= 0 && gene < n) entries[next[gene]++] = packed(at, stop - at);
        }
        __syncwarp();
    }
}

// First position from `at` on, before `stop`, whose gene is `gene` or above.
template <typename I>
__device__ inline uint32 reaching(const I* __restrict__ indices, uint32 at, uint32 stop, int gene) {
    while (at < stop) {
        const uint32 middle = at + (stop - at) / 2;
        if (int(indices[middle]) < gene)
            at = middle + 1;
        else
            stop = middle;
    }
    return at;
}

// A task: a gene and a run of its values. blockIdx.x: the task, a warp each; blockIdx.y: `width`
// columns. The first run of a gene is added to `upper`, the others go to rows of `more`.
template <typename T, typename I>
__global__ void pairs(const T* __restrict__ data, const I* __restrict__ indices,
                      const uint64* __restrict__ entries, const int64* __restrict__ first,
                      const int64* __restrict__ tasks, int n_genes, int64 each, int width,
                      double* sums, double* upper, double* more, double* more_sums) {
    extern __shared__ double products[];
    const int64 task = blockIdx.x;
    if (task >= tasks[n_genes]) return;
    int gene = 0;
    for (int stop = n_genes; stop - gene > 1;) {
        const int middle = (gene + stop) / 2;
        if (tasks[middle] <= task)
            gene = middle;
        else
            stop = middle;
    }
    const int left = max(gene, int(blockIdx.y) * width);
    const int right = min(n_genes, int(blockIdx.y + 1) * width);
    if (left >= right) return;
    const bool cut = width < n_genes;
    const int64 run = task - tasks[gene];
    const int64 begin = first[gene] + run * each, end = min(begin + each, first[gene + 1]);
    for (int k = lane(); k < right - left; k += 32) products[k] = 0.0;
    __syncwarp();

    double total = 0.0;
    for (int64 base = begin; base < end; base += 32) {
        uint32 at = 0, length = 0;
        T value = T(0);
        if (base + lane() < end) {
            const uint64 entry = entries[base + lane()];
            at = uint32(entry >> 32);
            length = uint32(entry);
            value = data[at];
            total += double(value);
            if (cut) {
                const uint32 stop = at + length;
                at = reaching(indices, at, stop, left);
                length = reaching(indices, at, stop, right) - at;
            }
        }
        const int n = int(min(int64(32), end - base));
        for (int entry = 0; entry < n; entry += ROWS_AHEAD) {
            uint32 from[ROWS_AHEAD], count[ROWS_AHEAD];
            double factor[ROWS_AHEAD];
            int other[ROWS_AHEAD][DEEP];
            T theirs[ROWS_AHEAD][DEEP];
#pragma unroll
            for (int row = 0; row < ROWS_AHEAD; row++) {  // lanes beyond n have rows of length 0
                from[row] = __shfl_sync(FULL, at, entry + row);
                count[row] = __shfl_sync(FULL, length, entry + row);
                factor[row] = of_lane(value, entry + row);
#pragma unroll
                for (int k = 0; k < DEEP; k++) {
                    const uint32 mine = 32 * k + lane();
                    if (mine < count[row]) {
                        other[row][k] = int(indices[from[row] + mine]) - left;
                        theirs[row][k] = data[from[row] + mine];
                    }
                }
            }
#pragma unroll
            for (int row = 0; row < ROWS_AHEAD; row++) {
                // The genes of a row are distinct: all may be read before any is written.
                double sum[DEEP];
#pragma unroll
                for (int k = 0; k < DEEP; k++)
                    if (32 * k + lane() < count[row]) sum[k] = products[other[row][k]];
#pragma unroll
                for (int k = 0; k < DEEP; k++)
                    if (32 * k + lane() < count[row])
                        products[other[row][k]] = sum[k] + factor[row] * double(theirs[row][k]);
                for (uint32 k = 32 * DEEP + lane(); k < count[row]; k += 32)
                    products[int(indices[from[row] + k]) - left] +=
                        factor[row] * double(data[from[row] + k]);
                __syncwarp();
            }
        }
    }

    const int64 place = task - gene - 1;  // every gene before has one run that is not among `more`
    double* out = run == 0 ? upper + int64(gene) * n_genes : more + place * n_genes;
    for (int k = lane(); k < right - left; k += 32)
        out[left + k] = run == 0 ? out[left + k] + products[k] : products[k];
    if (right < n_genes) return;
    total = warp_sum(total);
    if (lane() != 0) return;
    if (run == 0)
        sums[gene] += total;
    else
        more_sums[place] = total;
}

// Add the further runs of each gene to its row, in order. blockIdx.x: the gene.
__global__ void further(const int64* __restrict__ tasks, int n_genes,
                        const double* __restrict__ more, const double* __restrict__ more_sums,
                        double* sums, double* upper) {
    const int gene = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    const int64 begin = tasks[gene] - gene, end = tasks[gene + 1] - gene - 1;
    if (begin == end || column < gene || column >= n_genes) return;
    double total = upper[int64(gene) * n_genes + column];
    for (int64 at = begin; at < end; at++) total += more[at * n_genes + column];
    upper[int64(gene) * n_genes + column] = total;
    if (column != gene) return;
    total = sums[gene];
    for (int64 at = begin; at < end; at++) total += more_sums[at];
    sums[gene] = total;
}

// Rows of sorted, distinct genes, written into zeros; one warp per row.
template <typename T, typename I>
__global__ void scatter(const T* __restrict__ data, const I* __restrict__ indices,
                        const int64* __restrict__ indptr, int64 n_rows, int64 n_genes,
                        double* __restrict__ rows) {
    for (int64 row = first_warp(); row < n_rows; row += all_warps())
        for (int64 at = indptr[row] + lane(); at < indptr[row + 1]; at += 32)
            rows[row * n_genes + int64(indices[at])] = double(data[at]);
}

// The same for rows that may repeat a gene: values are added in order, one thread per row.
template <typename T, typename I>
__global__ void scatter_any(const T* __restrict__ data, const I* __restrict__ indices,
                            const int64* __restrict__ indptr, int64 n_rows, int64 n_genes,
                            double* __restrict__ rows) {
    for (int64 row = first_thread(); row < n_rows; row += all_threads())
        for (int64 at = indptr[row]; at < indptr[row + 1]; at++)
            rows[row * n_genes + int64(indices[at])] += double(data[at]);
}

// parts[run, gene]: sums of `each` rows. blockIdx.y: the run.
__global__ void column_sums(const double* __restrict__ rows, int64 n_rows, int n_genes, int64 each,
                            double* __restrict__ parts) {
    const int gene = blockIdx.x * blockDim.x + threadIdx.x;
    if (gene >= n_genes) return;
    const int64 begin = blockIdx.y * each, end = min(begin + each, n_rows);
    double total = 0.0;
    for (int64 row = begin; row < end; row++) total += rows[row * n_genes + gene];
    parts[int64(blockIdx.y) * n_genes + gene] = total;
}

__global__ void add_parts(const double* __restrict__ parts, int n_parts, int n_genes,
                          double* sums) {
    const int gene = blockIdx.x * blockDim.x + threadIdx.x;
    if (gene >= n_genes) return;
    double total = sums[gene];
    for (int part = 0; part < n_parts; part++) total += parts[int64(part) * n_genes + gene];
    sums[gene] = total;
}

// The upper triangle over the lower one, by tiles of 32 x 32: blockIdx.y above, blockIdx.x beside.
__global__ void mirror(double* matrix, int n) {
    __shared__ double tile[32][33];
    if (blockIdx.x < blockIdx.y) return;
    const int top = blockIdx.y * 32, left = blockIdx.x * 32;
    int row = top + threadIdx.y, column = left + threadIdx.x;
    if (row < n && column < n) tile[threadIdx.y][threadIdx.x] = matrix[int64(row) * n + column];
    __syncthreads();
    row = left + threadIdx.y;
    column = top + threadIdx.x;
    if (column < row && row < n) matrix[int64(row) * n + column] = tile[threadIdx.x][threadIdx.y];
}
