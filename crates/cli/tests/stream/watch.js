// Reads the time that the source drew into the picture: twelve squares, black or white, of 20 ms and twice as much each.
// `watched` has the times seen and the last delays from drawing to display, milliseconds.
globalThis.watched = { times: new Set(), delays: [] };
globalThis.row = (name) =>
  [...document.querySelectorAll("dt")].find((term) => term.textContent === name)?.nextSibling.textContent;
globalThis.median = (numbers) => [...numbers].sort((one, other) => one - other)[numbers.length >> 1];

{
  const source = document.querySelector("canvas, video");
  const squares = new OffscreenCanvas(192, 16).getContext("2d", { willReadFrequently: true });
  setInterval(() => {
    squares.drawImage(source, 0, 0, 192, 16, 0, 0, 192, 16);
    const line = squares.getImageData(0, 8, 192, 1).data;
    let time = 0;
    for (let bit = 0; bit < 12; bit += 1) time += line[(16 * bit + 8) * 4 + 1] > 127 ? 2 ** bit : 0;
    const delay = (Math.floor(Date.now() / 20) - time & 4095) * 20;
    watched.times.add(time);
    watched.delays = [...watched.delays, delay].slice(-50);
  }, 50);
}
