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

/** Whether two lists hold the same things in the same places. */
function isSame(list, other) {
  return list.length === other?.length && list.every((one, at) => one === other[at]);
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
/** How much more or less, in points: of 40 % and 30 %, 10 points. */
function changeOf(change) {
  const size = percent(Math.abs(change)).replace("%", "points");
  const words = `${change < 0 ? "\u2212" : "+"}${size}`;
  const textContent = Math.abs(change) < 5e-4 ? "" : words; // which would say 0.0 points
  return make("span", { className: change < 0 ? "change less" : "change", textContent });
}
/** The most probable class, beside the one before where something was changed: {text, turned}. */
function verdictOf([now, ...others]) {
  if (now?.before === undefined) return { text: "Predicted", turned: false };
  const was = others.reduce((best, one) => (one.before > best.before ? one : best), now);
  const turned = was !== now;
  const text = turned ? `It changed its mind: ${was.name} \u2192 ${now.name}` : `Still ${now.name}`;
  return { text, turned };
}

const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);
const nameOf = (method) => method.split("(", 1)[0];
const baselineMark = (map) => (map.baseline ? " (baseline)" : "");
const badgeOf = ({ passed, about }) =>
  passed ? [make("span", { className: "badge", textContent: "passed", title: about })] : [];
const optionsOf = (method) => method.slice(nameOf(method).length + 1, -1) || "default";

/** What an item is called: only what tells it from the others. */
function labelOf({ image, model }, items) {
  const one = (name) => new Set(items.map((item) => item[name])).size < 2;
  return one("model") ? image : one("image") ? model : `${image} \u00b7 ${model}`;
}

/** What to do until a place was asked, or why no place can be. */
function hintOf({ layers, noClick }, { hint }) {
  return hint ?? (layers.length || !noClick ? "" : `Nothing to click here. ${noClick}.`);
}

/** [name, value, more] of what one token gives to all; `known`: of that head over all queries. */
function attentionFacts(layer, token, held, row, known) {
  const place = (cell) => `row ${cell[0]}, column ${cell[1]}`;
  const here = layer.placeOf(token);
  const { values, factor } = layer.mapOf(row, token);
  const most = values.reduce((best, value, at) => (value > values[best] ? at : best), 0);
  const reach = layer.distance(row, token);
  const others = held.length && `and ${held.length} held, their mean`;
  return [
    ["from", here ? place(here) : layer.prefix[token], others],
    [
      "most",
      `${number(values[most] * factor)} ${UNIFORM} at ${place(layer.placeOf(most + layer.prefix.length))}`,
    ],
    [
      "entropy",
      `${layer.entropy(row).toFixed(2)} of ${Math.log2(layer.keys(token)).toFixed(2)} bits`,
      known && `all queries ${known.entropy.toFixed(2)}`,
    ],
    [
      "distance",
      reach === null || held.length ? "\u2013" : `${reach.toFixed(1)} patches`,
      known && `all queries ${known.distance.toFixed(1)}`,
    ],
  ];
}

/** [name, value, more] of the window that a token attends in; nothing where there are none. */
function windowFacts({ windows, grid, merged, tokens }, token, row) {
  if (!windows) return [];
  const times = (sides) => sides.join(" \u00d7 ");
  const neighbours = windows.neighbours(token);
  const onPhoto = [...neighbours].filter((one) => one < tokens);
  const masked = windows.area - neighbours.length;
  const padding = neighbours.length - onPhoto.length;
  const share = row.subarray(tokens).reduce((sum, weight) => sum + weight, 0);
  const rows = runs(onPhoto.map((one) => Math.floor(one / grid[1])));
  const columns = runs(onPhoto.map((one) => one % grid[1]));
  const facts = [
    ["grid", times(grid), merged > 1 ? `a token is ${times([merged, merged])} patches` : "a token is a patch"],
    [
      "window",
      `${times(windows.size)}, ${windows.shift.some(Boolean) ? `shifted by ${times(windows.shift)}` : "not shifted"}`,
      `rows ${rows}, columns ${columns}`,
    ],
  ];
  if (masked) facts.push(["masked", `${masked} of ${windows.area}`, "from across the edge of the photo"]);
  if (padding) facts.push(["padding", percent(share), `on ${padding} of ${windows.area}`]);
  return facts;
}

/** Whole numbers in words: "0\u20132, 7". */
function runs(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const starts = sorted.filter((one, at) => at === 0 || one !== sorted[at - 1] + 1);
  return starts
    .map((start) => {
      let end = start;
      while (sorted.includes(end + 1)) end++;
      return end === start ? `${start}` : `${start}\u2013${end}`;
    })
    .join(", ");
}

/** The same map in Python and on the command line; nothing for tokens that have no name there. */
function spelled(layer, token, head) {
  const { grid, prefix, windows } = layer;
  const [row, column] = layer.placeOf(token) ?? [];
  if (windows || (row === undefined && !(token === 0 && prefix[0] === "class token"))) return "";
  const share = (cell, cells) => ((cell + 0.5) / cells).toFixed(3);
  const query = row === undefined ? "'cls'" : `(${share(column, grid[1])}, ${share(row, grid[0])})`;
  return `QueryKey(query=${query}, layer=${layer.name}${head === MEAN ? "" : `, head=${head}`})`;
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
    ["most closed", order.slice(-5).reverse().join(", ")],
  ];
}

function openness({ values, shape }) {
  const average = values.reduce((sum, value) => sum + value, 0) / values.length;
  const what =
    shape.length === 1 ? `${values.length} channels` : `${shape[0]} \u00d7 ${shape[1]} places`;
  return `${what}, mean ${average.toFixed(2)}, ${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`;
}
