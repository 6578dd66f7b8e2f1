/* What a visitor takes along: costs, the rounds as a table, files, a card, and a link. */
const COLUMNS = [
  "Round", "Drafted", "Accepted", "Target added", "Text", "Drafting, ms", "Verifying, ms",
  "Shown at, s",
];
const keptText = (round) => round.drafted.filter((t) => t.accepted).map((t) => t.text).join("")
  + (round.emitted?.text ?? "");

const keepFile = (file, name) => {
  const link = make("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

class Keep {
  constructor(stage) {
    this.stage = stage;
    this.find = stage.find;
    this.listen();
  }

  money() {
    const { trace, joules } = this.stage;
    const price = Math.max(0, parseFloat(this.find(".sd-price").value) || 0);
    const { cpu_seconds_per_token: spec, baseline_cpu_seconds_per_token: plain } = trace.summary;
    for (const [name, cpu] of Object.entries({ spec, plain })) {
      const cost = (cpu ?? 0) * 1e6 / 3600 * price;
      this.stage.say(".sd-cpu-" + name, cpu === null ? "" : cpu.toPrecision(3) + " s");
      this.stage.say(".sd-money-" + name, cost.toFixed(cost < 10 ? 2 : 0));
    }
    for (const node of this.stage.root.querySelectorAll(".sd-with-plain")) {
      node.hidden = plain === null;
    }
    const words = (name) => joules[name]?.toPrecision(3) ?? "unknown";
    this.stage.say(".sd-energy", joules ? `Processor package: ${words("speculative")} joules a `
      + `token speculative, ${words("plain")} for the baseline.` : "");
  }

  table() {
    const body = this.find(".sd-table-body");
    body.textContent = "";
    if (!this.find(".sd-table").open) return;
    body.append(table(COLUMNS, this.stage.rounds.map((round, index) => [
      index + 1,
      round.drafted.length,
      round.drafted.filter((token) => token.accepted).length,
      round.emitted?.kind ?? "-",
      visible(keptText(round)),
      (1000 * round.draft_seconds).toFixed(2),
      (1000 * round.verify_seconds).toFixed(2),
      round.shown_at.toFixed(3),
    ])));
  }

  name(kind) {
    const created = this.stage.trace.created || new Date().toISOString();
    return `specdemo-run-${created.replace(/\W+/g, "-").slice(0, 19)}.${kind}`;
  }

  async link() {
    const box = this.find(".sd-link-text"), link = await window.specdemo.share();
    const long = link.length > LONGEST_LINK;
    box.value = long ? window.specdemo.link() : link;
    box.hidden = false;
    const copied = await navigator.clipboard?.writeText(box.value).then(() => true, () => false);
    if (!copied) box.select();
    const words = copied ? "Copied." : "Copy it from the box.";
    this.stage.say(".sd-kept", long ? `This run would make a link of ${link.length} characters, `
      + `more than ${LONGEST_LINK}: the link holds the question only. Download the run instead. `
      + words : words);
  }

  listen() {
    const pick = make("input");
    Object.assign(pick, { type: "file", accept: ".json" });
    pick.addEventListener("change", async () => this.stage.open(await pick.files[0].text()));
    this.find(".sd-open").addEventListener("click", () => {
      pick.value = "";
      pick.click();
    });
    this.find(".sd-price").addEventListener("input", () => this.money());
    this.find(".sd-table").addEventListener("toggle", () => this.table());
    this.find(".sd-download").addEventListener("click", () => {
      const text = JSON.stringify(this.stage.trace, null, 1);
      keepFile(new Blob([text], { type: "application/json" }), this.name("json"));
    });
    for (const button of this.stage.root.querySelectorAll(".sd-picture")) {
      const { kind } = button.dataset;
      button.addEventListener("click", async () => {
        keepFile(await cardFile(this.stage, kind), this.name(kind));
      });
    }
    this.find(".sd-link").addEventListener("click", () => this.link());
  }
}
