// News from the exporter: snapshots, readings and pictures by one event stream. Knows when the news is old; draws nothing.

const STALE_MS = 3000;
const AGAIN_MS = 3000;

/**
 * @typedef {object} Listener
 * @property {(snapshot: Snapshot) => void} snapshot
 * @property {(live: Live) => void} live
 * @property {(picture: Picture) => void} picture
 * @property {(pulse: Pulse) => void} pulse
 */

export class Feed {
  /** @param {Listener} listener */
  constructor(listener) {
    this.listener = listener;
    /** @type {EventSource | null} */
    this.source = null;
    /** @type {string | null} */
    this.gpu = null;
    /** @type {number | null} */
    this.lastNews = null;
    this.lastTime = -1;
    this.connected = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.retry = undefined;
    setInterval(() => listener.pulse(this.pulse()), 500);
    // A page that nobody sees asks for nothing.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  /** Look at a GPU from now on. @param {string | null} gpu */
  choose(gpu) {
    if (gpu === this.gpu && this.source) return;
    this.gpu = gpu;
    this.open();
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  open() {
    this.close();
    const source = new EventSource(this.gpu ? `/api/v1/stream?${new URLSearchParams({ gpu: this.gpu })}` : "/api/v1/stream");
    this.source = source;
    source.onopen = () => { this.connected = true; };
    source.onmessage = (event) => this.news(JSON.parse(event.data));
    source.addEventListener("live", (event) => this.listener.live(JSON.parse(event.data)));
    source.addEventListener("picture", (event) => this.listener.picture(JSON.parse(event.data)));
    source.onerror = () => {
      if (source !== this.source) return;
      this.connected = false;
      // The browser tries again by itself unless the answer was an error, such as a GPU that has gone: then we do, without it.
      if (source.readyState === EventSource.CLOSED) this.retry = setTimeout(() => { this.gpu = null; this.open(); }, AGAIN_MS);
    };
  }

  /** @param {Snapshot} snapshot */
  news(snapshot) {
    this.connected = true;
    // Connected anew to an exporter that stands still: the same snapshot is no news.
    if (snapshot.t_s === this.lastTime) return;
    this.lastTime = snapshot.t_s;
    this.lastNews = performance.now();
    this.listener.snapshot(snapshot);
    this.listener.pulse(this.pulse());
  }

  /** @returns {Pulse} */
  pulse() {
    if (this.lastNews === null) return { live: this.connected ? "waiting" : "connecting", seconds: 0 };
    const age = performance.now() - this.lastNews;
    if (age < STALE_MS) return { live: "live", seconds: 0 };
    return { live: this.connected ? "stale" : "lost", seconds: Math.floor(age / 1000) };
  }
}

/**
 * An answer of the API, or null where there is none; the next second asks again.
 * @param {string} path @param {Record<string, string | number>} query
 * @returns {Promise<any>}
 */
export async function ask(path, query) {
  try {
    const asked = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
    const answer = await fetch(`/api/v1/${path}?${asked}`, { signal: AbortSignal.timeout(5000) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}
