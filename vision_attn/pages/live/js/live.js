// Where the page's items come from: a worker runs the networks on photos, as they are or covered.

const ROLLOUT =
  "How tokens mix: attention of all layers, one after the other. It is the same for every class.";
const CAM = "Channels of the last features, weighted by what they add to the class.";
const RECORDED = "It was computed in Python when the page was made, of the photo as it is.";
const PLAIN = { target: null, unit: "", factor: 1, prefix_mass: null, scores: {} }; // a map

/** The worker, by questions and answers. */
class Engine {
  constructor(script) {
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.worker = new Worker(url);
    this.waiting = new Map();
    this.asked = 0;
    this.worker.onmessage = ({ data: { id, result, error, point } }) => {
      const { done, fail, onPoint } = this.waiting.get(id);
      if (point) return onPoint(point);
      this.waiting.delete(id);
      if (error === undefined) done(result);
      else fail(new Error(error));
    };
    this.worker.onerror = (event) => {
      for (const { fail } of this.waiting.values())
        fail(new Error(event.message || "the worker could not start"));
    };
  }

  ask(kind, question, onPoint) {
    const id = ++this.asked;
    return new Promise((done, fail) => {
      this.waiting.set(id, { done, fail, onPoint });
      this.worker.postMessage({ id, kind, ...question });
    });
  }
}

/** What a brush has covered on one photo, stroke by stroke: cells of a board, {grid, box}. */
class Cover {
  cells = new Set();
  past = [];
  board = null; // that was painted on last

  /** The cells of another board whose middles are covered. */
  on(board) {
    if (!this.board || JSON.stringify(this.board) === JSON.stringify(board)) return this.cells;
    const found = new Set();
    for (let cell = 0; cell < board.grid[0] * board.grid[1]; cell++) {
      const place = [Math.floor(cell / board.grid[1]), cell % board.grid[1]];
      const there = cellAt(
        this.board.box,
        this.board.grid,
        centreOf({ ...board, seen: board.box }, place),
      );
      if (there && this.cells.has(there[0] * this.board.grid[1] + there[1])) found.add(cell);
    }
    return found;
  }

  /** Before a stroke on a board; strokes on another one can no longer be undone. */
  begin({ grid, box }) {
    const cells = this.on({ grid, box });
    if (cells !== this.cells) this.past = [];
    this.cells = new Set(cells);
    this.board = { grid, box };
    this.past.push(new Set(cells));
  }

  /** Drops the stroke just begun where it changed nothing. */
  end() {
    const before = this.past.at(-1);
    if (before?.size === this.cells.size && [...before].every((cell) => this.cells.has(cell)))
      this.past.pop();
  }

  undo() {
    this.cells = this.past.pop() ?? this.cells;
  }
}

/** One head of a run whose patches may be fewer: a row over all tokens of the whole photo. */
class LiveHead {
  constructor(factors, layer, keep) {
    Object.assign(this, { factors, layer, keep });
  }

  row(token) {
    if (!this.keep) return this.factors.row(token);
    const { prefix, tokens } = this.layer;
    const whole = new Float32Array(tokens);
    const patch = this.keep.indexOf(token - prefix.length);
    if (token >= prefix.length && patch < 0) return whole; // where no patch is left to ask
    const row = this.factors.row(token < prefix.length ? token : prefix.length + patch);
    whole.set(row.subarray(0, prefix.length));
    this.keep.forEach((one, at) => (whole[prefix.length + one] = row[prefix.length + at]));
    return whole;
  }
}

/** A photo on the page, decoded when it is first needed. pristine: the answers for it as it is. */
class LivePhoto {
  cover = new Cover();
  pristine = [];

  /** load: gives a promise of {id, shown, boxes}. maps: recorded ones, for each network. */
  constructor(name, load, maps) {
    Object.assign(this, { name, load, maps });
  }

  get loaded() {
    return (this.loading ??= this.load());
  }

  /** Forgets how it was seen. */
  again() {
    this.loading = null;
    this.pristine = [];
  }
}

class Live {
  /** items: descriptions, photo by photo and in it network by network. */
  constructor({ networks, photos }) {
    this.networks = networks;
    const text = (id) => document.getElementById(id).textContent;
    this.engine = new Engine(text("worker"));
    this.opened = this.engine.ask("open", {
      kernels: text("kernels"),
      networks: networks.map((one, at) => ({ ...one, weights: text(`weights-${at}`) })),
    });
    this.items = [];
    this.photos = [];
    this.answered = new Promise((done) => (this.onAnswer = done)); // for the first time
    this.count = 0; // of photos that the worker has got
    this.off = networks.map(() => new Set());
    this.tool = "ask";
    this.fill = "grey";
    this.brushSize = 0;
    this.shown = []; // by item: what its answer was for
    this.whole = false; // whether networks get all of a photo, squeezed, instead of its middle
    for (const { name, file, maps } of photos) {
      const blob = blobOf(file);
      this.show(name, () => this.load(blob), maps);
    }
    this.opened.then(
      (kind) => this.say(kind === "PlainKernels" ? SLOW : ""),
      (error) => this.say(`The network cannot run here: ${error.message}`),
    );
  }

  /** Has the worker decode a file: {id, shown, boxes}. */
  async load(file) {
    await this.opened;
    const id = ++this.count;
    const { whole } = this;
    return { id, ...(await this.engine.ask("photo", { photo: id, file, whole })) };
  }

  /** A photo among those to choose from, loaded once it is needed; gives its number. */
  show(name, load, maps = []) {
    const photo = this.photos.length;
    this.photos.push(new LivePhoto(name, load, maps));
    for (const [at, { model, warning, program, prefix, grid }] of this.networks.entries()) {
      const layers = program.ops
        .filter(([kind]) => kind === "attention")
        .map(() => ({ heads: [] }));
      const own = { method: layers.length ? "Rollout" : "GradCAM" };
      const tab = maps[at] && "methods"; // which opens at a map that can be trusted
      this.items.push({
        ...{ image: name, model, warning, prefix, grid, layers, tab },
        maps: [maps[at], own].filter(Boolean),
      });
    }
    return photo;
  }

  numbersOf(at) {
    const count = this.networks.length;
    return { photo: Math.floor(at / count), model: at % count };
  }

  /** What an item should show now, in a word. */
  wanted(at) {
    const { photo, model } = this.numbersOf(at);
    const cells = [...this.photos[photo].cover.cells].sort((a, b) => a - b);
    const fill = cells.length ? this.fillOf(model) : "";
    return `${this.whole} ${fill} ${cells} ${[...this.off[model]]}`;
  }

  /** Shows networks all of each photo, or its middle again. */
  see(whole) {
    this.whole = whole;
    for (const photo of this.photos) photo.again();
  }

  /** Tokens are dropped where there are some; other networks see grey. */
  fillOf(model) {
    return this.fill === "drop" && !this.networks[model].drops ? "grey" : this.fill;
  }

  async open(at) {
    const { photo, model } = this.numbersOf(at);
    const known = this.photos[photo];
    const word = this.wanted(at);
    const { id, shown, boxes } = await known.loaded;
    const nothing = { cells: [], fill: "grey" };
    const { asked } = this.networks[model];
    if (!known.pristine[model]) {
      const first = { photo: id, model, cover: nothing, off: [], targets: asked };
      const answer = await this.engine.ask("run", first);
      known.pristine[model] = { answer, chances: this.chancesOf(model, answer.logits) };
    }
    const { answer: before, chances } = known.pristine[model];
    const board = { grid: this.networks[model].grid, box: boxes[model] };
    const cover = { cells: [...known.cover.on(board)], fill: this.fillOf(model) };
    const off = [...this.off[model]];
    const targets = [...likeliest(chances), ...asked];
    const changed = cover.cells.length || off.length;
    const run = { photo: id, model, cover, off, targets };
    const answer = changed ? await this.engine.ask("run", run) : before;
    this.onAnswer();
    this.shown[at] = word;
    const box = boxes[model];
    return this.item(at, { answer, before: changed ? chances : null, cover, shown, box });
  }

  /** Probabilities as `explain` gives them: calibrated, where the network is. */
  chancesOf(model, logits) {
    return probabilitiesOf(logits, this.networks[model]);
  }

  /** An item as a view shows it. */
  item(at, { answer, before, cover, shown, box }) {
    const { photo, model } = this.numbersOf(at);
    const { classes, program, grid, how, asked, verdicts, passed } = this.networks[model];
    const { logits, keep, gates, rollout, cams } = answer;
    const item = { ...this.items[at], box, notes: [], noClick: "" };
    const about = (method, words) => ({
      ...{ method, about: `${words} ${verdicts[method]}`, passed: passed.includes(method) },
    });
    const chances = this.chancesOf(model, logits);
    item.unlike = unlike(Math.max(...chances), this.networks[model].threshold);
    const listed = [...likeliest(chances), ...asked, ...(before ? likeliest(before) : [])];
    const targets = [...new Set(listed)];
    item.predictions = targets.map((target) => ({
      target,
      name: classes[target] ?? `class ${target}`,
      probability: chances[target],
      ...(before ? { before: before[target] } : {}),
    }));
    const exists =
      keep && Uint8Array.from({ length: grid[0] * grid[1] }, (_, at) => Number(keep.includes(at)));
    item.layers = answer.layers.map((layer) => layerOf(layer, item, keep, exists));
    item.maps = cams.map((one) => ({ ...PLAIN, ...about("GradCAM", CAM), ...one }));
    if (rollout)
      item.maps.unshift({
        ...{ ...PLAIN, ...about("Rollout", ROLLOUT) },
        unit: UNIFORM,
        factor: keep ? keep.length : grid[0] * grid[1],
        values: rollout.values,
        grid,
        inside: exists,
        prefix_mass: program.layout.prefix ? rollout.prefixMass : null,
      });
    const recorded = this.whole ? null : this.photos[photo].maps[model];
    if (recorded)
      item.maps.unshift({ ...PLAIN, ...recorded, about: `${recorded.about} ${RECORDED}` });
    item.gates = gates.map((gate) => ({ ...gate, map: mapOfGate(gate, gate.where) }));
    item.photo = cover.cells.length ? drawCovered(shown, { box, grid, how, cover }) : shown;
    item.cells = { grid, box, seen: box };
    return item;
  }

  /** Runs again what is on the screen and no longer as wanted; one run at a time, the newest. */
  async refresh() {
    if (this.busy) return;
    this.busy = true;
    try {
      for (;;) {
        const stale = state.views.find(
          ({ item }) => items[item] && this.shown[item] !== this.wanted(item),
        );
        if (!stale) break;
        items[stale.item] = await this.open(stale.item);
        this.say("");
        change({});
      }
    } catch (error) {
      this.say(error.message);
    } finally {
      this.busy = false;
    }
  }

  say(text) {
    document.querySelector(".live .note").textContent = text;
  }
}

/** What to say of a photo whose surest class is less sure than 95 % of held-out photos' are. */
const unlike = (surest, threshold) =>
  threshold === null || surest >= threshold
    ? ""
    : `Unlike the images that the network knows: the most probable class has ${percent(surest)}, ` +
      `where 95% of held-out images have at least ${percent(threshold)}`;

const SLOW =
  "This browser has no WebAssembly with SIMD: networks run in plain JavaScript, several times slower.";

function layerOf({ name, heads, width, tokens, q, k, averages }, item, keep, exists) {
  const layer = new Layer({ name, averages }, item);
  const ones = new Float32Array(2 * tokens).fill(1);
  const size = tokens * width;
  layer.exists = exists;
  layer.heads = Array.from({ length: heads }, (_, head) => {
    const [from, to] = [head * size, (head + 1) * size];
    return new LiveHead(
      new Factors(ones, q.subarray(from, to), k.subarray(from, to), width),
      layer,
      keep,
    );
  });
  return layer;
}

/** A photo with its covered cells as the network gets them, or struck out where they are dropped. */
function drawCovered(shown, { box, grid, how, cover: { cells, fill } }) {
  const { width, height } = shown;
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(shown, 0, 0);
  const [left, top] = [box[0] * width, box[1] * height];
  const [wide, high] = [
    ((box[2] - box[0]) * width) / grid[1],
    ((box[3] - box[1]) * height) / grid[0],
  ];
  context.beginPath();
  for (const cell of cells) {
    const [row, column] = [Math.floor(cell / grid[1]), cell % grid[1]];
    context.rect(left + column * wide, top + row * high, wide, high);
  }
  context.clip();
  if (fill === "blur") {
    context.filter = `blur(${((box[2] - box[0]) * width * 5) / how.input[1]}px)`;
    context.drawImage(shown, 0, 0);
    return canvas;
  }
  const colour = fill === "drop" ? [24, 24, 28] : how.mean.map((one) => 255 * one);
  context.fillStyle = `rgb(${colour.map(Math.round).join(" ")})`;
  context.fillRect(0, 0, width, height);
  if (fill === "drop") {
    context.strokeStyle = "rgb(255 255 255 / 0.25)";
    context.lineWidth = Math.max(1, wide / 24);
    context.beginPath();
    for (let x = -height; x < width; x += Math.max(6, wide / 3)) {
      context.moveTo(x, height);
      context.lineTo(x + height, 0);
    }
    context.stroke();
  }
  return canvas;
}

/** A file from base64. */
function blobOf({ type, text }) {
  return new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], { type });
}

let live;
const openSource = (data) => (live = new Live(data));
