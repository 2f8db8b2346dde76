// Arrays of the page's blocks: base 64, raw deflate, planes of bytes, LEB128 (_pack.py writes them).

/** Bytes of a text in base 64. */
export function bytesOfBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Bytes of a raw deflate stream. */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers of 16 bits from two planes: all high bytes, then all low bytes. */
export function joinPlanes(bytes) {
  const n = bytes.length >> 1;
  const out = new Uint16Array(n);
  for (let i = 0; i < n; i++) out[i] = (bytes[i] << 8) | bytes[n + i];
  return out;
}

/** Whole numbers in LEB128: seven bits per byte, the lowest first. */
export function readVarints(bytes) {
  let n = 0;
  for (const byte of bytes) if (byte < 0x80) n++;
  const out = new Float64Array(n); // counts may exceed 32 bits
  let value = 0;
  let factor = 1;
  let at = 0;
  for (const byte of bytes) {
    value += (byte & 0x7f) * factor;
    if (byte < 0x80) {
      out[at++] = value;
      value = 0;
      factor = 1;
    } else {
      factor *= 128;
    }
  }
  return out;
}

/** Sparse counts: ascending keys and the cells of each. */
export function readCounts(bytes) {
  const numbers = readVarints(bytes);
  const n = numbers[0];
  const keys = new Uint32Array(n);
  let key = 0;
  for (let i = 0; i < n; i++) keys[i] = key += numbers[1 + i];
  return { keys, counts: numbers.subarray(1 + n) };
}

/** Ascending numbers from their gaps. */
export function sumGaps(numbers) {
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}
