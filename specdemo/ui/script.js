/* Draws a run on the stage: tokens, lanes, rounds, replay. It receives envelopes (see wire.py) and never evaluates or
   parses what a model wrote: text goes through textContent. Work per envelope depends on what is new, not on what is there. */
(() => {
  if (window.specdemo) return;

  const KIND_WORDS = {
    accepted: "accepted draft token", correction: "correction by the target", bonus: "bonus token by the target",
    first: "first token, by the target", plain: "plain token, nothing was drafted",
  };
  const GLYPHS = { accepted: "✓", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–" };
  const JITTER = 300;      // ms that live tokens wait, so that they appear at the pace they were made and not in packets
  const TICK = 33;         // ms between two drawings
  const LIVE_TICK = 200;   // the same while models run: where browser and models share a processor, drawing slows them down
  const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const make = (tag, cls, text) => {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
  const percent = (p) => (p === null || p === undefined ? "none" : (100 * p >= 99.95 || 100 * p < 0.05 ? Math.round(100 * p) : (100 * p).toPrecision(2)) + " %");
  const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, "�");

  /* One of the two runners: its events in order, each with the tokens that appeared then. */
  class Runner {
    constructor(lane, box) {
      this.box = box;
      this.rate = lane.querySelector(".sd-rate"); this.ttft = lane.querySelector(".sd-ttft");
      this.bar = lane.querySelector(".sd-bar"); this.ghost = lane.querySelector(".sd-ghost");
      this.clock = lane.querySelector(".sd-clock"); this.lane = lane;
      this.clear();
    }
    clear() {
      this.times = []; this.counts = []; this.nodes = []; this.extra = []; this.shown = 0; this.origin = null;
      this.box.textContent = ""; this.rate.textContent = "0"; this.ttft.textContent = "-"; this.clock.textContent = "0.00 s";
      this.bar.style.transform = "scaleX(0)"; this.ghost.hidden = true; this.lane.classList.remove("sd-home", "sd-won");
    }
    get tokens() { return this.counts.length ? this.counts[this.counts.length - 1] : 0; }
    get first() { return this.times.length ? this.times[0] : 0; }
    get length() { return this.times.length ? this.times[this.times.length - 1] - this.first : 0; }
    add(time, nodes, extra) {
      this.times.push(time); this.counts.push(this.tokens + nodes.length); this.nodes.push(nodes); this.extra.push(extra || null);
    }
    /* How many events had happened `t` seconds after the first token. */
    at(t) {
      let low = 0, high = this.times.length;
      while (low < high) { const mid = (low + high) >> 1; if (this.times[mid] - this.first <= t + 1e-9) low = mid + 1; else high = mid; }
      return low;
    }
    tokensAt(t) { const n = this.at(t); return n ? this.counts[n - 1] : 0; }
  }

  /* The live picture of the race: tokens against seconds. Each update draws what is new and nothing else; only when the
     time axis is full it doubles and all is drawn again, which happens ever more rarely. */
  class Sketch {
    constructor(canvas, runners) {
      this.canvas = canvas; this.runners = runners; this.pen = canvas.getContext("2d");
      this.begin(1);
      new ResizeObserver(() => { if (canvas.clientWidth !== this.width) this.again(); }).observe(canvas);
    }
    begin(total) { this.total = Math.max(1, total); this.span = 1; this.drawnAt = 0; this.wipe(); }
    wipe() {
      const style = getComputedStyle(this.canvas), dense = window.devicePixelRatio || 1, pen = this.pen;
      this.width = this.canvas.clientWidth; this.height = this.canvas.clientHeight;
      this.canvas.width = this.width * dense; this.canvas.height = this.height * dense;
      pen.setTransform(dense, 0, 0, dense, 0, 0);
      this.colours = ["--sd-spec-lane", "--sd-plain-lane"].map((name) => style.getPropertyValue(name));
      this.drawn = this.runners.map(() => 0);
      const ink = style.getPropertyValue("--sd-soft"), bottom = this.height - 16;
      pen.font = "11px system-ui, sans-serif"; pen.fillStyle = ink; pen.strokeStyle = style.getPropertyValue("--sd-line"); pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(.5, 4); pen.lineTo(.5, bottom + .5); pen.lineTo(this.width, bottom + .5); pen.stroke();
      pen.fillText("0", 2, this.height - 4); pen.fillText(this.total + " tokens", 5, 12);
      pen.textAlign = "right"; pen.fillText(seconds(this.span), this.width - 1, this.height - 4); pen.textAlign = "left";
    }
    again() { this.wipe(); this.draw(Infinity); }
    /* The whole of a finished run, at its own scale. */
    settle(total, span) { this.total = Math.max(1, total); this.span = span || 1; this.again(); }
    draw(now) {
      if (now - this.drawnAt < 250) return;
      this.drawnAt = now === Infinity ? 0 : now;
      const spent = (runner) => (runner.shown ? runner.times[runner.shown - 1] - runner.first : 0), end = Math.max(...this.runners.map(spent));
      if (end > this.span) { while (end > this.span) this.span *= 2; this.wipe(); }
      const x = (t) => 1 + t / this.span * (this.width - 4), y = (n) => this.height - 16 - n / this.total * (this.height - 22);
      this.runners.forEach((runner, which) => {
        const pen = this.pen;
        pen.strokeStyle = pen.fillStyle = this.colours[which]; pen.lineWidth = 2;
        pen.beginPath();
        for (let i = this.drawn[which]; i < runner.shown; i++) {
          const at = x(runner.times[i] - runner.first), top = y(runner.counts[i]);
          if (which) { pen.fillRect(at - 1, top - 1, 2.5, 2.5); continue; }
          if (i) { pen.moveTo(x(runner.times[i - 1] - runner.first), y(runner.counts[i - 1])); pen.lineTo(at, y(runner.counts[i - 1])); } else pen.moveTo(at, y(0));
          pen.lineTo(at, top);
        }
        pen.stroke();
        this.drawn[which] = runner.shown;
      });
    }
  }

  const fields = new Map();

  class Stage {
    constructor(root) {
      this.root = root;
      const find = (name) => root.querySelector(name);
      this.find = find;
      this.spec = new Runner(find(".sd-lane-spec"), find(".sd-text-spec"));
      this.plain = new Runner(find(".sd-lane-plain"), find(".sd-text-plain"));
      this.sketch = new Sketch(find(".sd-canvas"), [this.spec, this.plain]);
      this.strip = find(".sd-strip"); this.card = find(".sd-card");
      this.run = null; this.trace = null; this.verdict = null; this.rounds = []; this.live = false; this.timer = null; this.inbox = [];
      this.active = null; this.total = 0; this.playing = false; this.view = Infinity;
      this.words = new Map(); this.stripSeen = false;
      this.listen();
    }

    /* ---------- receiving ---------- */
    /* While models run, what arrives waits for the next drawing: the browser looks the page over once for both. */
    receive(text) {
      this.inbox.push([text, performance.now()]);
      if (!this.live) this.read();
      this.wake();
    }
    read() { for (const [text, now] of this.inbox.splice(0)) this.accept(text, now); }
    accept(text, now) {
      let message;
      try { message = JSON.parse(text); } catch (_) { return; }
      this.note(message.phase === "error" ? "" : message.note || "");
      this.fail(message.phase === "error" ? message.note : "");
      if (message.phase === "error") { this.phase("error"); this.live = false; this.showAll();
        if (!this.trace && this.run !== null) { this.find(".sd-verdict").dataset.tone = "stopped"; this.find(".sd-headline").textContent = "No answer"; this.find(".sd-sentence").textContent = ""; }
        return; }
      if (message.phase === "idle") { this.phase("idle"); return; }
      if (message.run !== this.run) this.reset(message);
      this.phase(message.phase);
      if (this.live && !this.rounds.length) this.find(".sd-headline").textContent = { loading: "Getting ready", waiting: "Waiting in line" }[message.phase] || "Racing";
      if (message.trace) { message.rounds = message.trace.rounds; message.rounds_from = 0; message.plain = message.trace.baseline ? message.trace.baseline.tokens : []; message.plain_from = 0; }
      this.take(message.rounds, message.rounds_from, this.rounds, (r) => this.addRound(r), this.spec, now);
      this.take(message.plain, message.plain_from, this.plain.times, (t) => this.addPlain(t), this.plain, now);
      if (message.trace) {
        this.trace = message.trace; this.verdict = message.verdict; this.joules = message.joules || null;
        this.kept = message.phase === "opened" ? message.kept || "" : message.run;
        if (message.phase === "opened" || !this.live) { this.live = false; this.settle(); }
      }
    }
    take(items, from, have, add, runner, now) {
      if (!items || from > have.length) return;   // a gap: the trace at the end fills it
      const before = have.length;
      for (let i = before - from; i < items.length; i++) add(items[i]);
      if (have.length > before && this.live) {
        const origin = now - runner.times[runner.times.length - 1] * 1000;
        runner.origin = runner.origin === null ? origin : Math.min(runner.origin, origin);
      }
    }
    reset(message) {
      this.run = message.run; this.trace = null; this.verdict = null; this.rounds = []; this.active = null; this.playing = false; this.view = Infinity;
      this.live = message.phase !== "opened"; this.total = message.limit || 1;
      this.spec.clear(); this.plain.clear(); this.strip.textContent = ""; this.hideCard();
      this.find(".sd-round-count").textContent = ""; this.find(".sd-accept").textContent = "-"; this.find(".sd-tpr").textContent = "-";
      for (const name of [".sd-headline", ".sd-sentence", ".sd-reason", ".sd-identity", ".sd-spoken"]) this.find(name).textContent = "";
      this.find(".sd-verdict").dataset.tone = "running";
      this.find(".sd-headline").textContent = this.live ? "Racing" : "";
      this.find(".sd-sentence").textContent = this.live ? "First with the draft's help, then plainly: one after the other, so that neither takes the processor from the other." : "";
      this.find(".sd-table-body").textContent = ""; this.kept = ""; this.sketch.begin(this.total);
      for (const name of [".sd-play", ".sd-seek", ".sd-download"]) this.find(name).disabled = true;
      for (const name of [".sd-cpu-spec", ".sd-cpu-plain", ".sd-money-spec", ".sd-money-plain"]) this.find(name).textContent = "-";
      this.accepted = 0; this.examined = 0; this.drafted = 0; this.tokenCount = 0;
    }
    showAll() { this.reach(this.spec, this.spec.times.length, false); this.reach(this.plain, this.plain.times.length, false); }
    note(text) { const node = this.find(".sd-note"); if (node.textContent !== text) node.textContent = text; }
    fail(text) { const node = this.find(".sd-error"); node.hidden = !text; node.textContent = text; }
    /* The buttons follow the phase by style alone: each part that Gradio updates costs the models time. */
    phase(name) { this.root.dataset.phase = name; document.documentElement.classList.toggle("sd-running", this.running()); }

    /* ---------- building, one event at a time ---------- */
    token(text, kind, details) {
      const node = make("span", "sd-tok sd-" + kind + " sd-later", text);
      node.setAttribute("role", "option"); node.setAttribute("aria-selected", "false");
      if (!text.trim()) node.setAttribute("aria-label", text.includes("\n") ? "line break" : text ? "space" : "no text yet");
      fields.set(node, details); details.kind = kind; details.position = this.tokenCount++;
      return node;
    }
    addRound(round) {
      const index = this.rounds.length; this.rounds.push(round);
      const nodes = [], column = make("span", "sd-round sd-later"), cells = [];
      column.dataset.round = index;
      let open = true, turnedDown = null;
      round.drafted.forEach((token, place) => {
        const look = token.accepted ? "accepted" : open ? "rejected" : "unseen";
        if (!token.accepted && open) { turnedDown = token; open = false; }
        cells.push(make("span", "sd-cell sd-c-" + look, GLYPHS[look]));
        if (token.accepted) nodes.push(this.token(token.text, "accepted", { round: index, place, token, of: round.drafted.length }));
      });
      if (round.emitted) {
        cells.push(make("span", "sd-cell sd-c-" + round.emitted.kind, GLYPHS[round.emitted.kind]));
        nodes.push(this.token(round.emitted.text, round.emitted.kind, { round: index, token: round.emitted, turnedDown, of: round.drafted.length }));
      }
      const kept = nodes.length;
      column.append(...cells);
      column.title = "Round " + (index + 1) + ": " + round.drafted.length + " drafted, " + (kept - (round.emitted ? 1 : 0)) + " accepted" + (round.emitted ? ", then 1 by the target" : "");
      this.accepted += kept - (round.emitted ? 1 : 0);
      this.examined += kept - (round.emitted ? 1 : 0) + (turnedDown && round.emitted && round.emitted.kind === "correction" ? 1 : 0);
      this.drafted += round.drafted.length;
      this.spec.add(round.shown_at, nodes, { column, accepted: this.accepted, examined: this.examined });
      this.spec.box.append(...nodes); this.strip.append(column);
    }
    addPlain(token) {
      const node = make("span", "sd-ptok sd-later", token.text);
      this.plain.add(token.shown_at, [node]); this.plain.box.append(node);
    }

    /* ---------- drawing ---------- */
    wake() { if (!this.timer) { this.timer = setTimeout(() => this.tick(), 0); } }
    tick() {
      this.timer = null;
      this.read();
      const now = performance.now();
      if (this.live) {
        const done = this.advance(this.spec, now) & this.advance(this.plain, now);
        this.sketch.draw(now);
        if (done && this.trace) { this.live = false; this.settle(); }
        else if (!done || !this.trace) { if (!done || this.running()) this.timer = setTimeout(() => this.tick(), LIVE_TICK); }
      } else if (this.playing) {
        const t = this.playFrom + (now - this.playSince) / 1000 * this.speed;
        if (t >= this.duration()) { this.playing = false; this.show(Infinity); this.playLabel(); }
        else { this.show(t); this.timer = setTimeout(() => this.tick(), TICK); }
      }
    }
    running() { return ["speculative", "plain", "waiting", "loading"].includes(this.root.dataset.phase); }
    /* Live: shows what is due by now on this runner's own clock. */
    advance(runner, now) {
      const wait = calm() ? 0 : JITTER;
      let due = runner.shown;
      const clock = runner.origin === null ? 0 : (now - runner.origin - wait) / 1000;
      while (due < runner.times.length && (calm() || runner.times[due] <= clock)) due++;
      if (due !== runner.shown) this.reach(runner, due, true);
      if (due > 0) {
        const since = due < runner.times.length || this.running() && this.isCurrent(runner) ? Math.max(runner.times[due - 1], Math.min(clock, runner.times[due] ?? clock)) - runner.first : runner.times[due - 1] - runner.first;
        runner.clock.textContent = seconds(since);
        if (runner === this.plain) this.ghost(since);
      }
      return due === runner.times.length;
    }
    isCurrent(runner) { return this.root.dataset.phase === (runner === this.spec ? "speculative" : "plain"); }
    /* Moves a runner to having shown `count` events, touching only those in between. */
    reach(runner, count, follow) {
      const forward = count > runner.shown;
      for (let i = Math.min(count, runner.shown); i < Math.max(count, runner.shown); i++) {
        for (const node of runner.nodes[i]) node.classList.toggle("sd-later", !forward);
        if (runner.extra[i]) runner.extra[i].column.classList.toggle("sd-later", !forward);
      }
      runner.shown = count;
      const tokens = count ? runner.counts[count - 1] : 0;
      runner.bar.style.transform = "scaleX(" + Math.min(1, tokens / Math.max(1, this.total)) + ")";
      if (count) {
        const spent = runner.times[count - 1] - runner.first;
        runner.ttft.textContent = seconds(runner.first);
        if (spent > 0) runner.rate.textContent = ((tokens - runner.counts[0]) / spent).toFixed(spent < 0.05 ? 0 : 1);
        if (runner === this.spec) {
          const so = runner.extra[count - 1];
          if (so.examined) this.find(".sd-accept").textContent = Math.round(100 * so.accepted / so.examined) + " %";
          if (count > 1) this.find(".sd-tpr").textContent = ((tokens - runner.counts[0]) / (count - 1)).toFixed(2);
          this.find(".sd-round-count").textContent = "(" + count + " round" + (count === 1 ? "" : "s") + ")";
        }
      }
      if (follow && count) {
        runner.box.scrollTop = runner.box.scrollHeight;
        if (runner === this.spec && this.stripSeen) this.followStrip();
      }
    }
    followStrip() { this.strip.scrollLeft = this.strip.scrollWidth; }
    /* Where the speculative run was at the same time, on the plain lane. */
    ghost(t) {
      if (!this.spec.times.length) return;
      const ghost = this.plain.ghost;
      ghost.hidden = false;
      ghost.style.transform = "translateX(" + 100 * Math.min(1, this.spec.tokensAt(t) / Math.max(1, this.total)) + "%)";
    }
    duration() { return Math.max(this.spec.length, this.plain.length); }
    /* Replay: the state of both runners `t` seconds after their first tokens. */
    show(t) {
      const end = this.duration(), time = Math.min(t, end);
      this.view = t;
      for (const runner of [this.spec, this.plain]) {
        const count = runner.at(time);
        if (count !== runner.shown) this.reach(runner, count, this.playing);
        runner.clock.textContent = seconds(Math.min(time, runner.length));
        runner.lane.classList.toggle("sd-home", runner.times.length > 0 && time >= runner.length);
      }
      const seek = this.find(".sd-seek");
      seek.value = end ? Math.round(1000 * time / end) : 1000;
      const said = seconds(time) + ", round " + this.spec.shown + " of " + this.spec.times.length;
      seek.setAttribute("aria-valuetext", said);
      this.find(".sd-time").textContent = seconds(time);
      if (this.marked) this.marked.classList.remove("sd-now");
      this.marked = time < end && this.spec.shown ? this.spec.extra[this.spec.shown - 1].column : null;
      if (this.marked) { this.marked.classList.add("sd-now"); if (!this.playing) this.reveal(this.marked, this.strip); }
      this.plain.ghost.hidden = true;
    }
    reveal(node, box) {
      const left = node.offsetLeft - box.offsetLeft, room = box.clientWidth;
      if (left < box.scrollLeft || left > box.scrollLeft + room - 24) box.scrollLeft = left - room / 2;
    }
    /* The end of a run: the words, the figures and the controls that need a whole trace. */
    settle() {
      const trace = this.trace, words = this.verdict;
      // A run that was stopped never reached the finish line; one that ended has it where it ended.
      if (words.tone !== "stopped") this.total = Math.max(this.spec.tokens, this.plain.tokens, 1);
      this.showAll();
      this.root.dataset.settled = this.run;
      const verdict = this.find(".sd-verdict");
      verdict.dataset.tone = words.tone;
      this.find(".sd-headline").textContent = words.headline;
      this.find(".sd-sentence").textContent = words.sentence;
      this.find(".sd-reason").textContent = words.reason;
      this.find(".sd-identity").textContent = words.identity;
      const spoken = trace.rounds.flatMap((r) => [...r.drafted.filter((t) => t.accepted), ...(r.emitted ? [r.emitted] : [])]).map((t) => t.text).join("");
      this.find(".sd-spoken").textContent = "The answer: " + spoken;
      if (trace.prompt_tokens > 0 && trace.prompt_reused >= trace.prompt_tokens) this.note("The prompt was kept from before, so the first token came at once.");
      for (const runner of [this.spec, this.plain]) runner.box.scrollTop = 0;
      this.strip.scrollLeft = 0;
      const both = this.spec.times.length > 0;
      this.find(".sd-play").disabled = !both; this.find(".sd-seek").disabled = !both; this.find(".sd-download").disabled = false;
      this.money(); this.table(); this.show(Infinity); this.sketch.settle(this.total, this.duration());
      if (this.plain.times.length > 1) (this.spec.length / Math.max(1, this.spec.tokens - 1) <= this.plain.length / Math.max(1, this.plain.tokens - 1) ? this.spec : this.plain).lane.classList.add("sd-won");
    }
    money() {
      if (!this.trace) return;
      const summary = this.trace.summary, price = Math.max(0, parseFloat(this.find(".sd-price").value) || 0);
      const write = (who, cpu) => {
        this.find(".sd-cpu-" + who).textContent = cpu === null ? "-" : cpu.toPrecision(3) + " s";
        const sum = cpu === null ? null : cpu * 1e6 / 3600 * price;
        this.find(".sd-money-" + who).textContent = sum === null ? "-" : sum.toFixed(sum < 10 ? 2 : sum < 100 ? 1 : 0);
      };
      write("spec", summary.cpu_seconds_per_token); write("plain", summary.baseline_cpu_seconds_per_token);
      const joules = this.joules || {}, energy = (name) => (joules[name] ?? null) === null ? "-" : joules[name].toPrecision(3);
      this.find(".sd-energy").textContent = this.joules ? "Energy of the processor package: " + energy("speculative") + " joules a token speculative, " + energy("plain") + " plain." : "Energy: this machine does not let its power meter be read.";
    }
    table() {
      const body = this.find(".sd-table-body");
      body.textContent = "";
      if (!this.find(".sd-table").open || !this.trace) return;
      const table = make("table"), head = make("tr");
      for (const name of ["Round", "Drafted", "Accepted", "Target added", "Text", "Drafting, ms", "Verifying, ms", "Shown at, s"]) { const th = make("th", "", name); th.scope = "col"; head.append(th); }
      const top = make("thead"), rows = make("tbody");
      top.append(head);
      this.rounds.forEach((round, index) => {
        const kept = round.drafted.filter((t) => t.accepted), row = make("tr");
        const text = kept.map((t) => t.text).join("") + (round.emitted ? round.emitted.text : "");
        for (const cell of [index + 1, round.drafted.length, kept.length, round.emitted ? round.emitted.kind : "-", visible(text), (1000 * round.draft_seconds).toFixed(2), (1000 * round.verify_seconds).toFixed(2), round.shown_at.toFixed(3)]) row.append(make("td", "", String(cell)));
        rows.append(row);
      });
      table.append(top, rows); body.append(table);
    }

    /* ---------- the card about one token ---------- */
    pick(node, focus) {
      if (this.active && this.active !== node) { this.active.classList.remove("sd-picked"); this.active.setAttribute("aria-selected", "false"); }
      this.active = node;
      if (!node) { this.spec.box.removeAttribute("aria-activedescendant"); this.hideCard(); return; }
      node.classList.add("sd-picked"); node.setAttribute("aria-selected", "true");
      if (!node.id) node.id = "sd-token-" + fields.get(node).position;
      this.spec.box.setAttribute("aria-activedescendant", node.id);
      if (focus) { const box = this.spec.box; if (node.offsetTop - box.offsetTop < box.scrollTop || node.offsetTop - box.offsetTop > box.scrollTop + box.clientHeight - 24) box.scrollTop = node.offsetTop - box.offsetTop - box.clientHeight / 2; }
      this.showCard(node);
    }
    hideCard() { this.card.hidden = true; if (this.near) { this.near.classList.remove("sd-near"); this.near = null; } }
    showCard(node) {
      const about = fields.get(node), token = about.token, card = this.card;
      card.textContent = "";
      card.append(make("p", "sd-card-token", "“" + visible(token.text) + "”"), make("p", "sd-card-kind sd-k-" + about.kind, KIND_WORDS[about.kind]));
      const where = "Round " + (about.round + 1) + (about.kind === "accepted" ? ", draft token " + (about.place + 1) + " of " + about.of : about.of ? ", after " + about.of + " drafted" : "");
      card.append(make("p", "sd-card-where", where + ". Id " + token.id + "."));
      if (about.kind === "accepted") {
        card.append(this.meter("draft", token.draft_probability), this.meter("target", token.target_probability));
        if (token.source && token.source !== "model") card.append(make("p", "sd-card-where", "Guessed by " + (token.source === "lookup" ? "prompt lookup: copied from the text so far." : token.source + ".")));
      } else {
        card.append(this.meter("target", token.target_probability));
        if (about.turnedDown) {
          card.append(make("p", "sd-card-kind sd-k-rejected", "rejected here: “" + visible(about.turnedDown.text) + "”"));
          card.append(this.meter("draft", about.turnedDown.draft_probability), this.meter("target", about.turnedDown.target_probability));
        }
      }
      card.hidden = false;
      const spot = node.getClientRects()[0] || node.getBoundingClientRect(), stage = this.root.getBoundingClientRect(), size = card.getBoundingClientRect();
      card.style.left = Math.max(4, Math.min(spot.left - stage.left, stage.width - size.width - 4)) + "px";
      const above = spot.top - size.height - 8 > 0;
      card.style.top = (above ? spot.top - stage.top - size.height - 6 : spot.bottom - stage.top + 6) + "px";
      if (this.near) this.near.classList.remove("sd-near");
      this.near = this.spec.extra[about.round] && this.spec.extra[about.round].column;
      if (this.near) { this.near.classList.add("sd-near"); this.reveal(this.near, this.strip); }
    }
    meter(who, probability) {
      const row = make("p", "sd-meter"), known = probability !== null && probability !== undefined;
      const track = make("span", "sd-meter-track"), fill = make("span", "sd-meter-fill sd-m-" + who);
      fill.style.width = (known ? 100 * probability : 0) + "%";
      track.append(fill);
      row.append(make("span", "sd-meter-who", who), track, make("span", "sd-meter-value", percent(probability)));
      return row;
    }

    /* ---------- what a visitor can do ---------- */
    playLabel() { this.find(".sd-play").textContent = this.playing ? "❚❚ Pause" : "▶ Replay the race"; }
    listen() {
      const box = this.spec.box;
      // How far a strip out of sight has come need not be asked: that alone would have it laid out.
      new IntersectionObserver((seen) => { this.stripSeen = seen[seen.length - 1].isIntersecting; if (this.stripSeen && this.live) this.followStrip(); }).observe(this.find(".sd-rounds"));
      const at = (event) => event.target.closest && event.target.closest(".sd-text-spec .sd-tok:not(.sd-later)");
      box.addEventListener("pointerover", (e) => { const node = at(e); if (node && e.pointerType === "mouse") this.pick(node); });
      box.addEventListener("pointerleave", (e) => { if (e.pointerType === "mouse" && document.activeElement !== box) this.pick(null); });
      box.addEventListener("click", (e) => { const node = at(e); this.pick(node || null); });
      box.addEventListener("blur", () => this.pick(null));
      box.addEventListener("keydown", (e) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[e.key];
        if (e.key === "Escape") { this.pick(null); return; }
        if (step === undefined) return;
        const nodes = box.children, last = Math.max(0, (this.spec.shown ? this.spec.counts[this.spec.shown - 1] : 0) - 1);
        if (!nodes.length) return;
        const from = this.active ? fields.get(this.active).position : step > 0 && step !== Infinity ? -1 : 0;
        e.preventDefault(); this.pick(nodes[Math.max(0, Math.min(last, from + step))], true);
      });
      document.addEventListener("keydown", (e) => { if (e.key === "Escape") this.pick(null); });
      document.addEventListener("pointerdown", (e) => { if (!this.root.contains(e.target)) this.pick(null); });
      this.strip.addEventListener("click", (e) => {
        const column = e.target.closest(".sd-round");
        if (column && !this.live && this.trace) { this.playing = false; this.playLabel(); this.show(this.spec.times[+column.dataset.round] - this.spec.first); }
      });
      this.strip.addEventListener("keydown", (e) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!step || this.live || !this.trace) return;
        e.preventDefault(); this.playing = false; this.playLabel();
        const index = Math.max(0, Math.min(this.spec.times.length - 1, this.spec.shown - 1 + step));
        this.show(this.spec.times[index] - this.spec.first);
      });
      this.find(".sd-play").addEventListener("click", () => {
        if (this.playing) { this.playing = false; this.playLabel(); return; }
        this.speed = parseFloat(this.find(".sd-speed").value);
        this.playFrom = this.view < this.duration() ? this.view : 0; this.playSince = performance.now();
        this.playing = true; this.playLabel();
        this.reach(this.spec, 0, false); this.reach(this.plain, 0, false); this.wake();
      });
      this.find(".sd-speed").addEventListener("change", (e) => {
        if (this.playing) { this.playFrom = this.view; this.playSince = performance.now(); }
        this.speed = parseFloat(e.target.value);
      });
      this.find(".sd-seek").addEventListener("input", (e) => {
        this.playing = false; this.playLabel();
        this.show(e.target.value >= 1000 ? Infinity : e.target.value / 1000 * this.duration());
      });
      this.find(".sd-open").addEventListener("click", () => document.querySelector("input#sd-open, #sd-open input[type=file], input[type=file]")?.click());
      this.find(".sd-price").addEventListener("input", () => this.money());
      this.find(".sd-table").addEventListener("toggle", () => this.table());
      this.find(".sd-download").addEventListener("click", () => {
        const link = make("a"); link.href = URL.createObjectURL(new Blob([JSON.stringify(this.trace, null, 1)], { type: "application/json" }));
        link.download = "specdemo-run-" + (this.trace.created || new Date().toISOString()).replace(/[^0-9A-Za-z]+/g, "-").slice(0, 19) + ".json";
        document.body.append(link); link.click(); link.remove();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
      this.find(".sd-link").addEventListener("click", async () => {
        const text = this.find(".sd-link-text"), kept = this.find(".sd-kept"), link = window.specdemo.link();
        text.value = link; text.hidden = false;
        try { await navigator.clipboard.writeText(link); kept.textContent = "Copied."; }
        catch (_) { text.focus(); text.select(); kept.textContent = "Copy it from the box."; }
        setTimeout(() => { kept.textContent = ""; }, 4000);
      });
    }
  }

  let stage = null, waiting = null, query = "";
  window.specdemo = {
    mount(element) { stage = new Stage(element.querySelector(".sd-stage")); if (waiting !== null) { stage.receive(waiting); waiting = null; } },
    receive(text) { if (!text) return; if (stage) stage.receive(text); else waiting = text; },
    settings(text) { query = text; },
    /* Question and settings, and the run on the stage if it answers that very question. */
    link() {
      const wanted = new URLSearchParams(query);
      if (stage && stage.kept && stage.trace && stage.trace.instruction === wanted.get("question")) wanted.set("run", stage.kept);
      return location.origin + location.pathname + (query ? "?" + wanted : "");
    },
    get stage() { return stage; },
  };
})();
