/* The race tab: takes the messages of events.py, and shows a race as it runs and as it was. The work
   per message depends on its new items, not on those shown before. */
import { addExports, draw, drawEngineering, playheadAt, raceFigure, raceRows } from "./chart.js";
import { SOURCES, bringIntoView, counted, isRunning, make, onTheme, percent, quoted, say, seconds, showRunning,
  visible } from "./common.js";
import { Player } from "./player.js";

const RUNNING = ["speculative", "baseline", "again", "waiting", "loading", "drafts"];
const KEEPING = ["waiting", "loading", "error", "drafts"];   // what was shown before stays
const MAX_ROWS = 400;
const CARD = [".sd-asked", ".sd-headline", ".sd-reading", ".sd-sentence", ".sd-origin"];   // of a picture

export class RaceView {
  constructor(root, hooks) {
    Object.assign(this, { root, hooks, run: "", asked: "", trace: null, live: false, overlays: new Map() });
    this.find = (name) => root.querySelector(name);
    this.state = document.querySelector(".sd-state");
    this.spec = new Runner(this.find(".sd-racer-spec"), this.find(".sd-text-spec"));
    this.baseline = new Runner(this.find(".sd-racer-baseline"), this.find(".sd-text-baseline"));
    this.runners = [this.spec, this.baseline];
    this.strip = this.find(".sd-strip");
    this.player = this.find(".sd-player");
    this.tokenLine = new TokenLine(this.find(".sd-about"), this.spec, this.strip, (round) => this.point(round));
    this.motion = new Player(this);
    onTheme(() => {
      this.drawChart();
      this.find(".sd-engineers").ontoggle?.();
    });
    this.find(".sd-chart").addEventListener("resize", () => this.point());   // its legend may be higher
    addExports(this.find(".sd-exports"), "specdemo-race", { nodes: () => [this.find(".sd-chart")],
      lines: () => CARD.map((name) => this.find(name).textContent), rows: () => raceRows(this.message) });
  }

  get duration() { return Math.max(this.spec.length, this.baseline.length); }

  receive(message) {
    const { trace, phase, note = "", verdict } = message, failed = phase === "error";
    const running = RUNNING.includes(phase);
    say(this.state.querySelector(".sd-status"), failed ? "" : note);
    say(this.state.querySelector(".sd-error"), failed ? note : "");
    this.root.dataset.phase = phase;
    showRunning(running);
    if (failed) {
      bringIntoView(this.state);
      if (this.live) this.tell({ tone: "neutral", headline: "No answer", sentence: "" });
      this.root.toggleAttribute("data-empty", !this.spec.events.length);
      this.live = false;
    }
    if (message.drafts) this.overlay("drafts", message.drafts);
    if (!running && !trace && this.trace) this.drawChart();   // after a race of the drafts
    if (KEEPING.includes(phase) || !trace && !running) return;
    if (!this.live || trace) this.reset(phase);
    const { rounds = [], baseline } = trace ?? message;
    this.addAll(rounds, baseline?.tokens ?? baseline ?? []);
    if (trace) return this.settle(message, phase !== "opened");
    if (phase === "again") this.tell(verdict);
    this.show(Infinity);
  }

  reset(phase) {
    if (phase === "opened" || !this.live) this.run = String(Number(this.run) + 1);
    Object.assign(this, { live: phase !== "opened", trace: null });
    this.overlays.clear();
    for (const node of this.root.querySelectorAll(".sd-lay")) node.ariaPressed = "false";
    this.motion.play(false);
    this.motion.drawn = null;
    delete this.root.dataset.settled;
    this.root.removeAttribute("data-empty");
    this.find(".sd-plot").dataset.run = "";   // style.css hides the chart of the run before
    for (const runner of this.runners) runner.clear();
    this.strip.replaceChildren();
    this.tokenLine.pick(null);
    this.find(".sd-shown").hidden = false;
    this.find(".sd-link-text").hidden = this.find(".sd-playhead").hidden = true;
    for (const name of ["kept", "caption", "time"]) say(this.find(".sd-" + name), "");
    if (this.live) bringIntoView(this.find(".sd-verdict"));
    this.tell({ tone: "running", headline: "Racing", sentence: "First with drafts, then one token "
      + "at a time: one run after the other, so that neither takes the processor from the other." });
  }

  tell({ tone, headline, sentence, notes = [], identity = "", races = [] }, message = {}) {
    const { reading = "", origin = "", recorded = false } = message;
    const card = this.find(".sd-verdict"), asked = quoted(this.trace?.instruction ?? this.asked);
    card.dataset.tone = tone;
    card.toggleAttribute("data-recorded", recorded);
    const words = { asked, headline, reading, sentence, notes: notes.join(" "), origin, identity };
    for (const [name, text] of Object.entries(words)) say(this.find(".sd-" + name), text);
    drawDots(this.find(".sd-dots"), races, notes);
  }

  /* Asks for the race of a question that a link brought: no other result stands under it. */
  offer(question) {
    this.asked = question;
    this.reset("opened");
    this.root.toggleAttribute("data-empty", true);
    this.tell({ tone: "neutral", headline: "Not raced yet",
      sentence: "Press Run: this server answers it twice, with drafts and without." });
  }

  addAll(rounds, tokens) {
    for (const round of rounds) {
      const { nodes, row } = this.tokenLine.round(round, this.spec.events.length, this.spec.tokens);
      this.spec.add(round.shown_at, nodes, { ...round, row });
    }
    for (const { shown_at: time, text } of tokens) {
      this.baseline.add(time, [make("span", "", text)]);
    }
  }

  /* Shows both runs as they were `t` seconds after their first tokens; Infinity shows everything. */
  show(t) {
    const { spec, duration, live } = this, time = Math.min(t, duration);
    const span = live ? 2 ** Math.max(0, Math.ceil(Math.log2(duration || 1))) : duration;
    for (const runner of this.runners) runner.show(time, span);
    if (!live) this.motion.draw(t);
    // Last, since it makes the browser compute the layout.
    if (live || t < Infinity) this.scroll(1e6);
    this.root.toggleAttribute("data-moving", !live && t < Infinity);
    if (live) return;
    this.point();
    const seek = this.find(".sd-seek"), place = `${seconds(time)}, round ${spec.shown} of ${spec.events.length}`;
    seek.value = duration ? Math.round(1000 * time / duration) : 1000;
    seek.setAttribute("aria-valuetext", place);
    say(this.find(".sd-time"), place);
  }

  /* A line over the chart at the end of a round, or else at the moment that is shown. */
  point(round) {
    const { spec, motion, duration } = this, head = this.find(".sd-playhead");
    const time = round === undefined ? motion?.view ?? Infinity : spec.spent(round + 1);
    head.hidden = this.live || time === Infinity;
    if (!head.hidden) Object.assign(head.style, playheadAt(this.find(".sd-chart"), time, this.span ?? duration));
  }

  /* The end of a run: shows the words, the figures and the controls that need a whole trace. */
  settle(message, watched) {
    const { spec, runners } = this, { trace, verdict, curve, model } = message;
    Object.assign(this, { trace, message, live: false });
    this.root.dataset.settled = this.run;
    this.root.toggleAttribute("data-empty", !trace.rounds.length);
    this.tell(verdict, message);
    if (watched) say(document.querySelector(".sd-models"), `Ready: ${model}.`);
    const stopped = trace.identical === null, cut = ["length", "context"].includes(trace.finish_reason);
    for (const runner of runners) {
      const node = runner.box.children[verdict.difference ?? -1];
      node?.classList.add("sd-parted");
      if (cut && !(stopped && runner !== spec)) runner.box.dataset.cut = `cut at ${counted(runner.tokens, "token")}`;
    }
    const { prompt_reused: reused, prompt_tokens: prompt } = trace;
    say(this.find(".sd-prefill"), `Reading the question (${seconds(trace.prefill_seconds)}, the same for both) `
      + `is not included${reused ? `; ${reused} of its ${prompt} tokens were in the cache` : ""}.`);
    // Not earlier: during a race, drawing the rows would take time from it.
    this.strip.append(...spec.events.slice(0, MAX_ROWS).map((one) => one.row));
    drawEngineering(this.find, trace, curve);
    this.motion.jump(Infinity);
    this.drawChart();
    this.hooks.settled(message, watched);
    if (watched) bringIntoView(this.find(".sd-verdict"));
    const ends = runners.map(({ tokens, length }) => `${tokens} tokens in ${seconds(length)}`);
    this.find(".sd-chart").ariaLabel = `Tokens against seconds: speculative ${ends[0]}, autoregressive ${ends[1]}`;
  }

  /* Lays curves over the chart, of drafters or of another run; without `curves` takes those of the
     same `owner` away. */
  overlay(owner, curves) {
    if (curves) this.overlays.set(owner, curves.map(({ name, times, tokens, speedup, acceptance_rate: rate }) => ({
      name: speedup == null ? name : `${name}: ${speedup.toFixed(2)} times`
        + (rate == null ? "" : `, ${percent(rate)} accepted`), x: times, y: tokens })));
    else this.overlays.delete(owner);
    this.drawChart();
  }

  drawChart() {
    window.cancelIdleCallback?.(this.idle);   // which Safari has not
    const act = () => {
      if (!this.trace || isRunning()) return;
      const { span, ...figure } = raceFigure(this.message, [...this.overlays.values()].flat());
      this.span = span;
      this.find(".sd-plot").dataset.run = this.run;
      draw(this.find(".sd-chart"), figure).then(() => this.live || this.show(this.motion.view))
        .catch((error) => say(this.find(".sd-chart"), error.message));
    };
    this.idle = window.requestIdleCallback?.(act, { timeout: 1500 }) ?? setTimeout(act, 300);
  }

  /* Scrolls the texts and the strip to their starts (0) or to their ends (a large number). */
  scroll(to) {
    for (const { box } of this.runners) box.scrollTop = to;
    const { offsetTop = 0 } = this.spec.last?.row ?? {};
    if (!this.live) this.strip.scrollTop = to && offsetTop - this.strip.clientHeight / 2;
  }
}

/* The speed-ups of all races on one scale: filled if they count, hollow if not. */
const drawDots = (root, races, notes) => {
  root.hidden = !races.length;
  const line = make("span", "sd-scale"), put = (x, cls, text = "") => {
    const node = line.appendChild(make("span", cls, text));
    // Logarithmic, from a half to four: 1.03 lies near 1 whatever the other races are.
    const octaves = Math.log2(Math.min(Math.max(x, 1 / 2), 4)) + 1;
    node.style.left = `${(3 + 94 * octaves / 3).toFixed(1)}%`;
    return node;
  };
  const speedups = races.map(({ speedup }) => speedup?.toFixed(2));
  put(races[0]?.speedup ?? 1, "sd-value", speedups[0] ?? "");
  for (const [at, label] of [[1 / 2, "½"], [1, "1"], [2, "2"], [4, "4"]]) put(at, "sd-one", label);
  races.forEach(({ speedup, counted, why }, number) => {
    const dot = put(speedup, `sd-dot${counted ? "" : " sd-hollow"}${number ? "" : " sd-on-show"}`);
    dot.title = `${speedups[number]} times as fast${number ? "" : ", the race on show"}`
      + (counted ? "" : `; not counted: ${why}`);
  });
  const out = races.some(({ counted }) => counted)   // else the headline has the reason
    && races.find(({ counted, why }) => !counted && !notes.some((note) => note.includes(why)));
  root.ariaLabel = `Times as fast, by race: ${speedups.join(", ")}`;
  root.replaceChildren(line, ...(out ? [make("span", "sd-hint", `○ not counted: ${out.why}`)] : []));
};

/* One of the two runs of a race: its tokens and its bar. */
class Runner {
  constructor(root, box) {
    Object.assign(this, { box });
    for (const part of ["bar", "clock", "pace"]) this[part] = root.querySelector(".sd-" + part);
    this.clear();
  }

  clear() {
    this.events = [];
    this.shown = 0;
    this.box.replaceChildren();
    delete this.box.dataset.cut;
  }

  get tokens() { return this.events.at(-1)?.tokens ?? 0; }
  get text() { return this.events.flatMap(({ nodes }) => nodes).map((node) => node.textContent).join(""); }
  get last() { return this.events[this.shown - 1]; }
  get length() { return this.spent(this.events.length); }

  /* Seconds from the first event to number `count`. */
  spent(count) { return count ? this.events[count - 1].time - this.events[0].time : 0; }

  add(time, nodes, more) {
    this.events.push({ time, nodes, tokens: this.tokens + nodes.length, ...more });
    this.shown = this.events.length;
    this.box.append(...nodes);
  }

  /* Shows the run as it was `t` seconds after the first event; only changed nodes are updated. The
     bar is as long as its time, on a scale of `span` seconds. */
  show(t, span) {
    const later = this.events.findIndex((_, number) => this.spent(number + 1) > t + 1e-9);
    const count = later < 0 ? this.events.length : later, hidden = count < this.shown;
    for (const { nodes, row } of this.events.slice(Math.min(count, this.shown), Math.max(count, this.shown))) {
      for (const node of row ? [...nodes, row] : nodes) node.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    const time = Math.min(t, this.length), decoded = (this.last?.tokens ?? 0) - (this.events[0]?.tokens ?? 0);
    this.bar.style.transform = `scaleX(${Math.min(1, time / (span || 1))})`;
    say(this.clock, seconds(time));
    const spent = this.spent(count), rate = spent ? `, ${(decoded / spent).toFixed(1)} tokens/s` : "";
    say(this.pace, counted(this.last?.tokens ?? 0, "token") + rate);
  }
}

/* By kind of token: its look in style.css, and its words. */
const KINDS = {
  accepted: ["right", "guessed right: an accepted draft token"],
  forced: ["right", "forced by the grammar, so guessed with certainty"],
  correction: ["wrong", "put right by the target model: a correction"],
  bonus: ["own", "the target model's own, after a draft that was all right: a bonus token"],
  first: ["own", "the first token, by the target model"],
  plain: ["own", "the target model's own: nothing was guessed"],
};
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
const HINT = "Point at a token, tap it, or walk with the arrow keys to see what it was.";

const cellOf = (look, glyph, { text }, ...more) => (
  make("span", "sd-cell sd-" + look, glyph, make("bdi", "", visible(text.trim() || text)), ...more));

const share = (value) => (100 * value).toFixed(value < .1 ? 1 : 0) + "%";
const probabilities = ({ draft_probability: draft, target_probability: target }) =>
  [["draft", draft], ["target", target]].filter(([, value]) => value != null)
    .map(([model, value]) => `${model} ${share(value)}`).join(", ");

/* What the draft had in the place of a rejected token, and what the target put there. */
const candidateCells = ({ candidates, rejected, token: correction }) => {
  const known = candidates.some(({ id }) => id === correction.id);
  return [...candidates, ...(known ? [] : [correction])].map((token) => {
    const [look, glyph] = { [rejected.id]: ["no", "×"], [correction.id]: ["wrong", "↺"] }[token.id] ?? ["own", ""];
    const draft = token.draft_probability == null ? "less" : share(token.draft_probability);
    return cellOf(look, glyph, token, ` ${draft} / ${share(token.target_probability)}`);
  });
};

/* The line about one token: where it came from, and its probability in draft and target. The token is
   marked in the answer, in the list of rounds, and by `point(round)` in the chart. */
class TokenLine {
  constructor(line, runner, rounds, point) {
    Object.assign(this, { line, point, box: runner.box });
    for (const node of [this.box, rounds]) node.onclick = node.onpointerover = ({ target }) => (
      this.pick(target.closest(".sd-cell, .sd-ghost")?.token ?? target.closest(".sd-tok") ?? this.active));
    line.addEventListener("click", () => this.pick(null));   // on a phone it lies over the page
    this.box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = (runner.last?.tokens ?? 0) - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active?.facts.position ?? (step === 1 ? -1 : 0);
      this.pick(this.box.querySelectorAll(".sd-tok")[Math.max(0, Math.min(last, from + step))]);
      this.active.scrollIntoView({ block: "nearest" });
    });
  }

  /* The nodes of a round's tokens, with the `facts` about each, and its row in the list of rounds. */
  round({ drafted, emitted, candidates = [] }, round, position) {
    const rejected = drafted.find((token) => !token.accepted), nodes = [], of = drafted.length;
    const row = make("div", "sd-round", make("b", "", round + 1));
    const cell = (look, glyph, token) => row.appendChild(cellOf(look, glyph, token));
    const add = (kind, token, glyph, more) => {
      const [look] = KINDS[kind], { text } = token, node = make("span", `sd-tok sd-${look}`, text);
      const number = position + nodes.length;
      node.facts = { kind, token, round, of, position: number, cell: cell(look, glyph, token), ...more };
      node.facts.cell.token = node;
      Object.assign(node, { role: "option", id: "sd-token-" + number, ariaSelected: "false" });
      if (!text.trim()) node.ariaLabel = text.includes("\n") ? "line break" : "space";
      nodes.push(node);
    };
    drafted.forEach((token, place) => {
      const kind = token.source === "grammar" ? "forced" : "accepted";
      if (token.accepted) add(kind, token, "✓", { place });
      else cell("no", token === rejected ? "×" : "·", token);
    });
    const accepted = nodes.length;
    if (emitted) add(emitted.kind, emitted, emitted.kind === "correction" ? "↺" : "+", { rejected, candidates });
    for (const node of row.querySelectorAll(".sd-no")) node.token = nodes.at(-1);
    row.ariaLabel = row.title = `Round ${round + 1}: ${of} drafted, ${accepted} accepted`
      + (emitted ? ", 1 by the target" : "");
    row.role = "group";
    return { nodes, row };
  }

  pick(node) {
    const facts = node?.facts;
    if (this.active) this.active.ariaSelected = "false";
    this.active?.facts.cell.classList.remove("sd-lit");
    facts?.cell.classList.add("sd-lit");
    this.active = node;
    this.point(facts?.round);
    this.line.textContent = node ? this.words(facts) : HINT;
    if (facts?.rejected && facts.candidates.length) {
      this.line.append(make("span", "sd-candidates", "Candidates, draft / target:", ...candidateCells(facts)));
    }
    this.line.classList.toggle("sd-open", !!node);
    this.box.setAttribute("aria-activedescendant", node?.id ?? "");
    if (node) node.ariaSelected = "true";
  }

  words({ kind, token, rejected, round, place, of }) {
    const where = place !== undefined ? `, number ${place + 1} of ${of}` : of ? `, after ${of} guessed` : "";
    const by = SOURCES.has(token.source) ? ` by ${SOURCES.get(token.source)}` : "";
    const others = rejected?.draft_probability === null ? ` The ${SOURCES.get(rejected.source)} had no others.` : "";
    const instead = rejected ? ` In place of ${quoted(rejected.text)} (${probabilities(rejected)}).${others}` : "";
    return `${quoted(token.text)}: ${KINDS[kind][1]}${where}${by}, in round ${round + 1}; `
      + `${probabilities(token)}.${instead}`;
  }
}
