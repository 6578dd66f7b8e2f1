/* One of the two runs of a race: its tokens, its bar, and the line about one token. */
import { counted, make, quoted, say, seconds, visible } from "./dom.js";

const LOOKS = {
  accepted: "right", forced: "right", correction: "wrong", bonus: "own", first: "own", plain: "own",
};
const KIND_WORDS = {
  accepted: "guessed right: an accepted draft token",
  forced: "forced by the grammar, so guessed with certainty",
  correction: "put right by the target model: a correction",
  bonus: "the target model's own, after a draft that was all right: a bonus token",
  first: "the first token, by the target model",
  plain: "the target model's own: nothing was guessed",
};
export const SOURCES = new Map(Object.entries(window.specdemo.known.sources));
const kindOf = ({ source }) => (source === "grammar" ? "forced" : "accepted");
const STEPS = {
  ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity,
};
const HINT = "Point at a token, tap it, or walk with the arrow keys to see what it was.";

export class Runner {
  constructor(root, box) {
    Object.assign(this, { box });
    for (const part of ["bar", "clock", "pace"]) this[part] = root.querySelector(".sd-" + part);
    this.clear();
  }

  clear() {
    this.events = [];
    this.shown = 0;
    this.box.replaceChildren();
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
    for (const event of this.events.slice(Math.min(count, this.shown), Math.max(count, this.shown))) {
      for (const node of event.nodes) node.classList.toggle("sd-later", hidden);
      event.row?.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    const time = Math.min(t, this.length), decoded = (this.last?.tokens ?? 0) - (this.events[0]?.tokens ?? 0);
    this.bar.style.transform = `scaleX(${Math.min(1, time / (span || 1))})`;
    say(this.clock, seconds(time));
    const spent = this.spent(count), rate = spent ? `, ${(decoded / spent).toFixed(1)} tokens/s` : "";
    say(this.pace, counted(this.last?.tokens ?? 0, "token") + rate);
  }
}

const thought = ({ draft_probability: draft, target_probability: target }) =>
  [["draft", draft], ["target", target]].filter(([, value]) => value != null)
    .map(([who, value]) => `${who} ${(100 * value).toFixed(value < .1 ? 1 : 0)} %`).join(", ");

/* The nodes of a round's tokens, and its row in the list of rounds. */
export const roundNodes = (tokenLine, { drafted, emitted }, round, position) => {
  const rejected = drafted.find((token) => !token.accepted), nodes = [], of = drafted.length;
  const row = make("div", "sd-round", make("b", "", round + 1));
  const cell = (look, glyph, { text }) => row.appendChild(
    make("span", "sd-cell sd-" + look, glyph, make("bdi", "", visible(text.trim() || text))));
  const add = (kind, token, glyph, more) => nodes.push(tokenLine.token({ kind, token, round, of,
    position: position + nodes.length, cell: cell(LOOKS[kind], glyph, token), ...more }));
  drafted.forEach((token, place) => {
    if (token.accepted) add(kindOf(token), token, "✓", { place });
    else cell("no", token === rejected ? "×" : "·", token);
  });
  if (emitted) add(emitted.kind, emitted, LOOKS[emitted.kind] === "wrong" ? "↺" : "+", { rejected });
  row.ariaLabel = row.title = `Round ${round + 1}: ${of} drafted, `
    + `${drafted.filter((token) => token.accepted).length} accepted${emitted ? ", 1 by the target" : ""}`;
  row.role = "group";
  return { nodes, row };
};

/* The line about one token: where it came from, and its probability in draft and target. The token is
   marked in the answer, in the list of rounds, and by `point(round)` in the chart. */
export class TokenLine {
  constructor(line, runner, rounds, point) {
    Object.assign(this, { line, point, box: runner.box, facts: new WeakMap(), ofCell: new WeakMap() });
    for (const kind of ["pointerover", "click"]) {
      this.box.addEventListener(kind, ({ target }) => this.pick(target.closest(".sd-tok") ?? this.active));
      rounds.addEventListener(kind, ({ target }) => (
        this.pick(this.ofCell.get(target.closest(".sd-cell")) ?? this.active)));
    }
    line.addEventListener("click", () => this.pick(null));   // on a phone it lies over the page
    this.box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = (runner.last?.tokens ?? 0) - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active ? this.facts.get(this.active).position : step === 1 ? -1 : 0;
      this.pick(this.box.querySelectorAll(".sd-tok")[Math.max(0, Math.min(last, from + step))]);
      this.active.scrollIntoView({ block: "nearest" });
    });
  }

  /* The node of an answer's token; `facts` has its kind, round, fields, place, and draft length. */
  token(facts) {
    const { kind, token: { text }, position } = facts;
    const node = make("span", `sd-tok sd-${LOOKS[kind]}`, text);
    node.role = "option";
    node.id = "sd-token-" + position;
    node.ariaSelected = "false";
    if (!text.trim()) node.ariaLabel = text.includes("\n") ? "line break" : "space";
    this.facts.set(node, facts);
    this.ofCell.set(facts.cell, node);
    return node;
  }

  pick(node) {
    const before = this.facts.get(this.active), facts = this.facts.get(node);
    if (before) this.active.ariaSelected = "false";
    before?.cell.classList.remove("sd-lit");
    facts?.cell.classList.add("sd-lit");
    this.active = node;
    this.point(facts?.round);
    this.line.textContent = node ? this.words(facts) : HINT;
    this.line.classList.toggle("sd-open", !!node);
    this.box.setAttribute("aria-activedescendant", node?.id ?? "");
    if (node) node.ariaSelected = "true";
  }

  words({ kind, token, rejected, round, place, of }) {
    const where = place !== undefined ? `, number ${place + 1} of ${of}` : of ? `, after ${of} guessed` : "";
    const by = SOURCES.has(token.source) ? ` by ${SOURCES.get(token.source)}` : "";
    const instead = rejected ? ` In place of ${quoted(rejected.text)} (${thought(rejected)}).` : "";
    return `${quoted(token.text)}: ${KIND_WORDS[kind]}${where}${by}, in round ${round + 1}; `
      + `${thought(token)}.${instead}`;
  }
}
