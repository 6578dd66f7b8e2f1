/* Figures, in charts by Plotly, which is loaded once and not while models run, and in tables: of a race,
   of what is for engineers, and of the benchmark. */
import { SOURCES, asset, colour, isRunning, keep, keepJson, make, onTheme, percent, say, sayStatus, seconds, showRunning,
  still, stop, stream, table, times } from "./common.js";

/* A request that failed is made again by the next chart. */
const plotly = () => import("./plotly.min.js").then(() => window.Plotly, () => {
  throw new Error("Plotly could not be loaded");
});

/* The colours of bench/charts.py, which the page has in two themes. */
const COLOURS = new Map([["#0072B2", "fast"], ["#64748b", "slow"], ["#9a6700", "amber"],
  ["#a63f00", "bad"]]);
const themed = (figure) => JSON.parse(JSON.stringify(figure),
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
export const draw = async (node, figure) => {
  const library = await plotly(), line = colour("line"), { data, layout } = themed(figure);
  const axis = { gridcolor: line, linecolor: line, zeroline: false, fixedrange: true };
  const title = { font: { size: 13 } }, shapedefaults = { line: { color: colour("ink") } };
  const themedLayout = {
    hovermode: "closest", dragmode: false, barmode: "group", width: node.offsetWidth || undefined, ...layout,
    template: { layout: { xaxis: { title }, yaxis: { title }, title, shapedefaults } },
    margin: { l: 56, r: 16, t: 12, b: 44, ...layout.margin },
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
    hoverlabel: { align: "left", bgcolor: colour("paper"), font: { color: colour("ink") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", ...layout.legend },
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, automargin: true, ...layout.yaxis },
  };
  await library.react(node, data, themedLayout, { displayModeBar: false });
  fitted.observe(node);
};

const LINE = /(.{1,110})(?:\s+|$)/g, TITLE = "Speculative decoding on OpenVINO";

/* A chart with lines of text above it, 1200 pixels wide and as high as the preview of a link. */
const pictureOf = ({ data, layout }, lines) => {
  const wrapped = lines.flatMap((line) => line.match(LINE) ?? [])
    .map((text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;"));   // Plotly takes tags for markup
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

/* The style of a line over the chart at the moment `time`, whatever its width. */
export const playheadAt = (node, time) => {
  const { l, r, t, h } = node._fullLayout?._size ?? { l: 0, r: 0, t: 0, h: 0 };
  const share = time / (node.layout?.xaxis.range[1] ?? 1);
  return { top: `${t}px`, height: `${h}px`, left: `calc(${l}px + (100% - ${l + r}px) * ${share})` };
};

export const figureRows = ({ data }) => [["run", "seconds", "tokens"],
  ...data.filter(({ name }) => name).flatMap(({ name, x, y }) => x.map((seconds, at) => [name, seconds, y[at]]))];

/* The speed-ups of several races on one scale: filled if they count, hollow if not. */
export const drawDots = (root, races, notes = []) => {
  root.hidden = !races.length;
  const speedups = races.map(({ speedup }) => speedup?.toFixed(2) ?? "-");
  const octaves = (x) => Math.log2(Math.max(x, 1e-3)), end = Math.max(2, ...races.map(({ speedup }) => speedup ?? 1));
  const begin = Math.min(.5, ...races.map(({ speedup }) => speedup ?? 1)), line = make("span", "sd-scale");
  const put = (x, cls, text = "") => {
    const node = line.appendChild(make("span", cls, text));
    // Logarithmic: 1.03 lies near 1 whatever the other races are.
    node.style.left = `${(4 + 92 * (octaves(x) - octaves(begin)) / (octaves(end) - octaves(begin))).toFixed(1)}%`;
    return node;
  };
  for (let tick = 2 ** Math.ceil(octaves(begin)); tick <= end; tick *= 2) put(tick, "sd-one", tick === .5 ? "½" : `${tick}`);
  races.forEach(({ speedup, counted: counts, why }, number) => {
    const dot = put(speedup ?? 1, `sd-dot${counts ? "" : " sd-hollow"}${number ? "" : " sd-on-show"}`);
    dot.title = `${speedups[number]}x${number ? "" : ", the race on show"}${counts ? "" : `; not counted: ${why}`}`;
  });
  const out = races.some(({ counted: counts }) => counts)   // else the headline has the reason
    && races.find(({ counted: counts, why }) => !counts && !notes.some((note) => note.includes(why)));
  root.ariaLabel = `Speed-ups by race: ${speedups.join(", ")}`;
  root.replaceChildren(line, ...(out ? [make("span", "sd-hint", `○ not counted: ${out.why}`)] : []));
};

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
  drawCosts(find, curve);
};

/* Processor seconds, joules, and money at a price of a core and hour that a visitor can type. */
const drawSavings = (find, { baseline, summary, cpu_seconds, joules }) => {
  const ways = [{ name: "speculative", cpu: cpu_seconds, joules, tokens: summary.decoded }];
  if (baseline) ways.push({ name: "autoregressive", cpu: baseline.cpu_seconds, joules: baseline.joules,
    tokens: summary.baseline_decoded });
  const price = find(".sd-price input");
  const readable = ways.every((way) => way.joules != null), energy = (cell) => (readable ? [cell()] : []);
  find(".sd-energy").hidden = readable;
  price.oninput = () => {
    const hourly = Math.max(0, Number(price.value) || 0);
    find(".sd-saved").replaceChildren(table(
      ["Run", "Processor seconds", ...energy(() => "Joules of the processors"),
        "Cost per million tokens"],
      ways.map(({ name, cpu, joules, tokens }) => [name, seconds(cpu), ...energy(() => joules.toFixed(1)),
        tokens ? (cpu / tokens * 1e6 / 3600 * hourly).toFixed(2) : "-"])));
  };
  price.oninput();
};

const drawCosts = (find, curve) => {
  const details = find(".sd-engineers"), { sentence = "", predicted, measured, figure } = curve ?? {};
  // Drawn when it is looked at: Plotly needs the width.
  details.ontoggle = () => curve && details.open && draw(find(".sd-cost-chart"), figure);
  details.ontoggle();
  find(".sd-curve").hidden = !curve;
  find(".sd-prediction").hidden = !predicted;
  say(find(".sd-cost-sentence"), find(".sd-cost-chart").ariaLabel = sentence);
  say(find(".sd-predicted"), timesOrDash(predicted));
  say(find(".sd-measured"), timesOrDash(measured));
};

const TOKENS = 100;   // of an estimated race

/* Two bars for other settings: gives the function that takes a benchmark's estimates (decision.py). */
const mountWhatIf = (root) => {
  const find = (name) => root.querySelector(".sd-if-" + name);
  const [task, length, users, rate] = ["task", "length", "users", "rate"].map(find);
  let known = null;
  const race = () => {
    const { rates, seconds: paces, speedups } = known, user = users.selectedIndex;
    const speedup = speedups[user][length.selectedIndex][rate.value], slow = TOKENS * paces[user];
    say(find("percent"), rate.ariaValueText = percent(rates[rate.value]));
    say(find("speedup"), times(speedup));
    [slow / speedup, slow].forEach((spent, way) => {
      const pane = root.querySelectorAll(".sd-pane")[way], bar = pane.querySelector(".sd-bar");
      say(pane.querySelector(".sd-clock"), seconds(spent));
      bar.style.transform = `scaleX(${spent / Math.max(slow, slow / speedup)})`;
      bar.getAnimations().forEach((one) => one.cancel());
      if (!still.matches && !isRunning()) bar.animate({ transform: ["scaleX(0)", bar.style.transform] }, 1000 * spent);
    });
  };
  length.onchange = users.onchange = find("race").onclick = race;
  rate.oninput = () => {
    task.value = "";   // none
    race();
  };
  task.onchange = () => {
    const off = known.rates.map((one) => Math.abs(one - task.value));
    rate.value = off.indexOf(Math.min(...off));
    race();
  };
  return (estimates, rows) => {
    root.hidden = !estimates;
    if (!estimates || estimates === known) return;
    known = estimates;
    task.replaceChildren(new Option("all", known.acceptance_rate), ...rows.filter((row) => !row.paper
      && row.acceptance_rate != null).map((row) => new Option(row.task, row.acceptance_rate)));
    length.replaceChildren(...known.speedups[0].map((_, drafted) => new Option(drafted ? `${drafted}` : "as raced")));
    users.replaceChildren(...known.users.map((count) => new Option(count)));
    Object.assign(rate, { max: known.rates.length - 1, value: known.rates.indexOf(known.acceptance_rate) });
    race();
  };
};

const HEAD = ["Prompt", "Task", "Tokens", "Speed-up", "Least", "Most", "Acceptance rate", "Identical"];
const timesOrDash = (speedup) => (speedup ? times(speedup) : "-");
const cells = ({ id, task, tokens, speedup, speedups, whys = [], acceptance_rate: rate, identical }) => {
  const counted = speedups.filter((_, at) => !whys[at]);
  const ends = counted.length ? [Math.min(...counted), Math.max(...counted)] : [null, null];
  return [id, task, tokens, ...[speedup, ...ends].map(timesOrDash), rate == null ? "-" : percent(rate), identical ? "yes" : "no"];
};

/* The benchmark tab: runs it with the input values that `values` gives, draws its charts, gives its files. */
export const mountBenchmark = async (root, values) => {
  const find = (name) => root.querySelector(".sd-" + name), progress = root.querySelector("progress");
  const charts = find("bench-charts"), estimate = mountWhatIf(find("what-if"));
  const recorded = await asset("benchmark.json");
  if (recorded.phase === "error") return say(find("error"), recorded.note);
  let shown = null;

  /* Charts are drawn when no model runs; until then each row has its dots. */
  const show = (report, chart = true) => {
    shown = report;
    say(find("bench-sentence"), shown.sentence);
    const { headline = "", sentence = "", command = "", estimates = null } = shown.report.decision ?? {};
    for (const [name, text] of Object.entries({ decision: headline, reasons: sentence, command })) say(find(name), text);
    say(find("copied"), "");
    find("copy").hidden = !command;
    estimate(estimates, shown.report.rows);
    const rows = table(HEAD, shown.report.rows.map(cells));
    if (!chart) {
      rows.tHead.rows[0].append(make("th", "", "Races"));
      shown.report.rows.forEach(({ speedups, whys = [] }, at) => {
        const dots = rows.tBodies[0].rows[at].insertCell().appendChild(make("div", "sd-dots"));
        drawDots(dots, speedups.map((speedup, race) => ({ speedup, why: whys[race], counted: !whys[race] })), whys);
      });
    }
    find("rows").replaceChildren(rows);
    const figures = chart ? shown.charts : [];
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
    sayStatus(running ? "The benchmark is under way. Stop ends it." : "");
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
    show(shown, false);
    stream("benchmark", values(), receive);
  };
  find("bench-stop").onclick = stop;
  find("copy").onclick = () => navigator.clipboard?.writeText(shown.report.decision.command)
    .then(() => say(find("copied"), "Copied."));
  addExports(find("exports"), "specdemo-bench", { nodes: () => [...charts.children],
    lines: () => [shown.sentence], rows: () => [HEAD, ...shown.report.rows.map(cells)], report: () => shown.report });
  show(recorded);
  onTheme(() => isRunning() || show(shown));
};
