// The photo with its map, and the query that is asked by pointing at it.

const FINEST = 384; // pixels: the map is painted at most this large, the rest is the canvas's own work

/** Draws the photo, what the model did not see in grey, the map, and the query's frame. */
function drawPhoto(context, width, height, { item, map, scale, look, place }) {
  const [left, top, right, bottom] = item.box;
  const seen = [left * width, top * height, (right - left) * width, (bottom - top) * height];
  context.imageSmoothingQuality = "high";
  context.drawImage(item.photo, 0, 0, width, height);
  drawUnseen(context, width, height, seen);
  if (map) {
    const finest = Math.min(1, FINEST / Math.max(seen[2], seen[3]));
    const size = [seen[2], seen[3]].map((side) => Math.max(1, Math.round(side * finest)));
    context.imageSmoothingEnabled = look.smooth;
    context.drawImage(paintLayer(map, scale, look, ...size), ...seen);
    context.imageSmoothingEnabled = true;
  }
  if (place) drawFrame(context, item, seen, place);
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

function drawFrame(context, { grid }, [left, top, width, height], [row, column]) {
  const [cellWidth, cellHeight] = [width / grid[1], height / grid[0]];
  const line = Math.max(2, Math.min(cellWidth, cellHeight, width / 12, height / 12) / 10);
  const frame = [left + column * cellWidth, top + row * cellHeight, cellWidth, cellHeight];
  for (const [colour, thick] of [
    ["rgb(0 0 0 / 0.75)", 2 * line],
    ["white", line],
  ]) {
    context.beginPath();
    context.roundRect(...frame, line);
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.stroke();
  }
}

/** The element that is pointed at. onQuery gets a point (x, y) in 0..1 of the photo or a token. */
class Stage {
  constructor(element, { onQuery, onProbe }) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.onQuery = onQuery;
    new ResizeObserver(() => this.draw()).observe(element);
    element.addEventListener("pointerdown", (event) => {
      if (event.button || !this.picture?.asks) return;
      element.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.point(event);
    });
    element.addEventListener("pointermove", (event) => {
      if (this.dragging) this.point(event);
      onProbe(this.pointOf(event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      element.addEventListener(end, () => (this.dragging = false));
    }
    element.addEventListener("pointerleave", () => onProbe(null));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  /** What is shown: {item, map, scale, look, place, asks}; asks: whether pointing asks a query. */
  show(picture) {
    this.picture = picture;
    const { item, asks } = picture;
    this.element.classList.toggle("asks", asks);
    this.element.setAttribute("role", asks ? "application" : "img");
    this.draw();
  }

  draw() {
    if (!this.picture) return;
    const width = Math.round(this.element.clientWidth * devicePixelRatio);
    const height = Math.round(this.element.clientHeight * devicePixelRatio);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    drawPhoto(this.canvas.getContext("2d"), width, height, this.picture);
  }

  pointOf(event) {
    const { left, top, width, height } = this.element.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / height];
  }

  point(event) {
    const point = this.pointOf(event);
    if (this.picture.item.tokenAt(point) !== null) this.onQuery(point);
  }

  key(event) {
    const step = ARROWS[event.key];
    if (!step || !this.picture?.asks) return;
    event.preventDefault();
    const { item, place } = this.picture;
    const [row, column] = place ?? item.grid.map((side) => Math.floor(side / 2));
    const next = place ? [row + step[0], column + step[1]] : [row, column];
    if (next.every((at, axis) => at >= 0 && at < item.grid[axis]))
      this.onQuery(centreOf(item, next));
  }
}

/** The middle of a patch, in 0..1 of the photo. */
function centreOf({ box: [left, top, right, bottom], grid }, [row, column]) {
  return [
    left + ((column + 0.5) / grid[1]) * (right - left),
    top + ((row + 0.5) / grid[0]) * (bottom - top),
  ];
}
