// What is said of what is shown, and the elements that say it.

const MEAN = -1; // the head number that stands for the mean of all heads

// What the arrow keys add to [row, column].
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** make("p", {className: "about", textContent: text}, child, ...): text is never read as HTML. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** New children in place of the old; the focus stays in its place among them. */
function fill(element, children) {
  const focused = [...element.children].findIndex((child) =>
    child.contains(document.activeElement),
  );
  element.replaceChildren(...children);
  const child = element.children[focused];
  (child?.querySelector("button") ?? child)?.focus();
}

const number = (value) => `${Number(value.toPrecision(3))}`.replace("-", "\u2212");
// Without a "-0.0", and with a space that does not break.
const percent = (share) =>
  `${(100 * share).toFixed(share < 0.0995 ? 1 : 0).replace(/^-(?=[0.]*$)/, "")}\u00a0%`;
const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);
const nameOf = (method) => method.split("(", 1)[0];
const baselineMark = (map) => (map.baseline ? " (baseline)" : "");
const optionsOf = (method) => method.slice(nameOf(method).length + 1, -1) || "default";

/** What an item is called: only what tells it from the others. */
function labelOf({ image, model }, items) {
  const one = (name) => new Set(items.map((item) => item[name])).size < 2;
  return one("model") ? image : one("image") ? model : `${image} \u00b7 ${model}`;
}

/** [name, value, more] of what one token gives to all; `known`: of that head over all queries. */
function attentionFacts(item, token, row, known) {
  const place = (cell) => `row ${cell[0]}, column ${cell[1]}`;
  const here = item.placeOf(token);
  const onPhoto = item.onPhoto(row);
  const most = onPhoto.reduce((best, value, at) => (value > onPhoto[best] ? at : best), 0);
  const reach = item.distance(row, token);
  return [
    ["from", here ? place(here) : item.prefix[token]],
    [
      "most",
      `${number(onPhoto[most] * onPhoto.length)} ${UNIFORM} at ${place(item.placeOf(most + item.prefix.length))}`,
    ],
    [
      "entropy",
      `${item.entropy(row).toFixed(2)} of ${Math.log2(item.tokens).toFixed(2)} bits`,
      known && `all queries ${known.entropy.toFixed(2)}`,
    ],
    [
      "distance",
      reach === null ? "\u2013" : `${reach.toFixed(1)} patches`,
      known && `all queries ${known.distance.toFixed(1)}`,
    ],
  ];
}

/** The same map in Python and on the command line; nothing for tokens that have no name there. */
function spelled(item, token, layer, head) {
  const [row, column] = item.placeOf(token) ?? [];
  if (row === undefined && !(token === 0 && item.prefix[0] === "class token")) return "";
  const share = (cell, cells) => ((cell + 0.5) / cells).toFixed(3);
  const query =
    row === undefined ? "'cls'" : `(${share(column, item.grid[1])}, ${share(row, item.grid[0])})`;
  return `QueryKey(query=${query}, layer=${layer}${head === MEAN ? "" : `, head=${head}`})`;
}

/** [name, value, more] of a method's map. */
function methodFacts(item, map) {
  const target = item.predictions.find((prediction) => prediction.target === map.target);
  return [
    ["class", map.target === null ? "the same for every class" : (target?.name ?? map.target)],
    ...(map.prefix_mass === null ? [] : [["off the photo", percent(map.prefix_mass)]]),
    ...Object.entries(map.scores).map(([name, score]) => [name, number(score)]),
  ];
}

/** [name, value, more] of a gate. */
function gateFacts(gate) {
  if (gate.shape.length > 1) return [["gate", openness(gate)]];
  const order = [...gate.values.keys()].sort((a, b) => gate.values[b] - gate.values[a]);
  return [
    ["gate", openness(gate)],
    ["most open", order.slice(0, 5).join(", ")],
    ["most shut", order.slice(-5).reverse().join(", ")],
  ];
}

function openness({ values, shape }) {
  const average = values.reduce((sum, value) => sum + value, 0) / values.length;
  const what =
    shape.length === 1 ? `${values.length} channels` : `${shape[0]} \u00d7 ${shape[1]} places`;
  return `${what}, mean ${average.toFixed(2)}, ${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`;
}
