// Requests to the server this page came from. The key lives in this tab's session storage only.

const KEY = "radixlm-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const storedKey = () => sessionStorage.getItem(KEY) ?? "";

export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (storedKey()) headers.Authorization = `Bearer ${storedKey()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, messageOf(await response.text(), response.status));
  return response;
}

function messageOf(body, status) {
  try {
    const parsed = JSON.parse(body);
    const error = parsed.error ?? parsed;
    return typeof error === "string" ? error : (error.message ?? `status ${status}`);
  } catch {
    return body || `status ${status}`;
  }
}

export const getJson = async (path) => (await call(path)).json();

export const postJson = (path, body, signal) =>
  call(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

// The objects of a stream of server-sent events, until [DONE].
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}
