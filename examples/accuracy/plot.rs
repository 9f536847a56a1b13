//! The errors as an SVG: one panel per output format, on a logarithmic axis.

use amla::Precision::{Bf16, Bf16x2};
use plotters::coord::Shift;
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use crate::experiment::{Column, Engine, Experiment, Format, Method, Run};
use crate::inputs::Distribution;
use crate::report::label;

const SIZE: (u32, u32) = (1280, 1040);
const HEADER: i32 = 96;
/// Pixels from one series of a group to the next.
const STEP: i32 = 11;

/// A drawing area of the SVG.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A drawing error, as text.
type Drawn<T> = Result<T, String>;

/// Where the figures of a series come from.
enum Source {
    Ours(Run),
    /// The paper knows BF16 output alone.
    Paper(fn(&Distribution) -> f64),
}

enum Marker {
    Circle,
    Triangle,
    Square,
    Diamond,
}

struct Series {
    source: Source,
    label: String,
    marker: Marker,
    /// Hollow if the figures are the paper's.
    style: ShapeStyle,
}

impl Series {
    fn value(&self, column: &Column, format: Format) -> Option<f64> {
        let value = match (&self.source, format) {
            (Source::Ours(run), _) => column.score(run, format).error,
            (Source::Paper(figure), Format::Bf16) => figure(column.distribution),
            (Source::Paper(_), Format::F32) => return None,
        };
        // A logarithmic axis shows nothing else.
        (value.is_finite() && value > 0.0).then_some(value)
    }
}

/// The series, in the order in which a group shows them.
fn series(experiment: &Experiment) -> Vec<Series> {
    let ours = |method, engine, precision, marker, color: RGBColor| {
        let run = Run::new(method, engine, precision);
        Series {
            label: label(experiment, &run),
            source: Source::Ours(run),
            marker,
            style: color.filled(),
        }
    };
    let paper = |label: &str, figure, marker| Series {
        label: label.into(),
        source: Source::Paper(figure),
        marker,
        style: RGBColor(90, 90, 90).stroke_width(2),
    };
    // Okabe and Ito's colours, which the colour-blind can tell apart.
    let (vermilion, orange) = (RGBColor(213, 94, 0), RGBColor(230, 159, 0));
    let (blue, green, purple) = (
        RGBColor(0, 114, 178),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
    );
    use Engine::{Kernel, Reference};
    vec![
        paper("the paper's Base", |d| d.paper_base, Marker::Circle),
        ours(Method::Base, Reference, Bf16, Marker::Circle, BLACK),
        paper("the paper's AMLA", |d| d.paper_amla, Marker::Triangle),
        ours(
            Method::AsPrinted,
            Reference,
            Bf16,
            Marker::Triangle,
            vermilion,
        ),
        ours(Method::Compensated, Kernel, Bf16, Marker::Square, blue),
        ours(Method::Compensated, Kernel, Bf16x2, Marker::Square, orange),
        ours(Method::Exact, Kernel, Bf16, Marker::Diamond, green),
        ours(Method::Exact, Kernel, Bf16x2, Marker::Diamond, purple),
    ]
}

/// The SVG.
pub fn draw(experiment: &Experiment, columns: &[Column]) -> Drawn<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        let series = series(experiment);
        let (header, panels) = root.split_vertically(HEADER);
        draw_header(experiment, &series, &header)?;
        for (panel, format) in panels.split_evenly((2, 1)).iter().zip(Format::ALL) {
            draw_panel(columns, &series, format, &root, panel)?;
        }
        root.present().map_err(text)?;
    }
    Ok(svg)
}

fn text(error: impl std::fmt::Display) -> String {
    format!("can't draw the plot: {error}")
}

/// The title and the legend, in four columns.
fn draw_header(experiment: &Experiment, series: &[Series], area: &Area<'_>) -> Drawn<()> {
    let title = format!(
        "Error against Golden (f64): context {}, samples {}, rows a sample {}; mean over samples",
        experiment.context, experiment.samples, experiment.rows
    );
    area.draw(&Text::new(title, (24, 12), ("sans-serif", 20)))
        .map_err(text)?;
    for (index, series) in series.iter().enumerate() {
        let (column, row) = (index / 2, index % 2);
        let x = 36 + 312 * column as i32;
        let y = 56 + 24 * row as i32;
        draw_marker(area, (x, y), series)?;
        let label = Text::new(series.label.clone(), (x + 14, y - 6), ("sans-serif", 16));
        area.draw(&label).map_err(text)?;
    }
    Ok(())
}

fn draw_panel(
    columns: &[Column],
    series: &[Series],
    format: Format,
    root: &Area<'_>,
    panel: &Area<'_>,
) -> Drawn<()> {
    let series: Vec<_> = series
        .iter()
        .filter(|series| columns.iter().any(|c| series.value(c, format).is_some()))
        .collect();
    let (low, high) = decades(
        series
            .iter()
            .flat_map(|series| columns.iter().filter_map(|c| series.value(c, format))),
    );
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{} output", format.title()), ("sans-serif", 18))
        .margin_left(12)
        .margin_right(24)
        .margin_bottom(8)
        .x_label_area_size(34)
        .y_label_area_size(76)
        .build_cartesian_2d(
            (0..columns.len() - 1).into_segmented(),
            (low..high).log_scale(),
        )
        .map_err(text)?;
    // Every other group stands on grey.
    let stripes = (1..columns.len()).step_by(2).map(|index| {
        let end = if index + 1 < columns.len() {
            SegmentValue::Exact(index + 1)
        } else {
            SegmentValue::Last
        };
        Rectangle::new(
            [(SegmentValue::Exact(index), low), (end, high)],
            RGBColor(240, 240, 240).filled(),
        )
    });
    chart.draw_series(stripes).map_err(text)?;
    let name = |value: &SegmentValue<usize>| match value {
        SegmentValue::CenterOf(index) => columns[*index].distribution.name.to_string(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(columns.len())
        .x_label_formatter(&name)
        .x_label_style(("sans-serif", 16))
        .y_label_formatter(&|error| format!("{error:.0e}"))
        .y_label_style(("sans-serif", 16))
        .y_desc("relative Frobenius error")
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(RGBColor(180, 180, 180))
        .light_line_style(RGBColor(222, 222, 222))
        .draw()
        .map_err(text)?;
    let width = STEP * (series.len() as i32 - 1);
    for (index, series) in series.iter().enumerate() {
        let dx = STEP * index as i32 - width / 2;
        for (index, column) in columns.iter().enumerate() {
            if let Some(value) = series.value(column, format) {
                let (x, y) = chart.backend_coord(&(SegmentValue::CenterOf(index), value));
                draw_marker(root, (x + dx, y), series)?;
            }
        }
    }
    Ok(())
}

/// The powers of ten around the values, two decades at least.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if high == 0.0 {
        return (1e-6, 1e-2);
    }
    let low = low.log10().floor() as i32;
    let high = (high.log10().ceil() as i32).max(low + 2);
    // A little beyond them, lest rounding cost the axis its outermost labels.
    (
        10_f64.powi(low) * (1.0 - 1e-9),
        10_f64.powi(high) * (1.0 + 1e-9),
    )
}

/// A series' marker around the pixel `(x, y)`.
fn draw_marker(area: &Area<'_>, (x, y): (i32, i32), series: &Series) -> Drawn<()> {
    let corners: &[(i32, i32)] = match series.marker {
        Marker::Circle => {
            return area
                .draw(&Circle::new((x, y), 5, series.style))
                .map_err(text);
        }
        Marker::Triangle => &[(-6, 4), (0, -6), (6, 4), (-6, 4)],
        Marker::Square => &[(-5, -5), (5, -5), (5, 5), (-5, 5), (-5, -5)],
        Marker::Diamond => &[(-6, 0), (0, -7), (6, 0), (0, 7), (-6, 0)],
    };
    let corners: Vec<_> = corners.iter().map(|&(dx, dy)| (x + dx, y + dy)).collect();
    if series.style.filled {
        area.draw(&Polygon::new(corners, series.style))
    } else {
        area.draw(&PathElement::new(corners, series.style))
    }
    .map_err(text)
}
