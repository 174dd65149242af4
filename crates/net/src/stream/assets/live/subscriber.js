// A subscriber of Media over QUIC: moq-lite 04 over WebTransport, one track.

const PROTOCOL = "moq-lite-04";
// Groups older than this are not worth sending, milliseconds.
const AGE = 2000;
// A successor waits this time for a group to end, which is then given up, milliseconds.
const PATIENCE = 500;
// Bytes of groups that wait for their predecessor, and the longest frame.
const MOST_WAITING = 32 << 20;
const LONGEST_FRAME = 16 << 20;

const text = (words) => [words.length, ...new TextEncoder().encode(words)];

// A variable-length integer of two bytes (RFC 9000, section 16).
const short = (number) => [64 | number >> 8, number & 255];

// Reads a stream piece by piece. At the stream's end, `number` and `take` give null.
class Pieces {
  constructor(stream) {
    this.reader = stream.getReader();
    this.parts = [];
    this.length = 0;
  }

  async take(count) {
    while (this.length < count) {
      const { value, done } = await this.reader.read();
      if (done) return null;
      this.parts.push(value);
      this.length += value.length;
    }
    this.length -= count;
    if (count > 0 && this.parts[0].length > count) {
      const taken = this.parts[0].subarray(0, count);
      this.parts[0] = this.parts[0].subarray(count);
      return taken;
    }
    const taken = new Uint8Array(count);
    for (let at = 0; at < count;) {
      const part = this.parts[0].subarray(0, count - at);
      taken.set(part, at);
      at += part.length;
      if (part.length === this.parts[0].length) this.parts.shift();
      else this.parts[0] = this.parts[0].subarray(part.length);
    }
    return taken;
  }

  async number() {
    const first = await this.take(1);
    if (first === null) return null;
    const rest = await this.take((1 << (first[0] >> 6)) - 1);
    return rest === null ? null : rest.reduce((value, byte) => value * 256 + byte, first[0] & 63);
  }
}

// Puts groups in order: the frames of the oldest one go on at once, those of later ones wait until it ends.
class Order {
  constructor(receiver) {
    this.receiver = receiver;
    this.groups = [];
    this.last = -1;
    this.waiting = 0;
  }

  // A group begins. It is refused if a later one has been given on.
  begin(sequence, giveUp) {
    if (sequence <= this.last) return null;
    const group = { sequence, giveUp, frames: [], isOver: false };
    this.groups.push(group);
    this.groups.sort((one, other) => one.sequence - other.sequence);
    if (this.groups[0] === group && this.groups.length === 1) this.open(group);
    else setTimeout(() => this.hasWaited(group), PATIENCE);
    return group;
  }

  open(group) {
    this.last = group.sequence;
    this.receiver.group(group.sequence);
    for (const bytes of group.frames) {
      this.waiting -= bytes.length;
      this.receiver.packets(bytes);
    }
    group.frames = [];
    group.isOpen = true;
  }

  frame(group, bytes) {
    if (group.isOpen) return this.receiver.packets(bytes);
    group.frames.push(bytes);
    this.waiting += bytes.length;
    if (this.waiting > MOST_WAITING) this.hasWaited(group);
  }

  end(group) {
    group.isOver = true;
    while (this.groups.length > 0 && this.groups[0].isOver) this.next();
  }

  next() {
    const ended = this.groups.shift();
    for (const bytes of ended.frames) this.waiting -= bytes.length;
    if (this.groups.length > 0 && !this.groups[0].isOpen) this.open(this.groups[0]);
  }

  // Gives up the groups before one that has waited for long enough.
  hasWaited(group) {
    while (this.groups.includes(group) && this.groups[0] !== group) {
      this.groups[0].giveUp();
      this.groups[0].isOver = true;
      this.next();
    }
    if (this.groups[0] === group && !group.isOpen) this.open(group);
  }
}

async function readGroup(stream, order) {
  const pieces = new Pieces(stream);
  const giveUp = () => pieces.reader.cancel().catch(() => { /* it has ended meanwhile */ });
  // The kind of the stream, the length of its header, and in it the number of the subscription and of the group.
  const [kind, length] = [await pieces.number(), await pieces.number()];
  const [subscription, sequence] = [await pieces.number(), await pieces.number()];
  if (kind !== 0 || length === null || subscription !== 0 || sequence === null) return giveUp();
  const group = order.begin(sequence, giveUp);
  if (group === null) return giveUp();
  try {
    for (;;) {
      const size = await pieces.number();
      if (size === null) return;
      if (size > LONGEST_FRAME) return giveUp();
      const bytes = await pieces.take(size);
      if (bytes === null || group.isOver) return;
      order.frame(group, bytes);
    }
  } finally {
    order.end(group);
  }
}

// Reads the track of an edge, as `moq.json` describes it, until the session ends; then it throws the reason.
// `receiver.begin` gets the version of the protocol, `receiver.group` the number of each group in order, and
// `receiver.packets` the frames of that group.
export async function subscribe(edge, receiver) {
  const hash = (digits) => Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16));
  const hashes = edge.certificates.map((digits) => ({ algorithm: "sha-256", value: hash(digits) }));
  const options = { serverCertificateHashes: hashes, protocols: [PROTOCOL] };
  const transport = new WebTransport(`https://${edge.address}/`, options);
  // The reason also comes with the streams below.
  transport.closed.catch(() => {});
  await transport.ready;
  try {
    if (transport.protocol !== PROTOCOL) {
      throw new Error(`the browser and the client agree on no version of Media over QUIC (${PROTOCOL})`);
    }
    receiver.begin(transport.protocol);
    // SUBSCRIBE: number, broadcast, track, priority, order, age, and the first and the last group.
    const message = [0, ...text(edge.broadcast), ...text(edge.track), 128, 0, ...short(AGE), 0, 0];
    const control = await transport.createBidirectionalStream();
    await control.writable.getWriter().write(new Uint8Array([2, message.length, ...message]));
    const order = new Order(receiver);
    const streams = transport.incomingUnidirectionalStreams.getReader();
    for (;;) {
      const { value, done } = await streams.read();
      if (done) throw new Error("the client closed the session");
      // A group that breaks off is followed by others, and the end of the session shows above.
      readGroup(value, order).catch(() => {});
    }
  } finally {
    transport.close();
  }
}
