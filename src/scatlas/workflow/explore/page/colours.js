// Colours that colour-blind readers tell apart, the same as in the figures (scatlas.pl).

// Okabe, Ito (2008), without the yellow that vanishes on white; black last.
const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#222222"];
// Colours around the cells, on a light page and on a dark one.
const SCHEMES = {
  light: {
    paper: [255, 255, 255], missing: [217, 217, 217], faded: [212, 212, 212], plain: [60, 90, 130],
    ink: "#111", halo: "rgba(255, 255, 255, 0.9)",
  },
  dark: {
    paper: [22, 25, 29], missing: [84, 90, 98], faded: [66, 71, 78], plain: [130, 170, 220],
    ink: "#f4f4f4", halo: "rgba(22, 25, 29, 0.85)",
  },
};
export let scheme = SCHEMES.light;

/** Take the colours of a "light" or "dark" page. */
export function setScheme(name) {
  scheme = SCHEMES[name];
}

/**
 * Colours of n categories, as [red, green, blue]. Up to seven are those of Okabe and Ito; of more,
 * neighbours differ in lightness as well as in hue, and the map adds names to the colours.
 */
export function categoryColours(n) {
  const isDark = scheme === SCHEMES.dark;
  if (n <= OKABE_ITO.length) {
    return [...OKABE_ITO.slice(0, 6), isDark ? "#eeeeee" : OKABE_ITO[6]].slice(0, n).map(rgbOfHex);
  }
  const levels = [[0.58, 0.15], [0.76, 0.12], [0.42, 0.12]];
  if (isDark) levels.forEach((level) => (level[0] += 0.12));
  const golden = Math.PI * (3 - Math.sqrt(5));
  return Array.from({ length: n }, (_, i) => {
    const hue = 0.5 + Math.floor(i / 3) * golden + ((i % 3) * 2 * Math.PI) / 3;
    return rgbOfOklch(levels[i % 3][0], levels[i % 3][1], hue);
  });
}

/** Colours of the levels of a column: grey for cells without a value. */
export function levelColours({ levels, n_named }) {
  const colours = categoryColours(n_named);
  return levels.map((_, level) => colours[level] ?? scheme.missing);
}

export function rgbOfHex(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

export function hexOfRgb(rgb) {
  return "#" + rgb.map((value) => Math.round(value).toString(16).padStart(2, "0")).join("");
}

// Ottosson (2020), clipped to what screens show.
function rgbOfOklch(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
  ].map((value) => {
    const x = Math.min(1, Math.max(0, value));
    return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
  });
}

// Viridis (matplotlib, CC0), every 16th colour. It is even in lightness for all kinds of vision.
const VIRIDIS = [
  "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e",
  "#21918c", "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
].map(rgbOfHex);

/** Colour of a number from 0 to 1. */
export function viridis(share) {
  const seen = scheme === SCHEMES.dark ? 0.15 + 0.85 * share : share; // its low end is dark
  const place = Math.min(1, Math.max(0, seen)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(place));
  return VIRIDIS[i].map((low, k) => Math.round(low + (place - i) * (VIRIDIS[i + 1][k] - low)));
}

/** Colour of an expression from 0 to 1: grey for none, so that few cells stand out. */
export function expressionColour(share) {
  if (share <= 0) return scheme.missing;
  return viridis(scheme === SCHEMES.dark ? share : 1 - 0.92 * share);
}
