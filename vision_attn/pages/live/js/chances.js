// From logits to classes, for the page and for its worker.

const LIKELIEST = 5; // classes that are shown

/** Probabilities as Python's Calibration makes them: softmax(logits / temperature), or sigmoids. */
function probabilitiesOf(logits, { temperature = 1, activation = "softmax" }) {
  if (activation === "identity") return Float64Array.from(logits);
  if (activation === "sigmoid")
    return Float64Array.from(logits, (one) => 1 / (1 + Math.exp(-one / temperature)));
  const most = logits.reduce((largest, one) => Math.max(largest, one), -Infinity);
  const shares = Float64Array.from(logits, (one) => Math.exp((one - most) / temperature));
  const total = shares.reduce((sum, share) => sum + share, 0);
  return shares.map((share) => share / total);
}

/** The classes with the largest numbers, the largest first. */
const likeliest = (chances) =>
  [...chances.keys()].sort((a, b) => chances[b] - chances[a]).slice(0, LIKELIEST);
