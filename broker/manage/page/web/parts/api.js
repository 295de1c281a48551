// Requests to the broker's HTTP API. A cookie identifies the user; requests have the header that other sites cannot send.

/** A failed request: its status, and the broker's reason as the message. */
export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** Return the path "/api/..." for words, which are quoted, and query values, of which empty ones are left out. */
export function path(words, query) {
  const text = words.map((word) => encodeURIComponent(word)).join("/");
  const given = Object.entries(query ?? {}).filter(([, set]) => set !== undefined && set !== null && set !== "");
  return `/api/${text}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** Return the answer of a GET. Raises: ApiError; AbortError once `signal` aborts. */
export function get(words, query, signal) {
  return send("GET", words, { query, signal });
}

/** Send a change and return the answer, or null if it has no body. A string as body is already JSON. */
export function change(method, words, body, { query, headers, signal } = {}) {
  return send(method, words, { body, query, headers, signal });
}

/** Run a command of the command line, and return its result; call `report` with progress. Raises: ApiError, AbortError. */
export async function command(verb, fields, report, signal) {
  const body = `${JSON.stringify({ verb, ...fields })}\n`;
  const headers = { "X-Requested-With": "slotmq" };
  const response = await fetch("/v1/control", { method: "POST", headers, body, signal, credentials: "same-origin", cache: "no-store" });
  if (!response.ok) throw await failure(response, ["control"]);
  const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", piece = {}; !piece.done; ) {
    piece = await pieces.read();
    const lines = (text + (piece.value ?? "")).split("\n");
    text = lines.pop();
    for (const line of lines.map(JSON.parse)) {
      if (line.progress) report(line.progress);
      else if (line.ok) return line.result;
      else throw new ApiError(400, line.error);
    }
  }
  throw new ApiError(0, "the broker ended the command");
}

async function send(method, words, { body, query, headers, signal }) {
  const sent = { "X-Requested-With": "slotmq", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path(words, query), {
      method,
      headers: sent,
      body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
      signal,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the broker does not answer");
  }
  if (!response.ok) throw await failure(response, words);
  if (response.status === 204) return null;
  const text = await response.text();
  return text === "" ? null : JSON.parse(text);
}

async function failure(response, words) {
  let answer = {};
  try {
    answer = JSON.parse(await response.text());
  } catch {
    // not JSON: the status has to suffice
  }
  // after a 401 the frame checks whether the session has ended or the user lacks a permission
  if (response.status === 401 && !["session", "whoami"].includes(words[0])) window.dispatchEvent(new Event("slotmq-refused"));
  const reason = answer.reason ?? answer.error ?? response.statusText ?? "";
  return new ApiError(response.status, String(reason) || `status ${response.status}`);
}

/** Return whether an error only means that the request was aborted, because the screen was left. */
export function isAbort(error) {
  return error?.name === "AbortError";
}
