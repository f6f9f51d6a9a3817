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
dialog.addEventListener("close", () => {
  const there = !current?.closest("details:not([open])");
  (there ? current : current.closest("details").querySelector("summary"))?.focus();
});
dialog.querySelector(".back").onclick = () => step(-1, 0);
dialog.querySelector(".on").onclick = () => step(1, 0);
dialog.querySelector(".close").onclick = () => dialog.close();
large.onclick = () => dialog.close();

// A gallery of many photos: those that the tools choose, in their order, a page at a time.
const name = (row) => row.querySelector("h3").textContent;
const wrong = (row) => row.dataset.label !== undefined && row.dataset.label !== row.dataset.predicted;
const sureness = (row, unknown) => Number(row.dataset.probability ?? unknown);
const text = (a, b) => (a ?? "").localeCompare(b ?? "", undefined, { numeric: true });
const orders = {
  name: (a, b) => text(name(a), name(b)),
  predicted: (a, b) => text(a.dataset.predicted, b.dataset.predicted),
  label: (a, b) => text(a.dataset.label, b.dataset.label),
  wrong: (a, b) => wrong(b) - wrong(a) || (wrong(a) ? sureness(b, 0) - sureness(a, 0) : 0),
  least: (a, b) => sureness(a, 2) - sureness(b, 2),
  most: (a, b) => sureness(b, -1) - sureness(a, -1),
};

const named = (figure) => figure.querySelector("figcaption").firstChild.data; // without its badge

// Put the map of a caption, in English or as it is shown, beside the photo, in the place of the one that stands there.
function bring(row, captions) {
  const figures = [...row.querySelectorAll("figure")];
  const wanted = figures.slice(2).find((figure) => captions.includes(named(figure)));
  if (!wanted) return;
  const place = document.createComment("");
  wanted.replaceWith(place);
  figures[1].replaceWith(wanted);
  place.replaceWith(figures[1]);
}

for (const gallery of document.querySelectorAll(".gallery")) {
  const tools = gallery.querySelector(".tools");
  const pagers = [...gallery.querySelectorAll(".pager")];
  const [list, rest] = [gallery.querySelector(".rows"), gallery.querySelector("template")];
  const rows = [...list.children, ...rest.content.children];
  const narrow = matchMedia("(max-width: 600px)").matches;
  const size = Number(gallery.dataset.perPage) / (narrow ? 2 : 1);
  let page = 0;

  const choose = () => {
    const { sort, predicted, label, verdict } = tools.elements;
    const words = tools.querySelector("input").value.toLowerCase().split(/\s+/);
    const chosen = rows.filter((row) => {
      const header = row.querySelector("header").textContent.toLowerCase();
      if (!words.every((word) => header.includes(word))) return false;
      if (predicted?.value && row.dataset.predicted !== predicted.value) return false;
      if (label?.value && row.dataset.label !== label.value) return false;
      return !verdict?.value || (row.dataset.label !== undefined && wrong(row) === (verdict.value === "wrong"));
    });
    return sort.value ? chosen.sort(orders[sort.value]) : chosen;
  };
  const draw = () => {
    const chosen = choose();
    const last = Math.max(0, Math.ceil(chosen.length / size) - 1);
    page = Math.min(Math.max(page, 0), last);
    const shownNow = chosen.slice(page * size, (page + 1) * size);
    const [map] = tools.elements.map?.selectedOptions ?? [];
    if (map) for (const row of shownNow) bring(row, [map.value, map.text]);
    list.replaceChildren(...shownNow);
    const range = chosen.length
      ? `${page * size + 1}–${page * size + shownNow.length} of ${chosen.length}` +
        (chosen.length < rows.length ? ` (${rows.length} in all)` : "")
      : `None of ${rows.length} photos matches`;
    for (const pager of pagers) {
      pager.hidden = pager.matches(".below") && last === 0;
      pager.querySelector(".range").textContent = range;
      for (const [button, end] of [[".back", 0], [".on", last]]) {
        pager.querySelector(button).disabled = page === end;
        pager.querySelector(button).hidden = last === 0;
      }
    }
  };
  for (const pager of pagers) {
    const turn = (by) => {
      page += by;
      draw();
      if (!pager.matches(".below")) return;
      list.focus({ preventScroll: true });
      gallery.scrollIntoView();
    };
    pager.querySelector(".back").onclick = () => turn(-1);
    pager.querySelector(".on").onclick = () => turn(1);
  }
  const restart = () => {
    page = 0;
    draw();
  };
  tools.addEventListener("input", restart);
  tools.addEventListener("submit", (event) => event.preventDefault());
  tools.addEventListener("reset", () => setTimeout(restart));
  tools.hidden = false;
  draw();
}
