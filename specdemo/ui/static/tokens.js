/* Draws the two runs of a race: their tokens, their bars, the sketch of both, and the line about
   one token. Text of models goes only into text nodes. */
const make = (tag, cls, ...content) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...content);
  return node;
};

const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
const shareOf = (part, whole) => Math.round(100 * part / (whole || 1)) + " %";

/* One of the two runs: its events in order, each with the tokens that appeared then. */
class Runner {
  constructor(root, box) {
    Object.assign(this, { box });
    for (const part of ["rate", "ttft", "bar", "clock"]) {
      this[part] = root.querySelector(".sd-" + part);
    }
    this.clear();
  }

  clear() {
    this.events = [];
    this.shown = 0;
    this.box.textContent = "";
    this.rate.textContent = "0";
    this.ttft.textContent = "-";
  }

  get tokens() { return this.events.at(-1)?.tokens ?? 0; }
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
     bar ends at `total` tokens. */
  show(t, total) {
    const later = this.events.findIndex((_, at) => this.spent(at + 1) > t + 1e-9);
    const count = later < 0 ? this.events.length : later, hidden = count < this.shown;
    for (const event of this.events.slice(Math.min(count, this.shown), Math.max(count, this.shown))) {
      for (const node of event.nodes) node.classList.toggle("sd-later", hidden);
      event.column?.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    const spent = this.spent(count);
    this.bar.style.transform = `scaleX(${Math.min(1, (this.last?.tokens ?? 0) / total)})`;
    this.clock.textContent = seconds(Math.min(t, this.length));
    if (!count) return;
    this.ttft.textContent = seconds(this.events[0].time);
    if (spent) this.rate.textContent = ((this.last.tokens - this.events[0].tokens) / spent).toFixed(1);
  }

  /* Tokens against seconds, in at most 300 points however long the run is. */
  points(span, total) {
    const step = Math.ceil(this.shown / 300), last = this.shown - 1;
    const x = (at) => (100 * this.spent(at + 1) / (span || 1)).toFixed(1);
    const y = (at) => (100 - 76 * this.events[at].tokens / total).toFixed(1);
    return [...Array(this.shown).keys()].filter((at) => at % step === 0 || at === last)
      .map((at) => `${x(at)},${y(at)}`).join(" ");
  }
}

/* Draws both runs as lines. `settled`: the race is finished, so the scale of the time is known. */
const sketch = (find, runners, total, settled) => {
  const [fast, slow] = runners.map((one) => (settled ? one.length : one.spent(one.shown)));
  const longest = Math.max(fast, slow), gain = find(".sd-gain");
  const span = settled ? longest : 2 ** Math.max(0, Math.ceil(Math.log2(longest || 1)));
  find(".sd-spec-line").setAttribute("points", runners[0].points(span, total));
  find(".sd-baseline-line").setAttribute("points", runners[1].points(span, total));
  find(".sd-most").textContent = total + " tokens";
  find(".sd-span").textContent = seconds(span);
  const ended = settled && runners.every((one) => one.shown && one.shown === one.events.length);
  gain.hidden = !ended || Math.abs(slow - fast) < .01;
  gain.textContent = seconds(Math.abs(slow - fast)) + (slow > fast ? " saved" : " lost");
  gain.style.left = 100 * Math.min(fast, slow) / span + "%";
  gain.style.width = 100 * Math.abs(slow - fast) / span + "%";
};

const KIND_WORDS = {
  accepted: "accepted draft token",
  forced: "forced by the grammar, so drafted with certainty",
  correction: "correction by the target",
  bonus: "bonus token by the target",
  first: "first token, by the target",
  plain: "nothing was drafted",
};
const SOURCES = new Map(Object.entries({
  model: "draft model", head: "draft head", eagle3: "EAGLE-3 head", lookup: "n-gram lookup",
  prediction: "predicted text", ngrams: "n-gram table", grammar: "grammar",
}));
const kindOf = ({ source }) => (source === "grammar" ? "forced" : "accepted");
const STEPS = {
  ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity,
};
const HINT = "Point at a token, tap it, or walk with the arrow keys to see its probabilities.";
const HIDDEN = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const quoted = (text) => `“${text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�")}”`;

const thought = ({ draft_probability: draft, target_probability: target }) =>
  [["draft", draft], ["target", target]].filter(([, value]) => value != null)
    .map(([who, value]) => `${who} ${(100 * value).toFixed(value < .1 ? 1 : 0)} %`).join(", ");

/* The line about one token: where it came from, and its probability in draft and target. */
class About {
  constructor(line, runner) {
    Object.assign(this, { line, box: runner.box, facts: new WeakMap() });
    const token = (event) => event.target.closest(".sd-tok");
    for (const kind of ["pointerover", "click"]) {
      this.box.addEventListener(kind, (event) => token(event) && this.pick(token(event)));
    }
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
    const { kind, token: { text }, position } = facts, node = make("span", `sd-tok sd-${kind}`, text);
    node.role = "option";
    node.id = "sd-token-" + position;
    node.ariaSelected = "false";
    if (!text.trim()) node.ariaLabel = text.includes("\n") ? "line break" : "space";
    this.facts.set(node, facts);
    return node;
  }

  pick(node) {
    if (this.active) this.active.ariaSelected = "false";
    this.active = node;
    this.line.textContent = node ? this.words(this.facts.get(node)) : HINT;
    this.box.setAttribute("aria-activedescendant", node?.id ?? "");
    if (node) node.ariaSelected = "true";
  }

  words({ kind, token, rejected, round, place, of }) {
    const where = place !== undefined ? ` ${place + 1} of ${of}` : of ? `, after ${of} drafted` : "";
    const by = SOURCES.has(token.source) ? ` by ${SOURCES.get(token.source)}` : "";
    const instead = rejected ? ` Rejected here: ${quoted(rejected.text)} (${thought(rejected)}).` : "";
    return `${quoted(token.text)}: ${KIND_WORDS[kind]}${where}${by}, in round ${round + 1}; `
      + `${thought(token)}.${instead}`;
  }
}
