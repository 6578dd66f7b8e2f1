/* A card of a run, 1200 x 630, for messages and blog posts. Text becomes text nodes only. */
const WIDE = 1200, HIGH = 630, EDGE = 56, INK = "#16202c";
const FONT = "'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif";
const KINDS = {   // ink and paper
  accepted: ["#00785a", "#d9f2e8"], correction: ["#b04a00", "#ffe6d3"],
  bonus: ["#0069a8", "#dbeefb"], first: ["#8f4a76", "#f7e4ef"], plain: ["#52606d", "#eceff3"],
};

/* Without what XML does not hold or what would turn the text around it. */
const printable = (text) => text.replace(/\s+/g, " ")
  .replace(/[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g, "");

const drawCard = ({ trace, verdict }) => {
  const { pair, machine, created, summary, instruction, rounds } = trace;
  const card = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDE, height: HIGH,
    viewBox: `0 0 ${WIDE} ${HIGH}`, "font-family": FONT });
  const box = (x, y, width, height, fill, rx = 0) =>
    card.appendChild(svg("rect", { x, y, width, height, fill, rx }));
  const write = (text, x, y, size, fill = INK, weight = 400) => {
    const look = { "font-size": size, "font-weight": weight, "xml:space": "preserve" };
    return card.appendChild(svg("text", { x, y, fill, ...look }, printable(text)));
  };
  const pen = make("canvas").getContext("2d");
  /* Pieces of text, each [text, kind], in at most `most` lines. */
  const flow = (pieces, top, size, weight, most) => {
    const rtl = /^[^A-Za-z]*[\u0590-\u08ff]/.test(pieces.map(([text]) => text).join(""));
    let from = 0, line = 0, last = null;
    pen.font = `${weight} ${size}px ${FONT}`;
    for (const [text, kind] of pieces) {
      const { width } = pen.measureText(printable(text));
      if (from + width > WIDE - 2 * EDGE && from) {
        from = 0;
        line++;
      }
      if (line === most) {
        last.textContent = "…";
        return;
      }
      const x = rtl ? WIDE - EDGE - from - width : EDGE + from, y = top + line * size * 1.5;
      const [ink, paper] = KINDS[kind] ?? [];
      if (kind) {
        box(x, y - size, width, size * 1.35, paper);
        box(x, y + size * .3, width, 2, ink);
      }
      last = write(text, x, y, size, INK, weight);
      from += width;
    }
  };
  box(0, 0, WIDE, HIGH, "#ffffff");
  box(0, 0, WIDE, 12, "#005a8f");
  flow(instruction.slice(0, 400).split(/(?<=\s|\S{40})/).map((word) => [word]), 74, 30, 600, 2);
  const tone = verdict.tone === "slower" ? "#a63f00" : "#00704f";
  write(verdict.headline, EDGE, 178, 46, tone, 750);
  const rates = [
    ["Speculative", summary.tokens_per_second, "#0072b2"],
    ["Autoregressive", summary.baseline_tokens_per_second, "#c98500"],
  ].filter((one) => one[1]), most = Math.max(...rates.map((one) => one[1]));
  rates.forEach(([name, rate, fill], at) => {
    const y = 206 + 44 * at, length = 700 * rate / most;
    write(name, EDGE, y + 23, 22);
    box(250, y, length, 30, fill, 6);
    write(rate.toFixed(0) + " tokens/s", 264 + length, y + 23, 22);
  });
  flow(rounds.flatMap(({ drafted, emitted }) => [
    ...drafted.filter((token) => token.accepted).map((token) => [token.text, "accepted"]),
    ...emitted ? [[emitted.text, emitted.kind]] : [],
  ]), 334, 22, 400, 7);
  const models = pair.target + ", " + (pair.draft ? "draft: " + pair.draft : "n-grams");
  write(models.slice(0, 110), EDGE, 580, 19, "#4a5867");
  const facts = [machine, created?.slice(0, 10), "specdemo on OpenVINO"].filter(Boolean);
  write(facts.join(" · ").slice(0, 110), EDGE, 608, 19, "#4a5867");
  return new XMLSerializer().serializeToString(card);
};

/* The card as a file: "svg", or "png" drawn from it. */
const cardFile = async (stage, kind) => {
  const text = drawCard(stage), file = new Blob([text], { type: "image/svg+xml" });
  if (kind === "svg") return file;
  const image = new Image(WIDE, HIGH), canvas = make("canvas");
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  Object.assign(canvas, { width: WIDE, height: HIGH });
  canvas.getContext("2d").drawImage(image, 0, 0, WIDE, HIGH);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};
