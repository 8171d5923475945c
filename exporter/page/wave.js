// The readings of the chosen GPU as they come: power, traffic by path, phases. Knows which stretch it missed; draws nothing.

/** @type {Path[]} */
export const PATHS = ["rdma", "nvlink", "tcp"];
const KEPT_S = 330;
const GAP_S = 1.5;

export class Wave {
  /** @param {string} gpu */
  constructor(gpu) {
    this.gpu = gpu;
    /** @type {{ t: number[], watts: number[] }} */
    this.power = { t: [], watts: [] };
    this.step = 0.1;
    this.first = 0; // number of the first interval of traffic, on the grid of step
    /** @type {Partial<Record<Path, (number | null)[]>>} */
    this.paths = {};
    this.count = 0;
    /** @type {{ t: number[], letters: string }} */
    this.phases = { t: [], letters: "" };
    this.lag = 0;
  }

  /** The newest moment of which anything is known. */
  get end() {
    return Math.max(this.power.t.at(-1) ?? -Infinity, this.count ? (this.first + this.count) * this.step : -Infinity);
  }

  /**
   * Takes readings in; false where a stretch lies between them and what is here.
   * @param {Live} news
   */
  add(news) {
    const { t_s, watts } = news.power;
    const last = this.power.t.at(-1) ?? -Infinity;
    let whole = true;
    for (let i = 0; i < t_s.length; i += 1) {
      if (t_s[i] <= last) continue;
      this.power.t.push(t_s[i]);
      this.power.watts.push(watts[i]);
    }
    const { t0_s, step_s } = news.traffic;
    const names = PATHS.filter((path) => news.traffic[path]);
    const came = names.length ? (news.traffic[names[0]] ?? []).length : 0;
    if (came) {
      let from = Math.round(t0_s / step_s);
      if (step_s !== this.step || !this.count) {
        this.step = step_s;
        this.first = from;
        this.paths = {};
        this.count = 0;
      }
      const end = this.first + this.count;
      whole = from <= end;
      const skip = Math.max(0, end - from);
      for (const path of PATHS) {
        if (!news.traffic[path] && !this.paths[path]) continue;
        const rates = (this.paths[path] ??= Array(this.count).fill(null));
        for (let k = end; k < from; k += 1) rates.push(null);
        const fresh = news.traffic[path] ?? Array(came).fill(null);
        for (let k = skip; k < fresh.length; k += 1) rates.push(fresh[k]);
      }
      this.count = Math.max(this.count, from + came - this.first);
    }
    this.forget();
    return whole;
  }

  /**
   * What came to another wave after the end of this one.
   * @param {Wave} other
   */
  follow(other) {
    const from = lowerBound(other.power.t, (this.power.t.at(-1) ?? -Infinity) + 1e-6);
    const skip = Math.max(0, this.first + this.count - other.first);
    const fits = other.count > skip && other.step === this.step;
    /** @type {Traffic} */
    const traffic = { t0_s: (other.first + skip) * other.step, step_s: other.step };
    for (const path of PATHS) if (fits && other.paths[path]) traffic[path] = other.paths[path]?.slice(skip);
    this.add({ gpu: this.gpu, power: { t_s: other.power.t.slice(from), watts: other.power.watts.slice(from) }, traffic });
    const judged = lowerBound(other.phases.t, (this.phases.t.at(-1) ?? -Infinity) + 1e-6);
    this.phases.t.push(...other.phases.t.slice(judged));
    this.phases.letters += other.phases.letters.slice(judged);
  }

  /** @param {Picture} picture */
  judge(picture) {
    const { t_s, phases } = picture.readings;
    this.lag = picture.lag_s;
    if (!t_s.length) return;
    let keep = this.phases.t.length;
    while (keep && this.phases.t[keep - 1] >= t_s[0]) keep -= 1;
    this.phases.t.length = keep;
    this.phases.t.push(...t_s);
    this.phases.letters = this.phases.letters.slice(0, keep) + phases;
  }

  forget() {
    const oldest = this.end - KEPT_S;
    const stale = this.power.t.findIndex((t) => t > oldest);
    if (stale > 600) {
      this.power.t.splice(0, stale);
      this.power.watts.splice(0, stale);
    }
    const passed = Math.floor(oldest / this.step) - this.first;
    if (passed > 1500) {
      for (const path of PATHS) this.paths[path]?.splice(0, passed);
      this.first += passed;
      this.count -= passed;
    }
    const judged = this.phases.t.findIndex((t) => t > oldest);
    if (judged > 600) {
      this.phases.t.splice(0, judged);
      this.phases.letters = this.phases.letters.slice(judged);
    }
  }

  /** What is here now, for looking at while more comes. */
  copy() {
    const made = new Wave(this.gpu);
    made.power = { t: [...this.power.t], watts: [...this.power.watts] };
    made.step = this.step;
    made.first = this.first;
    made.count = this.count;
    for (const path of PATHS) if (this.paths[path]) made.paths[path] = [...(this.paths[path] ?? [])];
    made.phases = { t: [...this.phases.t], letters: this.phases.letters };
    made.lag = this.lag;
    return made;
  }

  /**
   * Power and traffic on one axis, as a plot takes them: undefined where a series has nothing at that time, null for a gap.
   * Power stands at the time that it speaks of, not at that of its reading.
   * @param {number} from @param {number} to
   * @returns {{ t: number[], power: (number | null | undefined)[], paths: Partial<Record<Path, (number | null | undefined)[]>> }}
   */
  between(from, to) {
    const { t: times, watts } = this.power;
    let i = lowerBound(times, from + this.lag);
    let k = Math.max(0, Math.ceil(from / this.step - 0.5) - this.first);
    const names = PATHS.filter((path) => this.paths[path]);
    /** @type {number[]} */ const t = [];
    /** @type {(number | null | undefined)[]} */ const power = [];
    /** @type {Partial<Record<Path, (number | null | undefined)[]>>} */ const paths = {};
    for (const name of names) paths[name] = [];
    const put = (/** @type {number} */ at, /** @type {number | null | undefined} */ value, /** @type {number} */ row) => {
      t.push(at);
      power.push(value);
      for (const name of names) paths[name]?.push(row < 0 ? undefined : this.paths[name]?.[row] ?? null);
    };
    for (;;) {
      const tp = i < times.length ? times[i] - this.lag : Infinity;
      const tt = k < this.count ? (this.first + k + 0.5) * this.step : Infinity;
      const next = Math.min(tp, tt);
      if (next > to || next === Infinity) break;
      if (tp <= tt) {
        if (i && times[i] - times[i - 1] > GAP_S && t.length) put(tp - 1e-4, null, -1);
        put(tp, watts[i], -1);
        i += 1;
      } else {
        put(tt, undefined, k);
        k += 1;
      }
    }
    return { t, power, paths };
  }

  /** The letter of the reading nearest to a moment; "" where none is near. @param {number} t */
  phaseAt(t) {
    const times = this.phases.t;
    const after = lowerBound(times, t);
    const near = after && (after === times.length || t - times[after - 1] < times[after] - t) ? after - 1 : after;
    return Math.abs((times[near] ?? Infinity) - t) < 0.5 ? this.phases.letters[near] : "";
  }
}

/** @param {number[]} sorted @param {number} value */
export function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
