// Pictures open in a dialog: left and right go through a photo's methods, up and down through the photos.
const dialog = document.querySelector("dialog");
const [large, caption] = [dialog.querySelector("img"), dialog.querySelector("p")];
const shown = (element) => !element.closest("[hidden]");
let current;

function show(link) {
  if (!link) return;
  current = link;
  large.src = link.href;
  large.alt = link.querySelector("img").alt;
  caption.textContent = link.dataset.caption;
  if (!dialog.open) dialog.showModal();
}

function step(across, down) {
  if (across) {
    const links = [...document.querySelectorAll("figure a")].filter(shown);
    return show(links[links.indexOf(current) + across]);
  }
  const row = current.closest("article");
  if (!row) return;
  const rows = [...document.querySelectorAll("article")].filter(shown);
  const place = [...row.querySelectorAll("a")].indexOf(current);
  show(rows[rows.indexOf(row) + down]?.querySelectorAll("a")[place]);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("figure a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(link);
});
dialog.addEventListener("keydown", (event) => {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (!moves[event.key]) return;
  event.preventDefault();
  step(...moves[event.key]);
});
dialog.addEventListener("close", () => current?.focus());
dialog.querySelector(".back").onclick = () => step(-1, 0);
dialog.querySelector(".on").onclick = () => step(1, 0);
dialog.querySelector(".close").onclick = () => dialog.close();
large.onclick = () => dialog.close();

// A gallery of many photos: those that the tools choose, in their order, a page at a time.
const name = (row) => row.querySelector("h3").textContent;
const wrong = (row) => row.dataset.label !== undefined && row.dataset.label !== row.dataset.predicted;
const by = (value) => (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
const orders = {
  name: (a, b) => name(a).localeCompare(name(b), undefined, { numeric: true }),
  predicted: by((row) => row.dataset.predicted ?? ""),
  label: by((row) => row.dataset.label ?? ""),
  wrong: by((row) => (wrong(row) ? 0 : 1)),
  least: by((row) => Number(row.dataset.probability ?? 2)),
  most: by((row) => -Number(row.dataset.probability ?? -1)),
};

for (const gallery of document.querySelectorAll(".gallery")) {
  const [tools, pager] = [gallery.querySelector(".tools"), gallery.querySelector(".pager")];
  const [list, rest] = [gallery.querySelector(".rows"), gallery.querySelector("template")];
  const rows = [...list.children, ...rest.content.children];
  const size = Number(gallery.dataset.perPage);
  let page = 0;

  const choose = () => {
    const { sort, class: named, verdict } = tools.elements;
    const words = tools.querySelector("input").value.toLowerCase().split(/\s+/);
    const chosen = rows.filter((row) => {
      const text = row.querySelector("header").textContent.toLowerCase();
      if (!words.every((word) => text.includes(word))) return false;
      if (named?.value && ![row.dataset.predicted, row.dataset.label].includes(named.value)) return false;
      return !verdict?.value || (row.dataset.label !== undefined && wrong(row) === (verdict.value === "wrong"));
    });
    return sort.value ? chosen.sort(orders[sort.value]) : chosen;
  };
  const draw = () => {
    const chosen = choose();
    const last = Math.max(0, Math.ceil(chosen.length / size) - 1);
    page = Math.min(Math.max(page, 0), last);
    const shownNow = chosen.slice(page * size, (page + 1) * size);
    list.replaceChildren(...shownNow);
    const first = chosen.length ? page * size + 1 : 0;
    pager.querySelector("output").textContent =
      `${first}–${page * size + shownNow.length} of ${chosen.length}` +
      (chosen.length < rows.length ? ` (${rows.length} in all)` : "");
    pager.hidden = rows.length <= size && chosen.length === rows.length;
    pager.querySelector(".back").disabled = page === 0;
    pager.querySelector(".on").disabled = page === last;
  };
  const turn = (by) => {
    page += by;
    draw();
    gallery.scrollIntoView();
  };
  tools.addEventListener("input", () => {
    page = 0;
    draw();
  });
  tools.addEventListener("submit", (event) => event.preventDefault());
  pager.querySelector(".back").onclick = () => turn(-1);
  pager.querySelector(".on").onclick = () => turn(1);
  tools.hidden = false;
  draw();
}
