// What the pages of Learn compute and draw: attention on one sentence and one photo.
// The functions under `play` are the formulas of the pages; tests/browser compares them with torch.
(() => {
  "use strict";

  // ---------------------------------------------------------------- formulas, on plain arrays

  const sum = (x) => x.reduce((a, b) => a + b, 0);
  const mean = (x) => sum(x) / x.length;
  const dot = (a, b) => sum(a.map((x, i) => x * b[i]));
  const scaled = (x, by) => x.map((value) => value * by);
  const plus = (a, b) => a.map((x, i) => x + b[i]);
  const matVec = (matrix, x) => matrix.map((row) => dot(row, x));
  const transposed = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const meanOf = (rows) => scaled(rows.reduce(plus), 1 / rows.length);
  // sum_i weights_i rows_i
  const mixed = (weights, rows) => rows.map((row, i) => scaled(row, weights[i])).reduce(plus);

  function softmax(scores, temperature = 1) {
    const top = Math.max(...scores);
    const parts = scores.map((e) => Math.exp((e - top) / temperature));
    return scaled(parts, 1 / sum(parts));
  }

  function sparsemax(scores) {
    const sorted = [...scores].sort((a, b) => b - a);
    let [total, threshold] = [0, 0];
    sorted.forEach((value, i) => {
      total += value;
      if (1 + (i + 1) * value > total) threshold = (total - 1) / (i + 1);
    });
    return scores.map((e) => Math.max(0, e - threshold));
  }

  function entmax15(scores) {
    const half = scaled(scores, 0.5);
    const sorted = [...half].sort((a, b) => b - a);
    let [total, squares, threshold] = [0, 0, 0];
    sorted.forEach((value, i) => {
      total += value;
      squares += value * value;
      const [count, average] = [i + 1, total / (i + 1)];
      const spread = (1 - (squares - count * average * average)) / count;
      const candidate = average - Math.sqrt(Math.max(0, spread));
      if (candidate <= value) threshold = candidate;
    });
    return half.map((e) => Math.max(0, e - threshold) ** 2);
  }

  function normalise(name, scores, temperature = 1) {
    const cold = scaled(scores, 1 / temperature);
    const best = scores.indexOf(Math.max(...scores));
    return {
      Softmax: () => softmax(scores, temperature),
      Entmax15: () => entmax15(cold),
      Sparsemax: () => sparsemax(cold),
      Hard: () => scores.map((_, i) => Number(i === best)),
      Sigmoid: () => cold.map(sigmoid),
    }[name]();
  }

  // How well a key answers a query. `learned` holds the weights of the scores that have some.
  function score(name, q, keys, learned) {
    const each = (f) => keys.map(f);
    const length = (x) => Math.max(Math.sqrt(dot(x, x)), 1e-6);
    return {
      Dot: () => each((k) => dot(q, k)),
      ScaledDot: () => each((k) => dot(q, k) / Math.sqrt(q.length)),
      CosineSimilarity: () => each((k) => dot(q, k) / (length(q) * length(k))),
      General: () => each((k) => dot(matVec(transposed(learned.general), q), k)),
      Additive: () => {
        const { key, query, bias, energy } = learned.additive;
        const asked = plus(matVec(query, q), bias);
        return each((k) => dot(energy, plus(matVec(key, k), asked).map(Math.tanh)));
      },
      Location: () => matVec(learned.location, q).slice(0, keys.length),
      KeyOnly: () => each((k) => keyOnly(k, learned.keyOnly.energy)),
    }[name]();
  }

  const keyOnly = (key, energy) => dot(energy, key.map(Math.tanh));

  // The share of each word in the last state of h_t = keep h_(t-1) + (1 - keep) x_t.
  const lastState = (count, keep) =>
    Array.from({ length: count }, (_, i) => (1 - keep) * keep ** (count - 1 - i));

  // Softmax over the positions within `radius` of `centre`, then the Gaussian if there is a sigma.
  function windowed(scores, centre, radius, sigma = 0) {
    const away = scores.map((_, i) => i - centre);
    const seen = away.map((a) => Math.abs(a) <= radius);
    const weights = softmax(scores.map((e, i) => (seen[i] ? e : -1e30)));
    const gain = away.map((a) => (sigma ? Math.exp(-(a * a) / (2 * sigma * sigma)) : 1));
    return weights.map((w, i) => (seen[i] ? w * gain[i] : 0));
  }

  // Look `count` times; each context is added to the query, or takes its place.
  function hops(q, keys, values, count, update) {
    const looks = [];
    for (let i = 0; i < count; i++) {
      const weights = softmax(score("ScaledDot", q, keys));
      const context = mixed(weights, values);
      looks.push({ weights, context });
      q = update === "sum" ? plus(q, context) : context;
    }
    return looks;
  }

  // Weights inside each group, then over the groups, by keys alone.
  function hierarchy(groups, energy) {
    const over = (keys) => softmax(keys.map((k) => keyOnly(k, energy)));
    const inside = groups.map(over);
    return { inside, across: over(groups.map((group, g) => mixed(inside[g], group))) };
  }

  function coAttention(kind, queries, keys) {
    const pairs = queries.map((q) => score("ScaledDot", q, keys));
    if (kind === "MaxPoolCoAttention") {
      const affinity = pairs.map((row) => row.map(Math.tanh));
      const best = (rows) => softmax(rows.map((row) => Math.max(...row)));
      return [best(affinity), best(transposed(affinity))];
    }
    if (kind === "AttentionOverAttention") {
      const asked = meanOf(transposed(pairs).map((column) => softmax(column)));
      return [asked, mixed(asked, pairs.map((row) => softmax(row)))];
    }
    const over = (q, rows) => softmax(score("ScaledDot", q, rows));
    return [over(meanOf(keys), queries), over(meanOf(queries), keys)];
  }

  // Each row of x attends to all rows, or to those up to itself.
  function selfAttention(x, { causal = false, scale = true } = {}) {
    return x.map((q, i) => {
      const scores = score(scale ? "ScaledDot" : "Dot", q, x);
      return softmax(scores.map((e, j) => (causal && j > i ? -1e30 : e)));
    });
  }

  // Channels x (channel, place): a gate for each channel.
  const excite = ({ fc1, fc2 }, s) => matVec(fc2, matVec(fc1, s).map((h) => Math.max(0, h)));
  const squeezeExcite = (x, mlp) => excite(mlp, x.map(mean)).map(sigmoid);
  const channelGate = (x, mlp) =>
    plus(excite(mlp, x.map(mean)), excite(mlp, x.map((c) => Math.max(...c)))).map(sigmoid);

  // A gate for each place: a convolution over the mean and the maximum of the channels.
  function spatialGate(x, kernel, columns) {
    const places = transposed(x);
    const maps = [places.map(mean), places.map((p) => Math.max(...p))];
    const rows = places.length / columns;
    const reach = (kernel[0].length - 1) / 2;
    return places.map((_, place) => {
      const [y, x0] = [Math.floor(place / columns), place % columns];
      let total = 0;
      kernel.forEach((plane, map) =>
        plane.forEach((line, dy) =>
          line.forEach((weight, dx) => {
            const [v, u] = [y + dy - reach, x0 + dx - reach];
            if (v >= 0 && v < rows && u >= 0 && u < columns) total += weight * maps[map][v * columns + u];
          })));
      return sigmoid(total);
    });
  }

  // r <- alpha r + (1 - alpha) A' r, from the last layer down, through `count` layers.
  function rollout(seed, layers, alpha, count = layers.length) {
    let r = seed;
    for (const weights of layers.slice(layers.length - count).reverse())
      r = plus(scaled(r, alpha), scaled(mixed(r, weights), 1 - alpha));
    return r;
  }

  // Softmax with one more key, of this score, that stands for nothing.
  const withRegister = (scores, register) => softmax([...scores, register]);

  // Rows of bytes as rows that sum to 1.
  function rowsOf(text, columns) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return Array.from({ length: bytes.length / columns }, (_, i) => {
      const row = Array.from(bytes.subarray(i * columns, (i + 1) * columns));
      return scaled(row, 1 / sum(row));
    });
  }

  globalThis.play = {
    softmax, normalise, score, lastState, windowed, hops, hierarchy, coAttention, selfAttention,
    squeezeExcite, channelGate, spatialGate, rollout, withRegister, rowsOf, mixed, transposed,
  };
  if (typeof document === "undefined") return;

  // ---------------------------------------------------------------- parts of a page

  // Words in the language of the page: docs/words_LANGUAGE.json by the English ones, which may end in |CONTEXT.
  const say = (text, values = {}) =>
    (globalThis.words?.[text] ?? text.split("|")[0]).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const feature = (name) => say(`${name}|feature`);

  let serial = 0;
  const digits = (value) => value.toFixed(2);

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function drawn(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // Labels with bars, each as long as its value beside `most`.
  function bars(title, labels, values, most = 1) {
    const list = make("ol", { class: "bars" });
    labels.forEach((label, i) => {
      const share = Math.max(0, Math.min(1, values[i] / most));
      const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("span"));
      bar.firstChild.style.width = `${100 * share}%`;
      list.append(make("li", {}, make("span", { class: "label" }, label), bar,
        make("span", { class: "number" }, digits(values[i]))));
    });
    return make("div", { class: "chart" }, make("p", { class: "title" }, title), list);
  }

  // The photo under a grid of cells: those with little weight are dark. pick: called with a cell.
  class Photo {
    constructor(rows, columns, label, pick) {
      Object.assign(this, { rows, columns, label, at: -1 });
      this.element = make(pick ? "button" : "div", { class: "photo", ...(pick ? { type: "button" } : { role: "img" }) });
      this.svg = drawn("svg", { viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" });
      this.cells = Array.from({ length: rows * columns }, (_, i) =>
        drawn("rect", { x: i % columns, y: Math.floor(i / columns), width: 1.01, height: 1.01 }));
      this.mark = drawn("rect", { class: "mark", width: 1, height: 1, visibility: "hidden" });
      this.svg.append(...this.cells, this.mark);
      this.element.append(make("img", { src: story.photo, alt: "" }), this.svg);
      this.named();
      if (pick) this.picks(pick);
    }

    named() {
      const [row, column] = [Math.floor(this.at / this.columns) + 1, (this.at % this.columns) + 1];
      this.element.setAttribute("aria-label", this.label + (this.at < 0 ? "" : say(" Row {row}, column {column}.", { row, column })));
    }

    picks(pick) {
      this.element.addEventListener("click", (event) => {
        if (event.detail === 0) return pick(Math.max(0, this.at)); // Enter or space
        const box = this.element.getBoundingClientRect();
        const place = (start, size, count) => Math.max(0, Math.min(count - 1, Math.floor((start / size) * count)));
        const row = place(event.clientY - box.top, box.height, this.rows);
        pick(row * this.columns + place(event.clientX - box.left, box.width, this.columns));
      });
      this.element.addEventListener("keydown", (event) => {
        const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
        const move = moves[event.key];
        if (!move) return;
        event.preventDefault();
        const at = Math.max(0, this.at);
        const row = Math.max(0, Math.min(this.rows - 1, Math.floor(at / this.columns) + move[0]));
        const column = Math.max(0, Math.min(this.columns - 1, (at % this.columns) + move[1]));
        this.moved ? this.moved(row * this.columns + column) : pick(row * this.columns + column);
      });
    }

    marked(at) {
      this.at = at;
      this.mark.setAttribute("x", at % this.columns);
      this.mark.setAttribute("y", Math.floor(at / this.columns));
      this.mark.setAttribute("visibility", "visible");
      this.named();
    }

    paint(values) {
      const most = Math.max(...values, 1e-12);
      this.cells.forEach((cell, i) => cell.setAttribute("fill-opacity", (0.8 * (1 - Math.max(0, values[i]) / most)).toFixed(3)));
    }

    cover(hidden) {
      this.cells.forEach((cell, i) => {
        cell.setAttribute("class", "cover");
        cell.setAttribute("fill-opacity", Number(hidden.has(i)));
      });
    }
  }

  // One thing to play with: controls above, drawings below, and a sentence that says what is seen.
  class Board {
    constructor(root) {
      this.state = {};
      this.controls = make("div", { class: "controls" });
      this.out = make("div", { class: "drawings" });
      this.said = make("p", { class: "said", role: "status" });
      root.replaceChildren(this.controls, this.out, this.said);
    }

    set(name, value) {
      this.state[name] = value;
      this.draw?.();
    }

    slider(name, label, { min, max, step, value, show = String }) {
      const id = `play-${serial++}`;
      const input = make("input", { type: "range", id, name, min, max, step, value });
      const shown = make("span", { class: "value" });
      const write = (number) => {
        shown.textContent = show(number);
        input.setAttribute("aria-valuetext", show(number));
      };
      input.addEventListener("input", () => {
        write(Number(input.value));
        this.set(name, Number(input.value));
      });
      this.state[name] = value;
      write(value);
      this.controls.append(make("div", { class: "slider" }, make("label", { for: id }, label), input, shown));
      return (number) => {
        input.value = number;
        write(number);
        this.set(name, number);
      };
    }

    choice(name, label, options, value = options[0], show = String) {
      const group = make("div", { class: "choice", role: "group", "aria-label": label }, make("span", { class: "label" }, label));
      const buttons = options.map((option) => {
        const button = make("button", { type: "button", value: option }, show(option));
        button.addEventListener("click", () => choose(option));
        return button;
      });
      const choose = (option) => {
        for (const button of buttons) button.setAttribute("aria-pressed", button.value === option);
        this.set(name, option);
      };
      group.append(...buttons);
      this.controls.append(group);
      choose(value);
    }

    check(name, label, value) {
      const input = make("input", { type: "checkbox", name });
      input.checked = value;
      this.state[name] = value;
      input.addEventListener("change", () => this.set(name, input.checked));
      this.controls.append(make("label", { class: "check" }, input, label));
    }

    start(draw) {
      this.draw = () => draw(this.state);
      this.draw();
    }
  }

  // ---------------------------------------------------------------- what can be played with

  const vectorOf = (word) => story.vectors[story.words.indexOf(word)];
  const largest = (values) => values.indexOf(Math.max(...values));
  const channels = () => transposed(story.patches).slice(0, 3);

  const widgets = {
    additive(board) {
      board.choice("written", say("Write"), story.french, "église");
      board.slider("keep", say("Kept at each step"), { min: 0, max: 0.9, step: 0.1, value: 0.5, show: (v) => v.toFixed(1) });
      board.start(({ written, keep }) => {
        const meaning = story.meanings[story.french.indexOf(written)];
        const weights = softmax(score("Additive", story.vectors[meaning], story.words.map(vectorOf), story));
        const held = lastState(story.words.length, keep);
        board.out.replaceChildren(
          bars(say("Share in the last state"), story.words, held), bars(say("Attention while writing “{written}”", { written }), story.words, weights));
        const word = story.words[meaning];
        board.said.textContent = say("“{written}” comes from “{word}”: attention gives it {weight}, the last state holds {held} of it, whatever is written.",
          { written, word, weight: digits(weights[meaning]), held: digits(held[meaning]) });
      });
    },

    scores(board) {
      board.choice("kind", say("Score"), ["Dot", "ScaledDot", "CosineSimilarity", "General", "Additive", "Location", "KeyOnly"]);
      board.choice("word", say("Query"), story.words, "church");
      board.slider("length", say("Query times"), { min: 0.5, max: 3, step: 0.5, value: 1, show: (v) => v.toFixed(1) });
      board.start(({ kind, word, length }) => {
        const query = scaled(vectorOf(word), length);
        const learned = { ...story, keyOnly: { energy: [1, 1, 1, 2] } };
        const scores = score(kind, query, story.vectors, learned);
        const weights = softmax(scores);
        board.out.replaceChildren(
          bars(say("{kind} scores", { kind }), story.words, scores, Math.max(...scores.map(Math.abs), 1)), bars(say("Weights"), story.words, weights));
        board.said.textContent = say("q = ({query}). Most weight: “{word}”, {weight}.",
          { query: query.join(", "), word: story.words[largest(weights)], weight: digits(Math.max(...weights)) });
      });
    },

    window(board) {
      board.choice("kind", say("Window"), ["Global", "LocalMonotonic", "LocalPredictive"], "LocalPredictive");
      board.slider("place", say("Place p"), { min: 1, max: 6, step: 0.1, value: 3, show: (v) => v.toFixed(1) });
      let sigma;
      board.slider("radius", "D", { min: 1, max: 5, step: 1, value: 2 });
      sigma = board.slider("sigma", "σ", { min: 0.25, max: 4, step: 0.25, value: 1, show: (v) => v.toFixed(2) });
      let before = 2;
      board.start(({ kind, place, radius }) => {
        if (radius !== before) {
          before = radius;
          return sigma(radius / 2);
        }
        const centre = kind === "LocalMonotonic" ? Math.round(place) - 1 : place - 1;
        const scores = score("ScaledDot", [1, 1, 1, 0], story.vectors);
        const weights = kind === "Global" ? softmax(scores)
          : windowed(scores, centre, radius, kind === "LocalPredictive" ? board.state.sigma : 0);
        board.out.replaceChildren(bars(say("Scores"), story.words, scores, 3), bars(say("Weights"), story.words, weights));
        board.said.textContent = say("{seen} of 6 words are seen; the weights sum to {total}.",
          { seen: weights.filter((w) => w > 0).length, total: digits(sum(weights)) });
      });
    },

    normaliser(board) {
      board.choice("word", say("Word"), story.words, "church");
      board.choice("kind", say("Normaliser"), ["Softmax", "Entmax15", "Sparsemax", "Hard", "Sigmoid"]);
      board.slider("temperature", say("Temperature T"), { min: 0.5, max: 8, step: 0.5, value: 1, show: (v) => v.toFixed(1) });
      const photo = new Photo(story.side, story.side, say("The photo under the weights of its patches."));
      board.start(({ word, kind, temperature }) => {
        const over = (keys) => normalise(kind, score("ScaledDot", vectorOf(word), keys), temperature);
        const [words, places] = [over(story.vectors), over(story.patches)];
        photo.paint(places);
        board.out.replaceChildren(bars(say("“{word}” asks the sentence", { word }), story.words, words), photo.element);
        const zero = places.filter((w) => w === 0).length;
        board.said.textContent = say("“{word}” asks 64 patches: {zero} have a weight of exactly 0, the largest is {most}, the sum {total}.",
          { word, zero, most: digits(Math.max(...places)), total: digits(sum(places)) });
      });
    },

    hops(board) {
      board.slider("count", say("Looks"), { min: 1, max: 3, step: 1, value: 1 });
      board.choice("update", say("Next query"), ["context", "sum"], "context", (name) => say(`${name}|query`));
      board.start(({ count, update }) => {
        const looks = hops(vectorOf("church"), story.factKeys, story.factValues, count, update);
        board.out.replaceChildren(...looks.map((look, i) => bars(say("Look {count}", { count: i + 1 }), story.facts.map((fact) => say(fact)), look.weights)));
        const context = looks[count - 1].context;
        board.said.textContent = say("After look {count} the context is ({context}), nearest to “{word}”.", {
          count, context: context.map((x) => x.toFixed(1)).join(", "),
          word: story.words[largest(score("CosineSimilarity", context, story.vectors))] });
      });
    },

    hierarchy(board) {
      board.choice("feature", say("What counts"), story.features, "stone", feature);
      board.slider("strength", say("How much"), { min: -4, max: 4, step: 1, value: 2 });
      board.start(({ feature, strength }) => {
        const energy = story.features.map((name) => (name === feature ? strength : 0));
        const groups = [0, 2, 4].map((i) => story.vectors.slice(i, i + 2));
        const { inside, across } = hierarchy(groups, energy);
        const phrases = [0, 2, 4].map((i) => story.words.slice(i, i + 2).join(" "));
        board.out.replaceChildren(
          bars(say("Words in their phrase"), story.words, inside.flat()), bars(say("Phrases in the text"), phrases, across));
        board.said.textContent = say("Most weight: “{phrase}”, {weight}. No query was needed.",
          { phrase: phrases[largest(across)], weight: digits(Math.max(...across)) });
      });
    },

    coattention(board) {
      board.choice("kind", say("Kind"), ["MaxPoolCoAttention", "AttentionOverAttention", "InteractiveAttention"]);
      const words = make("div", { class: "choice", role: "group", "aria-label": say("Words that are read") }, make("span", { class: "label" }, say("Words")));
      const on = new Set(["old", "church"]);
      for (const word of story.words) {
        const button = make("button", { type: "button", "aria-pressed": on.has(word) }, word);
        button.addEventListener("click", () => {
          if (on.has(word) && on.size > 1) on.delete(word);
          else on.add(word);
          button.setAttribute("aria-pressed", on.has(word));
          board.draw();
        });
        words.append(button);
      }
      board.controls.append(words);
      const photo = new Photo(story.side, story.side, say("The photo under the weights of its patches."));
      board.start(({ kind }) => {
        const read = story.words.filter((word) => on.has(word));
        const [asked, places] = coAttention(kind, read.map(vectorOf), story.patches);
        photo.paint(places);
        board.out.replaceChildren(bars(say("Weights of the words"), read, asked), photo.element);
        board.said.textContent = say("Most weight: “{word}” among the words, and row {row}, column {column} of the photo.", {
          word: read[largest(asked)], row: Math.floor(largest(places) / story.side) + 1, column: (largest(places) % story.side) + 1 });
      });
    },

    matrix(board) {
      board.check("scale", say("divide by √d"), true);
      board.check("causal", say("hide what is not yet written"), false);
      board.start(({ scale, causal }) => {
        const rows = selfAttention(story.vectors, { scale, causal });
        const head = make("tr", {}, make("td"), ...story.words.map((w) => make("th", { scope: "col" }, w)));
        const body = rows.map((row, i) => make("tr", {}, make("th", { scope: "row" }, story.words[i]),
          ...row.map((w) => {
            const cell = make("td", { class: w > 0.5 ? "high" : "" }, digits(w));
            cell.style.setProperty("--share", w.toFixed(3));
            return cell;
          })));
        board.out.replaceChildren(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("Weights") }, make("table", { class: "heat" }, head, ...body)));
        board.said.textContent = say("“church” gives “old” {old} and itself {itself}. Each row sums to 1.",
          { old: digits(rows[1][0]), itself: digits(rows[1][1]) });
      });
    },

    selfattention(board) {
      const [rows, columns] = story.grid;
      const layers = story.layers.map((text) => rowsOf(text, rows * columns));
      board.slider("layer", say("Layer"), { min: 1, max: layers.length, step: 1, value: 2 });
      const photo = new Photo(rows, columns, say("Photo: click a place, or move by the arrow keys."), (at) => board.set("at", at));
      board.state.at = 2 * columns + 2;
      board.out.append(photo.element);
      board.start(({ layer, at }) => {
        const weights = layers[layer - 1][at];
        photo.paint(weights);
        photo.marked(at);
        const order = [...weights].sort((a, b) => b - a);
        board.said.textContent = say("Layer {layer}: the ten places with most weight hold {held} of it, the place itself {itself}.",
          { layer, held: digits(sum(order.slice(0, 10))), itself: digits(weights[at]) });
      });
    },

    heads(board) {
      const [rows, columns] = story.grid;
      const heads = story.heads.map((text) => rowsOf(text, rows * columns));
      const on = new Set(heads.keys());
      const small = heads.map((_, i) => {
        const name = say("Head {count}", { count: i + 1 });
        const photo = new Photo(rows, columns, name);
        const button = make("button", { type: "button", class: "thumb", "aria-pressed": "true", "aria-label": name }, photo.element, name);
        photo.element.removeAttribute("role");
        photo.element.removeAttribute("aria-label");
        photo.element.setAttribute("aria-hidden", "true");
        button.addEventListener("click", () => {
          if (on.has(i) && on.size > 1) on.delete(i);
          else on.add(i);
          button.setAttribute("aria-pressed", on.has(i));
          board.draw();
        });
        return { photo, button };
      });
      const photo = new Photo(rows, columns, say("Photo: click a place, or move by the arrow keys."), (at) => board.set("at", at));
      board.state.at = 2 * columns + 2;
      board.out.append(photo.element, make("div", { class: "thumbs" }, ...small.map((one) => one.button)));
      board.start(({ at }) => {
        small.forEach((one, i) => {
          one.photo.paint(heads[i][at]);
          one.photo.marked(at);
        });
        photo.paint(meanOf([...on].map((i) => heads[i][at])));
        photo.marked(at);
        const top = [...on].map((i) => largest(heads[i][at]));
        const places = new Set(top).size;
        board.said.textContent = places === 1
          ? say("{on} of {all} heads on. They look most at 1 different place.", { on: on.size, all: heads.length })
          : say("{on} of {all} heads on. They look most at {places} different places.", { on: on.size, all: heads.length, places });
      });
    },

    gates(board) {
      board.choice("kind", say("Gate"), ["SqueezeExcite", "ChannelGate", "SpatialGate"]);
      board.choice("reduction", say("Squeeze ratio"), Object.keys(story.squeeze));
      const hidden = new Set();
      const photo = new Photo(story.side, story.side, say("What passes the gate. Click a patch to cover it."), (at) => {
        hidden.has(at) ? hidden.delete(at) : hidden.add(at);
        photo.marked(at);
        board.draw();
      });
      photo.moved = (at) => photo.marked(at);
      const names = story.features.slice(0, 3).map(feature);
      board.start(({ kind, reduction }) => {
        const x = channels().map((channel) => channel.map((value, i) => (hidden.has(i) ? 0 : value)));
        const mlp = story.squeeze[reduction];
        const places = kind === "SpatialGate" ? spatialGate(x, story.spatial, story.side) : null;
        const gate = places ? [1, 1, 1] : kind === "ChannelGate" ? channelGate(x, mlp) : squeezeExcite(x, mlp);
        const passed = transposed(x).map((values, i) => dot(values, gate) * (places ? places[i] : 1));
        photo.paint(passed);
        board.out.replaceChildren(
          make("div", {}, bars(say("Mean of each channel"), names, x.map(mean), 3), bars(say("Its gate"), names, gate)), photo.element);
        board.said.textContent = places
          ? say("The gates of places lie between {least} and {most}; all channels pass.", { least: digits(Math.min(...places)), most: digits(Math.max(...places)) })
          : say("Most open: {name}, {gate}; numbers between squeeze and gate: {count}.",
            { name: names[largest(gate)], gate: digits(Math.max(...gate)), count: mlp.fc1.length });
      });
    },

    patches(board) {
      board.choice("size", say("Patch"), ["80", "40", "20", "16", "10"], "20");
      board.start(({ size }) => {
        const side = 160 / Number(size);
        const photo = new Photo(side, side, say("The photo cut into {side} by {side} patches.", { side }));
        photo.paint(photo.cells.map(() => 1));
        photo.element.classList.add("lines");
        const tokens = side * side;
        board.out.replaceChildren(photo.element, make("dl", { class: "facts" },
          make("dt", {}, say("tokens")), make("dd", {}, tokens.toLocaleString("en")),
          make("dt", {}, say("numbers in a token")), make("dd", {}, (size * size * 3).toLocaleString("en")),
          make("dt", {}, say("weights a head")), make("dd", {}, (tokens * tokens).toLocaleString("en"))));
        board.said.textContent = say("{tokens} tokens ask {tokens} tokens. Half the patch size: 4 times the tokens, 16 times the weights.", { tokens });
      });
    },

    rollout(board) {
      const [rows, columns] = story.grid;
      const layers = story.layers.map((text) => rowsOf(text, rows * columns));
      const [seed] = rowsOf(story.readout, rows * columns);
      board.slider("alpha", "α", { min: 0, max: 1, step: 0.05, value: 0.5, show: digits });
      board.slider("count", say("Layers followed"), { min: 0, max: layers.length, step: 1, value: layers.length });
      const photo = new Photo(rows, columns, say("The photo under the rollout."));
      board.out.append(photo.element);
      board.start(({ alpha, count }) => {
        const r = rollout(seed, layers, alpha, count);
        photo.paint(r);
        const order = [...r].sort((a, b) => b - a);
        board.said.textContent = say("α = {alpha}, {count} layers: the ten brightest of {all} places hold {held}. The sum is {total}.",
          { alpha: digits(alpha), count, all: r.length, held: digits(sum(order.slice(0, 10))), total: digits(sum(r)) });
      });
    },

    sinks(board) {
      board.choice("query", say("Query"), [...story.words, ", (nothing)"], ", (nothing)", (name) => (vectorOf(name) ? name : say(name)));
      board.check("on", say("a register"), false);
      board.slider("register", say("Its score"), { min: -2, max: 5, step: 1, value: 3 });
      board.start(({ query, on, register }) => {
        const scores = score("ScaledDot", vectorOf(query) ?? [0, 0, 0, 0], story.vectors);
        const weights = on ? withRegister(scores, register) : softmax(scores);
        board.out.replaceChildren(bars(say("Weights"), on ? [...story.words, say("register")] : story.words, weights));
        board.said.textContent = on
          ? say("The register takes {taken}; the words share {left}.", { taken: digits(weights[6]), left: digits(1 - weights[6]) })
          : say("The weights sum to 1, even if no key answers the query: the largest is {most}.", { most: digits(Math.max(...weights)) });
      });
    },

    lies(board) {
      const [rows, columns] = story.grid;
      const steps = story.maps[0].shares.length - 1;
      const each = (rows * columns) / steps;
      const names = story.maps.map((_, i) => "ABCD"[i]);
      board.choice("map", say("Cover by map"), names);
      const move = board.slider("step", say("Covered"), { min: 0, max: steps, step: 1, value: 0, show: (s) => `${Math.round((100 * s) / steps)} %` });
      const button = make("button", { type: "button" }, say("Cover, step by step"));
      let timer = 0;
      button.addEventListener("click", () => {
        clearInterval(timer);
        if (matchMedia("(prefers-reduced-motion: reduce)").matches) return move(steps / 2 | 0);
        move(0);
        timer = setInterval(() => (board.state.step < (steps / 2 | 0) ? move(board.state.step + 1) : clearInterval(timer)), 350);
      });
      board.controls.append(button);
      const maps = story.maps.map((map, i) => {
        const photo = new Photo(rows, columns, say("Map {name} over the photo.", { name: names[i] }));
        photo.paint(map.values);
        return make("figure", {}, photo.element, make("figcaption", {}, names[i]));
      });
      const photo = new Photo(rows, columns, say("The photo with its covered cells."));
      const reached = story.maps.map(() => 0);
      const right = make("div", {});
      board.out.append(make("div", { class: "four" }, ...maps), photo.element, right);
      board.start(({ map, step }) => {
        const at = names.indexOf(map);
        reached[at] = Math.max(reached[at], step);
        photo.cover(new Set(story.maps[at].order.slice(0, Math.round(step * each))));
        right.replaceChildren(bars(say("“church” is left with"), names.map((name) => say("map {name}", { name })), story.maps.map((m) => m.shares[step])));
        const done = step >= 3;
        right.firstChild.classList.toggle("veiled", !done);
        board.said.textContent = say("Map {map}, {covered} of {all} cells covered: the network says “church” with {share}.",
          { map, covered: Math.round(step * each), all: rows * columns, share: digits(story.maps[at].shares[step]) });
      });
    },
  };

  // A question with answers to choose from; the right one's number is in data-right.
  function ask(root) {
    const answers = [...root.querySelectorAll("li")];
    answers.forEach((answer, i) => {
      const right = i + 1 === Number(root.dataset.right);
      const button = make("button", { type: "button" }, ...answer.childNodes);
      const verdict = make("span", { role: "status" });
      answer.replaceChildren(button, verdict);
      button.addEventListener("click", () => {
        button.classList.add(right ? "right" : "wrong");
        verdict.textContent = right ? say("Yes.") : say("Not this one.");
        if (right) root.querySelector("details").open = true;
      });
    });
  }

  for (const root of document.querySelectorAll("[data-play]")) {
    const board = new Board(root);
    widgets[root.dataset.play](board);
    root.dataset.ready = "";
  }
  document.querySelectorAll(".ask[data-right]").forEach(ask);
})();
