/* The line about one token: where it came from, and what draft and target thought of it. */
const KIND_WORDS = {
  accepted: "accepted draft token",
  correction: "correction by the target",
  bonus: "bonus token by the target",
  first: "first token, by the target",
  plain: "nothing was drafted",
};
const SOURCES = {
  model: "draft model", head: "draft head", lookup: "n-gram lookup", ngrams: "n-gram table",
};
const STEPS = {
  ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity,
};
const HINT = "Point at a token, tap it, or walk with the arrow keys to see its probabilities.";
const HIDDEN = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const quoted = (text) => `“${text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�")}”`;

const thought = ({ draft_probability: draft, target_probability: target }) =>
  [["draft", draft], ["target", target]].filter(([, value]) => value != null)
    .map(([who, value]) => `${who} ${(100 * value).toFixed(value < .1 ? 1 : 0)} %`).join(", ");

class About {
  constructor(stage) {
    this.line = stage.find(".sd-about");
    this.box = stage.spec.box;
    this.facts = new WeakMap();
    const token = (event) => event.target.closest(".sd-tok");
    for (const kind of ["pointerover", "click"]) {
      this.box.addEventListener(kind, (event) => token(event) && this.pick(token(event)));
    }
    this.box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = (stage.spec.last?.tokens ?? 0) - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active ? this.facts.get(this.active).position : step === 1 ? -1 : 0;
      this.pick(this.box.children[Math.max(0, Math.min(last, from + step))]);
      this.active.scrollIntoView({ block: "nearest" });
    });
  }

  /* A token of the answer; `facts` has its kind, round, fields, place, and the draft's size. */
  token(facts) {
    const { kind, token: { text } } = facts, node = make("span", `sd-tok sd-${kind}`, text);
    node.role = "option";
    node.ariaSelected = "false";
    if (!text.trim()) node.ariaLabel = text.includes("\n") ? "line break" : "space";
    this.facts.set(node, facts);
    return node;
  }

  pick(node) {
    this.active?.classList.remove("sd-picked");
    if (this.active) this.active.ariaSelected = "false";
    this.active = node;
    this.line.textContent = node ? this.words(this.facts.get(node)) : HINT;
    this.box.removeAttribute("aria-activedescendant");
    if (!node) return;
    node.classList.add("sd-picked");
    node.ariaSelected = "true";
    node.id = "sd-token-" + this.facts.get(node).position;
    this.box.setAttribute("aria-activedescendant", node.id);
  }

  words({ kind, token, rejected, round, place, of }) {
    const where = kind === "accepted" ? ` ${place + 1} of ${of}` : of ? `, after ${of} drafted` : "";
    const by = SOURCES[token.source] ? ` by ${SOURCES[token.source]}` : "";
    const instead = rejected ? ` Rejected here: ${quoted(rejected.text)} (${thought(rejected)}).` : "";
    return `${quoted(token.text)}: ${KIND_WORDS[kind]}${where}${by}, in round ${round + 1}; `
      + `${thought(token)}.${instead}`;
  }
}
