// Reads the heads of coded pictures and sound: where decoding can begin, and what a decoder must be told.

// Bytes of a picture that are searched for its first slice.
const MOST = 1 << 16;
// Bytes of parameter sets that are kept.
const MOST_PARAMETERS = 4096;

const hexadecimal = (byte) => byte.toString(16).padStart(2, "0");

// Where the units (NAL units) at the beginning of a picture begin, behind their start codes.
function* heads(bytes) {
  const last = Math.min(bytes.length, MOST) - 3;
  for (let at = 0; at < last; at += 1) {
    if (bytes[at] !== 0 || bytes[at + 1] !== 0 || bytes[at + 2] !== 1) continue;
    yield at + 3;
    at += 2;
  }
}

// A unit without the bytes that keep start codes out of it (H.264, section 7.4.1).
function payload(bytes, at, count) {
  const plain = [];
  for (let zeros = 0; at < bytes.length && plain.length < count; at += 1) {
    if (zeros >= 2 && bytes[at] === 3) {
      zeros = 0;
      continue;
    }
    zeros = bytes[at] === 0 ? zeros + 1 : 0;
    plain.push(bytes[at]);
  }
  return plain;
}

// The codec string of H.264 (RFC 6381), from a sequence parameter set.
function codecOfH264(bytes, at) {
  const [, profile, constraints, level] = payload(bytes, at, 4);
  return level === undefined ? null : "avc1." + [profile, constraints, level].map(hexadecimal).join("");
}

// The codec string of H.265 (ISO 14496-15, annex E), from a sequence parameter set: its profile_tier_level.
function codecOfH265(bytes, at) {
  const set = payload(bytes, at, 15);
  if (set.length < 15) return null;
  const space = ["", "A", "B", "C"][set[3] >> 6];
  // The flags of compatibility, in reverse order of bits.
  let compatible = 0;
  for (let bit = 0; bit < 32; bit += 1) {
    if (set[4 + (bit >> 3)] >> (7 - (bit & 7)) & 1) compatible += 2 ** bit;
  }
  const constraints = set.slice(8, 14);
  while (constraints.at(-1) === 0) constraints.pop();
  const tier = set[3] & 0x20 ? "H" : "L";
  const parts = ["hev1", space + (set[3] & 0x1f), compatible.toString(16), tier + set[14]];
  return [...parts, ...constraints.map((byte) => byte.toString(16))].join(".");
}

// Units by codec: `kind` of a unit, and whether it is a parameter set, a slice or a slice of a key frame.
const CODECS = {
  h264: {
    kind: (byte) => byte & 0x1f,
    isSequence: (kind) => kind === 7,
    isParameters: (kind) => kind === 7 || kind === 8,
    isSlice: (kind) => kind >= 1 && kind <= 5,
    isKey: (kind) => kind === 5,
    codec: codecOfH264,
  },
  h265: {
    kind: (byte) => byte >> 1 & 0x3f,
    isSequence: (kind) => kind === 33,
    isParameters: (kind) => kind >= 32 && kind <= 34,
    isSlice: (kind) => kind <= 31,
    isKey: (kind) => kind >= 16 && kind <= 21,
    codec: codecOfH265,
  },
};

// Reads pictures of one stream in Annex B. Parameter sets that an encoder sends only once are put before key frames.
export class Pictures {
  constructor(codec) {
    this.is = CODECS[codec];
    this.codec = null;
    this.parameters = new Uint8Array(0);
  }

  // The codec string so far, whether decoding can begin with the picture, and its bytes. Null without a slice.
  read(bytes) {
    const begins = [];
    let [slice, codec] = [null, null];
    for (const at of heads(bytes)) {
      const kind = this.is.kind(bytes[at]);
      begins.push([at, kind]);
      if (this.is.isSequence(kind)) codec ??= this.is.codec(bytes, at);
      if (this.is.isSlice(kind)) {
        slice = kind;
        break;
      }
    }
    if (slice === null) return null;
    if (codec !== null) {
      this.codec = codec;
      this.parameters = this.parametersOf(bytes, begins);
    }
    const isKey = this.is.isKey(slice);
    const isBare = isKey && codec === null;
    return { codec: this.codec, isKey, bytes: isBare ? concatenated(this.parameters, bytes) : bytes };
  }

  parametersOf(bytes, begins) {
    const found = [];
    begins.forEach(([at, kind], index) => {
      if (!this.is.isParameters(kind)) return;
      const end = index + 1 < begins.length ? begins[index + 1][0] - 3 : bytes.length;
      found.push(0, 0, 0, 1, ...bytes.subarray(at, Math.min(end, at + MOST_PARAMETERS)));
    });
    return Uint8Array.from(found.slice(0, 4 * MOST_PARAMETERS));
  }
}

function concatenated(first, second) {
  const bytes = new Uint8Array(first.length + second.length);
  bytes.set(first);
  bytes.set(second, first.length);
  return bytes;
}

const AAC_RATES = [96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350];

// The head of a frame of AAC in ADTS (ISO 13818-7, section 6.2), or null.
function adts(bytes, at) {
  if (bytes[at] !== 0xff || (bytes[at + 1] & 0xf6) !== 0xf0) return null;
  const rate = AAC_RATES[bytes[at + 2] >> 2 & 0x0f];
  const length = (bytes[at + 3] & 3) << 11 | bytes[at + 4] << 3 | bytes[at + 5] >> 5;
  if (rate === undefined || length < 7) return null;
  // Configuration 7 is 7.1. With 0 the frame itself says it, and decoders do not ask.
  const channels = [2, 1, 2, 3, 4, 5, 6, 8][(bytes[at + 2] & 1) << 2 | bytes[at + 3] >> 6];
  const samples = 1024 * ((bytes[at + 6] & 3) + 1);
  return { codec: `mp4a.40.${(bytes[at + 2] >> 6) + 1}`, rate, channels, samples, length };
}

// Kilobits per second by version (MPEG-1 or later) and layer, from index 1 on.
const BITRATES = {
  "1.1": [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
  "1.2": [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
  "1.3": [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
  "2.1": [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
  "2.2": [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
  "2.3": [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
};

// The head of a frame of MPEG audio, layers 1 to 3 (ISO 11172-3, section 2.4.1.3), or null.
function mpeg(bytes, at) {
  if (bytes[at] !== 0xff || (bytes[at + 1] & 0xe0) !== 0xe0) return null;
  const version = bytes[at + 1] >> 3 & 3;
  const layer = 4 - (bytes[at + 1] >> 1 & 3);
  const kilobits = BITRATES[`${version === 3 ? 1 : 2}.${layer}`]?.[(bytes[at + 2] >> 4) - 1];
  const rate = [44100, 48000, 32000][bytes[at + 2] >> 2 & 3] / [4, NaN, 2, 1][version];
  if (kilobits === undefined || !(rate > 0)) return null;
  const samples = layer === 1 ? 384 : layer === 3 && version !== 3 ? 576 : 1152;
  const padding = bytes[at + 2] >> 1 & 1;
  const slot = layer === 1 ? 4 : 1;
  const length = Math.floor(samples / 8 / slot * kilobits * 1000 / rate + padding) * slot;
  const channels = bytes[at + 3] >> 6 === 3 ? 1 : 2;
  return { codec: `mp${layer}`, rate, channels, samples, length };
}

// Divides the units of one stream of sound into frames, which may go over the end of a unit.
export class Sounds {
  constructor(codec) {
    this.head = codec === "aac" ? adts : mpeg;
    this.rest = new Uint8Array(0);
    this.time = null;
  }

  // The frames of a unit: `time` is in 1/90000 s. Frames without a time are left out.
  read(unit) {
    const bytes = concatenated(this.rest, unit.bytes);
    const border = this.rest.length;
    const frames = [];
    let [at, isNew] = [0, unit.shown !== null];
    while (at + 7 <= bytes.length) {
      const head = this.head(bytes, at);
      if (head === null) {
        at += 1;
        continue;
      }
      if (at + head.length > bytes.length) break;
      // The time stamp is that of the first frame that begins in the unit.
      if (isNew && at >= border) [this.time, isNew] = [unit.shown, false];
      if (this.time !== null) {
        frames.push({ ...head, time: this.time, bytes: bytes.slice(at, at + head.length) });
        this.time += head.samples * 90000 / head.rate;
      }
      at += head.length;
    }
    this.rest = bytes.slice(at);
    return frames;
  }
}
