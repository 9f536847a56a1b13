//! The roofline and the table's FU as an SVG.

use std::fmt::Display;

use amla_examples::output::percent;
use amla_examples::paper;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::cell::Cell;
use crate::roofline::{Bandwidth, Roofline};

const SIZE: (u32, u32) = (1280, 1060);
const HEADER: i32 = 44;
const ROOFLINE: i32 = 560;

const GREY: RGBColor = RGBColor(110, 110, 110);
// Okabe and Ito's colours, which the colour-blind can tell apart.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const LIGHT: RGBColor = RGBColor(170, 170, 170);

/// A drawing area of the SVG.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A drawing error, as text.
type Drawn<T> = Result<T, String>;

/// A series of bars: its name, its colour, and its FU beside a cell.
type Bars = (&'static str, RGBColor, fn(&Cell) -> Option<f64>);

/// The contents of the plot.
pub struct Figure<'a> {
    pub title: String,
    /// Its points are large.
    pub roofline: &'a Roofline<'a>,
    /// On the roofline, small.
    pub skinny: &'a [Cell],
    /// The bars.
    pub cells: &'a [Cell],
}

/// The SVG.
pub fn draw(figure: &Figure) -> Drawn<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        root.draw(&Text::new(
            figure.title.clone(),
            (24, 14),
            ("sans-serif", 20),
        ))
        .map_err(text)?;
        let (_, panels) = root.split_vertically(HEADER);
        let (above, below) = panels.split_vertically(ROOFLINE);
        draw_roofline(figure, &above)?;
        draw_bars(figure.cells, &below)?;
        root.present().map_err(text)?;
    }
    Ok(svg)
}

fn text(error: impl Display) -> String {
    format!("cannot draw the plot: {error}")
}

fn draw_roofline(figure: &Figure, area: &Area) -> Drawn<()> {
    let Figure {
        roofline, skinny, ..
    } = figure;
    let Bandwidth {
        one_thread,
        all_threads,
    } = roofline.bandwidth;
    let peak = roofline.peak();
    let points = || roofline.points.iter().map(|(_, cell)| cell);
    let (left, right) = (0.5, 1024.0);
    let reached = points().chain(*skinny).map(|c| c.measured.gflops);
    let low = reached.fold(one_thread.min(all_threads) * left, f64::min);
    // Whole decades, and room for names above the roof.
    let low = 10_f64.powf(low.log10().floor());
    let high = 10_f64.powf((peak * 2.0).log10().ceil());

    let mut chart = ChartBuilder::on(area)
        .caption(roofline.title(), ("sans-serif", 18))
        .margin_left(12)
        .margin_right(24)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| format!("{x}"))
        .y_label_formatter(&|y| format!("{y}"))
        .x_desc("FLOP per byte of KV cache")
        .y_desc("GFLOP/s")
        .label_style(("sans-serif", 16))
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(RGBColor(190, 190, 190))
        .light_line_style(RGBColor(232, 232, 232))
        .draw()
        .map_err(text)?;

    let roof = |gbs: f64, style: ShapeStyle| {
        let points = [left, roofline.ridge(gbs).clamp(left, right), right];
        let points = points.map(|x| (x, roofline.bound(gbs, x)));
        std::iter::once(PathElement::new(points, style))
    };
    let dash = |style| move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style);
    let dot = |size, style| move |(x, y)| Circle::new((x + 11, y), size, style);

    let (thin, thick) = (GREY.stroke_width(1), BLACK.stroke_width(2));
    if let Some(label) = roofline.one_thread() {
        chart
            .draw_series(roof(one_thread, thin))
            .map_err(text)?
            .label(label)
            .legend(dash(thin));
    }
    chart
        .draw_series(roof(all_threads, thick))
        .map_err(text)?
        .label("min(peak, bandwidth x FLOP per byte)")
        .legend(dash(thick));

    // Where the table has them: by the reads and the peak beside each, so not quite on the roof.
    let bound = |cell: &Cell| (cell.intensity(), cell.bound());
    chart
        .draw_series(points().map(|cell| Circle::new(bound(cell), 5, thick)))
        .map_err(text)?
        .label("bounds of MHA, GQA and MLA")
        .legend(dot(5, thick));
    let reached = |cell: &Cell, size, color: RGBColor| {
        Circle::new(
            (cell.intensity(), cell.measured.gflops),
            size,
            color.filled(),
        )
    };
    if !skinny.is_empty() {
        chart
            .draw_series(skinny.iter().map(|cell| reached(cell, 4, BLUE)))
            .map_err(text)?
            .label("reached by MLA with 1 to 64 heads")
            .legend(dot(4, BLUE.filled()));
    }
    chart
        .draw_series(points().map(|cell| reached(cell, 6, VERMILION)))
        .map_err(text)?
        .label("reached by MHA, GQA and MLA")
        .legend(dot(6, VERMILION.filled()));

    let named = roofline.points.iter().enumerate();
    let names = named.map(|(index, (variant, cell))| {
        let name = format!("{} ({:.0})", variant.name, cell.intensity());
        let at = bound(cell);
        let text = if cell.intensity() < roofline.ridge(all_threads) {
            Text::new(name, (-10, -4), font(HPos::Right, VPos::Bottom))
        } else {
            // Neighbours at different heights.
            let lift = 12 + 20 * (index as i32 % 2);
            Text::new(name, (0, -lift), font(HPos::Center, VPos::Bottom))
        };
        EmptyElement::at(at) + text
    });
    chart.draw_series(names).map_err(text)?;
    draw_legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// FU of each cell, beside the paper's.
fn draw_bars(cells: &[Cell], area: &Area) -> Drawn<()> {
    let series: [Bars; 3] = [
        ("this machine", VERMILION, |cell| {
            Some(cell.measured.utilization)
        }),
        ("the paper's Ascend 910", BLUE, |cell| {
            paper::figures(&cell.shape).map(|figures| figures.ascend.utilization)
        }),
        ("the paper's GPU", LIGHT, |cell| {
            paper::figures(&cell.shape).map(|figures| figures.gpu.utilization)
        }),
    ];
    let series: Vec<_> = series
        .into_iter()
        .filter(|(_, _, value)| cells.iter().any(|cell| value(cell).is_some()))
        .collect();
    // A cell is 1 wide, 0.8 of it bars; less than 6 cells don't fill the width. The legend is above 1.
    let mut chart = ChartBuilder::on(area)
        .caption(
            "FU: percent of the peak that is reached",
            ("sans-serif", 18),
        )
        .margin_top(18)
        .margin_left(12)
        .margin_right(24)
        .x_label_area_size(56)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..cells.len().max(6) as f64, 0.0..1.25)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&|fu| format!("{:.0} %", fu * 100.0))
        .label_style(("sans-serif", 16))
        .bold_line_style(RGBColor(190, 190, 190))
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    let width = 0.8 / series.len() as f64;
    for (position, (label, color, value)) in series.into_iter().enumerate() {
        let bars = cells.iter().enumerate().filter_map(|(index, cell)| {
            let left = index as f64 + 0.1 + width * position as f64;
            let corners = [(left, 0.0), (left + width, value(cell)?)];
            Some(Rectangle::new(corners, color.filled()))
        });
        chart
            .draw_series(bars)
            .map_err(text)?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 6), (x + 22, y + 6)], color.filled()));
    }

    let ours = cells.iter().enumerate().map(|(index, cell)| {
        let fu = cell.measured.utilization;
        let at = (index as f64 + 0.1 + width / 2.0, fu);
        EmptyElement::at(at) + Text::new(percent(fu), (0, -4), font(HPos::Center, VPos::Bottom))
    });
    chart.draw_series(ours).map_err(text)?;

    let below = |x, line, what| {
        EmptyElement::at((x, 0.0)) + Text::new(what, (0, line), font(HPos::Center, VPos::Top))
    };
    let contexts = cells
        .iter()
        .enumerate()
        .map(|(index, cell)| below(index as f64 + 0.5, 8, cell.shape.s_k.to_string()));
    chart.draw_series(contexts).map_err(text)?;
    let mut left = 0;
    let groups = cells
        .chunk_by(|a, b| a.shape.s_q == b.shape.s_q)
        .map(|group| {
            let middle = left as f64 + group.len() as f64 / 2.0;
            left += group.len();
            below(middle, 30, format!("s_k, with s_q {}", group[0].shape.s_q))
        });
    chart.draw_series(groups).map_err(text)?;
    draw_legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// A style of text, and the position of its anchor.
fn font(h: HPos, v: VPos) -> TextStyle<'static> {
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    style.pos(Pos::new(h, v))
}

fn draw_legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> Drawn<()> {
    chart
        .configure_series_labels()
        .position(position)
        .margin(14)
        .legend_area_size(30)
        .label_font(("sans-serif", 16))
        .background_style(WHITE)
        .border_style(RGBColor(190, 190, 190))
        .draw()
        .map_err(text)
}
