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
  const share = 100 * (probability ?? 0);
  track.append(make("span", "sd-meter-fill"));
  track.firstChild.style.width = share + "%";
  const value = probability === null ? "none" : share.toFixed(share < 10 ? 1 : 0) + " %";
  row.append(make("span", "", who), track, make("span", "", value));
  return row;
};

/* Scrolls `box`, and nothing else, until the child is in sight. */
const reveal = (box, child, side, size) => {
  const seen = box.getBoundingClientRect(), at = child.getBoundingClientRect();
  const off = at[side] - seen[side], room = seen[size];
  if (off >= 0 && off + at[size] <= room) return;
  box[side === "top" ? "scrollTop" : "scrollLeft"] += off - room / 2;
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
    const { text } = about.token, node = make("span", `sd-tok sd-${about.kind}`, text);
    node.role = "option";
    node.ariaSelected = "false";
    const blank = text.includes("\n") ? "line break" : text ? "space" : "no text yet";
    if (!text.trim()) node.ariaLabel = blank;
    this.about.set(node, about);
    return node;
  }

  pick(node, focus) {
    const { active, near, box } = this;
    if (active) active.ariaSelected = "false";
    active?.classList.remove("sd-picked");
    near?.classList.remove("sd-near");
    this.active = node;
    this.root.hidden = !node;
    if (!node) {
      box.removeAttribute("aria-activedescendant");
      return;
    }
    const about = this.about.get(node);
    node.classList.add("sd-picked");
    node.ariaSelected = "true";
    node.id ||= "sd-token-" + about.position;
    box.setAttribute("aria-activedescendant", node.id);
    if (focus) reveal(box, node, "top", "height");
    this.near = this.stage.spec.events[about.round].column;
    this.near.classList.add("sd-near");
    reveal(this.stage.strip, this.near, "left", "width");
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
    const { box, stage } = this;
    const at = (event) => event.target.closest(".sd-tok");
    box.addEventListener("pointerover", (event) => {
      if (at(event) && event.pointerType === "mouse") this.pick(at(event));
    });
    box.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && document.activeElement !== box) this.pick(null);
    });
    box.addEventListener("click", (event) => this.pick(at(event)));
    box.addEventListener("blur", () => this.pick(null));
    box.addEventListener("keydown", (event) => {
      const step = STEPS[event.key], last = (stage.spec.last?.tokens ?? 0) - 1;
      if (step === undefined || last < 0) return;
      event.preventDefault();
      const from = this.active ? this.about.get(this.active).position : step === 1 ? -1 : 0;
      this.pick(box.children[Math.max(0, Math.min(last, from + step))], true);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.pick(null);
    });
    document.addEventListener("pointerdown", (event) => {
      if (!stage.root.contains(event.target)) this.pick(null);
    });
  }
}
