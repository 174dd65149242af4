"use strict";
// Runs scenarios one at a time. During a run, only the latest new scenario is kept.
let simulator = null;
let waiting = null;
async function load(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const module = await WebAssembly.compile(await new Response(stream).arrayBuffer());
  // Imports that libraries declare and the simulator never calls.
  const imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module)) {
    imports[from] = imports[from] || {};
    imports[from][name] = () => { throw new Error("the simulator called the missing import " + name); };
  }
  simulator = (await WebAssembly.instantiate(module, imports)).exports;
}
function run(scenario) {
  const text = new TextEncoder().encode(scenario);
  const place = simulator.input(text.length);
  new Uint8Array(simulator.memory.buffer, place, text.length).set(text);
  const length = simulator.run();
  return JSON.parse(new TextDecoder().decode(new Uint8Array(simulator.memory.buffer, simulator.output(), length)));
}
function next() {
  if (!simulator || !waiting) return;
  const { id, scenario } = waiting;
  waiting = null;
  const begun = performance.now();
  const answer = run(scenario);
  postMessage({ id, answer, took_ms: performance.now() - begun });
}
onmessage = (message) => {
  if (message.data.packed) {
    load(message.data.packed).then(next, (error) => postMessage({ failed: String(error) }));
  } else {
    waiting = message.data;
    setTimeout(next);
  }
};
