/* For engineers: what a step costs, what if, the tables, and what else drafting saves. */
import { draw } from "./chart.js";
import { colour, counted, factor, milliseconds, say, seconds, share, table } from "./dom.js";
import { SOURCES } from "./runner.js";

const MILLION = 1e6, HOUR = 3600;

export const drawEngineering = (find, trace, curve) => {
  drawTables(find, trace);
  drawSavings(find, trace);
  drawCosts(find, trace, curve);
};

/* Tables: what proposed the tokens, and where the time went. */
const drawTables = (find, { rounds, baseline, summary, prefill_seconds: prefill }) => {
  const { tokens, accepted, draft_seconds: draft, verify_seconds: verify } = summary;
  const sources = new Map();
  for (const token of rounds.flatMap((round) => round.drafted)) {
    const one = sources.get(token.source) ?? { examined: 0, accepted: 0 };
    sources.set(token.source, one);
    one.accepted += token.accepted;
    one.examined += token.accepted || token.target_probability != null;
  }
  find(".sd-who").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer"],
    [...[...sources].map(([name, one]) => [SOURCES.get(name), one.examined,
      share(one.accepted, one.examined), share(one.accepted, tokens)]),
    ["target model itself", "-", "-", share(tokens - accepted, tokens)]]));
  const outside = Math.max(0, summary.decode_seconds - draft - verify);
  const spent = [["speculative", ...[prefill, draft, verify, outside].map(seconds)]];
  const decoding = summary.baseline_decode_seconds ?? 0;
  if (baseline) spent.push(["autoregressive", seconds(baseline.prefill_seconds), "-", seconds(decoding), "-"]);
  find(".sd-spent").replaceChildren(table(
    ["Run", "Prefill", "Drafting", "Target forwards", "Outside inference"], spent));
};

/* Processor seconds, joules, and money at a price of a core and hour that a visitor can type. */
const drawSavings = (find, { baseline, summary, cpu_seconds: cpu, joules }) => {
  const price = find(".sd-price input"), ways = [["speculative", cpu, joules, summary.decoded]];
  if (baseline) {
    ways.push(["autoregressive", baseline.cpu_seconds, baseline.joules, summary.baseline_decoded]);
  }
  const [[, ours, , made], [, theirs, , reached] = []] = ways;
  say(find(".sd-saves"), theirs && ours / made > theirs / reached ? "What it costs" : "What else it saves");
  const readable = ways.every(([, , energy]) => energy != null);
  find(".sd-energy").hidden = readable;
  price.oninput = () => {
    const hourly = Math.max(0, Number(price.value) || 0);
    find(".sd-saved").replaceChildren(table(
      ["Run", "Processor seconds", ...(readable ? ["Joules of the processors"] : []), "A million tokens, in the price's currency"],
      ways.map(([name, spent, energy, tokens]) => [name, seconds(spent),
        ...(readable ? [energy.toFixed(1)] : []),
        tokens ? (spent / tokens * MILLION / HOUR * hourly).toFixed(2) : "-"])));
  };
  price.oninput();
};

const drawCosts = (find, { rounds }, curve) => {
  const details = find(".sd-engineers");
  find(".sd-curve").hidden = !curve;
  details.ontoggle = null;
  if (!curve) return;
  const { sentence, tokens, costs, predicted, measured, rate, by_rate: speedups } = curve;
  // Drawn when it is looked at: Plotly needs the width.
  details.ontoggle = () => details.open && draw(find(".sd-cost-chart"),
    costFigure(costs, rounds.slice(1), tokens));
  details.ontoggle();
  say(find(".sd-cost-sentence"), sentence);
  find(".sd-cost-chart").ariaLabel = sentence;
  find(".sd-prediction").hidden = !predicted;
  if (!predicted) return;
  say(find(".sd-predicted"), predicted.toFixed(2));
  say(find(".sd-measured"), measured?.toFixed(2) ?? "-");
  const slider = find(".sd-rate-slider");
  slider.value = Math.round(100 * rate);
  slider.oninput = () => {
    const rate = slider.value, speedup = speedups[rate], sentence = speedup < 1
      ? `At ${rate} % such drafts would cost time, so the engine would stop making them.`
      : `At ${rate} % it would be ${factor(speedup)}.`;
    slider.setAttribute("aria-valuetext", sentence);
    say(find(".sd-rate-told"), sentence);
  };
  slider.oninput();
};

/* `costs`: [tokens, seconds, low, high, rounds] of steps; `tokens` is the size in the sentence. */
const costFigure = (costs, rounds, tokens) => {
  const fast = colour("fast"), ms = (place) => costs.map((one) => 1000 * one[place]);
  const line = { type: "scatter", mode: "lines", name: "a step, and where half of them lie",
    x: costs.map(([size]) => size), y: ms(1), line: { color: fast, width: 2.5 },
    error_y: { color: fast, symmetric: false, array: costs.map(([, s, , high]) => 1000 * (high - s)),
      arrayminus: costs.map(([, s, low]) => 1000 * (s - low)) },
    text: costs.map(([size, s, , , count]) => (
      `${counted(size, "token")}: ${milliseconds(s)} in ${counted(count, "step")}`)),
    hovertemplate: "%{text}<extra></extra>" };
  const dots = { type: "scatter", mode: "markers", name: "the rounds of this run",
    x: rounds.map(({ drafted }) => drafted.length + 1),
    y: rounds.map(({ verify_seconds: s }) => 1000 * s),
    marker: { color: colour("ink"), size: 8, opacity: .3 }, hoverinfo: "skip" };
  const mark = { type: "scatter", mode: "markers", showlegend: false, x: [tokens],
    y: [1000 * costs.find(([size]) => size === tokens)[1]], marker: { color: fast, size: 11 }, hoverinfo: "skip" };
  return { data: [line, dots, mark], layout: { height: 240,
    xaxis: { title: { text: "tokens of a step" } },
    yaxis: { title: { text: "milliseconds" }, rangemode: "tozero" } } };
};
