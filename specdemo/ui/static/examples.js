/* Fills "How it works" with examples from the run on the first tab. */
const CHIPS = 3;   // draft tokens of the diagram before the rejected one

const showTab = (name) => {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  tabs.find((tab) => tab.textContent.trim() === name).click();
};

/* One round as a diagram: the draft, the check of all its tokens at once, and the verdict. */
const drawRound = (figure, { drafted, emitted, verify_seconds: spent }) => {
  const wrong = drafted.findIndex((token) => !token.accepted), bonus = emitted?.kind === "bonus";
  const from = Math.max(0, (wrong < 0 ? drafted.length : wrong) - CHIPS);
  const shown = drafted.slice(from, from + CHIPS + 3);
  const word = (text) => visible(text.trim() || text);
  const chip = (look, text) => make("span", `sd-chip sd-${look}`, word(text));
  const label = (number, text) => make("p", "sd-label", make("b", "", number), text);
  const row = (first, ...others) => {
    first.classList.add("sd-start");
    return [first, ...others];
  };
  const arrows = () => row(...shown.map(() => make("span", "sd-arrow", "↓")));
  const verdicts = shown.map((token, at) => {
    if (token.accepted) return chip(kindOf(token), token.text);
    if (from + at > wrong) return chip("unseen", token.text);
    const correction = word(emitted?.text ?? "");
    return make("span", "sd-chip sd-correction", make("s", "", word(token.text)), " ", correction);
  });
  const target = make("span", "sd-target", `target model, one step, ${milliseconds(spent)}`);
  target.style.gridColumnEnd = `span ${shown.length}`;
  figure.style.setProperty("--sd-columns", shown.length + (bonus ? 1 : 0));
  figure.replaceChildren(
    label(1, "The draft guesses, one token after the other"),
    ...row(...shown.map((token) => chip("guess", token.text))), ...arrows(),
    label(2, "The target model checks all of them at once"), ...row(target), ...arrows(),
    ...(bonus ? [make("span", "sd-arrow", "↘")] : []),
    label(3, wrong < 0 ? "All are right, and the check gives one more"
      : "What it would have written stays; the rest goes"),
    ...row(...verdicts), ...(bonus ? [chip("bonus", emitted.text)] : []));
};

/* Does nothing before both the run and the tab are there. */
const drawExamples = ({ trace, verdict, curve, motion }) => {
  const figure = document.querySelector(".sd-diagram"), watch = document.querySelector(".sd-watch");
  if (!trace || !figure) return;
  const { rounds, summary, prompt_tokens: prompt, prefill_seconds: prefill, baseline } = trace;
  const tell = (name, text) => {
    for (const node of document.querySelectorAll(`[data-example="${name}"]`)) node.textContent = text;
  };
  const paid = curve?.measured ?? summary.speedup, dropped = summary.drafted - summary.accepted;
  const rejected = rounds.findIndex(({ emitted }) => emitted?.kind === "correction");
  const at = rejected >= 0 ? rejected : rounds.findIndex(({ drafted }) => drafted.length);
  const token = baseline && summary.baseline_decode_seconds / summary.baseline_decoded;
  tell("costs", (token ? `Autoregressive decoding took ${milliseconds(token)} a token. ` : "")
    + (curve?.sentence ?? ""));
  tell("cache", `The ${prompt} tokens of the prompt were read once, in ${milliseconds(prefill)}. `
    + `${counted(dropped, "draft token")} left it again, by lowering its length.`);
  tell("verdict", at < 0 ? "Nothing was drafted." : roundWords({ ...rounds[at],
    nodes: rounds[at].drafted.filter((one) => one.accepted).concat(rounds[at].emitted ?? []) }));
  tell("identity", verdict.identity ?? "");
  tell("pays", paid ? `A round yielded ${summary.tokens_per_round.toFixed(2)} tokens and took as long as `
    + `${(summary.tokens_per_round / paid).toFixed(2)} tokens of autoregressive decoding: ${factor(paid)}.`
    : "");
  figure.hidden = watch.hidden = at < 0;
  if (at < 0) return;
  drawRound(figure, rounds[at]);
  watch.onclick = () => {
    showTab("Race");
    motion.goTo(at);
    motion.race.player.scrollIntoView({ block: "center" });
  };
};

/* Called when the tab is there. The last example question is the one that does not pay. */
const openExamples = (race) => {
  document.querySelector(".sd-ask-it").onclick = () => {
    showTab("Race");
    document.querySelector("#sd-examples button:last-child").click();
    setTimeout(() => document.querySelector("#sd-run").click(), 300);   // Gradio takes a moment
  };
  drawExamples(race);
};
