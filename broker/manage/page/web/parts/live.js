// The stream of live numbers: one for the tab, with the topics that the screen follows. It ends while the tab is
// hidden, since a browser opens only a few connections to a host, and begins again when the tab is looked at.

const FALLBACK_MS = 5000; // between two ticks, and between two attempts, while there is no stream
const followers = new Map(); // topic -> set of listeners
const stateListeners = new Set();
let stream = null;
let streamed = "";
let paused = false;
let state = "waiting";
let timer = 0;
let last = null;
let started = false;

/** Call `listener` with each value of a topic until `signal` aborts; topic "overview" starts with the last value. */
export function follow(topic, listener, signal) {
  if (!followers.has(topic)) followers.set(topic, new Set());
  const listeners = followers.get(topic);
  listeners.add(listener);
  if (topic === "overview" && last !== null) listener(last);
  signal?.addEventListener("abort", () => {
    listeners.delete(listener);
    if (listeners.size === 0) followers.delete(topic);
    soon();
  });
  soon();
}

/** Call `listener` with each state: "live", "waiting", "lost" or "paused". */
export function onState(listener) {
  stateListeners.add(listener);
  listener(state);
}

/** Stop or continue the live numbers; return whether they are stopped now. */
export function togglePause() {
  paused = !paused;
  paused ? close("paused") : open();
  return paused;
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

let waiting = 0;
function soon() {
  if (!started || waiting) return;
  waiting = setTimeout(() => {
    waiting = 0;
    if (!paused && !document.hidden && topics() !== streamed) open();
  }, 60);
}

function topics() {
  return [...new Set(["overview", ...followers.keys()])].filter((topic) => topic !== "tick").sort().join(",");
}

function open() {
  close("waiting");
  streamed = topics();
  stream = new EventSource(`/api/live?topics=${encodeURIComponent(streamed)}`);
  stream.onopen = () => set("live");
  stream.onmessage = (event) => take(JSON.parse(event.data));
  stream.onerror = () => {
    set("lost");
    if (stream?.readyState === EventSource.CLOSED) {
      clearTimeout(timer);
      timer = setTimeout(retry, FALLBACK_MS);
    }
  };
}

function retry() {
  tell("tick", null); // a screen may still be able to ask
  if (!paused && !document.hidden) open();
}

function close(next) {
  clearTimeout(timer);
  stream?.close();
  stream = null;
  set(next);
}

function take({ topic, value }) {
  if (topic === "overview") last = value;
  tell(topic, value);
  if (topic === "overview") tell("tick", value);
}

function tell(topic, value) {
  for (const listener of [...(followers.get(topic) ?? [])]) listener(value);
}

function set(next) {
  state = next;
  for (const listener of stateListeners) listener(state);
}
