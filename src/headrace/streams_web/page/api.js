// Requests to the server of the page, with the token that the user has entered.

const TOKEN = "headrace-token";

export class Refused extends Error {}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** Return a response with any status code. */
export async function answerOf(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", ...options });
  if (answer.status === 401) throw new Refused(token ? "The token is wrong." : "");
  return answer;
}

/** Parse JSON and keep the digits of large integers, which a number of JavaScript cannot hold. */
export function exactly(text) {
  return JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value,
  );
}

/** Return the JSON of a response; throw an error with the message of a failed request. */
export async function ask(path, read = JSON.parse) {
  const answer = await answerOf(path);
  const found = read(await answer.text());
  if (!answer.ok) throw new Error((found.reasons ?? [found.error ?? `the server answers with status ${answer.status}`]).join("; "));
  return found;
}

/** Yield the events of a stream as [name, data], until it ends or the signal aborts it. */
export async function* eventsOf(path, signal) {
  const answer = await answerOf(path, { signal });
  if (!answer.ok) throw new Error((await answer.json()).error ?? `the server answers with status ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
      if (fields.has("event")) yield [fields.get("event"), exactly(fields.get("data"))];
    }
  }
}
