// The panel of features: every layer as a small map, and another photo with the map that lies on it.

/** Every layer as a button with a small map, and the figure of the other photo. */
class Alike {
  constructor(element, { onLayer, onOther, onRow }) {
    this.find = (selector) => element.querySelector(selector);
    this.onLayer = onLayer;
    this.find("select").onchange = ({ target }) => onOther(Number(target.value));
    for (const button of element.querySelectorAll(".parts button"))
      button.onclick = () => onRow(Number(button.value));
  }

  /** maps: of each layer, null where it has none. paint(canvas, map). */
  showLayers({ layers, chosen, maps, paint }) {
    fill(
      this.find(".strip"),
      layers.map(({ name }, at) => {
        const canvas = make("canvas");
        if (maps[at]) paint(canvas, maps[at]);
        return make(
          "button",
          {
            type: "button",
            "aria-pressed": at === chosen,
            "aria-label": `layer ${name}`,
            title: name,
            disabled: !maps[at],
            onclick: () => this.onLayer(at),
          },
          canvas,
          make("span", { textContent: shortOf(name) }),
        );
      }),
    );
  }

  /** options: [index, label] of the photos to choose from. scene: what drawPhoto draws, or null. */
  showOther({ options, chosen, scene, caption, row }) {
    this.find(".other").hidden = !scene;
    this.find(".parts").hidden = row === null;
    for (const button of this.find(".parts").children)
      button.setAttribute("aria-pressed", Number(button.value) === row);
    if (!scene) return;
    const choice = this.find("select");
    choice.replaceChildren(...options.map(([at, label]) => new Option(label, at)));
    choice.value = chosen;
    choice.parentElement.hidden = options.length < 2;
    const canvas = this.find(".other canvas");
    const { photo } = scene.item;
    setSize(canvas, ...fitted(photo, 2 * OTHER));
    canvas.setAttribute("aria-label", caption);
    drawPhoto(canvas.getContext("2d"), canvas.width, canvas.height, scene);
    this.find("figcaption").textContent = caption;
  }
}

const OTHER = 360; // pixels of the screen: the longer side of the other photo

/** The end of a module's name that tells layers apart: "blocks.3" is 3, "norm" itself. */
const shortOf = (name) => /^(.*\.)?(\w+)$/.exec(name)?.[2] ?? name;

/** A small map of colours, or of values. */
function paintSmall(canvas, map, scale, table) {
  if (!map.colors) return paintCells(canvas, map, scale, table);
  setSize(canvas, map.grid[1], map.grid[0]);
  canvas.getContext("2d").putImageData(pixelsOf(map, 255), 0, 0);
}

/** [name, value, more] of the cosines with one patch. */
function similarityFacts(features, patch, { values }) {
  const place = ([row, column]) => `row ${row}, column ${column}`;
  let best = -1;
  values.forEach((value, at) => {
    if (at !== patch && (best < 0 || value > values[best])) best = at;
  });
  return [
    ["cosine with", place(features.placeOf(patch))],
    ...(best < 0 ? [] : [["most alike", `${number(values[best])} at ${place(features.placeOf(best))}`]]),
    ["mean", number(values.reduce((sum, value) => sum + value, 0) / values.length)],
  ];
}

/** [name, value, more] of components. */
function componentFacts({ variance, foreground }) {
  const background = foreground.reduce((sum, one) => sum + 1 - one, 0) / foreground.length;
  return [
    ["red, green, blue", variance.map(percent).join(", "), "of the foreground's variance (all photos)"],
    ["background", percent(background), "of the patches of this photo"],
  ];
}

/** [name, value, more] of why two photos are alike; patch: the one that is asked, or null. */
function sharesFacts(features, patch, { values }, image) {
  const total = number(values.reduce((sum, value) => sum + value, 0));
  const facts = [["together with", image], ["cosine", total, "of the mean features"]];
  if (patch === null) return facts;
  const [row, column] = features.placeOf(patch);
  return [...facts, [`row ${row}, column ${column}`, `adds ${number(values[patch])}`]];
}
