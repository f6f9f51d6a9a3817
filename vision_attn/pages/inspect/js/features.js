// Features of patches, and what is computed of them: cosines, and why two photos are alike.

const COSINE = "cosine";

/** One layer: a vector of each patch as whole numbers, its components as colours. */
class Features {
  constructor(buffer, layer, { box }) {
    const { name, grid, width, code, at, colors, foreground, variance, nearest } = layer;
    Object.assign(this, { name, grid, width, box, variance, nearest });
    this.seen = cutToPhoto(box);
    this.count = grid[0] * grid[1];
    this.scales = new Float32Array(buffer, at, this.count);
    const Whole = code === "int8" ? Int8Array : Int16Array;
    this.codes = new Whole(buffer, at + 4 * this.count, this.count * width);
    this.colors = colors === null ? null : new Uint8Array(buffer, colors, 3 * this.count);
    this.foreground = this.colors && new Uint8Array(buffer, foreground, this.count);
  }

  /** The numbers of one patch, without its scale. */
  codesOf(patch) {
    return this.codes.subarray(patch * this.width, (patch + 1) * this.width);
  }

  /** The lengths of the vectors without their scales, computed once. */
  get sizes() {
    this.measured ??= Float64Array.from({ length: this.count }, (_, patch) => {
      const codes = this.codesOf(patch);
      return Math.sqrt(dot(codes, codes));
    });
    return this.measured;
  }

  /** The sum of all vectors, as a direction of length 1, and its length; computed once. */
  get pooled() {
    if (this.summed) return this.summed;
    const sum = new Float64Array(this.width);
    for (let patch = 0; patch < this.count; patch++) {
      const codes = this.codesOf(patch);
      for (let d = 0; d < this.width; d++) sum[d] += this.scales[patch] * codes[d];
    }
    const length = Math.sqrt(dot(sum, sum)) || 1;
    this.summed = { direction: sum.map((value) => value / length), length };
    return this.summed;
  }

  /** The patch of a point (x, y) in 0..1 of the photo: the nearest that was seen. */
  patchOf([x, y]) {
    const [left, top, right, bottom] = this.seen;
    const between = (low, at, high) => Math.min(Math.max(low, at), high - 1e-9);
    const [row, column] = cellAt(this.box, this.grid, [
      between(left, x, right),
      between(top, y, bottom),
    ]);
    return row * this.grid[1] + column;
  }

  placeOf(patch) {
    return [Math.floor(patch / this.grid[1]), patch % this.grid[1]];
  }

  mapOf(values, more) {
    return { values, grid: this.grid, box: this.box, factor: 1, unit: "", ...more };
  }

  /** The cosine of a patch with each patch of these features or, of another photo, of others. */
  similarity(patch, other = this) {
    const query = this.codesOf(patch);
    const size = this.sizes[patch];
    const values = Float32Array.from({ length: other.count }, (_, key) => {
      const sizes = size * other.sizes[key];
      return sizes ? dot(query, other.codesOf(key)) / sizes : 0;
    });
    return other.mapOf(values, { unit: COSINE, full: 1 });
  }

  /** What each patch adds to the cosine of the pooled features of two photos. */
  shares(other) {
    const { direction } = other.pooled;
    const { length } = this.pooled;
    const values = Float32Array.from(
      { length: this.count },
      (_, patch) => (this.scales[patch] * dot(this.codesOf(patch), direction)) / length,
    );
    return this.mapOf(values);
  }

  /** What one patch and each patch of the other photo add to it. */
  row(patch, other) {
    const query = this.codesOf(patch);
    const scale = this.scales[patch] / this.pooled.length / other.pooled.length;
    const values = Float32Array.from(
      { length: other.count },
      (_, key) => scale * other.scales[key] * dot(query, other.codesOf(key)),
    );
    return other.mapOf(values);
  }

  /** The components as a map of colours. */
  get components() {
    const { colors, foreground, grid, box } = this;
    return { colors, foreground, grid, box };
  }
}

function dot(one, other) {
  let sum = 0;
  for (let d = 0; d < one.length; d++) sum += one[d] * other[d];
  return sum;
}

/** The other items that an item can be compared with: those of the same model, the nearest first. */
function partnersOf(items, own) {
  if (!items[own].features?.length) return [];
  const able = (item, at) => at !== own && item.model === items[own].model && item.features?.length;
  const partners = [...items.keys()].filter((at) => able(items[at], at));
  return rankedPartners(partners, items[own].features.at(-1)).map(([one]) => one);
}

/** The items that features can be compared with, the most similar first, and each one's cosine. */
function rankedPartners(partners, { nearest = [] }) {
  const known = nearest.filter(([one]) => partners.includes(one));
  const ranked = new Map(known);
  return [...known, ...partners.filter((one) => !ranked.has(one)).map((one) => [one, null])];
}

/** The item that a view compares its own with: as chosen, the one beside it, or the nearest; or null. */
function otherOf(items, views, at) {
  const able = partnersOf(items, views[at].item);
  const wanted = [views[at].other, views[1 - at]?.item, ...able];
  return wanted.find((one) => able.includes(one)) ?? null;
}
