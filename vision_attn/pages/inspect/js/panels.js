// What is chosen from: layers x heads in small maps or as a chart, methods, gates.

/** Every layer (rows) and head (columns) as a small map; the first column is the mean of heads. */
class Overview {
  constructor(element, onChoose) {
    this.element = element;
    this.onChoose = onChoose;
    element.addEventListener("click", (event) => this.choose(event.target.closest("[data-layer]")));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  build(item) {
    if (this.item === item) return;
    this.item = item;
    const most = Math.max(...item.layers.map(({ heads }) => heads.length));
    this.element.style.setProperty("--columns", most + 1);
    this.element.style.setProperty("--rows", item.layers.length);
    this.element.style.setProperty("--aspect", item.grid[1] / item.grid[0]);
    const step = Math.ceil(most / 12); // so that the numbers of many heads do not run together
    const numbers = Array.from({ length: most }, (_, head) => (head % step ? "" : head));
    const header = ["layer", step > 1 ? "all" : "mean", ...numbers].map((textContent) =>
      make("span", { role: "columnheader", textContent }),
    );
    this.cells = item.layers.map(({ heads }, layer) =>
      [MEAN, ...heads.keys()].map((head) =>
        make(
          "div",
          {
            role: "gridcell",
            "data-layer": layer,
            "data-head": head,
            tabIndex: -1,
            "aria-selected": false,
            "aria-label": `layer ${item.layers[layer].name}, ${headName(head)}`,
          },
          make("canvas"),
        ),
      ),
    );
    const rows = this.cells.map((cells, layer) => {
      const name = make("span", { role: "rowheader", textContent: item.layers[layer].name });
      return make("div", { role: "row" }, name, ...cells);
    });
    this.element.replaceChildren(make("div", { role: "row" }, ...header), ...rows);
    this.selected = null;
    this.painted = null;
  }

  show({ item, answers, layer, head, scaleFor, look }) {
    this.build(item);
    this.chosen = [layer, head];
    this.select(this.cells[layer][head - MEAN]);
    const painted = [...answers, look.table, look.scale, look.top];
    if (isSame(painted, this.painted)) return; // only another cell was chosen
    this.painted = painted;
    this.cells.forEach((cells, l) =>
      cells.forEach((cell, column) => {
        const h = column + MEAN;
        const { token, heads, mean } = answers[l];
        const map = item.layers[l].mapOf(h === MEAN ? mean : heads[h], token);
        paintCells(cell.firstChild, map, scaleFor(map), look.table);
      }),
    );
  }

  /** Marks the cell that is chosen, the only one that the Tab key reaches. */
  select(cell) {
    for (const one of [this.selected, cell].filter(Boolean)) {
      one.setAttribute("aria-selected", one === cell);
      one.tabIndex = one === cell ? 0 : -1;
    }
    this.selected = cell;
  }

  choose(cell) {
    if (cell) this.onChoose(Number(cell.dataset.layer), Number(cell.dataset.head));
  }

  key(event) {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    const next = this.cells[this.chosen[0] + step[0]]?.[this.chosen[1] - MEAN + step[1]];
    this.choose(next);
    next?.focus();
  }
}

/** An element of SVG. */
function draw(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A measure of every head against its layer: dots for this query, rings for the mean of all. */
class Chart {
  constructor(element, onChoose) {
    this.element = element;
    element.addEventListener("click", (event) => {
      const dot = event.target.closest("[data-layer]");
      if (dot) onChoose(Number(dot.dataset.layer), Number(dot.dataset.head));
    });
  }

  /** points: {layer, head, here, everywhere}, `here` null where it means nothing. */
  show({ points, names, layer, head, title, most }) {
    const [width, height, left, bottom] = [520, 320, 34, 36];
    const x = (at) => left + ((at + 0.5) / names.length) * (width - left - 8);
    const y = (value) => height - bottom - Math.min(value / most, 1) * (height - bottom - 14);
    const svg = draw("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": title,
    });
    const band = x(1) - x(0);
    svg.append(
      draw("rect", {
        class: "layer",
        x: x(layer) - band / 2,
        width: band,
        y: y(most),
        height: y(0) - y(most),
      }),
    );
    for (const mark of ticks({ low: 0, top: most })) {
      svg.append(
        draw("line", { class: "rule", x1: left, x2: width - 8, y1: y(mark), y2: y(mark) }),
      );
      svg.append(draw("text", { class: "end", x: left - 6, y: y(mark) + 4 }, mark));
    }
    names.forEach((name, at) =>
      svg.append(draw("text", { x: x(at), y: height - bottom + 17 }, name)),
    );
    svg.append(draw("text", { x: (left + width) / 2, y: height - 3 }, "layer"));
    for (const point of points) {
      const chosen = point.layer === layer && point.head === head ? " chosen" : "";
      const where = { cx: x(point.layer), "data-layer": point.layer, "data-head": point.head };
      const ring = { ...where, cy: y(point.everywhere), r: 4.5, class: `everywhere${chosen}` };
      svg.append(draw("circle", ring));
      if (point.here === null) continue;
      const dot = draw("circle", {
        ...where,
        cy: y(point.here),
        r: chosen ? 6 : 4,
        class: `here${chosen}`,
      });
      dot.append(
        draw("title", {}, `layer ${names[point.layer]}, head ${point.head}: ${number(point.here)}`),
      );
      svg.append(dot);
    }
    this.element.replaceChildren(svg);
  }
}

/** Every method as a card with its map; then the options of the one that is chosen. */
class Methods {
  constructor(element, onChoose) {
    this.cards = element.querySelector(".cards");
    this.options = element.querySelector(".options");
    this.onChoose = onChoose;
  }

  show({ item, chosen, mapFor, scaleFor, look }) {
    const names = [...new Set(item.maps.map((map) => nameOf(map.method)))];
    const variants = [...new Set(item.maps.map((map) => map.method))];
    fill(
      this.cards,
      names.map((name) => {
        const pressed = name === nameOf(chosen.method);
        const method = pressed ? chosen.method : variants.find((one) => nameOf(one) === name);
        const map = mapFor(method);
        const canvas = drawSeen({ item, map, scale: scaleFor(map), look }, 192);
        const words = name.replace(/([a-z])([A-Z])/g, "$1\u200b$2"); // may break there
        const text = make("span", { textContent: words + baselineMark(map) });
        return this.button(method, pressed, canvas, text, ...badgeOf(map));
      }),
    );
    const same = variants.filter((method) => nameOf(method) === nameOf(chosen.method));
    this.options.hidden = same.length < 2;
    fill(
      this.options,
      same.map((method) => this.button(method, method === chosen.method, optionsOf(method))),
    );
  }

  button(method, pressed, ...children) {
    const onclick = () => this.onChoose(method);
    return make("button", { type: "button", "aria-pressed": pressed, onclick }, ...children);
  }
}

/** What the model sees of a photo, with its map, in a square of `side` pixels; no padding. */
function drawSeen(scene, side) {
  const { photo, box } = scene.item;
  const [left, top, right, bottom] = cutToPhoto(box);
  const [wide, high] = [(right - left) * photo.width, (bottom - top) * photo.height];
  const share = side / Math.max(wide, high);
  const canvas = make("canvas", {
    width: Math.round(wide * share),
    height: Math.round(high * share),
  });
  const [width, height] = [photo.width * share, photo.height * share];
  const context = canvas.getContext("2d");
  context.translate(-left * width, -top * height);
  drawPhoto(context, width, height, scene);
  return canvas;
}

/** Every gate of a network in its order: channels as a falling curve, places as a small map. */
class Gates {
  constructor(element, onChoose) {
    this.element = element;
    this.onChoose = onChoose;
  }

  show({ item, chosen, table }) {
    fill(
      this.element,
      item.gates.map((gate, at) => {
        const canvas = make("canvas", {
          className: gate.shape.length === 1 ? "channels" : "places",
        });
        const about = make("span", { className: "about", textContent: openness(gate) });
        const name = make("span", { className: "name", textContent: gate.name });
        const onclick = () => this.onChoose(at);
        return make(
          "button",
          { type: "button", "aria-pressed": at === chosen, onclick },
          canvas,
          name,
          about,
        );
      }),
    );
    const canvases = this.element.querySelectorAll("canvas");
    item.gates.forEach(({ values, shape }, at) => {
      if (shape.length === 1) paintChannels(canvases[at], values);
      else paintCells(canvases[at], { values, grid: shape }, { top: 1, low: 0, factor: 1 }, table);
    });
  }
}

/** Gates sorted from open to shut, as an area in the canvas's own colour. */
function paintChannels(canvas, values) {
  [canvas.width, canvas.height] = [240, 64];
  const context = canvas.getContext("2d");
  const sorted = Float32Array.from(values).sort().reverse();
  context.fillStyle = getComputedStyle(canvas).color;
  for (let x = 0; x < canvas.width; x++) {
    const open = sorted[Math.floor((x / canvas.width) * sorted.length)];
    context.fillRect(x, canvas.height * (1 - open), 1, canvas.height * open);
  }
}
