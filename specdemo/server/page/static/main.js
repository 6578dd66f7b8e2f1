/* The page's scripts: Gradio calls what is exported here, once its parts are there. */
import { curvesOf } from "./chart.js";
import { button, harmless, isolated, isRunning, keepJson, make, unbreak } from "./dom.js";
import { Benchmark } from "./benchmark.js";
import { RaceView } from "./race.js";
import { asset, failure, openRun, page, stream } from "./server.js";
import { copyLink, DAMAGED, linkOf, unpack } from "./share.js";
import { Walk, drawPicture } from "./walk.js";

const MOST_VISITS = 12, EXAMPLES = "#sd-examples button";
const specdemo = window.specdemo, visits = [];
let race = null, walk = null, explained = null, formatted = null, query = [], differing = [];

/* A run that is opened never takes the place of one that is under way. */
const receive = (message) => (message.phase === "opened" && isRunning() ? null : race.receive(message));
const values = () => Object.fromEntries(query);

const speed = () => (race?.motion.chosen ? [["speed", race.motion.chosen]] : []);

/* Question and settings that differ from the defaults, speed and tab, in the address. */
const address = () => {
  const url = new URL(linkOf([...differing, ...speed()]));
  const tab = document.querySelector('[role="tab"][aria-selected="true"]');
  if (tab && tab.textContent.trim() !== "Race") url.searchParams.set("tab", tab.textContent.trim());
  history.replaceState(history.state, "", url + (location.hash.startsWith("#run=") ? location.hash : ""));
};

const showTab = (name) => [...document.querySelectorAll('[role="tab"]')]
  .find((tab) => tab.textContent.trim().toLowerCase() === name?.toLowerCase())?.click();

const addRun = (message) => {
  const { trace, verdict } = message, [shown] = curvesOf({ ...trace, verdict });
  const result = verdict.headline;
  const rate = trace.summary.acceptance_rate, name = isolated(trace.instruction.slice(0, 28));
  const title = `${trace.instruction.slice(0, 200)}: ${verdict.result ?? result}` + (rate == null ? "" : `, ${Math.round(100 * rate)} % accepted`);
  const curves = [{ name: `${name}: ${trace.summary.speedup?.toFixed(2) ?? "-"} times`, times: shown.spec.x, tokens: shown.spec.y }];
  const lay = button("+", () => {
    lay.ariaPressed = String(lay.ariaPressed !== "true");
    race.overlay(lay, lay.ariaPressed === "true" && curves);
  }, { className: "sd-lay", title: "Lay over the chart", ariaLabel: `Lay over the chart: ${title}`, ariaPressed: "false" });
  visits.push(make("li", "",
    button(`${name}: ${result}`, () => receive({ ...message, phase: "opened" }), { title }),
    lay));
  race.find(".sd-visit-list").append(visits.at(-1));
  if (visits.length > MOST_VISITS) visits.shift().remove();
};

/* Shows a run before the first question: the run of the link; else the first recorded one, unless the
   link has a question, whose race is offered. */
const openFirst = async () => {
  const [, packed] = location.hash.match(/^#run=(.*)/) ?? [];
  const text = packed && await unpack(packed).catch(() => null);
  const message = packed && (text === null ? failure(DAMAGED) : await openRun(text));
  const opened = message && message.phase !== "error";
  if (!opened && !race.run) {
    const recorded = await asset(specdemo.known.races[0][0]);
    const question = new URLSearchParams(location.search).get("question");
    if (question === null || question === recorded.trace.instruction) receive(recorded);
    else {
      explain(recorded);
      race.offer(question);
    }
  }
  if (message) receive(message);
  if (!opened) race.motion.start();
};

const explain = (message) => {
  drawPicture(message.trace);
  walk?.draw(message);
  explained = message;
};

export const mountRace = (element) => {
  const root = element.querySelector(".sd-view"), on = (name, event, act) => (
    root.querySelector(".sd-" + name).addEventListener(event, act));
  race = specdemo.race = new RaceView(root, {
    addressed: address,
    settled(message, watched) {
      explain(message);
      document.querySelector("#sd-settled")?.click();
      if (watched && message.trace.rounds.length) addRun(message);
    },
  });
  const recorded = race.find(".sd-recorded");
  recorded.append(...specdemo.known.races.map(([file, label]) => new Option(label, file)));
  recorded.onchange = async () => {
    receive(await asset(recorded.value));
    recorded.value = "";   // so that the same one can be chosen again
    race.motion.start();
  };
  on("short", "click", () => copyLink(race, query, speed(), false));
  on("link", "click", () => copyLink(race, query, speed(), true));
  on("download", "click", () => keepJson(race.trace, "specdemo-run.json"));
  on("open", "change", async ({ target }) => {
    receive(await openRun(await target.files[0].text()));
    root.querySelector(".sd-verdict").scrollIntoView({ block: "nearest" });
    target.value = "";
  });
  // Of the run that is shown: their curves are laid over its own.
  const shown = () => ({ ...values(), ...(race.trace && { question: race.trace.instruction }) });
  on("drafts", "click", () => !isRunning() && stream("drafts", shown(), receive));
  openFirst();
  addEventListener("hashchange", openFirst);
  document.querySelector("#sd-tabs").addEventListener("click", ({ target }) => (
    target.closest('[role="tab"]') && setTimeout(address)));
  showTab(new URLSearchParams(location.search).get("tab"));
};

/* The answer of the run on show as Markdown without markup of its own, and its code. */
export const texts = () => {
  const { python = "", curl = "" } = race.message?.program ?? {}, node = document.querySelector(".sd-more");
  if (node && !formatted) {   // Gradio makes what is inside when it is first opened
    formatted = new MutationObserver(() => unbreak(node));
    formatted.observe(node, { childList: true, subtree: true, characterData: true });
  }
  return [harmless(race.spec.text), python, curl.replace("{page}", page.slice(0, -1))];
};

export const mountBenchmark = (element) => new Benchmark(element.querySelector(".sd-bench"), values);

export const mountWalk = (element) => {
  walk = new Walk(element.querySelector(".sd-walk"), {
    watch(round) {
      showTab("Race");
      setTimeout(() => race.motion.goTo(round), 100);   // it scrolls there once the tab is shown
    },
    ask() {
      showTab("Race");
      document.querySelector(`${EXAMPLES}:last-child`).click();
      setTimeout(() => document.querySelector("#sd-run").click(), 300);   // Gradio takes a moment
    },
  });
  if (explained) walk.draw(explained);
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
  clearTimeout(settings.timer);
  settings.timer = setTimeout(address, 500);
};

export const ask = (inputs, present) => {
  if (isRunning() || !race) return;
  settings(inputs, present);
  Object.assign(race, { live: false, asked: values().question });
  receive({ phase: "loading", note: "Asking" });
  stream("race", values(), receive);
};

export { stop } from "./server.js";

Object.assign(specdemo, { receive, openRun, link: () => linkOf([...query, ...speed()]), values });
