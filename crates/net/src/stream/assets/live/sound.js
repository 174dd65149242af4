// Decodes sound and plays each piece when it is due, together with the picture.

// Decoded sound that waits, milliseconds; what the browser's audio gets ahead of time, milliseconds.
const MOST = 3000;
const AHEAD = 200;
// Pieces follow each other without a gap while they are at most this far from their time, seconds.
const NEAR = 0.06;
// How fast that difference is made up for, per second.
const GAIN = 0.3;
// Upper bound of the latency that the browser reports, seconds.
const MOST_LATENCY = 0.3;

export class Sound {
  constructor(clock) {
    this.clock = clock;
    this.isOn = false;
    this.problem = null;
    this.context = null;
    this.decoder = null;
    this.codec = null;
    this.pieces = [];
    this.next = 0;
    this.played = 0;
    // How late the sound is, milliseconds, smoothed.
    this.apart = 0;
  }

  // Browsers let sound begin with a click.
  async turn(isOn) {
    this.isOn = isOn;
    this.context ??= new AudioContext({ latencyHint: "interactive" });
    this.gap();
    await (isOn ? this.context.resume() : this.context.suspend());
  }

  // Other streams begin.
  restart() {
    this.problem = null;
    this.codec = null;
  }

  // Drops decoded sound, because frames are missing or the sound was off.
  gap() {
    this.pieces = [];
    this.codec = null;
  }

  // Takes a frame: `codec`, `rate`, `channels`, `samples`, `bytes`, and `shown` on the line of time.
  push(frame) {
    const codec = `${frame.codec} ${frame.rate} ${frame.channels}`;
    if (codec !== this.codec) this.configure(frame, codec);
    if (!this.isOn || this.decoder?.state !== "configured") return;
    const timestamp = Math.round(frame.shown * 1000);
    this.decoder.decode(new EncodedAudioChunk({ type: "key", timestamp, data: frame.bytes }));
  }

  async configure(frame, codec) {
    this.codec = codec;
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
    const config = { codec: frame.codec, sampleRate: frame.rate, numberOfChannels: frame.channels };
    const answer = await AudioDecoder.isConfigSupported(config).catch(() => ({ supported: false }));
    if (codec !== this.codec) return;
    this.problem = answer.supported ? null : `This browser does not decode the sound (${frame.codec}).`;
    if (!answer.supported) return;
    const decoder = new AudioDecoder({
      output: (data) => this.decoded(data, decoder),
      // The next frame asks for another decoder.
      error: () => decoder === this.decoder && this.gap(),
    });
    decoder.configure(config);
    this.decoder = decoder;
  }

  decoded(data, decoder) {
    if (decoder === this.decoder && this.isOn) {
      const buffer = this.context.createBuffer(data.numberOfChannels, data.numberOfFrames, data.sampleRate);
      for (let channel = 0; channel < data.numberOfChannels; channel += 1) {
        data.copyTo(buffer.getChannelData(channel), { planeIndex: channel, format: "f32-planar" });
      }
      this.pieces.push({ time: data.timestamp / 1000, buffer });
      if (this.pieces.length * buffer.duration * 1000 > MOST) this.pieces.shift();
    }
    data.close();
    this.tick(performance.now());
  }

  // Hands the pieces that are due soon to the browser's audio.
  tick(now) {
    if (this.context?.state !== "running") return;
    const latency = Math.min(this.context.outputLatency || 0, MOST_LATENCY);
    while (this.pieces.length > 0 && this.clock.due(this.pieces[0].time) < now + AHEAD) {
      const { time, buffer } = this.pieces.shift();
      this.play(buffer, this.context.currentTime + (this.clock.due(time) - now) / 1000 - latency);
    }
  }

  // Plays a piece at a time of the audio's clock, or right behind the last one if that is near.
  play(buffer, ideal) {
    const early = ideal - this.next;
    const isNear = Math.abs(early) < NEAR && this.next > this.context.currentTime;
    const start = isNear ? this.next : ideal;
    if (start < this.context.currentTime) return;
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    // The clocks of sound and page drift, and the buffer changes: pieces are stretched a little.
    source.playbackRate.value = isNear ? 1 - early * GAIN : 1;
    source.connect(this.context.destination);
    source.start(start);
    this.next = start + buffer.duration / source.playbackRate.value;
    this.played += 1;
    this.apart += ((start - ideal) * 1000 - this.apart) / 16;
  }
}
