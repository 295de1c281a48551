// The stream of live numbers: one per tab, with the topics that the screen follows. It is closed while the tab is hidden,
// because a browser opens only a few connections to a host.
// It uses fetch and not EventSource, which cannot send the header that prevents the browser's own password dialog.

const RETRY_MS = 3000; // between two attempts
const ENDED_MS = 300; // before the next attempt after a stream that worked
const SILENT_MS = 20_000; // without a byte, after which the broker is silent: it sends one at least every 15 s
const SCREEN_MS = 4800; // between two ticks, at which screens reload their lists
const followers = new Map(); // topic -> set of listeners
const stateListeners = new Set();
const goneListeners = new Set();
let stream = null; // the AbortController of the request
let streamed = "";
let paused = false;
let state = "waiting";
let timer = 0;
let settling = 0;
let last = null;
let ticked = 0;
let started = false;
let heard = Date.now(); // when the broker last sent something
let silent = 0;
let goneSince = 0;

/** Call `listener` with each value of a topic until `signal` aborts; topic "overview" starts with the last value. */
export function follow(topic, listener, signal) {
  if (!followers.has(topic)) followers.set(topic, new Set());
  followers.get(topic).add(listener);
  if (topic === "overview" && last !== null) listener(last);
  signal?.addEventListener("abort", () => {
    const listeners = followers.get(topic);
    listeners?.delete(listener);
    if (listeners?.size === 0) followers.delete(topic);
    settle();
  });
  settle();
}

/** Call `listener` with each state: "live", "waiting", "lost" or "paused". */
export function onState(listener) {
  stateListeners.add(listener);
  listener(state);
}

/** Call `listener` when the broker becomes silent, with the time since which it is, and with 0 when it answers again. */
export function onGone(listener) {
  goneListeners.add(listener);
}

/** Pause or resume the live numbers. */
export function togglePause() {
  paused = !paused;
  paused ? close("paused") : open();
}

/** Open the stream. */
export function start() {
  if (started) return;
  started = true;
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    document.hidden ? close("waiting") : open();
  });
  open();
}

/** Reopen the stream if the topics have changed, after a moment in which screens may change them again. */
function settle() {
  if (!started || settling) return;
  settling = setTimeout(() => {
    settling = 0;
    if (!paused && !document.hidden && topics() !== streamed) open();
  }, 60);
}

function topics() {
  return [...new Set(["overview", ...followers.keys()])].filter((topic) => topic !== "tick").sort().join(",");
}

async function open() {
  close("waiting");
  const mine = (stream = new AbortController());
  streamed = topics();
  watch(mine);
  try {
    const response = await fetch(`/api/live?topics=${encodeURIComponent(streamed)}`, {
      headers: { "X-Requested-With": "slotmq" },
      signal: mine.signal,
      cache: "no-store",
    }).catch((error) => {
      if (mine === stream) setGone(heard);
      throw error;
    });
    if ([502, 504].includes(response.status)) setGone(heard); // from a proxy that cannot reach the broker
    else hear(mine);
    if (response.status === 401) window.dispatchEvent(new Event("slotmq-refused"));
    if (!response.ok) throw new Error(`status ${response.status}`);
    set("live");
    await read(response.body.pipeThrough(new TextDecoderStream()).getReader(), mine);
    throw new Error("the stream ended");
  } catch {
    if (mine !== stream) return; // another stream has replaced it
    timer = setTimeout(retry, state === "live" ? ENDED_MS : RETRY_MS);
    set("lost");
  }
}

async function read(reader, mine) {
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    hear(mine);
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data:")) take(JSON.parse(event.slice(5)));
  }
}

/** Record that the broker has sent something. */
function hear(mine) {
  heard = Date.now();
  setGone(0);
  watch(mine);
}

/** Abort a stream that stays silent, as of a frozen machine or a broken network. */
function watch(mine) {
  clearTimeout(silent);
  silent = setTimeout(() => {
    if (mine !== stream) return;
    setGone(heard);
    mine.abort();
  }, SILENT_MS);
}

function setGone(since) {
  if (goneSince === since) return;
  goneSince = since;
  for (const listener of goneListeners) listener(since);
}

function retry() {
  tick(null); // other requests may still succeed
  if (!paused && !document.hidden) open();
}

function close(next) {
  clearTimeout(timer);
  clearTimeout(silent);
  stream?.abort();
  stream = null;
  streamed = "";
  set(next);
}

function take({ topic, value }) {
  if (topic === "overview") last = value;
  tell(topic, value);
  if (topic === "overview" && Date.now() - ticked >= SCREEN_MS) tick(value);
}

function tick(value) {
  ticked = Date.now();
  tell("tick", value);
}

function tell(topic, value) {
  for (const listener of [...(followers.get(topic) ?? [])]) listener(value);
}

function set(next) {
  state = next;
  for (const listener of stateListeners) listener(state);
}
