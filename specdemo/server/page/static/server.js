/* What the scripts ask of the server: streams of messages, and saved runs. */
export const page = location.origin + location.pathname;
const random = crypto.getRandomValues(new Uint8Array(12));
const visitor = Array.from(random, (one) => one.toString(36)).join("");
const LARGEST_RUN = 2.5e6;   // characters
const LOST = "The server does not answer; reload the page.";

export const failure = (note) => ({ phase: "error", note });

const post = (path, body) => fetch(page + path, { method: "POST",
  headers: { "Content-Type": "application/json" }, body: JSON.stringify({ visitor, ...body }) });
const refusal = ({ error }) => failure(error?.message ?? LOST);

/* Gives `receive` each message of a run of these input values, by name, as it comes. */
export const stream = async (path, values, receive) => {
  try {
    const response = await post(path, { values });
    if (!response.ok) return receive(refusal(await response.json()));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n\n");
      rest = lines.pop();
      for (const line of lines) receive(JSON.parse(line.slice("data: ".length)));
    }
  } catch {
    receive(failure(LOST));
  }
};

export const stop = () => post("stop", {}).catch(() => {});

/* The message of a run that was measured before, from its JSON. */
export const openRun = async (run) => {
  if (run.length > LARGEST_RUN) return failure("The run is larger than 2.5 MB.");
  try {
    const message = await (await post("open", { run })).json();
    return message.phase ? message : refusal(message);
  } catch {
    return failure(LOST);
  }
};

export const asset = async (name) => (await fetch(new URL(name, import.meta.url))).json();
