/* Shows a finished race again: slowly or step by step, and one round of it as a picture, which the walk of
   the tab "How it works" explains. */
import { button, counted, factor, isRunning, make, milliseconds, quoted, say, seconds, visible } from "./common.js";

const SPEEDS = { slow: 0, "1/16": 1 / 16, "1/4": 1 / 4, 1: 1, steps: 0 };
const READABLE = 4, SLOW_SECONDS = [8, 7];   // of watching: for so many rounds, and for the rest
const SENTENCE_SECONDS = .8;   // a round that passes quicker gets no sentence of its own
const GUESSING = [.25, .6];    // share of a round in which its draft tokens appear
const STEP = "one step of the target";

/* What just happened, in a sentence, once the target has checked a round. */
const roundWords = ({ drafted, emitted }) => {
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

/* Everything drawn follows from `view`, the seconds of the race that are shown: both clocks run in the
   race's own time. */
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
    for (const node of this.race.find(".sd-speeds").children) node.ariaPressed = String(node.dataset.speed === speed);
    if (speed === "steps") this.play(false);
    else if (this.race.trace && !this.playing) this.start();
  }

  /* Space and arrow keys, unless the focus is on something that uses them itself. */
  key(event) {
    const { target, key } = event, { race } = this;
    const { top, bottom } = race.find(".sd-shown").getBoundingClientRect();
    const other = target.closest("input, textarea, select, a, summary, [role=listbox], [role=tab], [role=region]");
    const pressed = target.closest("button"), seen = bottom > top && top < innerHeight && bottom > 0;
    if (other || !seen || !race.trace || event.ctrlKey || event.altKey || event.metaKey) return;
    if (pressed && (key === " " || !race.player.contains(pressed))) return;
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

  /* Plays from the shown moment, or from the start if that is the end. */
  start() {
    if (this.still || this.speed === "steps" || isRunning()) return;
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
    const { race } = this, { spec, baseline } = race, { events, shown } = spec, steps = events.length - 1;
    if (!events.length) return "";
    if (shown < events.length || time <= spec.length + 1e-9) {
      const pace = spec.length / steps / this.rate;   // seconds of watching a round
      if (!this.playing || !shown || pace > SENTENCE_SECONDS) return roundWords(spec.last);
      return `With the draft ${counted(spec.last.tokens, "token")} in ${counted(shown - 1, "step")} of `
        + `the target so far, without it ${counted(baseline.last?.tokens ?? 0, "token")}.`;
    }
    const done = `${counted(spec.tokens, "token")} in ${counted(steps, "step")} of the target`;
    if (!baseline.tokens) return `${done}.`;
    if (race.trace?.identical === null) {
      return `${done} in ${seconds(spec.length)}; the run without a draft was stopped.`;
    }
    if (baseline.shown < baseline.events.length) {
      return `Done: ${done}. Without a draft every token takes a step: ${baseline.shown} so far.`;
    }
    return `${done} in ${seconds(spec.length)}; without a draft ${counted(baseline.tokens - 1, "step")} in `
      + `${seconds(baseline.length)}.`;
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

const word = (look, { text }) => make("span", "sd-tok sd-" + look, visible(text.trim() || text));

/* By step of a round: a caption and the words. */
const CARDS = {
  Guess: ({ drafted }) => ["The draft guesses ahead", drafted.map((one) => word("guess", one))],
  Check: ({ drafted }) => ["The model checks in one step", drafted.map((one, place) => {
    const wrong = place === drafted.findIndex((other) => !other.accepted);
    const [look, mark] = one.accepted ? ["right", " ✓"] : wrong ? ["struck", " ✗"] : ["guess", ""];
    return word(look, { text: one.text.trim() + mark });
  })],
  Keep: ({ drafted, emitted }) => {
    const kept = drafted.filter((one) => one.accepted).map((one) => word("right", one));
    if (!emitted) return ["All guesses are kept", kept];
    if (emitted.kind === "correction") return ["The model replaces the wrong word", [...kept, word("wrong", emitted)]];
    return ["The model adds one of its own", [...kept, word("own", emitted)]];
  },
};

/* The three cards of a round; number `current` (from 1) is the one that is being explained. */
const cardsOf = (round, current) => Object.entries(CARDS).map(([name, describe], place) => {
  const [caption, words] = describe(round), item = make("div", "sd-step", make("b", "", `${place + 1} ${name}`),
    make("span", "sd-hint", caption), make("span", "sd-words", ...words));
  if (place + 1 === current) item.ariaCurrent = "step";
  return item;
});

/* Two bars as long as the runs took. */
const lengths = ({ decode_seconds: spec, baseline_decode_seconds: base }) => (
  [["Speculative", spec], ["Autoregressive", base]].map(([name, spent]) => {
    const bar = make("i", "", seconds(spent));
    bar.style.width = `${100 * spent / Math.max(spec, base)}%`;
    return make("span", "sd-length", name, bar);
  }));

export const drawPicture = ({ rounds }) => {
  const round = rounds[tellingRound(rounds)];
  document.querySelector(".sd-header .sd-steps").replaceChildren(...(round ? cardsOf(round) : [NO_GUESS[0]]));
};

/* What the stations of the walk say of a run, and their pictures. `round` is the number of a round. */
const STATIONS = [
  ["One token at a time", ({ summary, baseline }, { curve }) => {
    const token = baseline && summary.baseline_decode_seconds / summary.baseline_decoded;
    return ["For each token the processor fetches the whole model from memory, to do a little "
      + "arithmetic with it. The memory is the bottleneck, so a step that reads several tokens takes "
      + "little longer than a step that reads one. "
      + (token ? `In this run a token took ${milliseconds(token)}. ` : "") + (curve?.sentence ?? ""),
    (baseline?.tokens ?? []).slice(0, 14).map((one) => word("own", one))];
  }],
  ["Guess", ({ rounds }, _, round) => ["Something small and quick guesses a few tokens ahead: a small model, a "
    + "head on the target model, or n-gram lookup, which takes what followed the same words earlier in the text. "
    + `In round ${round + 1} of this run that took ${milliseconds(rounds[round].draft_seconds)}.`,
  cardsOf(rounds[round], 1)]],
  ["Check", ({ rounds }, _, round) => ["The target model reads all guesses in one step, which gives for every "
    + "position what it would have written itself. Here that took "
    + `${milliseconds(rounds[round].verify_seconds)}. Guesses are accepted up to the first one that differs from `
    + "the model's own choice.", cardsOf(rounds[round], 2)]],
  ["Keep", ({ rounds, summary, prompt_tokens: prompt }, _, round) => [`${roundWords(rounds[round])} The next round `
    + "begins there. Keys and values of text that was read are kept in a cache, so the "
    + `${prompt} tokens of the question were read once; ${summary.drafted - summary.accepted} guesses that were `
    + "not kept were removed from the cache. Nothing is copied.", cardsOf(rounds[round], 3)]],
  ["What it is worth", ({ summary, settings }, { curve, verdict }) => {
    const counts = verdict.races?.some(({ counted }) => counted);   // else no headline compares the runs
    const paid = counts && (curve?.measured ?? summary.speedup);
    const differing = settings.coupling === "maximal" && settings.temperature;
    return [(paid ? `A round gave ${summary.tokens_per_round.toFixed(2)} tokens and took as long as `
      + `${(summary.tokens_per_round / paid).toFixed(2)} tokens without drafts: ${factor(paid)}. ` : "")
      + "It loses where few guesses are right, where the draft is not much cheaper than the model, or "
      + "where many requests keep the processor busy already. "
      + (differing ? "" : "The answer is the same: without sampling a "
      + "guess is kept only if it is the model's own choice, and with sampling both runs draw with the same "
      + "noise, fixed by the seed. That a step over several tokens gives the same numbers as several steps "
      + "over one is measured on each machine, and each race compares two independent runs. ")
      + (verdict.identity ?? ""),
    counts ? lengths(summary) : []];
  }],
];
const NO_GUESS = ["In this run nothing was guessed.", []];

/* The walk through the stations; gives the function that draws it for the run of a message. */
export const mountWalk = (root, { watch, ask }) => {
  const find = (name) => root.querySelector(".sd-" + name), last = STATIONS.length - 1;
  let place = 0, race = null;

  const draw = (message) => {
    race = message;
    const { trace } = race, round = tellingRound(trace.rounds), [title, describe] = STATIONS[place];
    const explained = place === 0 || place === last || round >= 0;
    const [text, picture] = explained ? describe(trace, race, round) : NO_GUESS;
    say(find("station-title"), title);
    say(find("station-text"), text);
    find("station-picture").replaceChildren(...picture);
    // Not disabled: the focus would be lost.
    find("walk-back").ariaDisabled = String(place === 0);
    find("walk-next").ariaDisabled = String(place === last);
    find("ask-it").hidden = place !== last;
    find("watch").hidden = round < 0;
    say(find("walk-place"), `Station ${place + 1} of ${STATIONS.length}`);
    [...find("stations").children].forEach(({ firstChild }, number) => {
      firstChild.ariaCurrent = number === place ? "step" : null;
    });
  };
  const go = (wanted) => {
    place = Math.max(0, Math.min(last, wanted));
    if (race) draw(race);
  };
  find("stations").append(...STATIONS.map(([name], number) => (
    make("li", "", button(`${number + 1} ${name}`, () => go(number))))));
  find("walk-back").onclick = () => go(place - 1);
  find("walk-next").onclick = () => go(place + 1);
  find("watch").onclick = () => watch(tellingRound(race.trace.rounds));
  find("ask-it").onclick = ask;
  return draw;
};
