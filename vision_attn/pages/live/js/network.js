// A network that runs: a list of operations on matrices, one row a token or a pixel.
//
// A value is {at, rows, columns, grid}: where its numbers lie in memory, row by row, and the height
// and width of the grid that its rows are, where they are one. Python writes the list; see
// vision_attn/pages/live/program.py for what each operation means.

const PATCH_SHARE = 0.5; // what a token keeps for itself in a layer of the rollout

class Network {
  /** program: as Python wrote it. bytes: of its weights. */
  constructor(kernels, program, bytes) {
    Object.assign(this, { kernels, program });
    this.last = program.ops.map((_, id) => id); // where each value is used last
    program.ops.forEach(([, inputs], at) => inputs.forEach((id) => (this.last[id] = at)));
    for (const id of program.kept) this.last[id] = Infinity;
    this.end = kernels.start;
    this.weights = [];
    for (const weight of program.weights) this.weights.push(this.load(weight, bytes));
    this.begin = this.end;
  }

  /** Brings weights into memory: tables as they are, matrices in panels, times their scale. */
  load({ at, shape: [rows, columns], form, scale }, bytes) {
    const count = rows * columns;
    const place = this.end;
    const size = form === "matrix" ? panels(columns) * PANEL * rows : count;
    this.end += Math.ceil(size / 4) * 4;
    this.kernels.reserve(this.end);
    const { heap } = this.kernels;
    if (form === "matrix") {
      const halves = new Uint16Array(bytes.buffer, bytes.byteOffset + at, count);
      const factors = new Float32Array(columns).fill(1);
      const known = this.weights[scale]?.at;
      if (known !== undefined) factors.set(heap.subarray(known, known + columns));
      heap.fill(0, place, place + size);
      for (let k = 0, from = 0; k < rows; k++)
        for (let n = 0; n < columns; n++, from++)
          heap[place + panelPlace(rows, k, n)] = factors[n] * HALVES[halves[from]];
    } else heap.set(new Float32Array(bytes.buffer, bytes.byteOffset + at, count), place);
    return { at: place, rows, columns };
  }

  /** One number of a matrix in panels. */
  number({ at, rows }, row, column) {
    return this.kernels.heap[at + panelPlace(rows, row, column)];
  }

  /**
   * Runs the network on normalised pixels (h w 3). keep: the patches that exist, null: all of them.
   * off: heads that give nothing, as "layer.head".
   */
  run(pixels, { keep = null, off = [] } = {}) {
    const run = new Run(this, pixels, keep, new Set(off));
    const values = [];
    this.program.ops.forEach(([kind, inputs, options], id) => {
      values.push(OPERATIONS[kind](run, ...inputs.map((one) => values[one]), options));
      for (const one of new Set(inputs)) if (this.last[one] === id) run.release(values[one]);
    });
    run.values = values;
    run.logits = this.kernels.heap.slice(
      values.at(-1).at,
      values.at(-1).at + values.at(-1).columns,
    );
    return run;
  }
}

/** One pass through the network: its memory, and what is looked at afterwards. */
class Run {
  constructor(network, pixels, keep, off) {
    const { kernels, program, weights, begin } = network;
    Object.assign(this, { network, kernels, program, weights, pixels, keep, off });
    this.end = begin;
    this.free = new Map(); // places by their size
    this.layers = []; // {name, heads, width, q, k, averages, fused}
    this.gates = []; // {name, shape, values, where, grid}
    this.pool = null; // the weights of a pool by attention
  }

  get heap() {
    return this.kernels.heap;
  }

  /** Room for some numbers, whose content is left over from before. */
  claim(count) {
    const size = Math.ceil(count / 4) * 4;
    const place = this.free.get(size)?.pop();
    if (place !== undefined) return place;
    const at = this.end;
    this.end += size;
    this.kernels.reserve(this.end);
    return at;
  }

  matrix(rows, columns, grid = null) {
    return { at: this.claim(rows * columns), rows, columns, grid };
  }

  release({ at, rows, columns }) {
    const size = Math.ceil((rows * columns) / 4) * 4;
    if (!this.free.has(size)) this.free.set(size, []);
    this.free.get(size).push(at);
  }

  /** A copy of a value's numbers. */
  read({ at, rows, columns }) {
    return this.heap.slice(at, at + rows * columns);
  }

  /** How far each patch that exists is from each other, in patches. */
  get apart() {
    if (this.apartKnown) return this.apartKnown;
    const [rows, columns] = this.program.layout.grid;
    const places = this.keep ?? Array.from({ length: rows * columns }, (_, at) => at);
    const far = new Float32Array(places.length ** 2);
    let at = 0;
    for (const i of places) {
      const [y, x] = [Math.floor(i / columns), i % columns];
      for (const j of places)
        far[at++] = Math.hypot(Math.floor(j / columns) - y, (j % columns) - x);
    }
    return (this.apartKnown = far);
  }

  /**
   * Rollout (Abnar and Zuidema 2020), heads fused by their mean: {values, prefixMass}, the values
   * on the whole grid. Null for a network without tokens.
   */
  rollout() {
    const { layout } = this.program;
    if (!layout || !this.layers.length) return null;
    const { prefix, pool } = layout;
    const tokens = this.layers[0].tokens;
    let shares = new Float64Array(tokens);
    if (pool === "cls") shares[0] = 1;
    else if (pool === "mean") shares.fill(1 / (tokens - prefix), prefix);
    else shares.set(this.pool);
    for (const { fused } of this.layers.toReversed()) {
      const next = shares.map((share) => PATCH_SHARE * share);
      for (let i = 0, at = fused.at; i < tokens; i++) {
        const share = (1 - PATCH_SHARE) * shares[i];
        for (let j = 0; j < tokens; j++, at++) next[j] += share * this.heap[at];
      }
      shares = next;
    }
    const prefixMass = shares.subarray(0, prefix).reduce((sum, share) => sum + share, 0);
    return { values: this.onGrid(shares.subarray(prefix)), prefixMass };
  }

  /** Numbers of the patches that exist, on the whole grid: 0 where there is none. */
  onGrid(numbers) {
    if (!this.keep) return Float32Array.from(numbers);
    const [rows, columns] = this.program.layout.grid;
    const whole = new Float32Array(rows * columns);
    this.keep.forEach((patch, at) => (whole[patch] = numbers[at]));
    return whole;
  }

  /**
   * Grad-CAM of the last features, of which the logits are a linear function of one number a
   * channel (their mean or maximum over places): relu(sum_c w_c A_c) / places. {values, grid}.
   */
  cam(target) {
    const { cam } = this.program;
    if (!cam) return null;
    const features = this.values[cam.features];
    const { at, rows, columns, grid } = features;
    const weights = Float64Array.from({ length: columns }, (_, channel) =>
      this.network.number(this.weights[cam.weights], channel, target),
    );
    const values = Float32Array.from({ length: rows }, (_, place) => {
      let sum = 0;
      for (let channel = 0; channel < columns; channel++)
        sum += weights[channel] * this.heap[at + place * columns + channel];
      return Math.max(sum, 0) / rows;
    });
    return { values, grid };
  }
}

const OPERATIONS = {
  /** The input. */
  image(run) {
    const [height, width] = run.program.input;
    const out = run.matrix(height * width, 3, [height, width]);
    run.heap.set(run.pixels, out.at);
    return out;
  },

  /** x W + b */
  linear(run, x, { weight, bias }) {
    const w = run.weights[weight];
    const out = run.matrix(x.rows, w.columns, x.grid);
    const b = bias === null ? 0 : run.weights[bias].at;
    run.kernels.matmul(x.at, x.columns, w.at, b, out.at, w.columns, x.rows, w.columns, w.rows);
    return out;
  },

  /** A convolution: each place's neighbourhood in a row, a few rows of the image at a time. */
  conv(run, x, { weight, bias, kernel, stride, pad }) {
    const w = run.weights[weight];
    const grid = pooledGrid(x.grid, { kernel, stride, pad });
    const [rows, columns] = grid;
    const out = run.matrix(rows * columns, w.columns, grid);
    const b = bias === null ? 0 : run.weights[bias].at;
    const lines = Math.max(1, Math.floor(128 / columns)); // of the output at once
    const patches = { at: 0, rows: lines * columns, columns: w.rows };
    patches.at = run.claim(patches.rows * patches.columns);
    for (let top = 0; top < rows; top += lines) {
      const count = Math.min(lines, rows - top);
      neighbourhoods(run.heap, x, patches.at, { kernel, stride, pad, top, count, columns });
      const at = out.at + top * columns * w.columns;
      run.kernels.matmul(
        ...[patches.at, w.rows, w.at, b, at, w.columns],
        ...[count * columns, w.columns, w.rows],
      );
    }
    run.release(patches);
    return out;
  },

  /** The image with one more row and column at its end, mirrored at the last ones. */
  mirror(run, x) {
    const [height, width] = x.grid;
    const out = run.matrix((height + 1) * (width + 1), x.columns, [height + 1, width + 1]);
    const { heap } = run;
    const c = x.columns;
    for (let y = 0, at = out.at; y <= height; y++) {
      const from = x.at + (y < height ? y : height - 2) * width * c;
      heap.copyWithin(at, from, from + width * c);
      heap.copyWithin(at + width * c, from + (width - 2) * c, from + (width - 1) * c);
      at += (width + 1) * c;
    }
    return out;
  },

  /** x * scale + shift, a number a column of each. */
  affine(run, x, { scale, shift }) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    const { heap } = run;
    const [a, b] = [run.weights[scale].at, run.weights[shift].at];
    for (let row = 0, at = 0; row < x.rows; row++)
      for (let c = 0; c < x.columns; c++, at++)
        heap[out.at + at] = heap[x.at + at] * heap[a + c] + heap[b + c];
    return out;
  },

  /** Layer norm of each row. */
  norm(run, x, { weight, bias, eps }) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    const [w, b] = [run.weights[weight].at, run.weights[bias].at];
    run.kernels.norm(x.at, w, b, out.at, eps, x.rows, x.columns);
    return out;
  },

  gelu(run, x) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    run.kernels.gelu(x.at, out.at, x.rows * x.columns);
    return out;
  },

  relu(run, x) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    run.kernels.relu(x.at, out.at, x.rows * x.columns);
    return out;
  },

  tanh: (run, x) => each(run, x, Math.tanh),
  sigmoid: (run, x) => each(run, x, (value) => 1 / (1 + Math.exp(-value))),

  add(run, x, y) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    run.kernels.add(x.at, y.at, out.at, x.rows * x.columns);
    return out;
  },

  /** x times a gate, of: "channels" (one row of numbers) or "places" (one column). */
  gate(run, x, g, { name, of, gain }) {
    const out = run.matrix(x.rows, x.columns, x.grid);
    const { heap } = run;
    const ofChannels = of === "channels";
    for (let row = 0, at = 0; row < x.rows; row++)
      for (let c = 0; c < x.columns; c++, at++)
        heap[out.at + at] = heap[x.at + at] * gain * heap[g.at + (ofChannels ? c : row)];
    const values = run.read(g);
    if (ofChannels) {
      const where = selectedChannels(heap, x, values);
      run.gates.push({ name, shape: [g.columns], values, where, grid: x.grid });
    } else run.gates.push({ name, shape: x.grid, values, where: values, grid: x.grid });
    return out;
  },

  maxpool(run, x, { kernel, stride, pad }) {
    const grid = pooledGrid(x.grid, { kernel, stride, pad });
    const out = run.matrix(grid[0] * grid[1], x.columns, grid);
    const { heap } = run;
    const [height, width] = x.grid;
    const c = x.columns;
    for (let row = 0, at = out.at; row < grid[0]; row++)
      for (let column = 0; column < grid[1]; column++, at += c) {
        heap.fill(-Infinity, at, at + c);
        const [top, left] = [row * stride - pad, column * stride - pad];
        for (let y = Math.max(top, 0); y < Math.min(top + kernel, height); y++)
          for (let x_ = Math.max(left, 0); x_ < Math.min(left + kernel, width); x_++) {
            const from = x.at + (y * width + x_) * c;
            for (let i = 0; i < c; i++)
              if (heap[from + i] > heap[at + i]) heap[at + i] = heap[from + i];
          }
      }
    return out;
  },

  /** The mean of each square of `size` pixels, at the edges of what is left of it. */
  meanpool(run, x, { size }) {
    const [height, width] = x.grid;
    const grid = x.grid.map((side) => Math.ceil(side / size));
    const out = run.matrix(grid[0] * grid[1], x.columns, grid);
    const { heap } = run;
    const c = x.columns;
    heap.fill(0, out.at, out.at + out.rows * c);
    for (let y = 0, from = x.at; y < height; y++)
      for (let column = 0; column < width; column++) {
        const [row, place] = [Math.floor(y / size), Math.floor(column / size)];
        const high = Math.min(size, height - row * size);
        const wide = Math.min(size, width - place * size);
        const at = out.at + (row * grid[1] + place) * c;
        for (let i = 0; i < c; i++, from++) heap[at + i] += heap[from] / (high * wide);
      }
    return out;
  },

  /** The prefix tokens, and after them the patches that exist, with their positions. */
  tokens(run, x, { prefix, positions }) {
    const first = prefix === null ? { at: 0, rows: 0 } : run.weights[prefix];
    const table = run.weights[positions];
    const keep = run.keep ?? Array.from({ length: x.rows }, (_, at) => at);
    const out = run.matrix(first.rows + keep.length, x.columns);
    const { heap } = run;
    heap.copyWithin(out.at, first.at, first.at + first.rows * x.columns);
    let at = out.at + first.rows * x.columns;
    for (const patch of keep) {
      const from = patch * x.columns;
      for (let c = 0; c < x.columns; c++, at++)
        heap[at] = heap[x.at + from + c] + heap[table.at + from + c];
    }
    return out;
  },

  /**
   * Turns each head's queries and keys, the first two thirds of x, by the places of their patches:
   * feature i and feature i + width / 2 are a pair, turned by one angle. Prefix tokens stay.
   */
  turn(run, x, { heads, prefix, cosine, sine }) {
    const out = run.matrix(x.rows, x.columns);
    const { heap } = run;
    heap.copyWithin(out.at, x.at, x.at + x.rows * x.columns);
    const pairs = x.columns / 3 / heads / 2;
    for (let row = prefix; row < x.rows; row++) {
      const patch = run.keep ? run.keep[row - prefix] : row - prefix;
      const cos = run.weights[cosine].at + patch * pairs;
      const sin = run.weights[sine].at + patch * pairs;
      for (let part = 0, at = out.at + row * x.columns; part < 2 * heads; part++, at += 2 * pairs)
        for (let i = 0; i < pairs; i++) {
          const [a, b] = [heap[at + i], heap[at + pairs + i]];
          heap[at + i] = a * heap[cos + i] - b * heap[sin + i];
          heap[at + pairs + i] = a * heap[sin + i] + b * heap[cos + i];
        }
    }
    return out;
  },

  /** softmax(scale q k') v of each head, its queries, keys and values side by side in x. */
  attention(run, x, { name, heads, scale }) {
    const { kernels } = run;
    const [n, wide] = [x.rows, x.columns / 3];
    const width = wide / heads;
    const out = run.matrix(n, wide);
    const fused = run.matrix(n, n);
    const scores = run.matrix(n, n);
    const sums = run.matrix(2, n);
    const packed = run.matrix(1, PANEL * Math.max(panels(n) * width, panels(width) * n));
    const q = new Float32Array(n * wide); // head by head, scaled
    const k = new Float32Array(n * wide);
    const averages = [];
    run.heap.fill(0, fused.at, fused.at + n * n);
    for (let head = 0; head < heads; head++) {
      const from = x.at + head * width;
      packTransposed(run.heap, from + wide, x.columns, packed.at, n, width);
      kernels.matmul(from, x.columns, packed.at, 0, scores.at, n, n, n, width);
      kernels.softmax(scores.at, sums.at, sums.at + n, scale, n, n);
      kernels.gather(fused.at, scores.at, 1 / heads, n * n);
      const { heap } = run;
      averages.push(averagesOf(run, scores, sums));
      copyRows(heap, from, x.columns, q, head, n, width, scale);
      copyRows(heap, from + wide, x.columns, k, head, n, width, 1);
      if (run.off.has(`${run.layers.length}.${head}`)) {
        for (let row = 0; row < n; row++) {
          const at = out.at + row * wide + head * width;
          heap.fill(0, at, at + width);
        }
        continue;
      }
      pack(heap, from + 2 * wide, x.columns, packed.at, n, width);
      kernels.matmul(scores.at, n, packed.at, 0, out.at + head * width, wide, n, width, n);
    }
    for (const one of [scores, sums, packed]) run.release(one);
    run.layers.push({ name, heads, width, tokens: n, q, k, averages, fused });
    return out;
  },

  /** The first row: the class token. */
  first(run, x) {
    const out = run.matrix(1, x.columns);
    run.heap.copyWithin(out.at, x.at, x.at + x.columns);
    return out;
  },

  /** The mean of the rows after the first `skip`. */
  mean(run, x, { skip }) {
    const out = run.matrix(1, x.columns);
    const sums = new Float64Array(x.columns);
    for (let row = skip, at = x.at + skip * x.columns; row < x.rows; row++)
      for (let c = 0; c < x.columns; c++, at++) sums[c] += run.heap[at];
    run.heap.set(
      sums.map((sum) => sum / (x.rows - skip)),
      out.at,
    );
    return out;
  },

  /** The maximum of the rows. */
  peak(run, x) {
    const out = run.matrix(1, x.columns);
    const { heap } = run;
    heap.copyWithin(out.at, x.at, x.at + x.columns);
    for (let row = 1, at = x.at + x.columns; row < x.rows; row++)
      for (let c = 0; c < x.columns; c++, at++)
        if (heap[at] > heap[out.at + c]) heap[out.at + c] = heap[at];
    return out;
  },

  /** The mean and the maximum of each row, in two columns. */
  extent(run, x) {
    const out = run.matrix(x.rows, 2, x.grid);
    const { heap } = run;
    for (let row = 0, at = x.at; row < x.rows; row++) {
      let [sum, most] = [0, -Infinity];
      for (let c = 0; c < x.columns; c++, at++) {
        sum += heap[at];
        if (heap[at] > most) most = heap[at];
      }
      heap[out.at + 2 * row] = sum / x.columns;
      heap[out.at + 2 * row + 1] = most;
    }
    return out;
  },

  /** Each head's slice of x, averaged over rows by the softmax of the head's column of scores. */
  weigh(run, scores, x) {
    const out = run.matrix(1, x.columns);
    const { heap } = run;
    const [heads, width] = [scores.columns, x.columns / scores.columns];
    run.pool = new Float64Array(x.rows);
    heap.fill(0, out.at, out.at + x.columns);
    for (let head = 0; head < heads; head++) {
      const column = Float64Array.from(
        { length: x.rows },
        (_, row) => heap[scores.at + row * heads + head],
      );
      const most = column.reduce((largest, value) => Math.max(largest, value), -Infinity);
      const weights = column.map((value) => Math.exp(value - most));
      const total = weights.reduce((sum, value) => sum + value, 0);
      weights.forEach((weight, row) => {
        run.pool[row] += weight / total / heads;
        for (let c = head * width; c < (head + 1) * width; c++)
          heap[out.at + c] += (weight / total) * heap[x.at + row * x.columns + c];
      });
    }
    return out;
  },
};

function each(run, x, formula) {
  const out = run.matrix(x.rows, x.columns, x.grid);
  const { heap } = run;
  const count = x.rows * x.columns;
  for (let at = 0; at < count; at++) heap[out.at + at] = formula(heap[x.at + at]);
  return out;
}

const pooledGrid = (grid, { kernel, stride, pad }) =>
  grid.map((side) => Math.floor((side + 2 * pad - kernel) / stride) + 1);

/** Of each place of `count` output rows from `top`: kernel x kernel pixels of x, 0 outside. */
function neighbourhoods(heap, x, at, { kernel, stride, pad, top, count, columns }) {
  const [height, width] = x.grid;
  const c = x.columns;
  for (let row = top; row < top + count; row++)
    for (let column = 0; column < columns; column++)
      for (let dy = 0; dy < kernel; dy++, at += kernel * c) {
        const y = row * stride - pad + dy;
        const left = column * stride - pad;
        const [first, end] = [Math.max(left, 0), Math.min(left + kernel, width)];
        if (y < 0 || y >= height || first >= end) {
          heap.fill(0, at, at + kernel * c);
          continue;
        }
        if (first > left) heap.fill(0, at, at + (first - left) * c);
        if (end < left + kernel) heap.fill(0, at + (end - left) * c, at + kernel * c);
        const from = x.at + (y * width + first) * c;
        heap.copyWithin(at + (first - left) * c, from, from + (end - first) * c);
      }
}

/** Where a matrix of `rows` rows in panels has its number of that row and column. */
const panelPlace = (rows, row, column) =>
  (Math.floor(column / PANEL) * rows + row) * PANEL + (column % PANEL);

/** A matrix (rows columns), `ld` numbers from row to row, into panels; the last one is padded. */
function pack(heap, from, ld, at, rows, columns) {
  heap.fill(0, at, at + panels(columns) * PANEL * rows);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      heap[at + panelPlace(rows, row, column)] = heap[from + row * ld + column];
}

/** The transpose of a matrix (columns rows) into panels. */
function packTransposed(heap, from, ld, at, columns, rows) {
  heap.fill(0, at, at + panels(columns) * PANEL * rows);
  for (let column = 0; column < columns; column++)
    for (let row = 0; row < rows; row++)
      heap[at + panelPlace(rows, row, column)] = heap[from + column * ld + row];
}

/** One head's rows, times `scale`, into an array of all heads. */
function copyRows(heap, from, ld, into, head, rows, width, scale) {
  let at = head * rows * width;
  for (let row = 0; row < rows; row++)
    for (let c = 0; c < width; c++) into[at++] = scale * heap[from + row * ld + c];
}

/** A head's mean over queries of the entropy in bits, and of the distance it attends over. */
function averagesOf(run, { at: scores, rows: n }, { at: sums }) {
  const { heap } = run;
  const { prefix } = run.program.layout;
  let entropy = 0;
  for (let i = 0; i < n; i++) entropy += Math.log(heap[sums + i]) - heap[sums + n + i];
  let distance = 0;
  const { apart } = run;
  const patches = n - prefix;
  for (let i = 0, far = 0; i < patches; i++) {
    let [reach, total] = [0, 0];
    const row = scores + (prefix + i) * n + prefix;
    for (let j = 0; j < patches; j++, far++) {
      reach += heap[row + j] * apart[far];
      total += heap[row + j];
    }
    distance += total ? reach / total / patches : 0;
  }
  return { entropy: entropy / n / Math.LN2, distance };
}

/** mean_c((g_c - mean g) |x_c|): the places of the channels that a gate lets through. */
function selectedChannels(heap, x, gates) {
  const mean = gates.reduce((sum, gate) => sum + gate, 0) / gates.length;
  return Float32Array.from({ length: x.rows }, (_, row) => {
    let sum = 0;
    for (let c = 0; c < x.columns; c++)
      sum += (gates[c] - mean) * Math.abs(heap[x.at + row * x.columns + c]);
    return sum / x.columns;
  });
}

/** The value of each half-precision number, by its 16 bits. */
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent
    ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
    : sign * 2 ** -24 * fraction;
});
