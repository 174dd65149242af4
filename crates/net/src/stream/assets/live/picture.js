// Decodes pictures and draws each when it is due.

// Pictures that wait for their time, and those in the decoder, which may hold some to reorder them.
const READY = 4;
const INSIDE = 24;
// Coded pictures and bytes that wait for the decoder.
const MOST_PICTURES = 600;
const MOST_BYTES = 32 << 20;
// A coded picture that is late by this is left out if a key frame follows, milliseconds.
const LATE = 200;
// Pictures without a key frame, milliseconds, until the page says so.
const WITHOUT_KEY = 15_000;
// The last delays, of which the page shows the median.
const DELAYS = 50;

export class Picture {
  constructor(canvas, clock) {
    this.canvas = canvas;
    this.clock = clock;
    this.context = canvas.getContext("2d");
    this.shown = 0;
    this.dropped = 0;
    this.delays = [];
    this.codec = null;
    this.decoder = null;
    // The reason why pictures cannot be shown.
    this.problem = null;
    this.queue = [];
    this.bytes = 0;
    this.inside = 0;
    this.ready = [];
    this.arrivals = new Map();
    this.needsKey = true;
    this.keyAt = null;
  }

  // Waits for a key frame, because pictures are missing.
  gap() {
    this.needsKey = true;
    this.keyAt = null;
  }

  // Other streams begin. The last picture stays until the next one, if there is one.
  restart(goesOn) {
    this.problem = null;
    this.gap();
    if (!goesOn) this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // Takes a coded picture: `codec`, `isKey`, `bytes`, `shown` on the line of time, `arrived`.
  push(coded, now) {
    this.keyAt = coded.isKey || this.keyAt === null ? now : this.keyAt;
    if (now - this.keyAt > WITHOUT_KEY) {
      this.problem = "The picture has no key frames (IDR) that this browser can begin with.";
    }
    // A picture before the first parameter set cannot be decoded.
    if (coded.codec === null) return this.drop(1);
    this.queue.push(coded);
    this.bytes += coded.bytes.length;
    if (this.queue.length > MOST_PICTURES || this.bytes > MOST_BYTES) this.skip(this.lastKey() ?? this.queue.length);
    this.feed(now);
  }

  // The last key frame of the queue, if it is not the first picture.
  lastKey() {
    const at = this.queue.findLastIndex((coded) => coded.isKey);
    return at > 0 ? at : null;
  }

  drop(count) {
    this.dropped += count;
  }

  // Leaves out the first pictures of the queue.
  skip(count) {
    for (const coded of this.queue.splice(0, count)) this.bytes -= coded.bytes.length;
    this.drop(count);
    this.needsKey = true;
  }

  feed(now) {
    while (this.queue.length > 0 && this.ready.length < READY && this.inside < INSIDE && !this.isAsking) {
      const isLate = this.clock.due(this.queue[0].shown) < now - LATE;
      const key = isLate ? this.lastKey() : null;
      if (key !== null) this.skip(key);
      const coded = this.queue[0];
      if (this.needsKey && !coded.isKey) {
        this.skip(1);
        continue;
      }
      if (coded.isKey && (coded.codec !== this.codec || !this.decoder)) {
        this.configure(coded.codec);
        return;
      }
      this.queue.shift();
      this.bytes -= coded.bytes.length;
      if (this.decoder) this.decode(coded);
      else this.drop(1);
    }
  }

  decode(coded) {
    const timestamp = Math.round(coded.shown * 1000);
    this.needsKey = false;
    this.arrivals.set(timestamp, coded.arrived);
    this.inside += 1;
    try {
      this.decoder.decode(new EncodedVideoChunk({ type: coded.isKey ? "key" : "delta", timestamp, data: coded.bytes }));
    } catch (error) {
      this.fail(error);
    }
  }

  // Asks the browser whether it decodes a codec, and makes a decoder.
  async configure(codec) {
    this.isAsking = true;
    const config = { codec, optimizeForLatency: true };
    const answer = await VideoDecoder.isConfigSupported(config).catch(() => ({ supported: false }));
    this.isAsking = false;
    this.close();
    this.codec = codec;
    if (!answer.supported) {
      this.problem = `This browser does not decode the picture (${codec}).`;
      this.skip(this.queue.length);
      return;
    }
    const decoder = new VideoDecoder({
      output: (frame) => this.decoded(frame, decoder),
      error: (error) => decoder === this.decoder && this.fail(error),
    });
    decoder.configure(config);
    this.decoder = decoder;
    this.feed(performance.now());
  }

  close() {
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
    this.inside = 0;
    this.arrivals.clear();
    this.needsKey = true;
  }

  fail(error) {
    this.problem = `The browser's decoder gave up: ${error.message}`;
    this.drop(this.inside);
    this.close();
  }

  decoded(frame, decoder) {
    if (decoder !== this.decoder) return frame.close();
    this.inside = Math.max(0, this.inside - 1);
    const arrived = this.arrivals.get(frame.timestamp);
    this.arrivals.delete(frame.timestamp);
    this.problem = null;
    this.ready.push({ frame, arrived, time: frame.timestamp / 1000 });
    this.tick(performance.now());
  }

  // Draws the newest picture that is due.
  tick(now) {
    while (this.ready.length > 1 && this.clock.due(this.ready[1].time) <= now) {
      this.ready.shift().frame.close();
      this.drop(1);
    }
    if (this.ready.length > 0 && this.clock.due(this.ready[0].time) <= now) this.draw(this.ready.shift(), now);
    this.feed(now);
  }

  draw({ frame, arrived }, now) {
    const { displayWidth: width, displayHeight: height } = frame;
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.context.drawImage(frame, 0, 0, width, height);
    frame.close();
    this.shown += 1;
    if (arrived !== undefined) this.delays = [...this.delays, now - arrived].slice(-DELAYS);
  }
}
