/* The stage: receives envelopes (see runs.py), shows a race as it runs, and replays it. Work per
   envelope depends on what is new, not on what is there. */
const GLYPHS = {
  accepted: "✓", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–",
};
const RUNNING = ["speculative", "plain", "waiting", "loading"];
const TICK = 33;   // ms between two drawings of a replay

class Stage {
  constructor(root) {
    this.root = root;
    this.find = (name) => root.querySelector(name);
    this.spec = new Runner(this.find(".sd-lane-spec"), this.find(".sd-text-spec"));
    this.plain = new Runner(this.find(".sd-lane-plain"), this.find(".sd-text-plain"));
    this.runners = [this.spec, this.plain];
    this.sketch = new Sketch(this.find(".sd-canvas"), this.runners);
    this.strip = this.find(".sd-strip");
    this.card = new Card(this);
    this.run = this.trace = null;
    this.rounds = [];
    this.live = this.playing = this.stripSeen = false;
    this.total = 1;
    this.view = Infinity;
    this.listenToReplay();
    this.keep = new Keep(this);
  }

  say(selector, text) {
    const node = this.find(selector);
    if (node.textContent !== text) node.textContent = text;
  }

  /* ---------- receiving ---------- */
  receive(text) {
    const message = JSON.parse(text), { trace, phase } = message, failed = phase === "error";
    this.say(".sd-note", failed ? "" : message.note);
    this.say(".sd-error", failed ? message.note : "");
    this.find(".sd-error").hidden = !failed;
    if (!failed && phase !== "idle" && message.run !== this.run) this.reset(message);
    this.root.dataset.phase = phase;
    // The Run and Stop buttons follow by style alone.
    document.documentElement.classList.toggle("sd-running", RUNNING.includes(phase));
    if (failed) this.fail();
    if (failed || phase === "idle") return;
    if (this.live && !this.rounds.length && !trace) {
      const words = { loading: "Getting ready", waiting: "Waiting in line" };
      this.say(".sd-headline", words[phase] || "Racing");
    }
    const rounds = trace ? trace.rounds : message.rounds;
    const plain = trace ? trace.baseline?.tokens ?? [] : message.plain;
    this.take(this.spec, rounds, trace ? 0 : message.rounds_from);
    this.take(this.plain, plain, trace ? 0 : message.plain_from);
    if (!trace) {
      this.follow();
      return;
    }
    Object.assign(this, { trace, verdict: message.verdict, joules: message.joules });
    this.kept = phase === "opened" ? message.kept : message.run;
    this.settle();
  }

  take(runner, items, from) {
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
    if (this.plain.shown) this.ghost(this.plain.length);
    this.sketch.paint();
  }

  fail() {
    this.live = false;
    this.showAll();
    if (this.trace || this.run === null) return;
    this.find(".sd-verdict").dataset.tone = "stopped";
    this.say(".sd-headline", "No answer");
    this.say(".sd-sentence", "");
  }

  reset(message) {
    this.run = message.run;
    this.trace = this.verdict = null;
    this.rounds = [];
    this.kept = "";
    this.playing = false;
    this.view = Infinity;
    this.live = message.phase !== "opened";
    this.total = message.limit || 1;
    this.accepted = this.examined = this.tokenCount = 0;
    for (const runner of this.runners) runner.clear();
    this.strip.textContent = "";
    this.card.pick(null);
    for (const name of ["reason", "identity", "spoken", "round-count", "table-body"]) {
      this.say(".sd-" + name, "");
    }
    for (const name of ["accept", "tpr", "cpu-spec", "cpu-plain", "money-spec", "money-plain"]) {
      this.say(".sd-" + name, "-");
    }
    for (const name of ["play", "seek", "download"]) this.find(".sd-" + name).disabled = true;
    this.find(".sd-verdict").dataset.tone = "running";
    this.say(".sd-headline", this.live ? "Racing" : "");
    this.say(".sd-sentence", this.live ? "First with drafts, then one token at a time: one run "
      + "after the other, so that neither takes the processor from the other." : "");
    this.sketch.paint(this.total, false);
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
    const column = make("span", "sd-round sd-later");
    column.dataset.round = index;
    column.append(...looks.map((look) => make("span", "sd-cell sd-" + look, GLYPHS[look])));
    column.title = `Round ${index + 1}: ${of} drafted, ${accepted} accepted`
      + (emitted ? ", then 1 by the target" : "");
    this.accepted += accepted;
    this.examined += accepted + (emitted?.kind === "correction" ? 1 : 0);
    this.rounds.push(round);
    this.strip.append(column);
    const { examined } = this;
    this.spec.add(round.shown_at, nodes, { column, accepted: this.accepted, examined });
  }

  /* ---------- drawing ---------- */
  /* Where the speculative run was at the same time, on the other lane. */
  ghost(t) {
    const count = this.spec.at(t), tokens = this.spec.counts[count - 1] ?? 0;
    this.plain.ghost.hidden = !count;
    const share = 100 * Math.min(1, tokens / this.total);
    this.plain.ghost.style.transform = "translateX(" + share + "%)";
  }

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
    this.plain.ghost.hidden = true;
    const seek = this.find(".sd-seek"), { shown, extra, times } = this.spec;
    seek.value = end ? Math.round(1000 * time / end) : 1000;
    seek.setAttribute("aria-valuetext", `${seconds(time)}, round ${shown} of ${times.length}`);
    this.say(".sd-time", seconds(time));
    this.marked?.classList.remove("sd-now");
    this.marked = time < end && shown ? extra[shown - 1].column : null;
    this.marked?.classList.add("sd-now");
    if (this.marked && !this.playing) reveal(this.strip, this.marked, "Left");
  }

  /* The end of a run: the words, the figures and the controls that need a whole trace. */
  settle() {
    const { trace, verdict, spec, plain } = this;
    this.live = false;
    // A run that was stopped never reached the finish line; one that ended has it where it ended.
    if (verdict.tone !== "stopped") this.total = Math.max(spec.tokens, plain.tokens, 1);
    this.showAll();
    this.root.dataset.settled = this.run;
    this.find(".sd-verdict").dataset.tone = verdict.tone;
    for (const name of ["headline", "sentence", "reason", "identity"]) {
      this.say(".sd-" + name, verdict[name]);
    }
    this.say(".sd-spoken", "The answer: " + trace.rounds.map(keptText).join(""));
    if (trace.prompt_tokens > 0 && trace.prompt_reused >= trace.prompt_tokens) {
      this.say(".sd-note", "The prompt was in the prefix cache: its first token came at once.");
    }
    for (const runner of this.runners) runner.box.scrollTop = 0;
    this.strip.scrollLeft = 0;
    for (const name of [".sd-play", ".sd-seek"]) this.find(name).disabled = !spec.times.length;
    this.find(".sd-download").disabled = false;
    this.keep.money();
    this.keep.table();
    this.show(Infinity);
    this.sketch.paint(this.total, true);
    const pace = (runner) => runner.length / Math.max(1, runner.tokens - 1);
    const winner = pace(spec) <= pace(plain) ? spec : plain;
    if (plain.times.length > 1) winner.lane.classList.add("sd-won");
  }

  /* ---------- what a visitor can do ---------- */
  play(on) {
    this.playing = on;
    this.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Replay the race";
  }

  tick() {
    clearTimeout(this.timer);
    if (!this.playing) return;
    const t = this.playFrom + (performance.now() - this.playSince) / 1000 * this.speed;
    if (t < this.duration()) {
      this.show(t);
      this.timer = setTimeout(() => this.tick(), TICK);
    } else this.jump(Infinity);
  }

  jump(t) {
    this.play(false);
    this.show(t);
  }

  listenToReplay() {
    const { strip } = this, speed = this.find(".sd-speed"), seek = this.find(".sd-seek");
    // Where a strip out of sight is scrolled to is not asked: that alone would lay it out.
    new IntersectionObserver((seen) => {
      this.stripSeen = seen.at(-1).isIntersecting;
      if (this.stripSeen && this.live) strip.scrollLeft = strip.scrollWidth;
    }).observe(this.find(".sd-rounds"));
    strip.addEventListener("click", (event) => {
      const column = event.target.closest(".sd-round");
      if (!column || this.live || !this.trace) return;
      this.jump(this.spec.times[column.dataset.round] - this.spec.first);
    });
    const start = () => {
      this.speed = parseFloat(speed.value);
      this.playFrom = this.view < this.duration() ? this.view : 0;
      this.playSince = performance.now();
    };
    this.find(".sd-play").addEventListener("click", () => {
      this.play(!this.playing);
      if (!this.playing) return;
      start();
      for (const runner of this.runners) this.reach(runner, 0, false);
      this.tick();
    });
    speed.addEventListener("change", () => { if (this.playing) start(); });
    seek.addEventListener("input", () => {
      this.jump(seek.value >= 1000 ? Infinity : seek.value / 1000 * this.duration());
    });
  }
}

let stage = null, early = null, query = "";
window.specdemo = {
  mount(element) {
    stage = window.specdemo.stage = new Stage(element.querySelector(".sd-stage"));
    if (early) stage.receive(early);
  },
  receive(text) {
    if (stage && text) stage.receive(text);
    else early = text;
  },
  settings(text) { query = text; },
  /* Question and settings, and the run on the stage if it answers that very question. */
  link() {
    const wanted = new URLSearchParams(query), { kept, trace } = stage || {};
    if (kept && trace && trace.instruction === wanted.get("question")) wanted.set("run", kept);
    return location.origin + location.pathname + (query ? "?" + wanted : "");
  },
};
