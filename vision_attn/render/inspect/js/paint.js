// From raw values to colours: the same scale and the same blending as vision_attn.render.

const UNIFORM = "\u00d7 uniform"; // 1 is the share of a place where all get the same
const OPEN = "open"; // 1 is a gate that lets all through
const TINIEST = 1e-12; // a map that stays below this is zero
const LEAST = 3; // times uniform: attention that is nearly even looks it

/** Colours for heat -1 .. 0 .. 1, in 511 steps, each name once. */
class Palette {
  constructor({ colours, against }) {
    this.tables = Object.fromEntries(
      Object.entries(colours).map(([name, text]) => {
        const forward = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        const table = new Uint8Array(511 * 3);
        for (let at = 0; at < 255; at++) table.set(against, 3 * at);
        table.set(forward, 255 * 3);
        return [name, table];
      }),
    );
  }
}

/** The linear quantile, as numpy has it. */
function quantile(values, share) {
  const sorted = values.map(Math.abs).sort();
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

/** What full colour stands for, in the map's unit: `fixed`, or the 99th percentile of the map. */
function scaleOf({ values, factor, unit, inside }, fixed) {
  let top = fixed;
  if (!top) {
    const among = inside ? values.filter((_, cell) => inside[cell]) : values;
    top = quantile(among, 0.99) * factor;
    if (top < TINIEST)
      top = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) * factor;
    if (unit === UNIFORM) top = Math.max(top, LEAST);
    if (top < TINIEST) top = 1;
  }
  const signed = values.some((value) => value < 0);
  return { top, low: signed ? -top : 0, factor, unit };
}

function heat(value, { top, low, factor }) {
  return Math.min(Math.max((value * factor) / top, low < 0 ? -1 : 0), 1);
}

/** Paints one heat into RGBA pixels at `at`: a colour to lay over the photo. */
function blend(pixels, at, t, { table, style, opacity }) {
  if (style === "dim") {
    pixels[at + 3] = 255 * opacity * (1 - Math.max(t, 0));
    return;
  }
  const colour = 3 * (Math.round(t * 255) + 255);
  pixels[at] = table[colour];
  pixels[at + 1] = table[colour + 1];
  pixels[at + 2] = table[colour + 2];
  pixels[at + 3] = 255 * opacity * Math.abs(t);
}

/** The map at its own size, one pixel a cell, opaque: for the small maps. */
function paintCells(canvas, { values, grid }, scale, table) {
  [canvas.height, canvas.width] = grid;
  const image = new ImageData(grid[1], grid[0]);
  values.forEach((value, cell) => {
    const colour = 3 * (Math.round(heat(value, scale) * 255) + 255);
    image.data.set(table.subarray(colour, colour + 3), 4 * cell);
    image.data[4 * cell + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** A canvas of width x height pixels with the map as a see-through layer, bilinear or in cells. */
function paintLayer({ values, grid: [h, w], inside }, scale, look, width, height) {
  const canvas = document.createElement("canvas");
  if (!look.smooth) [width, height] = [w, h];
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  const columns = Array.from({ length: width }, (_, x) => between(x, width, w));
  for (let y = 0, at = 0; y < height; y++) {
    const [above, below, down] = between(y, height, h);
    for (let x = 0; x < width; x++, at += 4) {
      const [left, right, along] = columns[x];
      const cells = [above * w + left, above * w + right, below * w + left, below * w + right];
      const value = mix(values, cells, along, down, inside);
      blend(image.data, at, heat(value, scale), look);
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Bilinear between four cells; where some lie in a window, of those on the nearest one's side. */
function mix(values, cells, along, down, inside) {
  const shares = [
    (1 - down) * (1 - along),
    (1 - down) * along,
    down * (1 - along),
    down * along,
  ];
  const side = inside?.[cells[(down >= 0.5 ? 2 : 0) + (along >= 0.5 ? 1 : 0)]];
  let sum = 0;
  let total = 0;
  for (let at = 0; at < 4; at++) {
    if (inside?.[cells[at]] !== side) continue;
    sum += shares[at] * values[cells[at]];
    total += shares[at];
  }
  return sum / total;
}

/** The two cells whose centres a pixel lies between, and how far along it lies. */
function between(pixel, pixels, cells) {
  const place = Math.min(Math.max(((pixel + 0.5) / pixels) * cells - 0.5, 0), cells - 1);
  const first = Math.floor(place);
  return [first, Math.min(first + 1, cells - 1), place - first];
}
