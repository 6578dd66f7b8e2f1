/* Figures, in charts by Plotly, which is loaded once and not while models run, and in tables: of a race,
   of what is for engineers, and of the benchmark. */
import { SOURCES, colour, counted, factor, isRunning, keep, keepJson, make, milliseconds, onTheme, page, percent,
  say, seconds, showRunning, stop, stream, table } from "./common.js";

/* A request that failed is made again by the next chart. */
const plotly = () => import("./plotly.min.js").then(() => window.Plotly, () => {
  throw new Error("Plotly could not be loaded");
});

/* The colours of bench/charts.py, which the page has in two themes. */
const COLOURS = new Map([["#0072B2", "fast"], ["#64748b", "slow"], ["#9a6700", "amber"]]);
const themed = (data) => JSON.parse(JSON.stringify(data),
  (_, value) => (COLOURS.has(value) ? colour(COLOURS.get(value)) : value));

/* Keeps charts as wide as their place, which has no width in a tab that is hidden; then a chart gets the event
   `resize`. With `responsive` Plotly follows the window alone, and forgets the height. */
const fitted = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const width = target.offsetWidth;
    if (!width || width === target.layout.width) continue;
    window.Plotly.relayout(target, { width }).then(() => target.dispatchEvent(new Event("resize")));
  }
});

/* Draws a figure, as Plotly's JSON has it, in the colours of the page. */
export const draw = async (node, { data, layout }) => {
  const library = await plotly(), line = colour("line");
  const axis = { gridcolor: line, linecolor: line, zeroline: false, fixedrange: true };
  const themedLayout = {
    hovermode: "closest", dragmode: false, barmode: "group", width: node.offsetWidth || undefined, ...layout,
    margin: { l: 56, r: 16, t: 12, b: 44, ...layout.margin },
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
    hoverlabel: { align: "left", bgcolor: colour("paper"), font: { color: colour("ink") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", ...layout.legend },
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, automargin: true, ...layout.yaxis },
  };
  await library.react(node, themed(data), themedLayout, { displayModeBar: false });
  fitted.observe(node);
};

/* Plotly takes tags for markup. */
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

const LINE = /(.{1,110})(?:\s+|$)/g, TITLE = "Speculative decoding on OpenVINO";

/* A chart with lines of text above it, 1200 pixels wide and as high as the preview of a link. */
const pictureOf = ({ data, layout }, lines) => {
  const wrapped = [...lines, page].flatMap((line) => line.match(LINE) ?? []).map(plain);
  return { data, layout: { ...layout, margin: { l: 80, r: 30, b: 60, t: 110 + 26 * wrapped.length },
    legend: { ...layout.legend, y: 1.01 }, title: { text: [TITLE, ...wrapped].join("<br>"),
      x: .03, xanchor: "left", y: .96, yanchor: "top", font: { size: 19 } } } };
};

/* Connects buttons that give the drawn ones of the charts `nodes` as pictures below the `lines`, the text of
   `rows` as CSV, or a `report`. */
export const addExports = (buttons, name, { nodes, lines, rows, report }) => {
  const picture = (format) => nodes().filter((node) => node.data).forEach(async (node) => (
    (await plotly()).downloadImage(pictureOf(node, lines()), { format, filename: name, width: 1200, height: 630 })));
  const cells = (row) => row.map((cell) => JSON.stringify(cell ?? "")).join(",");
  const exports = {
    png: picture,
    svg: picture,
    csv: () => keep(`${rows().map(cells).join("\n")}\n`, `${name}.csv`, "text/csv"),
    json: () => keepJson(report(), `${name}.json`),
  };
  for (const button of buttons.children) button.onclick = () => exports[button.dataset.export](button.dataset.export);
};

/* The curves of a run: tokens against seconds since the first token, of every race, the one on show
   first. Races of links have no times but their own. */
export const curvesOf = ({ trace: { rounds, baseline, repeats = [] }, verdict }) => {
  let tokens = 0;
  const shown = {
    spec: { x: rounds.map((one) => one.shown_at - rounds[0].shown_at), y: rounds.map((one) => (
      tokens += one.drafted.filter((token) => token.accepted).length + (one.emitted ? 1 : 0))) },
    base: baseline && { x: baseline.tokens.map((one) => one.shown_at - baseline.tokens[0].shown_at),
      y: baseline.tokens.map((_, place) => place + 1) },
    counted: true,
  };
  const others = repeats.map(({ times, tokens: reached, baseline_times: other }, place) => ({
    spec: { x: times, y: reached }, base: { x: other, y: other.map((_, at) => at + 1) },
    counted: verdict?.races?.[place + 1]?.counted ?? false,
  }));
  return [shown, ...others.filter(({ spec, base }) => spec.x.length && base.x.length)];
};

const reached = ({ x, y }, time) => y[x.findLastIndex((one) => one <= time + 1e-9)] ?? 0;

const curve = (name, { x, y }, look, hover) => ({
  type: "scatter", mode: "lines", name, x, y, line: { ...look, shape: "hv" },   // tokens come in rounds
  ...(hover ? { text: x.map(hover), hovertemplate: "%{text}<extra></extra>" } : { hoverinfo: "skip" }),
});

const MAX_ROOM = 1.3;   // for repeats that took longer than the race on show

/* The wall-clock chart: both runs of the race on show, the other counted races as thin lines, and
   further curves to lay over it: [{ name, x, y }]. */
export const raceFigure = (run, overlays) => {
  const [shown, ...others] = curvesOf(run), { spec, base } = shown;
  const repeated = others.filter((one) => one.counted);
  const fast = colour("fast"), slow = colour("slow");
  const hover = (time) => `After ${seconds(time)}: ${reached(spec, time)} tokens with drafts`
    + (base ? `, ${reached(base, time)} without` : "");
  const data = repeated.flatMap((one) => [
    { ...curve("", one.base, { color: slow, width: 1 }), opacity: .45, showlegend: false },
    { ...curve("", one.spec, { color: fast, width: 1 }), opacity: .45, showlegend: false }]);
  if (base) data.push(curve("autoregressive", base, { color: slow, width: 3, dash: "dash" }, hover));
  data.push(curve("speculative", spec, { color: fast, width: 3 }, hover));
  const colours = ["right", "wrong", "amber", "ink"].map(colour);
  overlays.forEach(({ name, x, y }, place) => data.push(curve(plain(name), { x, y },
    { color: colours[place % colours.length], width: 2, dash: "dot" },
    (time, at) => `${plain(name)}: ${y[at]} tokens after ${seconds(time)}`)));
  const last = (curves) => Math.max(...curves.filter(Boolean).map(({ x }) => x.at(-1) ?? 0));
  const ends = last([spec, base, ...overlays]);
  const most = Math.max(1, ...[spec, base, ...overlays].map((one) => one?.y.at(-1) ?? 1));
  const slowest = last([spec, ...repeated.flatMap((one) => [one.spec, one.base])]);
  const span = Math.max(ends, Math.min(slowest, MAX_ROOM * ends)), layout = {
    xaxis: { title: { text: "seconds" }, range: [0, 1.02 * span || 1] },
    yaxis: { title: { text: "tokens" }, range: [0, 1.15 * most] },
    height: 225 + 20 * overlays.length, hovermode: "x", ...gap(spec, base, span),
  };
  return { data, layout, span };
};

/* The gap at the end of two runs of the same tokens, labelled in seconds. */
const gap = (spec, base, span) => {
  const top = spec.y.at(-1), [from, to] = [spec.x.at(-1), base?.x.at(-1)];
  if (!base || top !== base.y.at(-1) || Math.abs(to - from) <= .01 * span) return {};
  const difference = Math.abs(to.toFixed(2) - from.toFixed(2));   // as a reader would subtract
  const ink = colour("ink"), text = `<b>${seconds(difference)} ${to > from ? "saved" : "lost"}</b>`;
  const end = Math.max(from, to), xanchor = end < span / 3 ? "left" : "right";   // inside the chart
  return {
    shapes: [{ type: "line", x0: from, x1: to, y0: top, y1: top, line: { color: ink, width: 2, dash: "dot" } }],
    annotations: [{ x: end, y: top, text, showarrow: false, xanchor, yanchor: "bottom", yshift: 2,
      font: { color: ink } }],
  };
};

/* The style of a line over the chart at the moment `time`, whatever its width. */
export const playheadAt = (node, time, span) => {
  const { l, r, t, h } = node._fullLayout?._size ?? { l: 0, r: 0, t: 0, h: 0 };
  const left = `calc(${l}px + (100% - ${l + r}px) * ${time / (1.02 * span || 1)})`;
  return { top: `${t}px`, height: `${h}px`, left };
};

export const raceRows = (run) => [["race", "run", "seconds", "tokens"],
  ...curvesOf(run).flatMap(({ spec, base }, race) => [["speculative", spec], ["autoregressive", base]]
    .flatMap(([way, points]) => (points?.x ?? []).map((x, at) => [race + 1, way, x, points.y[at]])))];

/* For engineers: tables of what proposed the tokens and where the time went, what else drafting saves, what
   a step costs, and what if. */
export const drawEngineering = (find, trace, curve) => {
  const { rounds, baseline, summary, prefill_seconds: prefill } = trace;
  const { tokens, accepted, draft_seconds: draft, verify_seconds: verify } = summary;
  const drafted = rounds.flatMap((round) => round.drafted), sources = new Set(drafted.map((one) => one.source));
  const ofAnswer = (count) => percent(count / (tokens || 1));
  const counts = [...sources].map((source) => {
    const examined = drafted.filter((one) => one.source === source
      && (one.accepted || one.target_probability != null));
    const right = examined.filter((one) => one.accepted).length;
    return [SOURCES.get(source), examined.length, percent(right / (examined.length || 1)), ofAnswer(right)];
  });
  find(".sd-who").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer"],
    [...counts, ["target model itself", "-", "-", ofAnswer(tokens - accepted)]]));
  const outside = Math.max(0, summary.decode_seconds - draft - verify);
  const spent = [["speculative", ...[prefill, draft, verify, outside].map(seconds)]];
  const decoding = summary.baseline_decode_seconds ?? 0;
  if (baseline) spent.push(["autoregressive", seconds(baseline.prefill_seconds), "-", seconds(decoding), "-"]);
  find(".sd-spent").replaceChildren(table(
    ["Run", "Prefill", "Drafting", "Target forwards", "Outside inference"], spent));
  drawSavings(find, trace);
  drawCosts(find, rounds.slice(1), curve);
};

const MILLION = 1e6, HOUR = 3600;

/* Processor seconds, joules, and money at a price of a core and hour that a visitor can type. */
const drawSavings = (find, { baseline, summary, cpu_seconds, joules }) => {
  const ways = [{ name: "speculative", cpu: cpu_seconds, joules, tokens: summary.decoded }];
  if (baseline) ways.push({ name: "autoregressive", cpu: baseline.cpu_seconds, joules: baseline.joules,
    tokens: summary.baseline_decoded });
  const [ours, theirs] = ways.map(({ cpu, tokens }) => cpu / tokens), price = find(".sd-price input");
  say(find(".sd-saves"), theirs && ours > theirs ? "What it costs" : "What else it saves");
  const readable = ways.every((way) => way.joules != null), energy = (cell) => (readable ? [cell()] : []);
  find(".sd-energy").hidden = readable;
  price.oninput = () => {
    const hourly = Math.max(0, Number(price.value) || 0);
    find(".sd-saved").replaceChildren(table(
      ["Run", "Processor seconds", ...energy(() => "Joules of the processors"),
        "A million tokens, in the price's currency"],
      ways.map(({ name, cpu, joules, tokens }) => [name, seconds(cpu), ...energy(() => joules.toFixed(1)),
        tokens ? (cpu / tokens * MILLION / HOUR * hourly).toFixed(2) : "-"])));
  };
  price.oninput();
};

const drawCosts = (find, rounds, curve) => {
  const details = find(".sd-engineers"), slider = find(".sd-rate-slider");
  find(".sd-curve").hidden = !curve;
  details.ontoggle = null;
  if (!curve) return;
  const { sentence, predicted, measured, rate, by_rate: speedups } = curve;
  // Drawn when it is looked at: Plotly needs the width.
  details.ontoggle = () => details.open && draw(find(".sd-cost-chart"), costFigure(curve, rounds));
  details.ontoggle();
  say(find(".sd-cost-sentence"), sentence);
  find(".sd-cost-chart").ariaLabel = sentence;
  find(".sd-prediction").hidden = !predicted;
  if (!predicted) return;
  say(find(".sd-predicted"), predicted.toFixed(2));
  say(find(".sd-measured"), measured?.toFixed(2) ?? "-");
  slider.value = Math.round(100 * rate);
  slider.oninput = () => {
    const speedup = speedups[slider.value], words = `At ${slider.value}% ` + (speedup < 1
      ? "such drafts would cost time, so the engine would stop making them."
      : `it would be ${factor(speedup)}.`);
    slider.setAttribute("aria-valuetext", words);
    say(find(".sd-rate-told"), words);
  };
  slider.oninput();
};

/* `costs`: [tokens, seconds, low, high, rounds] of steps; `tokens` is the size in the sentence. */
const costFigure = ({ costs, tokens }, rounds) => {
  const fast = colour("fast"), ms = (values) => values.map((s) => 1000 * s);
  const scatter = (mode, x, y, more) => ({ type: "scatter", mode, x, y: ms(y), hoverinfo: "skip", ...more });
  const line = scatter("lines", costs.map(([size]) => size), costs.map(([, s]) => s), {
    name: "a step, and where half of them lie", line: { color: fast, width: 2.5 },
    error_y: { color: fast, symmetric: false, array: ms(costs.map(([, s, , high]) => high - s)),
      arrayminus: ms(costs.map(([, s, low]) => s - low)) },
    text: costs.map(([size, s, , , count]) => (
      `${counted(size, "token")}: ${milliseconds(s)} in ${counted(count, "step")}`)),
    hovertemplate: "%{text}<extra></extra>" });
  const sizes = rounds.map(({ drafted }) => drafted.length + 1);
  const dots = scatter("markers", sizes, rounds.map((round) => round.verify_seconds),
    { name: "the rounds of this run", marker: { color: colour("ink"), size: 8, opacity: .3 } });
  const mark = scatter("markers", [tokens], [costs.find(([size]) => size === tokens)[1]],
    { showlegend: false, marker: { color: fast, size: 11 } });
  return { data: [line, dots, mark], layout: { height: 240,
    xaxis: { title: { text: "tokens of a step" } },
    yaxis: { title: { text: "milliseconds" }, rangemode: "tozero" } } };
};

const HEAD = ["Prompt", "Task", "Tokens", "Times as fast", "Least", "Most", "Acceptance rate", "Identical"];
const two = (number) => number?.toFixed(2) ?? "-";
const cells = ({ id, task, tokens, speedup, speedups, acceptance_rate: rate, identical }) => [
  id, task, tokens, two(speedup), two(Math.min(...speedups)), two(Math.max(...speedups)),
  rate == null ? "-" : percent(rate), identical ? "yes" : "no"];

/* The benchmark tab: runs it with the input values that `values` gives, draws its charts, gives its files. */
export const mountBenchmark = (root, values) => {
  const find = (name) => root.querySelector(".sd-" + name), progress = root.querySelector("progress");
  const charts = find("bench-charts"), status = document.querySelector(".sd-status");
  let shown = null;

  /* Charts are drawn when no model runs. */
  const show = (report, chart = true) => {
    shown = report;
    say(find("bench-sentence"), shown.sentence);
    find("rows").replaceChildren(table(HEAD, shown.report.rows.map(cells)));
    const figures = chart ? shown.charts : [];
    if (chart) charts.style.minHeight = "";
    charts.replaceChildren(...figures.map(() => make("div", "sd-bench-chart")));
    figures.forEach((figure, place) => draw(charts.children[place], figure));
  };
  const run = (running) => {
    const buttons = [find("bench-run"), find("bench-stop")], focused = buttons.includes(document.activeElement);
    find("bench-run").hidden = running;
    find("bench-stop").hidden = progress.hidden = !running;
    if (focused) buttons.find((one) => !one.hidden).focus();
    say(find("error"), "");
    showRunning(running);
    say(status, running ? "The benchmark is under way. Stop ends it." : "");
  };
  const receive = ({ phase, note, done, total, ...message }) => {
    const ended = ["done", "stopped", "error"].includes(phase), failed = phase === "error";
    say(find("bench-note"), failed ? "" : note);
    if (total) Object.assign(progress, { value: done, max: total });
    if (ended) run(false);
    say(find("error"), failed ? note : "");
    const raced = message.report?.rows.length;
    if (raced || ended) show(raced ? message : shown, ended);
  };
  find("bench-run").onclick = () => {
    if (isRunning()) return say(find("bench-note"), "Not started: a race was under way. Stop it, or wait for its end.");
    run(true);
    charts.style.minHeight = `${charts.offsetHeight}px`;
    show(shown, false);
    stream("benchmark", values(), receive);
  };
  find("bench-stop").onclick = stop;
  addExports(find("exports"), "specdemo-bench", { nodes: () => [...charts.children],
    lines: () => [shown.sentence], rows: () => [HEAD, ...shown.report.rows.map(cells)], report: () => shown.report });
  show(window.specdemo.known.benchmark);
  onTheme(() => isRunning() || show(shown));
};
