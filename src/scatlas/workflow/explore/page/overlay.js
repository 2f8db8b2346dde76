// What lies over a map: names, and the outline of the selected cells.

/** Draw the names, and the outline or the one that the reader is drawing. */
export function drawOverlay(view, camera) {
  const context = view.overlay.getContext("2d");
  const { width, height } = view.overlay;
  context.clearRect(0, 0, width, height);
  const onScreen = (x, y) => camera.toScreen(x, y, width, height);
  drawLabels(view, context, onScreen);
  const path = view.path ?? view.outline?.map(([x, y]) => [x / 65536, y / 65536]);
  if (!path || path.length < 2) return;
  context.beginPath();
  path.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](...onScreen(x, y)));
  context.closePath();
  context.lineWidth = 2 * view.ratio;
  context.strokeStyle = "#222";
  context.setLineDash([6 * view.ratio, 4 * view.ratio]);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = "rgba(0, 0, 0, 0.04)";
  context.fill();
}

function drawLabels(view, context, onScreen) {
  context.font = `600 ${12 * view.ratio}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  const drawn = [];
  for (const { level, x, y, name } of view.labels) {
    if (!view.isVisible[level]) continue;
    const [px, py] = onScreen(x, y);
    const half = [context.measureText(name).width / 2 + 3, 8 * view.ratio];
    const isFree = drawn.every(
      ([ox, oy, ow]) => Math.abs(ox - px) > ow + half[0] || Math.abs(oy - py) > 2 * half[1],
    );
    if (!isFree) continue;
    drawn.push([px, py, half[0]]);
    context.lineWidth = 3.5 * view.ratio;
    context.strokeStyle = "rgba(255, 255, 255, 0.9)";
    context.strokeText(name, px, py);
    context.fillStyle = "#111";
    context.fillText(name, px, py);
  }
}
