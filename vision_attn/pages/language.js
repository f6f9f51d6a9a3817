// The pages in English, Japanese or Chinese. Python and the scripts write English; what words.json has of it
// is shown in the reader's language, what it lacks (names, errors) stays as it is.
// The language is the browser's, that of the site around the frame, or the one that is chosen on the page.
(() => {
  const NAMES = { en: "English", ja: "日本語", zh: "中文" };
  const NEVER = "script, style, code, kbd, [translate=no], .item, .predictions .name"; // names; what they are is said
  const ATTRIBUTES = ["aria-label", "title", "placeholder", "alt", "aria-valuetext", "data-column"];
  const english = new WeakMap(); // node or element -> {what was written}
  const shown = new WeakMap(); // ... -> {what stands there now}
  const asked = navigator.language.slice(0, 2);
  let language = NAMES[window.name] ? window.name : NAMES[asked] ? asked : "en";
  let remembered = new Map();

  // A template as an expression. In it {Name} stands for numbers, {NAME} for a name without a space, {_name} for
  // words that have a translation, too, {__name} for several of them with semicolons, {name} for anything, which
  // stays. Of several that fit, the one without {name} counts, then the one with most words of its own.
  const NUMBER = "(?=[^\\s,;]*\\d|[–−]|nan|inf)(?:[^\\s,;]|,(?=\\d))+?";
  const HOLES = [
    [/^[A-Z]+$/, "[^\\s,;]+"],
    [/^[A-Z]/, `${NUMBER}(?:, ${NUMBER})*?(?:[ \u00a0]%)?`],
    [/^_[a-z]/, "[^;]+?"],
    [/^/, ".+?"],
  ];
  const holeOf = (name) => HOLES.find(([kind]) => kind.test(name))[1];
  const anything = (key) => /\{[a-z]/.test(key);
  const wordsOf = (key) => key.replace(/\{\w+\}/g, "").length;
  const patterns = Object.keys(INTERFACE)
    .filter((key) => key.includes("{"))
    .sort((a, b) => anything(a) - anything(b) || wordsOf(b) - wordsOf(a) || b.length - a.length)
    .map((key) => {
      const source = key
        .replace(/[.*+?^$()|[\]\\]/g, "\\$&")
        .replace(/\{(\w+)\}/g, (_, name) => `(?<${name}>${holeOf(name)})`);
      return [new RegExp(`^${source}$`, "s"), key];
    });

  // What stands between parts: in English, and in the others where all parts are known. Parts of a list alone
  // are not translated: they may be names.
  const BETWEEN = [
    { at: /(?<=[.?!])(?<!\bal\.) (?=[A-Z“\d])/, en: " ", ja: "", zh: "" }, // sentences
    { at: " \u00b7 ", ja: " \u00b7 ", zh: " \u00b7 " },
    { at: "; ", ja: "; ", zh: "；" },
    { at: ": ", ja: ": ", zh: "：" },
    { at: ", ", ja: "、", zh: "，", list: true },
  ];

  /** The words in the language, or null where a part of them is not known. */
  function known(text) {
    if (!remembered.has(text)) remembered.set(text, find(text));
    return remembered.get(text);
  }

  function find(text) {
    if (INTERFACE[text]) return INTERFACE[text][language];
    if (!/[A-Za-z]/.test(text)) return text;
    const [sentences, ...others] = BETWEEN;
    const sentence = text.endsWith(".") && !sentences.at.test(text) && known(text.slice(0, -1));
    if (sentence) return `${sentence}。`;
    return inParts(text, sentences) ?? filled(text) ?? others.reduce((found, one) => found ?? inParts(text, one), null);
  }

  /** The template that fits, with what stands in it; null where there is none. */
  function filled(text) {
    for (const [pattern, key] of patterns) {
      const values = { ...pattern.exec(text)?.groups };
      const names = Object.keys(values);
      for (const name of names) if (name.startsWith("_")) values[name] = known(values[name]);
      if (names.length && names.every((name) => values[name] !== null))
        return INTERFACE[key][language].replace(/\{(\w+)\}/g, (_, name) => values[name]);
    }
    return null;
  }

  /** All parts in the language; null where there is but one, or one is not known. */
  function inParts(text, between) {
    const parts = text.split(between.at);
    if (parts.length < 2 || parts.some((part) => known(part) === null)) return null;
    return parts.map(known).join(between[language]);
  }

  /** The same, with what is not known as it is. */
  function said(text) {
    const found = known(text);
    if (found !== null) return found;
    for (const { at, list, [language]: local, en = local } of BETWEEN) {
      const parts = list ? [] : text.split(at);
      const words = parts.length > 1 ? parts.map(said) : [];
      if (words.some((word, place) => word !== parts[place])) return words.join(en).replaceAll("。 ", "。");
    }
    return text;
  }

  /** The text of a node or an attribute in the language; key: what of `target` it is. */
  function put(target, key, value, write) {
    if (value === null || shown.get(target)?.[key] === value) return;
    english.set(target, { ...english.get(target), [key]: value });
    show(target, key, write);
  }

  function show(target, key, write) {
    const text = english.get(target)[key];
    const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
    const now = language === "en" || !words ? text : before + said(words) + after;
    shown.set(target, { ...shown.get(target), [key]: now });
    write(now);
  }

  function each(root, act) {
    if (root.parentElement?.closest(NEVER)) return;
    if (root.nodeType === Node.TEXT_NODE) return act(root, "text", root.data, (text) => (root.data = text));
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    for (const name of ATTRIBUTES)
      if (root.hasAttribute(name)) act(root, name, root.getAttribute(name), (text) => root.setAttribute(name, text));
    for (const child of root.childNodes) each(child, act);
  }

  const observer = new MutationObserver((records) => {
    for (const { type, target, addedNodes } of records)
      for (const root of type === "childList" ? addedNodes : [target]) each(root, put);
  });
  const watched = { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES };

  function changeAll() {
    remembered = new Map();
    observer.observe(document.body, watched);
    document.documentElement.lang = language;
    for (const root of [document.querySelector("title"), document.body])
      each(root, (target, key, value, write) =>
        english.get(target)?.[key] === undefined ? put(target, key, value, write) : show(target, key, write));
  }

  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Language · 言語 · 语言");
  choice.className = "item"; // a list of names
  for (const [value, text] of Object.entries(NAMES)) choice.add(new Option(text, value, false, value === language));
  choice.onchange = () => {
    language = choice.value;
    changeAll();
  };
  (document.querySelector(".actions") ?? document.querySelector("header")).append(choice);

  if (language !== "en") changeAll();
})();
