// One view: a photo with its map, and the panels to choose that map from.

const TABS = {
  attention: "Attention",
  similar: "Similarity",
  components: "Components",
  pair: "Two photos",
  methods: "Methods",
  gates: "Gates",
};
const OF_FEATURES = ["similar", "components", "pair"]; // tabs
const CHARTS = {
  entropy: "Entropy in bits: low means few places, high means all places equally.",
  distance: "How far attention reaches, in patches of the layer.",
};
const AT_ONCE = 50_000; // numbers: a larger overview waits until the query rests

/** The tabs that an item has anything for. */
function tabsOf(item) {
  const features = item.features ?? [];
  const full = {
    attention: item.layers,
    similar: features,
    components: features.filter(({ colors }) => colors),
    pair: item.partners ?? [],
    methods: item.maps,
    gates: item.gates,
  };
  return Object.keys(TABS).filter((tab) => full[tab].length);
}

class View {
  /** onChange gets what changed in this view, onQuery a point or a token, onShared the rest. */
  constructor(items, { onChange, onQuery, onShared }) {
    const template = document.querySelector("template");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.element.querySelector(selector);
    this.onChange = onChange;
    this.onQuery = onQuery;
    this.bar = new ColourBar(this.find(".bar"));
    const onProbe = (point) => this.bar.probe(point);
    const ask = (...query) => {
      if (this.tab === "pair" && !this.view.row) onChange({ row: 1 });
      if (this.tab === "methods") onChange({ tab: "attention" });
      onQuery(...query);
    };
    this.stage = new Stage(this.find(".stage"), { onQuery: ask, onProbe });
    this.alike = new Alike(this.find(".features"), {
      onLayer: (feature) => onChange({ feature }),
      onOther: (other) => onChange({ other }),
      onRow: (row) => onChange({ row }),
    });
    const choose = (layer, head) => onChange({ layer, head });
    this.overview = new Overview(this.find(".overview"), choose);
    this.chart = new Chart(this.find(".chart div"), choose);
    this.methods = new Methods(this.find(".methods"), (method) => onChange({ method }));
    this.gates = new Gates(this.find(".gates .list"), (gate) => onChange({ gate }));
    this.items = items;
    this.find(".item").onchange = ({ target }) => onChange({ item: Number(target.value) });
    for (const name of ["layer", "head"]) {
      this.find(`[name=${name}]`).oninput = ({ target }) =>
        onChange({ [name]: Number(target.value) });
    }
    for (const button of this.element.querySelectorAll(".attention .kinds button")) {
      button.onclick = () => onShared({ chart: button.value });
    }
  }

  /** Everything on the screen from one state. */
  show(item, view, shared) {
    clearTimeout(this.overviewDue);
    this.item = item;
    this.view = view;
    this.shared = shared;
    const tabs = tabsOf(item);
    const first = item.maps.length && !item.layers.length ? "methods" : tabs[0];
    this.tab = tabs.includes(view.tab) ? view.tab : first;
    this.look = { ...shared.look, table: shared.palette.tables[shared.look.colours] };
    this.showItems();
    this.element.style.setProperty("--aspect", item.photo.width / item.photo.height);
    this.element.classList.toggle("no-tabs", tabs.length < 2);
    this.showTabs(tabs);
    const shown = this[`show${this.tab[0].toUpperCase()}${this.tab.slice(1)}`]();
    const { query, brush, holds } = shared;
    this.scene = { item, look: this.look, place: null, layer: null, brush, holds, ...shown };
    const { cells } = item; // that a brush covers, on a page that has one
    if (cells && !this.scene.layer && query.asked)
      this.scene.cursor = cellAt(cells.box, cells.grid, query.point);
    this.showScene();
    this.showPredictions();
  }

  /** What can be chosen, which may have become more. */
  showItems() {
    const { items } = this;
    const choice = this.find(".item");
    if (choice.length !== items.length)
      choice.replaceChildren(...items.map((item, at) => new Option(labelOf(item, items), at)));
    choice.hidden = items.length < 2;
    choice.value = this.view.item;
  }

  showTabs(tabs) {
    const bar = this.find(".tabs");
    const focused = bar.contains(document.activeElement);
    bar.replaceChildren(
      ...tabs.map((tab) => {
        const selected = tab === this.tab;
        const button = make("button", {
          type: "button",
          role: "tab",
          "aria-selected": selected,
          textContent: TABS[tab],
          tabIndex: selected ? 0 : -1,
          onclick: () => this.onChange({ tab }),
        });
        button.onkeydown = ({ key }) => {
          const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
          if (step) this.onChange({ tab: tabs.at((tabs.indexOf(tab) + step) % tabs.length) });
        };
        return button;
      }),
    );
    if (focused) bar.querySelector("[aria-selected=true]").focus();
    for (const section of this.element.querySelectorAll(".choices > [role=tabpanel]")) {
      const tabsOfIt = section.classList.contains("features") ? OF_FEATURES : [...section.classList];
      section.hidden = !tabsOfIt.includes(this.tab);
    }
    this.find(".features").setAttribute("aria-label", TABS[this.tab]);
  }

  showAttention() {
    const { item, view } = this;
    const at = Math.min(view.layer, item.layers.length - 1);
    const layer = item.layers[at];
    const head = Math.min(view.head, layer.heads.length - 1);
    this.showSliders(at, head);
    const showOverview = () => this.showOverview(at, head);
    const numbers = item.layers.reduce((sum, { tokens, heads }) => sum + tokens * heads.length, 0);
    if (numbers < AT_ONCE) showOverview();
    else this.overviewDue = setTimeout(showOverview, 40);
    const { token, held, heads, mean } = layer.answer(this.shared.query);
    const row = head === MEAN ? mean : heads[head];
    return {
      map: layer.mapOf(row, token),
      row,
      token,
      place: layer.placeOf(token),
      held: held.map((one) => layer.placeOf(one)),
      layer,
      hint: this.shared.query.asked ? "" : layer.hint,
      title: `Layer ${layer.name} \u00b7 ${headName(head)}`,
      method: held.length ? "" : spelled(layer, token, head),
      facts: [
        ...attentionFacts(layer, token, held, row, layer.averages[head]),
        ...windowFacts(layer, token, row),
      ],
    };
  }

  showSliders(layer, head) {
    const { layers } = this.item;
    for (const [name, value, last, text] of [
      ["layer", layer, layers.length - 1, layers[layer].name],
      ["head", head, layers[layer].heads.length - 1, head === MEAN ? "mean" : head],
    ]) {
      const slider = this.find(`[name=${name}]`);
      slider.max = last;
      slider.value = value;
      slider.setAttribute("aria-valuetext", text);
      slider.parentElement.querySelector("output").value = text;
    }
  }

  /** Every layer and head, as small maps or as a chart. */
  showOverview(layer, head) {
    const { item, look } = this;
    const measure = this.shared.chart;
    for (const button of this.element.querySelectorAll(".attention .kinds button")) {
      button.setAttribute("aria-pressed", button.value === measure);
    }
    this.find(".overview").hidden = measure !== "maps";
    this.find(".chart").hidden = measure === "maps";
    const answers = item.layers.map((one) => one.answer(this.shared.query));
    if (measure === "maps") {
      const scaleFor = (map) => this.scaleFor(map);
      this.overview.show({ item, answers, layer, head, scaleFor, look });
      return;
    }
    const points = answers.flatMap(({ token, heads }, l) =>
      heads.map((row, h) => ({
        layer: l,
        head: h,
        here: item.layers[l][measure](row, token),
        everywhere: item.layers[l].averages[h][measure],
      })),
    );
    const names = item.layers.map(({ name }) => name);
    const most = Math.max(...item.layers.map((one) => one.most[measure]));
    this.chart.show({ points, names, layer, head, most, title: CHARTS[measure] });
    this.find(".chart figcaption").textContent =
      `${CHARTS[measure]} Dots: this query. Rings: the mean over all queries.`;
  }

  /** The cosine of every patch with the one that is asked, here and in the other photo. */
  showSimilar() {
    const { item, shared } = this;
    const { other } = shared;
    const asked = (features) => features.patchOf(shared.query.point);
    const map = (features) => features.similarity(asked(features));
    return this.showFeatures({
      map,
      facts: (features) => similarityFacts(features, asked(features), map(features)),
      there: (features, at) => features.similarity(asked(features), other.features[at]),
      caption: `The cosine with that place of ${item.image}`,
      title: "cosine with one place",
      hint: shared.query.asked ? "" : "Click the photo to see which places are like that one.",
    });
  }

  showComponents() {
    return this.showFeatures({
      map: (features) => features.colors && features.components,
      facts: componentFacts,
      there: (_, at) => this.shared.other.features[at].components,
      caption: "The same components",
      title: "principal components",
    });
  }

  /** Why this photo and the other are alike: all patches with all, or the one asked with each. */
  showPair() {
    const { item, view, shared } = this;
    const { other } = shared;
    const there = (at) => other.features[at];
    const asked = (features) => features.patchOf(shared.query.point);
    const map = (features, at) => features.shares(there(at));
    return this.showFeatures({
      map,
      facts: (features, at) =>
        sharesFacts(features, view.row ? asked(features) : null, map(features, at), other.image),
      there: (features, at) =>
        view.row ? features.row(asked(features), there(at)) : there(at).shares(features),
      caption: view.row
        ? `What each patch adds with the one asked of ${item.image}`
        : `What each patch adds with all of ${item.image}`,
      row: view.row,
      title: "what adds to the cosine of two photos",
      hint: view.row ? "" : "Click the photo to see what that place has in common with the other.",
    });
  }

  /** map, facts: of a layer's features and their place; there: the map on the other photo. */
  showFeatures({ map, facts, there, caption, title, hint, row = null }) {
    const { item, view, shared, look } = this;
    const { other } = shared;
    const maps = item.features.map((features, at) => map(features, at));
    const last = maps.findLastIndex((one) => one);
    const at = maps[view.feature ?? last] ? (view.feature ?? last) : last;
    const features = item.features[at];
    const paint = (canvas, one) => paintSmall(canvas, one, this.scaleFor(one), look.table);
    this.alike.showLayers({ layers: item.features, chosen: at, maps, paint });
    const found = other && there(features, at);
    const scene = found && { item: other, map: found, scale: this.scaleFor(found), look };
    this.there = scene;
    const ranked = row === null ? item.partners.map((one) => [one, null]) : rankedPartners(item.partners, features);
    const options = ranked.map(([one, cosine]) => {
      const label = labelOf(this.items[one], this.items);
      return [one, cosine === null ? label : `${label} (${number(cosine)})`];
    });
    const sum = found?.values?.reduce((all, value) => all + value, 0);
    const total = row === null || !found ? "" : `. Together: ${number(sum)}`;
    this.alike.showOther({
      options,
      chosen: shared.otherAt,
      scene,
      caption: other ? `${other.image}. ${caption}${total}.` : "",
      row,
    });
    const place = features.placeOf(features.patchOf(shared.query.point));
    return {
      map: maps[at],
      place: hint === undefined || row === 0 ? null : place,
      layer: hint === undefined ? null : features,
      hint,
      title: `Layer ${features.name} \u00b7 ${title}`,
      facts: facts(features, at),
    };
  }

  showMethods() {
    const { item, view, look } = this;
    const mapFor = (method) => mapOf(item, method, view.target);
    const map = mapFor(view.method);
    const scaleFor = (one) => this.scaleFor(one);
    this.methods.show({ item, chosen: map, mapFor, scaleFor, look });
    this.find(".methods .about").textContent = map.about;
    this.find(".notes").replaceChildren(
      ...item.notes.map((textContent) => make("li", { textContent })),
    );
    const shown = { map, title: map.method + baselineMark(map), facts: methodFacts(item, map) };
    const layer = item.cells && item.layers[Math.min(view.layer, item.layers.length - 1)];
    if (!layer) return shown;
    return { ...shown, layer, hint: this.shared.query.asked ? "" : layer.hint }; // a click asks it
  }

  showGates() {
    const { item, view } = this;
    const chosen = Math.min(view.gate, item.gates.length - 1);
    const gate = item.gates[chosen];
    this.gates.show({ item, chosen, table: this.look.table });
    return { map: gate.map, title: gate.name, facts: gateFacts(gate) };
  }

  /** As the state says: for each map alone, or one for all alike. Gates open from 0 to 1. */
  scaleFor(map) {
    if (map.colors) return null;
    if (map.unit === OPEN) return scaleOf(map, 1);
    if (map.full) return scaleOf(map, map.full);
    const { scale, top } = this.shared.look;
    if (scale === "each") return scaleOf(map);
    if (map.unit === UNIFORM) return scaleOf(map, top);
    if (!map.method) return scaleOf(map);
    const alike = this.shared.opened.flatMap((item) =>
      [...item.maps, ...item.gates.map((gate) => gate.map)].filter(
        (one) => one && nameOf(one.method) === nameOf(map.method),
      ),
    );
    return scaleOf(map, Math.max(...alike.map((one) => scaleOf(one).top)));
  }

  showScene() {
    const { scene, item } = this;
    scene.scale = scene.map && this.scaleFor(scene.map);
    const sentence = scene.facts
      .map(([name, ...values]) => `${name}: ${values.filter(Boolean).join(", ")}`)
      .join("; ");
    this.sentence = `${scene.title}: ${sentence}`;
    const how = scene.layer && !scene.brush ? ". Click, drag or use the arrow keys to move the query." : "";
    this.find(".stage").setAttribute("aria-label", `${item.image} \u00b7 ${scene.title}${how}`);
    this.stage.show(scene);
    const facts = scene.facts.map(([name, ...values]) => {
      const words = ` ${values.filter(Boolean).join(" \u00b7 ")}`;
      return make("span", {}, make("b", { textContent: name }), words);
    });
    const title = make("strong", { textContent: scene.title });
    const method = make("code", {
      textContent: scene.method ?? "",
      title: "the same for vision-attn explain",
    });
    this.find(".readout").replaceChildren(title, ...facts, method);
    const hint = scene.brush ? "" : hintOf(item, scene);
    this.find(".hint").textContent = hint;
    this.find(".hint").hidden = !hint;
    this.bar.show(scene);
    this.showTokens();
  }

  /** The tokens that are not on the photo: what each gets, and a way to ask it. */
  showTokens() {
    const { item, scene } = this;
    const tokens = this.tab === "attention" ? item.prefix : [];
    fill(
      this.find(".tokens"),
      tokens.map((name, at) => {
        const share = make("span", { textContent: percent(scene.row[at]) });
        const button = make(
          "button",
          { type: "button", "aria-pressed": at === scene.token },
          `${name} `,
          share,
        );
        button.onclick = () => this.onQuery(at);
        button.style.setProperty("--share", `${100 * scene.row[at]}%`);
        return button;
      }),
    );
  }

  showPredictions() {
    const { item, view } = this;
    const chosen = this.tab === "methods" ? this.scene.map.target : null;
    const verdict = verdictOf(item.predictions);
    this.find(".predictions").hidden = !item.predictions.length;
    this.find(".predictions").classList.toggle("turned", verdict.turned);
    this.find(".unlike").textContent = item.unlike;
    this.find(".unlike").hidden = !item.unlike;
    this.find(".predictions h2").textContent = verdict.text;
    if (item.predictions[0]?.before !== undefined) this.sentence += `. ${verdict.text}`;
    fill(
      this.find(".predictions ol"),
      item.predictions.map(({ target, name, probability, before }) => {
        const able =
          chosen !== null &&
          item.maps.some((map) => map.method === this.scene.map.method && map.target === target);
        const button = make(
          "button",
          {
            type: "button",
            className: Math.abs(probability - before) > 0.005 ? "was" : "",
            disabled: !able,
            "aria-pressed": target === chosen,
          },
          make("span", { className: "name", textContent: name }),
          ...(before === undefined ? [] : [changeOf(probability - before)]),
          make("span", {
            className: "share",
            textContent: probability === null ? "" : percent(probability),
          }),
        );
        button.onclick = () => this.onChange({ target });
        button.style.setProperty("--share", `${100 * probability}%`);
        if (before !== undefined) button.style.setProperty("--before", `${100 * before}%`);
        return make("li", {}, button);
      }),
    );
  }
}

/** The map of a method for a class, or the nearest there is. */
function mapOf(item, method, target) {
  const same = item.maps.filter((map) => map.method === method);
  if (!same.length) return item.maps[0];
  return same.find((map) => map.target === target) ?? same[0];
}
