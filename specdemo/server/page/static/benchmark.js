/* The benchmark tab: runs it, draws its charts, and gives its files. */
import { addExports, draw } from "./chart.js";
import { isRunning, keepJson, make, say, showRunning, table } from "./dom.js";
import { stop, stream } from "./server.js";

const HEAD = ["Prompt", "Task", "Tokens", "Times as fast", "Least", "Most", "Acceptance rate", "Identical"];
const two = (number) => number?.toFixed(2) ?? "-";
const cells = ({ id, task, tokens, speedup, speedups, acceptance_rate: rate, identical }) => [
  id, task, tokens, two(speedup), two(Math.min(...speedups)), two(Math.max(...speedups)),
  rate == null ? "-" : `${Math.round(100 * rate)} %`, identical ? "yes" : "no"];

export class Benchmark {
  constructor(root, values) {
    this.find = (name) => root.querySelector(".sd-" + name);
    this.progress = root.querySelector("progress");
    this.find("bench-run").onclick = () => {
      if (isRunning()) return say(this.find("bench-note"), "A race is under way: stop it, or wait for its end.");
      this.run(true);
      this.find("bench-charts").style.minHeight = `${this.find("bench-charts").offsetHeight}px`;
      this.show({ sentence: "", charts: [], report: { rows: [] } });   // what was recorded elsewhere
      say(document.querySelector(".sd-status"), "The benchmark is under way. Stop ends it.");
      stream("benchmark", values(), (message) => this.receive(message));
    };
    this.find("bench-stop").onclick = stop;
    const exports = this.find("exports"), chart = () => this.find("bench-charts").lastElementChild;
    addExports(exports, chart, "specdemo-bench", () => [HEAD, ...this.shown.report.rows.map(cells)],
      () => [this.shown.sentence]);
    exports.querySelector("[data-export=json]").onclick = () => (
      keepJson(this.shown.report, "specdemo-bench.json"));
    this.show(window.specdemo.known.benchmark);
  }

  run(on) {
    this.find("bench-run").hidden = on;
    this.find("bench-stop").hidden = this.progress.hidden = !on;
    this.find("error").hidden = true;
    showRunning(on);
    if (!on) say(document.querySelector(".sd-status"), "");
  }

  receive({ phase, note, done, total, ...shown }) {
    const ended = ["done", "stopped", "error"].includes(phase);
    say(this.find("bench-note"), phase === "error" ? "" : note);
    if (total) Object.assign(this.progress, { value: done, max: total });
    if (ended) this.run(false);
    if (phase === "error") {
      say(this.find("error"), note);
      this.find("error").hidden = false;
    }
    if (shown.report?.rows.length) this.show(shown, ended);
  }

  /* Charts are drawn when no model runs. */
  show(shown, chart = true) {
    this.shown = shown;
    say(this.find("bench-sentence"), shown.sentence);
    this.find("rows").replaceChildren(table(HEAD, shown.report.rows.map(cells)));
    if (!chart) return;
    const nodes = shown.charts.map(() => make("div", "sd-bench-chart"));
    this.find("bench-charts").replaceChildren(...nodes);
    shown.charts.forEach((figure, place) => draw(nodes[place], figure));
  }
}
