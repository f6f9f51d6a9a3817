// The colour bar: what the colours stand for, and the value under the pointer.

class ColourBar {
  constructor(element) {
    this.element = element;
    this.find = (selector) => element.querySelector(selector);
  }

  show(scene) {
    this.scene = scene;
    const { map, scale, look } = scene;
    this.element.hidden = !scale;
    if (!scale) return;
    const painted = [scale.low / scale.top, look.table, look.style, look.opacity, look.smooth];
    if (!isSame(painted, this.painted)) paintBar(this.find("canvas"), scale, look);
    this.painted = painted;
    const labels = ticks(scale).map((mark) => {
      const label = make("span", { textContent: number(mark) });
      label.style.left = this.along(mark);
      return label;
    });
    this.find(".ticks").replaceChildren(...labels);
    this.find(".unit").textContent = scale.unit;
  }

  /** Marks the value of the map at a point (x, y) in 0..1 of the photo, or nothing. */
  probe(point) {
    const mark = this.find(".probe");
    const { map, item } = this.scene ?? {};
    const cell = point && map?.values && cellAt(map.box ?? item.box, map.grid, point);
    mark.hidden = !cell;
    if (!cell) return;
    const value = map.values[cell[0] * map.grid[1] + cell[1]] * map.factor;
    mark.style.left = this.along(value);
    mark.dataset.value = number(value);
  }

  /** How far along the bar a value lies. */
  along(value) {
    const { low, top } = this.scene.scale;
    return `${100 * Math.min(Math.max((value - low) / (top - low), 0), 1)}%`;
  }
}

/** The scale's heats from its low end to its top, painted as on a grey photo. */
function paintBar(canvas, scale, look) {
  [canvas.width, canvas.height] = [256, 1];
  const context = canvas.getContext("2d");
  const [low, cells] = [scale.low / scale.top, 256];
  const values = Float32Array.from(
    { length: cells },
    (_, x) => low + ((1 - low) * x) / (cells - 1),
  );
  const heats = { top: 1, low, factor: 1 };
  context.fillStyle = "rgb(112 112 112)";
  context.fillRect(0, 0, cells, 1);
  context.drawImage(paintLayer({ values, grid: [1, cells] }, heats, look, cells, 1), 0, 0);
}

/** Round values between the ends of a scale. */
function ticks({ low, top }, most = 4) {
  const rough = (top - low) / most;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * size >= rough * 0.999) * size;
  const marks = [];
  for (let at = Math.ceil(low / step - 1e-6); at * step <= top * (1 + 1e-6); at++)
    marks.push(at * step);
  return marks;
}
