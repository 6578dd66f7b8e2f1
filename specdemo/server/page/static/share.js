/* The page's links: a link holds the question and settings, and the long one the whole run
   in its fragment: JSON, deflated, in base64url. No server keeps it. */
import { say } from "./dom.js";
import { page } from "./server.js";

const LONGEST_LINK = 60000;   // characters
export const DAMAGED = "The run in this link cannot be read: the link is damaged or was cut off.";
const CURVES = ["times", "tokens", "baseline_times"];   // of other races: left out of links

const through = (bytes, stream) =>
  new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer();

const pack = async ({ summary, verdict, repeats, ...trace }) => {
  const short = (_, value) => (Number.isInteger(value) || typeof value !== "number" ? value
    : Number(value.toFixed(5)));
  const others = repeats.map((one) => Object.fromEntries(
    Object.entries(one).filter(([name]) => !CURVES.includes(name))));
  const text = JSON.stringify({ ...trace, repeats: others }, short);
  const bytes = await through(text, new CompressionStream("deflate-raw"));
  const binary = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
};

export const unpack = async (text) => {
  if (text.length > LONGEST_LINK) throw new RangeError("no link of ours");   // may inflate hugely
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (byte) => byte.charCodeAt(0));
  const inflated = await through(bytes, new DecompressionStream("deflate-raw"));
  return new TextDecoder("utf-8", { fatal: true }).decode(inflated);
};

/* A link with these values by name. */
export const linkOf = (values) => {
  const query = String(new URLSearchParams(values));
  return page + (query ? "?" + query : "");
};

/* Shows a link to the run, or to the `question` only, and copies it. */
export const copyLink = async (race, query, speed, withRun) => {
  const box = race.find(".sd-link-text"), { trace } = race;
  const same = trace.instruction === Object.fromEntries(query).question;
  const short = linkOf([...(withRun && !same ? [] : query), ...speed]);
  const link = withRun ? `${short}#run=${await pack(trace)}` : short;
  const long = link.length > LONGEST_LINK;
  box.value = long ? short : link;
  box.hidden = false;
  box.select();
  const copied = await navigator.clipboard?.writeText(box.value).then(() => true, () => false);
  say(race.find(".sd-kept"), (copied ? "Copied." : "Copy it from the box.") + (long
    ? " It holds the question only, since the run is too long for a link. Download the run instead."
    : ""));
};
