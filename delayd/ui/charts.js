// Charts by uPlot, in the colours of the page and as wide as the element they are in.

import uPlot from "./uplot.js";
import { moment } from "./format.js";

const tzDate = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axes(spanOf, valueText) {
  const style = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return [
    { ...style, space: 70, size: 32, values: (plot, ticks) => ticks.map((tick) => moment(tick, spanOf(plot))) },
    { ...style, size: 62, values: (_plot, ticks) => ticks.map(valueText) },
  ];
}

// Draws the chart again when the width of its element or the colours of the page change.
function keepDrawn(view, place, make) {
  let plot = make(place.clientWidth || 600);
  const again = () => {
    plot.destroy();
    plot = make(place.clientWidth || 600);
  };
  const sizes = new ResizeObserver(() => {
    if (Math.abs(place.clientWidth - plot.width) > 1) plot.setSize({ width: place.clientWidth, height: plot.height });
  });
  sizes.observe(place);
  document.addEventListener("themechange", again);
  view.atEnd(() => {
    sizes.disconnect();
    document.removeEventListener("themechange", again);
    plot.destroy();
  });
  return (data) => plot.setData(data);
}

// Lines over time: `series` has a name and a colour variable for each; data is [seconds, ...values].
export function lineChart(view, place, series, valueText, height = 180) {
  let data = [[], ...series.map(() => [])];
  const spanOf = (plot) => plot.scales.x.max - plot.scales.x.min;
  const update = keepDrawn(view, place, (width) => new uPlot(
    {
      width,
      height,
      tzDate,
      legend: { live: true },
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: axes(spanOf, valueText),
      series: [
        { label: "Time (UTC)", value: (plot, at) => (at === null ? "–" : moment(at, Math.min(spanOf(plot), 86400))) },
        ...series.map(({ name, tint }) => ({
          label: name,
          stroke: colour(tint),
          width: 2,
          spanGaps: false,
          points: { show: false },
          value: (_plot, value) => (value === null || value === undefined ? "–" : valueText(value)),
        })),
      ],
    },
    data,
    place,
  ));
  return (newData) => {
    data = newData;
    update(data);
  };
}

// Bars over time; dragging over some of them calls `onSelect(from, to)`, a click on one `onPick(index)`.
export function barChart(view, place, { valueText, onSelect, onPick, height = 260 }) {
  let data = [[], []];
  let width = 1;
  const spanOf = (plot) => plot.scales.x.max - plot.scales.x.min;
  const bars = uPlot.paths.bars({ size: [0.9, 200], align: 1 });
  const update = keepDrawn(view, place, (wide) => {
    let pressedX = null;
    const plot = new uPlot(
      {
        width: wide,
        height,
        tzDate,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false, dist: 6 }, points: { show: false } },
        scales: {
          x: { range: () => (data[0].length ? [data[0][0], data[0].at(-1) + width] : [0, 1]) },
          y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.05 : 1] },
        },
        axes: axes(spanOf, valueText),
        series: [{}, { fill: colour("--accent"), stroke: colour("--accent"), width: 0, paths: bars, points: { show: false } }],
        hooks: {
          setSelect: [(shown) => {
            if (shown.select.width < 6) return;
            const from = shown.posToVal(shown.select.left, "x");
            const to = shown.posToVal(shown.select.left + shown.select.width, "x");
            shown.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            onSelect(from, to);
          }],
        },
      },
      data,
      place,
    );
    plot.over.addEventListener("pointerdown", (event) => {
      pressedX = event.clientX;
    });
    plot.over.addEventListener("pointerup", (event) => {
      if (pressedX !== null && Math.abs(event.clientX - pressedX) < 6 && data[0].length) {
        const at = plot.posToVal(event.offsetX, "x");
        const index = Math.floor((at - data[0][0]) / width);
        if (index >= 0 && index < data[0].length) onPick(index);
      }
      pressedX = null;
    });
    return plot;
  });
  return (newData, newWidth) => {
    data = newData;
    width = newWidth;
    update(data);
  };
}
