/* What is kept of a run beside the stage: its costs, its rounds as a table, a file, and a link. */
const COLUMNS = [
  "Round", "Drafted", "Accepted", "Target added", "Text", "Drafting, ms", "Verifying, ms",
  "Shown at, s",
];
const keptText = (round) => round.drafted.filter((t) => t.accepted).map((t) => t.text).join("")
  + (round.emitted?.text ?? "");

class Keep {
  constructor(stage) {
    this.stage = stage;
    this.find = stage.find;
    this.listen();
  }

  money() {
    const { trace, joules } = this.stage;
    if (!trace) return;
    const price = Math.max(0, parseFloat(this.find(".sd-price").value) || 0);
    const { cpu_seconds_per_token: spec, baseline_cpu_seconds_per_token: plain } = trace.summary;
    for (const [name, cpu] of Object.entries({ spec, plain })) {
      const cost = (cpu ?? 0) * 1e6 / 3600 * price;
      this.stage.say(".sd-cpu-" + name, cpu === null ? "-" : cpu.toPrecision(3) + " s");
      this.stage.say(".sd-money-" + name, cpu === null ? "-" : cost.toFixed(cost < 10 ? 2 : 0));
    }
    const words = (name) => joules[name]?.toPrecision(3) ?? "-";
    this.stage.say(".sd-energy", joules
      ? `Processor package: ${words("speculative")} joules a token speculative, `
        + `${words("plain")} for the baseline.`
      : "This machine does not let its energy counters be read.");
  }

  table() {
    const body = this.find(".sd-table-body");
    body.textContent = "";
    if (!this.find(".sd-table").open || !this.stage.trace) return;
    const table = body.appendChild(make("table"));
    const row = (section, tag, cells) => {
      const line = section.insertRow();
      line.append(...cells.map((cell) => make(tag, "", String(cell))));
    };
    row(table.createTHead(), "th", COLUMNS);
    const rows = table.createTBody();
    this.stage.rounds.forEach((round, index) => row(rows, "td", [
      index + 1,
      round.drafted.length,
      round.drafted.filter((token) => token.accepted).length,
      round.emitted?.kind ?? "-",
      visible(keptText(round)),
      (1000 * round.draft_seconds).toFixed(2),
      (1000 * round.verify_seconds).toFixed(2),
      round.shown_at.toFixed(3),
    ]));
  }

  listen() {
    this.find(".sd-open").addEventListener("click", () => {
      document.getElementById("sd-open").click();
    });
    this.find(".sd-price").addEventListener("input", () => this.money());
    this.find(".sd-table").addEventListener("toggle", () => this.table());
    this.find(".sd-download").addEventListener("click", () => {
      const { trace } = this.stage, link = make("a");
      const file = new Blob([JSON.stringify(trace, null, 1)], { type: "application/json" });
      const created = trace.created || new Date().toISOString();
      link.href = URL.createObjectURL(file);
      link.download = "specdemo-run-" + created.replace(/\W+/g, "-").slice(0, 19) + ".json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
    this.find(".sd-link").addEventListener("click", async () => {
      const text = this.find(".sd-link-text");
      text.value = window.specdemo.link();
      text.hidden = false;
      const copied = await navigator.clipboard?.writeText(text.value).then(() => true, () => false);
      if (!copied) text.select();
      this.stage.say(".sd-kept", copied ? "Copied." : "Copy it from the box.");
    });
  }
}
