// Photos by class. Each file page/records-N.js calls records(N, rows) once it is read;
// a row is [link, predicted, label, probability, pictures].
(() => {
  const { names, classes, perPage } = JSON.parse(document.querySelector("#listed").textContent);
  const loaded = new Map();
  const waiting = new Map();

  window.records = (number, rows) => {
    loaded.set(number, rows);
    waiting.get(number)?.(rows);
  };

  function file(number) {
    if (loaded.has(number)) return Promise.resolve(loaded.get(number));
    return new Promise((done, failed) => {
      waiting.set(number, done);
      const script = document.createElement("script");
      script.src = `./page/records-${number}.js`;
      script.onerror = () => failed(new Error(`page/records-${number}.js is not there`));
      document.head.append(script);
    });
  }

  const part = document.querySelector(".records");
  const [search, all, verdict] = ["input", ".all", "select"].map((what) => part.querySelector(what));
  const [body, chosen, hint] = ["tbody", ".chosen", ".hint"].map((what) => part.querySelector(what));
  const [pager, list] = [part.querySelector(".pager"), part.querySelector(".rows")];
  let photos = [];
  let page = 0;

  function element(kind, content, options = {}) {
    const made = Object.assign(document.createElement(kind), options);
    made.append(...[content].flat());
    return made;
  }

  const share = (right, known) => (known ? `${((100 * right) / known).toFixed(1)} %` : "–");

  function listClasses() {
    const words = search.value.toLowerCase().split(/\s+/);
    const fit = classes.filter(([name]) => words.every((word) => name.toLowerCase().includes(word)));
    const rows = fit.slice(0, 200).map((one) => {
      const [name, count, known, right] = one;
      const button = element("a", name.split(",")[0], { translate: name === "no class", href: "#photos", onclick: () => open(one) });
      const cells = [String(count), share(right, known)].map((text) => element("td", text));
      return element("tr", [element("th", button, { scope: "row" }), ...cells]);
    });
    body.replaceChildren(...rows);
    if (fit.length > 200) body.append(element("tr", element("td", `and ${fit.length - 200} more: search`)));
  }

  async function open([name, count, , , parts]) {
    const every = await Promise.all(
      parts.map(async ([number, first, length]) => (await file(number)).slice(first, first + length)),
    );
    show(name, every.flat());
    hint.textContent = `vision-attn pictures FOLDER --class "${name.split(",")[0]}" draws their heatmaps.`;
  }

  async function searchAll() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    const numbers = new Set(classes.flatMap(([, , , , parts]) => parts.map(([number]) => number)));
    for (const number of numbers) {
      hint.textContent = `searching file ${number + 1} of ${numbers.size} …`;
      for (const row of await file(number)) {
        const text = `${decodeURIComponent(row[0])} ${names[row[1]] ?? ""} ${names[row[2]] ?? ""}`.toLowerCase();
        if (words.every((word) => text.includes(word))) found.push(row);
      }
    }
    hint.textContent = "";
    show(`“${search.value}”`, found);
  }

  function show(title, rows) {
    chosen.textContent = title.split(",")[0];
    photos = rows;
    page = 0;
    draw();
    chosen.focus();
  }

  function card([link, predicted, label, probability, pictures]) {
    const photo = decodeURIComponent(link.split("/").at(-1));
    const sure = probability === null ? "" : ` ${(100 * probability).toFixed(1)} %`;
    const header = element("header", [
      element("h3", photo, { translate: false }),
      element("span", `${names[predicted] ?? ""}${sure}`, { className: "quiet" }),
    ]);
    if (label >= 0) {
      const right = label === predicted;
      const text = right ? "✓ right" : `✗ true class: ${names[label]}`;
      header.append(element("span", text, { className: right ? "right" : "wrong" }));
    }
    const shots = [[link, "photo"], ...pictures.map((picture) => [picture, decodeURIComponent(picture)])];
    const cells = shots.map(([source, caption]) => {
      const image = element("img", [], { src: source, loading: "lazy", alt: `${photo} \u00b7 ${caption}` });
      const anchor = element("a", image, { href: source });
      anchor.dataset.caption = `${photo} · ${caption}`;
      return element("figure", [anchor, element("figcaption", caption)]);
    });
    return element("article", [header, element("div", cells, { className: "cells" })]);
  }

  function draw() {
    const wanted = photos.filter(([, predicted, label]) => {
      if (!verdict.value) return true;
      return label >= 0 && (label === predicted) === (verdict.value === "right");
    });
    const last = Math.max(0, Math.ceil(wanted.length / perPage) - 1);
    page = Math.min(Math.max(page, 0), last);
    const first = page * perPage;
    const now = wanted.slice(first, first + perPage);
    list.replaceChildren(...now.map(card));
    pager.hidden = false;
    pager.querySelector(".range").textContent = now.length
      ? `${first + 1}–${first + now.length} of ${wanted.length}`
      : "No photo matches";
    for (const [button, end] of [[".back", 0], [".on", last]]) {
      pager.querySelector(button).disabled = page === end;
      pager.querySelector(button).hidden = last === 0;
    }
  }

  for (const [button, by] of [[".back", -1], [".on", 1]]) {
    pager.querySelector(button).onclick = () => {
      page += by;
      draw();
    };
  }
  search.addEventListener("input", listClasses);
  search.addEventListener("keydown", (event) => event.key === "Enter" && searchAll());
  all.onclick = searchAll;
  verdict.onchange = () => photos.length && draw();
  listClasses();
  if (classes.length === 1) open(classes[0]);
})();
