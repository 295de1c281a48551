// The stream of live numbers: one for the tab, with the topics that the screen follows. It ends while the tab is
// hidden, since a browser opens only a few connections to a host, and begins again when the tab is looked at.
// It is read by fetch and not by EventSource, which could not send the header that keeps the browser from asking for
// a password itself.

const AGAIN_MS = 3000; // between two attempts
const ENDED_MS = 300; // after a stream that worked has ended
const SILENT_MS = 20_000; // without a byte: the broker says something every 15 s at least
const SCREEN_MS = 4800; // between two ticks, at which a screen asks for its lists again
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
let heard = Date.now(); // when the broker last said something
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

/** Call `listener` whenever the broker goes or returns: with the time since which it is silent, or with 0. */
export function onGone(listener) {
  goneListeners.add(listener);
}

/** Stop the live numbers, or continue them. */
export function togglePause() {
  paused = !paused;
  paused ? close("paused") : open();
}

/** Begin to follow. */
export function start() {
  if (started) return;
  started = true;
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    document.hidden ? close("waiting") : open();
  });
  open();
}

/** Open the stream again if the topics changed, once the screens have settled. */
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
    if ([502, 504].includes(response.status)) setGone(heard); // of a proxy, which does not reach the broker
    else hear(mine);
    if (response.status === 401) window.dispatchEvent(new Event("slotmq-refused"));
    if (!response.ok) throw new Error(`status ${response.status}`);
    set("live");
    await read(response.body.pipeThrough(new TextDecoderStream()).getReader(), mine);
    throw new Error("the stream ended");
  } catch {
    if (mine !== stream) return; // another stream has replaced it
    timer = setTimeout(again, state === "live" ? ENDED_MS : AGAIN_MS);
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

/** Note that the broker has said something. */
function hear(mine) {
  heard = Date.now();
  setGone(0);
  watch(mine);
}

/** Give a stream up that stays silent, as that of a frozen machine or a cut network does. */
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

function again() {
  tick(null); // a screen may still be able to ask
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
