/* The two runs of a race as they are shown: their tokens, their lanes, and the sketch of both.
   Text of models goes through textContent only. page.py puts all scripts into one closure. */
const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};

const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
const shareOf = (part, whole) => Math.round(100 * part / (whole || 1)) + " %";

/* One of the two runs: its events in order, each with the tokens that appeared then. */
class Runner {
  constructor(lane, box) {
    Object.assign(this, { lane, box });
    for (const part of ["rate", "ttft", "bar", "clock"]) {
      this[part] = lane.querySelector(".sd-" + part);
    }
    this.clear();
  }

  clear() {
    this.events = [];
    this.shown = 0;
    this.box.textContent = "";
    this.rate.textContent = "0";
    this.ttft.textContent = "-";
  }

  get tokens() { return this.events.at(-1)?.tokens ?? 0; }
  get last() { return this.events[this.shown - 1]; }
  get length() { return this.spent(this.events.length); }

  /* Seconds from the first event to number `count`. */
  spent(count) { return count ? this.events[count - 1].time - this.events[0].time : 0; }

  add(time, nodes, more) {
    this.events.push({ time, nodes, tokens: this.tokens + nodes.length, ...more });
    this.shown = this.events.length;
    this.box.append(...nodes);
  }

  /* Shows what had happened `t` seconds after the first event, touching only what changes. */
  reach(t) {
    const later = this.events.findIndex((_, at) => this.spent(at + 1) > t + 1e-9);
    const count = later < 0 ? this.events.length : later, hidden = count < this.shown;
    for (const event of this.events.slice(Math.min(count, this.shown), Math.max(count, this.shown))) {
      for (const node of event.nodes) node.classList.toggle("sd-later", hidden);
      event.column?.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
  }

  /* The lane, which ends at `total` tokens. */
  draw(total, t) {
    const { shown, last } = this, spent = this.spent(shown);
    this.bar.style.transform = `scaleX(${Math.min(1, (last?.tokens ?? 0) / total)})`;
    this.clock.textContent = seconds(Math.min(t, this.length));
    if (!shown) return;
    this.ttft.textContent = seconds(this.events[0].time);
    if (spent) this.rate.textContent = ((last.tokens - this.events[0].tokens) / spent).toFixed(1);
  }
}

/* Tokens against seconds, in at most 300 points a run however long it is. `settled`: the whole of a
   finished race is known, and so is the scale. */
const sketch = (root, runners, total, settled) => {
  const [fast, slow] = runners.map((one) => (settled ? one.length : one.spent(one.shown)));
  const longest = Math.max(fast, slow);
  const span = settled ? longest : 2 ** Math.max(0, Math.ceil(Math.log2(longest || 1)));
  runners.forEach((runner, which) => {
    const points = [], step = Math.ceil(runner.shown / 300) || 1;
    const next = (at) => Math.max(at + 1, Math.min(at + step, runner.shown - 1));
    for (let at = 0; at < runner.shown; at = next(at)) {
      const { tokens } = runner.events[at], x = 100 * runner.spent(at + 1) / (span || 1);
      points.push(`${x.toFixed(1)},${(100 - 76 * tokens / total).toFixed(1)}`);
    }
    root.querySelectorAll("polyline")[which].setAttribute("points", points.join(" "));
  });
  const ended = settled && runners.every((one) => one.shown && one.shown === one.events.length);
  const gain = root.querySelector(".sd-gain");
  const most = root.querySelector(".sd-most"), end = root.querySelector(".sd-span");
  most.textContent = total + " tokens";
  end.textContent = seconds(span);
  gain.hidden = !ended || Math.abs(slow - fast) < .01;
  if (gain.hidden) return;
  gain.textContent = seconds(Math.abs(slow - fast)) + (slow > fast ? " saved" : " lost");
  gain.classList.toggle("sd-lost", slow < fast);
  gain.style.left = 100 * Math.min(fast, slow) / span + "%";
  gain.style.width = 100 * Math.abs(slow - fast) / span + "%";
};
