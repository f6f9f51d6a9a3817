// The numbers of one inspection, and attention made from them: what one query gives to every key.

/** One head as queries and keys, each token with a scale of its own. */
class Factors {
  constructor(scales, q, k, width) {
    Object.assign(this, { scales, q, k, width, tokens: scales.length / 2 });
  }

  /** Of whole numbers, as coding.py packs them. */
  static read(buffer, at, tokens, width, Whole) {
    const size = tokens * width;
    const q = at + 8 * tokens;
    return new Factors(
      new Float32Array(buffer, at, 2 * tokens),
      new Whole(buffer, q, size),
      new Whole(buffer, q + size * Whole.BYTES_PER_ELEMENT, size),
      width,
    );
  }

  /** softmax_j(q_i . k_j) */
  row(i) {
    const { scales, q, k, tokens, width } = this;
    const row = new Float32Array(tokens);
    const query = q.subarray(i * width, (i + 1) * width);
    let largest = -Infinity;
    for (let j = 0, at = 0; j < tokens; j++) {
      let product = 0;
      for (let d = 0; d < width; d++, at++) product += query[d] * k[at];
      row[j] = scales[i] * scales[tokens + j] * product;
      if (row[j] > largest) largest = row[j];
    }
    let total = 0;
    for (let j = 0; j < tokens; j++) total += row[j] = Math.exp(row[j] - largest);
    for (let j = 0; j < tokens; j++) row[j] /= total;
    return row;
  }
}

/** What each code of a key stands for, as a share of the largest weight of its row. */
const SHARES = Float64Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);

/** One head as its weights: a row's largest, and for each key the root of its share of that. */
class Rows {
  constructor(buffer, at, tokens) {
    this.largest = new Float32Array(buffer, at, tokens);
    this.codes = new Uint8Array(buffer, at + 4 * tokens, tokens * tokens);
    this.tokens = tokens;
  }

  row(i) {
    const { codes, tokens } = this;
    const largest = this.largest[i];
    const row = new Float32Array(tokens);
    for (let j = 0, at = i * tokens; j < tokens; j++, at++) row[j] = largest * SHARES[codes[at]];
    return row;
  }
}

/** One head of a layer in windows: the same, for the keys of each token's own window alone. */
class WindowRows {
  constructor(buffer, at, tokens, windows) {
    this.largest = new Float32Array(buffer, at, tokens);
    this.codes = new Uint8Array(buffer, at + 4 * tokens, tokens * windows.area);
    this.windows = windows;
  }

  /** Over all tokens, and after them over the places of the window that are padding. */
  row(i) {
    const { area, tokens } = this.windows;
    const row = new Float32Array(tokens + area);
    this.windows.of(i).forEach((token, place) => {
      const share = SHARES[this.codes[i * area + place]];
      row[token < tokens ? token : tokens + place] = this.largest[i] * share;
    });
    return row;
  }
}

/** Where the windows of a layer lie: the token in each place, `tokens` where there is padding. */
class Windows {
  constructor(buffer, { places, regions, count, size, shift }, tokens) {
    Object.assign(this, { size, shift, tokens, area: size[0] * size[1] });
    this.places = new Int32Array(buffer, places, count * this.area);
    this.regions = new Uint8Array(buffer, regions, count * this.area);
    this.at = new Int32Array(tokens + 1);
    this.places.forEach((token, place) => (this.at[token] = place));
  }

  /** The tokens in the places of a token's window. */
  of(token) {
    const first = this.at[token] - (this.at[token] % this.area);
    return this.places.subarray(first, first + this.area);
  }

  /** Those of them that it attends to: the mask of a shifted window leaves the others out. */
  neighbours(token) {
    const here = this.at[token];
    const first = here - (here % this.area);
    return this.of(token).filter((_, at) => this.regions[first + at] === this.regions[here]);
  }
}

const CODES = {
  int8: (...where) => Factors.read(...where, Int8Array),
  int16: (...where) => Factors.read(...where, Int16Array),
  rows: (...where) => new Rows(...where),
};

/** One layer: its heads, and how its tokens lie on the photo. */
class Layer {
  /** averages: {entropy, distance} of each head over all queries. */
  constructor({ name, averages, windows }, { prefix, grid, box }) {
    Object.assign(this, { name, averages, prefix, seen: cutToPhoto(box), grid, box, merged: 1 });
    if (windows) {
      const [left, top, right, bottom] = box;
      const { merged } = windows;
      this.merged = merged;
      this.grid = windows.grid;
      // the last row and column may reach beyond the photo, where an odd number was merged
      const [down, along] = this.grid.map((side, axis) => (side * merged) / grid[axis]);
      this.box = [left, top, left + (right - left) * along, top + (bottom - top) * down];
    }
    this.tokens = prefix.length + this.grid[0] * this.grid[1];
    this.windows = null;
    this.exists = null; // or 1 for each patch that is there, 0 for each that was left out
  }

  /** What a click does. */
  get hint() {
    const where = this.windows ? ", inside the window outlined" : "";
    return `Click the photo to see what that place attends to${where}.`;
  }

  /** As page.py packs it. */
  static read(buffer, { name, heads, width, windows }, item) {
    const layer = new Layer({ name, averages: heads, windows }, item);
    layer.windows = windows ? new Windows(buffer, windows, layer.tokens) : null;
    layer.heads = heads.map(({ code, at }) =>
      windows
        ? new WindowRows(buffer, at, layer.tokens, layer.windows)
        : CODES[code](buffer, at, layer.tokens, width),
    );
    return layer;
  }

  /** The token of a point (x, y) in 0..1 of the photo, or null outside what was seen. */
  tokenAt(point) {
    const cell = cellAt(this.seen, [1, 1], point) && cellAt(this.box, this.grid, point);
    return cell && this.prefix.length + cell[0] * this.grid[1] + cell[1];
  }

  /** The token of a query {token, point}: one not on the photo, or the nearest patch there is. */
  tokenOf({ token, point: [x, y] }) {
    if (token !== null && this.prefix.length) return Math.min(token, this.prefix.length - 1);
    const [left, top, right, bottom] = this.seen;
    const between = (low, at, high) => Math.min(Math.max(low, at), high - 1e-9);
    const nearest = this.tokenAt([between(left, x, right), between(top, y, bottom)]);
    return this.exists ? this.existing(nearest) : nearest;
  }

  /** The nearest patch that was not left out; the token itself where all were. */
  existing(token) {
    const here = this.placeOf(token);
    let [found, least] = [token, Infinity];
    this.exists.forEach((there, patch) => {
      const [row, column] = this.placeOf(this.prefix.length + patch);
      const far = Math.hypot(row - here[0], column - here[1]);
      if (there && far < least) [found, least] = [this.prefix.length + patch, far];
    });
    return found;
  }

  /** [row, column] of a token on the photo, null of one that is not on it. */
  placeOf(token) {
    const patch = token - this.prefix.length;
    return patch < 0 ? null : [Math.floor(patch / this.grid[1]), patch % this.grid[1]];
  }

  /**
   * What a query gives to every token: {token, held, heads, mean}; where others are held with it, the
   * mean of them all, but for windows, of which one is shown. The last answer is kept.
   */
  answer(query) {
    const token = this.tokenOf(query);
    const held = this.windows ? [] : query.held.map((point) => this.tokenOf({ token: null, point }));
    const key = [token, ...held].join();
    if (this.answered?.key !== key) {
      const heads = this.heads.map((head) => mean([token, ...held].map((one) => head.row(one))));
      this.answered = { key, token, held, heads, mean: mean(heads) };
    }
    return this.answered;
  }

  /** The part of a row that lies on the photo. */
  onPhoto(row) {
    return row.subarray(this.prefix.length, this.tokens);
  }

  /** A row as a map; inside: 1 for the tokens of the query's window, where there are windows. */
  mapOf(row, token) {
    const values = this.onPhoto(row);
    const map = { values, grid: this.grid, box: this.box, unit: UNIFORM, factor: values.length };
    if (this.exists)
      return { ...map, inside: this.exists, factor: this.keys() - this.prefix.length };
    if (!this.windows) return map;
    const neighbours = this.windows.neighbours(token);
    const inside = new Uint8Array(this.tokens);
    for (const one of neighbours) if (one < this.tokens) inside[one] = 1;
    return { ...map, inside, factor: neighbours.length };
  }

  /** How many keys a query has. */
  keys(token) {
    if (this.windows) return this.windows.neighbours(token).length;
    const { exists, prefix, tokens } = this;
    return exists ? exists.reduce((sum, one) => sum + one, prefix.length) : tokens;
  }

  /** Bits, of the row made to sum to 1. */
  entropy(row) {
    const total = row.reduce((sum, weight) => sum + weight, 0);
    let bits = 0;
    for (const weight of row) if (weight > 0) bits -= (weight / total) * Math.log2(weight / total);
    return bits;
  }

  /** How far a token reaches on the photo, in patches; null for one that is not on it. */
  distance(row, token) {
    const here = this.placeOf(token);
    if (!here) return null;
    let reach = 0;
    let total = 0;
    this.onPhoto(row).forEach((weight, patch) => {
      const [y, x] = [Math.floor(patch / this.grid[1]), patch % this.grid[1]];
      reach += weight * Math.hypot(y - here[0], x - here[1]);
      total += weight;
    });
    return total ? reach / total : 0;
  }

  /** The most that each measure can be, or is worth showing. */
  get most() {
    const { area, size } = this.windows ?? { area: this.tokens, size: this.grid };
    return { entropy: Math.log2(area), distance: Math.hypot(...size) / 1.8 };
  }
}

/** One photo as one model sees it, its numbers inflated. */
class Item {
  static async open(data) {
    const [buffer, photo] = await Promise.all([inflate(data.bytes), picture(data.photo)]);
    return new Item(data, buffer, photo);
  }

  constructor(data, buffer, photo) {
    Object.assign(this, data);
    this.photo = photo;
    this.layers = data.layers.map((layer) => Layer.read(buffer, layer, data));
    this.maps = data.maps.map((map) => ({ ...map, values: floats(buffer, map.values, map.grid) }));
    this.gates = data.gates.map((gate) => ({
      ...gate,
      values: floats(buffer, gate.values, gate.shape),
      map: gate.grid && mapOfGate(gate, floats(buffer, gate.where, gate.grid)),
    }));
    this.features = (data.features ?? []).map((layer) => new Features(buffer, layer, data));
  }
}

/** Where a gate's channels are, or the gate itself, as a map. */
function mapOfGate({ shape, grid }, values) {
  const ofChannels = shape.length === 1;
  const method = ofChannels ? "ChannelGates" : "SpatialGates";
  return { method, values, grid, factor: 1, unit: ofChannels ? "" : OPEN };
}

/** [row, column] of the cell at a point, for a grid that lies on a box of the photo, or null. */
function cellAt([left, top, right, bottom], [rows, columns], [x, y]) {
  const row = Math.floor(((y - top) / (bottom - top)) * rows);
  const column = Math.floor(((x - left) / (right - left)) * columns);
  return row >= 0 && column >= 0 && row < rows && column < columns ? [row, column] : null;
}

function floats(buffer, at, shape) {
  return new Float32Array(
    buffer,
    at,
    shape.reduce((size, side) => size * side, 1),
  );
}

function mean(rows) {
  if (rows.length === 1) return rows[0];
  const sum = new Float32Array(rows[0].length);
  for (const row of rows) for (let j = 0; j < sum.length; j++) sum[j] += row[j] / rows.length;
  return sum;
}

async function picture(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}
