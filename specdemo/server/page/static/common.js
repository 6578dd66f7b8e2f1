/* Helpers of all modules: elements, words and figures, and what is asked of the server. Text of models
   goes only into text nodes. */
export const make = (tag, className, ...content) => {
  const node = Object.assign(document.createElement(tag), { className });
  node.append(...content);
  return node;
};

export const button = (label, onclick, more) => (
  Object.assign(make("button", "", label), { type: "button", onclick, ...more }));

export const say = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/* The line in place of that of the models, "" for none. */
export const sayStatus = (text) => {
  say(document.querySelector(".sd-status"), text);
  document.documentElement.classList.toggle("sd-status-said", text !== "");
};

export const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
export const milliseconds = (s) => (1000 * s).toFixed(s < .01 ? 1 : 0) + " ms";
export const percent = (share) => Math.round(100 * share) + "%";
export const counted = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
export const times = (speedup) => speedup.toFixed(2) + "x";
export const visible = (text) => (text.trim() ? text : text.replace(/\n/g, "⏎").replace(/ /g, "␣"));

/* The names of the sources of draft tokens. */
export const SOURCES = new Map(Object.entries(window.specdemo.known.sources));

const HIDDEN = /[\u0000-\u001f\u007f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
export const quoted = (text) => `“${text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�")}”`;

export const table = (head, rows) => {
  const node = make("table", ""), top = node.createTHead().insertRow(), body = node.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return node;
};

/* A colour of style.css, as it is in the present theme. */
export const colour = (name) => {
  const probe = document.body.appendChild(make("span", "sd-probe"));
  probe.style.color = `var(--sd-${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};

/* Calls `act` when the theme may have changed. */
export const onTheme = (act) => {
  new MutationObserver(act).observe(document.body, { attributeFilter: ["class"] });
  matchMedia("(forced-colors: active)").addEventListener("change", act);
};

/* Lets a visitor keep `content` as a file. */
export const keep = (content, name, type) => {
  const href = URL.createObjectURL(new Blob([content], { type }));
  Object.assign(make("a", ""), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
};

export const keepJson = (value, name) => keep(JSON.stringify(value, null, 1), name, "application/json");

export const still = matchMedia("(prefers-reduced-motion: reduce)");

export const isRunning = () => document.documentElement.classList.contains("sd-running");

/* Style.css shows the Stop button in place of the Run button, which keeps the focus, as it does where the
   focus was on what waits: it would take the place of the live answer. */
export const showRunning = (running) => {
  const [gone, shown] = running ? ["#sd-run", "#sd-stop"] : ["#sd-stop", "#sd-run"];
  const focused = document.activeElement?.closest(running ? `${gone}, .sd-visits, .sd-file` : gone);
  document.documentElement.classList.toggle("sd-running", running);
  for (const node of document.querySelectorAll(".sd-visits, .sd-file")) node.inert = running;
  if (focused) document.querySelector(shown).focus({ preventScroll: true });
};

/* Scrolls to what a click has changed, unless it can be seen. */
export const bringIntoView = (node) => {
  const { top, bottom } = node.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) node.scrollIntoView({ block: "start" });
};

export const page = location.origin + location.pathname;
const visitor = crypto.getRandomValues(new Uint8Array(12)).reduce((name, byte) => name + byte.toString(36), "");
const LARGEST_RUN = 2.5e6;   // characters

export const failure = (note) => ({ phase: "error", note });
const LOST = { ...failure("The server does not answer. Reconnecting."), lost: true };

const post = (path, body) => fetch(page + path, { method: "POST",
  headers: { "Content-Type": "application/json" }, body: JSON.stringify({ visitor, ...body }) });
const refusal = ({ error }) => (error?.message ? failure(error.message) : LOST);

const ENDS = ["done", "stopped", "error"];

/* Gives `receive` each message of a run of these input values, by name, as it comes. */
export const stream = async (path, values, receive) => {
  try {
    const response = await post(path, { values });
    if (!response.ok) return receive(refusal(await response.json()));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let phase = "";
    for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n\n");
      rest = lines.pop();
      for (const line of lines.filter((line) => line !== ":")) {
        const message = JSON.parse(line.slice("data: ".length));
        phase = message.phase;
        receive(message);
      }
    }
    if (!ENDS.includes(phase)) receive(LOST);   // a proxy may end a stream that was cut
  } catch {
    receive(LOST);
  }
};

export const stop = () => post("stop", {}).catch(() => {});

/* The message of a run that was measured before, from its JSON. */
export const openRun = async (run) => {
  if (run.length > LARGEST_RUN) return failure("The run is larger than 2.5 MB.");
  const message = await post("open", { run }).then((response) => response.json()).catch(() => ({}));
  return message.phase ? message : refusal(message);
};

/* Waits until the server answers again. */
export const reconnected = async () => {
  do await new Promise((resolve) => setTimeout(resolve, 2000));
  while (!await fetch(page + "health").then(({ ok }) => ok, () => false));
};

export const asset = (name) => (
  fetch(new URL(name, import.meta.url)).then((response) => response.json()).catch(() => LOST));
