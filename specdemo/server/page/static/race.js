/* The race tab: takes the messages of events.py, and shows a race as it runs and as it was. The work
   per message depends on its new items, not on those shown before. */
import { addExports, draw, drawEngineering, drawDots, figureRows, playheadAt } from "./chart.js";
import { bringIntoView, counted, isRunning, make, onTheme, page, quoted, say, sayStatus, seconds,
  showRunning } from "./common.js";
import { Player } from "./player.js";
import { TokenLine, drawTree } from "./tokens.js";

const RUNNING = ["speculative", "baseline", "waiting", "loading", "drafts"];
const KEEPING = ["waiting", "loading", "error", "drafts"];   // what was shown before stays
const CARD = [".sd-asked", ".sd-headline", ".sd-qualifier", ".sd-sentence", ".sd-origin"];   // of a picture
const whenIdle = (act) => window.requestIdleCallback?.(act, { timeout: 1500 }) ?? setTimeout(act, 300);
const CODE = /^\s*(?:[{[]|(?:def|class|import|from|function|const|#include)\s)|```/;

export class RaceView {
  constructor(root, hooks) {
    Object.assign(this, { root, hooks, run: "", asked: "", trace: null, live: false });
    this.find = (name) => root.querySelector(name);
    this.state = document.querySelector(".sd-state");
    this.spec = new Pane(this.find(".sd-pane-spec"));
    this.baseline = new Pane(this.find(".sd-pane-baseline"));
    this.panes = [this.spec, this.baseline];
    this.player = this.find(".sd-player");
    this.tree = this.find(".sd-tree");
    this.tokenLine = new TokenLine(this.find(".sd-about"), this.spec, this.tree, (round) => this.point(round));
    this.motion = new Player(this);
    onTheme(() => {
      this.drawChart();
      this.find(".sd-engineers").ontoggle?.();
    });
    this.find(".sd-chart").addEventListener("resize", () => this.point());
    addExports(this.find(".sd-exports"), "specdemo-race", { nodes: () => [this.find(".sd-chart")],
      lines: () => CARD.map((name) => this.find(name).textContent), rows: () => figureRows(this.message.figure) });
  }

  get duration() { return Math.max(this.spec.length, this.baseline.length); }

  receive(message) {
    const { trace, phase, note = "", verdict } = message, failed = phase === "error";
    const running = RUNNING.includes(phase);
    sayStatus(failed ? "" : note);
    say(this.state.querySelector(".sd-error"), failed ? note : "");
    this.root.dataset.phase = phase;
    showRunning(running);
    if (failed) this.fail(message);
    if (message.figure && !trace) this.drawDrafts(message);
    if (phase === "again" && !trace) this.tell(verdict, this.message);
    if (KEEPING.includes(phase) || !trace && !running) return;
    const again = this.trace && phase === "done" && { ...this.motion, chosen: this.tokenLine.active?.facts.position,
      tops: this.panes.map(({ box }) => box.scrollTop) };   // after repeats
    if (!this.live || trace) this.reset(phase, again);
    const { rounds = [], baseline } = trace ?? message;
    this.addAll(rounds, baseline?.tokens ?? baseline ?? []);
    if (trace) this.settle(message, phase !== "opened", again);
    else this.show(Infinity);
  }

  fail({ lost }) {
    bringIntoView(this.state);
    const reached = this.live && counted(this.spec.tokens, "token");
    if (this.live) this.tell({ tone: "neutral", headline: lost ? `Interrupted after ${reached}` : "No answer" });
    this.live = false;
    this.root.removeAttribute("data-moving");
  }

  reset(phase, again) {
    if (phase === "opened" || !this.live) this.run = String(Number(this.run) + 1);
    Object.assign(this, { live: phase !== "opened", trace: null });
    this.motion.play(false);
    this.motion.drawn = null;
    delete this.root.dataset.settled;
    if (!again) this.find(".sd-plot").dataset.run = "";   // style.css hides the chart of the run before
    for (const pane of this.panes) pane.clear();
    this.tree.replaceChildren();
    this.tokenLine.pick(null);
    this.find(".sd-link-text").hidden = this.find(".sd-playhead").hidden = this.find(".sd-drafts-chart").hidden = true;
    for (const name of ["kept", "caption", "time"]) say(this.find(".sd-" + name), "");
    this.tell({ tone: "running", headline: "Racing", qualifier: "First with drafts, then one token at a time." });
    if (RUNNING.includes(phase)) bringIntoView(this.find(".sd-panes"));
  }

  tell({ tone, headline, qualifier = "", sentence = "", notes = [], identity = "", races = [] }, message = {}) {
    const { reading = "", origin = "", recorded = false } = message;
    const card = this.find(".sd-verdict"), asked = quoted(this.trace?.instruction ?? this.asked);
    card.dataset.tone = tone;
    card.toggleAttribute("data-figure", /^(about )?[\d.]+x$/.test(headline));
    this.root.toggleAttribute("data-recorded", recorded);
    const words = { asked: recorded ? `${asked} ${origin}` : asked, qualifier, reading, sentence,
      notes: notes.join(" "), origin: recorded ? "" : origin, identity };
    for (const [name, text] of Object.entries(words)) say(this.find(".sd-" + name), text);
    const [, about = "", figure] = headline.match(/^(about )?(.*)$/s), title = this.find(".sd-headline");
    if (title.textContent !== headline) title.replaceChildren(make("small", "", about), figure);
    drawDots(this.find(".sd-dots"), races, notes);
  }

  addAll(rounds, tokens) {
    for (const round of rounds) {
      const { nodes, row } = this.tokenLine.round(round, this.spec.events.length, this.spec.tokens);
      this.spec.add(round.shown_at, nodes, { ...round, row });
    }
    for (const { shown_at: time, text } of tokens) {
      this.baseline.add(time, [make("span", "", text)], { text });
    }
    this.root.toggleAttribute("data-code", CODE.test(this.spec.box.textContent));
  }

  /* Shows both runs as they were `t` seconds after their first tokens; Infinity shows everything. */
  show(t) {
    const { spec, baseline, duration, live } = this, time = Math.min(t, duration);
    const span = live ? 2 ** Math.max(0, Math.ceil(Math.log2(duration || 1))) : duration;
    for (const pane of this.panes) pane.show(time, span, !live || pane === spec && baseline.tokens > 0);
    say(this.find(".sd-score"), `${spec.last?.tokens ?? 0} : ${baseline.last?.tokens ?? 0}`);
    if (!live) this.motion.draw(t);
    if (live || t < Infinity) this.scroll([1e6, 1e6]);
    this.root.toggleAttribute("data-moving", live || t < Infinity);
    if (live) return;
    this.point();
    const seek = this.find(".sd-seek"), rounds = Math.max(0, spec.events.length - 1);
    const begun = spec.shown - (t > spec.spent(spec.shown) + 1e-9 ? 0 : 1);
    const place = `${seconds(time)}, round ${Math.max(0, Math.min(begun, rounds))} of ${rounds}`;
    seek.value = duration ? Math.round(1000 * time / duration) : 1000;
    seek.setAttribute("aria-valuetext", place);
    say(this.find(".sd-time"), place);
  }

  /* A line over the chart at the end of a round, or else at the moment that is shown. */
  point(round) {
    const { spec, motion } = this, head = this.find(".sd-playhead");
    const time = round === undefined ? motion?.view ?? Infinity : spec.spent(round + 1);
    head.hidden = this.live || time === Infinity;
    if (!head.hidden) Object.assign(head.style, playheadAt(this.find(".sd-chart"), time));
  }

  /* The end of a run: shows the words, the figures and the controls that need a whole trace. `again` is
     what was on show when the repeats ended. */
  settle(message, watched, again) {
    const { spec, panes } = this, { trace, verdict, curve, model, program } = message;
    Object.assign(this, { trace, message, live: false });
    this.root.dataset.settled = this.run;
    this.tell(verdict, message);
    if (watched) say(document.querySelector(".sd-models"), `Ready: ${model}.`);
    const stopped = trace.identical === null, cut = ["length", "context"].includes(trace.finish_reason);
    for (const pane of panes) {
      const node = pane.box.children[verdict.difference ?? -1];
      node?.classList.add("sd-parted");
      if (cut && !(stopped && pane !== spec)) pane.box.dataset.cut = `cut at ${counted(pane.tokens, "token")}`;
    }
    const { prompt_reused: reused, prompt_tokens: prompt } = trace;
    say(this.find(".sd-prefill"), `Reading the question (${seconds(trace.prefill_seconds)}, the same for both) `
      + `is not included${reused ? `; ${reused} of its ${prompt} tokens had been read before` : ""}.`);
    const drawRounds = () => {
      if (trace !== this.trace) return;
      drawTree(this.tree, spec, this.baseline);
      drawEngineering(this.find, trace, curve);
    };
    if (again) drawRounds();   // without it, what is below would jump
    else whenIdle(drawRounds);   // the tree is half of the page's elements
    say(this.find(".sd-python"), program.python);
    say(this.find(".sd-curl"), program.curl.replace("{page}", page.slice(0, -1)));
    this.motion.jump(again ? again.view : Infinity);
    this.tokenLine.pick(spec.box.querySelectorAll(".sd-tok")[again?.chosen]);
    if (again) this.scroll(again.tops);
    if (again?.playing) this.motion.start();
    this.hooks.settled(message, watched, again);
    const ends = panes.map(({ tokens, length }) => `${tokens} tokens in ${seconds(length)}`);
    this.find(".sd-chart").ariaLabel = `Tokens against seconds: speculative ${ends[0]}, autoregressive ${ends[1]}`;
  }

  drawDrafts({ figure, note }) {
    const node = this.find(".sd-drafts-chart");
    node.hidden = false;
    node.ariaLabel = note;
    draw(node, figure).then(() => bringIntoView(node));
  }

  /* Not while a race runs or plays: Plotly is large. */
  drawChart() {
    window.cancelIdleCallback?.(this.idle);   // which Safari has not
    this.idle = whenIdle(() => {
      if (!this.trace || isRunning() || this.motion.playing) return;
      this.find(".sd-plot").dataset.run = this.run;
      draw(this.find(".sd-chart"), this.message.figure).then(() => this.live || this.point())
        .catch((error) => say(this.find(".sd-chart"), error.message));
    });
  }

  /* Scrolls the texts to `tops` pixels, and the tree to the moment on show: with the next frame, which computes
     the layout anyhow. */
  scroll(tops) {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      this.panes.forEach(({ box }, at) => box.scrollTop = tops[at]);
      // Where the tree is not in sight, asking for its layout would make the browser compute it.
      if (this.live || this.tree.checkVisibility?.({ contentVisibilityAuto: true }) === false) return;
      const { offsetLeft = 0 } = this.tree.querySelector(".sd-now") ?? {};
      this.tree.scrollLeft = this.motion.view < Infinity && offsetLeft - this.tree.clientWidth / 2;
    });
  }
}

/* One of the two runs of a race: its tokens, its clock and its bar. */
class Pane {
  constructor(root) {
    Object.assign(this, { root });
    for (const [name, part] of Object.entries({ box: "text", bar: "bar", clock: "clock", pace: "pace" })) {
      this[name] = root.querySelector(".sd-" + part);
    }
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
     bar is as long as its time, on a scale of `span` seconds. An `over` run has no more events. */
  show(t, span, over) {
    const later = this.events.findIndex((_, number) => this.spent(number + 1) > t + 1e-9);
    const count = later < 0 ? this.events.length : later, hidden = count < this.shown;
    for (const { nodes, row } of this.events.slice(Math.min(count, this.shown), Math.max(count, this.shown))) {
      for (const node of row ? [...nodes, row] : nodes) node.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    this.root.toggleAttribute("data-ended", over && count > 0 && count === this.events.length);
    const time = Math.min(t, this.length), decoded = (this.last?.tokens ?? 0) - (this.events[0]?.tokens ?? 0);
    this.bar.style.transform = `scaleX(${Math.min(1, time / (span || 1))})`;
    say(this.clock, seconds(time));
    const spent = this.spent(count), rate = spent ? `, ${(decoded / spent).toFixed(1)}/s` : "";
    say(this.pace, counted(this.last?.tokens ?? 0, "token") + rate);
  }
}
