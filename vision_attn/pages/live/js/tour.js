// A short tour for whoever sees attention for the first time: five steps.

const ANSWER = {
  at: ".predictions",
  text: "What the network thinks it sees. The network itself computed this just now, in this page.",
};
const COVER = {
  at: ".whatif",
  text: "Choose Cover and brush over a part of the photo. The network looks again, and the change is shown beside each class: if a class falls, that part mattered.",
};
const TOURS = {
  /** Of a network with attention between patches. tab: the one that has to be open. */
  attention: [
    {
      at: ".stage",
      tab: "attention",
      text: "Click anywhere on the photo. The frame marks the patch that asks, the query; the colours show which patches it attends to.",
    },
    {
      at: ".overview",
      tab: "attention",
      text: "Each row is a layer, and each column one of its heads; every head looks in its own way. Click one to see it on the photo.",
    },
    ANSWER,
    COVER,
    {
      at: ".tabs",
      tab: "methods",
      text: "The maps under Methods follow attention through all layers. Deletion and insertion measure whether such a map is right.",
    },
  ],
  /** Of a convolutional network. */
  maps: [
    {
      at: ".stage",
      tab: "methods",
      text: "The brighter a place, the more it supports the class. The network computed this map (Grad-CAM) from its last features.",
    },
    ANSWER,
    {
      at: ".predictions ol",
      tab: "methods",
      text: "Click another class to see what supports that one.",
    },
    COVER,
    {
      at: ".curves",
      tab: "methods",
      text: "Is the map right? Deletion and insertion cover its brightest places first, or show them first, and draw how the probability of the class changes.",
    },
  ],
};
const tour = {
  box: panel.querySelector(".tour"),
  step: null, // null: not on

  /** The steps for the network of the first view. */
  get steps() {
    return live.items[state.views[0].item].layers.length ? TOURS.attention : TOURS.maps;
  },

  show(step) {
    const { steps } = this;
    document.querySelector(".toured")?.classList.remove("toured");
    this.step = step < steps.length ? step : null;
    this.box.hidden = this.step === null;
    if (this.step === null) return;
    const { at, tab } = steps[step];
    if (tab && views[0]?.tab !== tab) changeView(0, { tab });
    requestAnimationFrame(() => this.mark(at)); // once the tab is there
    this.box.querySelector("p").textContent = `${step + 1}/${steps.length} \u00b7 ${steps[step].text}`;
    this.box.querySelector("[name=next]").textContent = step + 1 < steps.length ? "Next" : "Done";
  },

  /** Frames what the step speaks of, and brings it above the tour's own box. */
  mark(selector) {
    if (this.step === null) return;
    const place = [...document.querySelectorAll(selector)].find((one) => one.offsetParent);
    place?.classList.add("toured");
    place?.scrollIntoView({ block: "center" });
  },

  end() {
    this.show(this.steps.length);
    part("tour").focus();
  },
};

part("tour").onclick = () => {
  tour.show(0);
  part("next").focus();
};
part("next").onclick = () => {
  if (tour.step + 1 < tour.steps.length) tour.show(tour.step + 1);
  else tour.end();
};
part("skip").onclick = () => tour.end();
tour.box.onkeydown = ({ key }) => key === "Escape" && tour.end();
