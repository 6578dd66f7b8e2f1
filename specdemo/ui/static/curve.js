/* Draws what a step of the target costs, the rounds of the run on it, and the predicted speed-up. */
const WIDTH = 460, HEIGHT = 210, LEFT = 40, BOTTOM = 180, TOP = 14;

const svg = (name, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

const milliseconds = (s) => (1000 * s).toFixed(s < .01 ? 1 : 0) + " ms";
const factor = (speedup) => (speedup < 1 ? `${(1 / speedup).toFixed(2)} times slower`
  : `${speedup.toFixed(2)} times faster`);

/* `table` are seconds of a forward of 1, 2, ... tokens; `tokens` is the size in the sentence. */
const drawChart = (chart, table, rounds, tokens) => {
  const highest = Math.max(table.at(-1), table[0] * 1.5) * 1.08, last = table.length;
  const x = (size) => LEFT + (WIDTH - LEFT - 24) * (size - 1) / (last - 1 || 1);
  const y = (s) => BOTTOM - (BOTTOM - TOP) * Math.min(s / highest, 1);
  const decade = 10 ** Math.floor(Math.log10(1000 * highest / 5));
  const step = decade * [1, 2, 5, 10].find((one) => 5 * one * decade >= 1000 * highest);
  const nodes = [];
  for (let ms = 0; ms < 1000 * highest; ms += step) {
    const at = y(ms / 1000);
    nodes.push(svg("line", { x1: LEFT, x2: WIDTH, y1: at, y2: at, class: "sd-grid" }),
      svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, ms || "0 ms"));
  }
  for (let size = 1; size <= last; size += size === 1 ? 3 : 4) {
    nodes.push(svg("text", { x: x(size), y: BOTTOM + 18, "text-anchor": "middle" },
      size === 1 ? "1 token" : size));
  }
  const one = y(table[0]), at = x(tokens), most = y(table[tokens - 1]);
  nodes.push(svg("path", { d: `M${x(1)} ${one}H${at}V${most}`, class: "sd-guide" }));
  for (const { drafted, verify_seconds: s } of rounds) {
    if (drafted.length < last) {
      nodes.push(svg("circle", { cx: x(drafted.length + 1), cy: y(s), r: 4, class: "sd-dot" }));
    }
  }
  const points = table.map((s, place) => `${x(place + 1).toFixed(1)},${y(s).toFixed(1)}`).join(" ");
  nodes.push(svg("polyline", { points, class: "sd-cost" }),
    svg("circle", { cx: at, cy: most, r: 5, class: "sd-mark" }));
  chart.replaceChildren(...nodes);
};

const drawCurve = (find, { rounds, costs }, curve) => {
  find(".sd-curve").hidden = !curve;
  if (!curve) return;
  const { sentence, tokens, one, predicted, measured, differs, rate, by_rate: speedups } = curve;
  drawChart(find(".sd-chart"), [one, ...costs.target.slice(1)], rounds.slice(1), tokens);
  find(".sd-cost-sentence").textContent = find(".sd-chart").ariaLabel = sentence;
  find(".sd-prediction").hidden = !predicted;
  if (!predicted) return;
  find(".sd-predicted").textContent = predicted.toFixed(2);
  find(".sd-measured").textContent = measured?.toFixed(2) ?? "-";
  find(".sd-differs").textContent = differs;
  const slider = find(".sd-rate-slider"), tell = () => {
    const share = `${slider.value} %`;
    slider.setAttribute("aria-valuetext", `${share}: ${factor(speedups[slider.value])}`);
    find(".sd-rate-told").textContent = `At ${share} it would be ${factor(speedups[slider.value])}.`;
  };
  slider.value = Math.round(100 * rate);
  slider.oninput = tell;
  tell();
};
