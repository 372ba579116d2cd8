// Asks the server that the page is from, with the token that was given.

const TOKEN = "headrace-token";

export class Refused extends Error {}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** An answer, whatever its code is. */
export async function answerOf(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", ...options });
  if (answer.status === 401) throw new Refused(token ? "That token is not right." : "");
  return answer;
}

/** JSON whose numbers are written again as they came: a Long may have more digits than a number here. */
export function exactly(text) {
  return JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value,
  );
}

/** The JSON of an answer, as it is read; an error has what it was refused with. */
export async function ask(path, read = JSON.parse) {
  const answer = await answerOf(path);
  const found = read(await answer.text());
  if (!answer.ok) throw new Error((found.reasons ?? [found.error ?? `it answers ${answer.status}`]).join("; "));
  return found;
}

/** The events of a stream, until it ends or the signal stops it: [name, data]. */
export async function* eventsOf(path, signal) {
  const answer = await answerOf(path, { signal });
  if (!answer.ok) throw new Error((await answer.json()).error ?? `it answers ${answer.status}`);
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
