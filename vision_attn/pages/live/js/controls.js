// The page's own controls: photos that come in, the brush, heads that are switched off.

const panel = document.querySelector(".live");
const part = (name) => panel.querySelector(`[name=${name}]`);

/** The photo of the first view, and its number. */
function photoNow() {
  const { photo, model } = live.numbersOf(state.views[0].item);
  return { ...live.photos[photo], photo, model };
}

/** The cells of the first view's network on its photo. */
const boardNow = () => items[state.views[0].item].cells;

/** Shows another photo in every view, by the network that the view shows. */
function showPhoto(photo) {
  const count = live.networks.length;
  change({
    views: state.views.map((view) => ({ ...view, item: photo * count + (view.item % count) })),
  });
}

async function addFiles(files) {
  const images = [...files].filter(({ type }) => type.startsWith("image/"));
  if (!images.length) {
    live.say("That is not an image: expected a PNG, JPEG or WebP file.");
    return;
  }
  live.say("");
  for (const file of images) {
    const name = file.name || "pasted";
    try {
      const loaded = await live.load(file);
      const photo = live.show(name, () => live.load(file));
      live.photos[photo].loading = Promise.resolve(loaded);
      showPhoto(photo);
      showStrip();
    } catch {
      live.say(
        `${name} cannot be read: it is damaged, or this browser does not know its format.`,
      );
    }
  }
}

/** A button for every photo that has none yet; its picture comes once a first answer is there. */
async function showStrip() {
  const strip = panel.querySelector(".photos");
  const fresh = live.photos.slice(strip.children.length).map(({ name }, at) => {
    const photo = strip.children.length + at;
    const onclick = () => showPhoto(photo);
    const words = { type: "button", "aria-label": name, title: name, "data-photo": photo };
    return make("button", { ...words, onclick }, make("canvas", { width: 112, height: 112 }));
  });
  strip.append(...fresh);
  showControls();
  await live.answered;
  for (const button of fresh) {
    const { shown } = await live.photos[button.dataset.photo].loaded;
    const side = Math.min(shown.width, shown.height);
    const [left, top] = [(shown.width - side) / 2, (shown.height - side) / 2];
    const context = button.firstChild.getContext("2d");
    context.drawImage(shown, left, top, side, side, 0, 0, 112, 112);
  }
}

/** What the controls say, from the state. */
function showControls() {
  const { photo, model, cover } = photoNow();
  for (const button of panel.querySelectorAll("[data-photo]"))
    button.setAttribute("aria-pressed", Number(button.dataset.photo) === photo);
  for (const tool of ["ask", "cover", "uncover"])
    part(tool).setAttribute("aria-pressed", live.tool === tool);
  part("undo").disabled = !cover.past.length;
  const off = live.off[model];
  part("clear").disabled = !cover.cells.size && !off.size;
  const { layer, head, tab, item } = state.views[0];
  const { layers } = live.items[item];
  if (!layers.length && live.tool === "ask") setTool("cover"); // nothing there to ask
  part("ask").hidden = !layers.length;
  part("hold").hidden = !layers.length;
  part("hold").setAttribute("aria-pressed", Boolean(state.holds));
  const at = Math.min(layer, layers.length - 1);
  part("ablate").hidden = !layers.length;
  part("ablate").disabled = head === MEAN || (views[0]?.tab ?? tab) !== "attention";
  part("ablate").setAttribute("aria-pressed", off.has(`${at}.${head}`));
  part("ablate").title = head === MEAN ? "Choose a head among the small maps first" : "";
  part("ablate").textContent =
    head === MEAN
      ? "Switch a head off"
      : `Layer ${at}, head ${head}: ${off.has(`${at}.${head}`) ? "off" : "on"}`;
  const { size } = cover.cells;
  const share = size ? `${size} ${size > 1 ? "cells" : "cell"} covered` : "";
  const heads = off.size ? `heads off: ${[...off].sort().join(", ")}` : "";
  panel.querySelector(".facts").textContent = [share, heads].filter(Boolean).join(" \u00b7 ");
}

/** After the cover or the heads changed. */
function changed() {
  showControls();
  live.refresh();
}

/** The brush in the hand, or none. */
function setTool(tool) {
  live.tool = tool;
  const brush = tool === "ask" ? undefined : { begin: beginStroke, paint, end: endStroke };
  change({ brush });
  showControls();
}

/** A frame around the cells that the brush would cover, where the pointer is. */
class BrushMark {
  constructor(view) {
    this.view = view;
    this.element = make("i", { className: "brush", hidden: true });
    const stage = view.find(".stage");
    stage.append(this.element);
    stage.addEventListener("pointermove", (event) => this.show(event));
    stage.addEventListener("pointerleave", () => (this.element.hidden = true));
  }

  show(event) {
    const { item, stage } = this.view;
    const { box, grid } = item.cells;
    const cell = live.tool !== "ask" && cellAt(box, grid, stage.pointOf(event));
    this.element.hidden = !cell || event.pointerType === "touch";
    if (!cell) return;
    const reach = live.brushSize;
    const [wide, high] = [(box[2] - box[0]) / grid[1], (box[3] - box[1]) / grid[0]];
    const sides = {
      left: box[0] + (cell[1] - reach) * wide,
      top: box[1] + (cell[0] - reach) * high,
      width: (2 * reach + 1) * wide,
      height: (2 * reach + 1) * high,
    };
    for (const [side, share] of Object.entries(sides))
      this.element.style[side] = `${100 * share}%`;
  }
}

let lastPoint = null; // of the stroke

function beginStroke() {
  lastPoint = null;
  photoNow().cover.begin(boardNow());
}

const endStroke = () => {
  photoNow().cover.end();
  changed();
};

/** Covers, or uncovers, what lies between the last point of the stroke and this one. */
function paint(point) {
  const from = lastPoint ?? point;
  const steps = 1 + Math.ceil(100 * Math.hypot(point[0] - from[0], point[1] - from[1]));
  for (let step = 1; step <= steps; step++)
    dab(point.map((at, axis) => from[axis] + ((at - from[axis]) * step) / steps));
  lastPoint = point;
  changed();
}

/** Covers, or uncovers, the cells around a point (x, y) in 0..1 of the photo. */
function dab(point) {
  const { cover } = photoNow();
  const { box, grid } = boardNow();
  const cell = cellAt(box, grid, point);
  if (!cell) return;
  const reach = live.brushSize;
  for (let row = cell[0] - reach; row <= cell[0] + reach; row++)
    for (let column = cell[1] - reach; column <= cell[1] + reach; column++) {
      if (row < 0 || column < 0 || row >= grid[0] || column >= grid[1]) continue;
      if (Math.hypot(row - cell[0], column - cell[1]) > reach + 0.5) continue;
      if (live.tool === "uncover") cover.cells.delete(row * grid[1] + column);
      else cover.cells.add(row * grid[1] + column);
    }
}

/** Covers the cell of the query, or uncovers it. */
function toggleCell() {
  const { cover } = photoNow();
  const { box, grid } = boardNow();
  const cell = cellAt(box, grid, state.query.point);
  if (!cell) return;
  const number = cell[0] * grid[1] + cell[1];
  cover.begin(boardNow());
  if (!cover.cells.delete(number)) cover.cells.add(number);
  changed();
}

function undo() {
  photoNow().cover.undo();
  changed();
}

function clear() {
  const { cover, model } = photoNow();
  cover.begin(boardNow());
  cover.cells = new Set();
  cover.end();
  live.off[model].clear();
  changed();
}

/** Switches the head of the first view off, or on again. */
function ablate() {
  const { layer, head, item } = state.views[0];
  if (head === MEAN) return;
  const off = live.off[live.numbersOf(item).model];
  const word = `${Math.min(layer, items[item].layers.length - 1)}.${head}`;
  if (!off.delete(word)) off.add(word);
  changed();
}

/** The camera's picture, from a click until a photo is taken or the camera closed. */
async function camera() {
  const dialog = panel.querySelector("dialog");
  const video = dialog.querySelector("video");
  let stream;
  if (!navigator.mediaDevices) {
    live.say("Browsers give the camera only to pages that come from a file, localhost or https.");
    return;
  }
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    live.say(`The camera cannot be used: ${error.message || "it is not there, or not allowed"}`);
    return;
  }
  video.srcObject = stream;
  dialog.onclose = () => {
    stream.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  };
  dialog.querySelector("[name=take]").onclick = () => {
    const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => addFiles([new File([blob], "camera.png", { type: "image/png" })]));
    dialog.close();
  };
  dialog.showModal();
}

KEYS.x = toggleCell;
KEYS.z = undo;
KEYS.b = () => {
  const other = part("ask").hidden ? "uncover" : "ask";
  setTool(live.tool === "cover" ? other : "cover");
};
KEYS.o = ablate;

for (const [key, words] of [
  ["b", "brush, or put it away"],
  ["x", "cover the patch that asks, or uncover it"],
  ["z", "undo"],
  ["o", "switch the head off, or on"],
]) {
  const about = make(
    "div",
    {},
    make("dt", {}, make("kbd", { textContent: key })),
    make("dd", { textContent: words }),
  );
  document.querySelector(".keys dl").append(about);
}

for (const tool of ["ask", "cover", "uncover"]) part(tool).onclick = () => setTool(tool);
part("fill").onchange = ({ target }) => {
  live.fill = target.value;
  changed();
};
part("size").oninput = ({ target }) => (live.brushSize = Number(target.value));
part("whole").onchange = ({ target }) => {
  live.see(target.checked);
  changed();
};
part("whole").closest("label").hidden = live.networks.every(
  ({ how: { fit, crop } }) => fit === "squash" && crop === 1,
);
part("undo").onclick = undo;
part("clear").onclick = clear;
part("ablate").onclick = ablate;
part("hold").onclick = () => change({ holds: !state.holds });
part("camera").onclick = camera;
part("files").onchange = ({ target }) => {
  addFiles(target.files);
  target.value = "";
};
part("fill").querySelector("[value=drop]").hidden = !live.networks.some(({ drops }) => drops);

addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", ({ relatedTarget }) => {
  if (!relatedTarget) document.body.classList.remove("dropping");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  addFiles(event.dataTransfer.files);
});
addEventListener("paste", ({ clipboardData }) => {
  if (clipboardData.files.length) addFiles(clipboardData.files);
});

onRendered = () => {
  for (const view of views) {
    if (!view.curves) view.find(".choices").prepend(view.find(".predictions"));
    (view.curves ??= new Curves(view)).show();
    view.mark ??= new BrushMark(view);
    // the strip of photos is the choice, where there is nothing else to choose
    if (live.networks.length + views.length < 3) view.find(".item").hidden = true;
  }
  showControls();
  live.refresh(); // of an item that was opened before something changed
};
showStrip();
