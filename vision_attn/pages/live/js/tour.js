// A short tour for whoever sees attention for the first time: five steps, in English or Japanese.

const ANSWER = {
  at: ".predictions",
  en: "What the network thinks it sees. The network itself computed this just now, in this page.",
  ja: "ネットワークが何を見ていると考えているかです。今、このページの中でネットワーク自身が計算しました。",
};
const COVER = {
  at: ".whatif",
  en: "Choose Cover and brush over a part of the photo. The network looks again, and the change is shown beside each class: if a class falls, that part mattered.",
  ja: "「隠す」を選び、写真の一部をなぞって隠してください。ネットワークがもう一度見て、各クラスの変化が横に表示されます。下がれば、そこが重要だったということです。",
};
const TOURS = {
  /** Of a network with attention between patches. tab: the one that has to be open. */
  attention: [
    {
      at: ".stage",
      tab: "attention",
      en: "Click anywhere on the photo. The frame marks the patch that asks, the query; the colours show which patches it attends to.",
      ja: "写真をクリックしてください。枠は問いを出すパッチ（クエリ）で、色はそのパッチがどのパッチに注意を向けているかを示します。",
    },
    {
      at: ".overview",
      tab: "attention",
      en: "Each row is a layer, and each column one of its heads; every head looks in its own way. Click one to see it on the photo.",
      ja: "行は層、列はその層のヘッドで、それぞれ別の見方をします。クリックすると写真の上に表示されます。",
    },
    ANSWER,
    COVER,
    {
      at: ".tabs",
      tab: "methods",
      en: "The maps under Methods follow attention through all layers. Deletion and insertion measure whether such a map is right.",
      ja: "「手法」のマップは、全層を通して注意をたどります。「削除と挿入」で、マップが正しいかを測れます。",
    },
  ],
  /** Of a convolutional network. */
  maps: [
    {
      at: ".stage",
      tab: "methods",
      en: "The brighter a place, the more it supports the class. The network computed this map (Grad-CAM) from its last features.",
      ja: "明るい場所ほど、そのクラスの根拠になっています。このマップ（Grad-CAM）は、ネットワークが最後の特徴から計算したものです。",
    },
    ANSWER,
    {
      at: ".predictions ol",
      tab: "methods",
      en: "Click another class to see what supports that one.",
      ja: "別のクラスをクリックすると、そのクラスの根拠が表示されます。",
    },
    COVER,
    {
      at: ".curves",
      tab: "methods",
      en: "Is the map right? Deletion and insertion cover its brightest places first, or show them first, and draw how the probability of the class changes.",
      ja: "マップは正しいでしょうか。「削除と挿入」は、明るい場所から順に隠したり見せたりして、クラスの確率の変化を描きます。",
    },
  ],
};
const WORDS = {
  en: { next: "Next", end: "Done", skip: "Skip", other: "日本語" },
  ja: { next: "次へ", end: "終わり", skip: "やめる", other: "English" },
};

const tour = {
  box: panel.querySelector(".tour"),
  language: navigator.language.startsWith("ja") ? "ja" : "en",
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
    if (tab && views[0].tab !== tab) changeView(0, { tab });
    requestAnimationFrame(() => this.mark(at)); // once the tab is there
    const words = WORDS[this.language];
    const text = this.box.querySelector("p");
    text.textContent = `${step + 1}/${steps.length} \u00b7 ${steps[step][this.language]}`;
    this.box.lang = this.language;
    this.box.querySelector("[name=next]").textContent =
      step + 1 < steps.length ? words.next : words.end;
    this.box.querySelector("[name=skip]").textContent = words.skip;
    this.box.querySelector("[name=language]").textContent = words.other;
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
part("language").onclick = () => {
  tour.language = tour.language === "en" ? "ja" : "en";
  tour.show(tour.step);
};
tour.box.onkeydown = ({ key }) => key === "Escape" && tour.end();
