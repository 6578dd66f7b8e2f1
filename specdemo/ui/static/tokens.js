/* The two runs of a race as they are shown: their tokens, their lanes, and the live sketch of both.
   Text of models goes through textContent only. */
(() => {
  if (window.specdemo) return;

  const make = (tag, cls, text) => {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";

  /* One of the two runs: its events in order, each with the tokens that appeared then. */
  class Runner {
    constructor(lane, box) {
      this.lane = lane;
      this.box = box;
      for (const part of ["rate", "ttft", "bar", "ghost", "clock"]) {
        this[part] = lane.querySelector(".sd-" + part);
      }
      this.clear();
    }

    clear() {
      this.times = [];
      this.counts = [];
      this.nodes = [];
      this.extra = [];
      this.shown = 0;
      this.origin = null;
      this.box.textContent = "";
      this.rate.textContent = "0";
      this.ttft.textContent = "-";
      this.clock.textContent = seconds(0);
      this.bar.style.transform = "scaleX(0)";
      this.ghost.hidden = true;
      this.lane.classList.remove("sd-home", "sd-won");
    }

    get tokens() { return this.counts.at(-1) ?? 0; }
    get tokensShown() { return this.shown ? this.counts[this.shown - 1] : 0; }
    get first() { return this.times[0] ?? 0; }
    get length() { return this.times.length ? this.times.at(-1) - this.first : 0; }

    add(time, nodes, extra) {
      this.times.push(time);
      this.counts.push(this.tokens + nodes.length);
      this.nodes.push(nodes);
      this.extra.push(extra || null);
      this.box.append(...nodes);
    }

    /* How many events had happened `t` seconds after the first token. */
    at(t) {
      let low = 0, high = this.times.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.times[middle] - this.first <= t + 1e-9) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /* Shows the first `count` events, touching only those that change; `total` ends the lane. */
    reach(count, total) {
      const from = Math.min(count, this.shown), to = Math.max(count, this.shown);
      const hidden = count < this.shown;
      for (let i = from; i < to; i++) {
        for (const node of this.nodes[i]) node.classList.toggle("sd-later", hidden);
        if (this.extra[i]) this.extra[i].column.classList.toggle("sd-later", hidden);
      }
      this.shown = count;
      const tokens = this.tokensShown;
      this.bar.style.transform = "scaleX(" + Math.min(1, tokens / total) + ")";
      if (!count) return;
      const spent = this.times[count - 1] - this.first;
      this.ttft.textContent = seconds(this.first);
      if (spent > 0) this.rate.textContent = ((tokens - this.counts[0]) / spent).toFixed(1);
    }
  }

  /* The live chart: tokens against seconds. Its work is bounded however long the answer is. */
  class Sketch {
    constructor(canvas, runners) {
      this.canvas = canvas;
      this.runners = runners;
      this.begin(1);
      new ResizeObserver(() => this.paint()).observe(canvas);
    }

    begin(total) {
      this.total = total;
      this.settled = false;
      this.drawnAt = 0;
      this.paint();
    }

    /* The whole of a finished race, at its own scale. */
    settle(total) {
      this.total = total;
      this.settled = true;
      this.paint();
    }

    draw(now) {
      if (now - this.drawnAt < 250) return;
      this.drawnAt = now;
      this.paint();
    }

    paint() {
      const { canvas, total } = this, pen = canvas.getContext("2d");
      const style = getComputedStyle(canvas), dense = window.devicePixelRatio || 1;
      const width = canvas.clientWidth, height = canvas.clientHeight, bottom = height - 16;
      const spent = (one) => (one.shown ? one.times[one.shown - 1] - one.first : 0);
      let span = Math.max(...this.runners.map(spent));
      if (!this.settled) span = 2 ** Math.max(0, Math.ceil(Math.log2(span || 1)));
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
      pen.fillText("0", 2, height - 4);
      pen.fillText(total + " tokens", 5, 12);
      pen.textAlign = "right";
      pen.fillText(seconds(span), width - 1, height - 4);
      ["--sd-spec-lane", "--sd-plain-lane"].forEach((colour, which) => {
        const runner = this.runners[which], step = Math.ceil(runner.shown / 300) || 1;
        pen.strokeStyle = pen.fillStyle = style.getPropertyValue(colour);
        pen.lineWidth = 2;
        pen.beginPath();
        pen.moveTo(x(0), y(0));
        for (let i = 0, before = 0; i < runner.shown; i += step) {
          const at = x(runner.times[i] - runner.first), top = y(runner.counts[i]);
          if (which) pen.fillRect(at - 1, top - 1, 2.5, 2.5);
          else {
            pen.lineTo(at, y(before));
            pen.lineTo(at, top);
          }
          before = runner.counts[i];
        }
        if (!which) pen.stroke();
      });
    }
  }

  window.specdemo = { make, seconds, Runner, Sketch };
})();
