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

for (const search of document.querySelectorAll("input[type=search]")) {
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of search.closest("section").querySelectorAll("article")) {
      const text = row.querySelector("header").textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
