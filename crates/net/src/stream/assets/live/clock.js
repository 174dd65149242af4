// The line of time of a stream, and when what arrives is due. All times are milliseconds.

const TICKS = 90;
const WRAP = 2 ** 33;
// A step of time stamps by more than this backwards or forwards is a jump, as in the client's HLS segments.
const BACKWARDS = 1000;
const FORWARDS = 10_000;
// So is a key frame that is to be shown by this much before earlier pictures.
const BEFORE = 250;
// If the last picture is older than this, the sound leads.
const ALONE = 5000;

// The buffer: at least, at most, and beyond the slowest frame of the last seconds.
const LEAST = 300;
const MOST = 1500;
const MARGIN = 80;
// Arrivals are remembered in parts of a second, for ten seconds.
const PART = 1000;
const PARTS = 10;
// The buffer shrinks and grows by 1 %, which sound hides, and shrinks at once by more than this.
const SLEW = 0.01;
const TOO_LONG = 500;
// After this time without a frame in time, the stream is late, not the frames.
const LATE = 1000;
// A new subscription gets older frames at once. That is over when frames stop to gain on the clock by this, three times.
const GAIN = 5;
const CALM = 3;

// Maps time stamps of 33 bits to a line that goes on over wraps, jumps and restarts.
export class Timeline {
  constructor(clock) {
    this.clock = clock;
    // The last time stamp of the leader, and how far the line is ahead of time stamps.
    this.last = null;
    this.shift = 0;
    this.latest = -Infinity;
    this.ledAt = -Infinity;
    this.jumps = 0;
  }

  // A time stamp near the last one, without wraps.
  near(stamp) {
    const time = stamp / TICKS;
    if (this.last === null) return time;
    const wrap = WRAP / TICKS;
    return time + wrap * Math.round((this.last - time) / wrap);
  }

  // When a picture is decoded and shown, on the line. Null without time stamps.
  picture(unit, isKey, now) {
    if (unit.shown === null) return null;
    // The sound that led may be ahead of the picture.
    if (this.isLedBySound(now)) this.latest = -Infinity;
    this.ledAt = now;
    return this.lead(unit.decoded, unit.shown, isKey, now);
  }

  // When sound is heard, on the line. Null if it is far from the picture: it jumped before the picture, and waits.
  sound(stamp, now) {
    if (this.isLedBySound(now)) return this.lead(stamp, stamp, true, now).shown;
    const time = this.near(stamp);
    return Math.abs(time - this.last) > FORWARDS ? null : time + this.shift;
  }

  // Whether the picture is missing, so that sound cannot follow it.
  isLedBySound(now) {
    return now - this.ledAt > ALONE;
  }

  lead(decodedStamp, shownStamp, isKey, now) {
    const decoded = this.near(decodedStamp);
    const ahead = this.near(shownStamp) - decoded;
    const step = this.last === null ? Infinity : decoded - this.last;
    const isBefore = isKey && decoded + ahead + this.shift < this.latest - BEFORE;
    if (step < -BACKWARDS || step > FORWARDS || isBefore) {
      // The new part arrives as fast as the old one, and is shown behind it.
      const wanted = Math.max(now - this.clock.fastest(), this.latest + 1);
      this.shift = (Number.isFinite(wanted) ? wanted : 0) - decoded;
      this.jumps += 1;
      this.latest = -Infinity;
    }
    this.last = decoded;
    const shown = decoded + ahead + this.shift;
    this.latest = Math.max(this.latest, shown);
    return { decoded: decoded + this.shift, shown };
  }
}

// Says when a time of the line is due, from the delays of arrivals.
export class Clock {
  constructor() {
    this.offset = 0;
    this.begin();
  }

  // Begins to measure again: the next frames may have waited somewhere.
  begin() {
    this.parts = [];
    this.isSettling = true;
    this.least = Infinity;
    this.calm = 0;
    this.lateSince = null;
    this.adjustedAt = null;
  }

  // When a time of the line is due.
  due(time) {
    return time + this.offset;
  }

  // The least delay of arrivals: what the clock shows minus the time of the line.
  fastest() {
    return Math.min(this.least, ...this.parts.map((part) => part.least));
  }

  // Milliseconds from the fastest arrival until what arrives is due.
  buffer() {
    return this.offset - this.fastest();
  }

  // A frame of the leader arrived, or of the one that follows it.
  arrived(time, isLeader, now) {
    const delay = now - time;
    if (this.isSettling) {
      if (isLeader) this.settle(delay);
      return;
    }
    this.remember(delay, isLeader, now);
    this.adjust(now);
    if (!isLeader) return;
    if (delay <= this.offset) this.lateSince = null;
    else this.lateSince ??= now;
    if (this.lateSince !== null && now - this.lateSince > LATE) this.begin();
  }

  settle(delay) {
    this.calm = delay < this.least - GAIN ? 0 : this.calm + 1;
    this.least = Math.min(this.least, delay);
    this.offset = this.least + LEAST;
    this.isSettling = this.calm < CALM;
  }

  remember(delay, isLeader, now) {
    let part = this.parts.at(-1);
    if (!part || now - part.began > PART) {
      part = { began: now, least: Infinity, most: -Infinity };
      this.parts.push(part);
      // The first part takes over from settling.
      if (this.parts.length > 1) this.least = Infinity;
      if (this.parts.length > PARTS) this.parts.shift();
    }
    if (isLeader) part.least = Math.min(part.least, delay);
    part.most = Math.max(part.most, delay);
  }

  adjust(now) {
    const least = this.fastest();
    const most = Math.max(...this.parts.map((part) => part.most));
    const wanted = Math.max(least + LEAST, Math.min(most + MARGIN, least + MOST));
    const passed = now - (this.adjustedAt ?? now);
    this.adjustedAt = now;
    const isLate = most > this.offset && wanted > this.offset;
    const difference = wanted - this.offset;
    if (!Number.isFinite(difference)) return;
    if (isLate || difference < -TOO_LONG) this.offset = wanted;
    else this.offset += Math.sign(difference) * Math.min(Math.abs(difference), passed * SLEW);
  }
}
