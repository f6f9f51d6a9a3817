// The interface in English, Japanese or Chinese. The scripts of the pages write English; what words.json
// has of it is shown in the reader's language, what it lacks (names, captions from Python) stays as it is.
// The language is the browser's, that of the site around the frame, or the one that is chosen on the page.
(() => {
  const NAMES = { en: "English", ja: "日本語", zh: "中文" };
  const NEVER = "script, style, h1, h3, .item, .predictions .name, .tour"; // names, and what has languages of its own
  const ATTRIBUTES = ["aria-label", "title", "placeholder"];
  const english = new WeakMap(); // node or element -> {what was written}
  const shown = new WeakMap(); // ... -> {what stands there now}
  const asked = navigator.language.slice(0, 2);
  let language = NAMES[window.name] ? window.name : NAMES[asked] ? asked : "en";

  // "head {head}" as an expression, with the names of what stands in its places; the longest first.
  const patterns = Object.keys(INTERFACE)
    .filter((key) => key.includes("{"))
    .sort((a, b) => b.length - a.length)
    .map((key) => {
      const source = key.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{(\w+)\}/g, "(?<$1>.+?)");
      return [new RegExp(`^${source}$`), key];
    });

  function said(text) {
    if (INTERFACE[text]) return INTERFACE[text][language];
    const parts = text.split(" \u00b7 ");
    if (parts.length > 1) return parts.map(said).join(" \u00b7 ");
    for (const [pattern, key] of patterns) {
      const found = pattern.exec(text);
      if (found) return INTERFACE[key][language].replace(/\{(\w+)\}/g, (_, name) => found.groups[name]);
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
    if (root.nodeType !== Node.ELEMENT_NODE || root.matches(NEVER)) return;
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
    observer.observe(document.body, watched);
    document.documentElement.lang = language;
    each(document.body, (target, key, value, write) =>
      english.get(target)?.[key] === undefined ? put(target, key, value, write) : show(target, key, write));
  }

  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Language");
  choice.className = "item"; // a list of names
  for (const [value, text] of Object.entries(NAMES)) choice.add(new Option(text, value, false, value === language));
  choice.onchange = () => {
    language = choice.value;
    changeAll();
  };
  (document.querySelector(".actions") ?? document.querySelector("header")).append(choice);

  if (language !== "en") changeAll();
})();
