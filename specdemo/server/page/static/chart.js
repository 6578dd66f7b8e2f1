/* Charts by Plotly, which is loaded once and not while models run: how it looks, its exports, and
   the wall-clock chart of a race. */
import { colour, difference, keep, make, seconds } from "./dom.js";
import { page } from "./server.js";

let library = null;
const plotly = () => (library ??= new Promise((resolve, reject) => {
  const script = make("script");
  script.src = new URL("plotly.min.js", import.meta.url);
  script.onload = () => resolve(window.Plotly);
  script.onerror = () => {
    library = null;
    reject(new Error("Plotly could not be loaded"));
  };
  document.head.append(script);
}));

const MARGIN = { l: 56, r: 16, t: 12, b: 44 };

/* The colours of bench/charts.py, which the page has in two themes. */
const COLOURS = new Map([["#0072B2", "fast"], ["#64748b", "slow"], ["#9a6700", "amber"]]);
const themed = (data) => JSON.parse(JSON.stringify(data),
  (_, value) => (COLOURS.has(value) ? colour(COLOURS.get(value)) : value));

/* Draws a figure, as Plotly's JSON has it, in the colours of the page. */
export const draw = async (node, { data, layout }) => {
  const library = await plotly(), line = colour("line");
  const axis = { gridcolor: line, linecolor: line, zeroline: false, fixedrange: true };
  const themedLayout = {
    hovermode: "closest", dragmode: false, barmode: "group", ...layout,
    margin: { ...MARGIN, ...layout.margin },
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
    hoverlabel: { align: "left", bgcolor: colour("paper"), font: { color: colour("ink") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", ...layout.legend },
    xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, automargin: true, ...layout.yaxis },
  };
  await library.react(node, themed(data), themedLayout, { displayModeBar: false, responsive: true });
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

/* Connects buttons that give the chart `node` as a picture below the `lines`, or the text of `rows` as
   CSV. */
export const addExports = (buttons, node, name, rows, lines) => {
  for (const button of buttons.querySelectorAll("[data-export]")) {
    const format = button.dataset.export;
    button.addEventListener("click", async () => {
      if (format === "csv") {
        const cells = rows().map((row) => row.map((one) => JSON.stringify(one ?? "")).join(","));
        keep(cells.join("\n") + "\n", `${name}.csv`, "text/csv");
      } else if (format !== "json") {
        const size = { width: 1200, height: 630 };
        (await plotly()).downloadImage(pictureOf(node(), lines()), { format, filename: name, ...size });
      }
    });
  }
};

/* The curves of a run: tokens against seconds since the first token, of every race, the one on show
   first. Races of links have no times but their own. */
export const curvesOf = ({ rounds, baseline, repeats = [], verdict }) => {
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

const MOST_ROOM = 1.3;   // for repeats that took longer than the race on show

/* The wall-clock chart: both runs of the race on show, the other counted races as thin lines, and
   further curves to lay over it: [{ name, x, y }]. */
export const raceFigure = (run, overlays) => {
  const [shown, ...others] = curvesOf(run), { spec, base } = shown;
  const repeated = others.filter((one) => one.counted);
  const fast = colour("fast"), slow = colour("slow");
  const hover = (time) => `After ${seconds(time)}: ${reached(spec, time)} tokens with drafts`
    + (base ? `, ${reached(base, time)} without` : "");
  const thin = repeated.flatMap((one) => [
    { ...curve("", one.base, { color: slow, width: 1 }), opacity: .45, showlegend: false },
    { ...curve("", one.spec, { color: fast, width: 1 }), opacity: .45, showlegend: false }]);
  const data = [...thin];
  if (base) data.push(curve("autoregressive", base, { color: slow, width: 3, dash: "dash" }, hover));
  data.push(curve("speculative", spec, { color: fast, width: 3 }, hover));
  const colours = ["right", "wrong", "amber", "ink"].map(colour);
  overlays.forEach(({ name, x, y }, place) => data.push(curve(plain(name), { x, y },
    { color: colours[place % colours.length], width: 2, dash: "dot" },
    (time, at) => `${plain(name)}: ${y[at]} tokens after ${seconds(time)}`)));
  const last = (curves) => Math.max(...curves.filter(Boolean).map(({ x }) => x.at(-1) ?? 0));
  const ends = last([spec, base, ...overlays]);
  const slowest = last([spec, ...repeated.flatMap((one) => [one.spec, one.base])]);
  const span = Math.max(ends, Math.min(slowest, MOST_ROOM * ends)), layout = {
    xaxis: { title: { text: "seconds" }, range: [0, 1.02 * span || 1] },
    yaxis: { title: { text: "tokens" }, range: [0, 1.15 * Math.max(spec.y.at(-1) ?? 1, base?.y.at(-1) ?? 1)] },
    height: 225 + 20 * overlays.length, hovermode: "x", ...gap(spec, base, span),
  };
  return { data, layout, span };
};

/* The gap at the end of two runs of the same tokens, labelled in seconds. */
const gap = (spec, base, span) => {
  const top = spec.y.at(-1), [from, to] = [spec.x.at(-1), base?.x.at(-1)];
  if (!base || top !== base.y.at(-1) || Math.abs(to - from) <= .01 * span) return {};
  const ink = colour("ink"), text = `<b>${seconds(difference(to, from))} ${to > from ? "saved" : "lost"}</b>`;
  return {
    shapes: [{ type: "line", x0: from, x1: to, y0: top, y1: top, line: { color: ink, width: 2, dash: "dot" } }],
    annotations: [{ x: Math.max(from, to), y: top, text, showarrow: false, xanchor: "right",
      yanchor: "bottom", yshift: 2, font: { color: ink } }],
  };
};

/* The style of a line over the chart at the moment `time`. */
export const playheadAt = (node, time, span) => {
  const { l, t, w, h } = node._fullLayout?._size ?? { l: 0, t: 0, w: 0, h: 0 };
  const x = l + w * time / (1.02 * span || 1);
  return { top: `${t}px`, height: `${h}px`, transform: `translateX(${x}px)` };
};

export const raceRows = (run) => [["race", "run", "seconds", "tokens"],
  ...curvesOf(run).flatMap(({ spec, base }, race) => [["speculative", spec], ["autoregressive", base]]
    .flatMap(([way, points]) => (points?.x ?? []).map((x, at) => [race + 1, way, x, points.y[at]])))];
