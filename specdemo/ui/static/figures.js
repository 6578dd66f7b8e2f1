/* What is known of a finished run beside its tokens: who guessed, and where the time went. Numbers
   come from figures.py, words are here. */
const shareOf = (part, whole) => Math.round(100 * part / (whole || 1)) + " %";
const SPENT = {
  prefill: "reading the question (prefill)", drafting: "drafting", target: "target forwards",
  outside: "outside inference",
};

const table = (head, rows) => {
  const whole = make("table"), top = whole.createTHead().insertRow(), body = whole.createTBody();
  for (const text of head) top.appendChild(make("th", "", text)).scope = "col";
  for (const row of rows) body.insertRow().append(...row.map((text) => make("td", "", text)));
  return whole;
};

/* A labelled bar of parts, each [class, length, title], of `whole`. */
const bar = (label, parts, whole, text) => {
  const row = make("div", "sd-part-row"), track = make("span", "sd-part-track");
  for (const [cls, length, title] of parts) {
    const part = track.appendChild(make("span", "sd-part sd-part-" + cls));
    part.style.width = 100 * Math.min(1, length / (whole || 1)) + "%";
    part.title = title ?? "";
  }
  row.append(make("span", "sd-part-label", label), track, make("span", "sd-part-value", text));
  return row;
};

const drawFigures = (find, { summary }, { sources, positions, seconds: spent }) => {
  const { tokens, accepted } = summary, own = tokens - accepted;
  find(".sd-who").hidden = !sources.length;
  find(".sd-who-table").replaceChildren(table(
    ["Source", "Examined", "Acceptance rate", "Share of the answer", "Tokens saved"],
    [...sources.map((one) => [SOURCES[one.name] ?? one.name, one.examined,
      shareOf(one.accepted, one.examined), shareOf(one.accepted, tokens), one.accepted]),
    ["target model itself", "-", "-", shareOf(own, tokens), "-"]]));
  find(".sd-positions").replaceChildren(
    ...positions.length ? [make("h3", "", "Acceptance by draft position")] : [],
    ...positions.map(([kept, seen], at) =>
      bar("token " + (at + 1), [["drafting", kept]], seen, `${kept} of ${seen}`)));
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  const longest = Math.max(...Object.values(spent).map(sum)), key = make("ul", "sd-legend");
  for (const [name, words] of Object.entries(SPENT)) {
    const item = key.appendChild(make("li"));
    item.append(make("span", "sd-swatch sd-part-" + name), words);
  }
  find(".sd-spent-bars").replaceChildren(...Object.entries(spent).map(([run, all]) => {
    const parts = Object.entries(all);
    const pieces = parts.map(([name, s]) => [name, s, `${SPENT[name]}: ${seconds(s)}`]);
    const row = bar(run, pieces, longest, seconds(sum(all)));
    row.append(make("span", "sd-hint", parts.filter(([, s]) => s >= .005)
      .map(([name, s]) => `${name} ${seconds(s)}`).join(", ")));
    return row;
  }), key);
};
