/* Receives envelopes (see runs.py), shows a race as it runs and as it was. The work per envelope
   depends on its new items, not on those shown before. */
const GLYPHS = {
  accepted: "✓", forced: "=", rejected: "×", unseen: "·", correction: "↺", bonus: "+", first: "1", plain: "–",
};
const RUNNING = ["speculative", "baseline", "again", "waiting", "loading"];
const MOST_COLUMNS = 400;
const RESULT_FIRST = 2000;   // milliseconds that the result is shown before its slow motion
const KEEPING = ["waiting", "loading", "error"];   // what was shown before stays

const table = (head, rows) => {
  const whole = make("table"), top = whole.createTHead().insertRow(), body = whole.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return whole;
};

/* Tables: what proposed the tokens, and where the time went. */
const drawFigures = (find, trace) => {
  const { rounds, baseline, summary, prefill_seconds: prefill } = trace;
  const { tokens, accepted } = summary, sources = new Map();
  for (const token of rounds.flatMap((round) => round.drafted)) {
    const one = sources.get(token.source) ?? { examined: 0, accepted: 0 };
    sources.set(token.source, one);
    one.accepted += token.accepted;
    one.examined += token.accepted || token.target_probability != null;
  }
  find(".sd-who").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer"],
    [...[...sources].map(([name, one]) => [SOURCES.get(name), one.examined,
      shareOf(one.accepted, one.examined), shareOf(one.accepted, tokens)]),
    ["target model itself", "-", "-", shareOf(tokens - accepted, tokens)]]));
  const { draft_seconds: draft, verify_seconds: verify } = summary;
  const outside = Math.max(0, summary.decode_seconds - draft - verify);
  const spent = [["speculative", ...[prefill, draft, verify, outside].map(seconds)]];
  const [first, decoding] = [baseline?.prefill_seconds, summary.baseline_decode_seconds ?? 0];
  if (baseline) spent.push(["baseline", seconds(first), "-", seconds(decoding), "-"]);
  find(".sd-spent").replaceChildren(table(
    ["Run", "Prefill", "Drafting", "Target forwards", "Outside inference"], spent));
};

class RaceView {
  constructor(root) {
    Object.assign(this, { root, run: null, trace: null, total: 1, origin: "", live: false });
    this.find = (name) => root.querySelector(name);
    this.spec = new Runner(this.find(".sd-racer-spec"), this.find(".sd-text-spec"));
    this.baseline = new Runner(this.find(".sd-racer-baseline"), this.find(".sd-text-baseline"));
    this.runners = [this.spec, this.baseline];
    this.strip = this.find(".sd-strip");
    this.player = this.find(".sd-player");
    this.about = new About(this.find(".sd-about"), this.spec);
    this.motion = new SlowMotion(this);
    const on = (name, event, act) => this.find(".sd-" + name).addEventListener(event, act);
    on("link", "click", () => copyLink(this));
    on("download", "click", () => keepFile(this));
    on("open", "change", async ({ target }) => {
      this.receive(await this.envelope(await target.files[0].text()));
      target.value = "";
    });
  }

  say(name, text) {
    const node = this.find(".sd-" + name);
    if (node.textContent !== text) node.textContent = text;
  }

  /* The envelope of a run that was measured before, from its JSON; made by the server. */
  async envelope(text) {
    if (text.length > LARGEST_RUN) return failure("The run is larger than 2.5 MB.");
    return fetch(page + "open", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ run: text, visitor: VISITOR }),
    }).then((response) => response.text())
      .catch(() => failure("The server does not answer; reload the page."));
  }

  receive(text) {
    const message = JSON.parse(text), { trace, phase, note } = message, failed = phase === "error";
    if (!KEEPING.includes(phase)) this.origin = phase === "opened" ? note : "";
    this.say("note", failed ? this.origin : note);
    this.say("error", failed ? note : "");
    this.find(".sd-error").hidden = !failed;
    this.root.dataset.phase = phase;
    // With this class style.css shows the Stop button in place of the Run button.
    document.documentElement.classList.toggle("sd-running", RUNNING.includes(phase));
    if (RUNNING.includes(phase)) this.motion.play(false);   // it takes time from the models
    if (phase === "again") this.tell(message.verdict);
    if (failed && this.live) {
      this.live = false;
      this.tell({ tone: "neutral", headline: "No answer", sentence: "" });
    }
    if (KEEPING.includes(phase)) return;
    // The race on show at the end may be another one than that which was watched.
    if (message.run !== this.run || trace) this.reset(message);
    const { rounds, baseline } = trace ? { rounds: trace.rounds, baseline: trace.baseline?.tokens ?? [] }
      : message;
    fresh(this.spec, rounds, trace ? 0 : message.rounds_from).forEach((one) => this.addRound(one));
    for (const { shown_at: time, text } of fresh(this.baseline, baseline, trace ? 0 : message.baseline_from)) {
      this.baseline.add(time, [make("span", "sd-ptok", text)]);
    }
    if (trace) this.settle(message);
    else this.show(Infinity);
  }

  reset({ run, phase, limit }) {
    Object.assign(this, { run, live: phase !== "opened", total: limit || 1, trace: null });
    this.motion.play(false);
    this.motion.drawn = null;
    delete this.root.dataset.settled;
    this.accepted = this.examined = 0;
    for (const runner of this.runners) runner.clear();
    this.strip.textContent = "";
    this.about.pick(null);
    this.find(".sd-shown").hidden = false;
    this.find(".sd-link-text").hidden = true;
    for (const name of ["kept", "caption", "time"]) this.say(name, "");
    for (const name of ["accept", "tpr"]) this.say(name, "-");
    this.tell({ tone: "running", headline: "Racing", sentence: "First with drafts, then one token "
      + "at a time: one run after the other, so that neither takes the processor from the other." });
  }

  tell({ tone, headline, sentence, notes = [], identity = "" }) {
    this.find(".sd-verdict").dataset.tone = tone;
    for (const [name, text] of Object.entries({ headline, sentence, reason: notes.join(" "), identity })) {
      this.say(name, text);
    }
  }

  addRound({ drafted, emitted, shown_at: time }) {
    const { spec } = this, round = spec.events.length, of = drafted.length, nodes = [];
    const rejected = drafted.find((token) => !token.accepted), column = make("span", "sd-round");
    const add = (kind, token, more) => {
      const position = spec.tokens + nodes.length;
      nodes.push(this.about.token({ kind, token, round, of, position, ...more }));
    };
    const cell = (look) => column.append(make("span", "sd-cell sd-" + look, GLYPHS[look]));
    drafted.forEach((token, place) => {
      const kind = kindOf(token);
      cell(token.accepted ? kind : token === rejected ? "rejected" : "unseen");
      if (token.accepted) add(kind, token, { place });
    });
    this.accepted += nodes.length;
    this.examined += nodes.length + (emitted?.kind === "correction" ? 1 : 0);
    column.role = "img";
    column.ariaLabel = column.title = `Round ${round + 1}: ${of} drafted, ${nodes.length} accepted`
      + (emitted ? ", then 1 by the target" : "");
    if (emitted) {
      cell(emitted.kind);
      add(emitted.kind, emitted, { rejected });
    }
    const { accepted, examined } = this;
    spec.add(time, nodes, { column, round, accepted, examined, drafted, emitted });
  }

  get duration() { return Math.max(this.spec.length, this.baseline.length); }

  /* Shows both runs as they were `t` seconds after their first tokens; Infinity shows everything. */
  show(t) {
    const { spec, baseline, duration } = this, time = Math.min(t, duration);
    for (const runner of this.runners) runner.show(time, this.total);
    if (spec.last) {
      const { accepted, examined, round, tokens } = spec.last;
      if (examined) this.say("accept", shareOf(accepted, examined));
      if (round) this.say("tpr", ((tokens - spec.events[0].tokens) / round).toFixed(2));
    }
    this.find(".sd-answer-baseline").classList.toggle("sd-later", !baseline.tokens);
    sketch(this.find, this.runners, this.total, !this.live);
    if (!this.live) this.motion.draw(t);
    // Last, since it makes the browser compute the layout.
    if (this.live || t < Infinity) this.scroll(1e6);
    if (this.live) return;
    const seek = this.find(".sd-seek");
    seek.value = duration ? Math.round(1000 * time / duration) : 1000;
    const place = `${seconds(time)}, round ${spec.shown} of ${spec.events.length}`;
    seek.setAttribute("aria-valuetext", place);
    this.say("time", place);
  }

  /* The end of a run: shows the words, the figures and the controls that need a whole trace. */
  settle({ trace, verdict, curve }) {
    const { spec, baseline } = this;
    const watched = this.live && trace.identical !== null;
    Object.assign(this, { trace, verdict, curve, live: false });
    // The bars of a finished race end at its last token; those of a stopped race at the limit.
    if (trace.identical !== null) this.total = Math.max(spec.tokens, baseline.tokens, 1);
    this.root.dataset.settled = this.run;
    this.tell(verdict);
    // Not earlier: during a race, drawing the columns would take time from it.
    this.strip.append(...spec.events.slice(0, MOST_COLUMNS).map((one) => one.column));
    drawFigures(this.find, trace);
    drawCurve(this.find, trace, curve);
    drawExamples(this);
    this.motion.jump(Infinity);
    const ends = this.runners.map(({ tokens, length }) => `${tokens} tokens in ${seconds(length)}`);
    this.find(".sd-sketch").setAttribute("aria-label",
      `Tokens against seconds: speculative ${ends[0]}, baseline ${ends[1]}`);
    if (watched) this.motion.start(RESULT_FIRST);
  }

  /* Scrolls the texts and the strip to their starts (0) or to their ends (a large number). */
  scroll(to) {
    for (const { box } of this.runners) box.scrollTop = to;
    if (!this.live) this.strip.scrollLeft = to;
  }
}

/* Those of `items` that a runner does not have yet; the first of `items` has the number `from`.
   Empty if items between are missing: the trace at the end has all. */
const fresh = ({ events }, items, from) => (from > events.length ? []
  : items.slice(events.length - from));

const failure = (note) => JSON.stringify({ phase: "error", note });
const page = location.origin + location.pathname;
const VISITOR = Array.from(crypto.getRandomValues(new Uint8Array(12)), (one) => one.toString(36)).join("");
let race = null, query = [];

/* Shows a run before the first question: the run of the link, else the recorded one. */
const openFirst = async () => {
  const [, packed] = location.hash.match(/^#run=(.*)/) ?? [];
  const text = packed && await unpack(packed).catch(() => null);
  const envelope = packed && (text === null ? failure(DAMAGED) : await race.envelope(text));
  const opened = envelope && JSON.parse(envelope).phase !== "error";
  if (!opened && !race.run) race.receive(RECORDED);
  if (envelope) race.receive(envelope);
  if (!opened) race.motion.start();
};

window.specdemo = {
  mount(element) {
    race = window.specdemo.race = new RaceView(element.querySelector(".sd-view"));
    openFirst();
    addEventListener("hashchange", openFirst);
  },
  receive(text) { if (text) race?.receive(text); },
  explain() { openExamples(race); },
  /* The inputs as [name, label, default value], and their present values. */
  settings(inputs, values) {
    query = inputs.map(([name], at) => [name, values[at] ?? ""]);
    const differ = inputs.map(([, label, usual], at) => [label, values[at], usual])
      .filter(([label, value, usual]) => label && String(value ?? "") !== String(usual ?? ""))
      .map(([label, value]) => `${label.toLowerCase()} ${value}`);
    const button = document.querySelector("#sd-settings button");
    const note = button?.querySelector(".sd-differ") ?? make("span", "sd-differ");
    note.textContent = differ.join(", ");
    button?.firstElementChild.after(note);
  },
  /* A link with the speed of the slow motion and, unless left out, the question and settings. */
  link(inputs = query) {
    const { chosen } = race.motion;
    const asked = String(new URLSearchParams([...inputs, ...(chosen ? [["speed", chosen]] : [])]));
    return page + (asked ? "?" + asked : "");
  },
  /* A link with the whole run, and with question and settings if the run answers that question. */
  async share() {
    const { trace } = race, same = trace.instruction === Object.fromEntries(query).question;
    return window.specdemo.link(same ? query : []) + "#run=" + await pack(trace);
  },
};
