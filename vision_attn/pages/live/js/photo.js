// From a photo's pixels to the network's input, as vision_attn.data.Preprocess does it, and what
// stands in covered cells, as vision_attn.evaluate's fills do.

const PRECISION = 22; // bits of Pillow's weights after the point

/** Whole numbers as Python rounds them: a half to the even one. */
function roundEven(x) {
  const below = Math.floor(x);
  return x - below === 0.5 ? below + (below % 2) : Math.round(x);
}

const MOST_WHOLE = 2 ** 24; // pixels of a photo that is resized before it is cut

/** Width and height of a photo W x H when it is resized whole, and the corner that is seen. */
function frameOf([W, H], { input: [h, w], crop, fit }) {
  let [high, wide] = [Math.floor(h / crop), Math.floor(w / crop)];
  if (fit === "crop" && high === wide) {
    if (W > H) wide = Math.floor((high * W) / H);
    else high = Math.floor((wide * H) / W);
  } else if (fit === "crop") {
    const ratio = Math.min(H / high, W / wide);
    [high, wide] = [roundEven(H / ratio), roundEven(W / ratio)];
  }
  return { wide, high, left: roundEven((wide - w) / 2), top: roundEven((high - h) / 2) };
}

/** Left, top, right, bottom of what the network sees of a photo W x H, in its pixels. */
function seenBox([W, H], how) {
  const [h, w] = how.input;
  const { wide, high, left, top } = frameOf([W, H], how);
  const [perW, perH] = [W / wide, H / high];
  return [
    ...[left * perW, top * perH],
    ...[Math.min((left + w) * perW, W), Math.min((top + h) * perH, H)],
  ];
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** Pillow's filters: how far they reach, and their weights. */
const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [
    2,
    (x) => {
      const [a, t] = [-0.5, Math.abs(x)];
      if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
      return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
    },
  ],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

// An axis is {length, low, high, size, from, count}: `length` input pixels, of which low..high
// become `size` output pixels, of which `count` are seen, from number `from` on.

/** Of each output pixel that is seen: the first input pixel, and weights from there on. */
function weightsOf({ length, low, high, size, from, count }, [reach, filter]) {
  const scale = Math.fround(high - low) / size;
  const wider = Math.max(scale, 1);
  const support = reach * wider;
  return Array.from({ length: count }, (_, at) => {
    const centre = low + (from + at + 0.5) * scale;
    const first = Math.max(Math.trunc(centre - support + 0.5), 0);
    const end = Math.min(Math.trunc(centre + support + 0.5), length);
    const weights = Array.from({ length: end - first }, (_, i) =>
      filter((i + first - centre + 0.5) * (1 / wider)),
    );
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const whole = weights.map((weight) => {
      const share = total ? weight / total : weight;
      return Math.trunc((share < 0 ? -0.5 : 0.5) + share * 2 ** PRECISION);
    });
    return { first, weights: Int32Array.from(whole) };
  });
}

const clip = (x) => (x < 0 ? 0 : x > 255 ? 255 : x);

/** One pass: each output pixel is a weighted sum along one axis, rounded to a byte. */
function pass(from, { lines, lineStep, step }, spans) {
  const out = new Uint8Array(lines * spans.length * 3);
  for (let line = 0, at = 0; line < lines; line++)
    for (const { first, weights } of spans)
      for (let c = 0; c < 3; c++, at++) {
        let sum = 2 ** (PRECISION - 1);
        let place = line * lineStep + first * step + c;
        for (let i = 0; i < weights.length; i++, place += step) sum += from[place] * weights[i];
        out[at] = clip(Math.floor(sum / 2 ** PRECISION));
      }
  return out;
}

// A plane is {data, rows, columns, rowStep, columnStep}: bytes, and how far one lies from the next.

function sideways({ data, rows, rowStep, columnStep }, spans) {
  const out = pass(data, { lines: rows, lineStep: rowStep, step: columnStep }, spans);
  return { data: out, rows, columns: spans.length, rowStep: 3 * spans.length, columnStep: 3 };
}

function downwards({ data, columns, rowStep, columnStep }, spans) {
  const out = pass(data, { lines: columns, lineStep: columnStep, step: rowStep }, spans);
  return { data: out, rows: spans.length, columns, rowStep: 3, columnStep: 3 * spans.length };
}

/** Of each output pixel that is seen the nearest one, by the same sums as Pillow's. */
function nearest({ length, low, high, size, from, count }) {
  const step = Math.fround(high - low) / size;
  let place = low + 0.5 * step;
  const every = Array.from({ length: from + count }, () => {
    const at = Math.min(Math.trunc(place), length - 1);
    place += step;
    return at;
  });
  return every.slice(from);
}

/** How both axes of a photo become what is seen: it is resized whole, or a very long one in part. */
function axesOf([W, H], how) {
  const [h, w] = how.input;
  const { wide, high, left, top } = frameOf([W, H], how);
  if (wide * high <= MOST_WHOLE)
    return [
      { length: W, low: 0, high: W, size: wide, from: left, count: w },
      { length: H, low: 0, high: H, size: high, from: top, count: h },
    ];
  const [x0, y0, x1, y1] = seenBox([W, H], how).map(Math.fround); // as Pillow keeps them
  return [
    { length: W, low: x0, high: x1, size: w, from: 0, count: w },
    { length: H, low: y0, high: y1, size: h, from: 0, count: h },
  ];
}

/** Whether Pillow has to resize along an axis. */
const changes = ({ length, low, high, size }) => low !== 0 || high !== length || size !== length;

/** Pillow's `image.resize`, and what is seen of it. pixels: RGBA of W x H. Gives RGB by rows. */
function resize(pixels, [W, H], how) {
  const [h, w] = how.input;
  const [across, down] = axesOf([W, H], how);
  const out = new Uint8Array(h * w * 3);
  if (how.interpolation === "nearest") {
    const columns = nearest(across);
    let at = 0;
    for (const row of nearest(down))
      for (const column of columns)
        for (let c = 0; c < 3; c++, at++) out[at] = pixels[4 * (row * W + column) + c];
    return out;
  }
  const filter = FILTERS[how.interpolation];
  const columns = weightsOf(across, filter);
  const rows = weightsOf(down, filter);
  const last = rows[h - 1];
  const [start, end] = changes(down)
    ? [rows[0].first, last.first + last.weights.length]
    : [down.from, down.from + h];
  for (const row of rows) row.first -= start;
  const data = pixels.subarray(4 * start * W, 4 * end * W); // no other rows are seen
  let plane = { data, rows: end - start, columns: W, rowStep: 4 * W, columnStep: 4 };
  const passes = [];
  if (changes(across)) passes.push(() => sideways(plane, columns));
  if (changes(down)) passes.push(() => downwards(plane, rows));
  const shorter = H - down.size;
  if (shorter > 0 && shorter > 2 * (W - across.size)) passes.reverse(); // as Pillow 13 does
  for (const next of passes) plane = next();
  const aside = changes(across) ? 0 : across.from;
  for (let y = 0, at = 0; y < h; y++)
    for (let x = 0; x < w; x++)
      for (let c = 0; c < 3; c++, at++)
        out[at] = plane.data[y * plane.rowStep + (x + aside) * plane.columnStep + c];
  return out;
}

/** The network's input (h w 3) of a photo's pixels: resized, 0 to 1, less mean, over std. */
function prepare(pixels, size, how) {
  const bytes = resize(pixels, size, how);
  const tables = how.mean.map((mean, c) =>
    Float32Array.from({ length: 256 }, (_, value) =>
      Math.fround(
        Math.fround(Math.fround(value / 255) - Math.fround(mean)) / Math.fround(how.std[c]),
      ),
    ),
  );
  return Float32Array.from(bytes, (value, at) => tables[at % 3][value]);
}

/** The image (h w 3) blurred by a Gaussian of `sigma` pixels, mirrored at its edges. */
function blurred(image, [h, w], sigma = 5) {
  const side = Math.min(2 * Math.trunc(2 * sigma) + 1, 2 * Math.min(h, w) - 1);
  const half = (side - 1) / 2;
  const bell = Array.from({ length: side }, (_, i) => Math.exp(-0.5 * ((i - half) / sigma) ** 2));
  const total = bell.reduce((sum, weight) => sum + weight, 0);
  const along = (from, lines, length, lineStep, step) => {
    const out = new Float32Array(from.length);
    for (let line = 0; line < lines; line++)
      for (let at = 0; at < length; at++)
        for (let c = 0; c < 3; c++) {
          let sum = 0;
          for (let i = 0; i < side; i++) {
            const place = Math.abs(at + i - half);
            const inside = place < length ? place : 2 * (length - 1) - place;
            sum += bell[i] * from[line * lineStep + inside * step + c];
          }
          out[line * lineStep + at * step + c] = sum / total;
        }
    return out;
  };
  return along(along(image, h, w, 3 * w, 3), w, h, 3, 3 * w);
}

/** The image with `filling` (0 where null) in some cells of a grid over it. cells: a Set. */
function withCells(image, [h, w], [rows, columns], cells, filling) {
  const out = image.slice();
  for (let y = 0, at = 0; y < h; y++) {
    const row = Math.floor(((y + 0.5) * rows) / h);
    for (let x = 0; x < w; x++, at += 3) {
      if (!cells.has(row * columns + Math.floor(((x + 0.5) * columns) / w))) continue;
      for (let c = at; c < at + 3; c++) out[c] = filling ? filling[c] : 0;
    }
  }
  return out;
}
