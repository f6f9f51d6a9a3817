// Runs the page's network in Node: node run_network.js FOLDER, which holds job.json, weights.bin
// (deflated) and pixels.bin; prints what came out as JSON.

const { readFileSync } = require("node:fs");
const { inflateSync } = require("node:zlib");
const { join } = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];
const job = JSON.parse(readFileSync(join(folder, "job.json"), "utf8"));
const script = job.scripts.map((file) => readFileSync(file, "utf8")).join("\n");
vm.runInThisContext(`${script}\nglobalThis.page = { openKernels, PlainKernels, Network };`);

const numbers = (file) => {
  const bytes = readFileSync(join(folder, file));
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};

(async () => {
  const kernels = job.plain ? new page.PlainKernels() : await page.openKernels(readFileSync(job.wasm));
  const weights = new Uint8Array(inflateSync(readFileSync(join(folder, "weights.bin"))));
  const network = new page.Network(kernels, job.program, weights);
  const pixels = numbers("pixels.bin");
  const times = [];
  let run;
  for (let i = 0; i < (job.repeat ?? 1); i++) {
    const start = performance.now();
    run = network.run(pixels, job.options);
    run.mapped = run.rollout();
    times.push(performance.now() - start);
  }
  const list = (values) => values && Array.from(values);
  const out = {
    kernels: kernels.constructor.name,
    times,
    logits: list(run.logits),
    layers: run.layers.map(({ q, k, fused, averages, tokens }) => ({
      q: list(q),
      k: list(k),
      fused: list(run.read(fused)),
      averages,
      tokens,
    })),
    gates: run.gates.map((gate) => ({ ...gate, values: list(gate.values), where: list(gate.where) })),
    rollout: run.mapped && { ...run.mapped, values: list(run.mapped.values) },
    cams: job.program.cam && list(run.logits).map((_, target) => list(run.cam(target).values)),
  };
  console.log(JSON.stringify(job.brief ? { times, logits: out.logits, kernels: out.kernels } : out));
})();
