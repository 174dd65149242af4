// Takes MPEG-TS apart (ISO 13818-1): program tables, and the units of one stream of pictures and one of sound.

const PACKET = 188;
const SYNC = 0x47;
// Sections are longer by this head.
const SECTION_HEAD = 3;
// Bytes of a section, of a picture, and of a unit of sound.
const LONGEST_SECTION = 1024;
const LONGEST_PICTURE = 16 << 20;
const LONGEST_SOUND = 1 << 20;

// Kinds of streams by the number in the program map. `codec` marks those that the page reads.
const KINDS = {
  0x01: { is: "picture", name: "MPEG-1 video" },
  0x02: { is: "picture", name: "MPEG-2 video" },
  0x03: { is: "sound", name: "MPEG audio", codec: "mpeg" },
  0x04: { is: "sound", name: "MPEG audio", codec: "mpeg" },
  0x0f: { is: "sound", name: "AAC", codec: "aac" },
  0x10: { is: "picture", name: "MPEG-4 part 2" },
  0x11: { is: "sound", name: "AAC in LATM" },
  0x1b: { is: "picture", name: "H.264", codec: "h264" },
  0x24: { is: "picture", name: "H.265", codec: "h265" },
  0x33: { is: "picture", name: "H.266" },
  0x81: { is: "sound", name: "AC-3" },
  0x87: { is: "sound", name: "E-AC-3" },
};
// Private data says by a descriptor what it is: tag, and what it tells.
const PRIVATE = 0x06;
const TOLD = {
  0x6a: { is: "sound", name: "AC-3" },
  0x7a: { is: "sound", name: "E-AC-3" },
  0x7b: { is: "sound", name: "DTS" },
};
// Names by a registration descriptor.
const REGISTRATION = 0x05;
const REGISTERED = {
  "Opus": { is: "sound", name: "Opus" },
  "AC-3": { is: "sound", name: "AC-3" },
  "EAC3": { is: "sound", name: "E-AC-3" },
  "AV01": { is: "picture", name: "AV1" },
  "VP09": { is: "picture", name: "VP9" },
};

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 24;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x80000000 ? crc << 1 ^ 0x04c11db7 : crc << 1;
  return crc;
});

// Whether the checksum at the end of a section fits (annex A).
function isWhole(section) {
  return section.reduce((crc, byte) => crc << 8 ^ CRC[(crc >>> 24) ^ byte], -1) === 0;
}

function joined(parts, length) {
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

// Gathers the sections of one table.
class Sections {
  constructor(take) {
    this.take = take;
    this.bytes = null;
  }

  push(payload, starts) {
    let rest = payload;
    if (starts) {
      const pointer = payload[0];
      if (1 + pointer > payload.length) return this.drop();
      if (this.bytes) this.add(payload.subarray(1, 1 + pointer));
      this.bytes = new Uint8Array(0);
      rest = payload.subarray(1 + pointer);
    }
    if (this.bytes) this.add(rest);
  }

  drop() {
    this.bytes = null;
  }

  // Adds bytes, and gives on the sections that they complete. Stuffing follows the last one.
  add(more) {
    this.bytes = joined([this.bytes, more], this.bytes.length + more.length);
    while (this.bytes && this.bytes.length >= SECTION_HEAD && this.bytes[0] !== 0xff) {
      const length = SECTION_HEAD + ((this.bytes[1] & 0x0f) << 8 | this.bytes[2]);
      if (length > LONGEST_SECTION) return this.drop();
      if (this.bytes.length < length) return;
      const section = this.bytes.subarray(0, length);
      this.bytes = this.bytes.subarray(length);
      if (length >= 12 && isWhole(section)) this.take(section);
    }
    if (this.bytes && this.bytes[0] === 0xff) this.drop();
  }
}

// A time stamp of 33 bits, in 1/90000 s.
function stamp(bytes, at) {
  const high = (bytes[at] >> 1 & 7) * 2 ** 30;
  return high + (bytes[at + 1] << 22 | bytes[at + 2] >> 1 << 15 | bytes[at + 3] << 7 | bytes[at + 4] >> 1);
}

// Gathers the units (PES packets) of one stream.
class Units {
  constructor(kind, take) {
    this.kind = kind;
    this.take = take;
    this.longest = kind.is === "picture" ? LONGEST_PICTURE : LONGEST_SOUND;
    this.drop();
  }

  drop() {
    this.parts = null;
    this.length = 0;
    this.expected = 0;
  }

  push(payload, starts, now) {
    if (starts) {
      this.end();
      this.parts = [];
      this.arrived = now;
    }
    if (!this.parts) return;
    this.parts.push(payload);
    this.length += payload.length;
    if (this.length > this.longest) return this.drop();
    if (starts && payload.length >= 6) this.expected = payload[4] << 8 | payload[5];
    // Units of unknown length end where the next one starts.
    if (this.expected > 0 && this.length >= this.expected + 6) this.end();
  }

  end() {
    const { parts, length, expected, arrived } = this;
    this.drop();
    if (!parts || expected > 0 && length < expected + 6) return;
    const bytes = joined(parts, length);
    const head = 9 + bytes[8];
    const hasTime = (bytes[7] & 0x80) !== 0;
    if (length < 9 || bytes[0] !== 0 || bytes[1] !== 0 || bytes[2] !== 1 || (bytes[6] & 0xc0) !== 0x80) return;
    const last = expected > 0 ? expected + 6 : length;
    if (head > last || hasTime && head < 14) return;
    const shown = hasTime ? stamp(bytes, 9) : null;
    const decoded = (bytes[7] & 0xc0) === 0xc0 && head >= 19 ? stamp(bytes, 14) : shown;
    this.take({ shown, decoded, arrived, bytes: bytes.subarray(head, last) });
  }
}

// `receiver.program` gets the kinds of picture and sound (null without one) and the names of other streams when the
// tables change. `receiver.picture` and `receiver.sound` get units: `shown` and `decoded` are time stamps, `arrived` is
// the time given with the first packet.
export class Demuxer {
  constructor(receiver) {
    this.receiver = receiver;
    this.counters = new Map();
    this.rest = new Uint8Array(0);
    this.tables = new Map([[0, new Sections((section) => this.associations(section))]]);
    this.streams = new Map();
    this.map = "";
    this.broken = 0;
  }

  // Forgets unfinished units, because packets are missing.
  gap() {
    this.rest = new Uint8Array(0);
    this.counters.clear();
    for (const one of [...this.tables.values(), ...this.streams.values()]) one.drop();
  }

  push(more, now) {
    let bytes = more;
    if (this.rest.length > 0) bytes = joined([this.rest, more], this.rest.length + more.length);
    let at = 0;
    while (at + PACKET <= bytes.length) {
      const isPacket = bytes[at] === SYNC;
      if (isPacket) this.packet(bytes.subarray(at, at + PACKET), now);
      else this.broken += 1;
      at += isPacket ? PACKET : 1;
    }
    this.rest = bytes.slice(at);
  }

  packet(packet, now) {
    const pid = (packet[1] & 0x1f) << 8 | packet[2];
    const owner = this.tables.get(pid) ?? this.streams.get(pid);
    const hasPayload = (packet[3] & 0x10) !== 0;
    if (!owner || !hasPayload) return;
    const head = packet[3] & 0x20 ? 5 + packet[4] : 4;
    const isDamaged = (packet[1] & 0x80) !== 0 || (packet[3] & 0xc0) !== 0;
    if (head >= PACKET || isDamaged) return owner.drop();
    const counter = packet[3] & 0x0f;
    const last = this.counters.get(pid);
    // Packets are missing, or the encoder began again. Clients leave out packets that a multiplexer repeats.
    if (last !== undefined && (last + 1 & 0x0f) !== counter) owner.drop();
    this.counters.set(pid, counter);
    owner.push(packet.subarray(head), (packet[1] & 0x40) !== 0, now);
  }

  // The program association table (section 2.4.4.3). Clients name one program.
  associations(section) {
    if (section[0] !== 0x00) return;
    for (let at = 8; at + 4 <= section.length - 4; at += 4) {
      const [program, pid] = [section[at] << 8 | section[at + 1], (section[at + 2] & 0x1f) << 8 | section[at + 3]];
      if (program === 0 || this.tables.has(pid)) continue;
      const [associations] = this.tables.values();
      this.tables = new Map([[0, associations], [pid, new Sections((map) => this.program(map))]]);
      return;
    }
  }

  // The program map table (section 2.4.4.8).
  program(section) {
    if (section[0] !== 0x02 || section.length < 16) return;
    const map = section.join();
    if (map === this.map) return;
    this.map = map;
    const found = { picture: null, sound: null, others: [] };
    const streams = new Map();
    const last = section.length - 4;
    let at = 12 + ((section[10] & 0x0f) << 8 | section[11]);
    while (at + 5 <= last) {
      const pid = (section[at + 1] & 0x1f) << 8 | section[at + 2];
      const end = at + 5 + ((section[at + 3] & 0x0f) << 8 | section[at + 4]);
      if (end > last) break;
      const kind = kindOf(section[at], section.subarray(at + 5, end));
      at = end;
      if (!kind) continue;
      const isFirst = found[kind.is] === null || !found[kind.is].codec && kind.codec;
      if (isFirst) found[kind.is] = { ...kind, pid };
      else found.others.push(kind.name);
    }
    for (const is of ["picture", "sound"]) {
      const kind = found[is];
      if (kind?.codec) streams.set(kind.pid, new Units(kind, (unit) => this.receiver[is](unit)));
    }
    this.streams = streams;
    this.receiver.program(found);
  }
}

function kindOf(number, descriptors) {
  if (number !== PRIVATE) return KINDS[number];
  for (let at = 0; at + 2 <= descriptors.length; at += 2 + descriptors[at + 1]) {
    const [tag, length] = [descriptors[at], descriptors[at + 1]];
    if (TOLD[tag]) return TOLD[tag];
    const name = String.fromCharCode(...descriptors.subarray(at + 2, at + 6));
    if (tag === REGISTRATION && length >= 4 && REGISTERED[name]) return REGISTERED[name];
  }
  return undefined;
}
