/* What if: the speed-up to expect at any acceptance rate and draft length, over measured costs.
   The letters are those of Leviathan et al., arXiv 2211.17192; figures.py gives the costs. */
const LENGTHS = [...Array(15).keys()].map((one) => one + 1);
const expectedTokens = (alpha, gamma) => {
  let sum = 0;
  for (let i = 0; i <= gamma; i++) sum += alpha ** i;
  return sum;
};
const expectedSpeedup = (alpha, gamma, { plain_ms: plain, draft_step_ms: step, verify_ms: verify }) =>
  expectedTokens(alpha, gamma) * plain / (gamma * step + verify[gamma]);

class WhatIf {
  constructor(find) {
    this.find = find;
    this.controls = ["machine", "alpha", "gamma"].map((name) => find(".sd-" + name));
    for (const control of this.controls) {
      control.addEventListener("input", () => {
        find(".sd-expected").role = "status";   // spoken once somebody moves it
        this.draw();
      });
    }
    for (const button of document.querySelectorAll(".sd-ask-this")) {
      button.addEventListener("click", () => {
        const box = document.querySelector("#sd-question textarea");
        box.value = button.textContent;
        box.dispatchEvent(new Event("input", { bubbles: true }));
        box.focus();
      });
    }
  }

  /* Begins at this run's acceptance rate, with the best draft length for it. */
  open({ costs, draft_length: length }, { acceptance_rate: rate, speedup }) {
    const [machine, alpha, gamma] = this.controls;
    this.find(".sd-what-if").hidden = !costs;
    if (!costs) return;
    this.tables = { "": { processor: "this run", ...costs }, ...MACHINES };
    machine.replaceChildren(...Object.entries(this.tables).map(
      ([name, { processor }]) => new Option(processor, name)));
    alpha.value = Math.round(100 * (rate ?? 0));
    const at = (one) => expectedSpeedup(alpha.value / 100, one, costs);
    gamma.value = LENGTHS.reduce((best, one) => (at(one) > at(best) ? one : best));
    this.measured = { gamma: length, speedup };
    this.draw();
  }

  draw() {
    const [machine, alphaAt, gammaAt] = this.controls, say = (name, text) => {
      this.find(".sd-" + name).textContent = text;
    };
    const costs = this.tables[machine.value], alpha = alphaAt.value / 100;
    const gamma = Number(gammaAt.value), speedup = expectedSpeedup(alpha, gamma, costs);
    const c = costs.draft_step_ms / costs.plain_ms, plain = costs.plain_ms / 10;
    const formula = (length) => expectedTokens(alpha, length) / (length * c + 1);
    say("alpha-out", alphaAt.value + " %");
    say("gamma-out", gammaAt.value);
    const faster = speedup >= 1 ? `${speedup.toFixed(2)} times faster`
      : `${(1 / speedup).toFixed(2)} times slower`;
    say("expected", `Expected: ${faster} than autoregressive decoding.`);
    const most = Math.max(plain, plain / speedup);
    this.find(".sd-expected-bars").replaceChildren(
      bar("speculative", [["target", plain / speedup]], most, seconds(plain / speedup)),
      bar("baseline", [["plain", plain]], most, seconds(plain)),
      make("p", "sd-hint", "Seconds for 100 tokens."));
    say("formula", "Leviathan et al.: (1 − α^(γ+1)) / ((1 − α)(γc + 1)) = "
      + `${formula(gamma).toFixed(2)} with α = ${alpha.toFixed(2)} (acceptance rate), γ = ${gamma} `
      + `(draft length), c = ${c.toFixed(2)} (a draft step over a target step). It takes verifying `
      + `${gamma + 1} tokens to cost one step; here it costs `
      + `${(costs.verify_ms[gamma] / costs.plain_ms).toFixed(2)}, which gives `
      + `${speedup.toFixed(2)}.`);
    const even = [...Array(101).keys()].find((one) =>
      expectedSpeedup(one / 100, gamma, costs) >= 1);
    say("even", even === undefined ? `With ${gamma} draft tokens it never pays at these costs.`
      : `With ${gamma} draft tokens it pays from ${even} % on at these costs.`);
    this.find(".sd-curve").replaceChildren(this.curve(alpha, gamma, {
      measured: LENGTHS.map((one) => expectedSpeedup(alpha, one, costs)),
      formula: LENGTHS.map(formula),
    }, machine.value === "" && this.measured));
  }

  /* Speed-up against draft length: with the measured costs, and by the formula. */
  curve(alpha, gamma, lines, own) {
    const top = Math.max(2, own?.speedup || 0, ...lines.measured, ...lines.formula) * 1.06;
    const x = (length) => 40 + (length - 1) * 40, y = (value) => 190 - 170 * value / top;
    const drawing = svg("svg", { viewBox: "0 0 640 232", role: "img", class: "sd-chart",
      "aria-label": `Expected speed-up by draft length at an acceptance rate of ${shareOf(alpha, 1)}`
        + `: ${lines.measured.map((one) => one.toFixed(2)).join(", ")}` });
    const put = (...given) => drawing.appendChild(svg(...given));
    const write = (left, base, text, anchor) =>
      put("text", { x: left, y: base, "text-anchor": anchor }, text);
    const step = top > 6 ? 2 : top > 3 ? 1 : .5;
    for (let value = 0; value <= top; value += step) {
      put("line", { x1: 40, x2: 600, y1: y(value), y2: y(value),
        class: value === 1 ? "sd-chart-even" : "sd-chart-grid" });
      write(32, y(value) + 4, value, "end");
    }
    for (const one of LENGTHS) write(x(one), 208, one, "middle");
    write(320, 228, "draft length", "middle");
    write(40, 12, "speed-up: with these costs (line), by the formula (dots)", "start");
    for (const [kind, values] of Object.entries(lines)) {
      const points = values.map((value, at) => `${x(at + 1)},${y(value)}`).join(" ");
      put("polyline", { points, class: "sd-chart-" + kind });
    }
    put("circle", { cx: x(gamma), cy: y(lines.measured[gamma - 1]), r: 6, class: "sd-chart-here" });
    if (own?.speedup) {
      const left = x(Math.min(own.gamma, LENGTHS.at(-1))), base = y(own.speedup);
      write(left, base + 6, "★", "middle").setAttribute("class", "sd-chart-star");
      write(left + 12, base + 4, `this run, ${own.speedup.toFixed(2)}`, "start");
    }
    return drawing;
  }
}
