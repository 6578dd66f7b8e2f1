/* A card of a run, 1200 x 630, for messages and blog posts. Text becomes text nodes only. */
const WIDE = 1200, HIGH = 630, EDGE = 56;
const FONT = "'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif";
const INKS = {
  accepted: ["#00785a", "#d9f2e8"], correction: ["#b04a00", "#ffe6d3"],
  bonus: ["#0069a8", "#dbeefb"], first: ["#8f4a76", "#f7e4ef"], plain: ["#52606d", "#eceff3"],
};

/* Without what XML does not hold or what would turn the text around it. */
const printable = (text) => text.replace(/\s+/g, " ")
  .replace(/[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g, "");

/* Pieces of text, each [text, kind], in lines: [{ x, line, width, text, kind }], cut at `most`. */
const flow = (pieces, font, most) => {
  const pen = document.createElement("canvas").getContext("2d"), placed = [];
  pen.font = font;
  let x = 0, line = 0;
  for (const [text, kind] of pieces) {
    const words = printable(text);
    const { width } = pen.measureText(words);
    if (x + width > WIDE - 2 * EDGE && x) {
      x = 0;
      line++;
    }
    if (line >= most) {
      Object.assign(placed.at(-1), { text: "…" });
      return placed;
    }
    placed.push({ x, line, width, text: words, kind });
    x += width;
  }
  return placed;
};

const drawCard = ({ trace, verdict }) => {
  const card = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDE, height: HIGH,
    viewBox: `0 0 ${WIDE} ${HIGH}`, "font-family": FONT });
  const put = (...given) => card.appendChild(svg(...given));
  const write = (pieces, size, weight, top, most) => {
    const rtl = /^[^A-Za-z]*[\u0590-\u08ff]/.test(pieces.map(([text]) => text).join(""));
    for (const one of flow(pieces, `${weight} ${size}px ${FONT}`, most)) {
      const x = rtl ? WIDE - EDGE - one.x - one.width : EDGE + one.x;
      const y = top + one.line * size * 1.5, [ink, paper] = INKS[one.kind] ?? ["#16202c"];
      if (paper) {
        put("rect", { x, y: y - size, width: one.width, height: size * 1.35, fill: paper });
        put("rect", { x, y: y + size * .3, width: one.width, height: 2, fill: ink });
      }
      const look = { "font-size": size, "font-weight": weight, fill: "#16202c" };
      put("text", { x, y, ...look, "xml:space": "preserve" }, one.text);
    }
  };
  put("rect", { width: WIDE, height: HIGH, fill: "#ffffff" });
  put("rect", { width: WIDE, height: 12, fill: "#005a8f" });
  const words = trace.instruction.slice(0, 400).split(/(?<=\s|\S{40})/).map((word) => [word]);
  write(words, 30, 600, 74, 2);
  put("text", { x: EDGE, y: 178, "font-size": 46, "font-weight": 750,
    fill: verdict.tone === "slower" ? "#a63f00" : "#00704f" }, verdict.headline);
  const { summary } = trace, rates = [
    ["Speculative", summary.tokens_per_second, "#0072b2"],
    ["Autoregressive", summary.baseline_tokens_per_second, "#c98500"],
  ].filter((one) => one[1]), most = Math.max(...rates.map((one) => one[1]));
  rates.forEach(([name, rate, fill], at) => {
    const y = 206 + 44 * at, look = { y: y + 23, "font-size": 22, fill: "#16202c" };
    put("text", { x: EDGE, ...look }, name);
    put("rect", { x: 250, y, width: 700 * rate / most, height: 30, rx: 6, fill });
    put("text", { x: 264 + 700 * rate / most, ...look }, rate.toFixed(0) + " tokens/s");
  });
  const pieces = trace.rounds.flatMap(({ drafted, emitted }) => [
    ...drafted.filter((token) => token.accepted).map((token) => [token.text, "accepted"]),
    ...emitted ? [[emitted.text, emitted.kind]] : [],
  ]);
  write(pieces, 22, 400, 334, 7);
  const { pair, machine, created } = trace, facts = [
    [pair.target, pair.draft ? "draft: " + pair.draft : "n-grams"].join(", "),
    [machine, created?.slice(0, 10), "specdemo on OpenVINO"].filter(Boolean).join(" · "),
  ];
  facts.forEach((text, at) => {
    const look = { x: EDGE, y: 580 + 28 * at, "font-size": 19, fill: "#4a5867" };
    put("text", look, printable(text).slice(0, 110));
  });
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
