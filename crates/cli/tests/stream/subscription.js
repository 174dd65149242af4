// Subscribes to the client's track with the page's own subscriber. `seen` says what has arrived.
globalThis.seen = { protocol: "", groups: [], bytes: 0, broken: 0, starts: [], wait_ms: -1, error: "" };

async function read() {
  const { subscribe } = await import("/live/subscriber.js");
  const edge = await (await fetch("/moq.json")).json();
  let [began, isFirst] = [0, false];
  await subscribe(edge, {
    begin(protocol) {
      seen.protocol = protocol;
      began = performance.now();
    },
    group(sequence) {
      seen.groups.push(sequence);
      isFirst = true;
    },
    packets(bytes) {
      if (seen.wait_ms < 0) seen.wait_ms = performance.now() - began;
      if (isFirst) seen.starts.push(...bytes.slice(0, 3));
      isFirst = false;
      for (let at = 0; at < bytes.length; at += 188) seen.broken += bytes[at] === 0x47 ? 0 : 1;
      seen.bytes += bytes.length;
    },
  });
}

read().catch((error) => (seen.error += error));
