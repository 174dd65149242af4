// A subscriber of Media over QUIC (moq-lite 04) on WebTransport, as far as the test needs it.
// ADDRESS and CERTIFICATE are replaced. `seen` says what has arrived.
const seen = { protocol: "", groups: 0, frames: 0, bytes: 0, broken: 0, starts: [], wait_ms: -1, error: "" };

const text = (words) => [words.length, ...new TextEncoder().encode(words)];

// Reads a stream piece by piece: `number` gives a variable-length integer (RFC 9000, section 16), `take` so many bytes.
class Pieces {
  constructor(stream) {
    this.reader = stream.getReader();
    this.bytes = new Uint8Array(0);
  }
  async take(count) {
    while (this.bytes.length < count) {
      const { value, done } = await this.reader.read();
      if (done) return null;
      const joined = new Uint8Array(this.bytes.length + value.length);
      joined.set(this.bytes);
      joined.set(value, this.bytes.length);
      this.bytes = joined;
    }
    const taken = this.bytes.slice(0, count);
    this.bytes = this.bytes.slice(count);
    return taken;
  }
  async number() {
    const first = await this.take(1);
    if (first === null) return null;
    const rest = await this.take((1 << (first[0] >> 6)) - 1);
    return rest === null ? null : rest.reduce((value, byte) => value * 256 + byte, first[0] & 63);
  }
}

async function group(stream, began) {
  const pieces = new Pieces(stream);
  await pieces.number();
  await pieces.take(await pieces.number());
  seen.groups += 1;
  for (let frame = 0; ; frame += 1) {
    const size = await pieces.number();
    const packets = size === null ? null : await pieces.take(size);
    if (packets === null) return;
    if (seen.wait_ms < 0) seen.wait_ms = performance.now() - began;
    if (frame === 0) seen.starts.push(...packets.slice(0, 3));
    for (let at = 0; at < packets.length; at += 188) seen.broken += packets[at] === 0x47 ? 0 : 1;
    seen.frames += 1;
    seen.bytes += size;
  }
}

async function subscribe() {
  const value = Uint8Array.from("CERTIFICATE".match(/../g), (digits) => parseInt(digits, 16));
  const options = { serverCertificateHashes: [{ algorithm: "sha-256", value }], protocols: ["moq-lite-04"] };
  const transport = new WebTransport("https://ADDRESS/", options);
  await transport.ready;
  seen.protocol = transport.protocol;
  // SUBSCRIBE: number, broadcast, track, priority, order, age, and the first and the last group.
  const message = [0, ...text("live"), ...text("ts"), 128, 0, 0, 0, 0];
  const control = (await transport.createBidirectionalStream()).writable.getWriter();
  await control.write(new Uint8Array([2, message.length, ...message]));
  const began = performance.now();
  for await (const stream of transport.incomingUnidirectionalStreams) {
    group(stream, began).catch((error) => (seen.error += error));
  }
}

subscribe().catch((error) => (seen.error += error));
