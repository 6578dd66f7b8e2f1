/* What is known of a finished run beside its tokens: what proposed them, where the time went, and
   what other acceptance rates and draft lengths would give. */
const table = (head, rows) => {
  const whole = make("table"), top = whole.createTHead().insertRow(), body = whole.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return whole;
};

const drawFigures = (find, { rounds, baseline, summary }) => {
  const { tokens, accepted } = summary, sources = {};
  for (const token of rounds.flatMap((round) => round.drafted)) {
    const one = sources[token.source] ??= { examined: 0, accepted: 0 };
    one.accepted += token.accepted;
    one.examined += token.accepted || token.target_probability != null;
  }
  find(".sd-who").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer"],
    [...Object.entries(sources).map(([name, one]) => [SOURCES[name] ?? name, one.examined,
      shareOf(one.accepted, one.examined), shareOf(one.accepted, tokens)]),
    ["target model itself", "-", "-", shareOf(tokens - accepted, tokens)]]));
  const { prefill_seconds: prefill, draft_seconds: draft, verify_seconds: verify } = summary;
  const outside = Math.max(0, summary.decode_seconds - draft - verify);
  const spent = [["speculative", ...[prefill, draft, verify, outside].map(seconds)]];
  if (baseline) {
    const decoding = summary.baseline_decode_seconds ?? 0;
    spent.push(["baseline", seconds(baseline.prefill_seconds), "-", seconds(decoding), "-"]);
  }
  find(".sd-spent").replaceChildren(table(
    ["Run", "Prefill", "Drafting", "Target forwards", "Outside inference"], spent));
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
    const at = (one) => expectedSpeedup(rate ?? 0, one, costs);
    alpha.value = Math.round(100 * (rate ?? 0));
    gamma.value = Array.from({ length: gamma.max }, (_, one) => one + 1)
      .reduce((best, one) => (at(one) > at(best) ? one : best));
    this.draw();
  }

  draw() {
    const { costs, find } = this, [percent, gamma] = this.controls.map((one) => Number(one.value));
    const alpha = percent / 100, c = costs.draft_step_ms / costs.plain_ms;
    find(".sd-alpha-out").textContent = percent + " %";
    find(".sd-gamma-out").textContent = gamma;
    find(".sd-expected").textContent = "Expected: "
      + `${expectedSpeedup(alpha, gamma, costs).toFixed(2)} times the speed of autoregressive decoding.`;
    find(".sd-formula").textContent = "Leviathan et al.: (1 − α^(γ+1)) / ((1 − α)(γc + 1)) = "
      + `${(expectedTokens(alpha, gamma) / (gamma * c + 1)).toFixed(2)} with α = ${alpha.toFixed(2)} `
      + `(acceptance rate), γ = ${gamma} (draft length), c = ${c.toFixed(2)} (a draft step over a `
      + `target step). It takes verifying ${gamma + 1} tokens to cost one step; here it costs `
      + `${(costs.verify_ms[gamma] / costs.plain_ms).toFixed(2)}.`;
  }
}
