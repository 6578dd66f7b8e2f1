/* Small helpers of all modules. Text of models goes only into text nodes. */
export const make = (tag, cls, ...content) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...content);
  return node;
};

export const button = (label, onclick, more) => (
  Object.assign(make("button", "", label), { type: "button", onclick, ...more }));

export const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

export const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
/* As a reader would subtract what `seconds` shows. */
export const difference = (a, b) => Math.abs(a.toFixed(2) - b.toFixed(2));
export const milliseconds = (s) => (1000 * s).toFixed(s < .01 ? 1 : 0) + " ms";
export const share = (part, whole) => Math.round(100 * part / (whole || 1)) + " %";
export const counted = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
export const factor = (speedup) => (speedup < 1 ? `${(1 / speedup).toFixed(2)} times slower`
  : `${speedup.toFixed(2)} times faster`);
export const visible = (text) => (text.trim() ? text : text.replace(/\n/g, "⏎").replace(/ /g, "␣"));

/* Keeps a text in Arabic apart from the figures beside it. */
export const isolated = (text) => `\u2068${text}\u2069`;

/* Markdown of a model, in which no HTML, image or link can begin: a mark breaks what begins them. Once it
   is drawn `unbreak` takes the marks out of the texts of a node, which makes no elements. */
const MARK = "\u2060", COLOURED = "python|json|bash";   // Gradio fails to draw some other languages
const OTHER_LANGUAGE = new RegExp(`^( *(?:\`{3,}|~{3,}))(?!(?:${COLOURED}) *$).*$`, "gim");
export const harmless = (text) => text.replaceAll(MARK, "").replace(OTHER_LANGUAGE, "$1")
  .replace(/<(?=[a-z/!?])|!(?=\[)|\](?=[([:])/gi, `$&${MARK}`);
export const unbreak = (node) => {
  const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (texts.currentNode.data.includes(MARK)) texts.currentNode.data = texts.currentNode.data.replaceAll(MARK, "");
  }
};

const HIDDEN = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
export const quoted = (text) => `“${text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�")}”`;

export const table = (head, rows) => {
  const node = make("table"), top = node.createTHead().insertRow(), body = node.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return node;
};

/* A colour of style.css, as it is in the present theme. */
export const colour = (name) => {
  const probe = document.body.appendChild(make("span"));
  probe.style.color = `var(--sd-${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};

/* Lets a visitor keep `content` as a file. */
export const keep = (content, name, type) => {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

export const keepJson = (value, name) => keep(JSON.stringify(value, null, 1), name, "application/json");

export const isRunning = () => document.documentElement.classList.contains("sd-running");

/* Style.css shows the Stop button in place of the Run button, which keeps the focus. What would take the
   place of the live answer waits. */
export const showRunning = (running) => {
  const [gone, shown] = running ? ["#sd-run", "#sd-stop"] : ["#sd-stop", "#sd-run"];
  const focused = document.activeElement?.matches(gone);
  document.documentElement.classList.toggle("sd-running", running);
  for (const node of document.querySelectorAll(".sd-visits, .sd-file")) node.inert = running;
  if (focused) document.querySelector(shown).focus();
};

/* Scrolls to what a click has changed, unless it can be seen. */
export const bringIntoView = (node) => {
  const { top, bottom } = node.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) node.scrollIntoView({ block: "start" });
};
