/* Has to run before Gradio's modules, which keep the function that they find.

   Gradio's loading screen leaves a loop behind that asks for sixty frames a second for ever, and with each the browser looks
   the whole page over. While an answer is being made the processor is the models': whoever asks for a frame then waits. */
(() => {
  const BETWEEN = 200;   // ms
  const ask = window.requestAnimationFrame.bind(window), cancel = window.cancelAnimationFrame.bind(window), waiting = new Map();
  let asked = 0;
  window.requestAnimationFrame = (draw) => {
    if (!window.specdemo || !window.specdemo.stage || !window.specdemo.stage.live) return ask(draw);
    const id = --asked;
    waiting.set(id, setTimeout(() => { waiting.delete(id); ask(draw); }, BETWEEN));
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    if (id > 0) cancel(id);
    else { clearTimeout(waiting.get(id)); waiting.delete(id); }
  };
})();
