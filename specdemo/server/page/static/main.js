/* The page's scripts: Gradio calls what is exported here, once its parts are there. */
import { mountBenchmark as mountCharts } from "./chart.js";
import { asset, button, failure, isRunning, keepJson, make, openRun, page, percent, reconnected, say, sayStatus, stop,
  stream } from "./common.js";
import { mountTour } from "./player.js";
import { RaceView } from "./race.js";

const MAX_VISITS = 12, specdemo = window.specdemo;
let race = null, formatted = null, query = [], differing = [], wanted = 0;

/* A run that is opened never takes the place of one that is under way. */
const receive = async (message) => {
  if (message.phase === "opened" && isRunning()) return;
  race.receive(message);
  if (!message.lost) return;
  await reconnected();
  if (!isRunning()) race.receive({ phase: "idle", note: "The server is back. Press Run to ask again." });
};

/* Shows the messages of a run, unless another was wanted since: its repeats may go on in the background. */
const follow = (path, inputs) => {
  const turn = wanted += 1;
  return stream(path, inputs, (message) => turn === wanted && receive(message));
};

/* Shows a run that is on its way, unless another was wanted since; gives whether it did. */
const open = async (coming) => {
  const turn = wanted += 1, message = await coming;
  if (turn !== wanted || isRunning()) return false;
  receive(message);
  return message.phase === "opened";
};

/* Repeats in the background end with anything that the visitor does after they began. It may be the next
   question, which ends them itself, and whose own repeats go on. */
const endRepeats = () => {
  const of = isRepeated() && race.run;
  if (of) setTimeout(() => isRepeated() && race.run === of && stop(), 300);
};
const isRepeated = () => race?.root.dataset.phase === "again";
for (const act of ["pointerdown", "keydown", "wheel"]) addEventListener(act, endRepeats, { passive: true });

const values = () => Object.fromEntries(query);
const parameter = (name) => new URLSearchParams(location.search).get(name);

const speed = () => (race?.motion.chosen ? [["speed", race.motion.chosen]] : []);

/* The question, and the settings that differ from the defaults. */
const given = () => [["question", values().question ?? ""], ...differing.filter(([name]) => name !== "question")];

/* A link with these values by name. */
const linkOf = (pairs) => `${page}?${new URLSearchParams(pairs)}`.replace(/\?$/, "");

/* Question and settings that differ from the defaults, speed and tab, in the address. */
const address = () => {
  const tab = document.querySelector('[role="tab"][aria-selected="true"]')?.textContent.trim() ?? "Race";
  const link = linkOf([...differing, ...speed(), ...(tab === "Race" ? [] : [["tab", tab]])]);
  history.replaceState(history.state, "", link + (location.hash.startsWith("#run=") ? location.hash : ""));
};

const showTab = (name) => [...document.querySelectorAll('[role="tab"]')]
  .find((tab) => tab.textContent.trim().toLowerCase() === name?.toLowerCase())?.click();

/* A long link holds a whole run in its fragment: JSON, deflated, in base64url. No server keeps it. */
const LONGEST_LINK = 60000;   // characters
const DAMAGED = "The run in this link cannot be read: the link is damaged or was cut off.";
const TOO_LONG = " It holds the question only, since the run is too long for a link. Download the run instead.";
const CURVES = ["times", "tokens", "baseline_times"];   // of other races: left out of links

const through = (bytes, converter) =>
  new Response(new Blob([bytes]).stream().pipeThrough(converter)).arrayBuffer();

const pack = async ({ summary, verdict, repeats, ...trace }) => {
  const short = (_, value) => (Number.isInteger(value) || typeof value !== "number" ? value
    : Number(value.toFixed(5)));
  const others = repeats.map((one) => Object.fromEntries(
    Object.entries(one).filter(([name]) => !CURVES.includes(name))));
  const text = JSON.stringify({ ...trace, repeats: others }, short);
  const bytes = new Uint8Array(await through(text, new CompressionStream("deflate-raw")));
  const binary = bytes.reduce((all, byte) => all + String.fromCharCode(byte), "");
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
};

const unpack = async (text) => {
  if (text.length > LONGEST_LINK) throw new RangeError("no link of ours");   // may inflate hugely
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (byte) => byte.charCodeAt(0));
  const inflated = await through(bytes, new DecompressionStream("deflate-raw"));
  return new TextDecoder("utf-8", { fatal: true }).decode(inflated);
};

/* Shows a link to the run, or to the question only, and copies it. */
const copyLink = async (withRun) => {
  const box = race.find(".sd-link-text"), { trace } = race, same = trace.instruction === values().question;
  const short = linkOf([...(withRun && !same ? [] : given()), ...speed()]);
  const link = withRun ? `${short}#run=${await pack(trace)}` : short, long = link.length > LONGEST_LINK;
  box.value = long ? short : link;
  box.hidden = false;
  box.select();
  const copied = await navigator.clipboard?.writeText(box.value).then(() => true, () => false);
  say(race.find(".sd-kept"), (copied ? "Copied." : "Copy it from the box.") + (long ? TOO_LONG : ""));
};

const addRun = (message) => {
  const { trace, verdict } = message, { acceptance_rate: rate } = trace.summary, result = verdict.headline;
  const name = `\u2068${trace.instruction.slice(0, 28)}\u2069`;   // keeps Arabic apart from the figures
  const title = `${trace.instruction.slice(0, 200)}: ${verdict.result ?? result}`
    + (rate == null ? "" : `, ${percent(rate)} accepted`);
  const again = () => open({ ...message, phase: "opened" }), visits = race.find(".sd-visit-list");
  visits.append(make("li", "", button(`${name}: ${result}`, again, { title })));
  if (visits.children.length > MAX_VISITS) visits.firstChild.remove();
  visits.scrollLeft = visits.scrollWidth;
};

/* Puts the question of a recorded race into the box. */
const fillQuestion = (text) => {
  const box = document.querySelector("#sd-question textarea");
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
};

/* Shows a run before the first question: the run of the link, else the first recorded one. */
const openFirst = async () => {
  const [, packed] = location.hash.match(/^#run=(.*)/) ?? [];
  const text = packed && await unpack(packed).catch(() => null);
  const message = packed && (text === null ? failure(DAMAGED) : await openRun(text));
  const opened = message && message.phase !== "error", question = parameter("question");
  if (!opened && !race.run) {
    receive(await asset(specdemo.known.races[0][0]));
    document.documentElement.classList.toggle("sd-asks", question !== null && question !== race.trace?.instruction);
  }
  if (message) receive(message);
  else sayRefused();   // which may have come before
  if (!opened) race.motion.start();
};

const sayRefused = () => specdemo.refused && sayStatus(specdemo.refused);

/* Says which values of a link are not possible here. */
const tellRefused = (inputs, present) => {
  const refused = inputs.map(([name], place) => [name, parameter(name), String(present[place] ?? "")])
    .filter(([name, asked, value]) => asked !== null && name !== "question" && asked !== value
      && Number(asked) !== Number(value));
  if (refused.length) specdemo.refused = "This link asks for what is not offered here: "
    + `${refused.map(([name, asked]) => `${name}=${asked.slice(0, 60)}`).join(", ")}.`;
  sayRefused();
};

/* Gradio fills its rows one after the other: nothing is shown before all are there. */
const showPage = () => {
  const rows = ["ask", "examples", "settings"].map((name) => document.querySelector("#sd-" + name));
  if (rows.includes(null)) return requestAnimationFrame(showPage);
  document.querySelector(".sd-first")?.remove();
  document.documentElement.classList.add("sd-ready");
};

export const mountRace = (element) => {
  race = specdemo.race = new RaceView(element.querySelector(".sd-view"), {
    addressed: address,
    settled(message, watched, again) {
      document.querySelector("#sd-settled")?.click();
      if (watched) message.values = race.values;
      if (again) race.find(".sd-visit-list").lastChild?.remove();   // as it was before the repeats
      if (watched && message.trace.rounds.length) addRun(message);
    },
  });
  mountTour(element.querySelector(".sd-tour"), race);
  const recorded = race.find(".sd-recorded");
  const on = (name, act) => race.find(".sd-" + name).addEventListener("click", act);
  recorded.append(...specdemo.known.races.map(([file, label]) => new Option(label, file)));
  recorded.onchange = async () => {
    const coming = asset(recorded.value);
    recorded.value = "";   // so that the same one can be chosen again
    if (!await open(coming)) return;
    fillQuestion(race.trace.instruction);
    race.motion.start();
  };
  on("short", () => copyLink(false));
  on("link", () => copyLink(true));
  on("download", () => keepJson(race.trace, "specdemo-run.json"));
  race.find(".sd-open").onchange = async ({ target }) => {
    await open(target.files[0].text().then(openRun));
    race.find(".sd-panes").scrollIntoView({ block: "nearest" });
    target.value = "";
  };
  on("drafts", () => !isRunning() && follow("drafts", race.message.values));   // as the run on show was asked
  showPage();
  openFirst();
  addEventListener("hashchange", openFirst);
  document.querySelector("#sd-tabs").addEventListener("click", ({ target }) => (
    target.closest('[role="tab"]') && setTimeout(address)));
  showTab(parameter("tab"));
};

export const mountBenchmark = (element) => mountCharts(element, values);

/* Markdown of a model, in which no HTML, image or link can begin: a mark breaks what begins them. Once it
   is drawn, the marks are taken out of the texts of the node, which makes no elements. */
const MARK = "\u2060", COLOURED = "python|json|bash";   // Gradio fails to draw some other languages
const OTHER_LANGUAGE = new RegExp(`^( *(?:\`{3,}|~{3,}))(?!(?:${COLOURED}) *$).*$`, "gim");
const harmless = (text) => text.replaceAll(MARK, "").replace(OTHER_LANGUAGE, "$1")
  .replace(/<(?=[a-z/!?])|!(?=\[)|\](?=[([:])/gi, `$&${MARK}`);
const takeOutMarks = (node) => {
  const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (texts.currentNode.data.includes(MARK)) texts.currentNode.data = texts.currentNode.data.replaceAll(MARK, "");
  }
};

/* The answer of the run on show as Markdown without markup of its own. */
export const formattedAnswer = () => {
  const node = document.querySelector(".sd-more");
  if (node && !formatted) {   // Gradio makes what is inside when it is first opened
    formatted = new MutationObserver(() => takeOutMarks(node));
    formatted.observe(node, { childList: true, subtree: true, characterData: true });
  }
  return harmless(race.spec.text);
};

/* The inputs as [name, label, default value], and their present values. */
export const settings = (inputs, present) => {
  query = inputs.map(([name], place) => [name, present[place] ?? ""]);
  const changed = inputs.map(([name, label, usual], place) => ({ name, label, value: present[place], usual }))
    .filter(({ value, usual }) => String(value ?? "") !== String(usual ?? ""));
  differing = changed.map(({ name, value }) => [name, value]);
  const changes = changed.filter(({ label, name }) => label && name !== "json_schema")
    .map(({ label, value }) => `${label.toLowerCase()} ${value}`);
  const title = document.querySelector("#sd-settings button");
  const note = title?.querySelector(".sd-differ") ?? make("span", "sd-differ");
  note.textContent = changes.join(", ");
  title?.firstElementChild.after(note);
  document.documentElement.classList.toggle("sd-as-json", !!values().json_schema);
  document.documentElement.classList.toggle("sd-own-pair", values().pair === "own");
  if (!settings.timer) tellRefused(inputs, present);
  clearTimeout(settings.timer);
  settings.timer = setTimeout(address, 500);
};

export const ask = (inputs, present) => {
  if (isRunning() || !race) return;
  settings(inputs, present);
  history.replaceState(history.state, "", location.href.split("#")[0]);   // its run is another question's
  address();   // at once: a short answer may have come, and the page be loaded again, within the timer
  Object.assign(race, { live: false, asked: values().question, values: values() });
  document.documentElement.classList.remove("sd-asks");
  receive({ phase: "loading", note: "Asking" });
  follow("race", values());
};

export { stop };

Object.assign(specdemo, { receive, openRun, link: () => linkOf([...given(), ...speed()]) });
