/* The tokens of a speculative answer: their looks, what is known of each, and the tree of rounds. */
import { SOURCES, make, milliseconds, quoted, visible } from "./common.js";

const MAX_ROUNDS = 400, ROUND_WIDTH = 110;   // pixels of a round of median length

/* By kind of token: its look in style.css, and its words. */
const KINDS = {
  accepted: ["right", "an accepted draft token"],
  forced: ["right", "forced by the grammar, so guessed with certainty"],
  correction: ["wrong", "a correction by the target model"],
  bonus: ["own", "added by the target model after a draft that was all right: a bonus token"],
  first: ["own", "the first token, by the target model"],
  plain: ["own", "added by the target model: nothing was guessed"],
};
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
const hint = () => ["Guesses: ", make("span", "sd-tok sd-right", "accepted"), " or ", make("span", "sd-tok sd-wrong", "corrected"),
  ". Point at a token, tap it, or walk with the arrow keys to see where it came from."];

const cellOf = (look, glyph, { text }, ...more) => (
  make("span", "sd-cell sd-" + look, glyph, make("bdi", "", visible(text.trim() || text) || "end"), ...more));

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
   marked in the answer, in the tree of rounds, and by `point(round)` in the chart. */
export class TokenLine {
  constructor(line, pane, tree, point) {
    Object.assign(this, { line, point, box: pane.box });
    for (const node of [this.box, tree]) node.onclick = node.onpointerover = ({ target }) => (
      this.pick(target.closest(".sd-cell, .sd-ghost")?.token ?? target.closest(".sd-tok") ?? this.active));
    line.addEventListener("click", () => this.pick(null));   // on a phone it lies over the page
    this.box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = (pane.last?.tokens ?? 0) - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active?.facts.position ?? (step === 1 ? -1 : 0);
      this.pick(this.box.querySelectorAll(".sd-tok")[Math.max(0, Math.min(last, from + step))]);
      this.active.scrollIntoView({ block: "nearest" });
    });
  }

  /* The nodes of a round's tokens, with the `facts` about each, and its row in the tree: the kept branch
     from the top, the struck one beside it. Number 0 is what the prompt gave. */
  round({ drafted, emitted, candidates = [] }, round, position) {
    const rejected = drafted.find((token) => !token.accepted), nodes = [], of = drafted.length;
    const kept = make("span", "sd-fan"), struck = make("span", "sd-branch");
    const row = make("div", "sd-round", make("b", "", round || "prompt"), kept);
    const cell = (branch, look, glyph, token) => branch.appendChild(cellOf(look, glyph, token));
    const add = (kind, token, glyph, more) => {
      const [look] = KINDS[kind], { text } = token, node = make("span", `sd-tok sd-${look}`, text);
      const number = position + nodes.length;
      node.facts = { kind, token, round, of, position: number, cell: cell(kept, look, glyph, token), ...more };
      node.facts.cell.token = node;
      nodes.push(node);
    };
    drafted.forEach((token, place) => {
      const kind = token.source === "grammar" ? "forced" : "accepted";
      if (token.accepted) add(kind, token, "✓", { place });
      else cell(struck, "no", token === rejected ? "×" : "·", token);
    });
    const accepted = nodes.length;
    if (rejected) kept.append(struck);
    if (emitted) add(emitted.kind, emitted, emitted.kind === "correction" ? "↺" : "+", { rejected, candidates });
    for (const node of row.querySelectorAll(".sd-no")) node.token = nodes.at(-1);
    row.title = `Round ${round}: ${of} drafted, ${accepted} accepted${emitted ? ", 1 by the target" : ""}`;
    return { nodes, row };
  }

  pick(node) {
    const facts = node?.facts;
    for (const one of [this.active, this.active?.facts.cell]) one?.classList.remove("sd-lit");
    for (const one of [node, facts?.cell]) one?.classList.add("sd-lit");
    this.active = node;
    this.point(facts?.round);
    this.line.replaceChildren(...(node ? [this.words(facts)] : hint()));
    if (facts?.rejected && facts.candidates.length) {
      this.line.append(make("span", "sd-candidates", "Candidates, draft / target:", ...candidateCells(facts)));
    }
    this.line.classList.toggle("sd-open", !!node);
  }

  words({ kind, token, rejected, round, place, of }) {
    const where = place !== undefined ? `, number ${place + 1} of ${of}` : of ? `, after ${of} guessed` : "";
    const by = SOURCES.has(token.source) ? ` by ${SOURCES.get(token.source)}` : "";
    const others = rejected?.draft_probability === null ? ` The ${SOURCES.get(rejected.source)} had no others.` : "";
    const instead = rejected ? ` In place of ${quoted(rejected.text)} (${probabilities(rejected)}).${others}` : "";
    const text = token.text ? quoted(token.text) : "The end of the answer";
    return `${text}: ${KINDS[kind][1]}${where}${by}${round ? `, in round ${round}` : ""}; `
      + `${probabilities(token)}.${instead}`;
  }
}

/* Draws the rounds of `spec`, each as wide as it took, and below them the steps of the baseline. */
export const drawTree = (root, spec, baseline) => {
  const rounds = spec.events.slice(0, MAX_ROUNDS), ends = rounds.length && spec.spent(rounds.length);
  const lengths = rounds.slice(1).map((_, at) => spec.spent(at + 2) - spec.spent(at + 1)).sort((a, b) => a - b);
  const scale = ROUND_WIDTH / (lengths[lengths.length >> 1] || 1);
  rounds.forEach(({ row, draft_seconds: draft, verify_seconds: verify }, at) => {
    if (!at) return;
    const length = spec.spent(at + 1) - spec.spent(at), bar = make("i", "", milliseconds(length));
    row.style = `width: ${scale * length}px; --draft: ${100 * draft / (draft + verify || 1)}%`;
    row.firstChild.after(bar);
  });
  const steps = baseline.events.slice(1).map(({ text }, at) => {
    const step = make("span", "sd-step", visible(text.trim() || text) || "end");
    step.style.width = `${scale * (baseline.spent(at + 2) - baseline.spent(at + 1))}px`;
    return step;
  }).filter((_, at) => !ends || baseline.spent(at + 1) < ends * 4 && at < 4 * MAX_ROUNDS);
  root.replaceChildren(make("div", "sd-lane", ...rounds.map(({ row }) => row)),
    make("div", "sd-lane", make("span", "sd-step sd-first-step", "without"), ...steps));
};
