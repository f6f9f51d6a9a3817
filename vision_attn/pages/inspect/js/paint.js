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

/** The linear quantile of the values without their signs, as numpy has it; fast near a share of 1. */
function quantile(values, share) {
  const place = share * (values.length - 1);
  const below = Math.floor(place);
  const [low, high = low] = largest(values, values.length - below);
  return low + (place - below) * (high - low);
}

/** The `count` largest of the values without their signs, in rising order. */
function largest(values, count) {
  const found = new Float64Array(count);
  for (let at = 0; at < values.length; at++) {
    const value = Math.abs(values[at]);
    if (value <= found[0]) continue;
    let place = 1;
    for (; place < count && found[place] < value; place++) found[place - 1] = found[place];
    found[place - 1] = value;
  }
  return found;
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
  return { top, low: isSigned(values) ? -top : 0, factor, unit };
}

function isSigned(values) {
  for (let at = 0; at < values.length; at++) if (values[at] < 0) return true;
  return false;
}

function heat(value, { top, low, factor }) {
  return Math.min(Math.max((value * factor) / top, low < 0 ? -1 : 0), 1);
}

/** Paints one heat into RGBA pixels at `at`, as a colour of the table. */
function putColour(pixels, at, t, table, alpha) {
  const colour = 3 * (Math.round(t * 255) + 255);
  pixels[at] = table[colour];
  pixels[at + 1] = table[colour + 1];
  pixels[at + 2] = table[colour + 2];
  pixels[at + 3] = alpha;
}

/** Paints heats into RGBA pixels from `at` on: colours to lay over the photo. */
function blend(pixels, at, heats, { table, style, opacity }) {
  const most = 255 * opacity;
  for (let x = 0; x < heats.length; x++, at += 4) {
    if (style === "dim") pixels[at + 3] = most * (1 - Math.max(heats[x], 0));
    else putColour(pixels, at, heats[x], table, most * Math.abs(heats[x]));
  }
}

/** A map of colours, one pixel a cell; the background is black. */
function pixelsOf({ colors, foreground, grid }, alpha) {
  const image = new ImageData(grid[1], grid[0]);
  for (let cell = 0; cell < foreground.length; cell++) {
    const color = foreground[cell] ? colors.subarray(3 * cell, 3 * cell + 3) : [0, 0, 0];
    image.data.set([...color, alpha], 4 * cell);
  }
  return image;
}

/** The map at its own size, one pixel a cell, opaque: for the small maps. */
function paintCells(canvas, { values, grid }, scale, table) {
  const image = new ImageData(grid[1], grid[0]);
  const pixels = image.data;
  for (let cell = 0; cell < values.length; cell++)
    putColour(pixels, 4 * cell, heat(values[cell], scale), table, 255);
  setSize(canvas, grid[1], grid[0]);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Gives a canvas its size, which empties it; one that has that size stays as it is. */
function setSize(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}

/** A canvas of width x height pixels with the map as a see-through layer, bilinear or in cells. */
function paintLayer(map, scale, look, width, height) {
  const canvas = document.createElement("canvas");
  const [h, w] = map.grid;
  if (map.colors) {
    [canvas.width, canvas.height] = [w, h];
    canvas.getContext("2d").putImageData(pixelsOf(map, Math.round(255 * look.opacity)), 0, 0);
    return canvas;
  }
  if (!look.smooth) [width, height] = [w, h];
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  const pixels = image.data;
  const heats = new Float64Array(width); // of one row
  const columns = Array.from({ length: width }, (_, x) => between(x, width, w));
  // two short loops a row: browsers compile them to faster code than one over all
  for (let y = 0; y < height; y++) {
    heatRow(heats, map, between(y, height, h), columns, scale);
    blend(pixels, 4 * y * width, heats, look);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The heats of one row of pixels. */
function heatRow(heats, { values, grid, inside }, row, columns, scale) {
  for (let x = 0; x < heats.length; x++)
    heats[x] = heat(mix(values, grid[1], row, columns[x], inside), scale);
}

/** Bilinear between four cells; where some lie in a window, of those on the nearest one's side. */
function mix(values, width, row, column, inside) {
  const above = row.first * width;
  const below = row.next * width;
  const { first: left, next: right } = column;
  let a = (1 - row.along) * (1 - column.along);
  let b = (1 - row.along) * column.along;
  let c = row.along * (1 - column.along);
  let d = row.along * column.along;
  if (inside) {
    const nearest = (row.along >= 0.5 ? below : above) + (column.along >= 0.5 ? right : left);
    const side = inside[nearest];
    if (inside[above + left] !== side) a = 0;
    if (inside[above + right] !== side) b = 0;
    if (inside[below + left] !== side) c = 0;
    if (inside[below + right] !== side) d = 0;
  }
  const sum =
    a * values[above + left] +
    b * values[above + right] +
    c * values[below + left] +
    d * values[below + right];
  return sum / (a + b + c + d);
}

/** The two cells whose centres a pixel lies between, and how far along it lies. */
function between(pixel, pixels, cells) {
  const place = Math.min(Math.max(((pixel + 0.5) / pixels) * cells - 0.5, 0), cells - 1);
  const first = Math.floor(place);
  return { first, next: Math.min(first + 1, cells - 1), along: place - first };
}
