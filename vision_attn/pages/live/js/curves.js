// Deletion and insertion of the map on the screen, drawn as the network runs.

const STEPS = 16;

/** Under a view's maps: a button, and what came of it. */
class Curves {
  constructor(view) {
    this.view = view;
    this.points = []; // {share, deletion, insertion}
    this.figure = make("figure", { className: "chart" });
    this.words = make("p", { className: "about" });
    const run = make("button", { type: "button", textContent: "Deletion and insertion" });
    run.onclick = () => this.run();
    view
      .find(".methods")
      .append(make("div", { className: "curves" }, run, this.words, this.figure));
  }

  /** Forgets the curves of another map. */
  show() {
    const { map } = this.view.scene;
    if (map === this.map) return;
    this.map = map;
    this.points = [];
    this.draw();
  }

  async run() {
    const { scene, item, view } = this.view;
    const { map } = scene;
    const { photo, model } = live.numbersOf(view.item);
    const { id } = await live.photos[photo].loaded;
    const { grid } = item.cells;
    const values = onCells(map, grid);
    const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
    const target = map.target ?? item.predictions[0].target;
    this.name = item.predictions.find((one) => one.target === target).name;
    this.points = [];
    const question = { photo: id, model, order, target, steps: STEPS };
    await live.engine.ask("curves", question, (point) => {
      if (this.map !== map) return;
      this.points.push(point);
      this.draw();
    });
  }

  draw() {
    const { points } = this;
    this.figure.hidden = !points.length;
    this.words.textContent = points.length
      ? `${this.name}: as the map's largest cells turn grey (red: it should fall), and as they alone ` +
        `appear (green: it should rise). Areas: ${["deletion", "insertion"]
          .map((name) => `${name} ${number(area(points, name))}`)
          .join(", ")}.`
      : "";
    const [width, height, left, bottom] = [520, 220, 34, 26];
    const x = (share) => left + share * (width - left - 24);
    const y = (chance) => height - bottom - chance * (height - bottom - 12);
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": "Curves",
    });
    for (const mark of [0, 0.5, 1]) {
      svg.append(draw("line", { class: "rule", x1: x(0), x2: x(1), y1: y(mark), y2: y(mark) }));
      svg.append(draw("text", { class: "end", x: left - 6, y: y(mark) + 4 }, mark));
      svg.append(draw("text", { x: x(mark), y: height - 6 }, percent(mark)));
    }
    for (const name of ["deletion", "insertion"]) {
      const line = points.map((point) => `${x(point.share)},${y(point[name])}`).join(" ");
      svg.append(draw("polyline", { class: name, points: line }));
      for (const point of points)
        svg.append(
          draw("circle", { class: `point ${name}`, cx: x(point.share), cy: y(point[name]), r: 3 }),
        );
    }
    this.figure.replaceChildren(svg);
  }
}

/** The area under a curve, by trapezoids. */
function area(points, name) {
  let sum = 0;
  for (let at = 1; at < points.length; at++)
    sum +=
      ((points[at][name] + points[at - 1][name]) / 2) * (points[at].share - points[at - 1].share);
  return sum;
}

/** A map at the size of a grid of cells, bilinear between centres. */
function onCells({ values, grid: [h, w] }, [rows, columns]) {
  const out = [];
  for (let y = 0; y < rows; y++) {
    const row = between(y, rows, h);
    for (let x = 0; x < columns; x++) out.push(mix(values, w, row, between(x, columns, w)));
  }
  return out;
}
