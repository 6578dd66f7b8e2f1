/* What is kept of a run beside the stage: its costs, its rounds as a table, a file, and a link. */
(() => {
  if (window.specdemo.Keep) return;

  const { make, visible } = window.specdemo;
  const COLUMNS = [
    "Round", "Drafted", "Accepted", "Target added", "Text", "Drafting, ms", "Verifying, ms",
    "Shown at, s",
  ];
  const keptText = (round) => round.drafted.filter((t) => t.accepted).map((t) => t.text).join("")
    + (round.emitted ? round.emitted.text : "");

  class Keep {
    constructor(stage) {
      this.stage = stage;
      this.find = stage.find;
      this.listen();
    }

    money() {
      if (!this.stage.trace) return;
      const price = Math.max(0, parseFloat(this.find(".sd-price").value) || 0);
      const { cpu_seconds_per_token: spec, baseline_cpu_seconds_per_token: plain }
        = this.stage.trace.summary;
      for (const [name, cpu] of Object.entries({ spec, plain })) {
        const cost = (cpu ?? 0) * 1e6 / 3600 * price;
        this.stage.say(".sd-cpu-" + name, cpu === null ? "-" : cpu.toPrecision(3) + " s");
        this.stage.say(".sd-money-" + name, cpu === null ? "-" : cost.toFixed(cost < 10 ? 2 : 0));
      }
      const joules = (name) => this.stage.joules[name]?.toPrecision(3) ?? "-";
      this.stage.say(".sd-energy", this.stage.joules
        ? `Processor package: ${joules("speculative")} joules a token speculative, `
          + `${joules("plain")} for the baseline.`
        : "This machine does not let its energy counters be read.");
    }

    table() {
      const body = this.find(".sd-table-body");
      body.textContent = "";
      if (!this.find(".sd-table").open || !this.stage.trace) return;
      const row = (tag, cells) => {
        const line = make("tr");
        line.append(...cells.map((cell) => make(tag, "", String(cell))));
        return line;
      };
      const table = make("table"), head = make("thead"), rows = make("tbody");
      head.append(row("th", COLUMNS));
      for (const th of head.querySelectorAll("th")) th.scope = "col";
      rows.append(...this.stage.rounds.map((round, index) => row("td", [
        index + 1,
        round.drafted.length,
        round.drafted.filter((token) => token.accepted).length,
        round.emitted ? round.emitted.kind : "-",
        visible(keptText(round)),
        (1000 * round.draft_seconds).toFixed(2),
        (1000 * round.verify_seconds).toFixed(2),
        round.shown_at.toFixed(3),
      ])));
      table.append(head, rows);
      body.append(table);
    }

    listen() {
      this.find(".sd-open").addEventListener("click", () => {
        document.querySelector("input#sd-open, #sd-open input[type=file]").click();
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
        const copying = navigator.clipboard?.writeText(text.value);
        const copied = await copying?.then(() => true, () => false);
        if (!copied) text.select();
        this.stage.say(".sd-kept", copied ? "Copied." : "Copy it from the box.");
        setTimeout(() => this.stage.say(".sd-kept", ""), 4000);
      });
    }
  }

  Object.assign(window.specdemo, { Keep, keptText });
})();
