/* The stage: receives envelopes (see runs.py), shows a race as it runs, and replays it. Work per
   envelope depends on what is new, not on what is there. */
const GLYPHS = {
  accepted: "✓", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–",
};
const RUNNING = ["speculative", "plain", "waiting", "loading"];
const KEEPING = ["idle", "waiting", "loading"];   // phases in which what was shown before stays
const GONE = "The server kept the run of this old link only until it was started again; press Run.";
const UNREACHABLE = "The server does not answer; reload the page.";
const TOO_LARGE = `The run is larger than ${LARGEST_RUN / 1e6} MB, more than the page opens.`;
const TICK = 30;   // ms between two drawings of a replay

class Stage {
  constructor(root, server) {
    Object.assign(this, { root, server });
    this.find = (name) => root.querySelector(name);
    this.spec = new Runner(this.find(".sd-lane-spec"), this.find(".sd-text-spec"));
    this.plain = new Runner(this.find(".sd-lane-plain"), this.find(".sd-text-plain"));
    this.runners = [this.spec, this.plain];
    this.sketch = new Sketch(this.find(".sd-canvas"), this.runners);
    this.strip = this.find(".sd-strip");
    this.card = new Card(this);
    this.run = this.trace = null;
    this.rounds = [];
    this.inbox = [];
    this.origin = "";   // of the run that is shown, where it was measured before
    this.live = this.playing = this.stripSeen = false;
    this.total = 1;
    this.view = Infinity;
    this.listenToReplay();
    this.keep = new Keep(this);
    this.whatIf = new WhatIf(this.find);
  }

  say(selector, text) {
    const node = this.find(selector);
    if (node.textContent !== text) node.textContent = text;
  }

  /* A run that was measured before, as JSON; the server checks it and says it in words. */
  async envelope(text) {
    if (text.length > LARGEST_RUN) return failure(TOO_LARGE);
    return this.server.opened(text).catch(() => failure(UNREACHABLE));
  }

  async open(text) { this.receive(await this.envelope(text)); }

  /* ---------- receiving ---------- */
  /* What arrives within one frame is drawn in one go. */
  receive(text) {
    this.inbox.push(text);
    if (this.inbox.length === 1) requestAnimationFrame(() => this.drain());
  }

  drain() {
    for (const one of this.inbox.splice(0)) this.take(JSON.parse(one));
    if (this.live) this.follow();
  }

  take(message) {
    const { trace, phase, note } = message, failed = phase === "error";
    if (!KEEPING.includes(phase) && !failed) this.origin = phase === "opened" ? note : "";
    this.say(".sd-note", failed ? this.origin : note);
    this.say(".sd-error", failed ? note : "");
    this.find(".sd-error").hidden = !failed;
    this.root.dataset.phase = phase;
    // The Run and Stop buttons follow by style alone.
    document.documentElement.classList.toggle("sd-running", RUNNING.includes(phase));
    if (failed) this.fail();
    if (failed || KEEPING.includes(phase)) return;
    if (message.run !== this.run) this.reset(message);
    const rounds = trace ? trace.rounds : message.rounds;
    const plain = trace ? trace.baseline?.tokens ?? [] : message.plain;
    this.add(this.spec, rounds, trace ? 0 : message.rounds_from);
    this.add(this.plain, plain, trace ? 0 : message.plain_from);
    if (!trace) return;
    const { verdict, figures, joules } = message;
    Object.assign(this, { trace, verdict, figures, joules });
    this.settle(phase === "opened");
  }

  add(runner, items, from) {
    const before = runner.times.length;
    if (from > before) return;   // a gap: the trace at the end fills it
    for (const item of items.slice(before - from)) {
      if (runner === this.spec) this.addRound(item);
      else runner.add(item.shown_at, [make("span", "sd-ptok sd-later", item.text)]);
    }
  }

  /* Shows what has arrived of a run in progress. */
  follow() {
    for (const runner of this.runners) {
      if (runner.shown < runner.times.length) this.reach(runner, runner.times.length, true);
      runner.clock.textContent = seconds(runner.length);
    }
    this.find(".sd-answer-plain").classList.toggle("sd-later", !this.plain.tokens);
    this.sketch.paint();
  }

  fail() {
    if (!this.live) return;
    this.live = false;
    this.showAll();
    this.find(".sd-verdict").dataset.tone = "stopped";
    this.say(".sd-headline", "No answer");
    this.say(".sd-sentence", "");
  }

  reset(message) {
    this.run = message.run;
    this.trace = this.verdict = null;
    this.rounds = [];
    this.play(false);
    this.view = Infinity;
    this.live = message.phase !== "opened";
    this.root.classList.toggle("sd-recorded", !this.live);
    this.total = message.limit || 1;
    this.accepted = this.examined = this.tokenCount = 0;
    for (const runner of this.runners) runner.clear();
    this.strip.textContent = "";
    this.card.pick(null);
    this.find(".sd-text-spec").setAttribute("role", "region");
    this.find(".sd-shown").hidden = false;
    this.find(".sd-answer-plain").classList.add("sd-later");
    this.after(false);
    for (const name of ["reason", "identity", "spoken", "round-count", "kept"]) {
      this.say(".sd-" + name, "");
    }
    for (const name of ["accept", "tpr"]) this.say(".sd-" + name, "-");
    this.find(".sd-verdict").dataset.tone = "running";
    this.say(".sd-headline", "Racing");
    this.say(".sd-sentence", "First with drafts, then one token at a time: one run after the "
      + "other, so that neither takes the processor from the other.");
    this.sketch.paint(this.total, false);
  }

  /* What needs a whole run is there only after one. */
  after(there) {
    for (const node of this.root.querySelectorAll(".sd-after")) node.hidden = !there;
    this.find(".sd-link-text").hidden = true;
  }

  addRound(round) {
    const index = this.rounds.length, nodes = [], looks = [], { drafted, emitted } = round;
    const rejected = drafted.find((token) => !token.accepted), of = drafted.length;
    const add = (kind, token, more) => {
      const about = { kind, token, round: index, of, position: this.tokenCount++, ...more };
      nodes.push(this.card.token(about));
    };
    drafted.forEach((token, place) => {
      looks.push(token.accepted ? "accepted" : token === rejected ? "rejected" : "unseen");
      if (token.accepted) add("accepted", token, { place });
    });
    const accepted = nodes.length;
    if (emitted) {
      looks.push(emitted.kind);
      add(emitted.kind, emitted, { rejected });
    }
    this.accepted += accepted;
    this.examined += accepted + (emitted?.kind === "correction" ? 1 : 0);
    this.rounds.push(round);
    const { examined } = this, counted = { accepted: this.accepted, examined };
    this.spec.add(round.shown_at, nodes, { ...counted, looks, of, kept: accepted });
    if (this.stripSeen) this.columns();
  }

  /* The columns of the rounds so far, which are made only where somebody could see them. */
  columns() {
    const { strip, spec: { extra, shown } } = this;
    for (let index = strip.childElementCount; index < extra.length; index++) {
      const { looks, of, kept } = extra[index];
      const column = make("span", "sd-round" + (index < shown ? "" : " sd-later"));
      column.dataset.round = index;
      column.append(...looks.map((look) => make("span", "sd-cell sd-" + look, GLYPHS[look])));
      column.title = `Round ${index + 1}: ${of} drafted, ${kept} accepted`
        + (looks.length > of ? ", then 1 by the target" : "");
      extra[index].column = strip.appendChild(column);
    }
  }

  /* ---------- drawing ---------- */
  reach(runner, count, follow) {
    runner.reach(count, this.total);
    if (!count) return;
    if (runner === this.spec) {
      const { accepted, examined } = runner.extra[count - 1];
      const after = runner.tokensShown - runner.counts[0];
      if (examined) this.say(".sd-accept", Math.round(100 * accepted / examined) + " %");
      if (count > 1) this.say(".sd-tpr", (after / (count - 1)).toFixed(2));
      this.say(".sd-round-count", "(" + count + " round" + (count === 1 ? "" : "s") + ")");
    }
    if (!follow) return;
    runner.box.scrollTop = runner.box.scrollHeight;
    if (runner === this.spec && this.stripSeen) this.strip.scrollLeft = this.strip.scrollWidth;
  }

  showAll() { for (const one of this.runners) this.reach(one, one.times.length, false); }

  duration() { return Math.max(this.spec.length, this.plain.length); }

  /* Replay: the state of both runs `t` seconds after their first tokens. */
  show(t) {
    const end = this.duration(), time = Math.min(t, end);
    this.view = t;
    for (const runner of this.runners) {
      const count = runner.at(time);
      if (count !== runner.shown) this.reach(runner, count, this.playing);
      runner.clock.textContent = seconds(Math.min(time, runner.length));
    }
    const seek = this.find(".sd-seek"), { shown, extra, times } = this.spec;
    seek.value = end ? Math.round(1000 * time / end) : 1000;
    seek.setAttribute("aria-valuetext", `${seconds(time)}, round ${shown} of ${times.length}`);
    this.say(".sd-time", seconds(time));
    this.sketch.paint(this.total, true);
    this.marked?.classList.remove("sd-now");
    this.marked = time < end && shown ? extra[shown - 1].column : null;
    this.marked?.classList.add("sd-now");
    if (this.marked && !this.playing) reveal(this.strip, this.marked, "Left");
  }

  /* The end of a run: the words, the figures and the controls that need a whole trace. `before`: it
     was measured before; what nobody asked for is not spoken. */
  settle(before) {
    const { trace, verdict, spec, plain } = this;
    this.live = false;
    // A run that was stopped never reached the finish line; one that ended has it where it ended.
    if (verdict.tone !== "stopped") this.total = Math.max(spec.tokens, plain.tokens, 1);
    this.columns();
    this.find(".sd-answer-plain").classList.toggle("sd-later", !plain.tokens);
    this.card.label(spec.box.children);
    spec.box.setAttribute("role", spec.tokens ? "listbox" : "region");
    this.showAll();
    this.root.dataset.settled = this.run;
    this.find(".sd-verdict").dataset.tone = verdict.tone;
    for (const name of ["headline", "sentence", "reason", "identity"]) {
      this.say(".sd-" + name, verdict[name]);
    }
    if (!before) this.say(".sd-spoken", [verdict.headline, verdict.sentence].join(". "));
    if (!before && trace.prompt_tokens > 0 && trace.prompt_reused >= trace.prompt_tokens) {
      this.say(".sd-note", "The prompt was in the prefix cache: its first token came at once.");
    }
    this.strip.scrollLeft = 0;
    this.after(true);
    drawFigures(this.find, trace, this.figures);
    this.whatIf.open(this.figures, trace.summary);
    this.keep.money();
    this.keep.table();
    this.jump(Infinity);
    const ends = this.runners.filter((one) => one.tokens).map((one, at) =>
      `${at ? "baseline" : "speculative"} ${one.tokens} tokens in ${seconds(one.length)}`);
    this.find(".sd-canvas").setAttribute("aria-label", "Tokens against seconds: " + ends.join(", "));
    const pace = (runner) => runner.length / Math.max(1, runner.tokens - 1);
    const winner = pace(spec) <= pace(plain) ? spec : plain;
    if (plain.times.length > 1) winner.lane.classList.add("sd-won");
  }

  /* ---------- what a visitor can do ---------- */
  play(on) {
    this.playing = on;
    this.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Replay the race";
  }

  /* Plays from where the view is, at its end from the start. */
  start() {
    this.play(true);
    this.speed = parseFloat(this.find(".sd-speed").value);
    this.playFrom = this.view < this.duration() ? this.view : 0;
    this.playSince = performance.now();
    for (const runner of this.runners) this.reach(runner, 0, false);
    this.drawn = 0;
    this.tick(this.playSince);
  }

  tick(now) {
    if (!this.playing) return;
    cancelAnimationFrame(this.timer);
    this.timer = requestAnimationFrame((later) => this.tick(later));
    if (now - this.drawn < TICK) return;
    this.drawn = now;
    const t = this.playFrom + Math.max(0, now - this.playSince) / 1000 * this.speed;
    if (t < this.duration()) this.show(t);
    else this.jump(Infinity);
  }

  jump(t) {
    this.play(false);
    this.show(t);
    if (t === Infinity) for (const runner of this.runners) runner.box.scrollTop = 0;
  }

  listenToReplay() {
    const { strip } = this, speed = this.find(".sd-speed"), seek = this.find(".sd-seek");
    // Where a strip out of sight is scrolled to is not asked: that alone would lay it out.
    new IntersectionObserver((seen) => {
      this.stripSeen = seen.at(-1).isIntersecting;
      if (!this.stripSeen || !this.live) return;
      this.columns();
      strip.scrollLeft = strip.scrollWidth;
    }).observe(this.find(".sd-rounds"));
    strip.addEventListener("click", (event) => {
      const column = event.target.closest(".sd-round");
      if (!column || this.live || !this.trace) return;
      this.jump(this.spec.times[column.dataset.round] - this.spec.first);
    });
    this.find(".sd-play").addEventListener("click", () => {
      if (this.playing) this.play(false);
      else this.start();
    });
    speed.addEventListener("change", () => { if (this.playing) this.start(); });
    seek.addEventListener("input", () => {
      this.jump(seek.value >= 1000 ? Infinity : seek.value / 1000 * this.duration());
    });
  }
}

const failure = (note) => JSON.stringify({ phase: "error", note });
let stage = null, early = null, query = "";
const asked = new URLSearchParams(location.search), page = location.origin + location.pathname;
if (asked.has("embed")) document.documentElement.classList.add("sd-embed");

/* Puts another question into the box, and goes there. */
const askInstead = (question) => {
  const box = document.querySelector("#sd-question textarea");
  box.value = question;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.focus();
};

/* What there is to show before anybody has asked: the run of the link, else the recorded one. */
const openFirst = async () => {
  const [, packed] = location.hash.match(/^#run=(.*)/) ?? [];
  const text = packed === undefined ? "" : await unpack(packed).catch(() => null);
  const envelope = text === null ? failure(DAMAGED) : text && await stage.envelope(text);
  const opened = envelope && JSON.parse(envelope).phase !== "error";
  if (!opened && !stage.run) stage.receive(RECORDED);
  if (envelope) stage.receive(envelope);
  if (asked.has("run")) stage.receive(JSON.stringify({ phase: "idle", note: GONE }));
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!still && (!opened || asked.has("embed"))) requestAnimationFrame(() => stage.start());
};

window.specdemo = {
  mount(element, server) {
    stage = window.specdemo.stage = new Stage(element.querySelector(".sd-stage"), server);
    stage.find(".sd-whole").href = page + location.hash;
    if (early) stage.receive(early);
    else openFirst();
    addEventListener("hashchange", openFirst);
  },
  receive(text) {
    if (stage && text) stage.receive(text);
    else early = text;
  },
  expectedSpeedup,
  settings(text) { query = text; },
  /* Question and settings. */
  link() { return page + (query ? "?" + query : ""); },
  /* The whole run, with the question and the settings where the run answers that very question. */
  async share() {
    const { trace } = stage, same = trace.instruction === new URLSearchParams(query).get("question");
    return (same ? window.specdemo.link() : page) + "#run=" + await pack(trace);
  },
};
