/* What if: the speed-up to expect at any acceptance rate and draft length, over measured costs.
   The letters are those of Leviathan et al., arXiv 2211.17192; bench/costs.py has the same sums. */
const LENGTHS = [...Array(15).keys()].map((one) => one + 1);
const expectedTokens = (alpha, gamma) => {
  let sum = 0;
  for (let i = 0; i <= gamma; i++) sum += alpha ** i;
  return sum;
};

/* Milliseconds to verify `tokens` tokens: on straight lines between the measured sizes. */
const verifyMs = ({ ms }, tokens) => {
  const sizes = Object.keys(ms).map(Number).sort((a, b) => a - b), last = sizes.at(-1);
  let most = 0;
  const costs = sizes.map((size) => (most = Math.max(most, ms[size])));
  if (tokens <= sizes[0]) return costs[0];
  const slope = (costs.at(-1) - costs[0]) / Math.max(last - sizes[0], 1);
  if (tokens >= last) return costs.at(-1) + (tokens - last) * slope;
  const at = sizes.findIndex((size) => size >= tokens), from = sizes[at - 1];
  return costs[at - 1] + (costs[at] - costs[at - 1]) * (tokens - from) / (sizes[at] - from);
};
const expectedSpeedup = (alpha, gamma, costs) =>
  expectedTokens(alpha, gamma) * costs.plain_ms
    / (gamma * costs.draft_step_ms + verifyMs(costs, gamma + 1));

const svg = (tag, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

class WhatIf {
  constructor(find) {
    this.find = find;
    this.controls = ["machine", "alpha", "gamma"].map((name) => find(".sd-" + name));
    for (const control of this.controls) {
      control.addEventListener("input", () => {
        find(".sd-expected").setAttribute("role", "status");   // spoken once somebody moves it
        this.draw();
      });
    }
    for (const button of document.querySelectorAll(".sd-ask-this")) {
      button.addEventListener("click", () => askInstead(button.textContent));
    }
  }

  /* Begins at this run's acceptance rate, with the best draft length for it. */
  open(figures, summary) {
    const { costs, draft_length: length } = figures, [machine, alpha, gamma] = this.controls;
    this.find(".sd-what-if").hidden = !costs;
    if (!costs) return;
    this.tables = { "": costs, ...MACHINES };
    machine.replaceChildren(...Object.entries(this.tables).map(([name, one]) => {
      const option = make("option", "", name ? one.processor : "this run");
      option.value = name;
      return option;
    }));
    alpha.value = Math.round(100 * (summary.acceptance_rate ?? 0));
    const at = (one) => expectedSpeedup(alpha.value / 100, one, costs);
    gamma.value = LENGTHS.reduce((best, one) => (at(one) > at(best) ? one : best));
    this.measured = { gamma: length, speedup: summary.speedup };
    this.draw();
  }

  draw() {
    const [machine, alphaAt, gammaAt] = this.controls, say = (name, text) => {
      this.find(".sd-" + name).textContent = text;
    };
    const costs = this.tables[machine.value], alpha = alphaAt.value / 100;
    const gamma = Number(gammaAt.value), speedup = expectedSpeedup(alpha, gamma, costs);
    const c = costs.draft_step_ms / costs.plain_ms, plain = costs.plain_ms / 10;
    say("alpha-out", alphaAt.value + " %");
    say("gamma-out", gammaAt.value);
    const faster = speedup >= 1 ? `${speedup.toFixed(2)} times faster`
      : `${(1 / speedup).toFixed(2)} times slower`;
    say("expected", `Expected: ${faster} than autoregressive decoding.`);
    const most = Math.max(plain, plain / speedup);
    this.find(".sd-expected-bars").replaceChildren(
      bar("speculative", [["sd-part-target", plain / speedup]], most, seconds(plain / speedup)),
      bar("baseline", [["sd-part-plain", plain]], most, seconds(plain)),
      make("p", "sd-hint", "Seconds for 100 tokens."));
    const formula = expectedTokens(alpha, gamma) / (gamma * c + 1);
    say("formula", "Leviathan et al.: (1 − α^(γ+1)) / ((1 − α)(γc + 1)) = " + formula.toFixed(2)
      + ` with α = ${alpha.toFixed(2)} (acceptance rate), γ = ${gamma} (draft length), `
      + `c = ${c.toFixed(2)} (a draft step over a target step). It takes verifying ${gamma + 1} `
      + `tokens to cost one step; here it costs `
      + `${(verifyMs(costs, gamma + 1) / costs.plain_ms).toFixed(2)}, which gives `
      + `${speedup.toFixed(2)}.`);
    const even = [...Array(101).keys()].find((one) =>
      expectedSpeedup(one / 100, gamma, costs) >= 1);
    say("even", even === undefined ? `With ${gamma} draft tokens it never pays at these costs.`
      : `With ${gamma} draft tokens it pays from ${even} % on at these costs.`);
    this.find(".sd-curve").replaceChildren(this.curve(alpha, gamma, costs, c, machine.value));
  }

  /* Speed-up against draft length: with the measured costs, and by the formula. */
  curve(alpha, gamma, costs, c, name) {
    const lines = {
      measured: LENGTHS.map((one) => expectedSpeedup(alpha, one, costs)),
      formula: LENGTHS.map((one) => expectedTokens(alpha, one) / (one * c + 1)),
    };
    const { measured } = this, own = !name && measured.speedup;
    const top = Math.max(2, own || 0, ...lines.measured, ...lines.formula) * 1.06;
    const x = (length) => 40 + (length - 1) * 40, y = (value) => 190 - 170 * value / top;
    const drawing = svg("svg", { viewBox: "0 0 640 232", role: "img", class: "sd-chart",
      "aria-label": `Expected speed-up by draft length at an acceptance rate of ${shareOf(alpha, 1)}`
        + `: ${lines.measured.map((one) => one.toFixed(2)).join(", ")}` });
    const put = (...given) => drawing.appendChild(svg(...given));
    const step = top > 6 ? 2 : top > 3 ? 1 : .5;
    for (let value = 0; value <= top; value += step) {
      put("line", { x1: 40, x2: 600, y1: y(value), y2: y(value),
        class: value === 1 ? "sd-chart-even" : "sd-chart-grid" });
      put("text", { x: 32, y: y(value) + 4, "text-anchor": "end" }, value);
    }
    for (const one of LENGTHS) put("text", { x: x(one), y: 208, "text-anchor": "middle" }, one);
    put("text", { x: 320, y: 228, "text-anchor": "middle" }, "draft length");
    put("text", { x: 40, y: 12 }, "speed-up: with these costs (line), by the formula (dots)");
    for (const [kind, values] of Object.entries(lines)) {
      const points = values.map((value, at) => `${x(at + 1)},${y(value)}`).join(" ");
      put("polyline", { points, class: "sd-chart-" + kind });
    }
    put("circle", { cx: x(gamma), cy: y(lines.measured[gamma - 1]), r: 6, class: "sd-chart-here" });
    if (own) {
      const at = { x: x(Math.min(measured.gamma, LENGTHS.at(-1))), y: y(own) };
      put("text", { ...at, dy: 6, "text-anchor": "middle", class: "sd-chart-star" }, "★");
      put("text", { ...at, dx: 12, dy: 4 }, `this run, ${own.toFixed(2)}`);
    }
    return drawing;
  }
}
