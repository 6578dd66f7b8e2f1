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
    for (const part of ["rate", "ttft", "bar", "ghost", "clock"]) {
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
    this.ghost.hidden = true;
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
    const later = this.times.findIndex((time) => time - this.first > t + 1e-9);
    return later < 0 ? this.times.length : later;
  }

  /* Shows the first `count` events, touching only those that change; `total` ends the lane. */
  reach(count, total) {
    const hidden = count < this.shown;
    for (let i = Math.min(count, this.shown); i < Math.max(count, this.shown); i++) {
      for (const node of this.nodes[i]) node.classList.toggle("sd-later", hidden);
      this.extra[i]?.column.classList.toggle("sd-later", hidden);
    }
    this.shown = count;
    this.bar.style.transform = "scaleX(" + Math.min(1, this.tokensShown / total) + ")";
    if (!count) return;
    const spent = this.times[count - 1] - this.first, after = this.tokensShown - this.counts[0];
    this.ttft.textContent = seconds(this.first);
    if (spent > 0) this.rate.textContent = (after / spent).toFixed(1);
  }
}

/* The live chart: tokens against seconds. Its work is bounded however long the answer is. */
class Sketch {
  constructor(canvas, runners) {
    Object.assign(this, { canvas, runners, total: 1, settled: false });
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  /* `settled`: the whole of a finished race, at its own scale. */
  paint(total = this.total, settled = this.settled) {
    Object.assign(this, { total, settled });
    const { canvas } = this, pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas), dense = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight, bottom = height - 16;
    const spent = (one) => (one.shown ? one.times[one.shown - 1] - one.first : 0);
    let span = Math.max(...this.runners.map(spent));
    if (!settled) span = 2 ** Math.max(0, Math.ceil(Math.log2(span || 1)));
    const x = (t) => 1 + t / (span || 1) * (width - 4);
    const y = (n) => bottom - n / total * (height - 22);
    canvas.width = width * dense;
    canvas.height = height * dense;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.strokeStyle = style.getPropertyValue("--sd-line");
    pen.beginPath();
    pen.moveTo(.5, 4);
    pen.lineTo(.5, bottom + .5);
    pen.lineTo(width, bottom + .5);
    pen.stroke();
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style.getPropertyValue("--sd-soft");
    pen.fillText(total + " tokens", 5, 12);
    pen.textAlign = "right";
    pen.fillText(seconds(span), width - 1, height - 4);
    ["--sd-spec-lane", "--sd-plain-lane"].forEach((colour, which) => {
      const runner = this.runners[which], step = Math.ceil(runner.shown / 300) || 1;
      pen.strokeStyle = style.getPropertyValue(colour);
      pen.lineWidth = 2;
      pen.setLineDash(which ? [2, 3] : []);
      pen.beginPath();
      pen.moveTo(x(0), y(0));
      for (let i = 0; i < runner.shown; i += step) {
        pen.lineTo(x(runner.times[i] - runner.first), y(runner.counts[i]));
      }
      pen.stroke();
    });
  }
}
