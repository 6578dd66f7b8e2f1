/* The card about one token: where it came from, and what draft and target thought of it. */
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

const meter = (who, probability) => {
  const row = make("p", "sd-meter"), track = make("span", "sd-meter-track");
  const fill = make("span", "sd-meter-fill"), share = 100 * (probability ?? 0);
  fill.style.width = share + "%";
  track.append(fill);
  const value = probability === null ? "none" : share.toFixed(share < 10 ? 1 : 0) + " %";
  row.append(make("span", "", who), track, make("span", "", value));
  return row;
};

/* Scrolls `box` so that the child is in sight; `side` is "Left" or "Top". */
const reveal = (box, child, side) => {
  const at = child["offset" + side] - box["offset" + side], from = box["scroll" + side];
  const room = side === "Left" ? box.clientWidth : box.clientHeight;
  if (at < from || at > from + room - 24) box["scroll" + side] = at - room / 2;
};

class Card {
  constructor(stage) {
    this.stage = stage;
    this.root = stage.find(".sd-card");
    this.box = stage.spec.box;
    this.about = new WeakMap();
    this.active = this.near = null;
    this.listen();
  }

  /* A token of the answer; `about` has its kind, round, fields, place, and the draft's size. */
  token(about) {
    const { text } = about.token, node = make("span", `sd-tok sd-${about.kind} sd-later`, text);
    this.about.set(node, about);
    return node;
  }

  /* Names the tokens for assistive technology, once a run has ended. */
  label(nodes) {
    for (const node of nodes) {
      const { text } = this.about.get(node).token;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", "false");
      const blank = text.includes("\n") ? "line break" : text ? "space" : "no text yet";
      if (!text.trim()) node.setAttribute("aria-label", blank);
    }
  }

  pick(node, focus) {
    this.active?.classList.remove("sd-picked");
    this.active?.setAttribute("aria-selected", "false");
    this.near?.classList.remove("sd-near");
    this.active = node;
    this.root.hidden = !node;
    if (!node) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    const about = this.about.get(node);
    node.classList.add("sd-picked");
    node.setAttribute("aria-selected", "true");
    node.id ||= "sd-token-" + about.position;
    this.box.setAttribute("aria-activedescendant", node.id);
    if (focus) reveal(this.box, node, "Top");
    this.stage.columns();
    this.near = this.stage.strip.children[about.round];
    this.near.classList.add("sd-near");
    reveal(this.stage.strip, this.near, "Left");
    this.fill(about);
    this.place(node);
  }

  fill({ kind, token, rejected, round, place, of }) {
    const drafted = of ? `, after ${of} drafted` : "";
    const where = kind === "accepted" ? `, draft token ${place + 1} of ${of}` : drafted;
    const parts = [
      make("p", "sd-card-token", "“" + visible(token.text) + "”"),
      make("p", "sd-card-kind sd-" + kind, KIND_WORDS[kind]),
      make("p", "sd-card-where", `Round ${round + 1}${where}. Id ${token.id}.`),
    ];
    if (kind === "accepted") parts.push(meter("draft", token.draft_probability));
    parts.push(meter("target", token.target_probability));
    if (token.source && token.source !== "model") {
      parts.push(make("p", "sd-card-where", `Drafted by ${SOURCES[token.source] ?? token.source}.`));
    }
    if (rejected) {
      const text = "rejected here: “" + visible(rejected.text) + "”";
      parts.push(make("p", "sd-card-kind sd-rejected", text));
      parts.push(meter("draft", rejected.draft_probability));
      parts.push(meter("target", rejected.target_probability));
    }
    this.root.replaceChildren(...parts);
  }

  /* Beside the token: above it where there is room. */
  place(node) {
    const spot = node.getClientRects()[0] || node.getBoundingClientRect();
    const stage = this.stage.root.getBoundingClientRect();
    const size = this.root.getBoundingClientRect(), { style } = this.root;
    const above = spot.top - size.height - 8 > 0;
    const left = Math.min(spot.left - stage.left, stage.width - size.width - 4);
    style.left = Math.max(4, left) + "px";
    style.top = (above ? spot.top - size.height - 6 : spot.bottom + 6) - stage.top + "px";
  }

  listen() {
    const { box } = this;
    const at = (event) => event.target.closest?.(".sd-text-spec .sd-tok:not(.sd-later)") ?? null;
    box.addEventListener("pointerover", (event) => {
      if (at(event) && event.pointerType === "mouse") this.pick(at(event));
    });
    box.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && document.activeElement !== box) this.pick(null);
    });
    box.addEventListener("click", (event) => this.pick(at(event)));
    box.addEventListener("blur", () => this.pick(null));
    box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = this.stage.spec.tokensShown - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active ? this.about.get(this.active).position : step === 1 ? -1 : 0;
      this.pick(box.children[Math.max(0, Math.min(last, from + step))], true);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.pick(null);
    });
    document.addEventListener("pointerdown", (event) => {
      if (!this.stage.root.contains(event.target)) this.pick(null);
    });
  }
}
