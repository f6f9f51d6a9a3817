// A short tour for whoever sees attention for the first time: five steps, in English or Japanese.

const TOUR = [
  {
    at: ".stage",
    en: "Click anywhere on the photo. The frame is a patch that asks; the colours show which other patches it takes its answer from.",
    ja: "写真をクリックしてください。枠は「問い」を出すパッチで、色はそのパッチがどのパッチから答えを得ているかを示します。",
  },
  {
    at: ".attention",
    en: "Each row is a layer, each column one of its heads, which all look in their own way. Click one to see it on the photo.",
    ja: "行は層、列はその層のヘッドで、それぞれ別の見方をします。クリックすると写真の上に表示されます。",
  },
  {
    at: ".predictions",
    en: "What the network believes to see. It was computed just now, in this page, by the network itself.",
    ja: "ネットワークが何を見ていると考えているかです。今、このページの中でネットワーク自身が計算しました。",
  },
  {
    at: ".whatif",
    en: "Choose Cover and brush over a part of the photo. The network looks again, and beside each class stands how much it changed: if it fell, that part mattered.",
    ja: "「Cover」を選び、写真の一部をなぞって隠してください。ネットワークがもう一度見て、各クラスの変化が横に表示されます。下がれば、そこが重要だったということです。",
  },
  {
    at: ".tabs",
    en: "Methods follow attention through all layers at once. Deletion and insertion there measure whether such a map is right.",
    ja: "「Methods」は全層を通した注意の地図です。そこの「Deletion and insertion」で、地図が正しいかを測れます。",
  },
];
const WORDS = {
  en: { next: "Next", end: "Done", skip: "Skip", other: "日本語" },
  ja: { next: "次へ", end: "終わり", skip: "やめる", other: "English" },
};

const tour = {
  box: panel.querySelector(".tour"),
  language: navigator.language.startsWith("ja") ? "ja" : "en",
  step: null, // of TOUR; null: not on

  show(step) {
    document.querySelector(".toured")?.classList.remove("toured");
    this.step = step < TOUR.length ? step : null;
    this.box.hidden = this.step === null;
    if (this.step === null) return;
    const place = [...document.querySelectorAll(TOUR[step].at)].find((one) => one.offsetParent);
    place?.classList.add("toured");
    const words = WORDS[this.language];
    const text = this.box.querySelector("p");
    text.textContent = `${step + 1}/${TOUR.length} \u00b7 ${TOUR[step][this.language]}`;
    this.box.lang = this.language;
    this.box.querySelector("[name=next]").textContent =
      step + 1 < TOUR.length ? words.next : words.end;
    this.box.querySelector("[name=skip]").textContent = words.skip;
    this.box.querySelector("[name=language]").textContent = words.other;
    place?.scrollIntoView({ block: "nearest" });
  },
};

part("tour").onclick = () => {
  tour.show(0);
  part("next").focus();
};
part("next").onclick = () => tour.show(tour.step + 1);
part("skip").onclick = () => tour.show(TOUR.length);
part("language").onclick = () => {
  tour.language = tour.language === "en" ? "ja" : "en";
  tour.show(tour.step);
};
tour.box.onkeydown = ({ key }) => key === "Escape" && tour.show(TOUR.length);
