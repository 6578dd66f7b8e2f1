/* What a visitor takes along: costs, the rounds as a table, files, a card, and a link. */
const COLUMNS = [
  "Round", "Drafted", "Accepted", "Target added", "Text", "Drafting, ms", "Verifying, ms",
  "Shown at, s",
];

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

  open() {
    this.find(".sd-link-text").hidden = true;
    this.money();
    this.table();
  }

  money() {
    const { trace, joules, root } = this.stage, say = (...given) => this.stage.say(...given);
    const price = Math.max(0, parseFloat(this.find(".sd-price").value) || 0);
    const { cpu_seconds_per_token: spec, baseline_cpu_seconds_per_token: plain } = trace.summary;
    for (const [name, cpu] of Object.entries({ spec, plain })) {
      const cost = (cpu ?? 0) * 1e6 / 3600 * price;
      say(".sd-cpu-" + name, cpu === null ? "" : cpu.toPrecision(3) + " s");
      say(".sd-money-" + name, cost.toFixed(cost < 10 ? 2 : 0));
    }
    for (const node of root.querySelectorAll(".sd-with-plain")) node.hidden = plain === null;
    const words = (name) => joules[name]?.toPrecision(3) ?? "unknown";
    say(".sd-energy", joules ? `Processor package: ${words("speculative")} joules a token `
      + `speculative, ${words("plain")} for the baseline.` : "");
  }

  table() {
    const rows = this.find(".sd-table").open ? this.stage.trace.rounds : [];
    this.find(".sd-table-body").replaceChildren(table(COLUMNS, rows.map((round, index) => {
      const { drafted, emitted } = round, kept = drafted.filter((token) => token.accepted);
      return [
        index + 1,
        drafted.length,
        kept.length,
        emitted?.kind ?? "-",
        visible(kept.map((token) => token.text).join("") + (emitted?.text ?? "")),
        (1000 * round.draft_seconds).toFixed(2),
        (1000 * round.verify_seconds).toFixed(2),
        round.shown_at.toFixed(3),
      ];
    })));
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
    const { stage } = this, pick = make("input");
    const on = (name, event, act) => this.find(".sd-" + name).addEventListener(event, act);
    Object.assign(pick, { type: "file", accept: ".json" });
    pick.addEventListener("change", async () => stage.open(await pick.files[0].text()));
    on("open", "click", () => {
      pick.value = "";
      pick.click();
    });
    on("price", "input", () => this.money());
    on("table", "toggle", () => this.table());
    on("link", "click", () => this.link());
    on("download", "click", () => {
      const text = JSON.stringify(stage.trace, null, 1);
      keepFile(new Blob([text], { type: "application/json" }), this.name("json"));
    });
    for (const kind of ["png", "svg"]) {
      on(kind, "click", async () => keepFile(await cardFile(stage, kind), this.name(kind)));
    }
  }
}
