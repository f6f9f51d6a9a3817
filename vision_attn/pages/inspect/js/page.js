// The state of the page, and all that changes it.

const started = performance.now();
const data = JSON.parse(document.getElementById("data").textContent);
const source = openSource(data);
const palette = new Palette(data);
const toolbar = document.querySelector(".toolbar");
const control = (name) => toolbar.querySelector(`[name=${name}]`);
const items = []; // as they are opened
const views = [];
let state = restore();

let onRendered = () => {}; // after every frame, for a page that has more to show
let due = 0;
let remembering = 0;

/** A new state, shown with the next frame. */
function change(parts) {
  state = { ...state, ...parts };
  due ||= requestAnimationFrame(render);
  clearTimeout(remembering);
  remembering = setTimeout(remember, 150);
}

const changeLook = (parts) => change({ look: { ...state.look, ...parts } });

function changeView(at, parts) {
  change({
    views: state.views.map((view, place) => (place === at ? { ...view, ...parts } : view)),
  });
}

/** Asks a point or a token. held: the points that are asked with it; none unless given. */
function changeQuery(query, held = []) {
  const onPhoto = Array.isArray(query);
  const point = onPhoto ? query.map((at) => Number(at.toFixed(4))) : state.query.point;
  change({ query: { token: onPhoto ? null : query, point, held, asked: true } });
}

/** Holds the point that is asked, so that the next one is asked with it. */
const hold = () => changeQuery(state.query.point, [...state.query.held, state.query.point]);

/** Where a page has an address, the link in it; and the words for those who listen. */
function remember() {
  if (location.protocol !== "about:") history.replaceState(null, "", `#${linkOf(state)}`);
  document.querySelector("[role=status]").textContent = views
    .map((view) => view.sentence)
    .join(". ");
}

async function render() {
  due = 0;
  const others = state.views.map((_, at) => otherOf(source.items, state.views, at));
  const wanted = [...state.views.map(({ item }) => item), ...others.filter((at) => at !== null)];
  const missing = [...new Set(wanted)].filter((at) => !items[at]);
  if (missing.length) {
    await Promise.all(
      missing.map(async (at) => {
        items[at] = await source.open(at);
        items[at].partners = partnersOf(source.items, at);
      }),
    );
    if (due) return; // the state changed meanwhile and will be shown
  }
  performance.mark("render");
  arrange();
  const opened = state.views.map(({ item }) => items[item]);
  views.forEach((view, at) =>
    view.show(opened[at], state.views[at], {
      ...state,
      palette,
      opened,
      other: items[others[at]] ?? null,
      otherAt: others[at],
    }),
  );
  showToolbar();
  onRendered();
  performance.measure("render", "render");
  document.documentElement.dataset.ready = Math.round(performance.now() - started);
}

/** As many views on the page as in the state. */
function arrange() {
  const main = document.querySelector("main");
  while (views.length > state.views.length) views.pop().element.remove();
  while (views.length < state.views.length) {
    const at = views.length;
    const view = new View(source.items, {
      onChange: (parts) => changeView(at, parts),
      onQuery: (query, { holds = false, keeps = false } = {}) => {
        if (holds) hold();
        changeQuery(query, holds || keeps ? state.query.held : []);
      },
      onShared: change,
    });
    views.push(view);
    main.append(view.element);
  }
  main.classList.toggle("pair", views.length === 2);
}

function showToolbar() {
  const { look } = state;
  for (const name of ["colours", "style", "scale", "top"]) control(name).value = look[name];
  control("opacity").value = 100 * look.opacity;
  control("smooth").checked = look.smooth;
  control("top").parentElement.hidden = look.scale === "each";
  control("compare").setAttribute("aria-pressed", state.views.length === 2);
}

function compare() {
  const [first, second] = state.views;
  const other = (first.item + 1) % source.items.length;
  change({ views: second ? [first] : [first, { ...first, item: other }] });
}

function turnTheme() {
  const root = document.documentElement;
  const dark =
    root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = dark === "dark" ? "light" : "dark";
  change({});
}

// What the keys do, to the first view.
let lastHead = 0;
const KEYS = {
  h: hold,
  c: () => changeQuery(state.query.token === null ? 0 : state.query.point),
  "[": () => turn("layer", -1),
  "]": () => turn("layer", 1),
  ",": () => turn("head", -1),
  ".": () => turn("head", 1),
  m: () => {
    const { head } = state.views[0];
    if (head !== MEAN) lastHead = head;
    changeView(0, { head: head === MEAN ? lastHead : MEAN });
  },
  t: () => {
    const tabs = tabsOf(views[0].item);
    changeView(0, { tab: tabs[(tabs.indexOf(views[0].tab) + 1) % tabs.length] });
  },
  d: () => changeLook({ style: state.look.style === "dim" ? "colour" : "dim" }),
  v: compare,
  s: save,
  "?": () => document.querySelector("dialog.keys").showModal(),
};

/** Moves the slider of the first view, or chooses its next layer of features. */
function turn(name, step) {
  const { tab, item, view } = views[0];
  if (OF_FEATURES.includes(tab)) {
    const last = item.features.length - 1;
    const next = Math.min(Math.max((view.feature ?? last) + step, 0), last);
    if (name === "layer") changeView(0, { feature: next });
    return;
  }
  const slider = views[0].find(`[name=${name}]`);
  slider.stepUp(step);
  slider.oninput({ target: slider });
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=number], select, dialog *");
  const shown = views.length > 0;
  if (event.ctrlKey || event.metaKey || event.altKey || typing || !shown || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

const errors = source.items.flatMap(({ layers, features = [] }) => [
  ...layers.flatMap(({ heads }) => heads.map(({ error }) => error)),
  ...features.map(({ error }) => error),
]);
if (errors.length) {
  document.querySelector(".exact").textContent =
    "Attention and cosines are computed here, from queries, keys, weights and features as they were " +
    "recorded; " +
    `no map is off by more than ${percent(Math.max(...errors))} of its largest value.`;
}
control("colours").append(...Object.keys(palette.tables).map((name) => new Option(name)));
for (const name of ["colours", "style", "scale"]) {
  control(name).onchange = ({ target }) => changeLook({ [name]: target.value });
}
control("opacity").oninput = ({ target }) => changeLook({ opacity: target.value / 100 });
control("top").oninput = ({ target }) =>
  changeLook({ top: whole(target.value, 1, 999) ?? USUAL.look.top });
control("smooth").onchange = ({ target }) => changeLook({ smooth: target.checked });
control("compare").onclick = compare;
control("save").onclick = save;
control("theme").onclick = turnTheme;
control("help").onclick = KEYS["?"];
addEventListener("hashchange", () => change(restore()));
render();
