//! The paper's figures of the 910 (`tab:perfexp`): batch 96, 128 heads, AMLA.

use amla::ProblemShape;

/// Requests of a call.
pub const BATCH: usize = 96;
/// Query heads, h_q.
pub const HEADS: usize = 128;
/// Keys of a request, s_k.
pub const CONTEXTS: [usize; 6] = [1024, 2048, 3072, 4096, 6144, 16384];
/// Query positions of a request, s_q.
pub const S_Q: [usize; 2] = [1, 2];

/// The table's corners, (s_q, s_k): [`Calibration::FITTED`](crate::Calibration::FITTED) was fitted on
/// them, because every other cell is between them.
pub const CORNERS: [(usize, usize); 4] = [(1, 1024), (1, 16384), (2, 1024), (2, 16384)];

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Duration of a call, in microseconds.
    pub microseconds: f64,
    /// FLOPS utilization (FU), a share of the peak.
    pub utilization: f64,
}

/// Microseconds and FU in percent, for each of [`S_Q`] and [`CONTEXTS`].
const TABLE: [[[f64; 2]; 6]; 2] = [
    [
        [95.0, 40.9],
        [140.0, 55.1],
        [186.0, 62.4],
        [241.0, 64.1],
        [331.0, 70.2],
        [830.0, 74.5],
    ],
    [
        [135.0, 57.3],
        [219.0, 70.7],
        [306.0, 75.8],
        [388.0, 79.7],
        [565.0, 82.2],
        [1427.0, 86.8],
    ],
];

/// The table's cells, (s_q, s_k), row by row.
pub fn cells() -> impl Iterator<Item = (usize, usize)> {
    S_Q.into_iter()
        .flat_map(|s_q| CONTEXTS.map(|s_k| (s_q, s_k)))
}

/// The call of a cell.
#[must_use]
pub const fn shape(s_q: usize, s_k: usize) -> ProblemShape {
    ProblemShape {
        b: BATCH,
        s_q,
        s_k,
        h_q: HEADS,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    }
}

/// The paper's figure for a call, if it is one of the table's cells.
#[must_use]
pub fn figure(call: &ProblemShape) -> Option<Figure> {
    let row = S_Q.iter().position(|&s_q| s_q == call.s_q)?;
    let column = CONTEXTS.iter().position(|&s_k| s_k == call.s_k)?;
    let [microseconds, percent] = TABLE[row][column];
    (*call == shape(call.s_q, call.s_k)).then_some(Figure {
        microseconds,
        utilization: percent / 100.0,
    })
}
