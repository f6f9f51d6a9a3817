// The photo with its map, and the query that is asked by pointing at it.

const FINEST = 384; // pixels: the map is painted at most this large, the rest is the canvas's own work

/** Draws the photo, what the model did not see in grey, the map, the query's window and frame. */
function drawPhoto(context, width, height, scene) {
  drawGround(context, width, height, scene.item);
  drawMap(context, width, height, scene);
}

/** Draws what lies under the map: the photo, what the model did not see in grey. */
function drawGround(context, width, height, { photo, box }) {
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, 0, 0, width, height);
  drawUnseen(context, width, height, placed(box, width, height));
}

function drawMap(context, width, height, { item, map, scale, look, place, held, cursor }) {
  const seen = placed(cutToPhoto(item.box), width, height);
  if (map) {
    const covered = placed(map.box ?? item.box, width, height);
    const finest = Math.min(1, FINEST / Math.max(covered[2], covered[3]));
    const size = [covered[2], covered[3]].map((side) => Math.max(1, Math.round(side * finest)));
    context.save();
    context.beginPath();
    context.rect(...seen);
    context.clip();
    context.imageSmoothingQuality = "high";
    context.imageSmoothingEnabled = look.smooth;
    context.drawImage(paintLayer(map, scale, look, ...size), ...covered);
    context.restore();
    const cells = new Cells(map.grid, covered, seen);
    if (map.inside) drawOutline(context, cells, map.inside);
    for (const one of held ?? []) if (one) drawFrame(context, cells, one);
    if (place) drawFrame(context, cells, place);
  }
  if (cursor) drawFrame(context, new Cells(item.cells.grid, seen, seen), cursor);
}

/** [left, top, width, height] of a box on a canvas, in pixels. */
function placed([left, top, right, bottom], width, height) {
  return [left * width, top * height, (right - left) * width, (bottom - top) * height];
}

/** What of a box lies on the photo: it reaches beyond where the model sees a padding. */
function cutToPhoto(box) {
  return box.map((at) => Math.min(Math.max(at, 0), 1));
}

/** Where the cells of a grid begin on a canvas, in pixels; none reaches beyond what was seen. */
class Cells {
  constructor(grid, [left, top, width, height], seen) {
    this.grid = grid;
    const within = (at, axis) => Math.min(Math.max(at, seen[axis]), seen[axis] + seen[axis + 2]);
    this.x = (column) => within(left + (column * width) / grid[1], 0);
    this.y = (row) => within(top + (row * height) / grid[0], 1);
    const cell = Math.min(width / grid[1], height / grid[0], width / 12, height / 12);
    this.line = Math.max(2, cell / 10);
  }
}

/** Strokes a path so that it shows on every photo. */
function strokeTwice(context, line) {
  for (const [colour, thick] of [
    ["rgb(0 0 0 / 0.75)", 2 * line],
    ["white", line],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.stroke();
  }
}

/** The edge around the cells of a window, in as many pieces as it has on the photo. */
function drawOutline(context, { grid: [rows, columns], x, y, line }, inside) {
  const isIn = (row, column) =>
    Math.min(row, column) >= 0 && row < rows && column < columns
      ? inside[row * columns + column]
      : 0;
  context.save();
  context.lineCap = "square";
  context.beginPath();
  for (let row = 0; row <= rows; row++) {
    for (let column = 0; column <= columns; column++) {
      const here = isIn(row, column);
      if (here !== isIn(row - 1, column)) {
        context.moveTo(x(column), y(row));
        context.lineTo(x(column + 1), y(row));
      }
      if (here !== isIn(row, column - 1)) {
        context.moveTo(x(column), y(row));
        context.lineTo(x(column), y(row + 1));
      }
    }
  }
  strokeTwice(context, 0.75 * line);
  context.restore();
}

function drawUnseen(context, width, height, seen) {
  context.save();
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(...seen);
  context.clip("evenodd");
  for (const [how, colour] of [
    ["saturation", "gray"],
    ["source-over", "rgb(128 128 128 / 0.5)"],
  ]) {
    context.globalCompositeOperation = how;
    context.fillStyle = colour;
    context.fillRect(0, 0, width, height);
  }
  context.restore();
}

function drawFrame(context, { x, y, line }, [row, column]) {
  const [left, top] = [x(column), y(row)];
  context.beginPath();
  context.roundRect(left, top, x(column + 1) - left, y(row + 1) - top, line);
  strokeTwice(context, line);
}

/** The element that is pointed at. onQuery gets a point (x, y) in 0..1 of the photo or a token. */
class Stage {
  constructor(element, { onQuery, onProbe }) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.onQuery = onQuery;
    new ResizeObserver(() => {
      this.measure();
      this.draw();
    }).observe(element);
    element.addEventListener("pointerdown", (event) => {
      if (event.button || !this.board) return;
      element.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.picture.brush?.begin();
      this.point(event);
    });
    element.addEventListener("pointermove", (event) => {
      if (this.dragging) this.point(event);
      onProbe(this.pointOf(event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      element.addEventListener(end, () => {
        if (this.dragging) this.picture.brush?.end();
        this.dragging = false;
      });
    }
    element.addEventListener("pointerleave", () => onProbe(null));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  /**
   * What is shown: {item, map, scale, look, place, layer, cursor, brush, holds}. layer: the one that
   * a click asks; holds: the place that was asked goes on being asked, with the next one. brush: what gets the points, if one is in the hand; it covers item.cells, {grid,
   * box, seen}, and cursor is the one of these that keys move.
   */
  show(picture) {
    this.picture = picture;
    const asks = Boolean(this.board);
    this.element.classList.toggle("asks", asks);
    this.element.setAttribute("role", asks ? "application" : "img");
    this.draw();
  }

  /** Keeps the element's size: to ask for it while the page changes makes browsers lay it out. */
  measure() {
    this.size = [this.element.clientWidth, this.element.clientHeight];
  }

  draw() {
    if (!this.picture) return;
    if (!this.size) this.measure();
    const [width, height] = this.size.map((side) => Math.round(side * devicePixelRatio));
    setSize(this.canvas, width, height);
    if (!width || !height) return; // hidden, as in a closed frame
    const context = this.canvas.getContext("2d");
    context.drawImage(this.ground(width, height), 0, 0);
    drawMap(context, width, height, this.picture);
  }

  /** What lies under the map, drawn anew only for another photo or size. */
  ground(width, height) {
    const { item } = this.picture;
    const drawn = [item.photo, width, height, ...item.box];
    if (isSame(drawn, this.drawn)) return this.under;
    this.drawn = drawn;
    this.under = make("canvas", { width, height });
    drawGround(this.under.getContext("2d"), width, height, item);
    return this.under;
  }

  /** What is pointed at: the layer's grid, or the brush's. */
  get board() {
    return this.picture?.brush ? this.picture.item.cells : this.picture?.layer;
  }

  pointOf(event) {
    const { left, top, width, height } = this.element.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height];
  }

  point(event) {
    const point = this.pointOf(event);
    const { seen, box, grid } = this.board;
    if (!cellAt(seen, [1, 1], point) || !cellAt(box, grid, point)) return;
    if (this.picture.brush) this.picture.brush.paint(point);
    else {
      const keeps = event.shiftKey || this.picture.holds;
      this.onQuery(point, { holds: keeps && event.type === "pointerdown", keeps });
    }
  }

  key(event) {
    const step = ARROWS[event.key];
    const { item, layer, cursor } = this.picture ?? {};
    const board = layer ?? item?.cells;
    const place = layer ? this.picture.place : cursor;
    if (!step || !board) return;
    event.preventDefault();
    const [row, column] = place ?? board.grid.map((side) => Math.floor(side / 2));
    const next = place ? [row + step[0], column + step[1]] : [row, column];
    if (next.some((at, axis) => at < 0 || at >= board.grid[axis])) return;
    const point = centreOf(board, next);
    if (cellAt(board.seen, [1, 1], point)) this.onQuery(point, { keeps: true }); // not in a padding
  }
}

/** The middle of what the model sees of a patch, in 0..1 of the photo; beyond it for a padding. */
function centreOf({ box: [left, top, right, bottom], grid, seen }, [row, column]) {
  const middle = (low, size, at, begin, end) =>
    (Math.max(low + size * at, begin) + Math.min(low + size * (at + 1), end)) / 2;
  return [
    middle(left, (right - left) / grid[1], column, seen[0], seen[2]),
    middle(top, (bottom - top) / grid[0], row, seen[1], seen[3]),
  ];
}
