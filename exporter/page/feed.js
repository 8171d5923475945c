// News from the exporter: snapshots by event stream, waveforms by request. Knows when the news is old; draws nothing.

const STALE_MS = 3000;

export class Feed {
  constructor(onSnapshot, onWaveform, onPulse) {
    this.onSnapshot = onSnapshot;
    this.onWaveform = onWaveform;
    this.onPulse = onPulse;
    this.lastNews = null;
    this.lastTime = null;
    this.connected = false;
    this.pending = new Set();
    this.seconds = 30;
  }

  start() {
    this.open();
    setInterval(() => this.onPulse(this.pulse()), 500);
  }

  open() {
    const source = new EventSource("/api/v1/stream");
    source.onopen = () => { this.connected = true; };
    source.onmessage = (event) => {
      this.connected = true;
      const snapshot = JSON.parse(event.data);
      // Connected anew to an exporter that stands still: the same snapshot is no news.
      if (snapshot.t_s === this.lastTime) return;
      this.lastTime = snapshot.t_s;
      this.lastNews = performance.now();
      this.onSnapshot(snapshot);
      this.onPulse(this.pulse());
      if (!document.hidden) for (const gpu of snapshot.gpus) if (!gpu.gone) this.fetchWaveform(gpu.id);
    };
    source.onerror = () => {
      this.connected = false;
      // The browser tries again by itself unless the answer was an error; then we do.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.open(), 3000);
    };
  }

  async fetchWaveform(gpu) {
    if (this.pending.has(gpu)) return;
    this.pending.add(gpu);
    try {
      const query = new URLSearchParams({ gpu, seconds: this.seconds });
      const answer = await fetch(`/api/v1/waveform?${query}`, { signal: AbortSignal.timeout(3000) });
      if (answer.ok) this.onWaveform(gpu, await answer.json());
    } catch {
      // The next second asks again; the age of the news is shown by the pulse.
    } finally {
      this.pending.delete(gpu);
    }
  }

  pulse() {
    if (this.lastNews === null) return { live: this.connected ? "waiting" : "connecting", seconds: 0 };
    const age = performance.now() - this.lastNews;
    if (age < STALE_MS) return { live: "live", seconds: 0 };
    return { live: this.connected ? "stale" : "lost", seconds: Math.floor(age / 1000) };
  }
}
