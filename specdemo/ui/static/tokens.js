/* The two runs of a race as they are shown: their tokens, their lanes, and the live sketch of both.
   Text of models goes through textContent only. page.py puts all scripts into one closure. */
const make = (tag, cls, text) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
};

const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";

const HIDDEN = /[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(HIDDEN, "�");

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
    Object.assign(this, { times: [], counts: [], nodes: [], extra: [], shown: 0 });
    this.box.textContent = "";
    this.rate.textContent = "0";
    this.ttft.textContent = "-";
    this.clock.textContent = seconds(0);
    this.bar.style.transform = "scaleX(0)";
    this.lane.classList.remove("sd-won");
  }

  get tokens() { return this.counts.at(-1) ?? 0; }
  get tokensShown() { return this.counts[this.shown - 1] ?? 0; }
  get first() { return this.times[0] ?? 0; }
  get length() { return this.times.length ? this.times.at(-1) - this.first : 0; }

  add(time, nodes, extra) {
    this.times.push(time);
    this.counts.push(this.tokens + nodes.length);
    this.nodes.push(nodes);
    this.extra.push(extra);
    this.box.append(...nodes);
  }

  /* How many events had happened `t` seconds after the first token. */
  at(t) {
    let low = 0, high = this.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] - this.first > t + 1e-9) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /* Shows the first `count` events, touching only those that change; `total` ends the lane. */
  reach(count, total) {
    const hidden = count < this.shown;
    for (let i = Math.min(count, this.shown); i < Math.max(count, this.shown); i++) {
      for (const node of this.nodes[i]) node.classList.toggle("sd-later", hidden);
      this.extra[i]?.column?.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    this.bar.style.transform = "scaleX(" + Math.min(1, this.tokensShown / total) + ")";
    if (!count) return;
    const spent = this.times[count - 1] - this.first, after = this.tokensShown - this.counts[0];
    this.ttft.textContent = seconds(this.first);
    if (spent > 0) this.rate.textContent = (after / spent).toFixed(1);
  }
}

/* Tokens against seconds, live and as a replay goes on. Its work is bounded however long the answer
   is; sizes and colours are read only when they may have changed. */
class Sketch {
  constructor(canvas, runners) {
    Object.assign(this, { canvas, runners, total: 1, settled: false });
    this.pen = canvas.getContext("2d");
    new ResizeObserver(() => this.measure()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.measure());
  }

  measure() {
    const { canvas, pen } = this, dense = window.devicePixelRatio || 1;
    const style = getComputedStyle(canvas);
    Object.assign(this, { width: canvas.clientWidth, height: canvas.clientHeight });
    this.colour = (name) => style.getPropertyValue("--sd-" + name);
    canvas.width = this.width * dense;
    canvas.height = this.height * dense;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    this.paint();
  }

  /* `settled`: the whole of a finished race is known, and so is the scale. */
  paint(total = this.total, settled = this.settled) {
    Object.assign(this, { total, settled });
    const { pen, width, height, colour } = this, bottom = height - 16;
    if (!width) return;
    const spent = (one) => (one.shown ? one.times[one.shown - 1] - one.first : 0);
    let span = Math.max(...this.runners.map((one) => (settled ? one.length : spent(one))));
    if (!settled) span = 2 ** Math.max(0, Math.ceil(Math.log2(span || 1)));
    const x = (t) => 1 + t / (span || 1) * (width - 4);
    const y = (n) => bottom - n / total * (height - 22);
    pen.clearRect(0, 0, width, height);
    pen.lineWidth = 1;
    pen.setLineDash([]);
    pen.strokeStyle = colour("line");
    pen.beginPath();
    pen.moveTo(.5, 4);
    pen.lineTo(.5, bottom + .5);
    pen.lineTo(width, bottom + .5);
    pen.stroke();
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colour("soft");
    pen.textAlign = "left";
    pen.fillText(total + " tokens", 5, 12);
    pen.textAlign = "right";
    pen.fillText(seconds(span), width - 1, height - 4);
    ["spec-lane", "plain-lane"].forEach((name, which) => {
      const runner = this.runners[which], step = Math.ceil(runner.shown / 300) || 1;
      if (!runner.shown) return;
      pen.strokeStyle = colour(name);
      pen.lineWidth = 2;
      pen.setLineDash(which ? [2, 3] : []);
      pen.beginPath();
      pen.moveTo(x(0), y(runner.counts[0]));
      for (let i = 0; i < runner.shown; i += step) {
        pen.lineTo(x(runner.times[i] - runner.first), y(runner.counts[i]));
      }
      pen.lineTo(x(spent(runner)), y(runner.tokensShown));
      pen.stroke();
    });
    const [fast, slow] = this.runners.map(spent), ended = this.runners.every(
      (one) => one.shown && one.shown === one.times.length);
    if (!settled || !ended || Math.abs(slow - fast) < .01) return;
    // What was saved or lost, between the two ends.
    pen.fillStyle = pen.strokeStyle = colour("good");
    if (slow < fast) pen.fillStyle = pen.strokeStyle = colour("bad");
    pen.setLineDash([]);
    pen.beginPath();
    pen.moveTo(x(fast), 5);
    pen.lineTo(x(slow), 5);
    pen.stroke();
    pen.font = "600 12px system-ui, sans-serif";
    pen.textAlign = "center";
    const words = seconds(Math.abs(slow - fast)) + (slow > fast ? " saved" : " lost");
    pen.fillText(words, Math.max(50, Math.min(width - 48, x((fast + slow) / 2))), 20);
  }
}
