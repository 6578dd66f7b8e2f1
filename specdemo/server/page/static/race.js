/* The race tab: takes the messages of events.py, and shows a race as it runs and as it was. The work
   per message depends on its new items, not on those shown before. */
import { addExports, draw, playheadAt, raceFigure, raceRows } from "./chart.js";
import { bringIntoView, isRunning, make, quoted, say, seconds, showRunning } from "./dom.js";
import { drawEngineering } from "./engineering.js";
import { Player } from "./player.js";
import { Runner, TokenLine, roundNodes } from "./runner.js";

const RUNNING = ["speculative", "baseline", "again", "waiting", "loading", "drafts"];
const KEEPING = ["waiting", "loading", "error", "drafts"];   // what was shown before stays
const MOST_ROWS = 400;
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
    addExports(this.find(".sd-exports"), () => this.find(".sd-chart"), "specdemo-race",
      () => raceRows(this.shownRun), () => CARD.map((name) => this.find(name).textContent));
  }

  get shownRun() { return { ...this.trace, verdict: this.verdict }; }
  get duration() { return Math.max(this.spec.length, this.baseline.length); }

  receive(message) {
    const { trace, phase, note = "", verdict } = message, failed = phase === "error";
    const running = RUNNING.includes(phase);
    say(this.state.querySelector(".sd-status"), failed ? "" : note);
    const error = this.state.querySelector(".sd-error");
    say(error, failed ? note : "");
    error.hidden = !failed;
    this.root.dataset.phase = phase;
    showRunning(running);
    if (running) this.motion.play(false);   // it takes time from the models
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
    if (trace) {
      this.addAll(trace.rounds, trace.baseline?.tokens ?? []);
      this.settle(message, phase !== "opened");
      return;
    }
    this.addAll(message.rounds ?? [], message.baseline ?? []);
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
    for (const runner of this.runners) {
      runner.clear();
      delete runner.box.dataset.cut;
    }
    this.strip.replaceChildren();
    this.tokenLine.pick(null);
    this.find(".sd-shown").hidden = false;
    this.find(".sd-link-text").hidden = true;
    for (const name of ["kept", "caption", "time"]) say(this.find(".sd-" + name), "");
    this.find(".sd-playhead").hidden = true;
    if (this.live) bringIntoView(this.find(".sd-verdict"));
    this.tell({ tone: "running", headline: "Racing", sentence: "First with drafts, then one token "
      + "at a time: one run after the other, so that neither takes the processor from the other." });
  }

  tell({ tone, headline, sentence, notes = [], identity = "", races = [] }, { reading = "", origin = "", recorded = false } = {}) {
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
      const number = this.spec.events.length;
      const { nodes, row } = roundNodes(this.tokenLine, round, number, this.spec.tokens);
      this.spec.add(round.shown_at, nodes, { ...round, row });
    }
    for (const { shown_at: time, text } of tokens) {
      this.baseline.add(time, [make("span", "sd-ptok", text)]);
    }
  }

  /* Shows both runs as they were `t` seconds after their first tokens; Infinity shows everything. */
  show(t) {
    const { spec, baseline, duration, live } = this, time = Math.min(t, duration);
    const span = live ? 2 ** Math.max(0, Math.ceil(Math.log2(duration || 1))) : duration;
    for (const runner of this.runners) runner.show(time, span);
    this.find(".sd-answer-baseline").classList.toggle("sd-later", !baseline.tokens);
    if (!live) this.motion.draw(t);
    // Last, since it makes the browser compute the layout.
    if (live || t < Infinity) this.scroll(1e6);
    this.root.toggleAttribute("data-moving", !live && t < Infinity);
    if (live) return;
    this.point();
    const seek = this.find(".sd-seek");
    seek.value = duration ? Math.round(1000 * time / duration) : 1000;
    const place = `${seconds(time)}, round ${spec.shown} of ${spec.events.length}`;
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
    const { spec, baseline } = this, { trace, verdict, curve, model } = message;
    Object.assign(this, { trace, verdict, message, live: false });
    this.root.dataset.settled = this.run;
    this.root.toggleAttribute("data-empty", !trace.rounds.length);
    this.tell(verdict, message);
    if (watched) say(document.querySelector(".sd-models"), `Ready: ${model}.`);
    if (verdict.difference != null) {
      for (const { box } of this.runners) {
        box.querySelectorAll(".sd-tok, .sd-ptok")[verdict.difference]?.classList.add("sd-parted");
      }
    }
    if (["length", "context"].includes(trace.finish_reason)) {
      const ended = trace.identical === null ? [spec] : this.runners;   // the other one was stopped
      for (const { box, tokens } of ended) box.dataset.cut = `cut at ${tokens} tokens`;
    }
    const { prompt_reused: reused, prompt_tokens: prompt } = trace;
    say(this.find(".sd-prefill"), `Reading the question (${seconds(trace.prefill_seconds)}, the same for both) `
      + `is not included${reused ? `; ${reused} of its ${prompt} tokens were in the cache` : ""}.`);
    // Not earlier: during a race, drawing the rows would take time from it.
    this.strip.append(...spec.events.slice(0, MOST_ROWS).map((one) => one.row));
    drawEngineering(this.find, trace, curve);
    this.motion.jump(Infinity);
    this.drawChart();
    this.hooks.settled(message, watched);
    if (watched) bringIntoView(this.find(".sd-verdict"));
    const ends = [spec, baseline].map(({ tokens, length }) => `${tokens} tokens in ${seconds(length)}`);
    this.find(".sd-chart").ariaLabel = `Tokens against seconds: speculative ${ends[0]}, autoregressive ${ends[1]}`;
  }

  /* Lays curves over the chart, of drafters or of another run; without `curves` takes those of the
     same `owner` away. */
  overlay(owner, curves) {
    if (curves) this.overlays.set(owner, curves.map(({ name, times, tokens, speedup, acceptance_rate: rate }) => ({
      name: speedup == null ? name : `${name}: ${speedup.toFixed(2)} times`
        + (rate == null ? "" : `, ${Math.round(100 * rate)} % accepted`), x: times, y: tokens })));
    else this.overlays.delete(owner);
    this.drawChart();
  }

  drawChart() {
    window.cancelIdleCallback?.(this.idle);   // which Safari has not
    const act = () => {
      if (!this.trace || isRunning()) return;
      const { span, ...figure } = raceFigure(this.shownRun, [...this.overlays.values()].flat());
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
  put(races[0]?.speedup ?? 1, "sd-value", races[0]?.speedup?.toFixed(2) ?? "");
  for (const [at, label] of [[1 / 2, "½"], [1, "1"], [2, "2"], [4, "4"]]) put(at, "sd-one", label);
  races.forEach(({ speedup, counted, why }, number) => {
    const dot = put(speedup, `sd-dot${counted ? "" : " sd-hollow"}${number ? "" : " sd-on-show"}`);
    dot.title = `${speedup?.toFixed(2)} times as fast${number ? "" : ", the race on show"}`
      + (counted ? "" : `; not counted: ${why}`);
  });
  const out = races.find(({ counted, why }) => !counted && !notes.some((note) => note.includes(why)));
  const speedups = races.map(({ speedup }) => speedup?.toFixed(2)).join(", ");
  root.ariaLabel = `Times as fast, by race: ${speedups}`;
  root.replaceChildren(line, ...(out ? [make("span", "sd-hint", `○ not counted: ${out.why}`)] : []));
};
