/* "Guess, check, keep": one round of the run on show as a picture above the page, and the run as a
   walk of five stations. */
import { button, factor, make, milliseconds, say, seconds, visible } from "./dom.js";
import { roundWords } from "./player.js";

/* A round that shows most: tokens accepted and one put right, else any with a draft. */
const tellingRound = ({ rounds }) => {
  const score = ({ drafted, emitted }) => {
    const right = drafted.filter((one) => one.accepted).length;
    const short = drafted.every(({ text }) => text.trim()) && drafted.map(({ text }) => text).join("").length < 30;
    return drafted.length ? 1 + Math.min(right, 3) + (emitted?.kind === "correction" ? 3 : 0) + 2 * short : 0;
  };
  const best = Math.max(...rounds.map(score), 0);
  return best ? rounds.findIndex((one) => score(one) === best) : -1;
};

const word = (look, { text }) => make("span", "sd-tok sd-" + look, visible(text.trim() || text));

const KEPT = { correction: "The model replaces the wrong word", undefined: "All guesses are kept" };

const cards = {
  Guess: ({ drafted }) => ["The draft guesses ahead", drafted.map((one) => word("guess", one))],
  Check: ({ drafted }) => ["The model checks in one step", drafted.map((one, place) => {
    const first = drafted.findIndex((other) => !other.accepted);
    const look = one.accepted ? "right" : place === first ? "struck" : "guess";
    return word(look, { text: one.text.trim() + (one.accepted ? " ✓" : place === first ? " ✗" : "") });
  })],
  Keep: ({ drafted, emitted }) => [KEPT[emitted?.kind] ?? "The model adds one of its own", [
    ...drafted.filter((one) => one.accepted).map((one) => word("right", one)),
    ...(emitted ? [word(emitted.kind === "correction" ? "wrong" : "own", emitted)] : [])]],
};

/* The three cards of a round; number `current` (from 1) is the one that is being explained. */
const cardsOf = (round, current) => Object.entries(cards).map(([name, describe], place) => {
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

export const drawPicture = (trace) => {
  const place = tellingRound(trace), steps = document.querySelector(".sd-header .sd-steps");
  if (place < 0) return;
  steps.replaceChildren(...cardsOf(trace.rounds[place]));
};

const STATIONS = ["One token at a time", "Guess", "Check", "Keep", "What it is worth"];

/* What the stations say of a run, and their pictures. */
const station = (number, { trace, verdict, curve }) => {
  const { rounds, summary, baseline, prompt_tokens: prompt } = trace, place = tellingRound(trace);
  const round = rounds[Math.max(place, 0)], dropped = summary.drafted - summary.accepted;
  const token = baseline && summary.baseline_decode_seconds / summary.baseline_decoded;
  if (number === 0) {
    return ["For each token the processor fetches the whole model from memory, to do a little "
      + "arithmetic with it. The memory is the bottleneck, so a step that reads several tokens takes "
      + "little longer than a step that reads one. "
      + (token ? `In this run a token took ${milliseconds(token)}. ` : "") + (curve?.sentence ?? ""),
    (baseline?.tokens ?? []).slice(0, 14).map((one) => word("own", one))];
  }
  if (place < 0) return ["In this run nothing was guessed.", []];
  if (number === 1) {
    return ["Something small and quick guesses a few tokens ahead: a small model, a head on the target "
      + "model, or n-gram lookup, which takes what followed the same words earlier in the text. In "
      + `round ${place + 1} of this run that took ${milliseconds(round.draft_seconds)}.`,
    cardsOf(round, 1)];
  }
  if (number === 2) {
    return ["The target model reads all guesses in one step, which gives for every position what it would "
      + `have written itself. Here that took ${milliseconds(round.verify_seconds)}. Guesses are accepted `
      + "up to the first one that differs from the model's own choice.", cardsOf(round, 2)];
  }
  if (number === 3) {
    return [`${roundWords(round)} The next round begins there. Keys and values of text that was read are `
      + `kept in a cache, so the ${prompt} tokens of the question were read once; ${dropped} wrong guesses `
      + "were removed from the cache. Nothing is copied.", cardsOf(round, 3)];
  }
  const paid = curve?.measured ?? summary.speedup;
  return [(paid ? `A round gave ${summary.tokens_per_round.toFixed(2)} tokens and took as long as `
    + `${(summary.tokens_per_round / paid).toFixed(2)} tokens without drafts: ${factor(paid)}. ` : "")
    + "It loses where few guesses are right, where the draft is not much cheaper than the model, or "
    + "where many requests keep the processor busy already. The answer is the same: without sampling a "
    + "guess is kept only if it is the model's own choice, and with sampling both runs draw with the same "
    + "noise, fixed by the seed. That a step over several tokens gives the same numbers as several steps "
    + `over one is measured on each machine, and each race compares two independent runs. ${verdict.identity ?? ""}`,
  baseline ? lengths(summary) : []];
};

export class Walk {
  constructor(root, { watch, ask }) {
    Object.assign(this, { root, place: 0, race: null });
    this.find = (name) => root.querySelector(".sd-" + name);
    const go = (place) => {
      this.place = Math.max(0, Math.min(STATIONS.length - 1, place));
      this.draw();
    };
    this.find("stations").append(...STATIONS.map((name, place) => (
      make("li", "", button(`${place + 1} ${name}`, () => go(place))))));
    this.find("walk-back").onclick = () => go(this.place - 1);
    this.find("walk-next").onclick = () => go(this.place + 1);
    this.find("watch").onclick = () => watch(Math.max(0, tellingRound(this.race.trace)));
    this.find("ask-it").onclick = ask;
  }

  draw(race = this.race) {
    this.race = race;
    if (!race?.trace) return;
    const [text, picture] = station(this.place, race), last = this.place === STATIONS.length - 1;
    say(this.find("station-title"), STATIONS[this.place]);
    say(this.find("station-text"), text);
    this.find("station-picture").replaceChildren(...picture);
    this.find("walk-back").disabled = !this.place;
    this.find("walk-next").disabled = last;
    this.find("ask-it").hidden = !last;
    this.find("watch").hidden = tellingRound(race.trace) < 0;
    say(this.find("walk-place"), `Station ${this.place + 1} of ${STATIONS.length}`);
    this.find("stations").querySelectorAll("button").forEach((node, place) => {
      node.ariaCurrent = place === this.place ? "step" : null;
    });
  }
}
