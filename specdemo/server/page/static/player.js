/* Shows a finished race again: at real time, slowly or step by step; and the tour, which explains it. */
import { counted, isRunning, make, milliseconds, quoted, say, seconds, still, times, visible } from "./common.js";

const SPEEDS = { slow: 0, "1/16": 1 / 16, "1/4": 1 / 4, 1: 1, steps: 0 };
const SLOW_SECONDS = 15;   // of watching a whole race
const SENTENCE_SECONDS = .8;   // a round that passes quicker gets no sentence of its own
const GUESSING = [.25, .6];    // share of a round in which its draft tokens appear
const STEP = "one step of the target";

/* What just happened, in a sentence, once the target has checked a round. */
const roundWords = ({ drafted, emitted }) => {
  if (emitted?.kind === "first") return "The target model read the question and gave the first token.";
  const right = drafted.filter((one) => one.accepted).length;
  const gave = counted(right + (emitted ? 1 : 0), "token");
  if (!emitted) return `The answer ends here: ${gave} for ${STEP}.`;
  if (!drafted.length) return `The draft guessed nothing, which would not have paid: ${gave} for ${STEP}.`;
  const guessed = `The draft guessed ${counted(drafted.length, "token")}, `;
  if (emitted.kind === "bonus") {
    const all = right === 1 ? "it was right" : "all were right";
    return `${guessed}${all}, and the check gave one more: ${gave} for ${STEP}.`;
  }
  const accepted = right === 0 ? "none was right" : right === 1 ? "1 was right" : `${right} were right`;
  const word = ({ text }) => (text ? quoted(text.trim() || text) : "the end");
  const instead = drafted[right] ? ` It put ${word(emitted)} for ${word(drafted[right])}.` : "";
  return `${guessed}${accepted}: ${gave} for ${STEP}.${instead}`;
};

/* Everything drawn follows from `view`, the seconds of the race that are shown: both clocks run in the
   race's own time. */
export class Player {
  constructor(view) {
    Object.assign(this, { race: view, view: Infinity, playing: false, speed: "1" });
    const { find } = view, on = (name, act) => find(".sd-" + name).addEventListener("click", act);
    on("play", () => this.toggle());
    on("replay", () => {
      this.choose("1");
      this.view = 0;
      this.start();
    });
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
    find(".sd-tree").addEventListener("click", ({ target }) => {
      const row = target.closest(".sd-round");
      if (row) this.goTo([...row.parentNode.children].indexOf(row));
    });
    find(".sd-player").addEventListener("keydown", (event) => this.key(event));
    const asked = new URLSearchParams(location.search).get("speed");
    if (Object.hasOwn(SPEEDS, asked)) this.chosen = asked;
    this.choose(still.matches ? "steps" : this.chosen ?? "1");
  }

  choose(speed) {
    this.speed = this.race.player.dataset.speed = speed;
    for (const node of this.race.find(".sd-speeds").children) node.ariaPressed = String(node.dataset.speed === speed);
    if (speed === "steps") this.play(false);
    else if (this.race.trace && !this.playing) this.start();
  }

  /* Space and arrow keys in the player, unless the focus is on something that uses them itself. */
  key(event) {
    const { target, key } = event, { race } = this;
    if (target.closest("input") || !race.trace || event.ctrlKey || event.altKey || event.metaKey) return;
    if (key === " " && target.closest("button")) return;
    const act = { " ": () => this.toggle(), ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1) }[key];
    if (!act) return;
    act();
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

  /* Shows round number `round` before its verdict, or after it (`step` 1, or nothing was drafted). */
  goTo(round, step = 0) {
    const { spec } = this.race;
    this.choose("steps");
    this.jump(spec.events[round].drafted.length && !step ? this.guessed(round) : spec.spent(round + 1));
  }

  /* Seconds of the race that pass while one second of watching does, at most 1. */
  get rate() {
    return this.speed === "slow" ? Math.min(1, this.race.duration / SLOW_SECONDS) : SPEEDS[this.speed];
  }

  /* Draws every 50 ms, a third as often as a browser does: models may be loading meanwhile. */
  play(on) {
    this.playing = on;
    this.race.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Play";
    this.race.find(".sd-caption").ariaLive = on ? "off" : "polite";
    clearInterval(this.timer);
    if (on) this.timer = setInterval(() => this.tick(), 50);
  }

  /* Plays from the shown moment, or from the start if that is the end. */
  start() {
    if (still.matches || this.speed === "steps" || isRunning()) return;
    if (this.view >= this.race.duration) this.view = 0;
    this.since = performance.now();
    this.play(true);
    this.race.show(this.view);
  }

  tick() {
    if (isRunning()) return this.play(false);   // models lose time to it
    const now = performance.now(), { duration } = this.race;
    this.view += (now - this.since) / 1000 * this.rate;
    this.since = now;
    if (this.view < duration) this.race.show(this.view);
    else this.jump(Infinity);
  }

  jump(time) {
    this.play(false);
    this.race.show(time);
    if (time === Infinity) this.race.scroll([0, 0]);
    this.race.drawChart();
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
      [ghosts, look, place] = [[last.drafted.find((one) => !one.accepted)], "struck", last.nodes.at(-1)];
    }
    const key = `${shown} ${look} ${ghosts.length}`;
    if (key !== this.drawn) {
      this.drawn = key;
      for (const node of spec.box.querySelectorAll(".sd-ghost")) node.remove();
      const nodes = ghosts.map(({ text }) => Object.assign(
        make("span", "sd-ghost sd-" + look, look === "struck" ? visible(text) : text), { ariaHidden: "true", token: place }));
      if (place) place.before(...nodes);
      else spec.box.append(...nodes);
      for (const node of this.race.root.querySelectorAll(".sd-now")) node.classList.remove("sd-now");
      const lit = look === "guess" && ghosts.length ? [next.row] : [...last?.nodes ?? [], last?.row];
      if (time < Infinity) for (const node of lit) node?.classList.add("sd-now");
    }
    // While it plays a caption stays until the next verdict: it takes a moment to read.
    const guessing = look === "guess" && ghosts.length && !this.playing;
    say(this.race.find(".sd-caption"), guessing
      ? `The draft guesses ${counted(ghosts.length, "token")} ahead, which the target model has not `
        + "checked yet." : this.words(time));
  }

  words(time) {
    const { race } = this, { spec, baseline } = race, { events, shown } = spec, steps = events.length - 1;
    if (!events.length) return "";
    if (time < Infinity) {
      const pace = spec.length / steps / this.rate;   // seconds of watching a round
      if (!this.playing || !shown || pace > SENTENCE_SECONDS) return roundWords(spec.last);
      return `With the draft ${counted(spec.last.tokens, "token")} in ${counted(shown - 1, "step")} of `
        + `the target so far, without it ${counted(baseline.last?.tokens ?? 0, "token")}.`;
    }
    const work = `${counted(spec.tokens, "token")} in ${counted(steps, "step")} of the target`;
    const done = `${work} in ${seconds(spec.length)}`;
    if (race.trace?.identical === null) return `${done}; the run without a draft was stopped.`;
    return baseline.tokens ? `${done}; without a draft ${counted(baseline.tokens - 1, "step")} in `
      + `${seconds(baseline.length)}.` : `${done}.`;
  }
}

/* A round that shows most: tokens accepted and one put right, else any with a draft. */
const tellingRound = (rounds) => {
  const score = ({ drafted, emitted }) => {
    const right = drafted.filter((one) => one.accepted).length;
    const short = drafted.every(({ text }) => text.trim()) && drafted.map(({ text }) => text).join("").length < 30;
    return drafted.length ? 1 + Math.min(right, 3) + (emitted?.kind === "correction" ? 3 : 0) + 2 * short : 0;
  };
  const scores = rounds.map(score), best = Math.max(...scores);
  return best > 0 ? scores.indexOf(best) : -1;
};

const SAME = "The answer is the same: a guess is kept only if the model chooses it too. Each race compares both runs.";

/* The captions of the tour: a title, the part of the page in the light, the words for the message of a run
   and the number of its telling round, and whether that round is shown before (0) or after (1) its check. */
const TOUR = [
  { title: "One token at a time", spot: ".sd-pane-baseline", words: ({ trace: { summary, baseline }, curve }) => (
    "For each token the processor fetches the whole model from memory. A step that reads several tokens takes little "
    + "longer than a step that reads one. " + (baseline ? "Here a token took "
    + `${milliseconds(summary.baseline_decode_seconds / (summary.baseline_decoded || 1))}. ` : "")
    + (curve?.sentence ?? "")) },
  { title: "Guess", spot: ".sd-player", step: 0, words: ({ trace: { rounds } }, round) => (
    "Something small and quick guesses a few tokens ahead: a small model, a head on the target model, or n-gram "
    + "lookup, which takes what followed the same words earlier in the text. In round "
    + `${round} of this run that took ${milliseconds(rounds[round].draft_seconds)}.`) },
  { title: "Check", spot: ".sd-player", step: 1, words: ({ trace: { rounds } }, round) => (
    "The target model reads all guesses in one step, which gives for every position what it would have written "
    + `itself. Here that took ${milliseconds(rounds[round].verify_seconds)}. Guesses are accepted up to the first one `
    + "that differs.") },
  { title: "Keep", spot: ".sd-pane-spec", step: 1, words: ({ trace: { rounds, summary } }, round) => (
    `${roundWords(rounds[round])} The next round begins there. In all, ${summary.drafted - summary.accepted} guesses were not kept.`) },
  { title: "What it is worth", spot: ".sd-verdict", words: ({ trace: { summary, settings }, verdict }) => {
    const paid = verdict.races?.some(({ counted: counts }) => counts) && summary.speedup;
    const differing = settings.coupling === "maximal" && settings.temperature;
    return (paid ? `A round gave ${summary.tokens_per_round.toFixed(2)} tokens and took as long as `
      + `${(summary.tokens_per_round / paid).toFixed(2)} tokens without drafts: ${times(paid)}. ` : "")
      + "It loses where few guesses are right, where the draft is not much cheaper than the model, or where many "
      + `requests keep the processor busy already. ${differing ? "" : SAME} ${verdict.identity ?? ""}`;
  } },
];

/* Connects the tour, on the race that `race` shows. */
export const mountTour = (root, race) => {
  const find = (name) => root.querySelector(".sd-tour" + name), opener = document.querySelector(".sd-how");
  let place = -1;
  const go = (wanted) => {
    document.querySelector(".sd-spot")?.classList.remove("sd-spot");
    place = wanted;
    root.hidden = place < 0 || place >= TOUR.length || !race.trace;
    if (root.hidden) return opener.focus();
    const { title, spot, words, step } = TOUR[place], round = tellingRound(race.trace.rounds);
    const node = race.find(spot);
    if (step === undefined) race.motion.jump(Infinity);
    else if (round >= 0) race.motion.goTo(round, step);
    say(find("-title"), title);
    say(find("-text"), step === undefined || round >= 0 ? words(race.message, round) : "In this run nothing was guessed.");
    say(find("-place"), `${place + 1} of ${TOUR.length}`);
    find("-back").ariaDisabled = String(place === 0);   // not disabled: the focus would be lost
    say(find("-next"), place === TOUR.length - 1 ? "Done" : "Next");
    node.classList.add("sd-spot");
    node.scrollIntoView({ block: "center" });
    if (!root.contains(document.activeElement)) find("-next").focus({ preventScroll: true });
  };
  opener.onclick = () => isRunning() || go(0);
  find("-back").onclick = () => place && go(place - 1);
  find("-next").onclick = () => go(place + 1);
  find("-end").onclick = () => go(-1);
  root.addEventListener("keydown", ({ key }) => key === "Escape" && go(-1));
};
