// What is shown as one picture: photos with their maps, scales and words.

/** The size of a photo made to fit a square of `side` pixels. */
function fitted({ width, height }, side) {
  const share = side / Math.max(width, height);
  return [width, height].map((length) => Math.max(1, Math.round(length * share)));
}

function drawAll() {
  const [side, gap, line] = [1024, 48, 36];
  const sizes = views.map(({ scene }) => fitted(scene.item.photo, side));
  const width = gap + sizes.reduce((sum, [w]) => sum + Math.max(w, 640) + gap, 0);
  const height = Math.max(...sizes.map(([, h]) => h)) + 2 * gap + 5 * line;
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  let left = gap;
  views.forEach(({ scene }, at) => {
    const [w, h] = sizes[at];
    const photo = make("canvas", { width: w, height: h });
    drawPhoto(photo.getContext("2d"), w, h, scene);
    context.drawImage(photo, left, gap);
    const words = [scene.title, `${scene.item.image} \u00b7 ${scene.item.model}`];
    if (scene.item.warning) words.push(scene.item.warning);
    let down = gap + h + line;
    if (scene.scale) {
      const bar = make("canvas");
      paintBar(bar, scene.scale, scene.look);
      context.drawImage(bar, left, down - 20, 260, 14);
      const { low, top, unit } = scene.scale;
      drawWords(context, `${number(low)} to ${number(top)} ${unit}`, left + 276, down - 6, 20);
    }
    words.forEach((text, n) => drawWords(context, text, left, (down += line), n ? 20 : 26));
    left += Math.max(w, 640) + gap;
  });
  return canvas;
}

function drawWords(context, text, x, y, size) {
  context.fillStyle = "#26262a";
  context.font = `${size}px system-ui, sans-serif`;
  context.fillText(text, x, y);
}

function save() {
  const name = views.map(({ scene }) => `${scene.item.image} ${scene.title}`).join(" and ");
  const link = make("a", { download: `${name.replace(/[^\p{L}\p{N}.=-]+/gu, "_")}.png` });
  drawAll().toBlob((blob) => {
    link.href = URL.createObjectURL(blob);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
