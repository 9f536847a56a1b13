//! The roofline and the table's FU as an SVG.

use std::fmt::Display;

use amla::Shape;
use plotters::coord::Shift;
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use crate::cell::Cell;
use crate::paper;
use crate::roofline::{self, Bandwidth, VARIANTS, Variant};

const SIZE: (u32, u32) = (1280, 1060);
const HEADER: i32 = 44;
const ROOFLINE: i32 = 560;

const GREY: RGBColor = RGBColor(110, 110, 110);
// Okabe and Ito's colours, which the colour-blind can tell apart.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const ORANGE: RGBColor = RGBColor(230, 159, 0);

/// A drawing area of the SVG.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A drawing error, as text.
type Drawn<T> = Result<T, String>;

/// What there is to see.
pub struct Figure<'a> {
    pub title: String,
    pub bandwidth: Bandwidth,
    pub threads: usize,
    /// On the roofline, large.
    pub points: &'a [(&'a Variant, Cell)],
    /// On the roofline, small.
    pub few: &'a [Cell],
    /// The bars.
    pub cells: &'a [Cell],
}

/// The whole SVG.
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
        draw_bars(figure.cells, &root, &below)?;
        root.present().map_err(text)?;
    }
    Ok(svg)
}

fn text(error: impl Display) -> String {
    format!("cannot draw the plot: {error}")
}

fn draw_roofline(figure: &Figure, area: &Area) -> Drawn<()> {
    let Bandwidth {
        one_thread,
        all_threads,
    } = figure.bandwidth;
    let measured = || figure.points.iter().map(|(_, cell)| cell);
    let peak = roofline::peak(measured().chain(figure.few));
    let (left, right) = (0.5, 1024.0);
    let reached = measured().chain(figure.few).map(|c| c.measured.gflops);
    let low = reached.fold(one_thread.min(all_threads) * left, f64::min) * 0.7;
    let high = peak * 2.5;

    let mut chart = ChartBuilder::on(area)
        .caption(
            format!(
                "Roofline: reads {all_threads:.1} GB/s, peak {peak:.0} GFLOP/s; context 4096, keys from memory"
            ),
            ("sans-serif", 18),
        )
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

    let roof = |gbs: f64| {
        let ridge = peak / gbs;
        [left, ridge.clamp(left, right), right].map(|x| (x, (gbs * x).min(peak)))
    };
    chart
        .draw_series(LineSeries::new(roof(all_threads), BLACK.stroke_width(2)))
        .map_err(text)?
        .label(format!(
            "min(peak, bandwidth x FLOP/byte), threads: {}",
            figure.threads
        ))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], BLACK.stroke_width(2)));
    if figure.threads > 1 {
        let line = DashedLineSeries::new(
            [left, peak / one_thread].map(|x| (x, one_thread * x)),
            6,
            5,
            GREY.stroke_width(1),
        );
        chart
            .draw_series(line)
            .map_err(text)?
            .label(format!("bandwidth of one thread, {one_thread:.1} GB/s"))
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], GREY.stroke_width(1)));
    }

    // All variants stand on the roof, with their names above it.
    let on_roof = |variant: &Variant| {
        let x = variant.intensity();
        (x, (all_threads * x).min(peak))
    };
    chart
        .draw_series(
            VARIANTS
                .iter()
                .map(|v| Circle::new(on_roof(v), 5, BLACK.stroke_width(2))),
        )
        .map_err(text)?
        .label("what the roofline allows")
        .legend(|(x, y)| Circle::new((x + 11, y), 5, BLACK.stroke_width(2)));
    if !figure.few.is_empty() {
        let point =
            |cell: &Cell| Circle::new((cell.intensity(), cell.measured.gflops), 4, ORANGE.filled());
        chart
            .draw_series(figure.few.iter().map(point))
            .map_err(text)?
            .label("reached with 1 to 64 heads")
            .legend(|(x, y)| Circle::new((x + 11, y), 4, ORANGE.filled()));
    }
    let point = |cell: &Cell| {
        Circle::new(
            (cell.intensity(), cell.measured.gflops),
            6,
            VERMILION.filled(),
        )
    };
    chart
        .draw_series(measured().map(point))
        .map_err(text)?
        .label("reached by MLA-64, MLA-128 and MLA-128 with s_q 2")
        .legend(|(x, y)| Circle::new((x + 11, y), 6, VERMILION.filled()));

    for (index, variant) in VARIANTS.iter().enumerate() {
        let (x, y) = chart.backend_coord(&on_roof(variant));
        let (left, top) = chart.plotting_area().get_base_pixel();
        let _ = (left, top);
        // Neighbours at different heights.
        let lift = 26 + 20 * (index as i32 % 2);
        let style = ("sans-serif", 16).into_font().color(&BLACK);
        let name = format!("{} ({:.0})", variant.name, variant.intensity());
        let half = name.len() as i32 * 4;
        let (dx, dy) = area.get_base_pixel();
        area.draw(&Text::new(name, (x - dx - half, y - dy - lift), style))
            .map_err(text)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .margin(14)
        .legend_area_size(30)
        .label_font(("sans-serif", 16))
        .background_style(WHITE)
        .border_style(RGBColor(190, 190, 190))
        .draw()
        .map_err(text)
}

/// FU of each cell, beside the paper's.
fn draw_bars(cells: &[Cell], root: &Area, area: &Area) -> Drawn<()> {
    type Utilization = fn(&Cell) -> Option<f64>;
    let series: [(&str, RGBColor, Utilization); 3] = [
        ("this machine", BLUE, |c| Some(c.measured.utilization)),
        ("the paper's 910", VERMILION, |c| {
            paper::figures(&c.shape).map(|f| f.ascend.utilization)
        }),
        ("the paper's GPU", GREY, |c| {
            paper::figures(&c.shape).map(|f| f.gpu.utilization)
        }),
    ];
    let _ = (cells, root, area, series);
    let _: Option<(Shape, SegmentValue<i32>)> = None;
    Ok(())
}
