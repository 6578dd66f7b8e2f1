/* The stage: receives envelopes (see runs.py), shows a race as it runs, and replays it. Work per
   envelope depends on what is new, not on what is there. */
const GLYPHS = {
  accepted: "✓", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–",
};
const RUNNING = ["speculative", "plain", "waiting", "loading"];
const KEEPING = ["idle", "waiting", "loading", "error"];   // what was shown before stays
const GONE = "The server kept the run of this old link only until it was started again; press Run.";
const UNREACHABLE = "The server does not answer; reload the page.";
const TOO_LARGE = `The run is larger than ${LARGEST_RUN / 1e6} MB, more than the page opens.`;
const TICK = 30;   // ms between two drawings of a replay

class Stage {
  constructor(root, server) {
    Object.assign(this, { root, server, run: null, trace: null, inbox: [], total: 1 });
    this.origin = "";   // of the run that is shown, where it was measured before
    this.live = this.playing = this.stripSeen = false;
    this.view = Infinity;   // seconds of the race that are shown
    this.find = (name) => root.querySelector(name);
    this.spec = new Runner(this.find(".sd-lane-spec"), this.find(".sd-text-spec"));
    this.plain = new Runner(this.find(".sd-lane-plain"), this.find(".sd-text-plain"));
    this.runners = [this.spec, this.plain];
    this.strip = this.find(".sd-strip");
    this.card = new Card(this);
    this.keep = new Keep(this);
    this.whatIf = new WhatIf(this.find);
    this.listen();
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

  /* What arrives within one frame is drawn in one go. */
  receive(text) {
    this.inbox.push(text);
    if (this.inbox.length === 1) requestAnimationFrame(() => this.drain());
  }

  drain() {
    for (const one of this.inbox.splice(0)) this.take(JSON.parse(one));
    if (this.live) this.show(Infinity);
  }

  take(message) {
    const { trace, phase, note } = message, failed = phase === "error";
    if (!KEEPING.includes(phase)) this.origin = phase === "opened" ? note : "";
    this.say(".sd-note", failed ? this.origin : note);
    this.say(".sd-error", failed ? note : "");
    this.find(".sd-error").hidden = !failed;
    this.root.dataset.phase = phase;
    // The Run and Stop buttons follow by style alone.
    document.documentElement.classList.toggle("sd-running", RUNNING.includes(phase));
    if (failed && this.live) {
      this.live = false;
      this.tell({ tone: "stopped", headline: "No answer", sentence: "" });
    }
    if (KEEPING.includes(phase)) return;
    if (message.run !== this.run) this.reset(message);
    this.add(this.spec, trace ? trace.rounds : message.rounds, message.rounds_from);
    this.add(this.plain, trace ? trace.baseline?.tokens ?? [] : message.plain, message.plain_from);
    if (trace) this.settle(message);
  }

  reset({ run, phase, limit }) {
    Object.assign(this, { run, live: phase !== "opened", total: limit || 1, view: Infinity });
    this.trace = null;
    this.play(false);
    this.root.classList.toggle("sd-recorded", !this.live);
    delete this.root.dataset.settled;
    this.accepted = this.examined = 0;
    for (const runner of this.runners) runner.clear();
    this.strip.textContent = "";
    this.card.pick(null);
    this.find(".sd-shown").hidden = false;
    for (const name of ["spoken", "round-count", "kept"]) this.say(".sd-" + name, "");
    for (const name of ["accept", "tpr"]) this.say(".sd-" + name, "-");
    this.tell({ tone: "running", headline: "Racing", sentence: "First with drafts, then one token "
      + "at a time: one run after the other, so that neither takes the processor from the other." });
  }

  tell({ tone, headline, sentence, reason = "", identity = "" }) {
    this.find(".sd-verdict").dataset.tone = tone;
    for (const [name, text] of Object.entries({ headline, sentence, reason, identity })) {
      this.say(".sd-" + name, text);
    }
  }

  add(runner, items, from) {
    const there = runner.events.length;
    if (from > there) return;   // a gap: the trace at the end fills it
    for (const item of items.slice(there - from)) {
      if (runner === this.spec) this.addRound(item);
      else runner.add(item.shown_at, [make("span", "sd-ptok", item.text)]);
    }
  }

  addRound({ drafted, emitted, shown_at: time }) {
    const { spec } = this, round = spec.events.length, of = drafted.length, nodes = [];
    const rejected = drafted.find((token) => !token.accepted), looks = [];
    const add = (kind, token, more) => {
      const position = spec.tokens + nodes.length;
      nodes.push(this.card.token({ kind, token, round, of, position, ...more }));
    };
    drafted.forEach((token, place) => {
      looks.push(token.accepted ? "accepted" : token === rejected ? "rejected" : "unseen");
      if (token.accepted) add("accepted", token, { place });
    });
    this.accepted += nodes.length;
    this.examined += nodes.length + (emitted?.kind === "correction" ? 1 : 0);
    const column = make("span", "sd-round");
    column.title = `Round ${round + 1}: ${of} drafted, ${nodes.length} accepted`
      + (emitted ? ", then 1 by the target" : "");
    if (emitted) {
      looks.push(emitted.kind);
      add(emitted.kind, emitted, { rejected });
    }
    column.append(...looks.map((look) => make("span", "sd-cell sd-" + look, GLYPHS[look])));
    const { accepted, examined } = this;
    spec.add(time, nodes, { column, round, accepted, examined });
  }

  get duration() { return Math.max(this.spec.length, this.plain.length); }

  /* Both runs as they were `t` seconds after their first tokens; Infinity for all that is there. */
  show(t) {
    const { spec, plain, duration } = this, time = Math.min(t, duration);
    this.view = t;
    for (const runner of this.runners) {
      runner.reach(time);
      runner.draw(this.total, time);
    }
    if (spec.last) {
      const { accepted, examined, round, tokens } = spec.last;
      if (examined) this.say(".sd-accept", shareOf(accepted, examined));
      if (round) this.say(".sd-tpr", ((tokens - spec.events[0].tokens) / round).toFixed(2));
      this.say(".sd-round-count", `(${round + 1} round${round ? "s" : ""})`);
    }
    this.find(".sd-answer-plain").classList.toggle("sd-later", !plain.tokens);
    sketch(this.find(".sd-sketch"), this.runners, this.total, !this.live);
    // Where a strip out of sight would only cost time.
    if (this.stripSeen || !this.live) {
      this.strip.append(...spec.events.slice(this.strip.childElementCount).map((one) => one.column));
    }
    // Last, since it lays the page out.
    if (this.live || this.playing) this.scroll(1e6);
    if (this.live) return;
    const seek = this.find(".sd-seek");
    seek.value = duration ? Math.round(1000 * time / duration) : 1000;
    seek.setAttribute("aria-valuetext",
      `${seconds(time)}, round ${spec.shown} of ${spec.events.length}`);
    this.say(".sd-time", seconds(time));
    this.marked?.classList.remove("sd-now");
    this.marked = time < duration ? spec.last?.column : null;
    if (!this.marked) return;
    this.marked.classList.add("sd-now");
    reveal(this.strip, this.marked, "left", "width");
  }

  /* The end of a run: the words, the figures and the controls that need a whole trace. */
  settle({ trace, verdict, figures, joules, phase }) {
    const { spec, plain } = this, measuredNow = phase !== "opened";
    Object.assign(this, { trace, verdict, figures, joules, live: false });
    // A run that was stopped never reached the finish line; one that ended has it where it ended.
    if (verdict.tone !== "stopped") this.total = Math.max(spec.tokens, plain.tokens, 1);
    this.root.dataset.settled = this.run;
    this.tell(verdict);
    // What nobody asked for is not spoken.
    if (measuredNow) this.say(".sd-spoken", [verdict.headline, verdict.sentence].join(". "));
    if (measuredNow && trace.prompt_tokens > 0 && trace.prompt_reused >= trace.prompt_tokens) {
      this.say(".sd-note", "The prompt was in the prefix cache: its first token came at once.");
    }
    drawFigures(this.find, trace, figures);
    this.whatIf.open(figures, trace.summary);
    this.keep.open();
    this.jump(Infinity);
    const ends = this.runners.filter((one) => one.tokens).map((one, at) =>
      `${at ? "baseline" : "speculative"} ${one.tokens} tokens in ${seconds(one.length)}`);
    this.find(".sd-sketch").setAttribute("aria-label", "Tokens against seconds: " + ends.join(", "));
    const pace = (runner) => runner.length / Math.max(1, runner.tokens - 1);
    const winner = pace(spec) <= pace(plain) ? spec : plain;
    if (plain.tokens > 1) winner.lane.classList.add("sd-won");
  }

  play(on) {
    this.playing = on;
    this.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Replay the race";
  }

  /* Plays from where the view is, at its end from the start. */
  start() {
    this.play(true);
    this.speed = parseFloat(this.find(".sd-speed").value);
    this.playFrom = this.view < this.duration ? this.view : 0;
    this.playSince = performance.now();
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
    if (t < this.duration) this.show(t);
    else this.jump(Infinity);
  }

  jump(t) {
    this.play(false);
    this.show(t);
    if (t === Infinity) this.scroll(0);
  }

  /* Texts and strip to their starts (0) or to their ends (a large number). */
  scroll(to) {
    for (const { box } of this.runners) box.scrollTop = to;
    if (this.stripSeen || !to) this.strip.scrollLeft = to;
  }

  listen() {
    const seek = this.find(".sd-seek");
    new IntersectionObserver((seen) => {
      this.stripSeen = seen.at(-1).isIntersecting;
      if (this.stripSeen && this.live) this.show(Infinity);
    }).observe(this.find(".sd-rounds"));
    this.strip.addEventListener("click", (event) => {
      const column = event.target.closest(".sd-round"), { events } = this.spec;
      const round = events.findIndex((one) => one.column === column);
      if (column && this.trace) this.jump(this.spec.spent(round + 1));
    });
    this.find(".sd-play").addEventListener("click", () => {
      if (this.playing) this.play(false);
      else this.start();
    });
    this.find(".sd-speed").addEventListener("change", () => { if (this.playing) this.start(); });
    seek.addEventListener("input", () => {
      this.jump(seek.value >= 1000 ? Infinity : seek.value / 1000 * this.duration);
    });
  }
}

const failure = (note) => JSON.stringify({ phase: "error", note });
let stage = null, early = null, query = "";
const asked = new URLSearchParams(location.search), page = location.origin + location.pathname;
if (asked.has("embed")) document.documentElement.classList.add("sd-embed");

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
