/* The stage: receives envelopes (see envelopes.py), shows a race as it runs, and replays it. Work per
   envelope depends on what is new, not on what is there. */
(() => {
  if (window.specdemo.mount) return;

  const { make, seconds, keptText, Card, Keep, Runner, Sketch } = window.specdemo;
  const GLYPHS = {
    accepted: "✓", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–",
  };
  const RUNNING = ["speculative", "plain", "waiting", "loading"];
  const JITTER = 300;      // ms that live tokens wait, to appear at the pace they were made
  const TICK = 33;         // ms between two drawings
  const LIVE_TICK = 200;   // the same while models run: drawing takes processor time from them
  const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  class Stage {
    constructor(root) {
      this.root = root;
      this.find = (name) => root.querySelector(name);
      this.spec = new Runner(this.find(".sd-lane-spec"), this.find(".sd-text-spec"));
      this.plain = new Runner(this.find(".sd-lane-plain"), this.find(".sd-text-plain"));
      this.sketch = new Sketch(this.find(".sd-canvas"), [this.spec, this.plain]);
      this.strip = this.find(".sd-strip");
      this.card = new Card(this);
      this.inbox = [];
      this.run = this.trace = this.timer = null;
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
    /* While models run, what arrives waits for the next drawing: one layout for both. */
    receive(text) {
      this.inbox.push([text, performance.now()]);
      if (!this.live) this.read();
      this.wake();
    }

    read() { for (const [text, now] of this.inbox.splice(0)) this.accept(JSON.parse(text), now); }

    accept(message, now) {
      const failed = message.phase === "error";
      this.say(".sd-note", failed ? "" : message.note);
      this.say(".sd-error", failed ? message.note : "");
      this.find(".sd-error").hidden = !failed;
      if (failed || message.phase === "idle") {
        this.phase(message.phase);
        if (failed) this.fail();
        return;
      }
      if (message.run !== this.run) this.reset(message);
      this.phase(message.phase);
      const { trace } = message;
      if (this.live && !this.rounds.length && !trace) {
        const words = { loading: "Getting ready", waiting: "Waiting in line" };
        this.say(".sd-headline", words[message.phase] || "Racing");
      }
      const baseline = trace && trace.baseline ? trace.baseline.tokens : [];
      this.take(trace ? trace.rounds : message.rounds, trace ? 0 : message.rounds_from,
        this.spec, (round) => this.addRound(round), now);
      this.take(trace ? baseline : message.plain, trace ? 0 : message.plain_from,
        this.plain, (token) => this.addPlain(token), now);
      if (trace) {
        Object.assign(this, { trace, verdict: message.verdict, joules: message.joules });
        this.kept = message.phase === "opened" ? message.kept : message.run;
        if (!this.live) this.settle();
      }
    }

    take(items, from, runner, add, now) {
      const before = runner.times.length;
      if (from > before) return;   // a gap: the trace at the end fills it
      for (const item of items.slice(before - from)) add(item);
      if (runner.times.length > before && this.live) {
        runner.origin = Math.min(runner.origin ?? Infinity, now - runner.times.at(-1) * 1000);
      }
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
      this.spec.clear();
      this.plain.clear();
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
      this.sketch.begin(this.total);
    }

    /* The Run and Stop buttons follow the phase by style alone. */
    phase(name) {
      this.root.dataset.phase = name;
      document.documentElement.classList.toggle("sd-running", this.running());
    }

    running() { return RUNNING.includes(this.root.dataset.phase); }

    /* ---------- building, one event at a time ---------- */
    addRound(round) {
      const index = this.rounds.length, nodes = [], looks = [], of = round.drafted.length;
      const rejected = round.drafted.find((token) => !token.accepted);
      round.drafted.forEach((token, place) => {
        looks.push(token.accepted ? "accepted" : token === rejected ? "rejected" : "unseen");
        if (!token.accepted) return;
        const position = this.tokenCount++;
        const about = { kind: "accepted", round: index, place, token, of, position };
        nodes.push(this.card.token(token.text, about));
      });
      const accepted = nodes.length, { emitted } = round;
      if (emitted) {
        looks.push(emitted.kind);
        const { kind } = emitted, position = this.tokenCount++;
        const about = { kind, round: index, token: emitted, rejected, of, position };
        nodes.push(this.card.token(emitted.text, about));
      }
      const column = make("span", "sd-round sd-later");
      column.dataset.round = index;
      column.append(...looks.map((look) => make("span", "sd-cell sd-c-" + look, GLYPHS[look])));
      column.title = `Round ${index + 1}: ${of} drafted, ${accepted} accepted`
        + (emitted ? ", then 1 by the target" : "");
      this.accepted += accepted;
      this.examined += accepted + (emitted && emitted.kind === "correction" ? 1 : 0);
      this.rounds.push(round);
      this.strip.append(column);
      const { examined } = this;
      this.spec.add(round.shown_at, nodes, { column, accepted: this.accepted, examined });
    }

    addPlain(token) {
      this.plain.add(token.shown_at, [make("span", "sd-ptok sd-later", token.text)]);
    }

    /* ---------- drawing ---------- */
    wake(pause = 0) { this.timer ??= setTimeout(() => this.tick(), pause); }

    tick() {
      this.timer = null;
      this.read();
      const now = performance.now();
      if (this.live) {
        const done = [this.spec, this.plain].map((one) => this.advance(one, now)).every(Boolean);
        this.sketch.draw(now);
        if (done && this.trace) this.settle();
        else if (!done || this.running()) this.wake(LIVE_TICK);
      } else if (this.playing) {
        const t = this.playFrom + (now - this.playSince) / 1000 * this.speed;
        if (t < this.duration()) {
          this.show(t);
          this.wake(TICK);
        } else {
          this.play(false);
          this.show(Infinity);
        }
      }
    }

    /* Live: shows what is due by now on this runner's own clock. */
    advance(runner, now) {
      const { times } = runner, wait = calm() ? 0 : JITTER;
      const clock = runner.origin === null ? 0 : (now - runner.origin - wait) / 1000;
      let due = runner.shown;
      while (due < times.length && (calm() || times[due] <= clock)) due++;
      if (due !== runner.shown) this.reach(runner, due, true);
      if (due) {
        const phase = runner === this.spec ? "speculative" : "plain";
        const going = due < times.length || this.root.dataset.phase === phase;
        const until = Math.min(clock, times[due] ?? clock);
        const since = (going ? Math.max(times[due - 1], until) : times[due - 1]) - runner.first;
        runner.clock.textContent = seconds(since);
        if (runner === this.plain) this.ghost(since);
      }
      return due === times.length;
    }

    /* Where the speculative run was at the same time, on the other lane. */
    ghost(t) {
      const count = this.spec.at(t), tokens = count ? this.spec.counts[count - 1] : 0;
      const share = 100 * Math.min(1, tokens / this.total);
      this.plain.ghost.hidden = !count;
      this.plain.ghost.style.transform = "translateX(" + share + "%)";
    }

    reach(runner, count, follow) {
      runner.reach(count, this.total);
      if (runner === this.spec && count) {
        const { accepted, examined } = runner.extra[count - 1];
        const after = runner.counts[count - 1] - runner.counts[0];
        if (examined) this.say(".sd-accept", Math.round(100 * accepted / examined) + " %");
        if (count > 1) this.say(".sd-tpr", (after / (count - 1)).toFixed(2));
        this.say(".sd-round-count", "(" + count + " round" + (count === 1 ? "" : "s") + ")");
      }
      if (!follow || !count) return;
      runner.box.scrollTop = runner.box.scrollHeight;
      if (runner === this.spec && this.stripSeen) this.strip.scrollLeft = this.strip.scrollWidth;
    }

    showAll() {
      for (const runner of [this.spec, this.plain]) this.reach(runner, runner.times.length, false);
    }

    duration() { return Math.max(this.spec.length, this.plain.length); }

    /* Replay: the state of both runs `t` seconds after their first tokens. */
    show(t) {
      const end = this.duration(), time = Math.min(t, end);
      this.view = t;
      for (const runner of [this.spec, this.plain]) {
        const count = runner.at(time);
        if (count !== runner.shown) this.reach(runner, count, this.playing);
        runner.clock.textContent = seconds(Math.min(time, runner.length));
        runner.lane.classList.toggle("sd-home", runner.times.length > 0 && time >= runner.length);
      }
      this.plain.ghost.hidden = true;
      const seek = this.find(".sd-seek"), rounds = this.spec.times.length;
      seek.value = end ? Math.round(1000 * time / end) : 1000;
      const place = `${seconds(time)}, round ${this.spec.shown} of ${rounds}`;
      seek.setAttribute("aria-valuetext", place);
      this.say(".sd-time", seconds(time));
      if (this.marked) this.marked.classList.remove("sd-now");
      const { shown, extra } = this.spec;
      this.marked = time < end && shown ? extra[shown - 1].column : null;
      if (!this.marked) return;
      this.marked.classList.add("sd-now");
      if (!this.playing) this.reveal(this.marked);
    }

    reveal(column) {
      const strip = this.strip, left = column.offsetLeft - strip.offsetLeft;
      const inView = left >= strip.scrollLeft && left <= strip.scrollLeft + strip.clientWidth - 24;
      if (!inView) strip.scrollLeft = left - strip.clientWidth / 2;
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
      for (const runner of [spec, plain]) runner.box.scrollTop = 0;
      this.strip.scrollLeft = 0;
      for (const name of [".sd-play", ".sd-seek"]) this.find(name).disabled = !spec.times.length;
      this.find(".sd-download").disabled = false;
      this.keep.money();
      this.keep.table();
      this.show(Infinity);
      this.sketch.settle(this.total);
      const pace = (runner) => runner.length / Math.max(1, runner.tokens - 1);
      const winner = pace(spec) <= pace(plain) ? spec : plain;
      if (plain.times.length > 1) winner.lane.classList.add("sd-won");
    }

    /* ---------- what a visitor can do ---------- */
    play(on) {
      this.playing = on;
      this.find(".sd-play").textContent = on ? "❚❚ Pause" : "▶ Replay the race";
    }

    jump(t) {
      this.play(false);
      this.show(t);
    }

    listenToReplay() {
      const { strip } = this, speed = this.find(".sd-speed"), seek = this.find(".sd-seek");
      const showRound = (index) => this.jump(this.spec.times[index] - this.spec.first);
      // Where a strip out of sight is scrolled to is not asked: that alone would lay it out.
      new IntersectionObserver((seen) => {
        this.stripSeen = seen.at(-1).isIntersecting;
        if (this.stripSeen && this.live) strip.scrollLeft = strip.scrollWidth;
      }).observe(this.find(".sd-rounds"));
      strip.addEventListener("click", (event) => {
        const column = event.target.closest(".sd-round");
        if (column && !this.live && this.trace) showRound(+column.dataset.round);
      });
      strip.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step || this.live || !this.trace) return;
        event.preventDefault();
        const last = this.spec.times.length - 1;
        showRound(Math.max(0, Math.min(last, this.spec.shown - 1 + step)));
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
        for (const runner of [this.spec, this.plain]) this.reach(runner, 0, false);
        this.wake();
      });
      speed.addEventListener("change", () => { if (this.playing) start(); });
      seek.addEventListener("input", () => {
        this.jump(seek.value >= 1000 ? Infinity : seek.value / 1000 * this.duration());
      });
    }
  }

  let stage = null, waiting = null, query = "";
  Object.assign(window.specdemo, {
    mount(element) {
      stage = window.specdemo.stage = new Stage(element.querySelector(".sd-stage"));
      if (waiting) stage.receive(waiting);
    },
    receive(text) {
      if (stage && text) stage.receive(text);
      else waiting = text;
    },
    settings(text) { query = text; },
    /* Question and settings, and the run on the stage if it answers that very question. */
    link() {
      const wanted = new URLSearchParams(query), { kept, trace } = stage || {};
      if (kept && trace && trace.instruction === wanted.get("question")) wanted.set("run", kept);
      return location.origin + location.pathname + (query ? "?" + wanted : "");
    },
  });
})();
