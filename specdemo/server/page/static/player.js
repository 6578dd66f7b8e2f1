/* Shows a finished race again, slowly or step by step. Everything drawn follows from `view`, the
   seconds of the race that are shown: both clocks run in the race's own time. */
import { counted, make, quoted, say, seconds, visible } from "./dom.js";

const SPEEDS = { slow: 0, "1/16": 1 / 16, "1/4": 1 / 4, 1: 1, steps: 0 };
const READABLE = 4, SLOW_SECONDS = [8, 7];   // of watching: for so many rounds, and for the rest
const SENTENCE_SECONDS = .8;   // a round that passes quicker gets no sentence of its own
const GUESSING = [.25, .6];    // share of a round in which its draft tokens appear
const STEP = "one step of the target";

/* What just happened, in a sentence, once the target has checked a round. */
export const roundWords = ({ drafted, emitted }) => {
  if (emitted?.kind === "first") return "The target model read the question and gave the first token.";
  const right = drafted.filter((one) => one.accepted).length;
  const gave = counted(right + (emitted ? 1 : 0), "token");
  if (!drafted.length) return `The draft guessed nothing, which would not have paid: ${gave} for ${STEP}.`;
  const guessed = `The draft guessed ${counted(drafted.length, "token")}, `;
  if (emitted?.kind === "bonus") {
    const all = right === 1 ? "it was right" : "all were right";
    return `${guessed}${all}, and the check gave one more: ${gave} for ${STEP}.`;
  }
  const accepted = right === 0 ? "none was right" : right === 1 ? "1 was right" : `${right} were right`;
  const wrong = emitted && drafted[right];
  const word = ({ text }) => quoted(text.trim() || text);
  const instead = wrong ? ` It put ${word(emitted)} for ${word(wrong)}.` : "";
  return `${guessed}${accepted}: ${gave} for ${STEP}.${instead}`;
};

export class Player {
  constructor(view) {
    Object.assign(this, { race: view, view: Infinity, playing: false, speed: "slow" });
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const { find } = view, on = (name, act) => find(".sd-" + name).addEventListener("click", act);
    on("play", () => this.toggle());
    on("back", () => this.step(-1));
    on("next", () => this.step(1));
    on("speeds", ({ target, detail }) => {
      if (!target.dataset.speed) return;
      this.choose(this.chosen = target.dataset.speed);
      view.hooks.addressed();
      if (detail) find(".sd-player").focus();   // after a click the keys belong to the player
    });
    find(".sd-seek").addEventListener("input", ({ target: { value } }) => {
      this.jump(value >= 1000 ? Infinity : value / 1000 * view.duration);
    });
    find(".sd-strip").addEventListener("click", ({ target }) => {
      const row = target.closest(".sd-round");
      if (row) this.goTo([...row.parentNode.children].indexOf(row));
    });
    addEventListener("keydown", (event) => this.key(event));
    const asked = new URLSearchParams(location.search).get("speed");
    if (Object.hasOwn(SPEEDS, asked)) this.chosen = asked;
    this.choose(this.still ? "steps" : this.chosen ?? "slow");
  }

  choose(speed) {
    this.speed = this.race.player.dataset.speed = speed;
    for (const button of this.race.find(".sd-speeds").children) {
      button.ariaPressed = String(button.dataset.speed === speed);
    }
    if (speed === "steps") this.play(false);
    else if (this.race.trace && !this.playing) this.start();
  }

  /* Space and arrow keys, unless the focus is on something that uses them itself. */
  key(event) {
    const { target, key } = event, { race } = this;
    const { top, bottom } = race.find(".sd-shown").getBoundingClientRect();
    const other = target.closest("input, textarea, select, a, summary, [role=listbox], [role=tab], [role=region]");
    const button = target.closest("button"), seen = bottom > top && top < innerHeight && bottom > 0;
    if (other || !seen || !race.trace || event.ctrlKey || event.altKey || event.metaKey) return;
    if (button && (key === " " || !race.player.contains(button))) return;
    if (key === " ") this.toggle();
    else if (key === "ArrowRight") this.step(1);
    else if (key === "ArrowLeft") this.step(-1);
    else return;
    event.preventDefault();
  }

  toggle() {
    if (this.speed === "steps") this.step(1);
    else if (this.playing) this.jump(this.view);
    else this.start();
  }

  /* The moments at which something changes: the draft of each round, and its verdict. */
  get moments() {
    const { spec } = this.race;
    return [0, ...spec.events.slice(1).flatMap(({ drafted }, at) => (
      drafted.length ? [this.guessed(at + 1), spec.spent(at + 2)] : [spec.spent(at + 2)])), Infinity];
  }

  /* When all draft tokens of round number `round` (from 0) are drawn, before its verdict. */
  guessed(round) {
    const { spec } = this.race, begin = spec.spent(round);
    return begin + .8 * (spec.spent(round + 1) - begin);
  }

  step(by) {
    const { moments, view } = this;
    this.jump(by > 0 ? moments.find((one) => one > view + 1e-9) ?? 0
      : moments.findLast((one) => one < view - 1e-9) ?? Infinity);
  }

  /* Shows round number `round` before its verdict, or after it if nothing was drafted. */
  goTo(round) {
    const { spec, player } = this.race;
    this.choose("steps");
    this.jump(spec.events[round].drafted.length ? this.guessed(round) : spec.spent(round + 1));
    player.focus({ preventScroll: true });
    player.scrollIntoView({ block: "center" });
  }

  /* Seconds of the race that pass while one second of watching does, at most 1. */
  get rate() {
    if (this.speed !== "slow") return SPEEDS[this.speed];
    const { spec, duration } = this.race;
    const first = spec.spent(Math.min(READABLE + 1, spec.events.length));
    const early = this.view < first;
    return Math.min(1, early ? first / SLOW_SECONDS[0] : (duration - first) / SLOW_SECONDS[1]);
  }

  /* Draws every 30 ms, half as often as a browser does: models may be loading meanwhile. */
  play(on) {
    this.playing = on;
    this.race.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Replay";
    this.race.find(".sd-caption").ariaLive = on ? "off" : "polite";
    clearInterval(this.timer);
    if (on) this.timer = setInterval(() => this.tick(), 30);
  }

  /* Plays from the shown moment, or from the start if that is the end; after `wait` milliseconds. */
  start(wait = 0) {
    if (this.still || this.speed === "steps") return;
    clearTimeout(this.timer);
    if (wait) {
      this.timer = setTimeout(() => this.start(), wait);
      return;
    }
    if (this.view >= this.race.duration) this.view = 0;
    this.since = performance.now();
    performance.mark("sd-play");   // when a visitor sees the first race
    this.play(true);
    this.race.show(this.view);
  }

  tick() {
    const now = performance.now(), { duration } = this.race;
    this.view += (now - this.since) / 1000 * this.rate;
    this.since = now;
    if (this.view < duration) this.race.show(this.view);
    else this.jump(Infinity);
  }

  jump(time) {
    this.play(false);
    this.race.show(time);
    if (time === Infinity) this.race.scroll(0);
  }

  /* Draws what is no token of the answer at this moment: draft tokens before the verdict in grey,
     or the token that the last verdict rejected, struck through. */
  draw(time) {
    const { spec } = this.race, { events, shown } = spec, next = events[shown], last = events[shown - 1];
    let ghosts = [], look = "guess", place = null;
    this.view = time;
    if (time < Infinity && next && last) {
      const begin = spec.spent(shown), part = (time - begin) / (spec.spent(shown + 1) - begin || 1);
      const done = Math.min(1, Math.max(0, (part - GUESSING[0]) / (GUESSING[1] - GUESSING[0])));
      ghosts = next.drafted.slice(0, Math.ceil(done * next.drafted.length));
    }
    if (time < Infinity && !ghosts.length && last?.emitted?.kind === "correction") {
      [ghosts, look, place] = [last.drafted.filter((one) => !one.accepted).slice(0, 1), "struck",
        last.nodes.at(-1)];
    }
    const key = `${shown} ${look} ${ghosts.length}`;
    if (key !== this.drawn) {
      this.drawn = key;
      for (const node of spec.box.querySelectorAll(".sd-ghost")) node.remove();
      const nodes = ghosts.map(({ text }) => make("span", "sd-ghost sd-" + look,
        look === "struck" ? visible(text) : text));
      for (const node of nodes) node.ariaHidden = "true";
      if (place) place.before(...nodes);
      else spec.box.append(...nodes);
      for (const node of spec.box.querySelectorAll(".sd-now")) node.classList.remove("sd-now");
      if (time < Infinity) for (const node of last?.nodes ?? []) node.classList.add("sd-now");
    }
    // While it plays a caption stays until the next verdict: it takes a moment to read.
    const guessing = look === "guess" && ghosts.length && !this.playing;
    say(this.race.find(".sd-caption"), guessing
      ? `The draft guesses ${counted(ghosts.length, "token")} ahead, which the target model has not `
        + "checked yet." : this.words(time));
  }

  words(time) {
    const { spec, baseline } = this.race, { events, shown } = spec, steps = events.length - 1;
    if (!events.length) return "";
    if (shown < events.length || time <= spec.length + 1e-9) {
      const pace = spec.length / steps / this.rate;   // seconds of watching a round
      if (!this.playing || !shown || pace > SENTENCE_SECONDS) return roundWords(spec.last);
      return `With the draft ${counted(spec.last.tokens, "token")} in ${counted(shown - 1, "step")} of `
        + `the target so far, without it ${counted(baseline.last?.tokens ?? 0, "token")}.`;
    }
    const done = `${counted(spec.tokens, "token")} in ${counted(steps, "step")} of the target`;
    if (!baseline.tokens) return `${done}.`;
    if (baseline.shown < baseline.events.length) {
      return `Done: ${done}. Without a draft every token takes a step: ${baseline.shown} so far.`;
    }
    return `${done} in ${seconds(spec.length)}; without a draft ${counted(baseline.tokens - 1, "step")} in `
      + `${seconds(baseline.length)}.`;
  }
}
