/* Fills "How it works" with examples from the run on the first tab. */
const showTab = (name) => {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  tabs.find((tab) => tab.textContent.trim() === name).click();
};

/* Does nothing before both the run and the tab are there. */
const drawExamples = ({ trace, verdict, curve, motion }) => {
  const watch = document.querySelector(".sd-watch");
  if (!trace || !watch) return;
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
  tell("verdict", at < 0 ? "Nothing was drafted." : roundWords(motion.race.spec.events[at]));
  tell("identity", verdict.identity ?? "");
  tell("pays", paid ? `A round yielded ${summary.tokens_per_round.toFixed(2)} tokens and took as long as `
    + `${(summary.tokens_per_round / paid).toFixed(2)} tokens of autoregressive decoding: ${factor(paid)}.`
    : "");
  watch.hidden = at < 0;
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
