/* What is known of a finished run beside its tokens: who guessed, and where the time went. Numbers
   come from figures.py, words are here. */
const shareOf = (part, whole) => Math.round(100 * part / (whole || 1)) + " %";
const SPENT = {
  prefill: "reading the question (prefill)", drafting: "drafting", target: "target forwards",
  outside: "outside inference",
};

const table = (head, rows) => {
  const whole = make("table"), top = whole.createTHead().insertRow(), body = whole.createTBody();
  top.append(...head.map((text) => {
    const cell = make("th", "", text);
    cell.scope = "col";
    return cell;
  }));
  for (const row of rows) {
    body.insertRow().append(...row.map((text) => make("td", "", String(text))));
  }
  return whole;
};

/* A labelled bar of parts, each [class, length, title], of `whole`. */
const bar = (label, parts, whole, text) => {
  const row = make("div", "sd-part-row"), track = make("span", "sd-part-track");
  for (const [cls, length, title] of parts) {
    const part = track.appendChild(make("span", "sd-part " + cls));
    part.style.width = 100 * Math.min(1, length / (whole || 1)) + "%";
    if (title) part.title = title;
  }
  row.append(make("span", "sd-part-label", label), track, make("span", "sd-part-value", text));
  return row;
};

const drawFigures = (find, trace, figures) => {
  const { tokens, accepted } = trace.summary, { sources, positions, seconds: spent } = figures;
  find(".sd-who").hidden = !sources.length;
  const rows = sources.map((one) => [
    SOURCES[one.name] ?? one.name, one.examined, shareOf(one.accepted, one.examined),
    shareOf(one.accepted, tokens), one.accepted,
  ]);
  rows.push(["target model itself", "-", "-", shareOf(tokens - accepted, tokens), "-"]);
  const head = ["Source", "Examined", "Acceptance rate", "Share of the answer", "Tokens saved"];
  find(".sd-who-table").replaceChildren(table(head, rows));
  find(".sd-positions").replaceChildren(...positions.length ? [
    make("h3", "", "Acceptance by draft position"),
    ...positions.map(([kept, seen], at) => bar(
      "token " + (at + 1), [["sd-part-drafting", kept]], seen, `${kept} of ${seen}`)),
  ] : []);
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  const longest = Math.max(...Object.values(spent).map(sum));
  const key = make("ul", "sd-legend");
  key.append(...Object.entries(SPENT).map(([name, words]) => {
    const item = make("li");
    item.append(make("span", "sd-swatch sd-part-" + name), words);
    return item;
  }));
  find(".sd-spent-bars").replaceChildren(...Object.entries(spent).map(([run, parts]) => {
    const pieces = Object.entries(parts).map(
      ([name, length]) => ["sd-part-" + name, length, `${SPENT[name]}: ${seconds(length)}`]);
    const words = Object.entries(parts).filter(([, length]) => length >= .005)
      .map(([name, length]) => `${name} ${seconds(length)}`).join(", ");
    const row = bar(run, pieces, longest, seconds(sum(parts)));
    row.append(make("span", "sd-hint", words));
    return row;
  }), key);
};
