// Memory, and the loops that take the time: kernels.c in WebAssembly, or the same in plain
// JavaScript. Places in memory are counted in float32 numbers.

const PANEL = 8; // columns of a matrix that lie together; see matmul in kernels.c
const PAGE = 65536; // bytes, of WebAssembly's memory

const panels = (columns) => Math.ceil(columns / PANEL);

/** The memory's numbers, once it is at least `size` numbers long. */
class WasmKernels {
  constructor({ memory, __heap_base: start, ...exports }) {
    this.memory = memory;
    this.start = Math.ceil(start.value / 16) * 4;
    this.exports = exports;
    this.heap = new Float32Array(memory.buffer);
  }

  reserve(size) {
    const missing = 4 * size - this.memory.buffer.byteLength;
    if (missing > 0) {
      this.memory.grow(Math.ceil(Math.max(missing, this.memory.buffer.byteLength / 4) / PAGE));
      this.heap = new Float32Array(this.memory.buffer);
    }
  }

  matmul(x, ldx, w, bias, out, ldo, m, n, k) {
    this.exports.matmul(4 * x, ldx, 4 * w, 4 * bias, 4 * out, ldo, m, n, k);
  }

  softmax(scores, totals, means, scale, m, n) {
    this.exports.softmax(4 * scores, 4 * totals, 4 * means, scale, m, n);
  }

  norm(x, weight, bias, out, eps, m, n) {
    this.exports.norm(4 * x, 4 * weight, 4 * bias, 4 * out, eps, m, n);
  }

  gelu(x, out, count) {
    this.exports.gelu(4 * x, 4 * out, count);
  }

  relu(x, out, count) {
    this.exports.relu(4 * x, 4 * out, count);
  }

  add(x, y, out, count) {
    this.exports.add(4 * x, 4 * y, 4 * out, count);
  }

  gather(sums, x, share, count) {
    this.exports.gather(4 * sums, 4 * x, share, count);
  }
}

/** The same where there is no WebAssembly with SIMD: several times slower. */
class PlainKernels {
  start = 4; // 0 stands for no bias
  heap = new Float32Array(1 << 20);

  reserve(size) {
    if (size <= this.heap.length) return;
    const heap = new Float32Array(Math.ceil(size * 1.25));
    heap.set(this.heap);
    this.heap = heap;
  }

  matmul(x, ldx, w, bias, out, ldo, m, n, k) {
    const { heap } = this;
    const sums = new Float32Array(PANEL);
    for (let left = 0; left < n; left += PANEL) {
      const columns = Math.min(PANEL, n - left);
      for (let row = 0; row < m; row++) {
        sums.fill(0);
        for (let c = 0; bias && c < columns; c++) sums[c] = heap[bias + left + c];
        for (let at = 0, weight = w + left * k; at < k; at++, weight += PANEL) {
          const value = heap[x + row * ldx + at];
          for (let c = 0; c < PANEL; c++) sums[c] += value * heap[weight + c];
        }
        for (let c = 0; c < columns; c++) heap[out + row * ldo + left + c] = sums[c];
      }
    }
  }

  softmax(scores, totals, means, scale, m, n) {
    const { heap } = this;
    for (let i = 0; i < m; i++) {
      const row = heap.subarray(scores + i * n, scores + (i + 1) * n);
      let [largest, total, moment] = [-Infinity, 0, 0];
      for (let j = 0; j < n; j++) largest = Math.max(largest, scale * row[j]);
      for (let j = 0; j < n; j++) {
        const above = scale * row[j] - largest;
        row[j] = Math.exp(above);
        total += row[j];
        moment += row[j] * above;
      }
      for (let j = 0; j < n; j++) row[j] /= total;
      heap[totals + i] = total;
      heap[means + i] = moment / total;
    }
  }

  norm(x, weight, bias, out, eps, m, n) {
    const { heap } = this;
    for (let i = 0; i < m; i++, x += n, out += n) {
      let [mean, variance] = [0, 0];
      for (let j = 0; j < n; j++) mean += heap[x + j] / n;
      for (let j = 0; j < n; j++) variance += (heap[x + j] - mean) ** 2 / n;
      const deviation = Math.sqrt(variance + eps);
      for (let j = 0; j < n; j++)
        heap[out + j] = ((heap[x + j] - mean) / deviation) * heap[weight + j] + heap[bias + j];
    }
  }

  gelu(x, out, count) {
    const { heap } = this;
    for (let j = 0; j < count; j++) {
      const value = heap[x + j];
      const z = Math.abs(value) * Math.SQRT1_2;
      const t = 1 / (1 + 0.3275911 * z);
      const series =
        ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t +
          0.254829592) *
        t;
      heap[out + j] = Math.max(value, 0) - Math.abs(value) * 0.5 * series * Math.exp(-z * z);
    }
  }

  relu(x, out, count) {
    const { heap } = this;
    for (let j = 0; j < count; j++) heap[out + j] = Math.max(heap[x + j], 0);
  }

  add(x, y, out, count) {
    const { heap } = this;
    for (let j = 0; j < count; j++) heap[out + j] = heap[x + j] + heap[y + j];
  }

  gather(sums, x, share, count) {
    const { heap } = this;
    for (let j = 0; j < count; j++) heap[sums + j] += share * heap[x + j];
  }
}

/** bytes: of kernels.wasm. Where they cannot run, plain JavaScript does the same. */
async function openKernels(bytes) {
  try {
    const { instance } = await WebAssembly.instantiate(bytes);
    return new WasmKernels(instance.exports);
  } catch {
    return new PlainKernels();
  }
}
