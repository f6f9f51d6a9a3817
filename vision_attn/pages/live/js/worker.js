// The worker: it decodes photos and runs networks, so that the page never stops answering.
//
// Every message is {id, kind, ...}; its answer is {id, result} or {id, error}. A run of curves also
// sends {id, point} for each point.

const LARGEST_SHOWN = 1024; // pixels of a photo's longer side on the page

const photos = new Map(); // by number: {inputs}, {image, box} for each network
const networks = [];
let latestCurves = 0;

const HANDLERS = {
  /** kernels, networks: text of what Python wrote. Answers by what the networks run on. */
  async open({ kernels, networks: given }) {
    const wasm = new Uint8Array(await inflate(kernels));
    let kind;
    for (const { program, weights, how, temperature, activation } of given) {
      const own = await openKernels(wasm); // a memory each
      kind = own.constructor.name;
      networks.push({
        how,
        calibration: (activation ?? "softmax") === "softmax" ? {} : { temperature, activation },
        network: new Network(own, program, new Uint8Array(await inflate(weights))),
      });
    }
    return kind;
  },

  /**
   * Decodes a file, upright, transparent parts white; answers with the picture to show. whole:
   * networks get all of it, squeezed into their shape, instead of its middle.
   */
  async photo({ photo, file, whole }) {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
    const { width, height } = bitmap;
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    const size = [width, height];
    const inputs = networks.map(({ how: usual }) => {
      const how = whole ? { ...usual, fit: "squash", crop: 1 } : usual;
      const box = seenBox(size, how).map((at, axis) => at / size[axis % 2]);
      return { image: prepare(data, size, how), box };
    });
    photos.set(photo, { inputs });
    const share = Math.min(1, LARGEST_SHOWN / Math.max(width, height));
    const [resizeWidth, resizeHeight] = size.map((side) => Math.max(1, Math.round(side * share)));
    const shown = await createImageBitmap(canvas, {
      resizeWidth,
      resizeHeight,
      resizeQuality: "high",
    });
    return { shown, boxes: inputs.map(({ box }) => box) };
  },

  /**
   * Runs a network on a photo: {cells, fill} covered, heads `off`. Answers with logits, layers,
   * gates, rollout, and class activation maps of the likeliest classes and of `targets`.
   */
  run({ photo, model, cover, off, targets }) {
    const { network } = networks[model];
    const { image, keep } = covered(photo, model, cover);
    const run = network.run(image, { keep, off });
    const mapped = new Set([...likeliest(run.logits), ...targets]);
    return {
      logits: run.logits,
      keep,
      gates: run.gates,
      layers: run.layers.map(({ fused, ...layer }) => layer),
      rollout: run.rollout(),
      cams: run.program.cam ? [...mapped].map((target) => ({ target, ...run.cam(target) })) : [],
    };
  },

  /** Probability of a class as cells go, or come, in an order: the most important ones first. */
  async curves({ id, photo, model, order, target, steps }) {
    latestCurves = id;
    const { network, how, calibration } = networks[model];
    const { image } = photos.get(photo).inputs[model];
    for (let step = 0; step <= steps; step++) {
      const kept = [steps - step, step].map((part) => roundEven((order.length * part) / steps));
      const gone = [order.slice(0, order.length - kept[0]), order.slice(kept[1])];
      const [deletion, insertion] = gone.map((cells) => {
        const removed = withCells(image, how.input, how.grid, new Set(cells), null);
        return probabilitiesOf(network.run(removed).logits, calibration)[target];
      });
      postMessage({ id, point: { share: step / steps, deletion, insertion } });
      await new Promise((done) => setTimeout(done)); // what came meanwhile goes first
      if (latestCurves !== id) break;
    }
    return latestCurves === id;
  },
};

/** A photo with covered cells: the image, and the patches that exist where they are dropped. */
function covered(photo, model, { cells, fill }) {
  const { how } = networks[model];
  const input = photos.get(photo).inputs[model];
  if (!cells.length) return { image: input.image, keep: null };
  const gone = new Set(cells);
  if (fill === "drop") {
    const patches = Array.from({ length: how.grid[0] * how.grid[1] }, (_, at) => at);
    const keep = patches.filter((at) => !gone.has(at));
    if (!keep.length && networks[model].network.program.layout.pool !== "cls")
      throw new Error("Leave at least one patch: this network reads the patches.");
    return { image: input.image, keep };
  }
  input.blurred ??= fill === "blur" ? blurred(input.image, how.input) : undefined;
  const filling = fill === "blur" ? input.blurred : null;
  return { image: withCells(input.image, how.input, how.grid, gone, filling), keep: null };
}

onmessage = async ({ data }) => {
  const { id, kind } = data;
  try {
    const result = await HANDLERS[kind](data);
    postMessage({ id, result }, [...transferable(result)]);
  } catch (error) {
    postMessage({ id, error: `${error.message ?? error}` });
  }
};

/** What an answer hands over instead of copying it. */
function* transferable(result) {
  if (result?.shown) yield result.shown;
  for (const { q, k } of result?.layers ?? []) yield* [q.buffer, k.buffer];
}
