/* What is known of a finished run beside its tokens: what proposed them, where the time went, and
   what other acceptance rates and draft lengths would give. figures.py has the numbers. */
const table = (head, rows) => {
  const whole = make("table"), top = whole.createTHead().insertRow(), body = whole.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return whole;
};

const SPENT = { prefill: "Prefill", drafting: "Drafting", target: "Target forwards",
  outside: "Outside inference" };

const drawFigures = (find, { tokens, accepted }, { sources, seconds: spent }) => {
  find(".sd-who").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer"],
    [...sources.map((one) => [SOURCES[one.name] ?? one.name, one.examined,
      shareOf(one.accepted, one.examined), shareOf(one.accepted, tokens)]),
    ["target model itself", "-", "-", shareOf(tokens - accepted, tokens)]]));
  find(".sd-spent").replaceChildren(table(["Run", ...Object.values(SPENT)],
    Object.entries(spent).map(([run, of]) => [run,
      ...Object.keys(SPENT).map((name) => (name in of ? seconds(of[name]) : "-"))])));
};

/* The letters are those of Leviathan et al., arXiv 2211.17192. */
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
    this.controls = [find(".sd-alpha"), find(".sd-gamma")];
    for (const control of this.controls) control.addEventListener("input", () => this.draw());
  }

  /* Begins at this run's acceptance rate, with the best draft length for it. */
  open(costs, rate) {
    this.find(".sd-what-if").hidden = !costs;
    if (!costs) return;
    this.costs = costs;
    const [alpha, gamma] = this.controls;
    const at = (one) => expectedSpeedup(alpha.value / 100, one, costs);
    alpha.value = Math.round(100 * (rate ?? 0));
    gamma.value = Array.from({ length: gamma.max }, (_, one) => one + 1)
      .reduce((best, one) => (at(one) > at(best) ? one : best));
    this.draw();
  }

  draw() {
    const { costs, find } = this, [alpha, gamma] = this.controls.map((one) => Number(one.value));
    const speedup = expectedSpeedup(alpha / 100, gamma, costs);
    const c = costs.draft_step_ms / costs.plain_ms, formula = expectedTokens(alpha / 100, gamma)
      / (gamma * c + 1);
    find(".sd-alpha-out").textContent = alpha + " %";
    find(".sd-gamma-out").textContent = gamma;
    find(".sd-expected").textContent = `Expected: ${speedup.toFixed(2)} times the speed of `
      + "autoregressive decoding.";
    find(".sd-formula").textContent = "Leviathan et al.: (1 − α^(γ+1)) / ((1 − α)(γc + 1)) = "
      + `${formula.toFixed(2)} with α = ${(alpha / 100).toFixed(2)} (acceptance rate), γ = ${gamma} `
      + `(draft length), c = ${c.toFixed(2)} (a draft step over a target step). It takes verifying `
      + `${gamma + 1} tokens to cost one step; here it costs `
      + `${(costs.verify_ms[gamma] / costs.plain_ms).toFixed(2)}.`;
  }
}
