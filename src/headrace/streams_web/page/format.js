// Formatting of numbers and durations.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en");
}

/** Number of rows of stores, marked with ~ if it is estimated. */
export function rows(stores) {
  if (!stores.length) return "–";
  const all = count(stores.reduce((sum, store) => sum + store.keys, 0));
  return stores.every((store) => store.is_counted) ? all : `~${all}`;
}

/** A time in UTC to the second; a dash if it is unknown. */
export function moment(milliseconds) {
  if (milliseconds === undefined || milliseconds < 0) return "–";
  const time = new Date(milliseconds);
  return Number.isNaN(time.getTime()) ? `${milliseconds} ms` : time.toISOString().slice(0, 19).replace("T", " ");
}

/** The slowest and the fastest partition in event time. */
export function skew(found) {
  if (!found) return "–";
  const slowest = found.is_idle ? `${found.slowest} (idle)` : found.slowest;
  if (found.slowest_ms < 0) return `${slowest} not read yet`;
  return `${slowest} is ${span(found.fastest_ms - found.slowest_ms)} behind ${found.fastest}`;
}

export function rate(number) {
  if (number === null) return "–";
  if (number >= 10_000) return `${(number / 1000).toFixed(0)}k/s`;
  return number >= 100 || number === 0 ? `${number.toFixed(0)}/s` : `${number.toFixed(1)}/s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${number < 10 && unit ? number.toFixed(1) : number.toFixed(0)} ${UNITS[unit]}`;
}

export function span(milliseconds) {
  if (milliseconds === null) return "–";
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${milliseconds.toFixed(0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
