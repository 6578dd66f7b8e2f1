/* Saves a run as a file, or as a link whose fragment is the run's JSON, deflated, in base64url. No
   server keeps it. */
const LONGEST_LINK = 60000, LARGEST_RUN = 2.5e6;   // characters
const DAMAGED = "The run in this link cannot be read: the link is damaged or was cut off.";

const through = (bytes, stream) =>
  new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer();

const pack = async ({ summary, ...trace }) => {
  const short = (_, value) => (Number.isInteger(value) || typeof value !== "number" ? value
    : Number(value.toFixed(5)));
  const bytes = await through(JSON.stringify(trace, short), new CompressionStream("deflate-raw"));
  const binary = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
};

const unpack = async (text) => {
  if (text.length > LONGEST_LINK) throw new RangeError("no link of ours");   // may inflate hugely
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (byte) => byte.charCodeAt(0));
  const whole = await through(bytes, new DecompressionStream("deflate-raw"));
  return new TextDecoder("utf-8", { fatal: true }).decode(whole);
};

const copyLink = async (race) => {
  const box = race.find(".sd-link-text"), link = await window.specdemo.share();
  const long = link.length > LONGEST_LINK;
  box.value = long ? window.specdemo.link() : link;
  box.hidden = false;
  box.select();
  const copied = await navigator.clipboard?.writeText(box.value).then(() => true, () => false);
  race.say("kept", (copied ? "Copied." : "Copy it from the box.") + (long
    ? " It holds the question only, since the run is too long for a link. Download the run instead."
    : ""));
};

const keepFile = ({ trace }) => {
  const file = new Blob([JSON.stringify(trace, null, 1)], { type: "application/json" });
  const link = make("a");
  link.href = URL.createObjectURL(file);
  link.download = "specdemo-run.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
