/* The card about one token: where it came from, and what draft and target thought of it. */
(() => {
  if (window.specdemo.Card) return;

  const { make } = window.specdemo;
  const KIND_WORDS = {
    accepted: "accepted draft token",
    correction: "correction by the target",
    bonus: "bonus token by the target",
    first: "first token, by the target",
    plain: "nothing was drafted",
  };
  const HIDDEN = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
  const STEPS = {
    ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity,
  };
  const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�");
  const percent = (p) => {
    if (p === null || p === undefined) return "none";
    const share = 100 * p;
    return (share >= 99.95 || share < 0.05 ? Math.round(share) : share.toPrecision(2)) + " %";
  };

  const meter = (who, probability) => {
    const row = make("p", "sd-meter"), track = make("span", "sd-meter-track");
    const fill = make("span", "sd-meter-fill sd-m-" + who);
    fill.style.width = 100 * (probability ?? 0) + "%";
    track.append(fill);
    row.append(make("span", "", who), track, make("span", "sd-meter-value", percent(probability)));
    return row;
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

    /* A token of the answer; `about` has its round, its fields, and the draft's size. */
    token(text, about) {
      const node = make("span", "sd-tok sd-" + about.kind + " sd-later", text);
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", "false");
      const blank = text.includes("\n") ? "line break" : text ? "space" : "no text yet";
      if (!text.trim()) node.setAttribute("aria-label", blank);
      this.about.set(node, about);
      return node;
    }

    pick(node, focus) {
      if (this.active && this.active !== node) {
        this.active.classList.remove("sd-picked");
        this.active.setAttribute("aria-selected", "false");
      }
      this.active = node;
      if (!node) {
        this.box.removeAttribute("aria-activedescendant");
        this.hide();
        return;
      }
      node.classList.add("sd-picked");
      node.setAttribute("aria-selected", "true");
      node.id ||= "sd-token-" + this.about.get(node).position;
      this.box.setAttribute("aria-activedescendant", node.id);
      if (focus) {
        const top = node.offsetTop - this.box.offsetTop, room = this.box.clientHeight;
        const inView = top >= this.box.scrollTop && top <= this.box.scrollTop + room - 24;
        if (!inView) this.box.scrollTop = top - room / 2;
      }
      this.fill(this.about.get(node));
      this.place(node);
    }

    hide() {
      this.root.hidden = true;
      if (this.near) this.near.classList.remove("sd-near");
      this.near = null;
    }

    fill({ kind, token, rejected, round, place, of }) {
      const parts = [
        make("p", "sd-card-token", "“" + visible(token.text) + "”"),
        make("p", "sd-card-kind sd-k-" + kind, KIND_WORDS[kind]),
      ];
      const drafted = of ? `, after ${of} drafted` : "";
      const where = kind === "accepted" ? `, draft token ${place + 1} of ${of}` : drafted;
      parts.push(make("p", "sd-card-where", `Round ${round + 1}${where}. Id ${token.id}.`));
      if (kind === "accepted") parts.push(meter("draft", token.draft_probability));
      parts.push(meter("target", token.target_probability));
      if (kind === "accepted" && token.source && token.source !== "model") {
        const lookup = token.source === "lookup";
        const source = lookup ? "n-gram lookup in the text so far" : token.source;
        parts.push(make("p", "sd-card-where", `Drafted by ${source}.`));
      }
      if (rejected) {
        const text = "rejected here: “" + visible(rejected.text) + "”";
        parts.push(make("p", "sd-card-kind sd-k-rejected", text));
        parts.push(meter("draft", rejected.draft_probability));
        parts.push(meter("target", rejected.target_probability));
      }
      this.root.replaceChildren(...parts);
      if (this.near) this.near.classList.remove("sd-near");
      this.near = this.stage.strip.children[round];
      this.near.classList.add("sd-near");
      this.stage.reveal(this.near);
    }

    /* Beside the token: above it where there is room. */
    place(node) {
      this.root.hidden = false;
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

  Object.assign(window.specdemo, { Card, visible });
})();
