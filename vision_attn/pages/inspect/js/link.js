// The state of the page as a link, and back.

const USUAL = {
  look: { colours: "inferno", style: "colour", opacity: 0.9, smooth: true, scale: "each", top: 10 },
  query: { token: null, point: [0.5, 0.5], held: [], asked: false }, // asked: by a person
  chart: "maps",
};

/** One view as the page opens: deep in the network, all heads. */
function viewOf(item) {
  const { layers, maps, tab = "attention" } = source.items[item];
  return {
    item,
    tab,
    layer: Math.max(0, Math.ceil(layers.length * 0.6) - 1),
    head: MEAN,
    method: maps[0]?.method ?? "",
    target: null,
    gate: 0,
    feature: null, // the last layer
    other: null, // the photo beside it, or the next
    row: 0,
  };
}

/** The state that the link tells; what it does not tell, or tells wrongly, is as usual. */
function restore() {
  const link = new URLSearchParams(location.hash.slice(1));
  const count = link.has("item2") ? 2 : 1;
  const wanted = Array.from({ length: count }, (_, at) => {
    const read = (name) => link.get(name + (at ? at + 1 : ""));
    const item = whole(read("item"), 0, source.items.length - 1) ?? 0;
    const usual = viewOf(item);
    return {
      item,
      tab: read("tab") ?? usual.tab,
      layer: whole(read("layer"), 0, 999) ?? usual.layer,
      head: whole(read("head"), MEAN, 999) ?? usual.head,
      method: read("method") ?? usual.method,
      target: whole(read("class"), 0, 1e9),
      gate: whole(read("gate"), 0, 9999) ?? 0,
      feature: whole(read("feature"), 0, 999),
      other: whole(read("other"), 0, source.items.length - 1),
      row: whole(read("row"), 0, 1) ?? 0,
    };
  });
  const [point, ...held] = pairs(link.get("query"));
  const { look } = USUAL;
  return {
    views: wanted,
    query: {
      token: whole(link.get("token"), 0, 999),
      point: point ?? USUAL.query.point,
      held,
      asked: link.has("query") || link.has("token"),
    },
    look: {
      colours: Object.hasOwn(palette.tables, link.get("colours"))
        ? link.get("colours")
        : look.colours,
      style: link.get("style") === "dim" ? "dim" : look.style,
      opacity: (whole(link.get("opacity"), 10, 100) ?? 100 * look.opacity) / 100,
      smooth: link.get("cells") === null,
      scale: link.has("top") ? "fixed" : "each",
      top: whole(link.get("top"), 1, 999) ?? look.top,
    },
    chart: Object.hasOwn(CHARTS, link.get("chart")) ? link.get("chart") : "maps",
  };
}

/** Points (x, y) from 0 to 1 of "x,y,x,y": none where anything else is among them. */
function pairs(text) {
  const numbers = (text ?? "").split(",").map(Number);
  const right = numbers.length % 2 === 0 && numbers.every((at) => at >= 0 && at <= 1);
  return right ? numbers.flatMap((x, at) => (at % 2 ? [] : [[x, numbers[at + 1]]])) : [];
}

function whole(text, least, most) {
  const value = text === null ? NaN : Number(text);
  return Number.isInteger(value) && value >= least && value <= most ? value : null;
}

/** The link of a state: only what is not as usual. */
function linkOf({ views, query, look, chart }) {
  const link = new URLSearchParams();
  const put = (name, value, usual) => value !== usual && value !== null && link.set(name, value);
  views.forEach((view, at) => {
    const usual = viewOf(view.item);
    const last = at ? at + 1 : "";
    put(`item${last}`, view.item, at ? null : 0);
    for (const name of ["tab", "layer", "head", "method", "gate", "feature", "other", "row"])
      put(name + last, view[name], usual[name]);
    put(`class${last}`, view.target, null);
  });
  put("token", query.token, null);
  put("query", query.asked ? [query.point, ...query.held].join() : null, null);
  put("colours", look.colours, USUAL.look.colours);
  put("style", look.style, USUAL.look.style);
  put("opacity", Math.round(100 * look.opacity), 100 * USUAL.look.opacity);
  put("cells", look.smooth ? null : "shown", null);
  put("top", look.scale === "fixed" ? look.top : null, null);
  put("chart", chart, USUAL.chart);
  return link.toString();
}
