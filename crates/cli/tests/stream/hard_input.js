// Gives the page's demuxer hard input. The word in quotes below is replaced by a real stream in hexadecimal; `hard` has the cases that went wrong.
globalThis.hard = { isDone: 0, wrong: [] };

const stream = Uint8Array.from("STREAM".match(/../g), (digits) => parseInt(digits, 16));
const PACKET = 188;
const pid = (packet) => (packet[1] & 0x1f) << 8 | packet[2];

// Random numbers below a limit, the same in each run (xorshift).
let state = 2463534242;
function random(limit) {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % limit;
}

// The stream with each packet changed by a function, or left out if that gives null.
function changed(change) {
  const bytes = stream.slice();
  const packets = [];
  for (let at = 0; at < bytes.length; at += PACKET) {
    const packet = change(bytes.subarray(at, at + PACKET), at / PACKET);
    if (packet) packets.push(...packet);
  }
  return Uint8Array.from(packets);
}

// The page's modules.
let Demuxer, Pictures, Sounds, Clock, Timeline;

// A demuxer that counts.
function begin() {
  const found = { programs: 0, pictures: 0, keys: 0, frames: 0, codec: null };
  let [pictures, sounds] = [null, null];
  found.demuxer = new Demuxer({
    program(named) {
      found.programs += 1;
      pictures = named.picture?.codec && new Pictures(named.picture.codec);
      sounds = named.sound?.codec && new Sounds(named.sound.codec);
    },
    picture(unit) {
      const coded = pictures.read(unit.bytes);
      found.pictures += 1;
      found.keys += coded?.isKey ? 1 : 0;
      found.codec = coded?.codec ?? found.codec;
    },
    sound(unit) {
      found.frames += sounds.read(unit).length;
    },
  });
  return found;
}

function read(bytes, size = 6 * PACKET, found = begin()) {
  for (let at = 0; at < bytes.length; at += size) found.demuxer.push(bytes.subarray(at, at + size), 0);
  return found;
}

// Notes a case that does not hold.
function check(name, holds) {
  try {
    if (!holds()) hard.wrong.push(name);
  } catch (error) {
    hard.wrong.push(`${name}: ${error}`);
  }
}

const isWhole = (found) => found.pictures >= 49 && found.keys === 2 && found.frames >= 80 && found.codec !== null;
// Whatever came before: the next stream is read as ever.
const recovers = (found) => {
  const before = found.pictures;
  read(stream, 6 * PACKET, found);
  const whole = read(stream);
  return isWhole(whole) && found.pictures - before >= whole.pictures - 1;
};

function damage() {
  for (const size of [1, 7, PACKET - 1, PACKET, PACKET + 1, stream.length]) {
    check(`pieces of ${size} bytes`, () => isWhole(read(stream, size)));
  }
  check("garbage", () => recovers(read(Uint8Array.from({ length: 100_000 }, () => random(256)))));
  check("sync bytes only", () => recovers(read(new Uint8Array(100_000).fill(0x47))));
  check("missing packets", () => {
    const found = read(changed((packet, index) => index % 29 === 28 ? null : packet));
    return found.pictures < 49 && recovers(found);
  });
  check("altered bytes", () => recovers(read(changed((packet) => {
    packet[random(PACKET)] ^= 1 << random(8);
    return packet;
  }))));
  check("without the association table", () => read(changed((packet) => pid(packet) === 0 ? null : packet)).programs === 0);
  check("without the program map", () => read(changed((packet) => pid(packet) === 0x1000 ? null : packet)).pictures === 0);
  check("a wrong checksum", () => read(changed((packet) => {
    if (pid(packet) === 0x1000) packet[20] ^= 1;
    return packet;
  })).programs === 0);
}

function lyingLengths() {
  check("lengths of sections", () => recovers(read(changed((packet) => {
    if (pid(packet) === 0x1000) [packet[6], packet[7]] = [0xbf, 0xff];
    return packet;
  }))));
  check("pointers of sections", () => recovers(read(changed((packet) => {
    if (pid(packet) === 0) packet[4] = 255;
    return packet;
  }))));
  check("lengths of adaptation fields", () => recovers(read(changed((packet, index) => {
    if (index > 10 && packet[3] & 0x20) packet[4] = 150 + random(106);
    return packet;
  }))));
  // A unit's head is behind an adaptation field, if there is one.
  const head = (packet) => (packet[3] & 0x20 ? 5 + packet[4] : 4);
  const isUnit = (packet) => packet[1] & 0x40 && pid(packet) >= 0x100 && pid(packet) < 0x1000 && head(packet) < 170;
  check("lengths of heads of units", () => recovers(read(changed((packet) => {
    if (isUnit(packet)) packet[head(packet) + 8] = random(256);
    return packet;
  }))));
  check("lengths of units", () => recovers(read(changed((packet) => {
    if (isUnit(packet)) [packet[head(packet) + 4], packet[head(packet) + 5]] = [random(2) * random(256), random(256)];
    return packet;
  }))));
}

function endlessUnits() {
  check("a picture without an end", () => {
    const found = read(stream);
    const endless = changed((packet) => pid(packet) === 0x100 && !(packet[1] & 0x40) ? packet : null);
    for (let bytes = 0, counter = 0; bytes < 40 << 20; bytes += endless.length) {
      for (let at = 0; at < endless.length; at += PACKET) endless[at + 3] = endless[at + 3] & 0xf0 | counter++ & 15;
      read(endless, 6 * PACKET, found);
      if ([...found.demuxer.streams.values()].some((unit) => unit.length > 16 << 20)) return false;
    }
    return recovers(found);
  });
  check("garbage as pictures and sound", () => {
    const readers = [new Pictures("h264"), new Pictures("h265")];
    const sounds = [new Sounds("aac"), new Sounds("mpeg")];
    for (let turn = 0; turn < 2000; turn += 1) {
      const bytes = Uint8Array.from({ length: random(400) }, () => [0, 0, 1, 0xff, random(256)][random(5)]);
      readers.forEach((reader) => reader.read(bytes));
      sounds.forEach((reader) => reader.read({ shown: random(2) ? turn : null, bytes }));
    }
    return sounds.every((reader) => reader.rest.length < 1 << 14);
  });
}

function timeStamps() {
  // Time stamps: 25 pictures per second, each arriving when it is shown.
  const times = (stamps) => {
    const clock = new Clock();
    const timeline = new Timeline(clock);
    return stamps.map((stamp, index) => {
      const { decoded, shown } = timeline.picture({ shown: stamp, decoded: stamp }, index % 25 === 0, 40 * index);
      clock.arrived(decoded, true, 40 * index);
      return shown;
    });
  };
  const steps = (line) => line.slice(1).map((time, index) => time - line[index]);
  const WRAP = 2 ** 33;
  check("time stamps that wrap", () =>
    steps(times(Array.from({ length: 200 }, (_, at) => (WRAP - 100 * 3600 + at * 3600) % WRAP))).every((step) => Math.abs(step - 40) < 1e-3));
  check("a restart", () => {
    const all = steps(times(Array.from({ length: 200 }, (_, at) => 126_000 + at % 100 * 3600)));
    return all.every((step) => step > 0 && step < 100);
  });
  check("time stamps at random", () =>
    times(Array.from({ length: 2000 }, () => random(2 ** 32) * 2)).every(Number.isFinite));
  // At most 1.5 s, and 0.5 s more while it shrinks.
  check("the buffer is bounded", () => {
    const clock = new Clock();
    const arrivals = Array.from({ length: 2000 }, (_, at) => 40 * at + random(3000)).sort((one, other) => one - other);
    return arrivals.every((now, at) => {
      clock.arrived(40 * at, true, now);
      return clock.buffer() <= 2001;
    });
  });
}

async function run() {
  ({ Demuxer } = await import("/live/demuxer.js"));
  ({ Pictures, Sounds } = await import("/live/formats.js"));
  ({ Clock, Timeline } = await import("/live/clock.js"));
  for (const cases of [damage, lyingLengths, endlessUnits, timeStamps]) cases();
  hard.isDone = 1;
}

run().catch((error) => {
  hard.wrong.push(String(error));
  hard.isDone = 1;
});
